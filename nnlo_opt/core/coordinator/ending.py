"""End of a search: phase of the run, why no new trial begins, times of a preemption.

A search *drains* when no new trial begins: enough trials have begun, the target is reached, a limit is reached. It is
*preempted* when running trials must write a checkpoint and end, because this start has no more time.
"""

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.coordinator.instructions import Budget, FinishRun, SearchPlan
from nnlo_opt.core.coordinator.outcomes import trial_losses
from nnlo_opt.core.trials.ledger import Ledger, Session
from nnlo_opt.core.trials.objectives import Objective, ParetoSet
from nnlo_opt.core.trials.trial import AssignmentEnd, Trial, TrialState, cause_of

#: the expected duration of a trial is this quantile of the complete trials' durations
QUANTILE = 0.9
#: shares of a grace period: for folds to write a checkpoint, then for others to stop; the rest is for reports
PAUSE_PART, STOP_PART = 0.75, 0.15
#: share of the end of a walltime for folds to write a checkpoint; the other folds have as long again to stop
WALLTIME_PAUSE_PART = 0.25


class Phase(Enum):
    """Phase of the run; it only ever moves forward."""

    OPENING = auto()
    SEARCHING = auto()
    #: no new trial begins; running trials end
    DRAINING = auto()
    OVER = auto()


class Ending:
    """Decides when no new trial begins; has the times at which preempted assignments must stop.

    Args:
        plan: goal of the search.
    """

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        #: only moves forward
        self.phase = Phase.OPENING
        #: reason to begin no new trial; empty while searching
        self.reason = ""
        #: True if this start ends before the search is complete
        self.cut_short = False
        #: True while paused trials may be promoted: until the target, or a limit of time or patience is reached
        self.promotes = True
        #: True once running assignments have to pause or stop; no other assignment begins
        self.preempting = False
        #: reason of the preemption; empty without one
        self.preempted_because = ""
        #: while preempting: time at which assignments that have not paused are told to stop (inf once done), and time
        #: at which teams that have not stopped are abandoned
        self._stop_at_s = self._abandon_at_s = math.inf
        #: False if preempted teams that did not stop in time are abandoned
        self.all_stopped = True
        self._forget()

    def _forget(self) -> None:
        #: seconds that each of the complete trials took, sorted
        self._durations: list[float] = []
        #: number of trials since the last improvement
        self._progress = Progress(self._plan.objectives, self._plan.direction)
        #: True if a trial has ended without failing
        self._has_success = False
        self._forget_failures()

    def _forget_failures(self) -> None:
        #: number of failed trials, and the set of their causes
        self._n_failed, self._causes = 0, set[str]()

    # ------------------------------------------------------------ no new trial begins

    def begin(self) -> None:
        """Enter the phase SEARCHING."""
        self.phase = Phase.SEARCHING

    def drain(self, reason: str) -> None:
        """Begin no new trial; keeps only the first reason."""
        if self.phase is Phase.SEARCHING:
            self.phase, self.reason = Phase.DRAINING, reason

    def stop(self, reason: str) -> None:
        """Begin and promote no trial in this start, at a user's request; the search is not complete."""
        self.promotes = False
        if self.phase is Phase.SEARCHING:
            self.cut_short = True
            self.drain(reason)

    def replay(self, ledger: Ledger) -> None:
        """Process all ended trials, in the order of their ends."""
        self._forget()
        for trial in ledger.ended:
            self.take(trial)
        self._forget_failures()  # the cause may have been fixed: this start may have as many failures again
        if best := ledger.best(self._plan.direction):
            self.check_target(best)

    def take(self, trial: Trial) -> None:
        """Process an ended trial: its duration, and whether it is an improvement."""
        if (lasted_s := duration_s(trial)) is not None:
            insort(self._durations, lasted_s)
        self._progress.take(trial)
        if trial.state is TrialState.FAILED:
            self._n_failed += 1
            self._causes.add(cause_of(trial.reason, trial.point))
        else:
            self._has_success = True
        most = self._plan.budget.n_without_improvement
        if most is not None and self._progress.n_without >= most:
            self.promotes = False
            n = self._progress.n_without
            self.drain(f"no improvement in the last {f'{n} trials' if n > 1 else 'trial'}")

    def check_target(self, trial: Trial) -> None:
        """Drain if a trial is better than the target."""
        target, figure = self._plan.target_objective, trial.figure_of_merit
        if target is None or figure is None or trial.feasible is False:
            return
        if figure > target if self._plan.direction == "max" else figure < target:
            self.promotes = False
            self.drain(f"the target of {target:g} is reached: trial {trial.number} has {figure:g}")

    def check_count(self, n_trials: int, *, is_used_up: bool, n_adopted: int = 0) -> None:
        """Drain if all requested trials have begun, or if the search has no other point.

        Args:
            n_trials: trials begun.
            is_used_up: True if no point is left.
            n_adopted: observations of other runs; their points count as tried.
        """
        if not self._plan.allows(n_trials):
            self.drain("all trials are done")
        if is_used_up:
            which = f", {n_trials} here and the rest by earlier runs" if n_adopted else ""
            n_points = "" if n_adopted else f"{n_trials} "
            self.drain(f"the search has no new point: all its {n_points}points have been tried{which}")

    def only_fails(self, trials: Iterable[Trial]) -> bool:
        """Return True if too many trials have failed for the same reason, and none of `trials` has a result."""
        most = self._plan.budget.n_alike_failures
        if not most or self._n_failed < most or len(self._causes) > 1 or self._has_success:
            return False
        return not any(trial.reports for trial in trials if not trial.state.ended)

    def check_failures(self, trials: Iterable[Trial]) -> None:
        """Drain if `only_fails`; call when no trial is running."""
        if self.only_fails(trials):
            self.drain(
                f"{self._n_failed} trials failed for the same reason, and none succeeded (`{spelled('max_failures')}`)"
            )

    def check_time(self, sessions: Sequence[Session], now_s: float) -> None:
        """Drain if the time allows no further trial."""
        budget = self._plan.budget
        if budget.is_timed_out(sessions, now_s):
            self.promotes = False
            self.drain(f"`{spelled('timeout')}` of {budget.timeout_s:g} s is reached")
        elif self.phase is Phase.SEARCHING and budget.leaves_no_trial(expected_s(self._durations), now_s):
            self.cut_short = True
            self.drain("the walltime leaves no time for another trial")

    # ------------------------------------------------------------ assignments under way end too

    def preempt(self, reason: str, stop_at_s: float, abandon_at_s: float) -> None:
        """Also end the running assignments.

        Args:
            reason: reason of the preemption, for users.
            stop_at_s: time at which assignments that have not paused must stop. abandon_at_s: time at which teams that
                have not stopped are abandoned.
        """
        self.preempting, self.preempted_because = True, reason
        self._stop_at_s, self._abandon_at_s = stop_at_s, abandon_at_s
        self.drain(reason)

    def stops(self, now_s: float) -> bool:
        """Return True once, when assignments that have not paused must stop."""
        if now_s < self._stop_at_s:
            return False
        self._stop_at_s = math.inf
        return True

    def abandons(self, now_s: float) -> bool:
        """Return True when teams that have not stopped are to be abandoned."""
        if now_s < self._abandon_at_s:
            return False
        self.all_stopped = False
        return True

    def is_complete(self, *, is_left: bool) -> bool:
        """Return True if the search is complete, not only this start; `is_left`: a trial was to continue."""
        return not (self.cut_short or is_left or self.reason == self.preempted_because)

    def finish(self, *, is_left: bool) -> FinishRun:
        """Enter the phase OVER; no assignment is running. `is_left`: as in `is_complete`."""
        self.phase = Phase.OVER
        reason = self.preempted_because if self.preempting and is_left else self.reason
        return FinishRun(reason=reason, complete=self.is_complete(is_left=is_left), all_stopped=self.all_stopped)


