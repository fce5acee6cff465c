"""Interface between a trainer and a model of any framework.

A model is two flat float32 vectors and some counters. The *weights* are changed by the update rule. The *state* (for
example running means of a batch normalisation) is averaged over workers, not optimised. The *discrete state* (for
example seed counters of dropout layers) is private to each worker.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.trees import Arrays, Shapes, leaves
from nnlo_opt.core.models.layout import FloatVector, Layout
from nnlo_opt.core.training.history import Metrics


class ModelAdapter(Protocol):
    """Model on one rank; vectors are float32, one-dimensional, C-contiguous and owned by the caller.

    A worker calls `borrow_weights` and `gradient` for each batch, the other methods at epoch fences.
    `testing.model_conformance` tests any adapter. With the `Linear` of "Extending":

    >>> model, gradient = Linear(2), np.empty(2, np.float32)
    >>> x, y = np.ones((4, 2), np.float32), np.ones(4, np.float32)
    >>> model.gradient(x, y, gradient).means(), gradient
    ({'loss': 1.0}, array([-2., -2.], dtype=float32))

    Raises:
        TrialError: the framework fails; the trial is recorded as failed, and the search continues.
    """

    #: True if the model applies its own optimizer: its "gradient" is the difference of its weights
    trains_itself: bool

    #: names and shapes of the arrays in the vector of weights
    layout: Layout

    #: length of the vector of weights
    n_weights: int

    #: length of the state vector, often 0
    n_state: int

    def read_weights(self, out: FloatVector) -> None:
        """Copy the weights into `out` (n_weights,)."""

    def write_weights(self, vector: FloatVector) -> None:
        """Copy `vector` (n_weights,) into the weights; the caller may overwrite `vector` afterwards."""

    def borrow_weights(self, vector: FloatVector) -> None:
        """Use `vector` (n_weights,) as the weights, without a copy if possible.

        The caller must not change `vector` before the next call of this method or of `write_weights`: the model may
        read it at any time.
        """

    def read_state(self, out: FloatVector) -> None:
        """Copy the state into `out` (n_state,)."""

    def write_state(self, vector: FloatVector) -> None:
        """Copy `vector` (n_state,) into the state."""

    def discrete_state(self) -> list[list[int]]:
        """Return the integer state, each variable flattened, as plain data for a checkpoint; it is never averaged."""

    def load_discrete_state(self, values: list[list[int]]) -> None:
        """Restore the state that `discrete_state` returned."""

    def gradient(self, x: Arrays, y: Arrays, out: FloatVector, sample_weight: FloatVector | None = None) -> Metrics:
        """Write the gradient of the batch's mean loss, regularisation included, into `out`; return the metrics.

        The weights do not change; the state changes as in training.

        Args:
            x: features, an array (n, ...), or a list of arrays for several inputs (`nnlo_opt.core.base.trees`).
            y: labels, in the same form for the outputs.
            out: result, (n_weights,).
            sample_weight: (n,); multiplies the loss of each sample before the mean over n, as in Keras.

        Raises:
            TrialError: the framework fails.
        """

    def evaluate(self, x: Arrays, y: Arrays, sample_weight: FloatVector | None = None) -> Metrics:
        """Return the metrics of one batch in inference mode; TrialError if the framework fails."""

    def save(self, path: Path) -> None:
        """Write the model with its current weights and state to `path`, atomically."""


class FrameworkAdapter(ModelAdapter, Protocol):
    """Model adapter that holds memory of its framework, which `release` frees at the end of a fold.

    >>> model = Linear(2)
    >>> model.figures
    ('loss',)
    >>> model.release()
    """

    #: names of the metrics that the adapter returns
    figures: tuple[str, ...]

    def release(self) -> None:
        """Free the model and all memory that the framework keeps for it; do not use the adapter afterwards."""


class Measuring(ModelAdapter, Protocol):
    """Adapter with metrics that are not means over samples: its `evaluate` returns `Metrics.states`.

    Its `gradient` may return the states that add up, of the outputs in training.
    """

    def finish(
        self, states: Mapping[str, ArrayLike], batches: Callable[[], Iterable[tuple[Arrays, Arrays]]]
    ) -> dict[str, float]:
        """Return the metric of every state, merged over all samples.

        Args:
            states: merged states of `evaluate` or `gradient`.
            batches: returns all samples, for the metrics with an empty state; they are evaluated at the current
                weights.

        Raises:
            TrialError: a metric is no number, or the framework fails.
        """

    def measure_others(self, outputs: Sequence[np.ndarray], y: Arrays) -> dict[str, float]:
        """Return the metrics that `Predictor.measure` does not, of outputs for all samples."""


class Predictor(FrameworkAdapter, Protocol):
    """Adapter of a model whose outputs can be averaged with those of other models."""

    def predict(self, x: Arrays) -> list[np.ndarray]:
        """Return the outputs for features x in inference mode, each (n, ...); TrialError if they cannot be averaged."""

    def measure(self, outputs: Sequence[np.ndarray], y: Arrays) -> Metrics:
        """Return the metrics of outputs like those of `predict`, without regularisation; call `predict` before."""

    def synced_model(self) -> Any:
        """Return the framework's model with the current weights and state."""


