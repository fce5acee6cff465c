"""What a Keras model computes, written once for every backend: from the arrays of its variables to loss and figures.

The arrays travel in as arguments and out as results, so that the model's own variables are never touched. An `Engine`
makes it fast on one backend: it differentiates, compiles and converts.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from nnlo_opt.models.layout import Layout, WeightSpec
from nnlo_opt.models.loss_terms import LossTerm
from nnlo_opt.models.losses import Shape


class Batch(NamedTuple):
    """One batch, flat: arrays in the order of the model's inputs and outputs."""

    x: list[Any]
    y: list[Any]
    #: (n,), or nothing
    sample_weight: list[Any]
    #: the factor of the loss whose gradient is taken, or nothing
    loss_scale: list[Any]

    @property
    def sample_shapes(self) -> tuple[Shape, ...]:
        """Of all its arrays."""
        return tuple(array.shape[1:] for array in (*self.x, *self.y))


class Vectors(NamedTuple):
    """What a computation starts from: weights (n_weights,) and state (n_state,), and the counters as they are."""

    weights: Any
    state: Any
    counters: list[Any]


class Gradient(NamedTuple):
    """What a batch in training gives; arrays that may lie in memory of the framework, to be copied."""

    #: the figures as sums over the samples
    sums: NDArray
    #: (n_weights,), of the mean loss times the loss scale
    gradient: NDArray
    #: (n_state,)
    state: NDArray
    counters: list[NDArray]


#: a flat tensor -> the arrays of a layout, in a way that the backend differentiates at little cost
Split: TypeAlias = Callable[[Any, Layout], list[Any]]


class Engine(Protocol):
    """The computations of one graph on one backend. Raises whatever the backend raises."""

    @property
    def own_counters(self) -> list[NDArray]:
        """Integers that it wants to be kept after those of the model, at their start; often none."""
        ...

    def gradient(self, vectors: Vectors, batch: Batch) -> Gradient:
        """One batch in training."""
        ...

    def figures(self, vectors: Vectors, batch: Batch) -> NDArray:
        """The figures of one batch in inference, as sums over its samples."""
        ...


class KerasGraph:
    """The computation of one built model under the losses of its outputs."""

    def __init__(self, model: Any, terms: Sequence[LossTerm]) -> None:
        self._model = model
        self._terms = terms
        fixed = model.non_trainable_variables
        #: the model's variables, by what becomes of them: optimised, averaged, kept
        self.weight_variables: list[Any] = model.trainable_variables
        self.state_variables = [variable for variable in fixed if "float" in variable.dtype]
        self.counter_variables = [variable for variable in fixed if "float" not in variable.dtype]
        self.layout = _layout_of(self.weight_variables)
        self.state_layout = _layout_of(self.state_variables)
        #: shapes of inputs and outputs with None where any length will do; None: not told before a batch
        self.sample_shapes = _declared_shapes(model)

    def forward(self, vectors: Vectors, batch: Batch, split: Split, *, training: bool) -> tuple[Any, Any, Any]:
        """The mean loss, the figures as sums (n_figures,), and the scope that holds what the call changed.

        Vectors and batch are tensors of the backend.
        """
        import keras
        from keras import ops

        mapping = [
            *zip(self.weight_variables, split(vectors.weights, self.layout), strict=True),
            *zip(self.state_variables, split(vectors.state, self.state_layout), strict=True),
            *zip(self.counter_variables, vectors.counters, strict=True),
        ]
        values = [(variable, ops.cast(value, variable.dtype)) for variable, value in mapping]
        # Through `__call__`, unlike Keras's `stateless_call`: layers in a subclassed model then know that they train.
        with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
            outputs = self._model(packed(self._model, batch.x), training=training)
            penalties = [ops.cast(penalty, "float32") for penalty in self._model.losses]
            # Layers number their penalties, batch by batch where nothing is traced.
            self._model._clear_losses()
        outcomes = [
            _measure(term, y, prediction, batch.sample_weight)
            for term, y, prediction in zip(self._terms, batch.y, keras.tree.flatten(outputs), strict=True)
        ]
        losses = [loss for loss, _ in outcomes]
        correct = [n_correct for _, n_correct in outcomes if n_correct is not None]
        loss = reduce(
            add, [*(_scaled(loss, term.weight) for loss, term in zip(losses, self._terms, strict=True)), *penalties]
        )
        n_samples = ops.cast(ops.shape(batch.x[0])[0], "float32")
        # In the order of `figures_of`.
        sums = [loss * n_samples, *correct[:1]]
        if len(losses) > 1:
            sums += [*(loss * n_samples for loss in losses), *correct]
        return loss, ops.stack(sums), scope

    def moved(self, scope: Any) -> tuple[Any, list[Any]]:
        """State (n_state,) and counters as `forward` left them in its scope."""
        from keras import ops

        arrays = [scope.get_current_value(variable) for variable in self.state_variables]
        flat = [ops.reshape(ops.cast(array, "float32"), (-1,)) for array in arrays]
        state = ops.concatenate(flat) if flat else ops.zeros((0,), "float32")
        return state, [scope.get_current_value(variable) for variable in self.counter_variables]


