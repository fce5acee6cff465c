"""Keras models on TensorFlow, both imported inside functions and never before these run.

Keras describes the model, `keras_graph` computes with it; Keras's `fit`, its optimizers and its Python loops take no
part, which saves about a millisecond a batch and 7 MB a trial. `KerasAdapter` owns the vectors between the calls.
"""

import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.files import atomic_path
from nnlo_opt.models import losses
from nnlo_opt.models.adapter import Metrics
from nnlo_opt.models.architecture import check_architecture
from nnlo_opt.models.keras_graph import FIGURES, KerasGraph, Loss
from nnlo_opt.models.layout import FloatVector, Layout
from nnlo_opt.vectors import aligned_empty


def import_framework(n_threads: int, *, quiet: bool = True) -> None:
    """Import Keras on TensorFlow with `n_threads` threads; `quiet`: without start-up noise.

    To be called once, before anything else imports them: costs seconds of CPU and hundreds of MB.
    """
    for name, value in {
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3" if quiet else "0",
        "OMP_NUM_THREADS": str(n_threads),
    }.items():
        os.environ.setdefault(name, value)
    with _quiet_stderr() if quiet else nullcontext():
        import keras  # noqa: F401
        import tensorflow as tf
    try:
        tf.config.threading.set_intra_op_parallelism_threads(n_threads)
        tf.config.threading.set_inter_op_parallelism_threads(n_threads)
    except RuntimeError:
        # Somebody (a user's module, a test) has computed something already: the threads are what they are.
        return


def set_seed(seed: int) -> None:
    """Make what is built next repeatable: initial weights, and the seeds of dropout layers."""
    import keras

    keras.utils.set_random_seed(seed % 2**32)


def is_keras_model(value: object) -> bool:
    """Whether `value` is a Keras model."""
    import keras

    return isinstance(value, keras.Model)


def model_from_architecture(text: str, source: str) -> Any:
    """Build a model from Keras 3's `to_json` text; `source` names it in the `ConfigurationError` if it is none."""
    import keras

    check_architecture(text, source)
    try:
        return keras.models.model_from_json(text)
    except Exception as error:
        raise ConfigurationError(
            f"A model architecture must be one that Keras can build. Received: {source}, {_first_line(error)}. "
            f"Custom layers need a Python module with `get_model`."
        ) from error


def build_variables(model: Any, feature_shape: losses.Shape) -> None:
    """Create the weights of a model that waits for its input shape (a subclass, a Sequential without Input)."""
    import keras

    if not model.built or not model.weights:
        model(keras.KerasTensor((None, *feature_shape)))


def last_activation(model: Any) -> str | None:
    """The name of the activation the output comes from; None if it is linear or cannot be told."""
    layers = [layer for layer in getattr(model, "layers", ()) if not _only_reshapes(layer)]
    if not layers:
        return None
    last = layers[-1]
    if type(last).__name__ in {"Softmax", "ReLU", "LeakyReLU"}:
        return type(last).__name__.lower()
    name = getattr(getattr(last, "activation", None), "__name__", None)
    return None if name == "linear" else name


def output_shape(model: Any, feature_shape: losses.Shape) -> losses.Shape:
    """Shape of the output for one sample. Raises `ConfigurationError` where the model cannot take such a sample."""
    import keras

    try:
        outputs = model(keras.KerasTensor((None, *feature_shape)))
    except Exception as error:
        raise ConfigurationError(
            f"The model must take samples of the shape of the features, {feature_shape}. Received: "
            f"{_first_line(error)}. Change the model's input shape, or the data."
        ) from error
    if not hasattr(outputs, "shape"):
        raise ConfigurationError(
            f"The model must have one output. Received: {len(outputs)} outputs. Models with several are not supported."
        )
    return tuple(outputs.shape[1:])


def check_shapes(
    model: Any, feature_shape: losses.Shape, label_shape: losses.Shape, loss: str | None = None
) -> str | None:
    """One sentence if the model cannot be trained on such samples and labels, else None."""
    if len(getattr(model, "inputs", None) or [None]) > 1:
        return (
            f"The model must have one input. Received: {len(model.inputs)} inputs. "
            "Models with several are not supported."
        )
    expected = getattr(model, "input_shape", None)
    if expected is not None and not _fits(feature_shape, expected[1:]):
        return (
            f"The model takes samples of shape {tuple(expected[1:])}. Received: features of shape "
            f"{tuple(feature_shape)}. Change the model's input shape, or the data."
        )
    try:
        outputs = output_shape(model, feature_shape)
    except ConfigurationError as error:
        return str(error)
    return losses.label_mismatch(loss, outputs, label_shape)


def forget_models() -> None:
    """Make Keras and TensorFlow let go of every model that nobody holds, also one whose building has failed."""
    import keras

    keras.backend.clear_session(free_memory=False)
    gc.collect()


