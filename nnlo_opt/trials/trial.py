"""A trial: one point of the search space and all that was measured for it."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TrialState(StrEnum):
    """Where a trial stands; the words of `results.csv`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    PRUNED = "pruned"
    PAUSED = "paused"
    PREEMPTED = "preempted"

    @property
    def ended(self) -> bool:
        """Whether nothing more will be measured for the trial."""
        return self in (TrialState.COMPLETE, TrialState.FAILED, TrialState.PRUNED)


class AssignmentEnd(StrEnum):
    """How an assignment ended; every assignment ends in exactly one way."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Loss:
    """Ranks that trained an assignment were lost, and that counts against `--max-attempts`."""

    #: epochs reported by then
    epoch: int
    #: who was lost, and how, as far as is known
    reason: str


@dataclass(slots=True, kw_only=True)
class Assignment:
    """One attempt to run one fold of a trial on one team."""

    number: int
    trial: int
    fold: int
    attempt: int
    block: int
    team: int
    n_ranks: int
    assigned_at_s: float
    #: when its workers were ready; None before
    started_at_s: float | None = None
    #: seconds its team was idle before; None for a team's first assignment
    waited_s: float | None = None
    #: last epoch reported
    epoch: int = 0
    #: None while it is under way
    end: AssignmentEnd | None = None
    ended_at_s: float | None = None
    #: why it failed or was lost; empty unless it did
    reason: str = ""
    #: in their order; it went on with the ranks that were left, unless it ended LOST with the last of them
    losses: list[Loss] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class FoldResult:
    """What a finished fold returned."""

    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    train_s: float
    #: value of every objective by name; empty where the figure of merit is all that counts
    objectives: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordedFold:
    """A fold that finished when nobody could write that in the journal any more."""

    #: what the journal says of the assignment
    assignment: int
    trial: int
    fold: int
    attempt: int
    point: dict[str, Any]
    #: what came of it
    result: FoldResult
    reason: str = ""

    def is_of(self, assignment: Assignment, point: dict[str, Any]) -> bool:
        """Whether it is what came of this `assignment` of a trial at `point`."""
        own = self.assignment, self.trial, self.fold, self.attempt
        return own == (assignment.number, assignment.trial, assignment.fold, assignment.attempt) and point == self.point


@dataclass(slots=True, kw_only=True)
class Trial:
    """Everything known of one trial. Only the ledger changes it."""

    number: int
    point: dict[str, Any]
    state: TrialState = TrialState.PENDING
    #: by fold number; only finished folds
    folds: dict[int, FoldResult] = field(default_factory=dict)
    #: all attempts, in the order they were assigned
    assignments: list[Assignment] = field(default_factory=list)
    #: fold -> epochs done -> figure of merit, as they were reported first; epochs grow
    reports: dict[int, dict[int, float]] = field(default_factory=dict)
    #: rungs it has passed
    n_rungs: int = 0
    #: mean and population standard deviation over the folds; None before the trial is complete
    figure_of_merit: float | None = None
    figure_of_merit_std: float | None = None
    #: the same of every objective by name; empty where there are not several, or before the trial is complete
    objectives: dict[str, float] = field(default_factory=dict)
    objectives_std: dict[str, float] = field(default_factory=dict)
    #: mean over the folds when it was last paused, or pruned; None before. A figure of fewer epochs
    figure_so_far: float | None = None
    #: why it failed or was pruned, in a sentence
    reason: str = ""
    ended_at_s: float | None = None

    @property
    def running(self) -> list[Assignment]:
        """Assignments under way."""
        return [assignment for assignment in self.assignments if assignment.end is None]

    @property
    def standard_error(self) -> float | None:
        """Standard error of the figure of merit, from its folds; None where there are not several."""
        if self.figure_of_merit_std is None or len(self.folds) < 2:
            return None
        return self.figure_of_merit_std / math.sqrt(len(self.folds) - 1)

    def n_attempts(self, fold: int) -> int:
        """How often `fold` was assigned; to be paused and to go on is one attempt."""
        return sum(a.fold == fold and a.end is not AssignmentEnd.PAUSED for a in self.assignments)
