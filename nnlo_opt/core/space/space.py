"""Search space: parameters, conditions and a constraint."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.space.conditions import When
from nnlo_opt.core.space.constraint import CONSTRAINT_NAME, Constraint
from nnlo_opt.core.space.entries import parameters_of
from nnlo_opt.core.space.numbering import Tree, count, points_at, trees
from nnlo_opt.core.space.parameters import Integer, Ordinal, Parameter, Real, parameter_from_json
from nnlo_opt.core.space.tuples import TUPLES, Tuples
from nnlo_opt.core.space.values import Value, check_name, thawed

#: name -> value of every active parameter of a space; plain JSON data
Point = dict[str, Value]
#: hashable key of a point, equal for equal points only; None for a parameter that is not in the point
PointKey = tuple[int | float | None, ...]

#: prefix of training options (`train.batch` is `--batch`); other parameters are passed to the model's function
TRAIN_PREFIX = "train."

#: a finite space with at most this many points can be searched exhaustively for feasible points
MOST_WALKED = 100_000
#: in a larger space, the constraint must accept N_ACCEPTED of N_DRAWN random points
N_ACCEPTED, N_DRAWN = 10, 10_000
#: random points drawn to find a feasible one: if one in a thousand is feasible, all fail with probability e^-100
MOST_DRAWS = 100_000


@dataclass(frozen=True, slots=True)
class Space:
    """Search space: parameters, in the given order, and a constraint.

    >>> space = Space([Real(0, 1, name="x"), Integer(1, 3, name="n")])
    >>> space.middle(), space.contains({"x": 0.5, "n": 4})
    ({'x': 0.5, 'n': 2}, False)

    A parameter is *active* in a point if the values of the point meet the parameter's condition. A point has a value
    for every active parameter and for no other parameter. Only a process that has imported the user's module can
    evaluate the constraint; `is_feasible`, `sample` and `iter_points` need it, the other methods do not.

    Args:
        parameters: at least one: a list of parameters with different names, or a dictionary name -> parameter.
        constraint: function that returns True for a point that may be tried; None if all may.

    Raises:
        ConfigurationError: no parameters, a parameter without a name, a repeated name, a condition that can never hold,
            or a constraint that accepts too few points.
    """

    parameters: tuple[Parameter, ...]
    #: constraint on the points to try; None if there is none
    constraint: Constraint | None
    #: rows of `parameters`, parents before their dependents
    _order: tuple[int, ...] = field(compare=False, repr=False)
    #: for each row, the parent and the keys of its values that activate the row; None if it is unconditional
    _gates: tuple[tuple[str, frozenset[int | float]] | None, ...] = field(compare=False, repr=False)
    #: names of the parameters on which conditions depend
    _parents: frozenset[str] = field(compare=False, repr=False)
    #: the parameters as trees; None if one is continuous
    _trees: tuple[Tree, ...] | None = field(compare=False, repr=False)
    #: categories that the user wrote as tuples
    _tuples: Tuples = field(compare=False, repr=False)

    def __init__(
        self,
        parameters: Iterable[Parameter] | Mapping[str, Parameter],
        constraint: Constraint | Callable[[Point], bool] | None = None,
    ) -> None:
        if constraint is not None and not isinstance(constraint, Constraint):
            constraint = Constraint.of(constraint, "the argument `constraint`")
        object.__setattr__(self, "parameters", parameters_of(parameters))
        object.__setattr__(self, "constraint", constraint)
        if not self.parameters:
            raise ConfigurationError(
                "A search space must have at least one parameter. Received: none. Add a Real, Integer or Categorical."
            )
        for parameter in self.parameters:
            check_name(parameter.name, type(parameter).__name__)
        for index, name in enumerate(self.names):
            if name in self.names[:index]:
                raise ConfigurationError(
                    f"The parameters of a search space must have different names. Received: `{name}` more than once. "
                    "Rename one of them."
                )
        object.__setattr__(self, "_order", parents_first(self.parameters))
        by_name = {parameter.name: parameter for parameter in self.parameters}
        gates = [
            (c.parent, frozenset(by_name[c.parent].key(thawed(value)) for value in c.values))
            if (c := p.condition)
            else None
            for p in self.parameters
        ]
        object.__setattr__(self, "_gates", tuple(gates))
        object.__setattr__(self, "_parents", frozenset(gate[0] for gate in gates if gate is not None))
        object.__setattr__(self, "_trees", trees(self.parameters))
        object.__setattr__(self, "_tuples", Tuples(parameter.to_json() for parameter in self.parameters))
        if constraint is not None and constraint.function is not None and constraint.example is None:
            object.__setattr__(self, "constraint", replace(constraint, example=self._first_feasible()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def train_names(self) -> tuple[str, ...]:
        """Names of the parameters that are training options, with their prefix."""
        return tuple(name for name in self.names if name.startswith(TRAIN_PREFIX))

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the parameters that are passed to the model's function."""
        return tuple(name for name in self.names if not name.startswith(TRAIN_PREFIX))

    @property
    def without_likely(self) -> "Space":
        """This space without likely values: it has the same points, and their quantiles are positions."""
        if all(getattr(parameter, "likely", None) is None for parameter in self.parameters):
            return self
        plain = [replace(p, likely=None) if isinstance(p, Real | Integer | Ordinal) else p for p in self.parameters]
        return Space(plain, self.constraint)

    def __getitem__(self, name: str) -> Parameter:
        """Return the parameter `name`; KeyError if there is none."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    # ------------------------------------------------------------ points

    def contains(self, point: Point) -> bool:
        """Return True if `point` has allowed values for exactly the active parameters; it may be infeasible."""
        with suppress(ValueError):
            self.key(point)
            return point.keys() <= set(self.names)
        return False

    def key(self, point: Point) -> PointKey:
        """Return the hashable key of a point of this space; ValueError names the first invalid value."""
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
                    f"A point must have parameter `{parameter.name}` only if {parameter.condition}. Received: {point}."
                )
        return tuple(keys)

    def _is_active(self, row: int, keys: Mapping[str, int | float]) -> bool:
        """Return True if the parameter in `row` is in a point, given the `keys` of its active ancestors."""
        gate = self._gates[row]
        return gate is None or (gate[0] in keys and keys[gate[0]] in gate[1])

    def from_unit(self, units: Iterable[float]) -> Point:
        """Return the point at the given quantiles (0 to 1), one for each parameter.

        Inactive parameters ignore theirs.
        """
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
        """Return the quantiles of `point`, one for each parameter; 0.5 for an absent one.

        The inverse of `from_unit`.
        """
        return [p.to_unit(point[p.name]) if p.name in point else 0.5 for p in self.parameters]

    def _in_order(self, values: Point) -> Point:
        return {name: values[name] for name in self.names if name in values}

    def middle(self) -> Point:
        """Return the point at the median of every prior.

        If that point is infeasible, return a feasible one.
        """
        if self.constraint is None or self.constraint.example is None:
            return self.from_unit([0.5] * len(self.parameters))
        return {name: thawed(value) for name, value in self.constraint.example.items()}

    # ------------------------------------------------------------ feasible points

    def is_feasible(self, point: Point) -> bool:
        """Return True if the constraint accepts `point` or there is none; ConfigurationError if it fails."""
        return self.constraint is None or self.constraint.accepts(self.given(point))

    def given(self, point: Point) -> dict[str, Any]:
        """Return a copy of a point for user code, with tuples where the user wrote tuples."""
        return self._tuples.given(point)

    def draw(self, rng: np.random.Generator) -> Point:
        """Draw one point from the priors, feasible or not."""
        return self.from_unit(rng.random(len(self.parameters)).tolist())

    def sample(self, rng: np.random.Generator) -> Point:
        """Draw one feasible point from the priors; ConfigurationError if `MOST_DRAWS` points are infeasible."""
        for _ in range(MOST_DRAWS):
            point = self.draw(rng)
            if self.is_feasible(point):
                return point
        raise self.refusal(f"all of {MOST_DRAWS:,} points drawn were refused")

    def refusal(self, received: str) -> ConfigurationError:
        """Return the error to raise if the constraint accepts too few points."""
        source = self.constraint.source if self.constraint else "?"
        return ConfigurationError(
            f"`{CONSTRAINT_NAME}` of {source} must accept some points, in a large space one in a thousand. "
            f"Received: {received}. Loosen it, or narrow the ranges instead."
        )

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
        """Number of different points, feasible or not; None if a parameter is continuous."""
        return None if self._trees is None else count(self._trees)

    @property
    def can_be_walked(self) -> bool:
        """True if the space is small enough to enumerate."""
        n_points = self.n_points
        return n_points is not None and n_points <= MOST_WALKED

    def point_at(self, index: int) -> Point:
        """Return point number `index` (0 to `n_points` - 1) of a finite space, feasible or not; else ValueError."""
        if self._trees is None:
            raise ValueError("Only a finite space can be enumerated; this one has a continuous parameter.")
        return self._in_order(points_at(self._trees, index))

    def iter_points(self) -> Iterator[Point]:
        """Yield all feasible points of a finite space; the last parameter varies fastest; ValueError if not finite."""
        if self._trees is None:
            raise ValueError("Only a finite space can be enumerated; this one has a continuous parameter.")
        return (point for point in map(self.point_at, range(count(self._trees))) if self.is_feasible(point))

    # ------------------------------------------------------------ as text

    def difference(self, other: "Space") -> str | None:
        """Describe the first difference to the space `other` of this start; None if there is none.

        The order of the parameters does not matter, because the points are the same.
        """
        mine = {parameter.name: described(parameter) for parameter in self.parameters}
        theirs = {parameter.name: described(parameter) for parameter in other.parameters}
        for name, text in mine.items():
            if name not in theirs:
                return f"parameter `{name}` was {text} and is now missing"
            if theirs[name] != text:  # == of parameters does not distinguish the category True from 1
                return f"parameter `{name}` was {text} and is now {theirs[name]}"
        for name, text in theirs.items():
            if name not in mine:
                return f"parameter `{name}` is new: {text}"
        if self.constraint != other.constraint:
            return f"the constraint was {self.constraint or 'none'} and is now {other.constraint or 'none'}"
        return None

    @property
    def with_tuples(self) -> list[dict[str, Any]]:
        """JSON of the parameters with tuples among their categories."""
        return [data for data in self.to_json()["parameters"] if TUPLES in data]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the function of the constraint."""
        data: dict[str, Any] = {"parameters": [parameter.to_json() for parameter in self.parameters]}
        return data | ({"constraint": self.constraint.to_json()} if self.constraint else {})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Space":
        """Return the space that `to_json` wrote; ConfigurationError if `data` has another form."""
        rule = "A search space must be in the form that `to_json` writes. Received"
        try:
            entries = data.get("parameters") if isinstance(data, dict) else None
            if not isinstance(entries, list):
                raise ConfigurationError(f"{rule}: {data!r}.")
            constraint = Constraint.from_json(data["constraint"]) if "constraint" in data else None
            return cls((parameter_from_json(entry) for entry in entries), constraint)
        except RecursionError as error:
            raise ConfigurationError(f"{rule}: data nested in too many levels.") from error