def grace_times(now_s: float, grace_s: float) -> tuple[float, float]:
    """Return the times at which folds have to stop and at which teams are abandoned, if `grace_s` seconds are left."""
    stop_at_s = now_s + PAUSE_PART * grace_s
    return stop_at_s, stop_at_s + STOP_PART * grace_s


def walltime_times(budget: Budget) -> tuple[float, float]:
    """Return the same two times at the end of a walltime; the budget must have a deadline."""
    assert budget.deadline_s is not None
    stop_at_s = budget.deadline_s - (1 - WALLTIME_PAUSE_PART) * budget.end_s
    return stop_at_s, budget.deadline_s - budget.end_s / 2 if budget.end_s else math.inf


# ---------------------------------------------------------------- trials that have ended


def duration_s(trial: Trial) -> float | None:
    """Return the seconds that a complete trial occupied its block, without pauses.

    None for a trial that is not complete, or was interrupted by the end of a start.
    """
    interrupted = any(a.end in (AssignmentEnd.LOST, AssignmentEnd.PREEMPTED) for a in trial.assignments)
    if trial.state is not TrialState.COMPLETE or trial.ended_at_s is None or not trial.assignments or interrupted:
        return None
    paused_s, until_s = 0.0, trial.assignments[0].assigned_at_s
    for assignment in trial.assignments:  # in the order they were assigned
        paused_s += max(0.0, assignment.assigned_at_s - until_s)
        until_s = max(until_s, assignment.ended_at_s or trial.ended_at_s)
    return trial.ended_at_s - trial.assignments[0].assigned_at_s - paused_s


def expected_s(durations: Sequence[float]) -> float | None:
    """Return the expected duration of the next trial: the quantile QUANTILE of earlier ones.

    None before there is a trial; `durations` must be sorted.
    """
    return durations[math.ceil(QUANTILE * len(durations)) - 1] if durations else None


@dataclass(slots=True)
class Progress:
    """Counts the trials since the last improvement.

    With one objective, a trial is an improvement if it is better than all earlier ones. With several, it is one if it
    enters the Pareto set and no earlier trial had the same losses. Failed, pruned and infeasible trials are not
    improvements; trials left paused at the end of a search do not count.

    Args:
        objectives: the objectives if there are several, else none.
        direction: "min" or "max"; direction of the figure of merit, used without several objectives.
    """

    objectives: Sequence[Objective]
    direction: str
    #: number of trials that have ended since the last improvement
    n_without: int = field(default=0, init=False)
    _pareto: ParetoSet = field(default_factory=ParetoSet, init=False)
    #: losses that were in the set: another trial with the same losses is not an improvement
    _seen: set[tuple[float, ...]] = field(default_factory=set, init=False)

    def take(self, trial: Trial) -> None:
        """Process an ended trial."""
        if trial.state is TrialState.PRUNED and trial.assignments[-1].end is AssignmentEnd.PAUSED:
            return
        self.n_without += 1
        found = None if trial.feasible is False else trial_losses(trial, self.objectives, self.direction)
        if found is not None and found not in self._seen and self._pareto.add(trial.number, found):
            self._seen.add(found)
            self.n_without = 0
