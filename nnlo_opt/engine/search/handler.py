"""Handles requests to a search in plain data, in the search process."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.search.base import History, SearchAlgorithm
from nnlo_opt.core.search.scalarisation import ScalarisedSearch, VectorHistory
from nnlo_opt.core.search.start_points import (
    ENQUEUED,
    START_POINT,
    StartPointSearch,
    check_start_points,
    likely_refusal,
    likely_values,
)
from nnlo_opt.core.space.constraint import Constraint
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.events import Observation
from nnlo_opt.core.trials.objectives import OutcomeConstraint
from nnlo_opt.engine.loading.spaces import load_constraint, load_space
from nnlo_opt.engine.search.registry import make_search

#: values of `op`
_REQUESTS = ("load_space", "start", "adopt", "record", "enqueue", "suggest", "expect")
P = ParamSpec("P")


def _answered(action: Callable[P, dict[str, Any]]) -> Callable[P, dict[str, Any]]:
    """Wrap `action` to return `ok` and its result, or `error` with the message of a ConfigurationError."""

    def answer(*arguments: P.args, **named: P.kwargs) -> dict[str, Any]:
        try:
            return {"ok": True, **action(*arguments, **named)}
        except ConfigurationError as error:
            return {"ok": False, "error": str(error)}

    return answer


class SearchHandler:
    """Answers requests one after another.

    | request `op` | with | answer |
    |---|---|---|
    | `load_space` | `source`, `fixed` | `ok`, `space`; else `error`, a sentence |
    | `start` | `algorithm`, `space`, `seed`, `options` | `ok`, `remark` (may be empty); else `error`, a sentence |
    | `adopt` | `observations`: list of Observation; before any trial | none |
    | `record` | `trials`: list of TrialRecord | none |
    | `enqueue` | `point`, or a part of one, as `check_start_points` returns it: to be suggested next | none |
    | `expect` | | `ok`, `expected`: as in a `Suggestion` |
    | `suggest` | `request`: any number | `request` and the other fields of a `Suggestion`; else `error` |

    The option `n_objectives` is the number of `losses` of a complete trial, `max_epochs` the epochs of a whole training
    if they are known, `start_points` a list of points to be tried first, `likely_first` True if the point of all likely
    values follows them, and `outcome_constraints` the bounds of `outcomes` as text; all other options belong to the
    algorithm.

    Spaces are sent as plain data, without the function of a constraint. The handler keeps the function from
    `load_space`, or executes the module at `start` if a trainer rank has read the space from a model module.

    User code must not end the process: for an algorithm that raises the answer has the traceback, for a failing
    constraint a message in `refused`. A request that breaks these rules raises, because it is a bug.
    """

    def __init__(self, constraint: Constraint | None = None) -> None:
        #: the algorithm and its history; None before `start`
        self._search: tuple[StartPointSearch, History] | None = None
        #: constraint of the last loaded space, with its function; at first that of a space of this process
        self._constraint = constraint
        #: enqueued points, including those tried since
        self._enqueued: list[Point] = []
        #: (point, reason) for points enqueued since the last suggestion that the space refuses
        self._declined: list[tuple[Point, str]] = []

    def handle(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to `request`; None for a request without an answer."""
        given = dict(request)
        op = given.pop("op")
        if op not in _REQUESTS:
            raise ValueError(f"A request must be {' or '.join(_REQUESTS)}. Received: {op!r}.")
        return getattr(self, f"_{op}")(**given)

    @_answered
    def _load_space(self, source: str, fixed: Mapping[str, str]) -> dict[str, Any]:
        space = load_space(source, fixed)
        self._constraint = space.constraint
        return {"space": space.to_json()}

    @_answered
    def _start(
        self, algorithm: str | SearchAlgorithm, space: dict[str, Any], seed: int, options: dict[str, Any]
    ) -> dict[str, Any]:
        points = Space.from_json(space)
        if points.constraint is not None:
            points = Space(points.parameters, self._with_function(points.constraint))
        own = dict(options)
        n_objectives, max_epochs = own.pop("n_objectives", 1), own.pop("max_epochs", None)
        first = {ENQUEUED: self._enqueued, START_POINT: check_start_points(points, own.pop("start_points", []))}
        likely_first, bounds = own.pop("likely_first", False), own.pop("outcome_constraints", ())
        refusal = likely_refusal(points) if likely_first else ""

        def make() -> SearchAlgorithm:
            return make_search(algorithm, points, seed, own)

        search, history = make(), History(points)
        if n_objectives > 1:
            search, history = ScalarisedSearch(make, seed, n_objectives), VectorHistory(points, n_objectives)
        history.max_epochs, history.bounds = max_epochs or 0, tuple(map(OutcomeConstraint.parse, bounds))
        likely = likely_values(points) if likely_first and not refusal else {}
        self._search = StartPointSearch(search, first, likely), history
        return {"remark": refusal}

    def _adopt(self, observations: Sequence[Observation]) -> None:
        history = self._started()[1]
        for observation in observations:
            history.adopt(observation)

    def _record(self, trials: Sequence[dict[str, Any]]) -> None:
        history = self._started()[1]
        for trial in trials:
            history.record(**trial)

    def _with_function(self, constraint: Constraint) -> Constraint:
        known = self._constraint
        if known is None or known.source != constraint.source:
            known = load_constraint(constraint.source)
        if known != constraint:
            raise ConfigurationError(
                f"The constraint of {constraint.source} must be the same wherever it is read. Received: {constraint}, "
                f"then {known}. Start again, and leave the file alone until the search has begun."
            )
        return replace(constraint, function=known.function)

    def _enqueue(self, point: Point) -> None:
        try:
            self._enqueued += check_start_points(self._started()[1].space, [point])
        except ConfigurationError as error:
            self._declined.append((point, str(error)))

    def _suggest(self, request: int) -> dict[str, Any]:
        algorithm, history = self._started()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        try:
            point, origin = algorithm.suggest_with_origin(history.settled())
            trial = None if point is None else history.waiting_trial(point)
            expected = algorithm.best_expected(history)
        except ConfigurationError as error:
            return {"request": request, "refused": str(error)}
        except Exception:
            return {"request": request, "error": traceback.format_exc()}
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        declined, self._declined = self._declined, []
        times = {"cpu_s": cpu_s, "wall_s": wall_s}
        suggested = {"point": point, "trial": trial, "origin": origin, "expected": expected}
        return {"request": request, **suggested, "declined": declined, **times}

    @_answered
    def _expect(self) -> dict[str, Any]:
        algorithm, history = self._started()
        return {"expected": algorithm.best_expected(history)}

    def _started(self) -> tuple[StartPointSearch, History]:
        if self._search is None:
            raise ValueError("A search must be started before it records or suggests.")
        return self._search
