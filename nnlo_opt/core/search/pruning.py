"""Interface of pruners, which end or pause trials that do not deserve further epochs.

A pruner is a pure function of `core.search.curves.Reports`: a learning curve for every fold of every trial, and the
rungs that each trial has passed. The coordinator rebuilds the reports from the journal (`core.coordinator.policy`), so
a restored run makes the same decisions.

A *stopping* pruner ends a trial. A *pausing* pruner leaves it at a rung, with its checkpoint, until it is promoted.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto

from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.search.curves import Reports

PRUNERS = ("median", "asha", "hyperband")
#: the pruner that the search algorithm of this name brings
FREEZE_THAW = "freeze-thaw"


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningPlan:
    """Settings of a pruner; `core.search.pruners.make_pruner` constructs it."""

    #: one of PRUNERS, "none" for no pruner, or one's own (`engine.search.custom.name_of`)
    name: str
    #: asha, hyperband: one trial in `eta` passes a rung, and a rung has `eta` times the epochs of the rung below
    eta: int = 3
    #: epochs that every trial gets: the first rung, or the warm-up of the median rule
    min_epochs: int = 1
    #: median: least number of trials that have reached an epoch before a trial is compared with them
    min_trials: int = 4
    #: epochs of a full training; None if not known, which asha accepts and hyperband does not
    max_epochs: int | None = None
    #: True if a trial can be paused and resumed; an objective without `checkpoint` cannot
    pauses: bool = True

    @property
    def is_own(self) -> bool:
        """True if the pruner is not of this package."""
        return self.name not in ("none", FREEZE_THAW, *PRUNERS)

    @property
    def shown(self) -> str:
        """The pruner in a sentence, as a user has given it."""
        option = "hyper_opt" if self.name == FREEZE_THAW else "pruner"
        return self.name if self.is_own else f"`{spelled(option, self.name)}`"

    @property
    def option(self) -> str:
        """The option by which a user has asked for it."""
        return self.shown.strip("`") if self.name == FREEZE_THAW else spelled("pruner")

    @property
    def n_rungs(self) -> int:
        """Number of rungs below `max_epochs`, floor(log_eta(max_epochs / min_epochs)); may be 0."""
        n, epochs = 0, self.min_epochs * self.eta
        while self.max_epochs is not None and epochs <= self.max_epochs:
            n, epochs = n + 1, epochs * self.eta
        return n


class Verdict(Enum):
    """Decision on a trial that has just reported.

    >>> [verdict.name for verdict in Verdict]
    ['GO_ON', 'PAUSE', 'PRUNE']
    """

    GO_ON = auto()
    #: the trial waits at its rung until it is promoted
    PAUSE = auto()
    PRUNE = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """Answer to a report.

    >>> Decision(Verdict.PRUNE, reason="no better for 3 epochs").n_rungs
    0
    """

    verdict: Verdict
    #: rungs passed by the trial, including rungs passed by this report
    n_rungs: int = 0
    #: reason for pruning, without a full stop
    reason: str = ""


class Pruner(ABC):
    """Decides on reports; the result of every method depends on its arguments only.

    A pruner that only stops trials has no method but `decide`.

    >>> class Patience(Pruner):
    ...     def decide(self, trial, fold, epoch, reports):
    ...         curve = reports.curve(trial, fold)
    ...         is_worse = epoch > 1 and curve.best_until(epoch) == curve.best_until(epoch - 1)
    ...         return Decision(Verdict.PRUNE, reason="no better") if is_worse else Decision(Verdict.GO_ON)
    >>> Patience().decide(trial=0, fold=0, epoch=1, reports=Reports())
    Decision(verdict=<Verdict.GO_ON: 1>, n_rungs=0, reason='')

    Raises:
        ConfigurationError: by the search, if a pruner of one's own raises, answers anything but a `Decision`, or
            pauses a trial.
    """

    #: True if the pruner may answer PAUSE
    pauses = False

    @abstractmethod
    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        """Decide on `trial` after `epoch` epochs of `fold`; `reports` already holds the report of this epoch."""

    def pause_epochs(self, trial: int, reports: Reports) -> tuple[int, ...]:
        """Return the epochs, ascending, after which the trial may be paused from now on."""
        return ()

    def has_turn(self, reports: Reports) -> bool:
        """Return True if the pruner, and not the search, says which trial is promoted next."""
        return True

    def promotion(self, reports: Reports) -> int | None:
        """Return the waiting trial that may resume before all others; None if there is none."""
        return None

    def last_resort(self, reports: Reports) -> int | None:
        """Return the waiting trial to resume if nothing else is left and no trial is complete; None if none waits."""
        return None

    def rungs(self, trial: int) -> tuple[int, ...]:
        """Return the epochs of all rungs of the trial, ascending."""
        return ()

    def place(self, trial: int, epoch: int, reports: Reports) -> str:
        """Return the rank of a trial among all that have reached its rung after `epoch` epochs, in words."""
        raise ValueError("A pruner that does not pause has no trials at rungs.")
