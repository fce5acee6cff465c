"""Inputs and outputs of the coordinator's state machine: search plan, events, instructions."""

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

#: share of a walltime reserved to stop trials, save the best model and write reports; at most so many seconds
END_PART, END_S = 0.1, 30.0


# ---------------------------------------------------------------- the plan of a search


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a search besides its number of trials. Times are in seconds; None means no limit."""

    #: searching time over all starts of the run
    timeout_s: float | None = None
    #: time at which this start must have ended; seconds since the first start of the run
    deadline_s: float | None = None
    #: time before the deadline reserved for a clean end
    end_s: float = 0.0
    #: most trials in a row without an improvement
    n_without_improvement: int | None = None
    #: most trials that may fail for the same reason while none has succeeded; 0 means no limit, too
    n_alike_failures: int | None = None
    #: time limit of a fold since its assignment; a trial that takes longer fails
    trial_timeout_s: float | None = None

    def of_start(self, walltime_s: float | None, began_at_s: float) -> "Budget":
        """Return the budget of a start with this walltime (None without one) that began at `began_at_s`."""
        if walltime_s is None:
            return self
        return replace(self, deadline_s=began_at_s + walltime_s, end_s=min(END_S, END_PART * walltime_s))

    @property
    def has_time(self) -> bool:
        """True if there is a time limit of the search or a trial."""
        return any(time_s is not None for time_s in (self.timeout_s, self.deadline_s, self.trial_timeout_s))

    def is_overdue(self, assigned_at_s: float, now_s: float) -> bool:
        """Return True if a fold assigned at `assigned_at_s` that has not ended takes too long."""
        return self.trial_timeout_s is not None and now_s - assigned_at_s > self.trial_timeout_s

    def is_timed_out(self, sessions: Sequence[Session], now_s: float) -> bool:
        """Return True if `timeout_s` has passed; the last session is the current one."""
        return self.timeout_s is not None and searched_s(sessions, now_s) >= self.timeout_s

    def leaves_no_trial(self, expected_s: float | None, now_s: float) -> bool:
        """Return True if a trial that begins now would end too late.

        Args:
            expected_s: expected seconds of a trial; None if unknown.
        """
        return self.deadline_s is not None and now_s + (expected_s or 0.0) > self.deadline_s - self.end_s

    def is_over(self, now_s: float) -> bool:
        """Return True if running trials must stop for this start to end in time."""
        return self.deadline_s is not None and now_s >= self.deadline_s - self.end_s


def searched_s(sessions: Sequence[Session], now_s: float) -> float:
    """Return the search time so far in seconds, without the time between starts. Needs at least one session."""
    *before, current = sessions
    return sum(session.last_at_s - session.started_at_s for session in before) + now_s - current.started_at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """Plan of a search: its goal, and when trials are repeated or given up."""

    #: number of trials of the run, failed ones included; 0 for as many as time allows
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
    #: value of `--max-attempts`
    max_attempts: int = 3
    #: how trials are pruned or paused; None to train every trial to its end
    pruning: PruningPlan | None = None
    #: True to prune a trial whose first folds are worse than those of the best trial
    fold_racing: bool = False

    def allows(self, n_trials: int) -> bool:
        """Return True if another trial may begin after `n_trials`."""
        return not self.num_iterations or n_trials < self.num_iterations


class LastEnd(Frozen):
    """Known causes of the end of the previous start, used by `outcomes.loss_of`."""

    #: team -> description of its first dead rank
    died: Mapping[int, str] = field(default_factory=dict)
    #: True if the job ended by itself for an unknown reason
    unexplained: bool = False


#: the job was ended on purpose, as far as is known
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
    """World ranks known to be dead, in any team, including earlier ones."""

    ranks: frozenset[int]


class Tick(Frozen):
    """Time has passed; comes twice a second if the budget limits time."""


class Preempt(Frozen):
    """This start has to end within `grace_s` seconds, reports included; may come at any time, repeatedly."""

    reason: str
    grace_s: float


class Enqueue(Frozen):
    """A user requests a trial of this full or partial point before others; may come at any time."""

    point: Point


class StopTrial(Frozen):
    """A user requests to stop a trial without a result; ignored if it has ended or does not exist."""

    trial: int
    reason: str


class Drain(Frozen):
    """A user requests to end this start when the running trials have ended."""

    reason: str


class JobsChanged(Frozen):
    """Jobs have joined, left, or come to follow this coordinator; in a run that several jobs share, also before Begin.

    It precedes everything that has happened since `recorded` was written.
    """

    #: events that are in the journal, and that the state has not seen: JobJoined, JobLeft, AssignmentLost
    recorded: tuple[ev.Event, ...]
    #: jobs that follow this coordinator now
    present: frozenset[int]


CoordinatorEvent: TypeAlias = (
    Begin | Suggestion | FromMaster | RanksDied | Tick | Preempt | Enqueue | StopTrial | Drain | JobsChanged
)

#: events allowed before the coordinator begins, and afterwards; besides JobsChanged in a run that several jobs share
TO_OPEN: frozenset[type] = frozenset({Begin, Preempt, Enqueue})
ONCE_OPEN: frozenset[type] = frozenset({Suggestion, FromMaster, RanksDied, Tick, Preempt, Enqueue, StopTrial, Drain})

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

    A paused trial is reported as "pruned" with its value so far, and again after it has resumed. A complete trial that
    violates an outcome constraint is reported as "failed" with its value.
    """

    trial: int
    point: Point
    state: str
    value: float | None = None
    std: float | None = None
    #: (epochs, figure of merit as returned) up to the last epoch that all folds have reached; empty without a pruner
    curve: tuple[tuple[int, float], ...] = ()
    #: None without a pruner
    progress: TrialProgress | None = None
    #: losses in the order of the objectives; None for a single objective
    losses: tuple[float, ...] | None = None
    #: name -> finite value bounded by an outcome constraint; empty unless it is complete
    outcomes: Mapping[str, float] = field(default_factory=dict)


class Propose(Frozen):
    """Let the search suggest this point, or one that completes this partial point, before any other."""

    point: Point


class Ask(Frozen):
    """Ask the search for suggestion number `number`."""

    number: int


class FinishRun(Frozen):
    """The search has ended, or only this start (`complete` is False), and the run can be resumed."""

    reason: str
    complete: bool = True
    #: False if some teams did not stop in time and are abandoned
    all_stopped: bool = True


class GiveUp(Frozen):
    """This start cannot continue; only a restart can help."""

    reason: str


class Expel(Frozen):
    """End what a job works on, and send it away; `JobsChanged` follows at once. It counts against no trial."""

    job: int
    reason: str


Instruction: TypeAlias = Append | Send | Tell | Propose | Ask | FinishRun | GiveUp | Expel
