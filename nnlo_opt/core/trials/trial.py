"""Trial: one point of the search space and its measurements."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from statistics import fmean
from typing import Any


class TrialState(StrEnum):
    """State of a trial; its value is the text in `results.csv`.

    >>> [state.value for state in TrialState if state.ended]
    ['complete', 'failed', 'pruned']
    """

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    PRUNED = "pruned"
    PAUSED = "paused"
    PREEMPTED = "preempted"

    @property
    def ended(self) -> bool:
        """True if the trial has ended."""
        return self in (TrialState.COMPLETE, TrialState.FAILED, TrialState.PRUNED)


class AssignmentEnd(StrEnum):
    """End of an assignment; every assignment ends in exactly one way."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of an assignment's ranks or script; it counts against `--max-attempts`."""

    #: epochs reported before it
    epoch: int
    #: what was lost, and the cause if known
    reason: str
    #: True if only the script was killed, and the ranks are alive
    of_script: bool = False


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
    #: term in which it was made, in a run that several jobs share; else 0
    term: int = 0
    #: time at which its workers were ready; None before that
    started_at_s: float | None = None
    #: idle seconds of its team before it; None for a team's first assignment
    waited_s: float | None = None
    #: epochs restored from a checkpoint
    first_epoch: int = 0
    #: number of the last reported epoch
    epoch: int = 0
    #: metrics of that epoch
    metrics: dict[str, float] = field(default_factory=dict)
    #: None while it is running
    end: AssignmentEnd | None = None
    ended_at_s: float | None = None
    #: cause of its failure or loss, or empty
    reason: str = ""
    #: losses in order; the assignment continued with the remaining ranks, unless it ended as LOST with the last one
    losses: list[Loss] = field(default_factory=list)

    @property
    def identity(self) -> tuple[int, int]:
        """Term and number: a coordinator that was overtaken may use a number again."""
        return self.term, self.number


@dataclass(slots=True, kw_only=True)
class FoldResult:
    """Result of a finished fold."""

    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    train_s: float
    #: objective -> value; empty if there is only the figure of merit
    objectives: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, end: object) -> "FoldResult":
        """Return the result in a message or event about the end of a fold."""
        return cls(**{own.name: getattr(end, own.name) for own in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordedFold:
    """Fold that finished after the coordinator died, so its result is not in the journal."""

    #: number of the assignment in the journal
    assignment: int
    trial: int
    fold: int
    attempt: int
    point: dict[str, Any]
    result: FoldResult
    reason: str = ""

    def is_of(self, assignment: Assignment, point: dict[str, Any]) -> bool:
        """Return True if this is the result of `assignment` for a trial at `point`."""
        own = self.assignment, self.trial, self.fold, self.attempt
        return own == (assignment.number, assignment.trial, assignment.fold, assignment.attempt) and point == self.point


@dataclass(slots=True, kw_only=True)
class Trial:
    """Measurements and state of one trial, as exporters and reports read it.

    Do not set attributes from outside: only the ledger may change a trial, because its indices and counts depend on it.
    """

    number: int
    point: dict[str, Any]
    #: "enqueued", "start point" or "likely values"; empty if the algorithm chose the point
    origin: str = ""
    state: TrialState = TrialState.PENDING
    #: fold -> result of a finished fold
    folds: dict[int, FoldResult] = field(default_factory=dict)
    #: all attempts, in the order of assignment
    assignments: list[Assignment] = field(default_factory=list)
    #: fold -> number of epochs -> figure of merit of the first report; epochs in increasing order
    reports: dict[int, dict[int, float]] = field(default_factory=dict)
    #: fold -> number of its first epoch in its code's counting, 1 or 0, known from the first report
    first_epochs: dict[int, int] = field(default_factory=dict)
    #: number of rungs passed
    n_rungs: int = 0
    #: mean over the folds, then population standard deviation; None until the trial is complete
    figure_of_merit: float | None = None
    figure_of_merit_std: float | None = None
    #: objective -> the same; empty for a single objective, and until the trial is complete
    objectives: dict[str, float] = field(default_factory=dict)
    objectives_std: dict[str, float] = field(default_factory=dict)
    #: name -> mean over the folds of a value bounded by an outcome constraint, NaN if a fold lacks it; empty until the
    #: trial is complete
    outcomes: dict[str, float] = field(default_factory=dict)
    #: True if it satisfies all outcome constraints; None until the trial is complete
    feasible: bool | None = None
    #: mean over the folds when it was last paused or pruned; None before
    figure_so_far: float | None = None
    #: cause of its failure or pruning
    reason: str = ""
    ended_at_s: float | None = None

    @property
    def running(self) -> list[Assignment]:
        """Running assignments."""
        return [assignment for assignment in self.assignments if assignment.end is None]

    @property
    def finite_outcomes(self) -> dict[str, float]:
        """Its known outcomes."""
        return {name: value for name, value in self.outcomes.items() if math.isfinite(value)}

    @property
    def standing(self) -> str:
        """Its state, or `infeasible` if it is complete but violates an outcome constraint."""
        return "infeasible" if self.feasible is False else self.state.value

    @property
    def curve(self) -> dict[int, float]:
        """Epochs -> mean figure of merit over the folds that have reported it."""
        if len(self.reports) == 1:
            return dict(next(iter(self.reports.values())))
        epochs = sorted({epoch for reports in self.reports.values() for epoch in reports})
        return {epoch: fmean(r[epoch] for r in self.reports.values() if epoch in r) for epoch in epochs}

    @property
    def standard_error(self) -> float | None:
        """Standard error of the figure of merit over the folds; None for a single fold."""
        if self.figure_of_merit_std is None or len(self.folds) < 2:
            return None
        return self.figure_of_merit_std / math.sqrt(len(self.folds) - 1)

    def n_attempts(self, fold: int) -> int:
        """Return the number of attempts at `fold`; a paused assignment and its resumption are one attempt."""
        return sum(a.fold == fold and a.end is not AssignmentEnd.PAUSED for a in self.assignments)


#: what may differ between failures with the same cause: points, addresses, numbers, but not the line of code
_VARYING = re.compile(r"(line \d+)|\{[^{}]*\}|0x[0-9a-f]+|[-+]?\d[\d.,]*(?:e[-+]?\d+)?|[-+]?\b(?:nan|inf)\b")


@dataclass(frozen=True, slots=True)
class Failure:
    """Failures with the same cause: the reason of the first, and the numbers of all trials."""

    reason: str
    trials: list[int]


def failures(trials: Iterable[Trial]) -> list[Failure]:
    """Group failed trials by cause, the most frequent first."""
    found: dict[str, Failure] = {}
    for trial in trials:
        if trial.state is TrialState.FAILED:
            cause = cause_of(trial.reason, trial.point)
            found.setdefault(cause, Failure(trial.reason, [])).trials.append(trial.number)
    return sorted(found.values(), key=lambda failure: -len(failure.trials))


def cause_of(reason: str, point: Mapping[str, Any]) -> str:
    """Return the reason of a failure at `point` without numbers and values of the point, except the line of code."""
    words = [re.escape(value) for value in point.values() if isinstance(value, str) and len(value) > 2]
    cause = re.sub(rf"\b(?:{'|'.join(words)})\b", "#", reason) if words else reason
    return _VARYING.sub(lambda found: found[1] or "#", cause)
