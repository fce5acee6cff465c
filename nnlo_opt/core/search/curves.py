"""Learning curves of all trials, the input of pruners (`core.search.pruning`).

Values are minimised; `Reports` negates figures that are to be maximised.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Curve:
    """Learning curve of one fold, by ascending epochs; if an epoch is reported twice, the first report counts.

    >>> curve = Curve()
    >>> curve.add(1, 0.5)
    >>> curve.add(2, 0.75)
    >>> curve.last, curve.best_until(2), curve.value_at(3)
    (0.75, 0.5, None)
    >>> [*curve]
    [(1, 0.5), (2, 0.75)]
    """

    #: ascending epochs, and for each its value, and the sum and the minimum of the values so far
    _epochs: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _sums: list[float] = field(default_factory=list)
    _bests: list[float] = field(default_factory=list)
    #: final value, used for all later epochs; None until the fold has finished
    final: float | None = None

    def add(self, epoch: int, value: float) -> None:
        """Add a report; a second report of an epoch is ignored."""
        if self._epochs and epoch <= self._epochs[-1]:
            return
        self._sums.append(value + (self._sums[-1] if self._sums else 0.0))
        self._bests.append(min(value, self._bests[-1]) if self._bests else value)
        self._epochs.append(epoch)
        self._values.append(value)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Yield (epoch, value) of all reports."""
        return zip(self._epochs, self._values, strict=True)

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epochs reported, ascending."""
        return tuple(self._epochs)

    @property
    def values(self) -> tuple[float, ...]:
        """Value of each of `epochs`."""
        return tuple(self._values)

    @property
    def last_epoch(self) -> int:
        """Last epoch reported; 0 before the first report."""
        return self._epochs[-1] if self._epochs else 0

    @property
    def last(self) -> float | None:
        """Final value if the fold has finished, else the last one reported; None before the first report."""
        return self.final if self.final is not None else (self._values[-1] if self._values else None)

    def epoch_before(self, epoch: int) -> int:
        """Return the last epoch reported before `epoch`; 0 if there is none."""
        i = bisect_left(self._epochs, epoch)
        return self._epochs[i - 1] if i else 0

    def reached(self, epoch: int) -> bool:
        """Return True if the fold has reached `epoch` or has finished."""
        return self.final is not None or self.last_epoch >= epoch

    def value_at(self, epoch: int) -> float | None:
        """Return the first value at `epoch` or later, else the final value; None if neither exists."""
        i = bisect_left(self._epochs, epoch)
        return self._values[i] if i < len(self._values) else self.final

    def mean_until(self, epoch: int) -> float | None:
        """Return the mean of the values up to `epoch`; None if there is none."""
        i = bisect_right(self._epochs, epoch)
        return self._sums[i - 1] / i if i else None

    def best_until(self, epoch: int) -> float | None:
        """Return the lowest value up to `epoch`; None if there is none."""
        i = bisect_right(self._epochs, epoch)
        return self._bests[i - 1] if i else None


class Reports:
    """Learning curves of all trials, and which rungs each has passed; the argument of every method of a pruner.

    >>> reports = Reports()
    >>> reports.add(trial=0, fold=0, epoch=1, figure=0.5)
    >>> reports.add(trial=1, fold=0, epoch=1, figure=0.25)
    >>> reports.standing(1), reports.value_at(0, 2)
    ([(0.25, 1), (0.5, 0)], None)

    Args:
        n_fold: number of folds of a trial.
        direction: "min" or "max", the direction of the reported figures.
    """

    def __init__(self, n_fold: int = 1, direction: str = "min") -> None:
        self.n_fold = n_fold
        self._sign = -1.0 if direction == "max" else 1.0
        #: trial -> fold -> curve; trials in the order of their first report
        self._curves: dict[int, dict[int, Curve]] = {}
        #: trial -> rungs passed; missing for trials that have passed none
        self._n_rungs: dict[int, int] = {}
        self._ended: set[int] = set()
        #: epoch -> sorted (value, trial) of all trials that have reached it; only for epochs requested before
        self._standings: dict[int, list[tuple[float, int]]] = {}

    def add(self, trial: int, fold: int, epoch: int, figure: float) -> None:
        """Add the finite figure, not negated, of a fold after `epoch` epochs."""
        self._curve(trial, fold).add(epoch, self._sign * figure)
        self._place(trial, self._standings)

    def finish(self, trial: int, fold: int, figure: float) -> None:
        """Record the final figure of a fold, not negated."""
        self._curve(trial, fold).final = self._sign * figure
        self._place(trial, self._standings)

    def promote(self, trial: int, n_rungs: int) -> None:
        """Record that the trial has passed `n_rungs` rungs."""
        self._n_rungs[trial] = n_rungs

    def end(self, trial: int) -> None:
        """Record that the trial has ended; its reports still count for other trials."""
        self._ended.add(trial)

    def _curve(self, trial: int, fold: int) -> Curve:
        return self._curves.setdefault(trial, {}).setdefault(fold, Curve())

    def curve(self, trial: int, fold: int) -> Curve:
        """Return the curve of a fold; empty before its first report."""
        return self._curves.get(trial, {}).get(fold) or Curve()

    def curves(self, fold: int) -> Iterator[tuple[int, Curve]]:
        """Yield (trial, curve) for all trials that have reported on `fold`."""
        return ((trial, folds[fold]) for trial, folds in self._curves.items() if fold in folds)

    def n_rungs(self, trial: int) -> int:
        """Return the number of rungs that the trial has passed."""
        return self._n_rungs.get(trial, 0)

    @property
    def n_decisions(self) -> int:
        """Number of trials that have reported, plus the number of promotions."""
        return len(self._curves) + sum(self._n_rungs.values())

    def has_ended(self, trial: int) -> bool:
        """Return True if the trial has ended."""
        return trial in self._ended

    def value_at(self, trial: int, epoch: int) -> float | None:
        """Return the mean over the folds at `epoch`; None before all folds have reached it."""
        values = [self.curve(trial, fold).value_at(epoch) for fold in range(self.n_fold)]
        known = [value for value in values if value is not None]
        return math.fsum(known) / self.n_fold if len(known) == self.n_fold else None

    def standing(self, epoch: int) -> Sequence[tuple[float, int]]:
        """Return (value, trial) of all trials that have reached `epoch` in all folds, from best to worst, then by age.

        The result is cached, because a search with many blocks needs it at every report.
        """
        if epoch not in self._standings:
            self._standings[epoch] = []
            for trial in self._curves:
                self._place(trial, [epoch])
        return self._standings[epoch]

    def _place(self, trial: int, epochs: Iterable[int]) -> None:
        """Insert a trial into the standings of some epochs; a known value never changes."""
        for epoch in epochs:
            value, standing = self.value_at(trial, epoch), self._standings[epoch]
            if value is not None and (value, trial) not in standing[bisect_left(standing, (value, trial)) :][:1]:
                insort(standing, (value, trial))

    def figure_so_far(self, trial: int) -> float | None:
        """Return the mean of the last reports of all folds, not negated; None before the first report."""
        values = [curve.last for curve in self._curves.get(trial, {}).values()]
        known = [value for value in values if value is not None]
        return self.shown(math.fsum(known) / len(known)) if known else None

    @property
    def trials(self) -> Iterator[int]:
        """All trials that have reported."""
        return iter(self._curves)

    def shown(self, value: float) -> float:
        """Return a value as it was reported, not negated."""
        return self._sign * value
