"""Points tried first: start points and enqueued points of the user, then the point of all likely values."""

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.search.base import History, SearchAlgorithm
from nnlo_opt.core.search.random import may_be_tried
from nnlo_opt.core.space.fixing import value_of
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.space.values import thawed
from nnlo_opt.core.trials.trial import TrialState

#: points drawn to complete a partial point if the algorithm's suggestion does not fit
_N_DRAWS = 100
#: origins of suggestions that do not come from the algorithm
ENQUEUED, START_POINT, LIKELY = "enqueued", "start point", "likely values"


class StartPointSearch:
    """Suggests `points` in order, each once, then the suggestions of `algorithm`.

    Paused trials may resume in between: `points` only precede other new trials.

    A partial point is completed from the next suggestion of `algorithm`, and counts as tried if a trial of this run has
    its values. The point of all `likely` values comes last, unless a trial of this or an adopted run has these values;
    conditions may exclude some of them, but not all.

    Args:
        algorithm: source of all other suggestions.
        points: origin -> full or partial points, as returned by `check_start_points`.
        likely: name -> likely value; empty to skip that point.
    """

    def __init__(
        self, algorithm: SearchAlgorithm, points: Mapping[str, Sequence[Point]], likely: Point | None = None
    ) -> None:
        self._algorithm = algorithm
        self._points = points
        self._likely = likely or {}

    def suggest(self, history: History) -> Point | None:
        return self.suggest_with_origin(history)[0]

    def suggest_with_origin(self, history: History) -> tuple[Point | None, str]:
        """Return the next point and its origin, which is empty for a suggestion of the algorithm."""
        space = history.space
        suggest = cache(lambda: self._algorithm.suggest(history))
        if history.waiting and (suggested := suggest()) is not None and history.waiting_trial(suggested) is not None:
            return suggested, ""
        for origin, points in self._points.items():
            for point in points:
                if space.contains(point):
                    whole = point if may_be_tried(point, history) else None
                else:
                    is_tried = any(map(holder_of(space, point), islice(history.points, history.n_adopted, None)))
                    whole = None if is_tried else _completed(point, history, suggest())
                if whole is not None:
                    return {name: thawed(value) for name, value in whole.items()}, origin
        if self._likely and not any(_has_all_likely(space, self._likely, point) for point in history.points):
            design = getattr(self._algorithm, "design_at", None)
            whole = _completed(self._likely, history, suggest(), None if design is None else design(history))
            if whole is not None:
                return {name: thawed(value) for name, value in whole.items()}, LIKELY
        return suggest(), ""

    def best_expected(self, history: History) -> int:
        """Return the number of the trial that the algorithm expects to be best; -1 if it cannot tell or finds no noise.

        Args:
            history: history in which pruned trials are marked as pruned.
        """
        if (expect := getattr(self._algorithm, "best_expected", None)) is None:
            return -1
        rows = history.rows(TrialState.COMPLETE)
        row = expect(history.settled(), rows[rows >= history.n_adopted])
        return -1 if row is None else int(history.trials[row - history.n_adopted])


def _completed(
    part: Point, history: History, suggested: Point | None, units: Sequence[float] | None = None
) -> Point | None:
    """Return an untried point with those values of `part` whose conditions hold; None if none is found.

    Args:
        part: partial point.
        history: all trials.
        suggested: source of the other values if the result may be tried; otherwise they are drawn.
        units: as for `_with_values`.
    """
    rng = np.random.default_rng(history.n_suggested)
    others = (history.space.draw(rng) for _ in range(_N_DRAWS))
    wholes = (_with_values(history.space, drawn, part, units) for drawn in filter(None, chain([suggested], others)))
    return next((whole for whole in wholes if part.keys() & whole.keys() and may_be_tried(whole, history)), None)


def _with_values(space: Space, point: Point, part: Point, units: Sequence[float] | None = None) -> Point:
    """Return `point` updated with the values of `part`, in the order of the space, without inactive parameters.

    A parameter that neither has is set to its quantile in `units`, by default to the middle of its range.
    """
    known = point | part
    own = [p.to_unit(known[p.name]) if p.name in known else None for p in space.parameters]
    spare = units or [0.5] * len(own)
    values = space.from_unit([s if unit is None else unit for unit, s in zip(own, spare, strict=True)])
    return {name: part.get(name, value) for name, value in values.items()}


# ---------------------------------------------------------------- likely values


def likely_values(space: Space) -> Point:
    """Return name -> likely value for all parameters that have one.

    >>> likely_values(Space([Real(1e-4, 1, "log-uniform", name="lr", likely=0.01), Integer(1, 9, name="n")]))
    {'lr': 0.01}
    """
    values = {p.name: getattr(p, "likely", None) for p in space.parameters}
    return {name: thawed(value) for name, value in values.items() if value is not None}


