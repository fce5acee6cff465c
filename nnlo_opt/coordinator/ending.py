"""What ends a search, and how far it has come with that. Pure; what it costs to end is for others.

A search *drains* when no new trial begins: enough have begun, the target is reached, a budget is spent. It is
*preempted* when what is under way has to come to a checkpoint and end as well, as this start has no more time.
"""

import math
from collections.abc import Sequence
from enum import Enum, auto

from nnlo_opt.coordinator.budget import Budget, Durations, Progress, by_end
from nnlo_opt.coordinator.instructions import Finish, SearchPlan
from nnlo_opt.trials.ledger import Ledger, Session
from nnlo_opt.trials.trial import Trial

#: parts of a grace: for folds to come to a checkpoint, and for those that did not to stop; the rest is for reports
PAUSE_PART, STOP_PART = 0.75, 0.15
#: part of the end of a walltime for folds to come to a checkpoint; as much again is for those that did not to stop
WALLTIME_PAUSE_PART = 0.25


class Phase(Enum):
    """Where the run stands."""

    OPENING = auto()
    SEARCHING = auto()
    #: no new trial begins; running ones end
    DRAINING = auto()
    OVER = auto()


class Ending:
    """Knows why no new trial begins, and until when what is under way may go on."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        #: goes one way only
        self.phase = Phase.OPENING
        #: why no new trial begins; empty while searching
        self.reason = ""
        #: the time of this start ends the search before it is over
        self.cut_short = False
        #: whether paused trials may be promoted: until the target is reached, or time or patience are spent
        self.promotes = True
        #: assignments under way were told to pause or stop, and no other begins
        self.preempting = False
        #: while preempting: why
        self.preempted_because = ""
        #: while preempting: when what has not paused is told to stop (inf: it was), and when it no longer counts
        self.stop_at_s = self.give_up_at_s = math.inf
        #: False: preempted teams that did not stop in time no longer count
        self.all_stopped = True
        self._forget()

    def _forget(self) -> None:
        #: what trials have lasted, and how long none was better: of the trials that have ended
        self._durations, self._progress = Durations(), Progress(self._plan.objectives, self._plan.direction)

    # ------------------------------------------------------------ no new trial begins

    def begin(self) -> None:
        """The run is open."""
        self.phase = Phase.SEARCHING

    def drain(self, reason: str) -> None:
        """Begin no new trial, if there is not another reason for that already."""
        if self.phase is Phase.SEARCHING:
            self.phase, self.reason = Phase.DRAINING, reason

    def replay(self, ledger: Ledger) -> None:
        """Take in what has ended so far, in the order in which it did."""
        self._forget()
        for trial in by_end(ledger):
            self.take(trial)
        if best := ledger.best(self._plan.direction):
            self.check_target(best)

    def take(self, trial: Trial) -> None:
        """Learn from a trial that has ended what the next one may cost, and whether the search still gets better."""
        self._durations.take(trial)
        self._progress.take(trial)
        most = self._plan.budget.n_without_improvement
        if most is not None and self._progress.n_without >= most:
            self.promotes = False
            self.drain(f"the last {self._progress.n_without} trials have not been better than those before")

    def check_target(self, trial: Trial) -> None:
        """Drain where a trial is better than the target."""
        target, figure = self._plan.target_objective, trial.figure_of_merit
        if target is None or figure is None:
            return
        if figure > target if self._plan.direction == "max" else figure < target:
            self.promotes = False
            self.drain(f"the target of {target:g} is reached: trial {trial.number} has {figure:g}")

    def check_count(self, n_trials: int, *, is_used_up: bool) -> None:
        """Begin no more trials than were asked for, or than the space has points."""
        if n_trials >= self._plan.num_iterations:
            self.drain(f"all {self._plan.num_iterations} trials are done")
        if is_used_up:
            self.drain(f"the search space is used up: all its {n_trials} points have been tried")

    def check_time(self, sessions: Sequence[Session], now_s: float) -> None:
        """Begin no trial that the time does not allow."""
        budget = self._plan.budget
        if budget.is_timed_out(sessions, now_s):
            self.promotes = False
            self.drain(f"its time of {budget.timeout_s:g} s is spent")
        elif self.phase is Phase.SEARCHING and budget.leaves_no_trial(self._durations.expected_s, now_s):
            self.cut_short = True
            self.drain("the walltime leaves no time for another trial")

    # ------------------------------------------------------------ what is under way ends too

    def preempt(self, reason: str, stop_at_s: float, give_up_at_s: float) -> None:
        """Have what is under way end as well: told to stop at the one time, and no longer counted from the other."""
        self.preempting, self.preempted_because = True, reason
        self.stop_at_s, self.give_up_at_s = stop_at_s, give_up_at_s
        self.drain(reason)

    def is_complete(self, *, is_left: bool) -> bool:
        """Whether the search is over, and not only this start of it; `is_left`: a trial was to go on."""
        return not (self.cut_short or is_left or self.reason == self.preempted_because)

    def finish(self, *, is_left: bool) -> Finish:
        """Nothing is under way any more; `is_left`: as `is_complete`."""
        self.phase = Phase.OVER
        reason = self.preempted_because if self.preempting and is_left else self.reason
        return Finish(reason=reason, complete=self.is_complete(is_left=is_left), all_stopped=self.all_stopped)


def grace_times(now_s: float, grace_s: float) -> tuple[float, float]:
    """(when what has not paused is told to stop, when it no longer counts) where `grace_s` seconds are left."""
    stop_at_s = now_s + PAUSE_PART * grace_s
    return stop_at_s, stop_at_s + STOP_PART * grace_s


def walltime_times(budget: Budget) -> tuple[float, float]:
    """The same at the end of a walltime; the budget has a deadline."""
    assert budget.deadline_s is not None
    stop_at_s = budget.deadline_s - (1 - WALLTIME_PAUSE_PART) * budget.end_s
    return stop_at_s, budget.deadline_s - budget.end_s / 2 if budget.end_s else math.inf
