"""Models constrained outcomes: scales for a surrogate, and the chance that a trial is feasible.

Feasibility is one bit, but the distance from the bound is a number, from which a Gaussian process learns where the
boundary is (Gardner et al., 2014, ICML). Two bounds on one outcome share a process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
from scipy.special import log_ndtr

from nnlo_opt.core.search.ascent import Function
from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.gaussian_process import Posterior, Pullback
from nnlo_opt.core.search.targets import without_penalties
from nnlo_opt.core.trials.objectives import OutcomeConstraint

_LOG_SQRT_2PI = 0.5 * float(np.log(2.0 * np.pi))
#: values span decades if the ratio of the largest to the median distance from a bound, or of two figures, exceeds this
_DECADES = 10.0
#: lower limit of an observation's probability, so that one outlier does not decide the scale
_UNLIKELY = 1e-3


class Scale(Enum):
    """Scale of the figures for a surrogate."""

    LINEAR = auto()
    #: logarithm of the distance from the bound, with its sign; linear near the bound
    SIGNED_LOG = auto()
    #: logarithm of positive figures
    LOG = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Figures of trials and their bounds, scaled so that the figures have mean 0 and standard deviation 1."""

    #: row of each trial in the history, (n,) int
    rows: np.ndarray
    #: (n,) float64
    figures: np.ndarray
    #: True for each figure within its bounds, (n,) bool
    kept: np.ndarray
    #: bounds; minus or plus infinity if there is none
    low: float
    high: float

    @property
    def distances(self) -> np.ndarray:
        """Distance of each figure to the nearest bound, (n,) float64."""
        return np.minimum(np.abs(self.figures - self.low), np.abs(self.figures - self.high))

    def part(self, some: np.ndarray) -> "Margins":
        """Return the margins of some of the trials, by their indices here."""
        return replace(self, rows=self.rows[some], figures=self.figures[some], kept=self.kept[some])

    def credibility(self, process: Posterior) -> float:
        """Return the mean leave-one-out log probability that each figure is on its side of the bounds.

        Args:
            process: process conditioned on these figures.
        """
        means, std = process.left_out()[:, 0], np.sqrt(process.left_out_variances())
        chance = np.exp(_log_between((self.low - means) / std, (self.high - means) / std))
        return float(np.log(np.clip(np.where(self.kept, chance, 1.0 - chance), _UNLIKELY, 1.0)).mean())


def rows_with(history: History, name: str) -> np.ndarray:
    """Return the rows with a known outcome `name`, (n,) int, ascending."""
    return np.array([row for row, outcomes in sorted(history.outcomes.items()) if name in outcomes], dtype=int)


def breaks_a_bound(history: History, row: int) -> bool:
    """Return True if a known outcome of the trial in `row` violates its bound."""
    known = history.outcomes.get(row, {})
    return any(not bound.allows(known[bound.name]) for bound in history.bounds if bound.name in known)


def nearest_first(history: History) -> np.ndarray:
    """Return the rows with a value and an outcome, (n,) int, sorted by the worst outcome's distance from its bound.

    The unit of an outcome is the median distance of the violations.
    """
    rows = np.array([row for row in sorted(history.outcomes) if np.isfinite(history.values[row])], dtype=int)
    worst = np.zeros(len(rows))
    for bound in history.bounds:
        known = (history.outcomes[row].get(bound.name, bound.bound) for row in rows.tolist())
        excess = np.array([max(0.0, bound.excess(figure)) for figure in known])
        worst = np.maximum(worst, excess / (np.median(excess[excess > 0.0]) if (excess > 0.0).any() else 1.0))
    return rows[np.argsort(worst, kind="stable")]


