"""Search by requests in plain data, as the search process serves it."""

import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.base import History, SearchAlgorithm
from nnlo_opt.search.registry import make_search
from nnlo_opt.search.scalarisation import ScalarisedSearch, VectorHistory
from nnlo_opt.search.start_points import StartPointSearch, check_start_points
from nnlo_opt.space.constraint import Constraint
from nnlo_opt.space.loading import load_constraint, load_space
from nnlo_opt.space.space import Point, Space


class SearchSession:
    """Answers requests one after another.

    | request `op` | with | answer |
    |---|---|---|
    | `load_space` | `source`, `fixed` | `ok`, `space`; else `error`, a sentence |
    | `start` | `algorithm`, `space`, `seed`, `options` | `ok`; else `error`, a sentence |
    | `adopt` | `observations`: list of Observation; before any trial | none |
    | `record` | `trials`: list of TrialRecord | none |
    | `enqueue` | `point`, or a part of one, as `check_start_points` returns it: to be suggested next | none |
    | `suggest` | `request`: any number | `request` and the other fields of a `Suggestion`; else `error` |

    The option `n_objectives` is the number of `losses` of a complete trial; all other options belong to the algorithm.

    Spaces travel as plain data, without the function of a constraint. The session keeps the function from `load_space`,
    or executes the module at `start` if a trainer rank has read the space from a model module.

    Code of the user must not end the session. An algorithm that raises is answered with its traceback, and a constraint
    that cannot be used with `refused`, a sentence. A request that breaks these rules raises, because it is a bug.
    """

    def __init__(self, constraint: Constraint | None = None, own: SearchAlgorithm | None = None) -> None:
        #: algorithm of this process that takes the place of the one that `start` names; None for none
        self._own = own
        #: the algorithm and its history; None before `start`
        self._search: tuple[SearchAlgorithm, History] | None = None
        #: the constraint of the space loaded last, with its function; at first of a space of this process
        self._constraint = constraint
        #: points that were enqueued, those that were tried since included
        self._enqueued: list[Point] = []
        #: points that were to be enqueued since the last suggestion and that the space refuses, with a sentence
        self._declined: list[tuple[Point, str]] = []

    def handle(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to `request`; None for a request without an answer."""
        match request["op"]:
            case "load_space":
                return _answered(lambda: self._load_space(request))
            case "start":
                return _answered(lambda: self._start(request))
            case "adopt":
                history = self._started()[1]
                for observation in request["observations"]:
                    history.adopt(observation)
                return None
            case "record":
                history = self._started()[1]
                for record in request["trials"]:
                    history.record(**record)
                return None
            case "enqueue":
                self._enqueue(request["point"])
                return None
            case "suggest":
                return {"request": request["request"], **self._suggest()}
            case other:
                known = "load_space, start, adopt, record, enqueue or suggest"
                raise ValueError(f"A request must be {known}. Received: {other!r}.")

    def _load_space(self, request: dict[str, Any]) -> dict[str, Any]:
        space = load_space(request["source"], request["fixed"])
        self._constraint = space.constraint
        return {"space": space.to_json()}

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        space = Space.from_json(request["space"])
        if space.constraint is not None:
            space = Space(space.parameters, self._with_function(space.constraint))
        options = dict(request["options"])
        n_objectives = options.pop("n_objectives", 1)

        def make() -> SearchAlgorithm:
            return make_search(self._own or request["algorithm"], space, request["seed"], options)

        algorithm: SearchAlgorithm = make()
        history = History(space)
        if n_objectives > 1:
            algorithm = ScalarisedSearch(make, request["seed"], n_objectives)
            history = VectorHistory(space, n_objectives)
        self._search = StartPointSearch(algorithm, self._enqueued), history
        return {}

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

    def _suggest(self) -> dict[str, Any]:
        algorithm, history = self._started()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        try:
            point = algorithm.suggest(history.settled())
        except ConfigurationError as error:
            return {"refused": str(error)}
        except Exception:
            return {"error": traceback.format_exc()}
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        declined, self._declined = self._declined, []
        return {"point": point, "cpu_s": cpu_s, "wall_s": wall_s, "declined": declined}

    def _started(self) -> tuple[SearchAlgorithm, History]:
        if self._search is None:
            raise ValueError("A search must be started before it records or suggests.")
        return self._search


def _answered(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"ok": True, **action()}
    except ConfigurationError as error:
        return {"ok": False, "error": str(error)}
