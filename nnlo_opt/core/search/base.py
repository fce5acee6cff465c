"""Interface of search algorithms, which map a history of trials to the next point."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NotRequired, Protocol, TypedDict

import numpy as np

from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.search.targets import without_penalties
from nnlo_opt.core.space.quantiles import snapped_row
from nnlo_opt.core.space.space import Point, PointKey, Space
from nnlo_opt.core.trials.events import Observation
from nnlo_opt.core.trials.objectives import OutcomeConstraint
from nnlo_opt.core.trials.trial import TrialState

#: states of trials with a finite value: the final figure, or the last one before the trial was pruned or paused
_VALUED = (TrialState.COMPLETE, TrialState.PRUNED)
#: states that a history may contain
_KNOWN = (TrialState.PENDING, TrialState.FAILED, *_VALUED)
#: at most this many epochs are used to compare pruned trials with trials that continued
_N_LEVELS = 6


class TrialRecord(TypedDict):
    """One trial as plain data: the arguments of `History.record`."""

    trial: int
    point: Point
    state: str
    #: a failed trial has a value only if it violated an outcome constraint
    value: float | None
    std: NotRequired[float | None]
    #: (epochs, mean value over all folds), ascending; empty without a pruner
    curve: NotRequired[Sequence[tuple[int, float]]]
    #: missing without a pruner
    progress: NotRequired["TrialProgress"]
    #: losses in the order of the objectives; only for `core.search.scalarisation.VectorHistory`
    losses: NotRequired[list[float]]
    #: name -> finite value bounded by an outcome constraint; missing without such constraints
    outcomes: NotRequired[Mapping[str, float]]


class TrialProgress(TypedDict):
    """Progress and cost of a trial that may be paused."""

    #: True while it is paused and may resume; False while it trains and after its end
    waits: bool
    #: number of rungs that it has passed
    n_rungs: int
    #: total epochs of all its folds, at least 1, and the seconds they took
    n_epochs: int
    train_s: float
    #: start-up time of a fold, seconds
    start_s: float


class Suggestion(Frozen):
    """Answer of the search process: the next point, or None if every point of a finite space has been tried.

    >>> Suggestion(point={"x": 0.5}).trial is None
    True
    """

    point: Point | None
    #: number of the paused trial to resume; None for a new trial
    trial: int | None = None
    #: where a start point comes from, for example `core.search.start_points.LIKELY`; empty if the algorithm chose it
    origin: str = ""
    #: number of the trial expected to be best given the history; -1 for none
    expected: int = -1
    #: number of the request
    request: int = 0
    #: CPU time of the algorithm, seconds
    cpu_s: float = 0.0
    wall_s: float = 0.0
    #: (point, reason) for points enqueued since the last suggestion that are refused
    declined: Sequence[tuple[Point, str]] = ()


class Measured(NamedTuple):
    """Value of a trial at some point of its training."""

    row: int
    #: completed fraction of the training, on a logarithmic scale; 1 for a full training
    share: float
    value: float


class History:
    """All trials of a search in columns, one row per trial in the order of the suggestions; read by `suggest`.

    The history only grows: a trial is recorded as pending when it is suggested, and again when it ends. A paused trial
    is recorded as pruned, and again after it has resumed. The columns, and so the suggestions, do not depend on the
    order in which trials end. Values are minimised.

    The first `n_adopted` rows are observations from other runs: complete, without a trial in this run.

    >>> history = History(Space([Real(0, 1, name="x")]))
    >>> history.record(0, {"x": 0.25}, "complete", 0.5)
    >>> history.record(1, {"x": 0.75}, "pending")
    >>> history.values, history.contains({"x": 0.75}), history.rows(TrialState.COMPLETE)
    (array([0.5, nan]), True, array([0]))

    Args:
        space: search space that contains all points.
    """

    def __init__(self, space: Space) -> None:
        #: search space that contains all points
        self.space = space
        #: trial number -> row; numbers and rows grow together
        self._rows: dict[int, int] = {}
        #: one point for each row; never changed after it was recorded
        self._points: list[Point] = []
        #: cache of the snapped rows of the first points; see `snapped`
        self._snapped: list[np.ndarray] = []
        #: state of each row; only pending and pruned states change
        self._states: list[TrialState] = []
        #: value of each row; the first `len(self._points)` are in use; NaN if pending, or failed without a value
        self._values = np.full(64, np.nan)
        #: standard error of each value, stored like `_values`; NaN if unknown
        self._stds = np.full(64, np.nan)
        #: row -> number of epochs -> value; trials of a search with a pruner only
        self._curves: dict[int, dict[int, float]] = {}
        #: row -> progress; trials of a search with a pruner only
        self._progress: dict[int, TrialProgress] = {}
        #: row -> name -> finite value bounded by an outcome constraint; only rows with such values
        self._outcomes: dict[int, dict[str, float]] = {}
        #: outcome constraints of the search
        self.bounds: tuple[OutcomeConstraint, ...] = ()
        #: see `measured`
        self._measured: list[Measured] = []
        #: number of leading rows without a trial; fixed once the first trial is recorded
        self.n_adopted = 0
        #: epochs of a full training; 0 if unknown, then the longest so far counts as full
        self.max_epochs = 0
        #: False if values change between suggestions, like weighted sums of several objectives
        self.has_fixed_values = True
        #: keys of all points, in any state
        self._keys: set[PointKey] = set()

    def adopt(self, observation: Observation) -> None:
        """Add a value measured by another run; before any trial is recorded.

        Raises:
            ValueError: a trial was recorded before, the point is outside the space, or the value is not finite.
        """
        if self._rows:
            raise ValueError("Observations must be adopted before the first trial.")
        self.space.key(observation["point"])  # raises ValueError if the point lies outside
        if not np.isfinite(observation["value"]):
            raise ValueError(f"The value of an observation must be finite. Received: {observation}.")
        outcomes = _finite(observation.get("outcomes"))
        is_feasible = observation.get("feasible", True)
        row = self._append(observation["point"], TrialState.COMPLETE if is_feasible else TrialState.FAILED)
        self._values[row] = observation["value"]
        self._stds[row] = _std_of(observation.get("std"))
        if outcomes:
            self._outcomes[row] = outcomes
        self.n_adopted += 1

    def record(
        self,
        trial: int,
        point: Point,
        state: str,
        value: float | None = None,
        *,
        std: float | None = None,
        curve: Iterable[tuple[int, float]] = (),
        progress: TrialProgress | None = None,
        outcomes: Mapping[str, float] | None = None,
    ) -> None:
        """Add a trial or record how it ended; recording the same data again changes nothing.

        A pruned trial that resumed may be recorded again, as pruned with another value, complete or failed.

        Args:
            trial: number of the trial; new trials must come in ascending order.
            value: finite value of a complete or pruned trial, or of a trial that failed by an outcome constraint; else
                None.
            std: standard error of the value, if known.
            curve: (epochs, value) in ascending order, up to the last epoch that all folds have reached.
            progress: None without a pruner.
            outcomes: finite values by name, of a complete trial or one that violated an outcome constraint.

        Raises:
            ValueError: an invalid value, a number out of order, another point, or another end for an ended trial.
        """
        state = TrialState(state)
        if state not in _KNOWN:
            raise ValueError(f"The TrialState of a record must be one of {', '.join(_KNOWN)}. Received: {state}.")
        if value is None if state in _VALUED else value is not None and state is TrialState.PENDING:
            raise ValueError(
                "A trial must have a value if it is complete or pruned, and none if it is pending. Received: "
                f"{state}, {value}."
            )
        number = np.nan if value is None else float(value)
        if value is not None and not np.isfinite(number):
            raise ValueError(f"The value of a {state} trial must be finite. Received: {value} for trial {trial}.")
        error, known_outcomes = _std_of(std), _finite(outcomes)
        row = self._rows.get(trial)
        if row is None:
            row = self._add_trial(trial, point)
        else:
            self._check_follows(row, point, state, number)
        self._states[row] = state
        self._values[row] = number
        self._stds[row] = error
        if state in _VALUED:
            self._curves[row] = {int(epoch): float(at_epoch) for epoch, at_epoch in curve}
        if progress is not None:
            self._progress[row] = progress
        if known_outcomes:
            self._outcomes[row] = known_outcomes

    def _add_trial(self, trial: int, point: Point) -> int:
        if self._rows and trial <= next(reversed(self._rows)):
            raise ValueError(
                f"Trials must be recorded in the order of their numbers. Received: {trial} after "
                f"{next(reversed(self._rows))}."
            )
        self._rows[trial] = self._append(point, TrialState.PENDING)
        return self._rows[trial]

    def _append(self, point: Point, state: TrialState) -> int:
        row = len(self._points)
        if row == len(self._values):
            self._values, self._stds = (
                np.concatenate([column, np.full(row, np.nan)]) for column in (self._values, self._stds)
            )
        self._keys.add(self.space.key(point))
        self._points.append(dict(point))
        self._states.append(state)
        return row

    def _check_follows(self, row: int, point: Point, state: TrialState, value: float) -> None:
        if self.space.key(point) != self.space.key(self._points[row]):
            raise ValueError(f"A trial must keep its point. Received: {point} for {self._points[row]}.")
        known, known_value = self._states[row], self._values[row]
        unchanged = state is known and (value == known_value or np.isnan([value, known_value]).all())
        goes_on = known is TrialState.PRUNED and state is not TrialState.PENDING
        if known is not TrialState.PENDING and not unchanged and not goes_on:
            raise ValueError(f"An ended trial must stay as it is. Received: {state} {value} for {known} {known_value}.")

    def with_values(self, values: np.ndarray) -> "History":
        """Return a read-only history of the same trials with other values, (n_suggested,), finite for ended trials."""
        other = History(self.space)
        other._rows, other._points, other._states, other._keys = self._rows, self._points, self._states, self._keys
        other._curves, other._progress, other.max_epochs = self._curves, self._progress, self.max_epochs
        other._snapped = self._snapped  # shared on purpose: the list grows with the points
        other._outcomes, other.bounds = self._outcomes, self.bounds
        other._values, other._stds = values, np.full(len(values), np.nan)
        other.has_fixed_values = self.has_fixed_values
        return other

    def settled(self) -> "History":
        """Return a read-only history with pruned trials as complete, for algorithms that do not distinguish the two.

        A value after a few epochs is not comparable with a final value, so it is extrapolated: from the most epochs to
        the fewest, values at an epoch are mapped linearly to the final values of the trials that continued, minimum to
        minimum and median distance from it to median distance. A pruned trial gets the result, but never a value below
        the best complete one: an extrapolation must not become the value to improve on.
        """
        if TrialState.PRUNED not in self._states:
            return self
        values, pruned, complete = self.values.copy(), self.rows(TrialState.PRUNED), self.rows(TrialState.COMPLETE)
        longest = max(self.max_epochs, max((max(curve, default=0) for curve in self._curves.values()), default=0))
        expected = {row: float(values[row]) for row in complete.tolist()}
        measured = [Measured(row, 1.0, value) for row, value in expected.items()]
        last = {row: max(self._curves.get(row) or {0: 0.0}) for row in pruned.tolist()}
        levels = np.unique(list(last.values()))
        if len(levels) > _N_LEVELS:
            levels = np.unique(np.quantile(list(last.values()), np.linspace(0.0, 1.0, _N_LEVELS), method="nearest"))
        for level in reversed(levels.tolist()):
            at_level = {row: curve[level] for row, curve in self._curves.items() if level in curve}
            ends = _mapped(at_level, {row: expected[row] for row in at_level if row in expected})
            for row in (row for row, epochs in last.items() if epochs >= level and row not in expected):
                expected[row] = ends.get(row, float(values[row]))
                measured += [] if row in ends else [Measured(row, 1.0, expected[row])]
            measured += [Measured(row, math.log1p(level) / math.log1p(longest), end) for row, end in ends.items()]
        values[pruned] = [expected[row] for row in pruned.tolist()]
        if len(complete):
            values[pruned] = np.maximum(values[pruned], values[complete].min())
        other = self.with_values(values)
        other._states = [TrialState.COMPLETE if state is TrialState.PRUNED else state for state in self._states]
        other._stds, other.n_adopted, other._measured = self._stds, self.n_adopted, sorted(measured)
        return other

    @property
    def n_suggested(self) -> int:
        """Number of trials, that is, of points suggested so far."""
        return len(self._rows)

    @property
    def n_promoted(self) -> int:
        """Number of rungs passed, over all trials."""
        return sum(progress["n_rungs"] for progress in self._progress.values())

    @property
    def waiting(self) -> dict[int, TrialProgress]:
        """Row -> progress of each paused trial that may resume, by row."""
        return {row: progress for row, progress in sorted(self._progress.items()) if progress["waits"]}

    def waiting_trial(self, point: Point) -> int | None:
        """Return the number of the trial paused at `point`; None if there is none."""
        key, waiting = self.space.key(point), self.waiting
        found = (n for n, row in self._rows.items() if row in waiting and self.space.key(self._points[row]) == key)
        return next(found, None)

    def epochs_of(self, row: int) -> int:
        """Return the last epoch that all folds of the trial in `row` have reached; 0 before the first."""
        return max(self._curves.get(row, {}), default=0)

    @property
    def trials(self) -> np.ndarray:
        """Trial numbers, (n_suggested,) int64, ascending."""
        return np.fromiter(self._rows, np.int64, len(self._rows))

    @property
    def points(self) -> Sequence[Point]:
        """All n_adopted + n_suggested points; do not change them."""
        return self._points

    def snapped(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the points in `rows` as snapped rows (`core.space.quantiles`) of the space without likely values.

        Returns:
            (len(rows), n_parameters) float64.
        """
        if new := self._points[len(self._snapped) :]:
            space = self.space.without_likely
            self._snapped += [np.array(snapped_row(space, point)) for point in new]
        return np.array([self._snapped[row] for row in rows]).reshape(len(rows), len(self.space.parameters))

    @property
    def states(self) -> Sequence[TrialState]:
        """All n_adopted + n_suggested states; do not change them."""
        return self._states

    @property
    def values(self) -> np.ndarray:
        """Values to minimise, (n_adopted + n_suggested,) float64, read only; NaN for trials without a value.

        A failed trial with a value violated an outcome constraint: a surrogate may learn from it, but it is not a
        result.
        """
        return _read_only(self._values[: len(self._points)])

    @property
    def stds(self) -> np.ndarray:
        """Standard errors of the values, (n_adopted + n_suggested,) float64, read only; NaN if not known."""
        return _read_only(self._stds[: len(self._points)])

    @property
    def outcomes(self) -> Mapping[int, Mapping[str, float]]:
        """Row -> name -> known value bounded by an outcome constraint."""
        return self._outcomes

    def rows(self, state: TrialState) -> np.ndarray:
        """Return the rows in `state`, (n,) int, ascending."""
        return np.array([row for row, known in enumerate(self._states) if known is state], dtype=int)

    @property
    def measured(self) -> Sequence[Measured]:
        """Values of full trainings, and values at the epochs at which trials were pruned, row by row."""
        if self._measured:
            return self._measured
        return [Measured(row, 1.0, float(self._values[row])) for row in self.rows(TrialState.COMPLETE).tolist()]

    def contains(self, point: Point) -> bool:
        """Return True if `point` was tried: by a trial in any state, or by another run."""
        return self.contains_key(self.space.key(point))

    def contains_key(self, key: PointKey) -> bool:
        """Return True if the point with this key was tried."""
        return key in self._keys

    @property
    def n_distinct(self) -> int:
        """Number of different points tried so far."""
        return len(self._keys)


