"""When a trial is not worth its next epochs: what a pruner is, a pure function of the reports of all trials.

`search.curves.Reports` is what it knows: a learning curve for every fold of every trial, and the rungs each trial has
passed. The coordinator keeps it from the journal (`coordinator.policy`), so a restored run decides as it had decided.

A *stopping* pruner ends a trial. A *pausing* one leaves it at a rung, with its checkpoint, until it is promoted.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from nnlo_opt.search.curves import Reports

PRUNERS = ("median", "asha", "hyperband")


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningPlan:
    """What was asked for; `search.pruners.make_pruner` makes it."""

    #: one of PRUNERS
    name: str
    #: of asha and hyperband: one trial in `eta` passes a rung, and a rung has `eta` times the epochs of the one below
    eta: int = 3
    #: epochs that every trial is given: the first rung, or the warm-up of the median rule
    min_epochs: int = 1
    #: median: trials that must have come as far before one is compared with them
    min_trials: int = 4
    #: epochs of a whole training; None: not known, which asha bears and hyperband does not
    max_epochs: int | None = None
    #: whether a trial can be paused and go on later; an objective cannot
    pauses: bool = True

    @property
    def n_rungs(self) -> int:
        """Rungs below `max_epochs`: floor(log_eta(max_epochs / min_epochs)); 0 where there is no room for one."""
        n, epochs = 0, self.min_epochs * self.eta
        while self.max_epochs is not None and epochs <= self.max_epochs:
            n, epochs = n + 1, epochs * self.eta
        return n


class Verdict(Enum):
    """What is to become of a trial that has just reported."""

    GO_ON = auto()
    #: leave it at its rung until it is promoted
    PAUSE = auto()
    PRUNE = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a report."""

    verdict: Verdict
    #: rungs passed with this report included
    n_rungs: int = 0
    #: why it is pruned, in a sentence without its full stop
    reason: str = ""


class Pruner(Protocol):
    """Decides on reports; every method is a function of its arguments alone."""

    #: whether it says PAUSE
    pauses: bool

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        """What becomes of `trial`, of which `fold` has just done `epoch` epochs (`reports` has that already)."""
        ...

    def pause_epochs(self, trial: int, reports: Reports) -> tuple[int, ...]:
        """Epochs, growing, after which the trial may be paused from now on."""
        ...

    def promotion(self, reports: Reports) -> int | None:
        """The waiting trial that may go on before all others; None where none may."""
        ...

    def last_resort(self, reports: Reports) -> int | None:
        """The waiting trial that goes on when nothing else can and no trial is complete; None where none waits."""
        ...

    def why_left(self, trial: int, reports: Reports) -> str:
        """Why a waiting trial was never promoted."""
        ...
