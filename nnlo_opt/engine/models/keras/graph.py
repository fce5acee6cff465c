"""A Keras model as a pure function of its variables' values, for every backend.

The values are arguments and results, so the model's own variables never change. An `Engine` runs the computation on
one backend: it differentiates, compiles and converts.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from nnlo_opt.core.models.layout import Layout, WeightSpec
from nnlo_opt.engine.models.keras.metrics import States
from nnlo_opt.engine.models.losses import BatchLoss, LossTerm, Shape


class Batch(NamedTuple):
    """Arrays of one batch in the order of the model's inputs and outputs."""

    x: list[Any]
    y: list[Any]
    #: (n,), or empty
    sample_weight: list[Any]
    #: factor of the loss before differentiation, or empty
    loss_scale: list[Any]
    #: states of the metrics before this batch, or empty (`keras.metrics.States`)
    states: Sequence[Any] = ()

    @property
    def sample_shapes(self) -> tuple[Shape, ...]:
        """Shapes of one sample of each input and label array."""
        return tuple(array.shape[1:] for array in (*self.x, *self.y))


class Vectors(NamedTuple):
    """Inputs of a computation: weights (n_weights,), state (n_state,), and the counters unchanged."""

    weights: Any
    state: Any
    counters: list[Any]


class Gradient(NamedTuple):
    """Results of a batch in training; the arrays may lie in memory of the framework and must be copied."""

    #: figures as sums over the samples
    sums: np.ndarray
    #: gradient of the mean loss times the loss scale, (n_weights,)
    gradient: np.ndarray
    #: state after the batch, (n_state,)
    state: np.ndarray
    counters: list[np.ndarray]
    #: states of the metrics after the batch, if it had states
    states: Sequence[np.ndarray] = ()


#: splits a flat tensor into the arrays of a layout, in a way that the backend differentiates cheaply
Split: TypeAlias = Callable[[Any, Layout], list[Any]]


class Engine(Protocol):
    """Computations of one graph on one backend; does not catch the backend's exceptions."""

    #: initial values of the engine's integers, which follow the counters of the model; often none
    own_counters: list[np.ndarray]

    def gradient(self, vectors: Vectors, batch: Batch) -> Gradient:
        """Compute one batch in training mode."""

    def figures(self, vectors: Vectors, batch: Batch) -> list[np.ndarray]:
        """Return the figures of one batch in inference mode, as sums over its samples, then the states after it."""

    def outputs(self, vectors: Vectors, batch: Batch, model: Any) -> list[np.ndarray]:
        """Return the outputs of `model`, which shares the variables of the graph, for `batch.x` in inference mode."""


