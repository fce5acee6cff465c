"""The framework torch, for plain `torch.nn.Module` models; torch is imported only inside functions.

A model receives features in the layout of the data, channels last; a convolution needs `x.permute(0, 3, 1, 2)`.
Several inputs are several arguments of `forward`. Several outputs are a tuple, a list or a dict.
"""

import os
import random
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.files import atomic_path, regular
from nnlo_opt.core.base.spelling import either
from nnlo_opt.core.base.trees import Shapes, leaves
from nnlo_opt.core.models.adapter import EpochCallbacks, FrameworkAdapter, first_line, in_words, refusal_of_samples
from nnlo_opt.engine.models.compiled import Compiled
from nnlo_opt.engine.models.keras.on_torch import use_threads
from nnlo_opt.engine.models.losses import LossTerm, Output
from nnlo_opt.engine.models.metrics import Asked
from nnlo_opt.engine.models.own_optimizer import Own
from nnlo_opt.engine.models.torch import losses as torch_losses

NOUN = "a torch module"
SUFFIX = ".pt"
RULES = torch_losses

#: samples of a dry run; not 1, because `squeeze` would remove this dimension
_N_SAMPLES = 2
#: length used for an open dimension of a shape
_N_OPEN = 16
#: most combinations of input types to try
_N_TRIES = 16


def import_framework(n_threads: int, *, quiet: bool = True, backend: str | None = None) -> None:
    """Import torch; called once, before anything else imports it.

    The import takes 2 s of CPU time and 200 MB.

    Args:
        n_threads: threads for computing.
        quiet: True to suppress startup messages.
        backend: ignored, it is for Keras.

    Raises:
        ConfigurationError: torch is not installed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(n_threads))
    if quiet:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        reason = "It is not installed" if isinstance(error, ModuleNotFoundError) else f"It cannot be imported ({error})"
        raise ConfigurationError(
            f"The model needs the package torch. {reason}: `pip install 'nnlo_opt[torch]'`, or give a Keras model."
        ) from error
    use_threads(n_threads)


def set_seed(seed: int) -> None:
    """Seed all generators, so that initial weights and dropout of the next models are reproducible."""
    import torch

    torch.manual_seed(seed % 2**63)
    # Like Keras, seed all generators, because `get_model` may use any of them.
    random.seed(seed)
    np.random.seed(seed % 2**32)


def is_model(value: object) -> bool:
    """Return True if `value` is a torch module; False if torch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


@contextmanager
def building(custom_objects: Mapping[str, Any], dtype_policy: Any | None) -> Iterator[None]:
    """Return the context for calling `get_model`: custom objects are ignored, and a dtype policy is an error."""
    if dtype_policy is not None:
        raise ConfigurationError(
            f"A dtype policy is for Keras models. Received: {dtype_policy!r} for a torch module. Use "
            "`torch.autocast` in its `forward` to compute in another type."
        )
    yield


def describe_outputs(model: Any, feature_shape: Shapes) -> list[Output]:
    """Return the outputs for samples of this shape; create the weights of lazy layers.

    Raises:
        ConfigurationError: if the model does not accept samples of this shape.
    """
    from nnlo_opt.engine.models.torch.comparison import activation_of

    named = _dry_run(model, feature_shape)
    for name, tensor in named:
        if tensor.shape[:1] != (_N_SAMPLES,):
            raise ConfigurationError(
                f"The model must give one row for each sample. Received: {name} of shape {tuple(tensor.shape)} for "
                f"{_N_SAMPLES} samples of shape {in_words(feature_shape)}. Look for a `view` or `reshape` with a "
                "wrong size, or a Linear layer of a fixed size: LazyLinear takes any size."
            )
    return [Output(name, tuple(tensor.shape[1:]), activation_of(tensor)) for name, tensor in named]


def compiled_of(model: Any) -> Compiled:
    """Return an empty `Compiled`; ConfigurationError for a module that trains by its own methods."""
    for name in ("training_step", "validation_step", "configure_optimizers"):
        if hasattr(model, name):
            raise ConfigurationError(
                "A module is trained by the gradients of its loss, not by its own methods. Received: "
                f"{type(model).__name__} with `{name}`, which nothing would call. Return the `torch.nn.Module` "
                "inside, or search an objective with its own trainer and `nnlo_opt.integrations.lightning`."
            )
    return Compiled()


