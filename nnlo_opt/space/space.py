"""The search space: its parameters, their conditions, the constraint, and points of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.space.conditions import parents_first
from nnlo_opt.space.constraint import CONSTRAINT_NAME, Constraint
from nnlo_opt.space.numbering import Tree, count, points_at, trees
from nnlo_opt.space.parameters import Parameter, Value, parameter_from_json
from nnlo_opt.space.values import thawed

#: a value for every active parameter of a space, by name; plain data that JSON keeps
Point = dict[str, Value]
#: a hashable stand-in for a point, equal exactly when two points are the same; None for a parameter that is not in it
PointKey = tuple[int | float | None, ...]

#: parameters so named are training options (`train.batch` is `--batch`), others are arguments of the model's function
TRAIN_PREFIX = "train."

#: a finite space of so many points can be walked to find those that the constraint accepts
MOST_WALKED = 100_000
#: of any other the constraint must accept so many of so many points drawn
N_ACCEPTED, N_DRAWN = 10, 10_000
#: points drawn for one that the constraint accepts: with a share of one in a thousand, all fail once in e^100 times
MOST_DRAWS = 100_000


@dataclass(frozen=True, slots=True)
class Space:
    """Some parameters, in the order given; at least one, no name twice.

    A parameter is *active* in a point whose values meet its condition. A point has a value for every active parameter
    and for no other. The constraint says which points may be tried; it can be asked only in the process that has
    executed the user's module, and everything here but `is_feasible`, `sample` and `iter_points` does without it.
    """

    parameters: tuple[Parameter, ...]
    #: which points may be tried; None: all
    constraint: Constraint | None
    #: rows of `parameters`, parents before what depends on them
    _order: tuple[int, ...] = field(compare=False, repr=False)
    #: for each row: the parent's name and the keys of the values that make it active; None without a condition
    _gates: tuple[tuple[str, frozenset[int | float]] | None, ...] = field(compare=False, repr=False)
    #: names of the parameters that others depend on
    _parents: frozenset[str] = field(compare=False, repr=False)
    #: the parameters as trees; None when one is continuous
    _trees: tuple[Tree, ...] | None = field(compare=False, repr=False)

    def __init__(self, parameters: Iterable[Parameter], constraint: Constraint | None = None) -> None:
        """ConfigurationError for no parameters, a name that comes twice, and conditions that cannot hold."""
        object.__setattr__(self, "parameters", tuple(parameters))
        object.__setattr__(self, "constraint", constraint)
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
        object.__setattr__(self, "_order", parents_first(self.parameters))
        by_name = {parameter.name: parameter for parameter in self.parameters}
        gates: list[tuple[str, frozenset[int | float]] | None] = []
        for parameter in self.parameters:
            condition = parameter.condition
            if condition is None:
                gates.append(None)
            else:
                parent = by_name[condition.parent]
                gates.append((parent.name, frozenset(parent.key(thawed(value)) for value in condition.values)))
        object.__setattr__(self, "_gates", tuple(gates))
        object.__setattr__(self, "_parents", frozenset(gate[0] for gate in gates if gate is not None))
        object.__setattr__(self, "_trees", trees(self.parameters))

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

    def __getitem__(self, name: str) -> Parameter:
        """The parameter `name`; KeyError where there is none."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    # ------------------------------------------------------------ points

    def contains(self, point: Point) -> bool:
        """Whether `point` has an allowed value for every active parameter, and nothing else; feasible or not."""
        if not point.keys() <= set(self.names):
            return False
        try:
            self.key(point)
        except ValueError:
            return False
        return True

    def key(self, point: Point) -> PointKey:
        """The hashable identity of a point of this space; ValueError naming the first value that is not right."""
        keys: list[int | float | None] = [None] * len(self.parameters)
        by_name: dict[str, int | float] = {}
        for row in self._order:
            parameter = self.parameters[row]
            if self._is_active(row, by_name):
                if parameter.name not in point:
                    raise ValueError(f"A point must have a value for parameter `{parameter.name}`. Received: {point}.")
                keys[row] = by_name[parameter.name] = parameter.key(point[parameter.name])
            elif parameter.name in point:
                raise ValueError(
                    f"A point must have parameter `{parameter.name}` only where {parameter.condition}. "
                    f"Received: {point}."
                )
        return tuple(keys)

    def _is_active(self, row: int, keys: Mapping[str, int | float]) -> bool:
        """Whether the parameter `row` belongs to a point, of which `keys` has those of its active ancestors."""
        gate = self._gates[row]
        return gate is None or (gate[0] in keys and keys[gate[0]] in gate[1])

    def from_unit(self, units: Iterable[float]) -> Point:
        """The point at the given quantiles (0 to 1), one for each parameter; those of inactive ones do not matter."""
        quantiles = list(units)
        if len(quantiles) != len(self.parameters):
            raise ValueError(f"A point needs {len(self.parameters)} quantiles. Received: {len(quantiles)}.")
        keys: dict[str, int | float] = {}
        values: dict[str, Value] = {}
        for row in self._order:
            if self._is_active(row, keys):
                parameter = self.parameters[row]
                value = values[parameter.name] = parameter.from_unit(quantiles[row])
                if parameter.name in self._parents:
                    keys[parameter.name] = parameter.key(value)
        return self._in_order(values)

    def to_unit(self, point: Point) -> list[float]:
        """The quantiles of `point`, one for each parameter, 0.5 for those not in it; `from_unit` leads back."""
        return [p.to_unit(point[p.name]) if p.name in point else 0.5 for p in self.parameters]

    def _in_order(self, values: Point) -> Point:
        return {name: values[name] for name in self.names if name in values}

    def middle(self) -> Point:
        """The point at the median of every prior, or one that the constraint accepts if it does not accept that."""
        if self.constraint is None or self.constraint.example is None:
            return self.from_unit([0.5] * len(self.parameters))
        return {name: thawed(value) for name, value in self.constraint.example.items()}

    # ------------------------------------------------------------ feasible points

    def is_feasible(self, point: Point) -> bool:
        """Whether the constraint accepts `point`; True without one. ConfigurationError where it cannot say."""
        return self.constraint is None or self.constraint.accepts(point)

    def draw(self, rng: np.random.Generator) -> Point:
        """Draw one point by the priors, feasible or not."""
        return self.from_unit(rng.random(len(self.parameters)).tolist())

    def sample(self, rng: np.random.Generator) -> Point:
        """Draw one feasible point by the priors; ConfigurationError when the constraint refuses `MOST_DRAWS` points."""
        for _ in range(MOST_DRAWS):
            point = self.draw(rng)
            if self.is_feasible(point):
                return point
        raise self.refusal(f"all of {MOST_DRAWS:,} points drawn were refused")

    def refusal(self, received: str) -> ConfigurationError:
        """What to raise when the constraint leaves too little."""
        source = self.constraint.source if self.constraint else "?"
        return ConfigurationError(
            f"`{CONSTRAINT_NAME}` of {source} must accept some points, in a large space one in a thousand. "
            f"Received: {received}. Loosen it, or narrow the ranges instead."
        )

    def constrained(self, constraint: Constraint) -> "Space":
        """This space with `constraint`, whose function is here; ConfigurationError where it accepts too little."""
        space = Space(self.parameters, constraint)
        return Space(self.parameters, replace(constraint, example=space._first_feasible()))

    def _first_feasible(self) -> Point:
        middle = self.from_unit([0.5] * len(self.parameters))
        example = middle if self.is_feasible(middle) else None
        if self.can_be_walked:
            example = example or next(self.iter_points(), None)
            if example is None:
                raise self.refusal(f"all {self.n_points} points were refused")
            return example
        rng = np.random.default_rng(0)
        n_accepted = 0
        for _ in range(N_DRAWN):
            point = self.draw(rng)
            if self.is_feasible(point):
                example = example or point
                n_accepted += 1
                if n_accepted == N_ACCEPTED:
                    return example
        raise self.refusal(f"{n_accepted} of {N_DRAWN:,} points drawn were accepted")

    # ------------------------------------------------------------ finite spaces

    @property
    def n_points(self) -> int | None:
        """How many different points there are, whatever the constraint says; None when a parameter is continuous."""
        return None if self._trees is None else count(self._trees)

    @property
    def can_be_walked(self) -> bool:
        """Whether there are so few points that each can be looked at."""
        n_points = self.n_points
        return n_points is not None and n_points <= MOST_WALKED

    def point_at(self, index: int) -> Point:
        """Point number `index` (0 to `n_points` - 1) of a finite space, feasible or not; ValueError when not finite."""
        if self._trees is None:
            raise ValueError("Only a finite space can be enumerated; this one has a continuous parameter.")
        return self._in_order(points_at(self._trees, index))

    def iter_points(self) -> Iterator[Point]:
        """All feasible points of a finite space, the last parameter running fastest; ValueError when not finite."""
        if self._trees is None:
            raise ValueError("Only a finite space can be enumerated; this one has a continuous parameter.")
        return (point for point in map(self.point_at, range(count(self._trees))) if self.is_feasible(point))

    # ------------------------------------------------------------ as text

    def difference(self, other: "Space") -> str | None:
        """How the space of today, `other`, differs from this one: a phrase on the first parameter that does, else None.

        The order of the parameters is no difference: the points are the same.
        """
        mine = {parameter.name: described(parameter) for parameter in self.parameters}
        theirs = {parameter.name: described(parameter) for parameter in other.parameters}
        for name, text in mine.items():
            if name not in theirs:
                return f"parameter `{name}` was {text} and is now missing"
            if theirs[name] != text:  # == of parameters would take the category True for 1
                return f"parameter `{name}` was {text} and is now {theirs[name]}"
        for name, text in theirs.items():
            if name not in mine:
                return f"parameter `{name}` is new: {text}"
        if self.constraint != other.constraint:
            return f"the constraint was {self.constraint or 'none'} and is now {other.constraint or 'none'}"
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain data; of the constraint all but its function."""
        data: dict[str, Any] = {"parameters": [parameter.to_json() for parameter in self.parameters]}
        return data | ({"constraint": self.constraint.to_json()} if self.constraint else {})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Space":
        """Rebuild what `to_json` wrote; ConfigurationError when `data` is no such thing."""
        entries = data.get("parameters") if isinstance(data, dict) else None
        if not isinstance(entries, list):
            raise ConfigurationError(f"A search space must be written as `to_json` writes it. Received: {data!r}.")
        constraint = Constraint.from_json(data["constraint"]) if "constraint" in data else None
        return cls((parameter_from_json(entry) for entry in entries), constraint)


def described(parameter: Parameter) -> str:
    """A parameter with its condition, as text that differs when anything does."""
    return str(parameter) if parameter.condition is None else f"{parameter} when {parameter.condition}"
