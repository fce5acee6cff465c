"""The search: what it knows (the history), and what it is (a pure function from a history to the next point)."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NotRequired, Protocol, TypedDict

import numpy as np

from nnlo_opt.space.space import Point, PointKey, Space


class TrialState(StrEnum):
    """What the search knows of a trial: still open, ended with a value, or ended without one.

    A pruned trial was given up before its last epoch: `value` is the figure it had then, finite. A paused trial is told
    as pruned too, and told again when it has gone on.
    """

    PENDING = "pending"
    COMPLETE = "complete"
    FAILED = "failed"
    PRUNED = "pruned"

    @property
    def has_value(self) -> bool:
        """Whether a trial in this state has a value."""
        return self in (TrialState.COMPLETE, TrialState.PRUNED)


class TrialRecord(TypedDict):
    """What is told of one trial, as plain data: the arguments of `History.record`."""

    trial: int
    point: Point
    state: str
    value: float | None
    std: NotRequired[float | None]
    #: of several objectives, in their order: for `search.scalarisation.VectorHistory` only
    losses: NotRequired[list[float]]


class Observation(TypedDict):
    """A value measured elsewhere, at a point of this space: by a trial of another run."""

    point: Point
    value: float
    std: NotRequired[float | None]


class History:
    """All trials of a search by column, row by row in the order in which they were suggested.

    It only grows: a trial is first recorded pending, and again when it ends. The columns depend on what is known, never
    on the order in which the trials ended, so neither does a suggestion. Values are minimised.

    The first `n_adopted` rows are observations that were adopted from other runs: complete, without a trial here, and
    free to be tried here too.
    """

    def __init__(self, space: Space) -> None:
        #: the space of all points here
        self.space = space
        #: trial number -> row; numbers grow with the rows
        self._rows: dict[int, int] = {}
        #: one point for each row; never changed once recorded
        self._points: list[Point] = []
        #: one state for each row; only pending and pruned change
        self._states: list[TrialState] = []
        #: one value for each row, of which the first `len(self._points)` are in use; NaN unless complete or pruned
        self._values = np.full(64, np.nan)
        #: standard error of each value, as `_values`; NaN where it is not known
        self._stds = np.full(64, np.nan)
        #: rows without a trial, the first ones; fixed with the first trial
        self.n_adopted = 0
        #: keys of all points, in whatever state their trials are
        self._keys: set[PointKey] = set()

    def adopt(self, observation: Observation) -> None:
        """Add what another run has measured; ValueError after the first trial, and for a value that is not finite."""
        if self._rows:
            raise ValueError("Observations must be adopted before the first trial.")
        self.space.key(observation["point"])  # ValueError where it lies outside
        if not np.isfinite(observation["value"]):
            raise ValueError(f"The value of an observation must be finite. Received: {observation}.")
        row = self._append(observation["point"], TrialState.COMPLETE)
        self._values[row] = observation["value"]
        self._stds[row] = _std_of(observation.get("std"))
        self.n_adopted += 1

    def record(
        self, trial: int, point: Point, state: str, value: float | None = None, *, std: float | None = None
    ) -> None:
        """Add a trial, or tell how a pending one ended; saying the same again changes nothing.

        `value` is finite and belongs to a complete or a pruned trial only; `std` is its standard error where that is
        known. ValueError for anything else: other values, a number out of order, another point for a known trial,
        another end for an ended one. A pruned trial that has gone on may be told again: pruned with another value,
        complete or failed.
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
        """The same trials with other (n_suggested,) values, finite where a trial has one; to be read only."""
        other = History(self.space)
        other._rows, other._points, other._states, other._keys = self._rows, self._points, self._states, self._keys
        other._values, other._stds = values, np.full(len(values), np.nan)
        return other

    def settled(self) -> "History":
        """The same trials, the pruned ones complete, for algorithms that know no others; to be read only.

        Each counts as the value it had, or as the best complete one where that is worse: a figure of fewer epochs must
        not be what others have to improve on.
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
        """How many points were ever suggested: the number of trials."""
        return len(self._rows)

    @property
    def trials(self) -> np.ndarray:
        """(n_suggested,) int64: trial numbers, growing."""
        return np.fromiter(self._rows, np.int64, len(self._rows))

    @property
    def points(self) -> Sequence[Point]:
        """n_adopted + n_suggested points; to be read only."""
        return self._points

    @property
    def states(self) -> Sequence[TrialState]:
        """n_adopted + n_suggested states; to be read only."""
        return self._states

    @property
    def values(self) -> np.ndarray:
        """(n_adopted + n_suggested,) float64, read only: the values to minimise, NaN for trials that have none."""
        return _read_only(self._values[: len(self._points)])

    @property
    def stds(self) -> np.ndarray:
        """(n_adopted + n_suggested,) float64, read only: standard errors of the values, NaN where not known."""
        return _read_only(self._stds[: len(self._points)])

    def rows(self, state: TrialState) -> np.ndarray:
        """(n,) int: the rows in `state`, growing."""
        return np.array([row for row, known in enumerate(self._states) if known is state], dtype=int)

    def contains(self, point: Point) -> bool:
        """Whether `point` was suggested before, whatever became of it."""
        return self.space.key(point) in self._keys

    @property
    def n_distinct(self) -> int:
        """How many different points were suggested."""
        return len(self._keys)


def _std_of(std: float | None) -> float:
    """A standard error as a column holds it: positive, or NaN; 0, which equal folds give, says nothing."""
    return float(std) if std is not None and np.isfinite(std) and std > 0.0 else np.nan


def _read_only(view: np.ndarray) -> np.ndarray:
    view.flags.writeable = False
    return view


class SearchAlgorithm(Protocol):
    """What to try next.

    A pure function of its space, its seed and the history, with no state between calls: the same history gives the same
    point, so a search is restored by its journal alone. A point of the history never comes again, in whatever state its
    trial is.
    """

    def suggest(self, history: History) -> Point | None:
        """The next point, a fresh dict; None when every point of the space is in the history."""
        ...
