"""The two computations of a Keras model as TensorFlow graphs, from flat vectors to flat vectors, without any state.

Both take (weights (n_weights,), state (n_state,), counters, x, y): the arrays of the model travel in as arguments
and out as results, so that its own variables are never touched.
"""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from nnlo_opt.models import losses
from nnlo_opt.models.layout import Layout, WeightSpec

#: A loss by Keras's name, or a function (y_true, y_pred) -> loss of each sample, or their mean.
Loss = str | Callable[[Any, Any], Any]

#: The figures in the order in which a graph returns them; the second only where classes are predicted.
FIGURES = ("loss", "acc")


class KerasGraph:
    """Traces the computations of one built model under one loss."""

    def __init__(self, model: Any, loss: Loss, activation: str | None) -> None:
        self._model = model
        self._loss = loss
        #: name of the activation the output comes from
        self._activation = activation
        fixed = model.non_trainable_variables
        #: the model's variables, by what becomes of them: optimised, averaged, kept
        self.weight_variables: list[Any] = model.trainable_variables
        self.state_variables = [variable for variable in fixed if "float" in variable.dtype]
        self.counter_variables = [variable for variable in fixed if "float" not in variable.dtype]
        self.layout = _layout_of(self.weight_variables)
        self.state_layout = _layout_of(self.state_variables)

    def trace_gradient(self, x: NDArray, y: NDArray) -> Callable[..., Any]:
        """A graph to (figures as sums, gradient (n_weights,), state (n_state,), counters) of a batch in training."""
        return self._trace(self._gradient, x, y)

    def trace_figures(self, x: NDArray, y: NDArray) -> Callable[..., Any]:
        """A graph to the figures of a batch, as sums over its samples, in inference."""
        return self._trace(self._figures, x, y)

    def _trace(self, function: Callable[..., Any], x: NDArray, y: NDArray) -> Callable[..., Any]:
        """Trace `function` once for batches of any length, and any length the model leaves open."""
        import tensorflow as tf

        sample_shape = getattr(self._model, "input_shape", x.shape)[1:]
        signature = (
            tf.TensorSpec([self.layout.n_weights], tf.float32),
            tf.TensorSpec([self.state_layout.n_weights], tf.float32),
            [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.counter_variables],
            tf.TensorSpec([None, *sample_shape], x.dtype),
            tf.TensorSpec([None, *y.shape[1:]], y.dtype),
        )
        return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()

    def _gradient(self, weights: Any, state: Any, counters: list[Any], x: Any, y: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss, sums, scope = self._forward(weights, state, counters, (x, y), training=True)
        # Through the split of the vector the gradient is one concatenation, zeros for unused weights included.
        gradient = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        arrays = [scope.get_current_value(variable) for variable in self.state_variables]
        if arrays:
            state = tf.concat([tf.reshape(tf.cast(array, tf.float32), [-1]) for array in arrays], axis=0)
        return (
            sums,
            gradient,
            state,
            [scope.get_current_value(variable) for variable in self.counter_variables],
        )

    def _figures(self, weights: Any, state: Any, counters: list[Any], x: Any, y: Any) -> Any:
        return self._forward(weights, state, counters, (x, y), training=False)[1]

    def _forward(
        self, weights: Any, state: Any, counters: list[Any], batch: tuple[Any, Any], *, training: bool
    ) -> tuple[Any, Any, Any]:
        """The mean loss, the figures as sums, and the scope that holds what the call changed."""
        import keras
        import tensorflow as tf

        x, y = batch
        mapping = [
            *zip(self.weight_variables, _split(weights, self.layout), strict=True),
            *zip(self.state_variables, _split(state, self.state_layout), strict=True),
            *zip(self.counter_variables, counters, strict=True),
        ]
        values = [(variable, tf.cast(value, variable.dtype)) for variable, value in mapping]
        # Through `__call__`, unlike Keras's `stateless_call`: layers in a subclassed model then know that they train.
        with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
            predictions = self._model(x, training=training)
            penalties = [tf.cast(penalty, tf.float32) for penalty in self._model.losses]
        y = _aligned(y, predictions)
        compare = getattr(keras.losses, self._loss) if isinstance(self._loss, str) else self._loss
        loss = tf.add_n([tf.reduce_mean(tf.cast(compare(y, predictions), tf.float32)), *penalties])
        n_samples = tf.shape(x)[0]
        sums = [loss * tf.cast(n_samples, tf.float32)]
        if kind := self._accuracy_kind(predictions, y):
            correct = tf.cast(getattr(keras.metrics, f"{kind}_accuracy")(y, predictions), tf.float32)
            # A count of samples, hence exact; a sample of several outputs counts as the part that is right.
            sums.append(tf.reduce_sum(tf.reduce_mean(tf.reshape(correct, [n_samples, -1]), axis=1)))
        return loss, tf.stack(sums), scope

    def _accuracy_kind(self, predictions: Any, y: Any) -> losses.AccuracyKind | None:
        if isinstance(self._loss, str):
            return losses.metric_for(self._loss, self._activation)
        # A user's own loss: classes are counted as under the loss that would fit the model.
        shapes = tuple(predictions.shape[1:]), tuple(y.shape[1:])
        fitting = losses.infer_loss(self._activation, *shapes, y.dtype.as_numpy_dtype)
        return losses.metric_for(fitting.name, self._activation)


def _aligned(y: Any, predictions: Any) -> Any:
    """Labels of the rank of the predictions where only a last dimension of 1 is missing or too much.

    Losses would pair (n,) with (n, 1) as (n, n). Class numbers of a sparse loss stay as they are.
    """
    import tensorflow as tf

    if predictions.shape[-1] == 1 and y.shape.rank == predictions.shape.rank - 1:
        return tf.expand_dims(y, -1)
    if y.shape[-1] == 1 and y.shape.rank == predictions.shape.rank + 1:
        return tf.squeeze(y, -1)
    return y


def _layout_of(variables: Sequence[Any]) -> Layout:
    return Layout(tuple(WeightSpec(variable.path, tuple(variable.shape)) for variable in variables))


def _split(vector: Any, layout: Layout) -> list[Any]:
    """The arrays of a flat tensor, as tensors."""
    import tensorflow as tf

    if not layout.specs:
        return []
    parts = tf.split(vector, [spec.size for spec in layout.specs])
    return [tf.reshape(part, spec.shape) for part, spec in zip(parts, layout.specs, strict=True)]