def described(parameter: Parameter) -> str:
    """Return a parameter with its condition as text; different parameters have different texts."""
    return str(parameter) if parameter.condition is None else f"{parameter} when {parameter.condition}"


def parents_first(parameters: Sequence[Parameter]) -> tuple[int, ...]:
    """Return the rows of `parameters` sorted so that parents precede their dependents; otherwise in the given order.

    Raises:
        ConfigurationError: a condition names an unknown or continuous parameter or a value that the parameter cannot
            have, or conditions form a circle.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    for parameter in parameters:
        if parameter.condition is not None:
            _check_parent(parameter.name, parameter.condition, by_name)
    rows = {parameter.name: row for row, parameter in enumerate(parameters)}
    order: dict[int, None] = {}
    for parameter in parameters:
        chain = [parameter.name]
        while (condition := by_name[chain[-1]].condition) is not None:
            if condition.parent in chain:
                names = (*chain[chain.index(condition.parent) :], condition.parent)
                circle = " under ".join(f"`{name}`" for name in names)
                raise ConfigurationError(
                    f"Conditions must not form a cycle. Received: {circle}. Remove one of these conditions."
                )
            chain.append(condition.parent)
        order.update(dict.fromkeys(rows[name] for name in reversed(chain)))
    return tuple(order)


def _check_parent(name: str, condition: When, by_name: dict[str, Parameter]) -> None:
    parent = by_name.get(condition.parent)
    if parent is None:
        hint = did_you_mean(condition.parent, by_name) or f" Its parameters: {', '.join(by_name)}."
        raise ConfigurationError(
            f"The condition of parameter `{name}` must name a parameter of the same search space. "
            f"Received: `{condition.parent}`.{hint}"
        )
    if parent.n_values is None:
        raise ConfigurationError(
            f"The condition of parameter `{name}` must be on a parameter of finitely many values. "
            f"Received: `{parent.name}`, a {parent}. Give it a `step`, or use another parameter."
        )
    for value in condition.values:
        if not parent.contains(thawed(value)):
            remedy = "Correct the value"
            if isinstance(value, tuple) and all(map(parent.contains, value)):
                remedy = f"Write it as When({', '.join(map(repr, (parent.name, *value)))})"
            raise ConfigurationError(
                f"The condition of parameter `{name}` must name values that `{parent.name}` can have, in {parent}. "
                f"Received: {thawed(value)!r}. {remedy}."
            )
