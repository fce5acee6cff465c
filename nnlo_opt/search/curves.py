"""Learning curves: what has been reported of all trials, for those who decide on it (`search.pruning`).

Values are minimised inside; `Reports` turns the sign of figures that are maximised.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field


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
