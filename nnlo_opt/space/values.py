"""Values of parameters, plain Python data of JSON's types.

A value is a bool, int, float, str, None or a list of these. NumPy scalars are converted here and do not leave the
package.
"""

import json
import sys
from typing import Any

import numpy as np

from nnlo_opt.errors import ConfigurationError

#: value of a parameter in a point; a list only if a category is a list
Value = bool | int | float | str | list[Any] | None


def plain(value: Any) -> Any:
    """Return a NumPy scalar or array as plain Python data, and any other value unchanged."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def is_number(value: Any) -> bool:
    """Return True if `value` is an int or a float within the range of floats; a bool, an infinity or NaN is none."""
    largest = sys.float_info.max
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -largest <= value <= largest


def frozen(value: Any, name: str) -> Any:
    """Return a hashable copy of `value` in which lists are tuples; ConfigurationError if JSON cannot store `value`."""
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
    """Return a copy of a tuple or list with lists at every depth; any other value unchanged."""
    return [thawed(item) for item in value] if isinstance(value, (list, tuple)) else value


def text(value: Any) -> str:
    """Return JSON text, equal for two values if and only if they are the same; 1, 1.0 and True are three values."""
    return json.dumps(value, allow_nan=False)


def check_name(name: object, kind: str) -> None:
    """Raise ConfigurationError unless `name` can be the name of a parameter of this `kind`."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f'Every parameter must have a name. Received: a {kind} with name {name!r}. Add name="...", '
            "as the model's function calls it."
        )


def not_contained(parameter: Any, value: object) -> ValueError:
    """Return the error to raise for a value that `parameter` does not allow."""
    return ValueError(f"A value of parameter `{parameter.name}` must be in {parameter}. Received: {value!r}.")
