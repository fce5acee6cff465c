"""Interface of a search algorithm, which maps a history of trials to the next point."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NotRequired, Protocol, TypedDict

import numpy as np

from nnlo_opt.space.space import Point, PointKey, Space


class TrialState(StrEnum):
    """State of a trial in the history.

    A pruned trial was ended before its last epoch: `value` is its finite figure at that time. A paused trial is
    recorded as pruned, and recorded again once it has resumed.
    """

    PENDING = "pending"
    COMPLETE = "complete"
    FAILED = "failed"
    PRUNED = "pruned"

    @property
    def has_value(self) -> bool:
        """True if a trial in this state has a value."""
        return self in (TrialState.COMPLETE, TrialState.PRUNED)


class TrialRecord(TypedDict):
    """Plain data on one trial: the arguments of `History.record`."""

    trial: int
    point: Point
    state: str
    value: float | None
    std: NotRequired[float | None]
    #: losses of several objectives, in the order of the objectives; for `search.scalarisation.VectorHistory` only
    losses: NotRequired[list[float]]


class Observation(TypedDict):
    """Value that a trial of another run measured at a point of this search space."""

    point: Point
    value: float
    std: NotRequired[float | None]


class History:
    """All trials of a search as columns, one row for each trial in the order of the suggestions.

    The history only grows: a trial is first recorded as pending, and again when it ends. The columns do not depend on
    the order in which the trials ended, so suggestions do not either. Values are minimised.

    The first `n_adopted` rows are observations adopted from other runs. They are complete and have no trial here.

    Args:
        space: search space that contains all points.
    """

    def __init__(self, space: Space) -> None:
        #: the space that contains all points
        self.space = space
        #: trial number -> row; numbers and rows grow together
        self._rows: dict[int, int] = {}
        #: one point for each row; never changed after it was recorded
        self._points: list[Point] = []
        #: one state for each row; only pending and pruned states change
        self._states: list[TrialState] = []
        #: one value for each row; the first `len(self._points)` are in use; NaN unless the trial is complete or pruned
        self._values = np.full(64, np.nan)
        #: standard error of each value, stored like `_values`; NaN if it is not known
        self._stds = np.full(64, np.nan)
        #: number of rows without a trial, which come first; fixed once the first trial is recorded
        self.n_adopted = 0
        #: keys of the points of all rows, in any state
        self._keys: set[PointKey] = set()

    def adopt(self, observation: Observation) -> None:
        """Add a value that another run has measured.

        Raises:
            ValueError: if a trial was recorded before, the point lies outside the space, or the value is not finite.
        """
        if self._rows:
            raise ValueError("Observations must be adopted before the first trial.")
        key = self.space.key(observation["point"])  # raises ValueError if the point lies outside
        if not np.isfinite(observation["value"]):
            raise ValueError(f"The value of an observation must be finite. Received: {observation}.")
        row = self._append(observation["point"], TrialState.COMPLETE)
        self._values[row] = observation["value"]
        self._stds[row] = _std_of(observation.get("std"))
        self.n_adopted += 1
        self._keys.add(key)

    def record(
        self, trial: int, point: Point, state: str, value: float | None = None, *, std: float | None = None
    ) -> None:
        """Add a trial, or record how a pending trial ended; recording the same data again changes nothing.

        A pruned trial that has resumed may be recorded again: as pruned with another value, as complete or as failed.

        Args:
            trial: number of the trial; new trials must come in ascending order.
            value: finite value of a complete or pruned trial; None in any other state.
            std: standard error of the value, if known.

        Raises:
            ValueError: for any other value, a number out of order, a changed point, or a changed end of an ended trial.
        """
        state = TrialState(state)
        if (value is not None) != state.has_value:
            raise ValueError(
                f"A trial must have a value exactly when it is complete or pruned. Received: {state}, {value}."
            )
        number = np.nan if value is None else float(value)
        if value is not None and not np.isfinite(number):
            raise ValueError(f"The value of a {state} trial must be finite. Received: {value} for trial {trial}.")
        error = _std_of(std)
        row = self._rows.get(trial)
        if row is None:
            row = self._add_trial(trial, point)
        else:
            self._check_follows(row, point, state, number)
        self._states[row] = state
        self._values[row] = number
        self._stds[row] = error

    def _add_trial(self, trial: int, point: Point) -> int:
        if self._rows and trial <= next(reversed(self._rows)):
            raise ValueError(
                f"Trials must be recorded in the order of their numbers. Received: {trial} after "
                f"{next(reversed(self._rows))}."
            )
        self._keys.add(self.space.key(point))
        self._rows[trial] = self._append(point, TrialState.PENDING)
        return self._rows[trial]

    def _append(self, point: Point, state: TrialState) -> int:
        row = len(self._points)
        if row == len(self._values):
            self._values, self._stds = (
                np.concatenate([column, np.full(row, np.nan)]) for column in (self._values, self._stds)
            )
        self._points.append(dict(point))
        self._states.append(state)
        return row

    def _check_follows(self, row: int, point: Point, state: TrialState, value: float) -> None:
        if self.space.key(point) != self.space.key(self._points[row]):
            raise ValueError(f"A trial must keep its point. Received: {point} for {self._points[row]}.")
        known, known_value = self._states[row], self._values[row]
        unchanged = state is known and (value == known_value or not state.has_value)
        goes_on = known is TrialState.PRUNED and state is not TrialState.PENDING
        if known is not TrialState.PENDING and not unchanged and not goes_on:
            raise ValueError(f"An ended trial must stay as it is. Received: {state} {value} for {known} {known_value}.")

    def with_values(self, values: np.ndarray) -> "History":
        """Return a read-only history of the same trials with other values, (n_suggested,), finite for ended trials."""
        other = History(self.space)
        other._rows, other._points, other._states, other._keys = self._rows, self._points, self._states, self._keys
        other._values, other._stds = values, np.full(len(values), np.nan)
        return other

    def settled(self) -> "History":
        """Return a read-only history in which pruned trials are complete, for algorithms without a pruned state.

        A pruned trial counts with its own value, or with the best complete value if its own is better: a figure reached
        after fewer epochs must not become the value to improve on.
        """
        if TrialState.PRUNED not in self._states:
            return self
        values, pruned, complete = self.values.copy(), self.rows(TrialState.PRUNED), self.rows(TrialState.COMPLETE)
        if len(complete):
            values[pruned] = np.maximum(values[pruned], values[complete].min())
        other = self.with_values(values)
        other._states = [TrialState.COMPLETE if state is TrialState.PRUNED else state for state in self._states]
        other._stds, other.n_adopted = self._stds, self.n_adopted
        return other

    @property
    def n_suggested(self) -> int:
        """Number of trials, which is the number of points suggested so far."""
        return len(self._rows)

    @property
    def trials(self) -> np.ndarray:
        """Trial numbers, (n_suggested,) int64, ascending."""
        return np.fromiter(self._rows, np.int64, len(self._rows))

    @property
    def points(self) -> Sequence[Point]:
        """The n_adopted + n_suggested points, read only."""
        return self._points

    @property
    def states(self) -> Sequence[TrialState]:
        """The n_adopted + n_suggested states, read only."""
        return self._states

    @property
    def values(self) -> np.ndarray:
        """Values to minimise, (n_adopted + n_suggested,) float64, read only; NaN for trials without a value."""
        return _read_only(self._values[: len(self._points)])

    @property
    def stds(self) -> np.ndarray:
        """Standard errors of the values, (n_adopted + n_suggested,) float64, read only; NaN if not known."""
        return _read_only(self._stds[: len(self._points)])

    def rows(self, state: TrialState) -> np.ndarray:
        """Return the rows in `state`, (n,) int, ascending."""
        return np.array([row for row, known in enumerate(self._states) if known is state], dtype=int)

    def contains(self, point: Point) -> bool:
        """Return True if `point` was tried: by a trial in any state, or by another run."""
        return self.space.key(point) in self._keys

    @property
    def n_distinct(self) -> int:
        """Number of different points tried so far."""
        return len(self._keys)


def _std_of(std: float | None) -> float:
    """Return a standard error as a column stores it: positive or NaN; 0, which equal folds give, is no information."""
    return float(std) if std is not None and np.isfinite(std) and std > 0.0 else np.nan


def _read_only(view: np.ndarray) -> np.ndarray:
    view.flags.writeable = False
    return view


class SearchAlgorithm(Protocol):
    """Chooses the next point.

    An algorithm is a pure function of its space, its seed and the history, without state between calls. The same
    history gives the same point, so the journal alone is enough to restore a search. A point of the history is never
    suggested again, in any state of its trial.
    """

    def suggest(self, history: History) -> Point | None:
        """Return the next point as a new dict; None if the history holds every point of the space."""