def _std_of(std: float | None) -> float:
    """Return a positive standard error or NaN; 0, the result of equal folds, carries no information."""
    return float(std) if std is not None and np.isfinite(std) and std > 0.0 else np.nan


def _finite(outcomes: Mapping[str, float] | None) -> dict[str, float]:
    """Return outcomes as floats; ValueError if one is not finite."""
    values = {name: float(value) for name, value in (outcomes or {}).items()}
    if not all(map(math.isfinite, values.values())):
        raise ValueError(f"The outcomes of a trial must be finite. Received: {values}.")
    return values


def _regular(values: dict[int, float]) -> dict[int, float]:
    """Return values by row, with penalties moved closer."""
    moved = without_penalties(np.array([*values.values()]), np.array([*values]))
    return dict(zip(values, moved.tolist(), strict=True))


def _mapped(values: dict[int, float], ends: dict[int, float]) -> dict[int, float]:
    """Map `values` after some epochs linearly to final values, given the `ends` of some rows."""
    if not ends:
        return values
    values, ends = _regular(values), _regular(ends)
    least, end = min(values.values()), min(ends.values())
    spread = float(np.median([values[row] - least for row in ends]))
    at_end = float(np.median(list(ends.values()))) - end
    slope = at_end / spread if at_end > 0.0 and spread > 0.0 else 1.0
    return {row: end + slope * (value - least) for row, value in values.items()}