class KerasAdapter:
    """A `ModelAdapter` of one Keras model under one loss. Call `release` when done with it, or its memory stays."""

    def __init__(self, model: Any, loss: Loss) -> None:
        if not model.built or not model.trainable_variables:
            raise TrialError(
                f"A model must have trainable weights before training. Received: {model.name} with none. Start it "
                "with an Input layer, or let it see its input shape."
            )
        #: the description of the model; its own variables are stale until `synced_model`
        self._model: Any = model
        self._graph: Any = KerasGraph(
            model, losses.check_loss(loss) if isinstance(loss, str) else loss, last_activation(model)
        )
        #: (n_weights,) and (n_state,): what the next call computes with
        self._weights = _values_of(self._graph.weight_variables, self._graph.layout)
        self._state = _values_of(self._graph.state_variables, self._graph.state_layout)
        #: the discrete state, an integer array for each variable
        self._counters: list[NDArray] = [variable.value.numpy() for variable in self._graph.counter_variables]
        #: traced at the first batch
        self._gradient_graph: Callable[..., Any] | None = None
        self._figures_graph: Callable[..., Any] | None = None

    @property
    def layout(self) -> Layout:
        return self._graph.layout

    @property
    def n_weights(self) -> int:
        return len(self._weights)

    @property
    def n_state(self) -> int:
        return len(self._state)

    def read_weights(self, out: FloatVector) -> None:
        _copy(self._weights, out)

    def write_weights(self, vector: FloatVector) -> None:
        _copy(vector, self._weights)

    def read_state(self, out: FloatVector) -> None:
        _copy(self._state, out)

    def write_state(self, vector: FloatVector) -> None:
        _copy(vector, self._state)

    def discrete_state(self) -> list[list[int]]:
        return [counter.ravel().tolist() for counter in self._counters]

    def load_discrete_state(self, values: list[list[int]]) -> None:
        if [len(value) for value in values] != [counter.size for counter in self._counters]:
            raise ValueError(
                f"Counters of {[counter.size for counter in self._counters]} numbers are expected. Received: {values}."
            )
        self._counters = [
            np.array(value, counter.dtype).reshape(counter.shape)
            for value, counter in zip(values, self._counters, strict=True)
        ]

    def gradient(self, x: NDArray, y: NDArray, out: FloatVector) -> Metrics:
        with _blame_on_trial("gradient"):
            if self._gradient_graph is None:
                self._gradient_graph = self._graph.trace_gradient(x, y)
            results = self._gradient_graph(self._weights, self._state, self._counters, x, y)
            # TensorFlow may only now notice that it ran out of memory.
            sums, gradient, state = (np.asarray(result) for result in results[:3])
        _copy(gradient, out)
        _copy(state, self._state)
        self._counters = [np.array(counter) for counter in results[3]]
        return _metrics(len(x), sums)

    def evaluate(self, x: NDArray, y: NDArray) -> Metrics:
        with _blame_on_trial("evaluation"):
            if self._figures_graph is None:
                self._figures_graph = self._graph.trace_figures(x, y)
            sums = np.asarray(self._figures_graph(self._weights, self._state, self._counters, x, y))
        return _metrics(len(x), sums)

    def save(self, path: Path) -> None:
        """Write Keras's own format: `path` ends in ".keras"."""
        with atomic_path(path) as temporary:
            self.synced_model().save(temporary)

    def synced_model(self) -> Any:
        """The Keras model itself, its variables brought up to date."""
        graph = self._graph
        values = [*graph.layout.views(self._weights), *graph.state_layout.views(self._state), *self._counters]
        variables = [*graph.weight_variables, *graph.state_variables, *graph.counter_variables]
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return self._model

    def release(self) -> None:
        """Let go of the model and all that Keras and TensorFlow remember of it; the adapter is of no use after."""
        self._model = self._graph = self._gradient_graph = self._figures_graph = None
        forget_models()


def _values_of(variables: Sequence[Any], layout: Layout) -> FloatVector:
    vector = aligned_empty(layout.n_weights)
    layout.gather([variable.value.numpy() for variable in variables], vector)
    return vector


def _copy(source: FloatVector, target: FloatVector) -> None:
    if source.shape != target.shape:
        raise ValueError(f"A vector of shape {target.shape} is expected. Received: {source.shape}.")
    np.copyto(target, source)


def _metrics(n_samples: int, sums: NDArray) -> Metrics:
    return Metrics(n_samples, dict(zip(FIGURES, sums.tolist(), strict=False)))


def _fits(shape: losses.Shape, expected: losses.Shape) -> bool:
    return len(shape) == len(expected) and all(n == m or m is None for n, m in zip(shape, expected, strict=True))


def _only_reshapes(layer: Any) -> bool:
    return type(layer).__name__ in {"Flatten", "Reshape", "Dropout", "Permute"}


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")


@contextmanager
def _blame_on_trial(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise TrialError(f"The {what} of the model failed: {_first_line(error)}.") from error


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Hold back what is written to file descriptor 2, by C++ too; show it after all if the block fails."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