class KerasGraph:
    """Computation of one built model with the losses of its outputs.

    Args:
        model: built Keras model.
        terms: loss of each output.
        states: states of the metrics.
    """

    def __init__(self, model: Any, terms: Sequence[LossTerm], states: States) -> None:
        self._model = model
        self._terms = terms
        self._states = states
        fixed = model.non_trainable_variables
        #: the model's variables by use: optimised, averaged over workers, private to each worker
        self.weight_variables: list[Any] = model.trainable_variables
        self.state_variables = [variable for variable in fixed if "float" in variable.dtype]
        self.counter_variables = [variable for variable in fixed if "float" not in variable.dtype]
        self.layout = _layout_of(self.weight_variables)
        self.state_layout = _layout_of(self.state_variables)
        #: shapes of inputs and outputs, with None for any length; None if unknown before the first batch
        self.sample_shapes = _declared_shapes(model)

    def forward(self, vectors: Vectors, batch: Batch, split: Split) -> tuple[Any, Any, Any, list[Any]]:
        """Compute a batch in training mode.

        Vectors and batch are tensors of the backend.

        Returns:
            The mean loss times the loss scale; the figures without it, as sums (n_figures,); the scope that holds the
            variables that have changed; and the outputs.
        """
        outputs, penalties, scope = self._run(vectors, batch, split, training=True)
        loss, sums = self.compare(outputs, batch, penalties)
        for scale in batch.loss_scale:
            loss = loss * scale
        return loss, sums, scope, outputs

    def evaluate(self, vectors: Vectors, batch: Batch, split: Split) -> list[Any]:
        """Return the figures as sums (n_figures,) in inference mode, then the states of the metrics after the batch."""
        outputs, penalties, _ = self._run(vectors, batch, split, training=False)
        return [self.compare(outputs, batch, penalties)[1], *self.states_after(outputs, batch)]

    def states_after(self, outputs: Sequence[Any], batch: Batch) -> list[Any]:
        """Return the states of the metrics after a batch; none without `batch.states`."""
        if not batch.states:
            return []
        ys = [aligned(y, output) for y, output in zip(batch.y, outputs, strict=True)]
        return self._states.after(batch.states, outputs, ys, batch.sample_weight)

    def _run(self, vectors: Vectors, batch: Batch, split: Split, *, training: bool) -> tuple[list[Any], list[Any], Any]:
        """Return outputs, weight penalties and the scope of the variables."""
        import keras
        from keras import ops

        values = self._values(vectors, split)
        # Unlike Keras's `stateless_call`, `__call__` tells layers in a subclassed model that they train.
        with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
            outputs = self._model(packed(self._model, batch.x), training=training)
            penalties = [ops.cast(penalty, "float32") for penalty in self._model.losses]
            # Layers keep a list of their penalties, which without tracing would grow with every batch.
            self._model._clear_losses()
        return keras.tree.flatten(outputs), penalties, scope

    def compare(self, outputs: Sequence[Any], batch: Batch, penalties: Sequence[Any] = ()) -> tuple[Any, Any]:
        """Return the mean loss of outputs, including weight penalties, and the figures as sums (n_figures,)."""
        from keras import ops

        outcomes = [
            _measure(term, y, prediction, batch.sample_weight)
            for term, y, prediction in zip(self._terms, batch.y, outputs, strict=True)
        ]
        losses, weights = [loss for loss, _ in outcomes], [term.weight for term in self._terms]
        correct = [n_correct for _, n_correct in outcomes if n_correct is not None]
        weighted = [loss if weight == 1 else loss * weight for loss, weight in zip(losses, weights, strict=True)]
        loss = reduce(add, [*weighted, *penalties])
        n_samples = ops.cast(ops.shape(batch.x[0])[0], "float32")
        # The sums are in the order of `figures_of`.
        sums = [loss * n_samples, *correct[:1]]
        if len(losses) > 1:
            sums += [*(loss * n_samples for loss in losses), *correct]
        return loss, ops.stack(sums)

    def outputs(self, vectors: Vectors, batch: Batch, split: Split, model: Any) -> list[Any]:
        """Return the outputs of `model`, this model or a part of it, for `batch.x` in inference mode."""
        import keras
        from keras import ops

        with keras.StatelessScope(state_mapping=self._values(vectors, split)):
            outputs = keras.tree.flatten(model(packed(model, batch.x), training=False))
        # NumPy has no bfloat16.
        is_half = [keras.backend.standardize_dtype(output.dtype) in ("float16", "bfloat16") for output in outputs]
        return [ops.cast(output, "float32") if half else output for output, half in zip(outputs, is_half, strict=True)]

    def _values(self, vectors: Vectors, split: Split) -> list[tuple[Any, Any]]:
        """Return the variables of the model, each with its value."""
        from keras import ops

        mapping = [
            *zip(self.weight_variables, split(vectors.weights, self.layout), strict=True),
            *zip(self.state_variables, split(vectors.state, self.state_layout), strict=True),
            *zip(self.counter_variables, vectors.counters, strict=True),
        ]
        return [(variable, ops.cast(value, variable.dtype)) for variable, value in mapping]

    def moved(self, scope: Any) -> tuple[Any, list[Any]]:
        """Return state (n_state,) and counters after `forward`, from its scope."""
        from keras import ops

        arrays = [scope.get_current_value(variable) for variable in self.state_variables]
        flat = [ops.reshape(ops.cast(array, "float32"), (-1,)) for array in arrays]
        state = ops.concatenate(flat) if flat else ops.zeros((0,), "float32")
        return state, [scope.get_current_value(variable) for variable in self.counter_variables]


