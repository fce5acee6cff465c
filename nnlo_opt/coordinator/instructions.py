"""What goes into the coordinator's state machine, and what comes out of it: plain values."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from nnlo_opt.comm import messages as msg
from nnlo_opt.coordinator.attempts import WAS_ENDED, LastEnd
from nnlo_opt.coordinator.budget import Budget
from nnlo_opt.search.pruning import PruningPlan
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.objectives import Objective
from nnlo_opt.trials.trial import UnrecordedFold

Point: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """What the search is to reach."""

    #: trials in the journal at the end of the run, failed ones included
    num_iterations: int
    n_fold: int = 1
    #: "min" or "max"
    direction: str = "min"
    #: stop when a figure of merit is better than this
    target_objective: float | None = None
    #: what trials are compared by where that are several objectives, of which the first is the figure of merit
    objectives: tuple[Objective, ...] = ()
    #: time and patience
    budget: Budget = Budget()  # noqa: RUF009  (frozen)
    #: how often a fold is tried whose attempts are lost with a rank
    max_attempts: int = 3
    #: gives up or pauses trials by their epochs; None: every trial is trained to its end
    pruning: PruningPlan | None = None
    #: give up a trial whose first folds are worse than those of the best one
    fold_racing: bool = False


# ---------------------------------------------------------------- events besides the masters' messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The run is open and every team is ready."""

    #: how the start before this one has ended
    last_end: LastEnd = WAS_ENDED
    #: what folds of an earlier start came to when nobody wrote it in the journal
    finished: tuple[UnrecordedFold, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggested:
    """The search answers: a point, or None where every point of a finite space has been tried."""

    point: Point | None
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FromMaster:
    """A message of the master of team `team`."""

    team: int
    message: msg.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksDied:
    """These world ranks are dead: all that are known to be, in whatever team."""

    ranks: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; comes a few times a second where the budget has a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """This start has to end within `grace_s` seconds, its reports included; may come at any time, and again."""

    reason: str
    grace_s: float


CoordinatorEvent: TypeAlias = Begin | Suggested | FromMaster | RanksDied | Tick | Preempt

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Write these events to the journal; `durable`: before anything that follows is done."""

    events: tuple[ev.Event, ...]
    durable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send to the master of team `team`, which is world rank `rank` when this is decided."""

    team: int
    rank: int
    message: msg.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Tell the search what is known of a trial: the figure of merit as returned, and its standard error.

    A paused trial is told as "pruned", with the value it has so far, and again when it has gone on.
    """

    trial: int
    point: Point
    state: str
    value: float | None = None
    std: float | None = None
    #: of several objectives, in their order: what is to be minimised; None where there are not several
    losses: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask the search for the next suggestion, number `number`."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The search is over, or this start of it (`complete` is False): it can be gone on with."""

    reason: str
    complete: bool = True
    #: False: teams are at work that did not stop in time, and no longer count
    all_stopped: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """This start cannot go on: a team is stuck, which nobody can free in place."""

    reason: str


Instruction: TypeAlias = Append | Send | Tell | Ask | Finish | GiveUp
