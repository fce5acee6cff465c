"""Pareto set: the trials that no other trial dominates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return True if losses `a` are nowhere worse than `b`, but somewhere better."""
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


@dataclass(slots=True)
class ParetoSet:
    """Non-dominated trials among those added so far; adding one takes time O(size of the set).

    Trials of equal losses do not dominate each other: all of them are in the set, or none is.
    """

    #: trial -> its losses; no trial dominates another
    _losses: dict[int, tuple[float, ...]] = field(default_factory=dict, init=False)

    def add(self, trial: int, losses: Sequence[float]) -> bool:
        """Add a trial; return True if it belongs to the set now.

        Args:
            trial: its number.
            losses: finite, one for each objective.

        Raises:
            ValueError: a loss is not finite, or there are more or fewer than for earlier trials.
        """
        new = tuple(losses)
        if not all(map(math.isfinite, new)):
            raise ValueError(f"The losses of a trial must be finite. Received: {new} for trial {trial}.")
        if any(len(known) != len(new) for known in self._losses.values()):
            raise ValueError(f"Every trial must have as many losses. Received: {new} for trial {trial}.")
        if any(dominates(known, new) for known in self._losses.values()):
            return False
        self._losses = {number: known for number, known in self._losses.items() if not dominates(new, known)}
        self._losses[trial] = new
        return True

    @property
    def trials(self) -> list[int]:
        """Numbers of the trials in the set, from the best to the worst in the first objective."""
        return sorted(self._losses, key=lambda trial: (self._losses[trial], trial))

    def __contains__(self, trial: int) -> bool:
        return trial in self._losses

    def __len__(self) -> int:
        return len(self._losses)