class CallbackRequests(Frozen):
    """Requests of the user's callbacks."""

    learning_rate: float
    #: True to end the training
    stop: bool = False
    #: True if they changed the weights or the state of the adapter
    has_changed: bool = False
    #: their own state for a checkpoint, (n_bytes,); None if they keep none
    state: NDArray[np.uint8] | None = None


class EpochCallbacks(Protocol):
    """The user's callbacks in one training; `str` names them."""

    def call(
        self,
        adapter: ModelAdapter,
        epoch: int,
        metrics: Mapping[str, float] | None,
        learning_rate: float,
        *,
        is_last: bool,
        state: NDArray[np.uint8] | None = None,
    ) -> CallbackRequests:
        """Call the callbacks at an epoch fence, while the adapter holds the central weights.

        The first call has no metrics: the callbacks begin afresh, or at their `state` in a checkpoint.

        Args:
            adapter: adapter of the trained model.
            epoch: number of epochs done.
            metrics: metrics of the last epoch; None in the first call.
            learning_rate: current learning rate.
            is_last: True if the training ends after this epoch. The callbacks' end hooks are also called if they
                request to stop.
            state: in the first call, the state of the last `CallbackRequests` before the checkpoint; None without one.
        """


def figures_over(adapter: ModelAdapter, batches: Callable[[], Iterable[tuple[Arrays, Arrays]]]) -> dict[str, float]:
    """Return all figures over all samples of `batches`, in inference mode at the current weights."""
    metrics = Metrics()
    for x, y in batches():
        metrics = metrics.merge(adapter.evaluate(x, y))
        PULSE.ticks += 1
    measured = cast(Measuring, adapter).finish(metrics.states, batches) if metrics.states else {}
    return metrics.means() | measured


class blame_on_trial:
    """Context manager that turns exceptions of a model into TrialError; `what` names the computation."""

    # `contextmanager` takes three times as long, and more after a computation.
    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, TrialError | ConfigurationError):
            raise TrialError(f"The {self._what} of the model failed: {first_line(error)}.") from error


#: text that TensorFlow and Keras add around a message
_WRAPPING = re.compile(
    r"\{\{.*?\}\}|\[Op:.*|^Graph execution error:|^Detected at node.*|^  File .*|^<stack traces.*|"
    r"^Exception encountered when calling .*|\x1b\[\d*m"
)


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message, without TensorFlow's locations and headings."""
    lines = (_WRAPPING.sub("", line).strip() for line in str(error).splitlines())
    return f"{type(error).__name__}: {next((line for line in lines if line), '')}".rstrip(".: ")


def refusal_of_samples(feature_shape: Shapes, error: Exception, hint: str = "") -> ConfigurationError:
    """Return the error to raise after a model raised `error` for samples of this shape."""
    return ConfigurationError(
        f"The model must take samples of the shape of the features, {in_words(feature_shape)}. Received: "
        f"{first_line(error)}. Change the model's input shape, or the data{hint}."
    )


def in_words(shapes: Shapes) -> str:
    """Return a tree of shapes as text."""
    return " and ".join(str(tuple(shape)) for shape in leaves(shapes))
