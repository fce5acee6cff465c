"""Model adapter of Keras, for every backend.

Keras describes the model, and an engine for its backend computes. Keras's `fit`, its optimizers and its Python loops
are not used, which saves about a millisecond a batch and 7 MB a trial. Between calls `KerasAdapter` owns the vectors.
"""

import gc
import importlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.files import atomic_path
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.base.trees import Arrays, leaves
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.models.adapter import blame_on_trial
from nnlo_opt.core.models.layout import FlatWeights, FloatVector, Layout, check_counters, copy_vector
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.engine.models.keras.graph import Batch, Engine, KerasGraph, Vectors, aligned
from nnlo_opt.engine.models.keras.metrics import States
from nnlo_opt.engine.models.keras.own_optimizer import KerasSteps
from nnlo_opt.engine.models.losses import LossTerm, figures_of
from nnlo_opt.engine.models.metrics import OutputMetric
from nnlo_opt.engine.models.own_optimizer import Instead, Own


@dataclass(slots=True)
class LossScale:
    """Dynamic loss scale, which prevents underflow of gradients in float16.

    P. Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740), section 3.2. The factor is a power of two. It
    is halved when a gradient overflows and doubled after many gradients without overflow. A batch whose gradient
    overflows is computed again with half the factor; other implementations drop the batch.
    """

    exponent: int = 15
    #: gradients since the factor last changed
    n_fitting: int = 0
    #: consecutive gradients without overflow before the factor doubles
    patience: int = 2000

    @classmethod
    def of(cls, model: Any) -> "LossScale | None":
        """Return the loss scale of a Keras model, by the `LossScaleOptimizer` of its `compile`, if it has one.

        None if no layer computes in float16.
        """
        if all(layer.compute_dtype != "float16" for layer in model._flatten_layers()):
            return None
        optimizer: Any = getattr(model, "optimizer", None)
        if not hasattr(optimizer, "dynamic_growth_steps"):
            return cls()
        exponent = max(0, round(math.log2(optimizer.initial_scale)))
        return cls(exponent=exponent, patience=optimizer.dynamic_growth_steps)

    @property
    def state(self) -> list[int]:
        """Numbers from which it continues after a resume: exponent, `n_fitting`."""
        return [self.exponent, self.n_fitting]

    def resume(self, state: Sequence[int]) -> None:
        """Continue from a `state`."""
        self.exponent, self.n_fitting = state

    @property
    def factor(self) -> float:
        """The factor of the loss, at least 1."""
        return float(2**self.exponent)

    def fits(self, gradient: FloatVector) -> bool:
        """Return True if `gradient` can be used: it is finite, or a smaller factor would not help."""
        if np.isfinite(gradient).all():
            self.n_fitting += 1
            return True
        if self.exponent == 0:
            return True
        self.exponent, self.n_fitting = self.exponent - 1, 0
        return False

    def rise(self) -> None:
        """Double the factor after many gradients without overflow; call it after dividing by `factor`."""
        if self.n_fitting >= self.patience:
            self.exponent, self.n_fitting = self.exponent + 1, 0


#: engine module for each backend of Keras
ENGINES = {backend: f"nnlo_opt.engine.models.keras.on_{backend}" for backend in ("tensorflow", "jax", "torch")}


