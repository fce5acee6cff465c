"""What a user names on a command line: objectives, durations and the functions in them."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models.user_module import describe, execute_file
from nnlo_opt.simulate.durations import Computed, Durations, Lognormal, read_table
from nnlo_opt.simulate.objectives import BUILTIN, Objective
from nnlo_opt.space.loading import load_space, space_from_dimensions

DURATIONS = "constant:SECONDS, lognormal:MEDIAN:SIGMA, table:FILE.csv, or FILE.py:FUNCTION"


def load_objective(text: str, space_source: str | None) -> Objective:
    """A test function by name, or a user's function, whose space is `space_source` or its own `parameter_range`.

    A test function takes another space too, as long as it has the same parameters. ConfigurationError in a sentence.
    """
    space = None if space_source is None else load_space(space_source)
    if text in BUILTIN:
        builtin = BUILTIN[text]
        if space is None:
            return builtin
        if set(space.names) != set(builtin.space.names):
            raise ConfigurationError(
                f"A search space of {text} must have the parameters {', '.join(builtin.space.names)}. "
                f"Received: {', '.join(space.names)} in {space_source}."
            )
        return Objective(name=text, function=builtin.function, space=space)  # the optimum may lie outside
    if ":" not in text:
        raise ConfigurationError(
            f"`--objective` must be {', '.join(BUILTIN)}, or a function of a point as FILE.py:FUNCTION or "
            f"MODULE:FUNCTION. Received: {text}."
        )
    function = load_function(text)
    if space is None:
        if not hasattr(function, "parameter_range"):
            raise ConfigurationError(
                f"{text} has no search space: give one by `--search-space MODULE`, or set the function's "
                "`parameter_range`."
            )
        space = space_from_dimensions(function.parameter_range, text)
    return Objective(name=text, function=function, space=space, optimum=_optimum(function, text))


def load_durations(text: str) -> Durations:
    """What `--duration` names: see `DURATIONS`. ConfigurationError in a sentence."""
    kind, _, rest = text.partition(":")
    if kind in ("constant", "lognormal"):
        try:
            numbers = [float(part) for part in rest.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) != (1 if kind == "constant" else 2):
            raise ConfigurationError(f"`--duration` must be {DURATIONS}. Received: {text}.")
        return Lognormal(*numbers)
    if kind == "table" and rest:
        return read_table(Path(rest))
    if not rest:
        raise ConfigurationError(f"`--duration` must be {DURATIONS}. Received: {text}.")
    return Computed(load_function(text))


def load_function(text: str) -> Callable[[Any], Any]:
    """`FILE.py:FUNCTION` or `MODULE:FUNCTION`, callable with one argument. ConfigurationError in a sentence."""
    source, _, name = text.rpartition(":")
    module: Any
    if source.endswith(".py"):
        if not Path(source).is_file():
            raise ConfigurationError(f"A function must be in a Python file that is there. Received: {text}.")
        module = execute_file(Path(source))
    else:
        module = _import(source, text)
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ConfigurationError(
            f"{source} must define a function `{name}`. Received: a module with "
            f"{', '.join(f'`{known}`' for known in names) or 'no function'}."
        )
    try:
        inspect.signature(function).bind({})
    except TypeError:
        raise ConfigurationError(
            f"{text} must take one argument, the point as a dictionary. Received: "
            f"`{name}{inspect.signature(function)}`."
        ) from None
    return function


def _import(source: str, text: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")  # a console script does not look where it is started, as `python` does
    try:
        if source and importlib.util.find_spec(source) is not None:
            return importlib.import_module(source)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"The module of {text} must import without an error. Received: {describe(error)}. Mend it."
        ) from error
    raise ConfigurationError(f"A function is named as FILE.py:FUNCTION or MODULE:FUNCTION. Received: {text}.")


def _optimum(function: Callable[[Any], Any], text: str) -> float | None:
    optimum = getattr(function, "optimum", None)
    if optimum is not None and (isinstance(optimum, bool) or not isinstance(optimum, int | float)):
        raise ConfigurationError(f"The `optimum` of {text} must be a number. Received: {optimum!r}.")
    return optimum