def own_of(module: Any, make: Callable[[], Any], make_scheduler: Callable[[Any], Any] | None, source: str) -> Own:
    """Return the optimizer of `get_optimizer`; arguments and errors as of `own_optimizer.own_of`."""
    from nnlo_opt.engine.models.torch import own_optimizer

    return own_optimizer.own_of(module, make, make_scheduler, source)


def epoch_scheduler(
    make_optimizer: Callable[[], Any] | None,
    make: Callable[[Any], Any],
    monitor: str | None,
    source: str,
    known: Sequence[str],
) -> EpochCallbacks | None:
    """Return the scheduler of a training, None if it counts steps; arguments as of `schedulers.scheduler_of`."""
    from nnlo_opt.engine.models.torch import schedulers

    return schedulers.scheduler_of(make_optimizer, make, monitor, source, known)


def metrics_of(request: Any, terms: Sequence[LossTerm], weighted: Any = None) -> Asked:
    """Return the metrics of `get_metrics`; ConfigurationError for one that is not of torchmetrics."""
    from nnlo_opt.engine.models.torch import metrics

    return metrics.metrics_of(request, terms)


def adapter(model: Any, terms: Sequence[LossTerm], *, jit_compile: bool = False, **measures: Any) -> FrameworkAdapter:
    """Return an adapter for training the built model on `terms`, one for each output.

    `measures`: the arguments `metrics` and `merging` of `TorchAdapter`.
    """
    if jit_compile:
        raise ConfigurationError(
            "`get_model.jit_compile` is for Keras models. Received: True with a torch module. Leave it out, or return "
            "`torch.jit.script(model)`."
        )
    from nnlo_opt.engine.models.torch.adapter import TorchAdapter

    return TorchAdapter(model, terms, **measures)


def forget_models() -> None:
    """Free every model that is no longer referenced, including a model whose building has failed."""
    if "torch" in sys.modules:
        from nnlo_opt.engine.models.torch import adapter as torch_adapter

        torch_adapter.forget_models()


def _dry_run(model: Any, feature_shape: Shapes) -> list[tuple[str, Any]]:
    """Return the outputs for zeros in evaluation mode, with their autograd graph."""
    import torch

    from nnlo_opt.engine.models.torch.adapter import named_outputs

    shapes = [[_N_OPEN if length is None else length for length in shape] for shape in leaves(feature_shape)]
    device = next((parameter.device for parameter in model.parameters()), None)
    errors: list[Exception] = []
    with _evaluating(model):
        # Only the model knows which inputs are integers, such as word indices: try all combinations.
        for dtypes in islice(product((torch.float32, torch.int64), repeat=len(shapes)), _N_TRIES):
            zeros = (
                torch.zeros(_N_SAMPLES, *shape, dtype=dtype, device=device)
                for shape, dtype in zip(shapes, dtypes, strict=True)
            )
            inputs = _in_form(feature_shape, zeros)
            try:
                return named_outputs(model(*inputs) if isinstance(inputs, list) else model(inputs))
            except TrialError as error:
                raise ConfigurationError(str(error)) from error
            except Exception as error:
                errors.append(error)
    hint = "; for a convolution begin with `x.permute(0, 3, 1, 2)`" if any(len(shape) == 3 for shape in shapes) else ""
    raise refusal_of_samples(feature_shape, errors[0], hint) from errors[0]


def _in_form(shapes: Shapes, tensors: Iterator[Any]) -> Any:
    """Return the tensors in a tree with the structure of `shapes`."""
    return [_in_form(shape, tensors) for shape in shapes] if isinstance(shapes, list) else next(tensors)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode, and restore the mode of each submodule afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


# ---------------------------------------------------------------- saved models


def load_model(path: Path, get_model: Callable[[], Any] | None = None, data: bytes | None = None) -> Any:
    """Return the model in `path`: a TorchScript archive, or a `state_dict` for the module built by `get_model`.

    Only tensors are unpickled. `data`: content of the file if already read.

    Raises:
        ConfigurationError: if the file cannot be read, or a `state_dict` has no matching `get_model`.
    """
    import torch

    if is_script(_opened(path, data)):
        try:
            return torch.jit.load(_opened(path, data), map_location="cpu")
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"A TorchScript archive must be one that torch can load. Received: {path}, {first_line(error)}. Write "
                "it again with `torch.jit.script(model).save(path)`."
            ) from error
    state = read_state(path, data)
    if get_model is None:
        raise ConfigurationError(
            f"Saved weights need their module. Received: {path}, a `state_dict` alone. Put "
            f"{path.with_suffix('.py').name} with `get_model` next to it, or save `torch.jit.script(model)`."
        )
    model = get_model()
    if not is_model(model):
        raise ConfigurationError(
            f"Saved weights need {NOUN}. Received: {path} and, from `get_model` next to it, a {type(model).__name__}."
        )
    load_state(model, state, str(path))
    return model