#: attribute of a model that declares no inputs, with the names of those that it takes as a dictionary
NAMES = "_nnlo_opt_input_names"


def packed(model: Any, x: list[Any]) -> Any:
    """Return inputs in the form that `model` expects: one tensor, a list, or the structure it was built with."""
    import keras

    if names := vars(model).get(NAMES):
        return dict(zip(names, x, strict=True))
    if getattr(model, "inputs", None) and not isinstance(model, keras.Sequential):
        return keras.tree.pack_sequence_as(model.input, x)
    return x if len(x) > 1 else x[0]


def _measure(term: LossTerm, y: Any, prediction: Any, sample_weight: list[Any]) -> tuple[Any, Any | None]:
    """Return the mean loss of one output, and the number of correct samples, None if they are not counted.

    A sample with several predictions counts as the fraction that is correct. Like in Keras, the mean excludes masked
    time steps.
    """
    import keras
    from keras import ops

    # Keras has no public function to read the mask of a tensor.
    from keras.src.backend import get_keras_mask, set_keras_mask

    mask = get_keras_mask(prediction)
    # Losses are float32 for any compute dtype of the layers.
    prediction = ops.cast(prediction, "float32")
    y = aligned(y, prediction)
    if isinstance(term.loss, BatchLoss):
        if mask is not None:
            set_keras_mask(prediction, mask)
        loss = ops.cast(term.loss(y, prediction, *sample_weight), "float32")
    else:
        compare = getattr(keras.losses, term.loss) if isinstance(term.loss, str) else term.loss
        values = ops.cast(compare(y, prediction), "float32")
        if sample_weight and not len(values.shape):
            raise ValueError("sample weights need a loss for each sample, but the function returns their mean")
        for weight in sample_weight:
            values = values * _stretched(ops.cast(weight, "float32"), values)
        loss = ops.mean(_masked(values, mask))
    if term.accuracy is None:
        return loss, None
    right = ops.cast(getattr(keras.metrics, f"{term.accuracy}_accuracy")(y, prediction), "float32")
    # The sum is a count of samples, hence exact.
    return loss, ops.sum(ops.mean(ops.reshape(_masked(right, mask), (ops.shape(y)[0], -1)), axis=1))


def aligned(y: Any, prediction: Any) -> Any:
    """Return labels with the rank of the prediction: adds or removes a last dimension of 1.

    Losses would pair (n,) with (n, 1) as (n, n). Class numbers of a sparse loss do not change.
    """
    rank, expected = len(y.shape), len(prediction.shape)
    if prediction.shape[-1] == 1 and rank == expected - 1:
        return y[..., None]
    if y.shape[-1] == 1 and rank == expected + 1:
        return y[..., 0]
    return y


def _masked(values: Any, mask: Any | None) -> Any:
    """Set masked time steps of `values` to 0, and scale the rest so that the mean covers only these."""
    from keras import ops

    if mask is None or len(mask.shape) > len(values.shape):
        return values
    mask = ops.cast(mask, "float32")
    return values * _stretched(ops.divide_no_nan(mask, ops.mean(mask)), values)


def _stretched(weights: Any, values: Any) -> Any:
    """Return `weights` with trailing dimensions of 1, so that they broadcast over `values`."""
    return weights[(..., *[None] * (len(values.shape) - len(weights.shape)))]


def _layout_of(variables: Sequence[Any]) -> Layout:
    return Layout(tuple(WeightSpec(variable.path, tuple(variable.shape)) for variable in variables))


def _declared_shapes(model: Any) -> list[Shape] | None:
    sides = getattr(model, "inputs", None), getattr(model, "outputs", None)
    return [tuple(tensor.shape[1:]) for side in sides for tensor in side or ()] if all(sides) else None
