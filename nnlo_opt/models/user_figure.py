"""Figure of merit of a user, loaded before anything trains."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.user_files import describe, execute_file

_RULE = "`--figure-of-merit` must be file.py:function, module:function, or a function of the model module"


@dataclass(frozen=True, slots=True)
class UserFigure:
    """Function (fold) -> number, see `trials.figure`, with its identification."""

    function: Callable[[dict[str, Any]], Any]
    #: name of the function
    name: str
    #: hexadecimal SHA-256 of its file; empty if it has none
    sha256: str


def load_figure(spec: str, model_functions: Mapping[str, Callable[..., Any]], model_file: Path) -> UserFigure:
    """Load the function that `spec` names; to be called in a process that may import a framework.

    Args:
        spec: value of `--figure-of-merit`.
        model_functions: functions of the model module, which is not executed again.
        model_file: file of the model module.

    Raises:
        ConfigurationError: if the file, module or function does not exist or cannot be called with one argument.
    """
    source, _, name = spec.rpartition(":")
    if not name.isidentifier():
        raise ConfigurationError(f"{_RULE}. Received: {spec!r}.")
    if not source or Path(source).resolve() == model_file.resolve():
        functions: Mapping[str, Any] = model_functions
        file: Path | None = model_file
    else:
        functions, file = _functions_of(source)
    function = functions.get(name)
    if not callable(function):
        there = "nothing with this name" if function is None else f"{type(function).__name__} with this name"
        raise ConfigurationError(f"{_RULE}. Received: {spec!r}; `{source or model_file}` has {there}.")
    try:
        inspect.signature(function).bind({})
    except TypeError:
        raise ConfigurationError(
            f"`--figure-of-merit` must name a function of one argument, the fold. Received: {spec!r}, which takes "
            f"{inspect.signature(function)}."
        ) from None
    except ValueError:  # a function written in C without a signature
        pass
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest() if file is not None and file.is_file() else ""
    return UserFigure(function, name, sha256)


def _functions_of(source: str) -> tuple[Mapping[str, Any], Path | None]:
    if source.endswith(".py"):
        path = Path(source)
        if not path.is_file():
            raise ConfigurationError(f"{_RULE}. Received: {source!r}, which is no file; check the path.")
        return vars(execute_file(path)), path
    # Modules are searched in the working folder as well, as Python itself does.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(source)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{_RULE}. Received: {source!r}, which cannot be found ({describe(error)})."
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"The module of `--figure-of-merit` must import without an error. Received: {source!r}, {describe(error)}."
        ) from error
    return vars(module), Path(module.__file__) if module.__file__ else None
