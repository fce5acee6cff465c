"""Values of parameters: plain Python data that JSON keeps.

bool, int, float, str, None and lists of them; NumPy scalars become plain here and never leave this package.
"""

import json
import sys
from typing import Any

import numpy as np

from nnlo_opt.errors import ConfigurationError

#: what a point holds for a parameter; a list only for a category that is one
Value = bool | int | float | str | list[Any] | None


def plain(value: Any) -> Any:
    """A NumPy scalar or array as plain Python data; anything else as it is."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def is_number(value: Any) -> bool:
    """Whether `value` is an int or a float that a float can hold: not infinite, not NaN, no bool."""
    largest = sys.float_info.max
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -largest <= value <= largest


def frozen(value: Any, name: str) -> Any:
    """A hashable twin of `value`: lists become tuples; ConfigurationError for what JSON cannot keep."""
    value = plain(value)
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item, name) for item in value)
    if value is None or isinstance(value, (bool, int, str)) or is_number(value):
        return value
    raise ConfigurationError(
        f"A category must be a bool, a finite number, a string, None or a list of these. "
        f"Received: {value!r} in parameter `{name}`. Search a name, and look the object up in the model's function."
    )


def thawed(value: Any) -> Any:
    """A fresh list for a tuple or a list, at every depth."""
    return [thawed(item) for item in value] if isinstance(value, (list, tuple)) else value


def text(value: Any) -> str:
    """JSON: the same for two values exactly when they are the same; 1, 1.0 and True are three."""
    return json.dumps(value, allow_nan=False)


def check_name(name: object, kind: str) -> None:
    """ConfigurationError unless `name` can be a parameter's name; `kind` is that of the parameter."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f'Every parameter must have a name. Received: a {kind} with name {name!r}. Add name="...", '
            "as the model's function calls it."
        )


def not_contained(parameter: Any, value: object) -> ValueError:
    """What to raise for a value that `parameter` does not allow."""
    return ValueError(f"A value of parameter `{parameter.name}` must be in {parameter}. Received: {value!r}.")
