"""Interface of pruners, which stop or pause unpromising trials.

A pruner is a pure function of `core.search.curves.Reports`: a learning curve for every fold of every trial, and the
rungs that each trial has passed. The coordinator rebuilds the reports from the journal (`core.coordinator.policy`), so
a resumed run makes the same decisions.

A *stopping* pruner ends a trial. A *pausing* pruner leaves it at a rung, with its checkpoint, until it is promoted.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto

from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.search.curves import Reports

PRUNERS = ("median", "asha", "hyperband")
#: name of the pruner that belongs to the search algorithm of the same name
FREEZE_THAW = "freeze-thaw"


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningPlan:
    """Settings of a pruner, from which `core.search.pruners.make_pruner` constructs it."""

    #: one of PRUNERS, "none" for no pruner, or a custom pruner's name (`engine.search.custom.custom_name`)
    name: str
    #: asha, hyperband: one in `eta` trials passes a rung, and each rung has `eta` times the epochs of the rung below
    eta: int = 3
    #: epochs that every trial gets: the first rung, or the warm-up of the median rule
    min_epochs: int = 1
    #: median: number of trials that must have reached an epoch before others are compared with them
    min_trials: int = 4
    #: epochs of a full training; None if unknown, which asha accepts and hyperband refuses
    max_epochs: int | None = None
    #: True if trials can be paused and resumed; an objective without `checkpoint` cannot
    pauses: bool = True

    @property
    def is_own(self) -> bool:
        """True for a custom pruner."""
        return self.name not in ("none", FREEZE_THAW, *PRUNERS)

    @property
    def shown(self) -> str:
        """The pruner as messages call it."""
        option = "hyper_opt" if self.name == FREEZE_THAW else "pruner"
        return self.name if self.is_own else f"`{spelled(option, self.name)}`"

    @property
    def option(self) -> str:
        """The option that selected it."""
        return self.shown.strip("`") if self.name == FREEZE_THAW else spelled("pruner")

    @property
    def n_rungs(self) -> int:
        """Number of rungs below `max_epochs`, floor(log_eta(max_epochs / min_epochs)); may be 0."""
        n, epochs = 0, self.min_epochs * self.eta
        while self.max_epochs is not None and epochs <= self.max_epochs:
            n, epochs = n + 1, epochs * self.eta
        return n


class Verdict(Enum):
    """What happens to a trial after a report: `GO_ON`, `PAUSE` or `PRUNE`; see `Decision`.

    >>> Decision(Verdict.GO_ON)
    Decision(verdict=<Verdict.GO_ON: 1>, n_rungs=0, reason='')
    """

    GO_ON = auto()
    #: the trial is paused at its rung until it is promoted; built-in pruners only
    PAUSE = auto()
    PRUNE = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """Answer of a pruner to a report.

    >>> Decision(Verdict.PRUNE, reason="no better for 3 epochs")
    Decision(verdict=<Verdict.PRUNE: 3>, n_rungs=0, reason='no better for 3 epochs')
    """

    verdict: Verdict
    #: rungs that the trial has passed, with this report
    n_rungs: int = 0
    #: reason for pruning, shown to the user; no full stop at its end
    reason: str = ""


class Pruner(ABC):
    """Base class of pruners; a custom pruner overrides `decide` only.

    The coordinator calls `decide` after each report of a trial. The result must depend on the arguments only: a resumed
    run replays the reports of the journal, and must come to the same decisions.

    >>> class Patience(Pruner):
    ...     def decide(self, trial, fold, epoch, reports):
    ...         curve = reports.curve(trial, fold)
    ...         is_worse = epoch > 1 and curve.best_until(epoch) == curve.best_until(epoch - 1)
    ...         return Decision(Verdict.PRUNE, reason="no better") if is_worse else Decision(Verdict.GO_ON)
    >>> Patience().decide(trial=0, fold=0, epoch=1, reports=Reports())
    Decision(verdict=<Verdict.GO_ON: 1>, n_rungs=0, reason='')

    Raises:
        ConfigurationError: by the search, if a custom pruner raises, returns anything but a `Decision`, or pauses a
            trial.
    """

    #: True if the pruner may return PAUSE
    pauses = False

    @abstractmethod
    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        """Decide on `trial` after `epoch` epochs of `fold`; `reports` already contains the report of this epoch."""

    def pause_epochs(self, trial: int, reports: Reports) -> tuple[int, ...]:
        """Return the epochs, ascending, after which the trial may be paused from now on."""
        return ()

    def has_turn(self, reports: Reports) -> bool:
        """Return True if the pruner, not the search, chooses the next trial to promote."""
        return True

    def promotion(self, reports: Reports) -> int | None:
        """Return the paused trial to promote first; None if there is none."""
        return None

    def last_resort(self, reports: Reports) -> int | None:
        """Return the paused trial to resume if nothing else is left to do and no trial is complete; else None."""
        return None

    def rungs(self, trial: int) -> tuple[int, ...]:
        """Return the epochs of all rungs of the trial, ascending."""
        return ()

    def place(self, trial: int, epoch: int, reports: Reports) -> str:
        """Describe the rank of a trial among all at its rung after `epoch` epochs."""
        raise ValueError("A pruner that does not pause has no trials at rungs.")
