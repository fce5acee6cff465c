"""Framework Keras on TensorFlow, JAX or torch; functions import these packages, the module does not."""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, require_package
from nnlo_opt.core.base.files import atomic_path, regular
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Shapes, leaves
from nnlo_opt.core.models.adapter import refusal_of_samples
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.compiled import Compiled
from nnlo_opt.engine.models.composite import CompositeModel
from nnlo_opt.engine.models.keras.adapter import ENGINES, KerasAdapter, forget_models, unsaved
from nnlo_opt.engine.models.keras.callback_rules import check_callbacks
from nnlo_opt.engine.models.keras.callbacks import KerasCallbacks, with_keras_names
from nnlo_opt.engine.models.keras.compiled import (
    arguments_of,
    compile_as_saved,
    constraints_of,
    note_unread,
    refuse_own_methods,
    with_objects_read,
)
from nnlo_opt.engine.models.keras.graph import NAMES, packed
from nnlo_opt.engine.models.keras.metrics import metrics_of, remarks_on_logits
from nnlo_opt.engine.models.legacy.architecture import read_architecture
from nnlo_opt.engine.models.legacy.weight_files import is_compiled, read_saved_architecture
from nnlo_opt.engine.models.legacy.weights import load_legacy_weights
from nnlo_opt.engine.models.losses import LossTerm, Output, Shape
from nnlo_opt.engine.models.metrics import NO_METRICS, Asked

__all__ = ["forget_models", "metrics_of", "with_objects_read"]

NOUN = "a Keras model"
SUFFIX = ".keras"
RULES = losses

#: layers that do not change the values of an output, so that its activation is the activation of an earlier layer
_RESHAPING = {"Flatten", "Reshape", "Dropout", "Permute"}
#: layers that are activations
_ACTIVATIONS = {"Softmax", "ReLU", "LeakyReLU"}


def import_framework(n_threads: int, *, quiet: bool = True, backend: str | None = None) -> None:
    """Import Keras and its backend; to be called once, before anything else imports them.

    The import takes seconds of CPU time and hundreds of MB.

    Args:
        n_threads: threads of a computation.
        quiet: True to suppress messages at the start.
        backend: tensorflow, jax or torch; None for the value of the variable KERAS_BACKEND, else TensorFlow.
    """
    backend = backend or os.environ.get("KERAS_BACKEND") or next(iter(ENGINES))
    _check_backend(backend)
    os.environ["KERAS_BACKEND"] = backend
    # With a home that is not writable, Keras would take its settings from /tmp/.keras, which anybody may have made.
    os.environ.setdefault("KERAS_HOME", os.path.expanduser("~/.keras"))
    with _quiet_stderr() if quiet else nullcontext():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if quiet else "0")
        importlib.import_module(ENGINES[backend]).use_threads(n_threads)
        import keras  # noqa: F401


def set_seed(seed: int) -> None:
    """Make the next models repeatable: their initial weights, and the seeds of their dropout layers."""
    import keras

    # Keras on JAX or torch would import TensorFlow to seed it: 4 s of CPU and 400 MB on each rank. Python takes None
    # for a package that is not installed.
    hides = "tensorflow" not in sys.modules
    if hides:
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    try:
        keras.utils.set_random_seed(seed % 2**32)
    finally:
        if hides:
            del sys.modules["tensorflow"]


