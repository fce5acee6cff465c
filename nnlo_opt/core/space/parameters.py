"""Kinds of parameters, each a frozen value class with the interface `Parameter`.

`from_unit` maps the unit interval onto the allowed values, so sampling, designs and surrogates need not know priors and
kinds.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol, Self

from nnlo_opt.core.base.errors import ConfigurationError, shown
from nnlo_opt.core.base.records import MAX_INTEGER
from nnlo_opt.core.space.arguments import check_arguments
from nnlo_opt.core.space.conditions import When, check_condition, titled
from nnlo_opt.core.space.tuples import TUPLES, tuple_paths, with_tuples
from nnlo_opt.core.space.values import (
    Value,
    frozen,
    is_number,
    not_contained,
    plain,
    position_of,
    quantile_of,
    text,
    thawed,
    written,
)

Prior = Literal["uniform", "log-uniform"]

#: types for which equal values are identical; float is not one of them, because 0.0 equals -0.0
_PLAIN = (str, int, bool, type(None))


@dataclass(frozen=True, slots=True)
class _Range:
    """Range from `low` to `high`, both included: continuous, or low, low + step, ..., high."""

    low: float
    high: float
    prior: Prior = "uniform"
    name: str = ""
    #: distance of neighbouring values; None for a continuous range
    step: float | None = field(default=None, kw_only=True)
    #: value at which the prior is highest; `core.space.values` has its width
    likely: float | None = field(default=None, kw_only=True)
    condition: When | None = field(default=None, kw_only=True)

    #: class name in JSON, and the kind of number in messages
    KIND: ClassVar[str]
    NUMBER: ClassVar[str]
    #: type of its numbers
    _of_kind: ClassVar[type[int] | type[float]]

    def __new__(cls, *_: object, **given: object) -> Self:
        check_arguments(cls, given)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_condition(self.condition, self.name)
        for side in ("low", "high"):
            self._settle(f"bound `{side}`", side, getattr(self, side))
        if self.low >= self.high:
            raise ConfigurationError(
                f"`low` must be less than `high` in {self._title}. Received: {self.low} and {self.high}. Swap the "
                "bounds, or set a single value in the model itself."
            )
        self._check_width()
        if self.prior not in ("uniform", "log-uniform"):
            is_number_given = is_number(plain(self.prior))
            remedy = f"Write it as `step={self.prior!r}`" if is_number_given else "Choose one of the two"
            raise ConfigurationError(
                f'The prior of {self._title} must be "uniform" or "log-uniform". Received: {self.prior!r}. {remedy}.'
            )
        if self.prior == "log-uniform" and self.low <= 0:
            raise ConfigurationError(
                f"`low` must be more than 0 for the log-uniform prior of {self._title}. "
                f"Received: {self.low}. Raise `low`, or use the uniform prior."
            )
        if self.step is not None:
            self._settle("`step`", "step", self.step)
            self._check_step(self.step)
        if self.likely is not None:
            self._settle("`likely` value", "likely", self.likely)
            if not self.contains(self.likely):
                raise ConfigurationError(
                    f"The `likely` value of {self._title} must be one of its values. Received: {self.likely}, not in "
                    f"{_bounds_text(self)}. Correct it."
                )

    @property
    def _title(self) -> str:
        kind = type(self).__name__
        return f"{kind} `{self.name}`" if self.name else f"{kind}({self.low!r}, {self.high!r})"

    def _settle(self, what: str, attribute: str, received: Any) -> None:
        """Check a given number and store it as a plain Python number in the frozen field."""
        number = plain(received)
        if not is_number(number) or not self._is_of_kind(number):
            remedy = "Correct it"
            if isinstance(received, str):
                try:
                    remedy = f"Write it as {plain(float(received)):g}, without quotes"
                except ValueError:
                    if attribute == "low":
                        remedy = f"Write the name last, as `name={received!r}`"
            raise ConfigurationError(
                f"The {what} of {self._title} must be {self.NUMBER}. Received: {shown(received)}. {remedy}."
            )
        object.__setattr__(self, attribute, self._of_kind(number))

    def _is_of_kind(self, number: float) -> bool:
        return True

    def _check_width(self) -> None:
        raise NotImplementedError

    def _check_step(self, step: float) -> None:
        n_steps = (self.high - self.low) / step if step > 0 else 0.0
        # The tolerance is for rounding: 1 is three steps of 1/3.
        if not 0.5 < n_steps < MAX_INTEGER or abs(n_steps - round(n_steps)) > min(1e-9 * n_steps, 0.01):
            raise ConfigurationError(
                f"`high` must be a whole number of steps above `low` in {self._title}. Received: `step` {step} from "
                f"{self.low} to {self.high}. Change the step or a bound."
            )

    # ------------------------------------------------------------ grid of a parameter with finitely many values

    @property
    def _grid(self) -> float | None:
        """Distance of neighbouring values; None if they are continuous."""
        return self.step

    @property
    def n_values(self) -> int | None:
        return None if self._grid is None else round((self.high - self.low) / self._grid) + 1

    def _finite(self) -> tuple[int, float]:
        """Return the number of values, and the distance between them."""
        if self._grid is None or self.n_values is None:
            raise ValueError(f"Values of the continuous parameter `{self.name}` have no numbers.")
        return self.n_values, self._grid

    def value_at(self, index: int) -> Any:
        n_values, step = self._finite()
        if index == n_values - 1:
            return self.high
        # Decimal computes as written: 0.1 * 3 is 0.3.
        return self._of_kind(float(Decimal(repr(self.low)) + index * Decimal(repr(step))))

    def index(self, value: object) -> int:
        index = self._index_of(plain(value))
        if index is None:
            raise not_contained(self, value)
        return index

    def _index_of(self, number: Any) -> int | None:
        n_values, step = self._finite()
        if not is_number(number) or not self.low <= number <= self.high:
            return None
        index = min(max(round((number - self.low) / step), 0), n_values - 1)
        return index if abs(self.value_at(index) - number) <= 1e-9 * step else None

    # ------------------------------------------------------------ values and quantiles

    def contains(self, value: object) -> bool:
        number = plain(value)
        if not is_number(number) or not self._is_of_kind(number):
            return False
        return self.low <= number <= self.high if self._grid is None else self._index_of(number) is not None

    def key(self, value: object) -> int | float:
        number = plain(value)
        if not self.contains(number):
            raise not_contained(self, value)
        return self._of_kind(number)

    def from_unit(self, unit: float) -> Any:
        position = unit if self.likely is None else position_of(unit, self.position(self.likely))
        low, high = self.edges
        if self.is_logarithmic:
            number = math.exp(math.log(low) + position * (math.log(high) - math.log(low)))
        elif self._grid is None:
            number = low * (1.0 - position) + high * position
        else:
            n_values, _ = self._finite()
            return self.value_at(min(math.floor(position * n_values), n_values - 1))
        if self._grid is None:
            return min(max(number, self.low), self.high)
        n_values, step = self._finite()
        return self.value_at(min(max(round((number - self.low) / step), 0), n_values - 1))

    def to_unit(self, value: object) -> float:
        position = self.position(_Range.key(self, value))
        return position if self.likely is None else quantile_of(position, self.position(self.likely))

    def position(self, number: float) -> float:
        """Return the position of a value on its scale, 0 to 1.

        This is the middle of the interval that rounds to it.
        """
        low, high = self.edges
        if self.is_logarithmic:
            position = (math.log(number) - math.log(low)) / (math.log(high) - math.log(low))
        elif self._grid is None:
            position = (number - low) / (high - low)
        else:
            position = (self.index(number) + 0.5) / self._finite()[0]
        return min(max(position, 0.0), 1.0)

    @property
    def is_logarithmic(self) -> bool:
        # Bounds that are equal in logarithm have an empty scale.
        return self.prior == "log-uniform" and math.log(self.low) < math.log(self.high)

    @property
    def edges(self) -> tuple[float, float]:
        """Ends of the scale: for a grid half a step beyond the bounds, so that all values have equal shares."""
        if self._grid is None:
            return self.low, self.high
        half = self._grid / 2
        return self.low - (min(half, self.low / 2) if self.prior == "log-uniform" else half), self.high + half

    # ------------------------------------------------------------ as text

    def to_json(self) -> dict[str, Any]:
        data = {"kind": self.KIND, "name": self.name, "low": self.low, "high": self.high, "prior": self.prior}
        # Both are written only if given, so that runs without them keep the bytes of their identity.
        data |= {key: getattr(self, key) for key in ("step", "likely") if getattr(self, key) is not None}
        return data | ({"condition": self.condition.to_json()} if self.condition else {})

    def __str__(self) -> str:
        likely = "" if self.likely is None else f", likely={self.likely}"
        return f"{_bounds_text(self)[:-1]}{likely})"


@dataclass(frozen=True, slots=True)
class Real(_Range):
    """Float from `low` to `high`, both included.

    >>> Real(1e-4, 1.0, "log-uniform", name="lr").from_unit(0.5)
    0.01...

    Args:
        low: lower bound.
        high: upper bound.
        prior: "uniform", or "log-uniform" to give every decade the same weight.
        name: name of the parameter, as the model's function calls it.
        step: if given, only low, low + step, ..., high are values.
        likely: value that is expected to be good; the prior is highest there and decreases on both sides
            (`nnlo_opt.core.space.values`).
        condition: condition on another parameter; None if the parameter is in every point.

    Raises:
        ConfigurationError: if an argument breaks these rules.
    """

    KIND = "real"
    NUMBER = "a finite number"
    _of_kind = float

    def _check_width(self) -> None:
        if not math.isfinite(self.high - self.low):
            raise ConfigurationError(
                f"The range of {self._title} must be a finite number. Received: {self.low} to {self.high}. "
                "Bring the bounds closer together."
            )

    def key(self, value: object) -> int | float:
        return _Range.key(self, value) if self.step is None else self.index(value)


@dataclass(frozen=True, slots=True)
class Integer(_Range):
    """Integer from `low` to `high`, both included.

    >>> Integer(1, 1000, "log-uniform", name="n_units").contains(1000)
    True

    It has the arguments of Real; "log-uniform" gives every decade about the same weight.

    Raises:
        ConfigurationError: if an argument breaks these rules.
    """

    low: int
    high: int

    KIND = "integer"
    NUMBER = "an integer"
    _of_kind = int

    def _is_of_kind(self, number: float) -> bool:
        return number == math.floor(number)

    def _check_width(self) -> None:
        if max(-self.low, self.high) > MAX_INTEGER:
            raise ConfigurationError(
                f"The bounds of {self._title} must lie within -2**53 and 2**53. "
                f"Received: {self.low} to {self.high}. Use a Real, or search its logarithm."
            )

    @property
    def _grid(self) -> float:
        return 1 if self.step is None else self.step

    @property
    def n_values(self) -> int:
        return (self.high - self.low) // int(self._grid) + 1

    def value_at(self, index: int) -> int:
        return self.low + index * int(self._grid)

    def _index_of(self, number: Any) -> int | None:
        if not is_number(number) or not self.low <= number <= self.high:
            return None
        index, rest = divmod(number - self.low, int(self._grid))
        return int(index) if rest == 0 else None


def _bounds_text(parameter: _Range) -> str:
    prior = "" if parameter.prior == "uniform" else f', "{parameter.prior}"'
    step = "" if parameter.step is None else f", step={parameter.step}"
    return f"{type(parameter).__name__}({parameter.low}, {parameter.high}{prior}{step})"


@dataclass(frozen=True, slots=True)
class _Choice:
    """Parameter with one of several values.

    Values differ if their JSON text differs: 1, 1.0 and True are three values.
    """

    categories: Sequence[Any]
    name: str = ""
    condition: When | None = field(default=None, kw_only=True)

    #: index of each value by its JSON text, and by type and value if it is of `_PLAIN`, which saves to write the text
    _indices: Mapping[object, int] = field(init=False, repr=False, compare=False)

    #: name of the class in JSON
    KIND: ClassVar[str]

    def __new__(cls, *_: object, **given: object) -> Self:
        check_arguments(cls, given)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        name = self.name
        check_condition(self.condition, name)
        if isinstance(self.categories, (str, bytes)) or not isinstance(self.categories, Iterable):
            raise ConfigurationError(
                f"The categories of {titled(name)} must be a list of values. Received: {shown(self.categories)}. "
                "Put them in square brackets."
            )
        if isinstance(self.categories, (set, frozenset)):
            raise ConfigurationError(
                f"The categories of {titled(name)} must have an order, which a set does not have. Received: "
                f"{shown(self.categories)}. Write it as {shown(sorted(self.categories, key=repr))}."
            )
        values = tuple(frozen(category, titled(name)) for category in self.categories)
        if len(values) < 2:
            raise ConfigurationError(
                f"There must be at least 2 categories in {titled(name)}. Received: {[thawed(v) for v in values]}. Set "
                "a single value in the model itself instead of searching it, or write it as a Constant."
            )
        repeated = [one for one, n in Counter(text(value) for value in values).items() if n > 1]
        if repeated:
            raise ConfigurationError(
                f"The categories of {titled(name)} must be different. Received: {repeated[0]} more than once. "
                "Remove the repetition."
            )
        self._settle(values)

    def _settle(self, values: tuple[Any, ...]) -> None:
        object.__setattr__(self, "categories", values)
        by_text = {text(value): index for index, value in enumerate(values)}
        by_value = {(type(value), value): index for index, value in enumerate(values) if type(value) in _PLAIN}
        object.__setattr__(self, "_indices", by_text | by_value)

    @property
    def n_values(self) -> int:
        return len(self.categories)

    def contains(self, value: object) -> bool:
        return self._index_of(value) is not None

    def from_unit(self, unit: float) -> Value:
        return self.value_at(min(math.floor(unit * self.n_values), self.n_values - 1))

    def to_unit(self, value: object) -> float:
        return (self.index(value) + 0.5) / self.n_values

    def value_at(self, index: int) -> Value:
        value: Value = thawed(self.categories[index])
        return value

    def index(self, value: object) -> int:
        index = self._index_of(value)
        if index is None:
            raise not_contained(self, value)
        return index

    def key(self, value: object) -> int:
        return self.index(value)

    def _index_of(self, value: object) -> int | None:
        if type(value) in _PLAIN and (index := self._indices.get((type(value), value))) is not None:
            return index
        try:
            return self._indices.get(text(thawed(plain(value))))
        except (TypeError, ValueError, RecursionError):
            return None

    def to_json(self) -> dict[str, Any]:
        data = {"kind": self.KIND, "name": self.name, "categories": [thawed(c) for c in self.categories]}
        return data | self._rest_of_json()

    def _rest_of_json(self) -> dict[str, Any]:
        paths = tuple_paths([written(category) for category in self.categories])
        data: dict[str, Any] = {TUPLES: paths} if paths else {}
        return data | ({"condition": self.condition.to_json()} if self.condition else {})

    def __str__(self) -> str:
        return f"{type(self).__name__}({[thawed(category) for category in self.categories]})"


@dataclass(frozen=True, slots=True)
class Categorical(_Choice):
    """Parameter with one of several values without an order, each equally likely.

    >>> Categorical(["relu", "tanh", None], name="activation").n_values
    3

    Args:
        categories: at least 2 values, of JSON's types; a category may also be a list or a tuple.
            Categories differ if their JSON text differs: 1, 1.0 and True are three categories.
        name: name of the parameter, as the model's function calls it.
        condition: condition on another parameter; None if the parameter is in every point.

    Raises:
        ConfigurationError: if an argument breaks these rules.
    """

    KIND = "categorical"


@dataclass(frozen=True, slots=True)
class Ordinal(_Choice):
    """Parameter with one of several ordered values, for example 16, 32, 64; neighbours are expected to perform alike.

    >>> Ordinal([16, 32, 64], name="batch", likely=32).value_at(0)
    16

    Args:
        categories: at least 2 values, in their order.
        name: name of the parameter, as the model's function calls it.
        likely: value that is drawn most often, with its neighbours (`nnlo_opt.core.space.values`); None if all values
            are equally likely, even if None is a category.
        condition: condition on another parameter; None if the parameter is in every point.

    Raises:
        ConfigurationError: if an argument breaks these rules.
    """

    likely: Any = field(default=None, kw_only=True)

    KIND = "ordinal"

    def __post_init__(self) -> None:
        _Choice.__post_init__(self)
        if self.likely is not None and self._index_of(self.likely) is None:
            raise ConfigurationError(
                f"The `likely` value of {titled(self.name, 'Ordinal')} must be one of its values. Received: "
                f"{self.likely!r}, not in {[thawed(category) for category in self.categories]}. Correct it."
            )
        if self.likely is not None:
            object.__setattr__(self, "likely", frozen(self.likely, titled(self.name)))

    def from_unit(self, unit: float) -> Value:
        position = unit if self.likely is None else position_of(unit, self.position(self.likely))
        return _Choice.from_unit(self, position)

    def to_unit(self, value: object) -> float:
        position = self.position(value)
        return position if self.likely is None else quantile_of(position, self.position(self.likely))

    def position(self, value: object) -> float:
        return _Choice.to_unit(self, value)

    def to_json(self) -> dict[str, Any]:
        return _Choice.to_json(self) | ({} if self.likely is None else {"likely": thawed(self.likely)})

    def __str__(self) -> str:
        likely = "" if self.likely is None else f", likely={thawed(self.likely)!r}"
        return f"Ordinal({[thawed(category) for category in self.categories]}{likely})"


@dataclass(frozen=True, slots=True, init=False)
class Constant(_Choice):
    """Parameter with a single value, as `--fix` makes it: part of every point that its condition allows.

    >>> Space([Integer(1, 3, name="n"), Constant([3, 3], name="kernel")]).middle()
    {'n': 2, 'kernel': [3, 3]}

    Args:
        value: value of JSON's types.
        name: name of the parameter, as the model's function calls it.
        condition: condition on another parameter; None if the parameter is in every point.

    Raises:
        ConfigurationError: if an argument breaks these rules.
    """

    KIND = "constant"

    def __init__(self, value: Any, name: str = "", *, condition: When | None = None) -> None:
        check_condition(condition, name)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "condition", condition)
        self._settle((frozen(value, titled(name)),))

    @property
    def value(self) -> Value:
        return self.value_at(0)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.KIND, "name": self.name, "value": self.value} | self._rest_of_json()

    def __str__(self) -> str:
        return f"Constant({self.value!r})"


class Parameter(Protocol):
    """Named axis of a search space."""

    @property
    def name(self) -> str: ...

    @property
    def condition(self) -> When | None:
        """Condition under which the parameter is in a point; None if it is in every point."""

    @property
    def n_values(self) -> int | None:
        """Number of values; None if the values are continuous."""

    def contains(self, value: object) -> bool: ...

    def from_unit(self, unit: float) -> Value:
        """Return the value at the quantile `unit` (0 to 1, both included) of the prior."""

    def to_unit(self, value: object) -> float:
        """Return the quantile of `value`, 0 to 1; `from_unit` returns `value` again, except for rounding of a Real."""

    def value_at(self, index: int) -> Value:
        """Return value number `index` (0 to `n_values` - 1); ValueError if the values are continuous."""

    def index(self, value: object) -> int:
        """Return the number of `value`; ValueError if the values are continuous or `value` is not allowed."""

    def key(self, value: object) -> int | float:
        """Return a number that is equal for two values if and only if they are the same; ValueError if not allowed."""

    def to_json(self) -> dict[str, Any]: ...


#: all kinds of parameters
KINDS = (Real, Integer, Categorical, Ordinal, Constant)
_BY_NAME: dict[str, Callable[..., Parameter]] = {kind.KIND: kind for kind in KINDS}


def parameter_from_json(data: dict[str, Any]) -> Parameter:
    """Return the parameter that `to_json` wrote; ConfigurationError if `data` has another form."""
    try:
        fields = dict(data)
        kind, condition = fields.pop("kind"), When.from_json(fields.pop("condition", None))
        if (paths := fields.pop(TUPLES, None)) is not None:
            if "categories" in fields:
                fields["categories"] = with_tuples(fields["categories"], paths)
            else:
                (fields["value"],) = with_tuples([fields["value"]], paths)
        if kind in _BY_NAME:
            return _BY_NAME[kind](**fields, condition=condition)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"A parameter must be in the form that `to_json` writes. Received: {data!r} ({error!r})."
        ) from error
    kinds = ", ".join(f'"{known}"' for known in _BY_NAME)
    raise ConfigurationError(f"The kind of a parameter must be one of {kinds}. Received: {kind!r}. Correct the entry.")