def likely_refusal(space: Space) -> str:
    """Return a message if the constraint refuses the point of all likely values; empty if it accepts it."""
    rng, values = np.random.default_rng(0), likely_values(space)
    if not values or space.constraint is None or space.constraint.function is None:
        return ""
    if any(space.is_feasible(_with_values(space, space.draw(rng), values)) for _ in range(_N_DRAWS)):
        return ""
    return (
        f"The likely values are not tried together: the constraint of the space refuses {_text(values)}"
        f"{' with all other values that were drawn' * (len(values) < len(space.parameters))}."
    )


def _has_all_likely(space: Space, likely: Point, point: Point) -> bool:
    """Return True if `point` has at least one parameter with a likely value, and all of these are at it."""
    there = [name for name in likely if name in point]
    return bool(there) and all(space[name].key(point[name]) == space[name].key(likely[name]) for name in there)


# ---------------------------------------------------------------- points of a user


def holder_of(space: Space, part: Point) -> Callable[[Point], bool]:
    """Return a predicate that is True for points with all values of `part`, a full or partial point."""
    wanted = [(name, space[name], space[name].key(value)) for name, value in part.items()]
    return lambda point: all(
        name in point and one.contains(point[name]) and one.key(point[name]) == key for name, one, key in wanted
    )


def check_start_points(space: Space, points: Sequence[Point]) -> list[Point]:
    """Return `points` with their values in the order of the space, without repetitions.

    Points may be partial. If a given parameter depends on one that is not given, the latter gets a value that satisfies
    the condition.

    Raises:
        ConfigurationError: a point is outside the space or infeasible.
    """
    checked: dict[Any, Point] = {}
    has_function = space.constraint is not None and space.constraint.function is not None
    for point in points:
        known = _with_parents(space, {name: _value(space, name, value) for name, value in point.items()})
        ordered = {name: known[name] for name in space.names if name in known}
        if has_function and space.contains(ordered) and not space.is_feasible(ordered):
            raise _refusal(f"{_text(ordered)}; the constraint of the space refuses it.")
        checked.setdefault(tuple((name, space[name].key(value)) for name, value in ordered.items()), ordered)
    return list(checked.values())


def _value(space: Space, name: str, value: Any) -> Any:
    """Return the parameter's own value: 3 for 3.0, True for "true"; ConfigurationError if it is not allowed."""
    if name not in space.names:
        hint = did_you_mean(name, space.names) or f" Its parameters: {', '.join(space.names)}."
        raise _refusal(f"`{name}`, which is not a parameter.{hint}")
    parameter = space[name]
    own = value if isinstance(value, str) and parameter.contains(value) else value_of(parameter, value)
    if not parameter.contains(own):
        raise _refusal(f"{name}={value}; it must be in {parameter}.")
    return own


def _with_parents(space: Space, point: Point) -> Point:
    """Return `point` with values for the parents of its conditional parameters."""
    known, names = dict(point), list(point)
    for name in names:  # grows as parents are appended
        if (condition := space[name].condition) is None:
            continue
        parent = space[condition.parent]
        if parent.name not in names:
            names.append(parent.name)
        on_parent = [c for other in names if (c := space[other].condition) is not None and c.parent == parent.name]
        keys = [{parent.key(thawed(value)) for value in each.values} for each in on_parent]
        values = [point[parent.name]] if parent.name in point else [thawed(value) for value in condition.values]
        fitting = [value for value in values if all(parent.key(value) in some for some in keys)]
        if not fitting:
            raise _refusal(f"{_text(point)}; `{name}` is in a point only if {condition}. Drop it.")
        known[parent.name] = fitting[0]
    return known


def parse_start_point(text: str) -> dict[str, Any]:
    """Return the point that `name=value,name=value` describes.

    A value is a Python literal, else a string. Commas inside brackets and quotes belong to the value.

    Raises:
        ValueError: any other text, or a repeated name.
    """
    point: dict[str, Any] = {}
    for part in _split(text):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or name.strip() in point:
            raise ValueError(text)
        try:
            point[name.strip()] = thawed(ast.literal_eval(value.strip()))
        except (ValueError, SyntaxError):
            point[name.strip()] = value.strip()
    return point


def _split(text: str) -> list[str]:
    """Return the parts of `text` between its commas, except commas inside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        depth += (character in "([{") - (character in ")]}") if not quote else 0
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _refusal(received: str) -> ConfigurationError:
    enqueue = either("nnlo-opt enqueue", "study.enqueue")
    return ConfigurationError(
        f"A point to be tried (`{spelled('start_point')}`, `{enqueue}`) must be a point of the search space, or a "
        f"part of one. Received: {received}"
    )


def _text(point: Point) -> str:
    return ",".join(f"{name}={value}" for name, value in point.items())
