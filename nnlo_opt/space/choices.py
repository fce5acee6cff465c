"""Parameters with listed values: Categorical, Ordinal, Constant."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.space.conditions import When, check_condition
from nnlo_opt.space.likely import position_of, quantile_of
from nnlo_opt.space.values import Value, frozen, not_contained, plain, text, thawed


@dataclass(frozen=True, slots=True)
class _Choice:
    """Parameter with one of several values.

    Values differ if their JSON text differs: 1, 1.0 and True are three values.
    """

    categories: tuple[Any, ...]
    name: str
    condition: When | None

    #: name of the class in JSON
    KIND: ClassVar[str]

    def __init__(self, categories: Iterable[Any], name: str = "", *, condition: When | None = None) -> None:
        check_condition(condition, name)
        if isinstance(categories, (str, bytes)) or not isinstance(categories, Iterable):
            raise ConfigurationError(
                f"The categories of parameter `{name}` must be a list of values. Received: {categories!r}. "
                "Put them in square brackets."
            )
        values = tuple(frozen(category, name) for category in categories)
        if len(values) < 2:
            raise ConfigurationError(
                f"Parameter `{name}` must have at least 2 categories. Received: {[thawed(v) for v in values]}. "
                "Give a single value to the model itself instead of searching it, or write it as a Constant."
            )
        texts = [text(value) for value in values]
        for index, repeated in enumerate(texts):
            if repeated in texts[:index]:
                raise ConfigurationError(
                    f"The categories of parameter `{name}` must be different. Received: {repeated} more than once. "
                    "Remove the repetition."
                )
        object.__setattr__(self, "categories", values)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "condition", condition)

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
        try:
            wanted = text(thawed(plain(value)))
        except (TypeError, ValueError):
            return None
        return next((i for i, category in enumerate(self.categories) if text(category) == wanted), None)

    def to_json(self) -> dict[str, Any]:
        data = {"kind": self.KIND, "name": self.name, "categories": [thawed(c) for c in self.categories]}
        return data | ({"condition": self.condition.to_json()} if self.condition else {})

    def __str__(self) -> str:
        return f"{type(self).__name__}({[thawed(category) for category in self.categories]})"


@dataclass(frozen=True, slots=True, init=False)
class Categorical(_Choice):
    """Parameter with one of several values without an order, each equally likely.

    Args:
        categories: at least 2 values, of JSON's types; a category that is a list or a tuple arrives as a list.
            Categories
            differ if their JSON text differs: 1, 1.0 and True are three categories.
        name: name of the parameter, as the model's function calls it.
        condition: condition on another parameter; None if the parameter is in every point.

    Raises:
        ConfigurationError: if an argument breaks these rules.
    """

    KIND = "categorical"


@dataclass(frozen=True, slots=True, init=False)
class Ordinal(_Choice):
    """Parameter with one of several ordered values, for example 16, 32, 64; neighbours are expected to perform alike.

    Args:
        categories: at least 2 values, in their order.
        name: name of the parameter, as the model's function calls it.
        likely: value that is drawn most often, with its neighbours (`nnlo_opt.space.likely`); None if all values are
            equally likely, even if None is a category.
        condition: condition on another parameter; None if the parameter is in every point.

    Raises:
        ConfigurationError: if an argument breaks these rules.
    """

    likely: Any

    KIND = "ordinal"

    def __init__(
        self, categories: Iterable[Any], name: str = "", *, likely: Any = None, condition: When | None = None
    ) -> None:
        _Choice.__init__(self, categories, name, condition=condition)
        if likely is not None and self._index_of(likely) is None:
            raise ConfigurationError(
                f"The `likely` value of Ordinal `{name}` must be one of its values. Received: {likely!r}, not in "
                f"{[thawed(category) for category in self.categories]}. Correct it."
            )
        object.__setattr__(self, "likely", None if likely is None else frozen(likely, name))

    def from_unit(self, unit: float) -> Value:
        position = unit if self.likely is None else position_of(unit, self._position(self.likely))
        return _Choice.from_unit(self, position)

    def to_unit(self, value: object) -> float:
        position = self._position(value)
        return position if self.likely is None else quantile_of(position, self._position(self.likely))

    def _position(self, value: object) -> float:
        return _Choice.to_unit(self, value)

    def to_json(self) -> dict[str, Any]:
        return _Choice.to_json(self) | ({} if self.likely is None else {"likely": thawed(self.likely)})

    def __str__(self) -> str:
        likely = "" if self.likely is None else f", likely={thawed(self.likely)!r}"
        return f"Ordinal({[thawed(category) for category in self.categories]}{likely})"


@dataclass(frozen=True, slots=True, init=False)
class Constant(_Choice):
    """Parameter with a single value, as `--fix` makes it: part of every point that its condition allows.

    Args:
        value: value of JSON's types.
        name: name of the parameter, as the model's function calls it.
        condition: condition on another parameter; None if the parameter is in every point.
    """

    KIND = "constant"

    def __init__(self, value: Any, name: str = "", *, condition: When | None = None) -> None:
        check_condition(condition, name)
        object.__setattr__(self, "categories", (frozen(value, name),))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "condition", condition)

    @property
    def value(self) -> Value:
        return self.value_at(0)

    def to_json(self) -> dict[str, Any]:
        data = {"kind": self.KIND, "name": self.name, "value": self.value}
        return data | ({"condition": self.condition.to_json()} if self.condition else {})

    def __str__(self) -> str:
        return f"Constant({self.value!r})"
