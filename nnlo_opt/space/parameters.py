"""What may vary: one frozen value class for each kind of parameter.

A parameter knows the values it allows and how to walk them: `from_unit` maps the unit interval onto them, so that
sampling, space-filling designs and surrogates need to know nothing else of priors and kinds. Values are plain Python
data that JSON keeps: bool, int, float, str, None and lists of them; NumPy scalars never leave this module.
"""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from nnlo_opt.errors import ConfigurationError

#: what a point holds for a parameter; a list only for a category that is one
Value = bool | int | float | str | list[Any] | None
Prior = Literal["uniform", "log-uniform"]

#: beyond it neighbouring integers are the same float, in JSON readers as in surrogates
MAX_INTEGER = 2**53


class Parameter(Protocol):
    """One named axis of a search space."""

    @property
    def name(self) -> str: ...

    @property
    def n_values(self) -> int | None:
        """How many values there are; None when they are continuous."""
        ...

    def contains(self, value: object) -> bool: ...

    def sample(self, rng: np.random.Generator) -> Value:
        """Draw one value by the prior."""
        ...

    def from_unit(self, unit: float) -> Value:
        """The value at the quantile `unit` (0 to 1, both allowed) of the prior."""
        ...

    def to_unit(self, value: object) -> float:
        """The quantile of `value`, 0 to 1: `from_unit(to_unit(value))` is `value`, but for rounding of a Real."""
        ...

    def value_at(self, index: int) -> Value:
        """Value number `index` (0 to `n_values` - 1); ValueError when continuous."""
        ...

    def key(self, value: object) -> int | float:
        """One number for each value: equal exactly when two values are the same; ValueError for one not allowed."""
        ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Real:
    """A float from `low` to `high`, both included; "log-uniform" gives every decade the same weight."""

    low: float
    high: float
    prior: Prior = "uniform"
    name: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name, "Real")
        _check_bounds(self, float)
        if not math.isfinite(self.high - self.low):
            raise ConfigurationError(
                f"The range of parameter `{self.name}` must be a finite number. Received: {self.low} to {self.high}. "
                "Bring the bounds closer together."
            )

    @property
    def n_values(self) -> None:
        return None

    def contains(self, value: object) -> bool:
        plain = _plain(value)
        return _is_number(plain) and self.low <= plain <= self.high

    def sample(self, rng: np.random.Generator) -> float:
        return self.from_unit(rng.random())

    def from_unit(self, unit: float) -> float:
        if self.prior == "log-uniform":
            value = math.exp(math.log(self.low) + unit * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low * (1.0 - unit) + self.high * unit
        return min(max(value, self.low), self.high)

    def to_unit(self, value: object) -> float:
        number = self.key(value)
        if self.prior == "log-uniform":
            unit = (math.log(number) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            unit = (number - self.low) / (self.high - self.low)
        return min(max(unit, 0.0), 1.0)

    def value_at(self, index: int) -> float:
        raise ValueError(f"Values of the continuous parameter `{self.name}` have no numbers. Received: {index}.")

    def key(self, value: object) -> float:
        return float(_contained_number(self, value))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "real", "name": self.name, "low": self.low, "high": self.high, "prior": self.prior}

    def __str__(self) -> str:
        return _range_text(self)


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from `low` to `high`, both included; "log-uniform" gives every decade about the same weight."""

    low: int
    high: int
    prior: Prior = "uniform"
    name: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name, "Integer")
        _check_bounds(self, int)
        if max(-self.low, self.high) > MAX_INTEGER:
            raise ConfigurationError(
                f"The bounds of Integer `{self.name}` must lie within -2**53 and 2**53. "
                f"Received: {self.low} to {self.high}. Use a Real, or search its logarithm."
            )

    @property
    def n_values(self) -> int:
        return self.high - self.low + 1

    def contains(self, value: object) -> bool:
        plain = _plain(value)
        return _is_number(plain) and plain == math.floor(plain) and self.low <= plain <= self.high

    def sample(self, rng: np.random.Generator) -> int:
        return self.from_unit(rng.random())

    def from_unit(self, unit: float) -> int:
        if self.prior == "log-uniform":
            low, high = self._log_range()
            value = round(math.exp(low + unit * (high - low)))
        else:
            value = self.low + math.floor(unit * self.n_values)
        return min(max(value, self.low), self.high)

    def to_unit(self, value: object) -> float:
        number = self.key(value)
        if self.prior == "log-uniform":
            low, high = self._log_range()
            return (math.log(number) - low) / (high - low)
        return (number - self.low + 0.5) / self.n_values

    def _log_range(self) -> tuple[float, float]:
        # Half a step beyond both ends, so that the first and the last integer get a whole interval as the others do.
        return math.log(self.low - 0.5), math.log(self.high + 0.5)

    def value_at(self, index: int) -> int:
        return self.low + index

    def key(self, value: object) -> int:
        return int(_contained_number(self, value))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "integer", "name": self.name, "low": self.low, "high": self.high, "prior": self.prior}

    def __str__(self) -> str:
        return _range_text(self)


@dataclass(frozen=True, slots=True)
class Categorical:
    """One of several values without an order, each as likely; a category that is a list or a tuple arrives as a list.

    Categories differ when their JSON text differs: 1, 1.0 and True are three categories.
    """

    categories: tuple[Any, ...]
    name: str = ""

    def __init__(self, categories: Iterable[Any], name: str = "") -> None:
        _check_name(name, "Categorical")
        if isinstance(categories, (str, bytes)) or not isinstance(categories, Iterable):
            raise ConfigurationError(
                f"The categories of parameter `{name}` must be a list of values. Received: {categories!r}. "
                "Put them in square brackets."
            )
        frozen = tuple(_frozen_category(category, name) for category in categories)
        if len(frozen) < 2:
            raise ConfigurationError(
                f"Parameter `{name}` must have at least 2 categories. Received: {[_thawed(c) for c in frozen]}. "
                "Give a single value to the model itself instead of searching it."
            )
        texts = [_text(category) for category in frozen]
        for index, text in enumerate(texts):
            if text in texts[:index]:
                raise ConfigurationError(
                    f"The categories of parameter `{name}` must be different. Received: {text} more than once. "
                    "Remove the repetition."
                )
        object.__setattr__(self, "categories", frozen)
        object.__setattr__(self, "name", name)

    @property
    def n_values(self) -> int:
        return len(self.categories)

    def contains(self, value: object) -> bool:
        return self._index_of(value) is not None

    def sample(self, rng: np.random.Generator) -> Value:
        return self.from_unit(rng.random())

    def from_unit(self, unit: float) -> Value:
        return self.value_at(min(math.floor(unit * self.n_values), self.n_values - 1))

    def to_unit(self, value: object) -> float:
        return (self.key(value) + 0.5) / self.n_values

    def value_at(self, index: int) -> Value:
        return _thawed(self.categories[index])

    def key(self, value: object) -> int:
        index = self._index_of(value)
        if index is None:
            raise _not_contained(self, value)
        return index

    def _index_of(self, value: object) -> int | None:
        try:
            wanted = _text(_thawed(_plain(value)))
        except (TypeError, ValueError):
            return None
        return next((i for i, category in enumerate(self.categories) if _text(category) == wanted), None)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "categorical", "name": self.name, "categories": [_thawed(c) for c in self.categories]}

    def __str__(self) -> str:
        return f"Categorical({[_thawed(category) for category in self.categories]})"


def parameter_from_json(data: dict[str, Any]) -> Parameter:
    """Rebuild what `to_json` wrote; ConfigurationError when `data` is no such thing."""
    try:
        kind, name = data["kind"], data["name"]
        if kind == "real":
            return Real(data["low"], data["high"], data["prior"], name=name)
        if kind == "integer":
            return Integer(data["low"], data["high"], data["prior"], name=name)
        if kind == "categorical":
            return Categorical(data["categories"], name=name)
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            f"A parameter must be written as `to_json` writes it. Received: {data!r} ({error!r})."
        ) from error
    raise ConfigurationError(
        f'The kind of a parameter must be "real", "integer" or "categorical". Received: {kind!r}. Correct the entry.'
    )


def _check_name(name: object, kind: str) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f'Every parameter must have a name. Received: a {kind} with name {name!r}. Add name="...", '
            "as the model's function calls it."
        )


def _check_bounds(parameter: Real | Integer, number: type[int] | type[float]) -> None:
    """Check both bounds and the prior; leaves plain Python numbers in the frozen fields."""
    name = parameter.name
    kind = type(parameter).__name__
    for side in ("low", "high"):
        received = getattr(parameter, side)
        bound = _plain(received)
        if not _is_number(bound) or (number is int and bound != int(bound)):
            wanted = "an integer" if number is int else "a finite number"
            raise ConfigurationError(
                f"The bound `{side}` of {kind} `{name}` must be {wanted}. Received: {received!r}. Correct the bound."
            )
        object.__setattr__(parameter, side, number(bound))
    if parameter.low >= parameter.high:
        raise ConfigurationError(
            f"`low` must be less than `high` in {kind} `{name}`. Received: {parameter.low} and {parameter.high}. "
            "Exchange the bounds, or give a single value to the model itself."
        )
    if parameter.prior not in ("uniform", "log-uniform"):
        raise ConfigurationError(
            f'The prior of parameter `{name}` must be "uniform" or "log-uniform". Received: {parameter.prior!r}. '
            "Choose one of the two."
        )
    if parameter.prior == "log-uniform" and parameter.low <= 0:
        raise ConfigurationError(
            f"`low` must be more than 0 for the log-uniform prior of parameter `{name}`. Received: {parameter.low}. "
            "Raise `low`, or use the uniform prior."
        )


def _contained_number(parameter: Real | Integer, value: object) -> int | float:
    plain: int | float = _plain(value)
    if not parameter.contains(plain):
        raise _not_contained(parameter, value)
    return plain


def _not_contained(parameter: Parameter, value: object) -> ValueError:
    return ValueError(f"A value of parameter `{parameter.name}` must be in {parameter}. Received: {value!r}.")


def _range_text(parameter: Real | Integer) -> str:
    prior = "" if parameter.prior == "uniform" else f', "{parameter.prior}"'
    return f"{type(parameter).__name__}({parameter.low}, {parameter.high}{prior})"


def _plain(value: Any) -> Any:
    """A NumPy scalar or array as plain Python data; anything else as it is."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _is_number(value: Any) -> bool:
    """Whether `value` is an int or a float that a float can hold: not infinite, not NaN, no bool."""
    largest = sys.float_info.max
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -largest <= value <= largest


def _frozen_category(category: Any, name: str) -> Any:
    """A hashable twin of `category`: lists become tuples; ConfigurationError for what JSON cannot keep."""
    category = _plain(category)
    if isinstance(category, (list, tuple)):
        return tuple(_frozen_category(item, name) for item in category)
    if category is None or isinstance(category, (bool, int, str)) or _is_number(category):
        return category
    raise ConfigurationError(
        f"A category must be a bool, a finite number, a string, None or a list of these. "
        f"Received: {category!r} in parameter `{name}`. Search a name, and look the object up in the model's function."
    )


def _thawed(category: Any) -> Any:
    """A fresh list for a tuple, at every depth."""
    return [_thawed(item) for item in category] if isinstance(category, (list, tuple)) else category


def _text(category: Any) -> str:
    return json.dumps(category, allow_nan=False)
