"""The framework torch: a plain `torch.nn.Module` as a model. Imported inside functions and never before these run.

A module takes its features as they lie in the data, channels last: `x.permute(0, 3, 1, 2)` is what a convolution wants.
Several inputs are several arguments of `forward`; several outputs are a tuple, a list or a dict.
"""

import os
import random
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.models import torch_losses
from nnlo_opt.models.loss_terms import LossTerm, Output
from nnlo_opt.models.torch_adapter import TorchAdapter, first_line, forget_models
from nnlo_opt.models.torch_comparison import activation_of
from nnlo_opt.models.torch_parts import named_outputs
from nnlo_opt.trees import Shapes, leaves

__all__ = ["forget_models"]

NOUN = "a torch module"
SUFFIX = ".pt"
RULES = torch_losses

#: samples of a dry run: not 1, which `squeeze` would take away
_N_SAMPLES = 2
#: length of what a shape leaves open
_N_OPEN = 16
#: types that inputs are tried with at most
_N_TRIES = 16


def import_framework(n_threads: int, *, quiet: bool = True, backend: str | None = None) -> None:
    """Import torch with `n_threads` threads; `quiet`: without start-up noise.

    `backend` is for Keras and means nothing here. To be called once, before anything else imports it: costs 2 s of CPU
    and 200 MB.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(n_threads))
    if quiet:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch

    torch.set_num_threads(n_threads)
    try:
        torch.set_num_interop_threads(n_threads)
    except RuntimeError:
        # Somebody (a user's module, a test) has computed something already: the threads are what they are.
        return


def set_seed(seed: int) -> None:
    """Make what is built next repeatable: initial weights, and the seeds of dropout layers."""
    import torch

    torch.manual_seed(seed % 2**63)
    # As Keras does: `get_model` may draw from anywhere.
    random.seed(seed)
    np.random.seed(seed % 2**32)


def is_model(value: object) -> bool:
    """Whether `value` is a torch module; False where torch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


@contextmanager
def building(custom_objects: Mapping[str, Any], dtype_policy: Any | None) -> Iterator[None]:
    """Around `get_model`: objects by name mean nothing here, and there is no policy."""
    if dtype_policy is not None:
        raise ConfigurationError(
            f"A dtype policy is for Keras models. Received: {dtype_policy!r} for a torch module. Compute in another "
            "type with `torch.autocast` in its `forward`."
        )
    yield


def describe_outputs(model: Any, feature_shape: Shapes) -> list[Output]:
    """The outputs for such samples; creates the weights of lazy layers.

    Raises `ConfigurationError` where the model cannot take them.
    """
    named = _dry_run(model, feature_shape)
    for name, tensor in named:
        if tensor.shape[:1] != (_N_SAMPLES,):
            raise ConfigurationError(
                f"The model must give one row a sample. Received: {name} of shape {tuple(tensor.shape)} for "
                f"{_N_SAMPLES} samples of shape {_in_words(feature_shape)}. Look for a `view` or `reshape` with a "
                "wrong size, or a Linear layer of a fixed one: LazyLinear takes any."
            )
    return [Output(name, tuple(tensor.shape[1:]), activation_of(tensor)) for name, tensor in named]


def adapter(model: Any, terms: Sequence[LossTerm], *, jit_compile: bool = False) -> TorchAdapter:
    """The model, its weights created, ready to be trained on `terms`, one for each output."""
    if jit_compile:
        raise ConfigurationError(
            "`get_model.jit_compile` is for Keras models. Received: True with a torch module. Leave it out, or return "
            "`torch.jit.script(model)`."
        )
    return TorchAdapter(model, terms)


def _dry_run(model: Any, feature_shape: Shapes) -> list[tuple[str, Any]]:
    """The outputs for samples of zeros in evaluation, with the graph they come from."""
    import torch

    shapes = [[_N_OPEN if length is None else length for length in shape] for shape in leaves(feature_shape)]
    device = next((parameter.device for parameter in model.parameters()), None)
    errors: list[Exception] = []
    with _evaluating(model):
        # Which inputs are class numbers, as of words, is known to the model alone.
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
    raise ConfigurationError(
        f"The model must take samples of the shape of the features, {_in_words(feature_shape)}. Received: "
        f"{first_line(errors[0])}. Change the model's input shape, or the data{hint}."
    ) from errors[0]


