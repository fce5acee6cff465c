"""Figures that outcome constraints bound, on a scale for a surrogate, and the chance that a trial keeps its bounds.

Whether a trial keeps a bound is one bit; by how much is a number, from which a Gaussian process learns where the border
runs (Gardner et al., 2014, ICML). Two bounds of one figure share a process.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from nnlo_opt.search.base import History
from nnlo_opt.search.gaussian_process import Posterior
from nnlo_opt.search.targets import without_penalties
from nnlo_opt.trials.objectives import OutcomeConstraint

_LOG_SQRT_2PI = 0.5 * float(np.log(2.0 * np.pi))
#: quotient of the largest and the median distance from a bound above which distances count by their logarithms
_DECADES = 10.0
#: least difference of two logarithms of a chance, whose difference would be rounding
_LEAST = 1e-300
MODE = os.environ.get("MODE", "slog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Figures of trials, and their bounds, on a scale on which the figures have mean 0 and standard deviation 1."""

    #: (n,) float64
    figures: np.ndarray
    #: bounds, minus or plus infinity without one
    low: float
    high: float

    @property
    def urgency(self) -> np.ndarray:
        """Distance to the nearest bound, (n,) float64: what is known there decides."""
        return np.minimum(np.abs(self.figures - self.low), np.abs(self.figures - self.high))


def breaks_a_bound(history: History, row: int) -> bool:
    """Return True if a known outcome of the trial in `row` breaks its bound."""
    known = history.outcomes.get(row, {})
    return any(not bound.allows(known[bound.name]) for bound in history.bounds if bound.name in known)


def nearest_first(history: History) -> np.ndarray:
    """Return the rows with outcomes, (n,) int, those first whose farthest outcome is nearest to its bound."""
    rows = np.array(sorted(history.outcomes), dtype=int)
    excess = np.zeros((len(rows), 1))
    for bound in history.bounds:
        of_bound = np.array([max(0.0, bound.excess(history.outcomes[r].get(bound.name, bound.bound))) for r in rows])
        excess = np.column_stack([excess, of_bound / (np.median(of_bound) or of_bound.max() or 1.0)])
    return rows[np.argsort(excess.max(axis=1), kind="stable")]


def margins_of(history: History, name: str, rows: np.ndarray) -> Margins:
    """Return the outcomes `name` of the trials in `rows`, of which there is one at least, with one or two bounds.

    Distances are taken from the bound, or from the middle of two, and penalties among them moved. If they span decades,
    they are compressed by a signed logarithm.
    """
    figures = np.array([history.outcomes[row][name] for row in rows.tolist()])
    bounds = [bound for bound in history.bounds if bound.name == name]
    limits = np.array([bound.bound for bound in bounds])
    centre = float(0.5 * limits.min() + 0.5 * limits.max())
    away = np.concatenate([figures, limits]) - centre
    n = len(figures)
    if len(bounds) == 1:
        sign = 1.0 if bounds[0].is_upper else -1.0
        away[:n] = sign * without_penalties(sign * away[:n], rows)
    else:
        away[:n] = np.sign(away[:n]) * without_penalties(np.abs(away[:n]), rows)
    distances = np.abs(away[:n])
    unit = float(np.median(distances)) or float(distances.mean()) or 1.0
    if MODE == "slog" and distances.max() > _DECADES * unit or MODE == "always":
        away = np.sign(away) * np.log1p(np.abs(away) / unit)
    elif MODE == "log":
        both = np.concatenate([figures, limits])
        if both.min() > 0 and both.max() > 10 * both.min():
            away = np.log(both)
    away = (away - away[:n].mean()) / (float(away[:n].std()) or 1.0)
    by_side = {bound.is_upper: float(limit) for bound, limit in zip(bounds, away[n:], strict=True)}
    return Margins(figures=away[:n], low=by_side.get(False, -np.inf), high=by_side.get(True, np.inf))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Process that a trial has to keep between two bounds.

    Args:
        process: its first column counts.
        low, high: bounds; minus or plus infinity without one.
        noise: variance of what a trial shows beside the variance of the process.
    """

    process: Posterior
    low: float = -np.inf
    high: float = np.inf
    noise: float = 0.0

    def log_chance(self, columns: np.ndarray) -> np.ndarray:
        """Return the logarithm of the chance that a trial keeps the bounds, (m,) float64, at `columns` (m, width)."""
        means, variances = self.process.predict(columns)
        std = np.sqrt(variances + self.noise)
        return _log_between((self.low - means[:, 0]) / std, (self.high - means[:, 0]) / std)

    def log_chance_with_gradient(self, row: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the logarithm of the chance and its gradient (width,) at `row` (width,)."""
        means, variance, d_means, d_variance = self.process.predict_with_gradient(row)
        mean, std, d_mean = float(means[0]), float(np.sqrt(variance + self.noise)), d_means[:, 0]
        low, high = (self.low - mean) / std, (self.high - mean) / std
        result = float(_log_between(np.array([low]), np.array([high]))[0])
        gradient = np.zeros(len(row))
        for sign, z in ((-1.0, low), (1.0, high)):
            if np.isfinite(z):
                density = float(np.exp(-0.5 * z * z - _LOG_SQRT_2PI - result))
                gradient -= sign * density * (d_mean / std + z * d_variance / (2.0 * std**2))
        return result, gradient


def _log_between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return log(Phi(high) - Phi(low)), (m,), for low < high; exact in both tails."""
    swap = low + high > 0.0  # in the upper tail the difference of two chances near 1 would be rounding
    low, high = np.where(swap, -high, low), np.where(swap, -low, high)
    logs = log_ndtr(high)
    return logs + np.log(-np.expm1(np.minimum(log_ndtr(low) - logs, -_LEAST)))
