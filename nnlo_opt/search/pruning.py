"""When a trial is not worth its next epochs: pruners, pure functions of the reports of all trials.

`Reports` is what a pruner knows: a learning curve for every fold of every trial, and the rungs each trial has passed.
The coordinator keeps it from the journal (`coordinator.policy`), so a restored run decides as it had decided. Values
are minimised inside; `Reports` turns the sign of figures that are maximised.

A *stopping* pruner ends a trial. A *pausing* one leaves it at a rung, with its checkpoint, until it is promoted.
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Protocol

PRUNERS = ("median", "asha", "hyperband")


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningPlan:
    """What was asked for; `make_pruner` makes it."""

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


# ---------------------------------------------------------------- what a pruner knows


@dataclass(slots=True)
class Curve:
    """The reports of one fold, in the order of their epochs; of an epoch reported twice the first counts."""

    #: growing, and for each of them the value, the sum and the best of the values so far
    _epochs: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _sums: list[float] = field(default_factory=list)
    _bests: list[float] = field(default_factory=list)
    #: value of the finished fold, which counts for all epochs to come; None while it is not finished
    final: float | None = None

    def add(self, epoch: int, value: float) -> None:
        """Take in a report; one of an epoch that is past changes nothing."""
        if self._epochs and epoch <= self._epochs[-1]:
            return
        self._sums.append(value + (self._sums[-1] if self._sums else 0.0))
        self._bests.append(min(value, self._bests[-1]) if self._bests else value)
        self._epochs.append(epoch)
        self._values.append(value)

    @property
    def last_epoch(self) -> int:
        """Last epoch reported; 0 before the first."""
        return self._epochs[-1] if self._epochs else 0

    @property
    def last(self) -> float | None:
        """The latest word: the final figure, else the last report."""
        return self.final if self.final is not None else (self._values[-1] if self._values else None)

    def epoch_before(self, epoch: int) -> int:
        """The last epoch reported before `epoch`; 0 where there is none."""
        i = bisect_left(self._epochs, epoch)
        return self._epochs[i - 1] if i else 0

    def reached(self, epoch: int) -> bool:
        """Whether the fold has come as far as `epoch`, or will come no farther."""
        return self.final is not None or self.last_epoch >= epoch

    def value_at(self, epoch: int) -> float | None:
        """The first value at `epoch` or later, else the final one; None before the fold has come as far."""
        i = bisect_left(self._epochs, epoch)
        return self._values[i] if i < len(self._values) else self.final

    def mean_until(self, epoch: int) -> float | None:
        """Mean of the values up to `epoch`; None where there is none."""
        i = bisect_right(self._epochs, epoch)
        return self._sums[i - 1] / i if i else None

    def best_until(self, epoch: int) -> float | None:
        """Least of the values up to `epoch`; None where there is none."""
        i = bisect_right(self._epochs, epoch)
        return self._bests[i - 1] if i else None


class Reports:
    """The learning curves of all trials, their rungs and which of them have ended."""

    def __init__(self, n_fold: int = 1, direction: str = "min") -> None:
        self.n_fold = n_fold
        self._sign = -1.0 if direction == "max" else 1.0
        #: trial -> fold -> curve; trials in the order of their first report
        self._curves: dict[int, dict[int, Curve]] = {}
        #: trial -> rungs passed; 0 where it is not in it
        self._n_rungs: dict[int, int] = {}
        self._ended: set[int] = set()

    def add(self, trial: int, fold: int, epoch: int, figure: float) -> None:
        """`epoch` epochs of a fold are done, with this figure as returned, finite."""
        self._curve(trial, fold).add(epoch, self._sign * figure)

    def finish(self, trial: int, fold: int, figure: float) -> None:
        """The fold is trained, with this figure as returned."""
        self._curve(trial, fold).final = self._sign * figure

    def promote(self, trial: int, n_rungs: int) -> None:
        """The trial has passed `n_rungs` rungs."""
        self._n_rungs[trial] = n_rungs

    def end(self, trial: int) -> None:
        """Nothing more will come of the trial; what it has reported still counts for others."""
        self._ended.add(trial)

    def _curve(self, trial: int, fold: int) -> Curve:
        return self._curves.setdefault(trial, {}).setdefault(fold, Curve())

    def curve(self, trial: int, fold: int) -> Curve:
        """The curve of a fold; an empty one where nothing was reported."""
        return self._curves.get(trial, {}).get(fold) or Curve()

    def curves(self, fold: int) -> Iterator[tuple[int, Curve]]:
        """(trial, curve) of all trials that have reported for `fold`."""
        return ((trial, folds[fold]) for trial, folds in self._curves.items() if fold in folds)

    def n_rungs(self, trial: int) -> int:
        """Rungs that the trial has passed."""
        return self._n_rungs.get(trial, 0)

    def has_ended(self, trial: int) -> bool:
        """Whether nothing more will come of the trial."""
        return trial in self._ended

    def value_at(self, trial: int, epoch: int) -> float | None:
        """Mean over the folds at `epoch`; None before all of them have come as far."""
        values = [self.curve(trial, fold).value_at(epoch) for fold in range(self.n_fold)]
        known = [value for value in values if value is not None]
        return math.fsum(known) / self.n_fold if len(known) == self.n_fold else None

    def figure_so_far(self, trial: int) -> float | None:
        """As returned: mean over the folds that have said something of the last they said; None where none has."""
        values = [curve.last for curve in self._curves.get(trial, {}).values()]
        known = [value for value in values if value is not None]
        return self.shown(math.fsum(known) / len(known)) if known else None

    @property
    def trials(self) -> Iterator[int]:
        """All trials that have reported anything."""
        return iter(self._curves)

    def shown(self, value: float) -> float:
        """A value as it was returned."""
        return self._sign * value


# ---------------------------------------------------------------- what a pruner says


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


_GO_ON = Decision(Verdict.GO_ON)


class MedianStopping:
    """The median stopping rule of Google Vizier (Golovin et al., 2017, section 3.2.1).

    A trial is pruned after an epoch when its best value so far is worse than the median of the other trials' running
    averages up to that epoch. Compared are those that have come as far, on the same fold.
    """

    pauses = False

    def __init__(self, min_epochs: int = 1, min_trials: int = 4) -> None:
        self._min_epochs = min_epochs
        self._min_trials = min_trials

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        best = reports.curve(trial, fold).best_until(epoch)
        if best is None or epoch < self._min_epochs:
            return _GO_ON
        others = [curve.mean_until(epoch) for n, curve in reports.curves(fold) if n != trial and curve.reached(epoch)]
        means = [mean for mean in others if mean is not None]
        if len(means) < self._min_trials or best <= (median := statistics.median(means)):
            return _GO_ON
        reason = (
            f"its best {reports.shown(best):.6g} after epoch {epoch} is worse than {reports.shown(median):.6g}, the "
            f"median of {len(means)} others' means so far"
        )
        return Decision(Verdict.PRUNE, reason=reason)

    def pause_epochs(self, trial: int, reports: Reports) -> tuple[int, ...]:
        return ()

    def promotion(self, reports: Reports) -> int | None:
        return None

    def last_resort(self, reports: Reports) -> int | None:
        return None

    def why_left(self, trial: int, reports: Reports) -> str:
        raise ValueError("The median rule leaves no trial waiting.")


@dataclass(frozen=True)
class Brackets:
    """Ladders of rungs, and which trial climbs which.

    Bracket b has its rungs at `epochs[b]`, growing; trial t climbs bracket `cycle[t mod len(cycle)]`.
    """

    epochs: tuple[tuple[int, ...], ...]
    cycle: tuple[int, ...]

    @classmethod
    def one(cls, plan: PruningPlan) -> "Brackets":
        """That of asha: rungs at min_epochs * eta^k, below `max_epochs` where that is known."""
        n_rungs = plan.n_rungs if plan.max_epochs is not None else 40
        return cls(epochs=(tuple(plan.min_epochs * plan.eta**k for k in range(n_rungs)),), cycle=(0,))

    @classmethod
    def of_hyperband(cls, plan: PruningPlan) -> "Brackets":
        """Brackets s = s_max … 0 with s rungs each and n_s = ceil((s_max + 1) / (s + 1) * eta^s) trials in a cycle.

        Li et al., 2018 (arXiv:1603.06560, algorithm 1). So that a short search has its share of each, the trials of the
        brackets are interleaved: the next one goes where most are missing.
        """
        s_max = plan.n_rungs
        rungs = tuple(plan.min_epochs * plan.eta**k for k in range(s_max))
        sizes = [-(-(s_max + 1) * plan.eta**s // (s + 1)) for s in range(s_max, -1, -1)]
        total, given, cycle = sum(sizes), [0] * len(sizes), list[int]()
        for n in range(1, total + 1):
            missing = [size * n - total * count for size, count in zip(sizes, given, strict=True)]
            cycle.append(missing.index(max(missing)))
            given[cycle[-1]] += 1
        return cls(epochs=tuple(rungs[b:] for b in range(s_max + 1)), cycle=tuple(cycle))

    def of(self, trial: int) -> int:
        """The bracket of a trial."""
        return self.cycle[trial % len(self.cycle)]

    @cached_property
    def rungs(self) -> list[tuple[int, int]]:
        """(bracket, number of the rung) of all rungs, those of most epochs first."""
        every = [(b, k) for b, epochs in enumerate(self.epochs) for k in range(len(epochs))]
        return sorted(every, key=lambda rung: (-self.epochs[rung[0]][rung[1]], rung))


class SuccessiveHalving:
    """Asynchronous successive halving, ASHA (Li et al., 2020, arXiv:1810.05934, algorithm 2), in one or more brackets.

    The value of a trial at a rung is the mean over its folds after so many epochs. Of the n trials that have come to a
    rung the best floor(n / eta) pass it; the others are paused there, and promoted when more have come and they are
    among the best. A trial that has just come and is among them goes on at once, without making room.

    Where trials cannot be paused, this is the stopping variant: a trial is pruned when one of its folds comes to a rung
    and is not among the best max(1, floor(n / eta)) of the n that have, on the same fold.
    """

    def __init__(self, brackets: Brackets, eta: int, *, pauses: bool = True) -> None:
        self._brackets = brackets
        self._eta = eta
        self.pauses = pauses

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        bracket = self._brackets.of(trial)
        if not self.pauses:
            return self._stop(trial, fold, epoch, reports)
        n_rungs = reports.n_rungs(trial)
        for rung_epoch in self._brackets.epochs[bracket][n_rungs:]:
            if epoch < rung_epoch:
                break
            if trial not in self._passing(self._standing(bracket, rung_epoch, reports)):
                return Decision(Verdict.PAUSE, n_rungs)
            n_rungs += 1
        return Decision(Verdict.GO_ON, n_rungs)

    def _stop(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        bracket = self._brackets.of(trial)
        before = reports.curve(trial, fold).epoch_before(epoch)
        for rung_epoch in self._brackets.epochs[bracket]:
            if before < rung_epoch <= epoch:
                standing = self._standing(bracket, rung_epoch, reports, fold)
                if trial not in self._passing(standing):
                    return Decision(Verdict.PRUNE, reason=_reason(trial, rung_epoch, standing, reports))
        return _GO_ON

    def pause_epochs(self, trial: int, reports: Reports) -> tuple[int, ...]:
        return self._brackets.epochs[self._brackets.of(trial)][reports.n_rungs(trial) :] if self.pauses else ()

    def promotion(self, reports: Reports) -> int | None:
        return next((trial for trial, _, passes in self._waiting(reports) if passes), None)

    def last_resort(self, reports: Reports) -> int | None:
        return next((trial for trial, _, _ in self._waiting(reports)), None)

    def why_left(self, trial: int, reports: Reports) -> str:
        bracket = self._brackets.of(trial)
        epoch = self._brackets.epochs[bracket][reports.n_rungs(trial)]
        return _reason(trial, epoch, self._standing(bracket, epoch, reports), reports)

    def _standing(self, bracket: int, epoch: int, reports: Reports, fold: int | None = None) -> list[tuple[float, int]]:
        """(value, trial) of all trials of the bracket that have come to `epoch`, the best first, the older of equals.

        Values are means over the folds, or those of `fold`. A training that is over before counts with its figure.
        """
        trials = (t for t in reports.trials if self._brackets.of(t) == bracket)
        if fold is None:
            known = ((reports.value_at(t, epoch), t) for t in trials)
        else:
            known = ((reports.curve(t, fold).value_at(epoch), t) for t in trials)
        return sorted((value, t) for value, t in known if value is not None)

    def _passing(self, standing: list[tuple[float, int]]) -> set[int]:
        n = len(standing) // self._eta
        return {trial for _, trial in standing[: n if self.pauses else max(1, n)]}

    def _waiting(self, reports: Reports) -> Iterator[tuple[int, int, bool]]:
        """(trial, epoch of its rung, whether it may pass): the highest rung first, then the best."""
        if not self.pauses:
            return
        for bracket, rung in self._brackets.rungs:
            epoch = self._brackets.epochs[bracket][rung]
            standing = self._standing(bracket, epoch, reports)
            passing = self._passing(standing)
            for _, trial in standing:
                if reports.n_rungs(trial) == rung and not reports.has_ended(trial):
                    yield trial, epoch, trial in passing


def _reason(trial: int, epoch: int, standing: list[tuple[float, int]], reports: Reports) -> str:
    place = [n for _, n in standing].index(trial)
    value = reports.shown(standing[place][0])
    return f"with {value:.6g} after epoch {epoch} it is number {place + 1} of {len(standing)} that came so far"


def make_pruner(plan: PruningPlan) -> Pruner:
    """The pruner of a plan."""
    if plan.name == "median":
        return MedianStopping(plan.min_epochs, plan.min_trials)
    brackets = Brackets.of_hyperband(plan) if plan.name == "hyperband" else Brackets.one(plan)
    return SuccessiveHalving(brackets, plan.eta, pauses=plan.pauses)