def _in_form(shapes: Shapes, tensors: Iterator[Any]) -> Any:
    """The tensors as a tree of the form of the shapes."""
    return [_in_form(shape, tensors) for shape in shapes] if isinstance(shapes, list) else next(tensors)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode, and each of its parts back into its own."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _in_words(shapes: Shapes) -> str:
    return " and ".join(str(tuple(shape)) for shape in leaves(shapes))


# ---------------------------------------------------------------- saved models


def load_model(path: Path, get_model: Callable[[], Any] | None = None) -> Any:
    """The model in `path`: a TorchScript archive, or a `state_dict` for the module that `get_model` builds.

    A `state_dict` alone is no model. Nothing is unpickled but tensors. Raises `ConfigurationError` in one sentence.
    """
    import torch

    if is_script(path):
        try:
            return torch.jit.load(str(path), map_location="cpu")
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"A TorchScript archive must be one that torch can load. Received: {path}, {first_line(error)}. Write "
                "it again with `torch.jit.script(model).save(path)`."
            ) from error
    state = read_state(path)
    if get_model is None:
        raise ConfigurationError(
            f"Saved weights need the module they are for. Received: {path}, a `state_dict` alone. Put "
            f"{path.with_suffix('.py').name} with `get_model` beside it, or save `torch.jit.script(model)`."
        )
    model = get_model()
    if not is_model(model):
        raise ConfigurationError(
            f"Saved weights need {NOUN}. Received: {path} and, from `get_model` beside it, a {type(model).__name__}."
        )
    load_state(model, state, str(path))
    return model


def read_state(path: Path) -> dict[str, Any]:
    """The tensors of a `state_dict`, also of one that lies in a checkpoint as "state_dict" or "model_state_dict"."""
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigurationError(
            f"A file of weights must exist. Received: {str(path)!r}, which is no file. Check the path."
        ) from None
    except Exception as error:
        raise ConfigurationError(
            f"A file of weights must be a `state_dict` that torch saved. Received: {path}, which is damaged or holds "
            f"objects, that are not unpickled ({type(error).__name__}). Save `model.state_dict()`, or "
            "`torch.jit.script(model)` with its own `save`."
        ) from error
    if isinstance(state, Mapping):
        inner = (state[key] for key in ("state_dict", "model_state_dict") if isinstance(state.get(key), Mapping))
        state = next(inner, state)
    if not isinstance(state, Mapping) or not state or not any(torch.is_tensor(value) for value in state.values()):
        raise ConfigurationError(
            f"A file of weights must hold tensors by name. Received: {path}, a {type(state).__name__} without. Save "
            "`model.state_dict()`."
        )
    # As DataParallel names them.
    prefix = "module." if all(str(name).startswith("module.") for name in state) else ""
    return {str(name).removeprefix(prefix): value for name, value in state.items()}


def load_state(model: Any, state: Mapping[str, Any], source: str) -> None:
    """Give `model` the tensors of `state`; `source` names them in the `ConfigurationError` if they do not fit."""
    expected = model.state_dict()
    for verb, missing in (("lacks", expected.keys() - state.keys()), ("also has", state.keys() - expected.keys())):
        if missing:
            raise ConfigurationError(
                f"Saved weights must have the names of the model's. Received: {source}, which {verb} "
                f"{min(missing)!r}. Build the model that was saved."
            )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split()).rpartition(": size mismatch for ")[2] or first_line(error)
        raise ConfigurationError(
            f"Saved weights must have the shapes of the model's. Received: {source}, {reason.rstrip('.')}. Build the "
            "model that was saved."
        ) from error


def is_script(path: Path) -> bool:
    """Whether a file is a TorchScript archive, which brings its code along; a `state_dict` does not."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.split("/")[1:2] == ["constants.pkl"] for name in archive.namelist())
