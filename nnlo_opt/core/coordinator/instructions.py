"""Values that the coordinator's state machine takes or returns: the plan of a search, events, instructions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from nnlo_opt.core.base.records import Frozen, field
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.search.base import Suggestion, TrialProgress
from nnlo_opt.core.search.pruning import PruningPlan
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Session
from nnlo_opt.core.trials.objectives import Objective
from nnlo_opt.core.trials.trial import UnrecordedFold

#: part of a walltime that is kept to stop trials, save the best model, write the reports; in seconds at most
END_PART, END_S = 0.1, 30.0


# ---------------------------------------------------------------- the plan of a search


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a search besides its number of trials. Times are in seconds; None means no limit."""

    #: searching time over all starts of the run
    timeout_s: float | None = None
    #: time at which this start must have ended; seconds since the first start of the run
    deadline_s: float | None = None
    #: time before the deadline that is kept for ending in good order
    end_s: float = 0.0
    #: number of trials that may end in a row without an improvement
    n_without_improvement: int | None = None
    #: number of trials that may fail for the same reason while none has succeeded; 0 as well: no limit
    n_alike_failures: int | None = None
    #: time of one fold since its assignment; a trial that takes longer fails
    trial_timeout_s: float | None = None

    def of_start(self, walltime_s: float | None, began_at_s: float) -> "Budget":
        """Return the budget of a start with this walltime (None without) that began so long after the first start."""
        if walltime_s is None:
            return self
        return replace(self, deadline_s=began_at_s + walltime_s, end_s=min(END_S, END_PART * walltime_s))

    @property
    def has_time(self) -> bool:
        """True if time alone may end the search or a trial."""
        return any(time_s is not None for time_s in (self.timeout_s, self.deadline_s, self.trial_timeout_s))

    def is_overdue(self, assigned_at_s: float, now_s: float) -> bool:
        """Return True if a fold assigned at `assigned_at_s` that has not ended takes too long."""
        return self.trial_timeout_s is not None and now_s - assigned_at_s > self.trial_timeout_s

    def is_timed_out(self, sessions: Sequence[Session], now_s: float) -> bool:
        """Return True if `timeout_s` is spent; the last of the sessions is the one under way."""
        return self.timeout_s is not None and searched_s(sessions, now_s) >= self.timeout_s

    def leaves_no_trial(self, expected_s: float | None, now_s: float) -> bool:
        """Return True if a trial that begins now would end too late.

        Args:
            expected_s: expected seconds of a trial; None if unknown.
        """
        return self.deadline_s is not None and now_s + (expected_s or 0.0) > self.deadline_s - self.end_s

    def is_over(self, now_s: float) -> bool:
        """Return True if trials under way have to stop for this start to end in time."""
        return self.deadline_s is not None and now_s >= self.deadline_s - self.end_s


def searched_s(sessions: Sequence[Session], now_s: float) -> float:
    """Return the seconds of searching so far; time between two starts does not count. Needs at least one session."""
    *before, current = sessions
    return sum(session.last_at_s - session.started_at_s for session in before) + now_s - current.started_at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """Goal of a search, with the rules by which its trials are repeated or given up."""

    #: number of trials in the journal at the end of the run, failed ones included; 0: any, as many as time allows
    num_iterations: int
    n_fold: int = 1
    #: "min" or "max"
    direction: str = "min"
    #: the search stops when a figure of merit is better than this
    target_objective: float | None = None
    #: objectives if there are several, the figure of merit first; empty if the figure of merit alone counts
    objectives: tuple[Objective, ...] = ()
    #: limits of time and patience
    budget: Budget = Budget()
    #: number of attempts at a fold whose ranks die
    max_attempts: int = 3
    #: rules by which trials are pruned or paused between epochs; None: every trial is trained to its end
    pruning: PruningPlan | None = None
    #: prune a trial whose first folds are worse than the same folds of the best trial
    fold_racing: bool = False

    def allows(self, n_trials: int) -> bool:
        """Return True if a further trial may begin after so many."""
        return not self.num_iterations or n_trials < self.num_iterations


class LastEnd(Frozen):
    """Known causes of the end of the previous start; `outcomes.loss_of` draws the consequences."""

    #: team -> its rank that died first, in words, and how
    died: Mapping[int, str] = field(default_factory=dict)
    #: the job ended by itself for an unknown reason
    unexplained: bool = False


#: somebody has ended the job, as far as is known
WAS_ENDED = LastEnd()


# ---------------------------------------------------------------- events besides the masters' messages


class Begin(Frozen):
    """The run is open; every team is ready."""

    #: causes of the end of the previous start
    last_end: LastEnd = WAS_ENDED
    #: results of folds of an earlier start that the journal does not have
    finished: tuple[UnrecordedFold, ...] = ()


class FromMaster(Frozen):
    """Message from the master of team `team`."""

    team: int
    message: msg.Message


class RanksDied(Frozen):
    """World ranks that are known to be dead, in any team; earlier ones included."""

    ranks: frozenset[int]


class Tick(Frozen):
    """Time has passed; comes twice a second if the budget limits time."""


class Preempt(Frozen):
    """This start has to end within `grace_s` seconds, reports included; may come at any time, repeatedly."""

    reason: str
    grace_s: float


class Enqueue(Frozen):
    """A user wants a trial of this point, or of a part of it, before other points; may come at any time."""

    point: Point


class StopTrial(Frozen):
    """A user wants a trial to end without its result; nothing happens if it has ended, or if there is none."""

    trial: int
    reason: str


class Drain(Frozen):
    """A user wants this start to end when the trials under way have ended."""

    reason: str


CoordinatorEvent: TypeAlias = Begin | Suggestion | FromMaster | RanksDied | Tick | Preempt | Enqueue | StopTrial | Drain

# ---------------------------------------------------------------- instructions


class Append(Frozen):
    """Write these events to the journal; `durable`: wait for the disk before the next instruction."""

    events: tuple[ev.Event, ...]
    durable: bool = True


class Send(Frozen):
    """Send a message to the master of team `team`, which is world rank `rank` at the time of this decision."""

    team: int
    rank: int
    message: msg.Message


class Tell(Frozen):
    """Report a trial to the search: its figure of merit as returned, with the standard error.

    A paused trial is reported as "pruned" with the value that it has so far; it is reported again after it resumes.
    A complete trial that breaks an outcome constraint is reported as "failed" with its value.
    """

    trial: int
    point: Point
    state: str
    value: float | None = None
    std: float | None = None
    #: (number of epochs, figure of merit as returned) as far as all folds have come; empty without a pruner
    curve: tuple[tuple[int, float], ...] = ()
    #: None without a pruner
    progress: TrialProgress | None = None
    #: values to be minimised, one for each of several objectives, in their order; None for a single objective
    losses: tuple[float, ...] | None = None
    #: finite values that outcome constraints bound, by name; empty unless it is complete
    outcomes: Mapping[str, float] = field(default_factory=dict)


class Propose(Frozen):
    """Have the search suggest this point, or one with this part, before any other."""

    point: Point


class Ask(Frozen):
    """Ask the search for suggestion number `number`."""

    number: int


class FinishRun(Frozen):
    """The search is over, or only this start of it (`complete` is False), which can be resumed."""

    reason: str
    complete: bool = True
    #: False: some teams did not stop in time; they are no longer waited for
    all_stopped: bool = True


class GiveUp(Frozen):
    """This start cannot continue, for a reason that only a restart can remove."""

    reason: str


Instruction: TypeAlias = Append | Send | Tell | Propose | Ask | FinishRun | GiveUp