def _read_only(view: np.ndarray) -> np.ndarray:
    view.flags.writeable = False
    return view


#: choices of options that only one algorithm has; the default comes first
SURROGATES = ("gp", "et", "rf", "gbrt")
ACQUISITIONS = ("ei", "lcb", "pi")


class SearchAlgorithm(Protocol):
    """Chooses the next point; subclass or imitate it for a custom algorithm.

    `suggest` is called in the search process each time a block is free, with all trials so far. It must be a pure
    function of the space, the seed and the history: a resumed search calls a new object with the history from the
    journal, and must get the same point. Never suggest a point again that is in the history, in any state.

    >>> class Sweep:
    ...     def suggest(self, history):
    ...         n = history.n_suggested
    ...         return history.space.from_unit([n / 10]) if n <= 10 else None
    >>> nnlo_opt.optimize(lambda x: x, {"x": Real(0, 1)}, num_iterations=20, hyper_opt=Sweep())
    <SearchResult: 11 complete, best 0 at {'x': 0.0}>

    Raises:
        ConfigurationError: by the search, if `suggest` raises or returns anything but a point of the space or None.
    """

    def suggest(self, history: History) -> Point | None:
        """Return the next point as a new dict; None to end the search, as every point has been tried.

        Return the point of a paused trial (`history.waiting`) to resume that trial.
        """