def is_model(value: object) -> bool:
    """Return True if `value` is a Keras model, or a composite of several; False if Keras is not imported."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model | CompositeModel)


@contextmanager
def building(custom_objects: Mapping[str, Any], dtype_policy: Any | None) -> Iterator[None]:
    """Make the custom objects known by name, and create layers with this policy (None: Keras's own), in `get_model`.

    A policy that `get_model` sets itself ends with the context as well.
    """
    import keras

    before = keras.config.dtype_policy()
    try:
        if dtype_policy is not None:
            keras.config.set_dtype_policy(dtype_policy)
        with keras.saving.custom_object_scope(dict(custom_objects)):
            yield
    finally:
        keras.config.set_dtype_policy(before)


def model_from_architecture(text: str, source: str) -> Any:
    """Build a model from the `to_json` text of any Keras.

    Raise `ConfigurationError`, naming `source`, if it is none.
    """
    import keras

    architecture = read_architecture(text, source, lambda name: keras.saving.get_registered_object(name) is not None)
    try:
        return keras.saving.deserialize_keras_object(architecture, safe_mode=True)
    except Exception as error:
        raise ConfigurationError(
            f"A model architecture must be one that Keras can build. Received: {source}, {_innermost(error)}. "
            f"Custom layers need a Python module with `get_model`."
        ) from error


def saved_model(path: Path, *, fresh: bool) -> Any:
    """Return a model that Keras has saved whole, with its weights, or with `fresh` ones.

    Raises:
        ConfigurationError: if the file holds no model, or one that needs code.
    """
    import keras

    if path.suffix != ".keras":
        model = model_from_architecture(read_saved_architecture(path), str(path))
        if not fresh:
            load_legacy_weights(model, path)
        if is_compiled(path):
            note_unread(model, f"all settings in `{path}` (save the model as `.keras`)")
        return model
    try:
        model = keras.saving.load_model(str(regular(path)), compile=False, safe_mode=True)
    except Exception as error:
        raise ConfigurationError(
            f"A saved model must be one that Keras can load without executing code. Received: {path}, "
            f"{_innermost(error)}. Give a Python module with `get_model` instead."
        ) from error
    if fresh:
        model = keras.models.clone_model(model, clone_function=_renewed, recursive=True)
    compile_as_saved(model, path)
    return model


def _renewed(layer: Any) -> Any:
    """Return a layer with fresh weights; one with statistics or a vocabulary of the samples, as it is."""
    return layer if hasattr(layer, "adapt") else type(layer).from_config(layer.get_config())


def describe_outputs(model: Any, feature_shape: Shapes) -> list[Output]:
    """Return the outputs for samples of this shape; create the weights of a model that waits for its input shape.

    Raises:
        ConfigurationError: if the model cannot take samples of this shape.
    """
    import keras

    shapes = [*leaves(feature_shape)]
    declared = [tuple(tensor.shape[1:]) for tensor in getattr(model, "inputs", None) or []]
    _check_inputs(getattr(model, "inputs", None) or [], shapes)
    # Keras adds or removes a last dimension of 1 of arrays, but not of symbolic tensors.
    seen = [of if len(of) != len(shape) else shape for shape, of in zip(shapes, declared or shapes, strict=True)]
    try:
        outputs = model(packed(model, [keras.KerasTensor((None, *shape)) for shape in seen]))
    except Exception as error:
        raise refusal_of_samples(feature_shape, error) from error
    tensors = keras.tree.flatten(outputs)
    names = _output_names(model, outputs)
    activations = _activations(model, len(tensors))
    return [
        Output(name, tuple(tensor.shape[1:]), activation)
        for name, tensor, activation in zip(names, tensors, activations, strict=True)
    ]


def input_names(model: Any) -> list[str]:
    """Return the names of the inputs in the order of their features; empty if the model does not declare them."""
    import keras

    if not getattr(model, "inputs", None) or isinstance(model, keras.Sequential):
        return []
    return sorted(model.input) if isinstance(model.input, dict) else [tensor.name for tensor in model.inputs]


def name_inputs(model: Any, names: Sequence[str]) -> None:
    """Give a subclassed model, which declares no inputs, a dictionary with these names."""
    import keras

    if names and not input_names(model) and not isinstance(model, keras.Sequential):
        vars(model)[NAMES] = tuple(names)


def compiled_of(model: Any) -> Compiled:
    """Return what a model says of its training; ConfigurationError if it overrides training methods."""
    refuse_own_methods(model)
    return arguments_of(model)


def adapter(model: Any, terms: Sequence[LossTerm], *, jit_compile: bool = False, **measures: Any) -> KerasAdapter:
    """Return an adapter of the model, whose weights exist, for training on `terms`, one for each output.

    `measures`: the arguments `metrics` and `merging` of `KerasAdapter`.
    """
    return KerasAdapter(model, terms, jit_compile=jit_compile, **measures)


def remarks_on(
    model: Any, terms: Sequence[LossTerm] = (), asked: Asked = NO_METRICS, *, is_own: bool = False
) -> list[str]:
    """Return sentences on what a user of a built model may not expect, and mostly differs from `fit`.

    `is_own`: True if Keras takes the steps.
    """
    remarks = remarks_on_logits(terms, asked)
    if dtypes := sorted({variable.dtype for variable in model.trainable_variables} - {"float32"}):
        remarks.append(f"Weights in {' and '.join(dtypes)} are trained, exchanged and kept in float32.")
    if not is_own and (bound := constraints_of(model)):
        remarks.append(
            f"Constraints of weights have no effect: {', '.join(bound)}. Leave the optimizer to `compile`, "
            "or leave them out."
        )
    layers = model._flatten_layers(include_self=False)
    if own := [f"{metric.name} of {layer.name}" for layer in layers for metric in layer._metrics]:
        remarks.append(f"Metrics of layers are not measured: {', '.join(own)}. `get_metrics` measures outputs.")
    import keras

    if (wanted := os.environ.get("KERAS_BACKEND")) != (backend := keras.backend.backend()):
        remarks.append(
            f"KERAS_BACKEND is {wanted!r} since the module has set it, without effect on Keras, which uses {backend}: "
            f"`{spelled('keras_backend', wanted)}` chooses it."
        )
    if fault := unsaved(model):
        remarks.append(f"The best model cannot be saved whole, but its weights are: {fault}")
    return remarks


def epoch_callbacks(
    callbacks: Sequence[Any], source: str, known: Sequence[str], epochs: int, *, is_scheduled: bool
) -> KerasCallbacks:
    """Return the callbacks of a model module, for a training of `epochs` epochs.

    Args:
        callbacks: return value of `get_callbacks`.
        source: file of `get_callbacks`.
        known: metrics of the training.
        is_scheduled: True if an option sets a schedule of the learning rate.

    Raises:
        ConfigurationError: one of them would not act as in `fit`.
    """
    names = with_keras_names(dict.fromkeys(known, 0.0))
    check_callbacks(callbacks, source, names, is_scheduled=is_scheduled)
    return KerasCallbacks(callbacks, epochs, is_strict=True, is_scheduled=is_scheduled)


def save_mean(models: Sequence[Any], weights: Sequence[float], path: Path) -> None:
    """Save one model whose outputs are the weighted means of the outputs of built `models`; `path` ends in ".keras".

    Raises:
        ConfigurationError: if a model does not declare its inputs.
    """
    import keras

    if undeclared := [type(model).__name__ for model in models if not getattr(model, "inputs", None)]:
        raise ConfigurationError(
            "The models of an ensemble must declare their inputs, so that the file needs no code. Received: "
            f"{undeclared[0]}. Build the model with `keras.Sequential` or `keras.Model(inputs, outputs)`."
        )
    first, parts = models[0], []
    inputs = [keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name) for tensor in first.inputs]
    for number, (model, weight) in enumerate(zip(models, weights, strict=True)):
        model.name = f"member_{number}"  # names of layers must differ
        outputs = keras.tree.flatten(model(packed(model, inputs), training=False))
        parts.append([keras.layers.Rescaling(weight, dtype="float32")(output) for output in outputs])
    means = [
        keras.layers.Add(dtype="float32")([*of_members]) if len(models) > 1 else of_members[0]
        for of_members in zip(*parts, strict=True)
    ]
    pack = keras.tree.pack_sequence_as
    with atomic_path(path) as temporary:
        keras.Model(pack(first.input, inputs), pack(first.output, means)).save(temporary)


def _check_backend(backend: str) -> None:
    if backend not in ENGINES:
        raise ConfigurationError(
            f"`{spelled('keras_backend')}` (or KERAS_BACKEND) must be one of {', '.join(ENGINES)}. Received: "
            f"{backend!r}."
        )
    for package, extra in (("keras", "keras"), (backend, "keras" if backend == "tensorflow" else backend)):
        require_package(f"Keras on {backend}", package, extra, f"choose another `{spelled('keras_backend')}`")
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() != backend:
        raise ConfigurationError(
            f"A process can use one backend of Keras only. Received: {backend}, but Keras already runs on "
            f"{keras.backend.backend()}. Set KERAS_BACKEND={backend} before the process starts."
        )


def _check_inputs(inputs: Sequence[Any], shapes: Sequence[Shape]) -> None:
    """Compare the inputs that a model declares, if it declares them, with the features."""
    if inputs and len(inputs) != len(shapes):
        raise ConfigurationError(
            f"Every input of the model must have its own features. Received: {len(shapes)} sets of features for "
            f"{len(inputs)} inputs, {', '.join(tensor.name for tensor in inputs)}. Give a group with one data set for "
            "each input."
        )
    for tensor, shape in zip(inputs, shapes, strict=False):
        expected = tuple(tensor.shape[1:])
        if not losses.alike(shape, expected):
            of = f" for the input {tensor.name!r}" if len(inputs) > 1 else ""
            raise ConfigurationError(
                f"The model takes samples of shape {expected}{of}. Received: features of shape {tuple(shape)}. Change "
                "the model's input shape, or the data."
            )


def _output_names(model: Any, outputs: Any) -> list[str]:
    """Return unique names of outputs: the keys of a dict, the names of their layers, or numbers."""
    import keras

    paths = [path for path, _ in keras.tree.flatten_with_path(outputs)]
    if all(path and isinstance(path[-1], str) for path in paths):
        names = [str(path[-1]) for path in paths]
    else:
        names = [*(getattr(model, "output_names", None) or [f"output_{number}" for number, _ in enumerate(paths, 1)])]
    return [name if names.count(name) == 1 else f"{name}_{number}" for number, name in enumerate(names, 1)]


def _activations(model: Any, n_outputs: int) -> list[str | None]:
    """Return the name of the activation of each output; None if it is linear or unknown."""
    tensors = getattr(model, "outputs", None)
    if tensors:
        return [_activation(_maker(tensor)) for tensor in tensors]
    # A subclass: the layer that was created last is the best guess.
    layers = [layer for layer in getattr(model, "layers", ()) if type(layer).__name__ not in _RESHAPING]
    return [_activation(layers[-1])] if layers and n_outputs == 1 else [None] * n_outputs


def _maker(tensor: Any) -> Any:
    """Return the layer that computed the values of an output."""
    layer, node, index = tensor._keras_history
    if type(layer).__name__ in _RESHAPING:
        return _maker(layer._inbound_nodes[node].input_tensors[0])
    inner = getattr(layer, "outputs", None)
    return _maker(inner[index]) if inner else layer


def _activation(layer: Any) -> str | None:
    if type(layer).__name__ in _ACTIVATIONS:
        return type(layer).__name__.lower()
    name = getattr(getattr(layer, "activation", None), "__name__", None)
    return None if name == "linear" else name


def _innermost(error: BaseException) -> str:
    """Return the reason of an error in a layer, which Keras puts into the text of the error of the model."""
    text = str(error).rpartition("Exception encountered: ")[2] or "without a reason"
    return f"{type(error).__name__}: {text.splitlines()[0].rstrip('.')}"


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Hold back output to file descriptor 2, including output of C++; write it if the block fails."""
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