def margins_of(history: History, name: str, rows: np.ndarray) -> dict[Scale, Margins]:
    """Return the outcomes `name` of the trials in `rows` (at least one) on one or more scales.

    Penalties are recognised by their distance from the bound, or from the middle of two. If figures span decades,
    logarithmic scales are added to the linear one.
    """
    figures = np.array([history.outcomes[row][name] for row in rows.tolist()])
    bounds = [bound for bound in history.bounds if bound.name == name]
    limits = np.array([bound.bound for bound in bounds])
    kept = np.all([[bound.allows(figure) for figure in figures.tolist()] for bound in bounds], axis=0)
    centre = float(0.5 * limits.min() + 0.5 * limits.max())
    distances = np.abs(figures - centre)
    moved = without_penalties(np.append(distances, 0.0), np.append(rows, rows.max()))[:-1]
    # A penalty stays on its side of the bounds.
    regular = np.minimum(distances, np.maximum(moved, limits.max() - limits.min()))
    away = np.sign(figures - centre) * regular
    unit = float(np.median(np.abs(away))) or float(np.abs(away).mean()) or 1.0
    both, positive = np.append(away, limits - centre), np.append(away + centre, limits)
    scaled = {Scale.LINEAR: both}
    if np.abs(away).max() > _DECADES * unit:
        scaled[Scale.SIGNED_LOG] = np.sign(both) * np.log1p(np.abs(both) / unit)
    if positive.min() > 0.0 and positive.max() > _DECADES * positive.min():
        scaled[Scale.LOG] = np.log(positive)
    return {scale: _standardised(values, rows, kept, bounds) for scale, values in scaled.items()}


def _standardised(
    scaled: np.ndarray, rows: np.ndarray, kept: np.ndarray, bounds: Sequence[OutcomeConstraint]
) -> Margins:
    """Return margins from figures, followed by the bounds, on one scale."""
    figures = scaled[: len(rows)]
    scaled = (scaled - figures.mean()) / (float(figures.std()) or 1.0)
    limits = dict(zip((bound.is_upper for bound in bounds), scaled[len(rows) :].tolist(), strict=True))
    low, high = limits.get(False, -np.inf), limits.get(True, np.inf)
    return Margins(rows=rows, figures=scaled[: len(rows)], kept=kept, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Process of an outcome that must stay between two bounds.

    Args:
        process: only its first column is used.
        low, high: bounds; minus or plus infinity if there is none.
        noise: variance of an observation, in addition to that of the process.
    """

    process: Posterior
    low: float = -np.inf
    high: float = np.inf
    noise: float = 0.0

    def log_chance(self, columns: np.ndarray) -> np.ndarray:
        """Return the log probability that a trial is within the bounds, (m,) float64, at `columns` (m, width)."""
        means, variances = self.process.predict(columns)
        std = np.sqrt(variances + self.noise)
        return _log_between((self.low - means[:, 0]) / std, (self.high - means[:, 0]) / std)

    def along(self, columns: np.ndarray, free: np.ndarray) -> Function:
        """Return the log probability and its gradient, as a function like that of `Posterior.along`."""
        process = self.process.along(columns, free)
        return lambda rows, values: self._with_gradient(*process(rows, values))

    def _with_gradient(
        self, means: np.ndarray, variances: np.ndarray, pullback: Pullback
    ) -> tuple[np.ndarray, np.ndarray]:
        std = np.sqrt(variances + self.noise)
        low, high = (self.low - means[:, 0]) / std, (self.high - means[:, 0]) / std
        logs = _log_between(low, high)
        by_mean, by_variance = np.zeros_like(logs), np.zeros_like(logs)
        for sign, z in ((-1.0, low), (1.0, high)):
            if np.isfinite(z).all():
                slope = sign * np.exp(-0.5 * z * z - _LOG_SQRT_2PI - logs) / std
                by_mean -= slope
                by_variance -= slope * z / (2.0 * std)
        by_means = np.zeros_like(means)
        by_means[:, 0] = by_mean
        return logs, pullback(by_means, by_variance)


def _log_between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return log(Phi(high) - Phi(low)), (m,), for low < high; exact in both tails."""
    swap = low > -high  # in the upper tail a difference of two values near 1 would lose all digits
    low, high = np.where(swap, -high, low), np.where(swap, -low, high)
    logs = log_ndtr(high)
    # Far out, two logarithms may round to the same number.
    return logs + np.log(-np.expm1(np.minimum(log_ndtr(low) - logs, -np.finfo(float).tiny)))
