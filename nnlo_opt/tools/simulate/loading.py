"""Loads the objectives and durations given on the command line."""

import csv
import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import regular
from nnlo_opt.core.base.user_code import takes_arguments
from nnlo_opt.engine.loading.modules import load_module
from nnlo_opt.engine.loading.spaces import load_space, space_from_dimensions
from nnlo_opt.tools.simulate.workload import BUILTIN, Durations, SimulatedObjective, computed, lognormal, measured

#: columns of a table of durations; the first existing one is used; `results.csv` has the second
COLUMNS = ("seconds", "train_s")
DURATIONS = "constant:SECONDS, lognormal:MEDIAN:SIGMA, table:FILE.csv, or FILE.py:FUNCTION"


def load_objective(text: str, space_source: str | None) -> SimulatedObjective:
    """Return a built-in test function, or a user's function.

    Args:
        text: name of a test function, FILE.py:FUNCTION, or MODULE:FUNCTION.
        space_source: search space with the parameters of the test function; None for the function's `parameter_range`.

    Raises:
        ConfigurationError: the function or space does not exist.
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
        # Its optimum may be outside this space.
        return SimulatedObjective(name=text, function=builtin.function, space=space)
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
    return SimulatedObjective(name=text, function=function, space=space, optimum=_optimum(function, text))


def load_durations(text: str) -> Durations:
    """Parse `--duration` (see `DURATIONS`); ConfigurationError for anything else."""
    kind, _, rest = text.partition(":")
    n_numbers = {"constant": 1, "lognormal": 2}.get(kind)
    numbers: list[float] = []
    with suppress(ValueError):
        numbers = [float(part) for part in rest.split(":")]
    if len(numbers) == n_numbers:
        return lognormal(*numbers)
    if n_numbers or not rest:
        raise ConfigurationError(f"`--duration` must be {DURATIONS}. Received: {text}.")
    return _read_table(Path(rest)) if kind == "table" else computed(load_function(text))


def _read_table(path: Path) -> Durations:
    """Return the durations in a CSV file, such as the `results.csv` of a run, without empty fields (failed trials)."""
    try:
        with regular(path).open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"A table of durations must be a CSV file. Received: `{path}` ({error}).") from None
    column = next((name for name in COLUMNS if rows and name in rows[0]), None)
    if column is None:
        raise ConfigurationError(
            f"A table of durations must have a column {' or '.join(f'`{name}`' for name in COLUMNS)}, and a row. "
            f"Received: `{path}` with {', '.join(f'`{name}`' for name in rows[0]) if rows else 'no row'}."
        )
    values = [_seconds(row[column], path) for row in rows if row[column]]
    if not values:
        raise ConfigurationError(f"A table of durations must not be empty. Received: `{path}`, without a duration.")
    return measured(values)


def _seconds(text: str, path: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ConfigurationError(f"A duration must be finite seconds, at least 0. Received: {text} in `{path}`.")
    return value


def load_function(text: str) -> Callable[[Any], Any]:
    """Return the function `FILE.py:FUNCTION` or `MODULE:FUNCTION`.

    Raises:
        ConfigurationError: it does not exist, or does not take one argument.
    """
    source, _, name = text.rpartition(":")
    module = load_module(source, "A function must be given as FILE.py:FUNCTION or MODULE:FUNCTION")
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ConfigurationError(
            f"{source} must define a function `{name}`. Received: a module with "
            f"{', '.join(f'`{known}`' for known in names) or 'no function'}."
        )
    if not takes_arguments(function):
        raise ConfigurationError(
            f"{text} must take one argument, the point as a dictionary. Received: "
            f"`{name}{inspect.signature(function)}`."
        )
    return function


def _optimum(function: Callable[[Any], Any], text: str) -> float | None:
    optimum = getattr(function, "optimum", None)
    if optimum is not None and (isinstance(optimum, bool) or not isinstance(optimum, int | float)):
        raise ConfigurationError(f"The `optimum` of {text} must be a number. Received: {optimum!r}.")
    return optimum