def save_files(model: Any, architecture: Path, weights: Path) -> None:
    """Write the model as a TorchScript archive, which needs no code, and its weights as a `state_dict`.

    Raises:
        ConfigurationError: if TorchScript does not support the model.
    """
    import torch

    script = _scripted(model, f"Give its Python file to `{either('--model', 'target')}` instead")
    with atomic_path(architecture) as temporary:
        script.save(str(temporary))
    with atomic_path(weights) as temporary:
        torch.save(model.state_dict(), temporary)


def save_mean(models: Sequence[Any], weights: Sequence[float], path: Path) -> None:
    """Save a TorchScript archive of one module that averages the outputs of `models` with these weights.

    Raises:
        ConfigurationError: if TorchScript does not support a model, or one has several inputs or outputs.
    """
    from nnlo_opt.engine.models.torch.adapter import Mean

    script = _scripted(Mean(models, weights).cpu().eval(), "An ensemble needs models of one input and one output")
    with atomic_path(path) as temporary:
        script.save(str(temporary))


def _scripted(model: Any, remedy: str) -> Any:
    """Convert a module to TorchScript; ConfigurationError with this remedy if it is not supported."""
    import torch

    try:
        return torch.jit.script(model)
    except Exception as error:  # TorchScript raises a dozen kinds
        raise ConfigurationError(
            f"A torch model must be one that TorchScript can describe. Received: {type(model).__name__}, "
            f"{first_line(error)}. {remedy}."
        ) from error


def read_state(path: Path, data: bytes | None = None) -> dict[str, Any]:
    """Return the tensors of a `state_dict`, also from a checkpoint with "state_dict" or "model_state_dict".

    `data`: content of the file if already read.
    """
    import torch

    try:
        state = torch.load(_opened(path, data), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigurationError(
            f"A file of weights must exist. Received: {str(path)!r}, which is no file. Check the path."
        ) from None
    except Exception as error:
        raise ConfigurationError(
            f"A file of weights must be a `state_dict` saved by torch. Received: {path}, which is damaged or holds "
            f"objects, which are not unpickled ({type(error).__name__}). Save `model.state_dict()`, or "
            "`torch.jit.script(model)` with its own `save`."
        ) from error
    if isinstance(state, Mapping):
        inner = (state[key] for key in ("state_dict", "model_state_dict") if isinstance(state.get(key), Mapping))
        state = next(inner, state)
    if not isinstance(state, Mapping) or not state or not any(torch.is_tensor(value) for value in state.values()):
        raise ConfigurationError(
            f"A file of weights must hold tensors by name. Received: {path}, a {type(state).__name__} with none. Save "
            "`model.state_dict()`."
        )
    # DataParallel adds this prefix.
    prefix = "module." if all(str(name).startswith("module.") for name in state) else ""
    return {str(name).removeprefix(prefix): value for name, value in state.items()}


def load_state(model: Any, state: Mapping[str, Any], source: str) -> None:
    """Load the tensors of `state` into `model`; raise `ConfigurationError`, naming `source`, if they do not fit."""
    expected = model.state_dict()
    for verb, missing in (("lacks", expected.keys() - state.keys()), ("also has", state.keys() - expected.keys())):
        if missing:
            raise ConfigurationError(
                f"Saved weights must have the names of the model's weights. Received: {source}, which {verb} "
                f"{min(missing)!r}. Build the model that was saved."
            )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split()).rpartition(": size mismatch for ")[2] or first_line(error)
        raise ConfigurationError(
            f"Saved weights must have the shapes of the model's weights. Received: {source}, {reason.rstrip('.')}. "
            "Build the model that was saved."
        ) from error


def _opened(path: Path, data: bytes | None) -> Path | BytesIO:
    return path if data is None else BytesIO(data)


def is_script(file: Path | BytesIO) -> bool:
    """Return True if a file is a TorchScript archive (with code), False for a `state_dict`."""
    with suppress(OSError):  # the next reader reports the error
        if zipfile.is_zipfile(regular(file) if isinstance(file, Path) else file):
            with zipfile.ZipFile(file) as archive:
                return any(name.split("/")[1:2] == ["constants.pkl"] for name in archive.namelist())
    return False
