"""The search space: its parameters, and points of it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.space.parameters import Parameter, Value, parameter_from_json

#: a value for every parameter of a space, by name; plain data that JSON keeps
Point = dict[str, Value]
#: a hashable stand-in for a point, equal exactly when two points are the same
PointKey = tuple[int | float, ...]

#: parameters so named are training options (`train.batch` is `--batch`), others are arguments of the model's function
TRAIN_PREFIX = "train."


@dataclass(frozen=True, slots=True)
class Space:
    """Some parameters, in the order given; at least one, no name twice."""

    parameters: tuple[Parameter, ...]

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        object.__setattr__(self, "parameters", tuple(parameters))
        if not self.parameters:
            raise ConfigurationError(
                "A search space must have at least one parameter. Received: none. Add a Real, Integer or Categorical."
            )
        for index, name in enumerate(self.names):
            if name in self.names[:index]:
                raise ConfigurationError(
                    f"The parameters of a search space must have different names. Received: `{name}` more than once. "
                    "Rename one of them."
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def train_names(self) -> tuple[str, ...]:
        """Names of the parameters that are training options, with their prefix."""
        return tuple(name for name in self.names if name.startswith(TRAIN_PREFIX))

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the parameters that the model's function receives."""
        return tuple(name for name in self.names if not name.startswith(TRAIN_PREFIX))

    @property
    def n_points(self) -> int | None:
        """How many points there are; None when a parameter is continuous."""
        sizes = [parameter.n_values for parameter in self.parameters]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def contains(self, point: Point) -> bool:
        """Whether `point` has an allowed value for every parameter, and nothing else."""
        return point.keys() == set(self.names) and all(p.contains(point[p.name]) for p in self.parameters)

    def key(self, point: Point) -> PointKey:
        """The hashable identity of a point of this space; ValueError naming the first value not allowed."""
        return tuple(parameter.key(point[parameter.name]) for parameter in self.parameters)

    def sample(self, rng: np.random.Generator) -> Point:
        """Draw one point by the priors."""
        return {parameter.name: parameter.sample(rng) for parameter in self.parameters}

    def middle(self) -> Point:
        """The point at the median of every prior."""
        return self.from_unit([0.5] * len(self.parameters))

    def from_unit(self, units: Iterable[float]) -> Point:
        """The point at the given quantiles (0 to 1), one for each parameter."""
        return {p.name: p.from_unit(unit) for p, unit in zip(self.parameters, units, strict=True)}

    def point_at(self, index: int) -> Point:
        """Point number `index` (0 to `n_points` - 1) of a finite space; ValueError when it is not finite."""
        point: Point = {}
        for parameter in reversed(self.parameters):
            index, digit = divmod(index, parameter.n_values or 1)
            point[parameter.name] = parameter.value_at(digit)
        return {name: point[name] for name in self.names}

    def iter_points(self) -> Iterator[Point]:
        """All points of a finite space, the last parameter running fastest; ValueError when it is not finite."""
        n_points = self.n_points
        if n_points is None:
            raise ValueError("Only a finite space can be enumerated; this one has a continuous parameter.")
        # Values anew for every point, as a category that is a list must not be shared between two of them.
        for digits in product(*(range(parameter.n_values or 1) for parameter in self.parameters)):
            yield {p.name: p.value_at(digit) for p, digit in zip(self.parameters, digits, strict=True)}

    def difference(self, other: "Space") -> str | None:
        """How the space of today, `other`, differs from this one: a phrase on the first parameter that does, else None.

        The order of the parameters is no difference: the points are the same.
        """
        mine = {parameter.name: parameter for parameter in self.parameters}
        theirs = {parameter.name: parameter for parameter in other.parameters}
        for name, parameter in mine.items():
            if name not in theirs:
                return f"parameter `{name}` was {parameter} and is now missing"
            if str(theirs[name]) != str(parameter):  # == would take the category True for 1
                return f"parameter `{name}` was {parameter} and is now {theirs[name]}"
        for name, parameter in theirs.items():
            if name not in mine:
                return f"parameter `{name}` is new: {parameter}"
        return None

    def to_json(self) -> dict[str, Any]:
        return {"parameters": [parameter.to_json() for parameter in self.parameters]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Space":
        """Rebuild what `to_json` wrote; ConfigurationError when `data` is no such thing."""
        entries = data.get("parameters") if isinstance(data, dict) else None
        if not isinstance(entries, list):
            raise ConfigurationError(f"A search space must be written as `to_json` writes it. Received: {data!r}.")
        return cls(parameter_from_json(entry) for entry in entries)