def packed(model: Any, x: list[Any]) -> Any:
    """Inputs in order, as `model` takes them: one, a list, or what it was built of."""
    import keras

    if getattr(model, "inputs", None) and not isinstance(model, keras.Sequential):
        return keras.tree.pack_sequence_as(model.input, x)
    return x if len(x) > 1 else x[0]


def _measure(term: LossTerm, y: Any, prediction: Any, sample_weight: list[Any]) -> tuple[Any, Any | None]:
    """The mean loss of one output, and how many samples are right, None where that is not counted.

    A sample of several predictions counts as the part of them that is right. Masked time steps count as Keras has it:
    the mean is over those that are not.
    """
    import keras
    from keras import ops

    # Keras has no public way to what it writes on tensors.
    from keras.src.backend import get_keras_mask

    mask = get_keras_mask(prediction)
    # Losses are float32 however the layers compute.
    prediction = ops.cast(prediction, "float32")
    y = _aligned(y, prediction)
    compare = getattr(keras.losses, term.loss) if isinstance(term.loss, str) else term.loss
    values = ops.cast(compare(y, prediction), "float32")
    if sample_weight and not len(values.shape):
        raise ValueError("sample weights need a loss of each sample, and the function returns their mean")
    for weight in sample_weight:
        values = values * _stretched(ops.cast(weight, "float32"), values)
    loss = ops.mean(_masked(values, mask))
    if term.accuracy is None:
        return loss, None
    right = ops.cast(getattr(keras.metrics, f"{term.accuracy}_accuracy")(y, prediction), "float32")
    # A count of samples, hence exact.
    return loss, ops.sum(ops.mean(ops.reshape(_masked(right, mask), (ops.shape(y)[0], -1)), axis=1))


def _scaled(loss: Any, weight: float) -> Any:
    return loss if weight == 1 else loss * weight


def _aligned(y: Any, prediction: Any) -> Any:
    """Labels of the rank of the prediction where only a last dimension of 1 is missing or too much.

    Losses would pair (n,) with (n, 1) as (n, n). Class numbers of a sparse loss stay as they are.
    """
    from keras import ops

    rank, expected = len(y.shape), len(prediction.shape)
    if prediction.shape[-1] == 1 and rank == expected - 1:
        return ops.expand_dims(y, -1)
    if y.shape[-1] == 1 and rank == expected + 1:
        return ops.squeeze(y, -1)
    return y


def _masked(values: Any, mask: Any | None) -> Any:
    """Nothing where a time step is masked, and else so much that the mean is over those that are not."""
    from keras import ops

    if mask is None or len(mask.shape) > len(values.shape):
        return values
    mask = ops.cast(mask, "float32")
    return values * _stretched(ops.divide_no_nan(mask, ops.mean(mask)), values)


def _stretched(weights: Any, values: Any) -> Any:
    """`weights` with as many dimensions as `values`, which has more behind."""
    from keras import ops

    for _ in range(len(values.shape) - len(weights.shape)):
        weights = ops.expand_dims(weights, -1)
    return weights


def _layout_of(variables: Sequence[Any]) -> Layout:
    return Layout(tuple(WeightSpec(variable.path, tuple(variable.shape)) for variable in variables))


def _declared_shapes(model: Any) -> list[Shape] | None:
    sides = getattr(model, "inputs", None), getattr(model, "outputs", None)
    return [tuple(tensor.shape[1:]) for side in sides for tensor in side or ()] if all(sides) else None
