"""What a search may spend, and when it is spent: pure functions of the ledger and the time.

`--num-iterations` and `--target-objective` are rules of the coordinator itself. Here are those of time (`timeout_s`,
`deadline_s`) and of progress (`n_without_improvement`).
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from nnlo_opt.trials.ledger import Ledger, Session
from nnlo_opt.trials.objectives import Objective, losses
from nnlo_opt.trials.pareto import ParetoSet
from nnlo_opt.trials.trial import AssignmentEnd, Trial, TrialState

#: a trial is taken to last as long as this part of those that are complete did not exceed
QUANTILE = 0.9
#: what is kept of a walltime to stop trials, save the best model and write the reports: seconds, and part of it
END_S, END_PART = 30.0, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a search may spend besides trials. Times in seconds; None: no bound."""

    #: of searching, over all starts of the run
    timeout_s: float | None = None
    #: when this start must have ended; seconds since the first start of the run
    deadline_s: float | None = None
    #: how much of the time before the deadline is for ending in good order
    end_s: float = 0.0
    #: trials that may end in a row without being better than those before
    n_without_improvement: int | None = None
    #: of one fold since its assignment; then its trial fails
    trial_timeout_s: float | None = None

    @property
    def has_time(self) -> bool:
        """Whether the time alone may end the search, or a trial."""
        return any(time_s is not None for time_s in (self.timeout_s, self.deadline_s, self.trial_timeout_s))

    def is_overdue(self, assigned_at_s: float, now_s: float) -> bool:
        """Whether a fold that was assigned then, and has not ended, takes too long."""
        return self.trial_timeout_s is not None and now_s - assigned_at_s > self.trial_timeout_s

    def is_timed_out(self, sessions: Sequence[Session], now_s: float) -> bool:
        """Whether `timeout_s` is spent; the last of the sessions is the one under way."""
        return self.timeout_s is not None and searched_s(sessions, now_s) >= self.timeout_s

    def leaves_no_trial(self, expected_s: float | None, now_s: float) -> bool:
        """Whether a trial of `expected_s` (None: nobody knows) that began now would come to its end too late."""
        return self.deadline_s is not None and now_s + (expected_s or 0.0) > self.deadline_s - self.end_s

    def is_over(self, now_s: float) -> bool:
        """Whether whatever still runs has to stop for this start to end in time."""
        return self.deadline_s is not None and now_s >= self.deadline_s - self.end_s


def end_of(walltime_s: float) -> float:
    """Seconds of a walltime that are kept for its end."""
    return min(END_S, END_PART * walltime_s)


def searched_s(sessions: Sequence[Session], now_s: float) -> float:
    """Seconds of searching so far: the time between two starts does not count. One session at least."""
    *before, current = sessions
    return sum(session.last_at_s - session.started_at_s for session in before) + now_s - current.started_at_s


def duration_s(trial: Trial) -> float | None:
    """Seconds in which a complete trial was on its block: what it was paused for does not count.

    None for one of several starts, and for any other trial.
    """
    interrupted = any(a.end in (AssignmentEnd.LOST, AssignmentEnd.PREEMPTED) for a in trial.assignments)
    if trial.state is not TrialState.COMPLETE or trial.ended_at_s is None or not trial.assignments or interrupted:
        return None
    paused_s, until_s = 0.0, trial.assignments[0].assigned_at_s
    for assignment in trial.assignments:  # in the order they were assigned
        paused_s += max(0.0, assignment.assigned_at_s - until_s)
        until_s = max(until_s, assignment.ended_at_s or trial.ended_at_s)
    return trial.ended_at_s - trial.assignments[0].assigned_at_s - paused_s


@dataclass(slots=True)
class Durations:
    """What a trial is expected to last, by those that are complete."""

    #: seconds, growing
    _all: list[float] = field(default_factory=list, init=False)

    def take(self, trial: Trial) -> None:
        """A trial has ended."""
        lasted_s = duration_s(trial)
        if lasted_s is not None:
            insort(self._all, lasted_s)

    @property
    def expected_s(self) -> float | None:
        """The shortest of their times that the part QUANTILE of them did not exceed; None before there is one."""
        return self._all[math.ceil(QUANTILE * len(self._all)) - 1] if self._all else None


@dataclass(slots=True)
class Progress:
    """How long the search has not become better.

    A trial improves one objective when it is better than all before; several, when it enters the Pareto set and no
    trial before had the same losses. Failed and pruned trials count as no improvement; those that were left paused at
    the end of a search do not count.
    """

    #: the several, or none where the figure of merit alone counts, with its direction
    objectives: Sequence[Objective]
    direction: str
    #: trials that have ended since the last one that was better
    n_without: int = field(default=0, init=False)
    _pareto: ParetoSet = field(default_factory=ParetoSet, init=False)
    #: losses that were in the set, so that a trial of the same does not count as an improvement
    _seen: set[tuple[float, ...]] = field(default_factory=set, init=False)

    def take(self, trial: Trial) -> None:
        """A trial has ended."""
        if trial.state is TrialState.PRUNED and trial.assignments[-1].end is AssignmentEnd.PAUSED:
            return
        self.n_without += 1
        found = trial_losses(trial, self.objectives, self.direction)
        if found is not None and found not in self._seen and self._pareto.add(trial.number, found):
            self._seen.add(found)
            self.n_without = 0


def trial_losses(trial: Trial, objectives: Sequence[Objective], direction: str) -> tuple[float, ...] | None:
    """What is minimised of a trial, one value or several; None unless it is complete."""
    if trial.figure_of_merit is None:
        return None
    if objectives:
        return losses(objectives, trial.objectives)
    return (-trial.figure_of_merit if direction == "max" else trial.figure_of_merit,)


def by_end(ledger: Ledger) -> list[Trial]:
    """The trials that have ended, in the order in which they did."""
    ended = [trial for trial in ledger.trials if trial.state.ended]
    return sorted(ended, key=lambda trial: (trial.ended_at_s or 0.0, trial.number))
