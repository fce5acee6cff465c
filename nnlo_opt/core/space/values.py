"""Parameter values (plain JSON data) and their positions under a prior.

A value is a bool, int, float, str, None or a list of these. NumPy scalars are converted here; the rest of the package
never sees them.

A parameter with a likely value has a normal distribution around it as prior, truncated to the parameter's range. A
*position* is the place of a value on its scale, 0 at the lower bound and 1 at the upper one; the scale of a
"log-uniform" range is logarithmic. Without a likely value positions are uniform. With a likely value at position c they
have the density of N(c, 0.25) between 0 and 1: for a likely value in the middle, two draws in three lie within a
quarter of the range of it, and no value is excluded.
"""

import json
import math
import sys
from statistics import NormalDist
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, shown

#: most nested lists in a category; Python's recursion limit is a thousand
MAX_LEVELS = 20
#: value of a parameter in a point; a list only if a category is a list
Value = bool | int | float | str | list[Any] | None


def plain(value: Any) -> Any:
    """Return a NumPy scalar or array as plain Python data, and any other value unchanged."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def is_number(value: Any) -> bool:
    """Return True for an int or float within the range of floats; False for bools, infinities and NaN."""
    largest = sys.float_info.max
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -largest <= value <= largest


class FrozenList(tuple[Any, ...]):
    """A hashable list, equal to a tuple of the same items."""

    __slots__ = ()


def frozen(value: Any, where: str, levels: int = MAX_LEVELS) -> Any:
    """Return a hashable copy of `value`, with a `FrozenList` for each list.

    Args:
        value: category, or value of a condition.
        where: the parameter, in words.
        levels: most nested lists.

    Raises:
        ConfigurationError: JSON cannot store it.
    """
    value = plain(value)
    if isinstance(value, (list, tuple)):
        if not levels:
            raise ConfigurationError(
                f"A category may nest lists at most {MAX_LEVELS} levels deep. Received: more in {where}. Search a "
                "name, and look up the list in the model's function."
            )
        kind = tuple if isinstance(value, tuple) and not isinstance(value, FrozenList) else FrozenList
        return kind(frozen(item, where, levels - 1) for item in value)
    if value is None or isinstance(value, (bool, int, str)) or is_number(value):
        return value
    raise ConfigurationError(
        f"A category must be a bool, a finite number, a string, None or a list of these. Received: {shown(value)} in "
        f"{where}. Search a name, and look up the object in the model's function."
    )


def thawed(value: Any) -> Any:
    """Return a copy of a tuple or list with lists at every depth; any other value unchanged."""
    return [thawed(item) for item in value] if isinstance(value, (list, tuple)) else value


def written(value: Any) -> Any:
    """Undo `frozen`: return the value as the user wrote it."""
    if not isinstance(value, tuple):
        return value
    kind = list if isinstance(value, FrozenList) else tuple
    return kind(map(written, value))


def text(value: Any) -> str:
    """Return JSON text, equal for identical values only; 1, 1.0 and True are three values."""
    return json.dumps(value, allow_nan=False)


def check_name(name: object, kind: str) -> None:
    """Raise ConfigurationError unless `name` can be the name of a parameter of this `kind`."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f'Every parameter must have a name. Received: a {kind} with name {name!r}. Add name="...", '
            "the argument of the model's function."
        )


def not_contained(parameter: Any, value: object) -> ValueError:
    """Return the error to raise for a value that `parameter` does not allow."""
    return ValueError(f"A value of parameter `{parameter.name}` must be in {parameter}. Received: {value!r}.")


#: standard deviation around the likely value, as a share of the range
LIKELY_WIDTH = 0.25

_NORMAL = NormalDist()


def position_of(quantile: float, center: float) -> float:
    """Return the position at a quantile (both 0 to 1) of the prior around `center`; the inverse of `quantile_of`."""
    low, high = _tails(center)
    share = low + quantile * (high - low)
    if not 0.0 < share < 1.0:
        return float(quantile >= 0.5)
    return min(max(center + LIKELY_WIDTH * _NORMAL.inv_cdf(share), 0.0), 1.0)


def quantile_of(position: float, center: float) -> float:
    """Return the quantile of a position (both 0 to 1) under the prior around `center`."""
    low, high = _tails(center)
    quantile = (_cumulated((position - center) / LIKELY_WIDTH) - low) / (high - low)
    return min(max(quantile, 0.0), 1.0)


def _tails(center: float) -> tuple[float, float]:
    return _cumulated(-center / LIKELY_WIDTH), _cumulated((1.0 - center) / LIKELY_WIDTH)


def _cumulated(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
