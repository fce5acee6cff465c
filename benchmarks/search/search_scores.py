"""A task of `search.py`: its space, what a trial of it is told, and how well a search of it has done."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nnlo_opt.space import Point, Space


class Told(NamedTuple):
    """Result of a complete trial, as an engine gets it; smaller is better."""

    #: one for each objective
    losses: tuple[float, ...]
    #: standard error of the loss, if it is the mean of folds
    std: float | None = None


@dataclass(frozen=True)
class Task:
    """A space, the regret of its points, and what a trial shows of it."""

    space: Space
    #: how much worse than the best point; unused with several losses
    regret: Callable[[Point], float]
    #: standard deviation of one measurement of the loss
    noise: float = field(default=0.0, kw_only=True)
    #: measurements whose mean is the loss of a trial
    n_folds: int = field(default=1, kw_only=True)
    #: points whose trials fail
    fails: Callable[[Point], bool] | None = field(default=None, kw_only=True)
    #: two losses instead of the regret
    losses: Callable[[Point], tuple[float, float]] | None = field(default=None, kw_only=True)
    #: largest hypervolume of these up to (REFERENCE, REFERENCE)
    best_hypervolume: float = field(default=math.nan, kw_only=True)

    @property
    def n_losses(self) -> int:
        return 2 if self.losses else 1

    @property
    def guess(self) -> Point | None:
        """What a person expects to be good; None without `likely` values."""
        likely = {parameter.name: getattr(parameter, "likely", None) for parameter in self.space.parameters}
        return None if None in likely.values() else likely

    def told(self, point: Point, rng: np.random.Generator) -> Told | None:
        """Measure a point; None if its trial fails."""
        if self.fails is not None and self.fails(point):
            return None
        if self.losses is not None:
            return Told(self.losses(point))
        if not self.noise:
            return Told((self.regret(point),))
        folds = self.regret(point) + self.noise * rng.normal(size=self.n_folds)
        error = float(folds.std(ddof=1)) / math.sqrt(self.n_folds) if self.n_folds > 1 else None
        return Told((float(folds.mean()),), error)

    def score(self, points: Sequence[Point], told: Sequence[Told | None]) -> dict[str, float]:
        """`regret`: what a person has who takes the best value observed; `reached`: the least regret of all trials.

        Both are the same without noise. Of two losses, the part of the best hypervolume that is missing.
        """
        complete = [(point, its) for point, its in zip(points, told, strict=True) if its is not None]
        if self.losses is not None:
            missing = 1.0 - hypervolume([its.losses for _, its in complete]) / self.best_hypervolume
            return {"regret": missing, "reached": missing}
        if not complete:
            return {"regret": math.inf, "reached": math.inf}
        observed = min(complete, key=lambda pair: pair[1].losses[0])[0]
        return {"regret": self.regret(observed), "reached": min(self.regret(point) for point, _ in complete)}


#: what both of two losses are compared with
REFERENCE = 1.1


def hypervolume(losses: Sequence[tuple[float, ...]]) -> float:
    """Area up to (REFERENCE, REFERENCE) in which a point is worse than one of `losses` in both."""
    area, lowest = 0.0, REFERENCE
    for first, second in sorted(losses):
        if first < REFERENCE and second < lowest:
            area += (REFERENCE - first) * (lowest - second)
            lowest = second
    return area