class KerasAdapter(FlatWeights):
    """`ModelAdapter` of one Keras model; only `release` frees its memory.

    Args:
        model: built Keras model with trainable weights.
        terms: loss of each output.
        jit_compile: True to compile with XLA on TensorFlow.
        metrics: further metrics of the outputs, for `evaluate`.
        merging: names of the metrics whose states add up over samples; None for all.

    Raises:
        TrialError: if the model has no trainable weights.
    """

    trains_itself = False

    def __init__(
        self,
        model: Any,
        terms: Sequence[LossTerm],
        *,
        jit_compile: bool = False,
        metrics: Sequence[OutputMetric] = (),
        merging: Collection[str] | None = (),
    ) -> None:
        if not model.built or not model.trainable_variables:
            raise TrialError(
                f"A model must have trainable weights before training. Received: {model.name} with none. Start it "
                "with an Input layer, or let it see its input shape."
            )
        #: the Keras model; its variables are outdated until `synced_model`
        self._model: Any = model
        self._states = States(metrics, merging)
        self._graph: Any = KerasGraph(model, terms, self._states)
        self._engine: Any = _engine(self._graph, jit_compile)
        self.figures = figures_of(terms)
        self.layout: Layout = self._graph.layout
        super().__init__(_values_of(self._graph.weight_variables, self._graph.layout))
        #: state (n_state,) for the next call
        self._state = _values_of(self._graph.state_variables, self._graph.state_layout)
        self.n_state = len(self._state)
        #: discrete state: an integer array for each variable, then the counters of the engine
        self._counters: list[np.ndarray] = [
            *(_value_of(variable) for variable in self._graph.counter_variables),
            *self._engine.own_counters,
        ]
        #: loss scale; None if no layer computes in float16
        self._loss_scale = LossScale.of(model)

    @property
    def modes(self) -> dict[str, str]:
        """Metric besides losses and accuracies -> "max" or "min", as far as Keras knows which is better."""
        return self._states.modes

    def read_state(self, out: FloatVector) -> None:
        copy_vector(self._state, out)

    def write_state(self, vector: FloatVector) -> None:
        copy_vector(vector, self._state)

    def discrete_state(self) -> list[list[int]]:
        """Return the counters of the model, then the loss scale, if there is one."""
        scale = [self._loss_scale.state] if self._loss_scale else []
        return [counter.ravel().tolist() for counter in self._counters] + scale

    def load_discrete_state(self, values: list[list[int]]) -> None:
        check_counters(values, self.discrete_state())
        if self._loss_scale:
            *values, scale = values
            self._loss_scale.resume(scale)
        self._counters = [
            np.array(value, counter.dtype).reshape(counter.shape)
            for value, counter in zip(values, self._counters, strict=True)
        ]

    def gradient(self, x: Arrays, y: Arrays, out: FloatVector, sample_weight: FloatVector | None = None) -> Metrics:
        batch = _batch(x, y, sample_weight)
        with blame_on_trial("gradient"):
            if self._states.any_adds_up:
                batch = self._with_states(batch)
            result = self._engine.gradient(self._vectors, self._scaled(batch))
            while self._loss_scale and not self._loss_scale.fits(result.gradient):
                result = self._engine.gradient(self._vectors, self._scaled(batch))
        if self._loss_scale:
            np.multiply(result.gradient, 1 / self._loss_scale.factor, out=out)
            self._loss_scale.rise()
        else:
            copy_vector(result.gradient, out)
        # Each line costs microseconds in a small model's step, because its code has left the CPU caches.
        if len(self._state):
            copy_vector(result.state, self._state)
        if self._counters:
            counters = zip(result.counters, self._counters, strict=True)
            self._counters = [np.array(new, old.dtype) for new, old in counters]
        metrics = self._metrics(batch, result.sums)
        return replace(metrics, states=self._states.sums(result.states)) if result.states else metrics

    def evaluate(self, x: Arrays, y: Arrays, sample_weight: FloatVector | None = None) -> Metrics:
        batch = _batch(x, y, sample_weight)
        with blame_on_trial("evaluation"):
            sums, *states = self._engine.figures(self._vectors, self._with_states(batch))
        metrics = self._metrics(batch, sums)
        return replace(metrics, states=self._states.none | self._states.sums(states)) if states else metrics

    def finish(
        self, states: Mapping[str, ArrayLike], batches: Callable[[], Iterable[tuple[Arrays, Arrays]]]
    ) -> dict[str, float]:
        """Return the metrics of merged states, and of all samples those that do not add up."""

        def carried() -> Sequence[np.ndarray]:
            last: Sequence[np.ndarray] | None = None
            for x, y in batches():
                _, *last = self._engine.figures(self._vectors, self._with_states(_batch(x, y, None), last))
                PULSE.ticks += 1
            return last or []

        with blame_on_trial("evaluation"):
            return self._states.results(states, carried)

    def outputs(self, x: Arrays, model: Any) -> list[np.ndarray]:
        """Return the outputs of `model`, the adapter's model or a part of it, in inference mode."""
        with blame_on_trial("prediction"):
            return self._engine.outputs(self._vectors, Batch([*leaves(x)], [], [], []), model)

    def predict(self, x: Arrays) -> list[np.ndarray]:
        """Return the outputs in inference mode; TrialError if they mask padded steps."""
        from keras.src.backend import get_keras_mask

        if any(get_keras_mask(tensor) is not None for tensor in getattr(self._model, "outputs", None) or ()):
            raise TrialError("the outputs of the model have masked steps, whose mask an average does not keep")
        return self.outputs(x, self._model)

    def measure(self, outputs: Sequence[np.ndarray], y: Arrays) -> Metrics:
        """Return the metrics of outputs (n, ...), without weight penalties."""
        from keras import ops

        batch = Batch([*outputs], [*leaves(y)], [], [])
        with blame_on_trial("evaluation"):
            sums = ops.convert_to_numpy(self._graph.compare(outputs, batch)[1])
        return self._metrics(batch, sums)

    def measure_others(self, outputs: Sequence[np.ndarray], y: Arrays) -> dict[str, float]:
        from keras import ops

        with blame_on_trial("evaluation"):
            tensors = [ops.convert_to_tensor(output) for output in outputs]
            ys = [aligned(ops.convert_to_tensor(one), of) for one, of in zip(leaves(y), tensors, strict=True)]
            if self._states.initial is None:
                self._states.build(tensors, ys)
            after = self._states.after(self._states.initial or [], tensors, ys)
            return self._states.results(self._states.none, lambda: [*map(ops.convert_to_numpy, after)])

    def places(self, variables: Sequence[Any]) -> list[tuple[bool, slice] | None]:
        """Return the place of each variable: (True, slice) in the weights, (False, slice) in the state, or None."""
        graph = self._graph
        of_weights = zip(graph.weight_variables, graph.layout.slices, strict=True)
        of_state = zip(graph.state_variables, graph.state_layout.slices, strict=True)
        known = {id(variable): (True, part) for variable, part in of_weights}
        known |= {id(variable): (False, part) for variable, part in of_state}
        return [known.get(id(variable)) for variable in variables]

    def stepping(self, own: Own, instead: Instead) -> KerasSteps:
        """Return the steps of a Keras optimizer on this model."""
        return KerasSteps(own.optimizer, self._graph.weight_variables, self.layout, instead)

    def save(self, path: Path) -> None:
        """Write Keras's own format; `path` must end in ".keras".

        Raises:
            ConfigurationError: Keras cannot save the model.
        """
        model = self.synced_model()
        if fault := unsaved(model):
            raise ConfigurationError(
                f"A model must be one that Keras can save whole. Received: {fault} Its weights are in the folder of "
                "its trial; define `get_config`, or build it by `keras.Model(inputs, outputs)`."
            )
        with atomic_path(path) as temporary:
            model.save(temporary)

    def synced_model(self) -> Any:
        """Return the Keras model itself, with current variables."""
        graph = self._graph
        values = [*graph.layout.views(self._weights), *graph.state_layout.views(self._state), *self._counters]
        variables = [*graph.weight_variables, *graph.state_variables, *graph.counter_variables]
        for variable, value in zip(variables, values, strict=False):
            variable.assign(value)
        return self._model

    def take_from_model(self) -> bool:
        """Copy changed variables of the `synced_model` back to the adapter; return True if there were any."""
        graph = self._graph
        weights = _changed(graph.weight_variables, graph.layout, self._weights)
        state = _changed(graph.state_variables, graph.state_layout, self._state)
        if weights is not None:
            self.write_weights(weights)
        if state is not None:
            self.write_state(state)
        return weights is not None or state is not None

    def release(self) -> None:
        """Free the model and all memory of Keras and its backend for it.

        Do not use the adapter afterwards.
        """
        self._model = self._graph = self._engine = None
        forget_models()

    @property
    def _vectors(self) -> Vectors:
        return Vectors(self._weights, self._state, self._counters)

    def _with_states(self, batch: Batch, states: Sequence[np.ndarray] | None = None) -> Batch:
        """Return a batch with the states of the metrics before it: given ones, or those without samples."""
        if self._states.initial is None:
            few = Batch([x[:1] for x in batch.x], [y[:1] for y in batch.y], [], [])
            outputs = (
                self._engine.outputs(self._vectors, few._replace(y=[]), self._model)
                if self._states.need_samples
                else []
            )
            self._states.build(outputs, [aligned(y, output) for y, output in zip(few.y, outputs, strict=False)])
        return batch._replace(states=(self._states.initial or []) if states is None else states)

    def _scaled(self, batch: Batch) -> Batch:
        return batch._replace(loss_scale=[np.float32(self._loss_scale.factor)]) if self._loss_scale else batch

    def _metrics(self, batch: Batch, sums: np.ndarray) -> Metrics:
        return Metrics(len(batch.x[0]), dict(zip(self.figures, sums.tolist(), strict=True)))


