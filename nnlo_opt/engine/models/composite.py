"""Composite models: several Keras models trained together by a custom `train_on_batch`.

To the rest of a trainer a composite is an ordinary `ModelAdapter`. Its weights are the concatenated weights of its
models. Its state is their state and the running averages of their optimizers. Its gradient is the difference w - w' of
the weights before and after `train_on_batch`, in which each model steps with its own optimizer. An update rule that
uses this difference as a gradient, at a learning rate of 1 (`TrainingOptions.for_updates`), therefore exchanges weights
in easgd, adds up differences in downpour and averages them in allreduce. Exchange, checkpoints, folds and resuming work
like for any other model.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.files import atomic_path
from nnlo_opt.core.base.trees import Arrays, Shapes, leaves, n_samples
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.models.adapter import blame_on_trial
from nnlo_opt.core.models.layout import (
    FlatWeights,
    FloatVector,
    Layout,
    WeightSpec,
    check_counters,
    check_vector,
    slices_of,
)
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.figure import finite_number
from nnlo_opt.core.update_rules.optimizers import Optimizer, make_optimizer
from nnlo_opt.engine.models.keras.adapter import KerasAdapter, forget_models
from nnlo_opt.engine.models.losses import Loss, LossTerm

#: figures of one model by name, means over a batch
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """One of the models of a composite, with its losses and its optimizer."""

    #: built Keras model with trainable weights
    model: Any
    #: figure name -> loss, in the order of the outputs
    losses: Mapping[str, Loss]
    #: weights of the losses by the same names; 1 for missing names
    loss_weights: Mapping[str, float] = field(default_factory=dict)
    #: pairs (copy, original): a model within this one that always has the values of a model of another part. The copy
    #: must not be trainable
    copies: Sequence[tuple[Any, Any]] = ()
    #: optimizer of this model, with its parameters; None: the one in the options
    optimizer: str | None = None
    learning_rate: float | None = None
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)


class CompositeModel(ABC):
    """Several models that are trained together; set `get_model.trains_itself = True` for it.

    Before `build`, a subclass holds only hyperparameters.
    """

    @abstractmethod
    def build(self, feature_shape: Shapes) -> Mapping[str, ModelPart]:
        """Return the models by name, for samples of this shape.

        A metric of a model is `<name>_<figure>` in the history, and `<name>:<figure>` in options.
        """

    @abstractmethod
    def train_on_batch(
        self, models: Mapping[str, "PartTrainer"], x: Arrays, y: Arrays, rng: np.random.Generator
    ) -> Mapping[str, Figures]:
        """Train on one batch, and return the figures of every model.

        Args:
            models: models by name, with `train_on_batch`, `test_on_batch` and `predict`.
            x: features of the batch.
            y: labels of the batch.
            rng: use it for all random numbers; it depends on the seed, the batch, and the number of earlier batches.
        """

    @abstractmethod
    def test_on_batch(
        self, models: Mapping[str, "PartTrainer"], x: Arrays, y: Arrays, rng: np.random.Generator
    ) -> Mapping[str, Figures]:
        """Return the figures of every model for one validation batch; `rng` depends only on the batch."""

    def to_save(self, parts: Mapping[str, ModelPart]) -> Any:
        """Return the Keras model to save: by default all models side by side, each as a layer of its name."""
        import keras

        inputs: list[Any] = []
        outputs: list[Any] = []
        for part in parts.values():
            own = [keras.Input(tensor.shape[1:]) for tensor in part.model.inputs]
            inputs += own
            outputs += keras.tree.flatten(part.model(own if len(own) > 1 else own[0]))
        return keras.Model(inputs, outputs)


class PartTrainer:
    """One model of a composite in training: its weights and its optimizer.

    Args:
        part: description of the model.
        options: options of the training; their optimizer is the default.
    """

    def __init__(self, part: ModelPart, options: TrainingOptions) -> None:
        terms = [LossTerm(name, loss, part.loss_weights.get(name, 1.0)) for name, loss in part.losses.items()]
        self.adapter = KerasAdapter(part.model, terms)
        name, rate, parameters = options.optimizer, options.learning_rate, options.optimizer_params
        if options.worker_optimizer is not None:
            name, parameters = options.worker_optimizer, options.worker_optimizer_params
        if part.optimizer is not None:
            name, rate, parameters = part.optimizer, part.learning_rate, part.optimizer_params
        n_weights = self.adapter.n_weights
        self.optimizer: Optimizer = make_optimizer(name, n_weights, rate, parameters)
        #: weights (n_weights,) of the adapter, updated in place by the optimizer
        self.weights = self.adapter.own_weights
        self._gradient = aligned_empty(n_weights)
        #: state of the adapter, including the copies
        self._state = aligned_empty(self.adapter.n_state)
        #: for each copied variable: place in `_state`, other trainer, True for its weights or False for its state, and
        #: the place there
        self._followed: list[tuple[slice, PartTrainer, bool, slice]] = []

    def follow(self, copies: Sequence[tuple[Any, Any]], others: Sequence["PartTrainer"]) -> None:
        """From now on keep the variables of every copy equal to its original in `others`."""
        for copy, original in copies:
            own = self.adapter.places(copy.variables)
            for other in others:
                for mine, theirs in zip(own, other.adapter.places(original.variables), strict=True):
                    if theirs is None or mine is None:
                        continue
                    if mine[0]:
                        raise TrialError(f"A copy in a composite must not be trainable. Received: {copy.name}.")
                    self._followed.append((mine[1], other, *theirs))

    def train_on_batch(self, x: Arrays, y: Arrays, sample_weight: FloatVector | None = None) -> dict[str, float]:
        """Train one step on the batch; return its figures before the step."""
        self._refresh()
        metrics = self.adapter.gradient(x, y, self._gradient, sample_weight)
        self.optimizer.apply(self.weights, self._gradient)
        return metrics.means()

    def test_on_batch(self, x: Arrays, y: Arrays) -> dict[str, float]:
        """Return the figures of the batch in inference mode."""
        self._refresh()
        return self.adapter.evaluate(x, y).means()

    def predict(self, x: Arrays, model: Any) -> list[np.ndarray]:
        """Return the outputs of `model`, the trained Keras model or a model within it, in inference mode."""
        self._refresh()
        return self.adapter.outputs(x, model)

    def _refresh(self) -> None:
        """Update the copies from their originals."""
        if self._followed:
            self.adapter.read_state(self._state)
            for mine, other, is_weight, theirs in self._followed:
                np.copyto(self._state[mine], (other.weights if is_weight else other.state())[theirs])
            self.adapter.write_state(self._state)

    def synced_model(self) -> Any:
        """Return the Keras model itself, with updated variables."""
        self._refresh()
        return self.adapter.synced_model()

    def state(self) -> FloatVector:
        """Return a copy of the state of the model, copies included."""
        self.adapter.read_state(state := aligned_empty(self.adapter.n_state))
        return state

    # ------------------------------------------------------------ state exchanged with the weights

    @property
    def n_travelling(self) -> int:
        """Length of `read_travelling`."""
        return sum(len(part) for part in self._travelling(self._state))

    def read_travelling(self, out: FloatVector) -> None:
        """Write the state without the copies, and the running averages of the optimizer, to `out`."""
        np.concatenate([np.empty(0, np.float32), *self._travelling(self.state())], out=out)

    def write_travelling(self, vector: FloatVector) -> None:
        """Inverse of `read_travelling`."""
        state = self.state()
        parts = [*self._travelling(state)]
        for part, place in zip(parts, slices_of(map(len, parts)), strict=True):
            np.copyto(part, vector[place])
        self.adapter.write_state(state)

    def _travelling(self, state: FloatVector) -> Iterator[FloatVector]:
        """Yield the parts of `state` that are not copies, then the running averages of the optimizer."""
        start = 0
        for mine, *_ in sorted(self._followed, key=lambda one: one[0].start):
            yield state[start : mine.start]
            start = mine.stop
        yield state[start:]
        yield from self.optimizer.slots

    def counters(self) -> list[list[int]]:
        """Return the integers needed to repeat the training exactly."""
        return [[self.optimizer.n_steps], *self.adapter.discrete_state()]

    def load_counters(self, values: list[list[int]]) -> None:
        """Inverse of `counters`."""
        self.optimizer.at_step(values[0][0])
        self.adapter.load_discrete_state(values[1:])


class CompositeAdapter(FlatWeights):
    """`ModelAdapter` of one composite; only `release` frees its memory.

    Args:
        composite: model returned by `get_model`.
        feature_shape: shape of a sample.
        options: options of the training, with the default optimizer.
        seed: seed of the random numbers for training and validation.
    """

    trains_itself = True

    def __init__(self, composite: CompositeModel, feature_shape: Shapes, options: TrainingOptions, seed: int) -> None:
        with blame_on_trial("building"):
            self._parts = dict(composite.build(feature_shape))
        self._composite, self._seed = composite, seed
        self._trainers = {name: PartTrainer(part, options) for name, part in self._parts.items()}
        for name, part in self._parts.items():
            others = [trainer for other, trainer in self._trainers.items() if other != name]
            self._trainers[name].follow(part.copies, others)
        self.figures = ("loss", *(f"{n}_{figure}" for n, t in self._trainers.items() for figure in t.adapter.figures))
        specs = [
            WeightSpec(f"{name}/{spec.name}", spec.shape)
            for name, trainer in self._trainers.items()
            for spec in trainer.adapter.layout.specs
        ]
        self.layout = Layout(tuple(specs))
        super().__init__(aligned_empty(self.layout.n_weights))
        for trainer, place in self._weight_places():
            np.copyto(self._weights[place], trainer.weights)
        self.n_state = sum(trainer.n_travelling for trainer in self._trainers.values())
        #: batches trained
        self._n_batches = 0

    def _weight_places(self) -> Iterator[tuple[PartTrainer, slice]]:
        """Yield each trainer with the slice of its weights in the vector."""
        trainers = self._trainers.values()
        return zip(trainers, slices_of(len(trainer.weights) for trainer in trainers), strict=True)

    def _state_places(self) -> Iterator[tuple[PartTrainer, slice]]:
        trainers = self._trainers.values()
        return zip(trainers, slices_of(trainer.n_travelling for trainer in trainers), strict=True)

    @property
    def optimizers(self) -> tuple[str, ...]:
        """Names of the optimizers actually used, without duplicates."""
        return tuple(dict.fromkeys(trainer.optimizer.name for trainer in self._trainers.values()))

    @property
    def losses_text(self) -> str:
        """Losses of all models as text."""
        each = [
            f"{name}: {', '.join(loss if isinstance(loss, str) else loss.__name__ for loss in part.losses.values())}"
            for name, part in self._parts.items()
        ]
        return "; ".join(each)

    def read_state(self, out: FloatVector) -> None:
        check_vector(out, self.n_state)
        for trainer, part in self._state_places():
            trainer.read_travelling(out[part])

    def write_state(self, vector: FloatVector) -> None:
        check_vector(vector, self.n_state)
        for trainer, part in self._state_places():
            trainer.write_travelling(vector[part])

    def discrete_state(self) -> list[list[int]]:
        return [[self._n_batches], *(values for t in self._trainers.values() for values in t.counters())]

    def load_discrete_state(self, values: list[list[int]]) -> None:
        check_counters(values, self.discrete_state())
        (self._n_batches,), *rest = values
        for trainer in self._trainers.values():
            n = len(trainer.counters())
            trainer.load_counters(rest[:n])
            rest = rest[n:]

    def gradient(self, x: Arrays, y: Arrays, out: FloatVector, sample_weight: FloatVector | None = None) -> Metrics:
        """Write the weights before `train_on_batch` minus the weights after it to `out`."""
        if sample_weight is not None:
            raise TrialError("A composite model does not accept weights of samples or classes; leave them out.")
        self._place_weights()
        with blame_on_trial("`train_on_batch`"):
            figures = self._composite.train_on_batch(self._trainers, x, y, self._rng(x, self._n_batches))
        self._n_batches += 1
        for trainer, part in self._weight_places():
            np.subtract(self._weights[part], trainer.weights, out=out[part])
        self._place_weights()
        return self._metrics(n_samples(x), figures)

    def evaluate(self, x: Arrays, y: Arrays, sample_weight: FloatVector | None = None) -> Metrics:
        self._place_weights()
        with blame_on_trial("`test_on_batch`"):
            figures = self._composite.test_on_batch(self._trainers, x, y, self._rng(x, -1))
        return self._metrics(n_samples(x), figures)

    def save(self, path: Path) -> None:
        """Write all models side by side in Keras's own format; `path` must end in ".keras"."""
        self.synced_model()
        with atomic_path(path) as temporary:
            self._composite.to_save(self._parts).save(temporary)

    def synced_model(self) -> CompositeModel:
        """Return the composite, with current variables in all its Keras models."""
        self._place_weights()
        for trainer in self._trainers.values():
            trainer.synced_model()
        return self._composite

    def release(self) -> None:
        """Free the models and all memory of Keras and its backend for them. Do not use the adapter afterwards."""
        for trainer in self._trainers.values():
            trainer.adapter.release()
        self._trainers, self._parts = {}, {}
        forget_models()

    def _place_weights(self) -> None:
        for trainer, part in self._weight_places():
            np.copyto(trainer.weights, self._weights[part])

    def _rng(self, x: Arrays, n_batches: int) -> np.random.Generator:
        """Return a generator that differs between batches, and between workers because their batches differ."""
        first = next(leaves(x))[:8]
        return np.random.default_rng([self._seed, n_batches + 1, zlib.crc32(np.ascontiguousarray(first).tobytes())])

    def _metrics(self, n: int, figures: Mapping[str, Figures]) -> Metrics:
        named = {f"{name}_{figure}": value for name, of_model in figures.items() for figure, value in of_model.items()}
        named["loss"] = sum(of_model["loss"] for of_model in figures.values())
        if missing := [name for name in self.figures if name not in named]:
            raise TrialError(f"`train_on_batch` and `test_on_batch` must return {missing[0]}, as `{missing[0]}`.")
        rule = "`train_on_batch` and `test_on_batch` must return finite numbers"
        return Metrics(n, {name: finite_number(named[name], f"{rule} as `{name}`") * n for name in self.figures})
