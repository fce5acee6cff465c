"""The Pareto set: the trials that no other trial beats in every objective."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether losses `a` are nowhere worse than `b` and somewhere better."""
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


@dataclass(slots=True)
class ParetoSet:
    """The non-dominated among the trials added so far, kept as they come: O(size of the set) a trial.

    Trials of equal losses do not dominate each other: all of them are in it, or none.
    """

    #: trial -> its losses; no two dominate each other
    _losses: dict[int, tuple[float, ...]] = field(default_factory=dict, init=False)

    def add(self, trial: int, losses: Sequence[float]) -> bool:
        """Take in a trial with finite losses, one for each objective; -> whether it belongs to the set now.

        ValueError for losses that are not finite, or of another number than those known.
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