def unsaved(model: Any) -> str:
    """Return why Keras cannot save a model whole, as a sentence; empty if it can."""
    import keras

    try:
        keras.saving.serialize_keras_object(model)
    except Exception as error:
        return f"{' '.join(str(error).strip().partition('Example:')[0].split()).rstrip('.') or type(error).__name__}."
    return ""


def forget_models() -> None:
    """Make Keras and its backend free all unreferenced models, including one that failed to build."""
    import keras

    keras.backend.clear_session(free_memory=False)
    gc.collect()


def _engine(graph: KerasGraph, jit_compile: bool) -> Engine:
    import keras

    return importlib.import_module(ENGINES[keras.backend.backend()]).Engine(graph, jit_compile)


def _batch(x: Arrays, y: Arrays, sample_weight: FloatVector | None) -> Batch:
    return Batch([*leaves(x)], [*leaves(y)], [] if sample_weight is None else [sample_weight], [])


def _value_of(variable: Any) -> np.ndarray:
    from keras import ops

    return ops.convert_to_numpy(variable.value)


def _changed(variables: Sequence[Any], layout: Layout, vector: FloatVector) -> FloatVector | None:
    """Return a vector with the values of the variables that differ from `vector`; None if none does.

    Variables in half precision have less of it than `vector`, which stays.
    """
    before = layout.views(vector)
    values = [_value_of(variable) for variable in variables]
    changes = [not np.array_equal(old.astype(new.dtype), new) for old, new in zip(before, values, strict=True)]
    if not any(changes):
        return None
    after = aligned_empty(layout.n_weights)
    layout.gather([new if is_new else old for old, new, is_new in zip(before, values, changes, strict=True)], after)
    return after


def _values_of(variables: Sequence[Any], layout: Layout) -> FloatVector:
    vector = aligned_empty(layout.n_weights)
    layout.gather([_value_of(variable) for variable in variables], vector)
    return vector
