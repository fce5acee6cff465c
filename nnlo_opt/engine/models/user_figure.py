"""User-defined figure of merit, loaded before training starts."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.user_code import takes_arguments
from nnlo_opt.engine.loading.modules import load_module


@dataclass(frozen=True, slots=True)
class UserFigure:
    """Function (fold) or (fold, model, batches) -> number, see `core.trials.figure`, with its identity."""

    function: Callable[..., Any]
    #: name of the function
    name: str
    #: hexadecimal SHA-256 of its file; empty if it has none
    sha256: str
    #: True if the function also takes the model and the validation batches
    takes_model: bool = False


def load_figure(spec: str, model_functions: Mapping[str, Callable[..., Any]], model_file: Path) -> UserFigure:
    """Load the function `spec`; call it only in a process that may import a framework.

    Args:
        spec: value of `--figure-of-merit`.
        model_functions: functions of the model module, which is not executed again.
        model_file: file of the model module.

    Raises:
        ConfigurationError: if the file, module or function does not exist or cannot be called with one argument.
    """
    source, _, name = spec.rpartition(":")
    option = spelled("figure_of_merit")
    rule = f"`{option}` must be file.py:function, module:function, or a function of the model module"
    if not name.isidentifier():
        raise ConfigurationError(f"{rule}. Received: {spec!r}.")
    if not source or Path(source).resolve() == model_file.resolve():
        functions: Mapping[str, Any] = model_functions
        file: Path | None = model_file
    else:
        module = load_module(source, rule)
        functions, file = vars(module), Path(module.__file__) if module.__file__ else None
    function = functions.get(name)
    if not callable(function):
        there = "nothing with this name" if function is None else f"{type(function).__name__} with this name"
        raise ConfigurationError(f"{rule}. Received: {spec!r}; `{source or model_file}` has {there}.")
    takes_model = takes_arguments(function, 3)
    if not takes_model and not takes_arguments(function, 1):
        raise ConfigurationError(
            f"`{option}` must name a function of one argument, the fold, or of three, (fold, "
            f"model, batches). Received: {spec!r}, which takes {inspect.signature(function)}."
        )
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest() if file is not None and file.is_file() else ""
    return UserFigure(function, name, sha256, takes_model and not takes_arguments(function, 1))
