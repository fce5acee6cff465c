"""Acquisition: expected improvement times the chance that the trial succeeds and satisfies all constraints."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, ndtr

from nnlo_opt.core.search.ascent import Function
from nnlo_opt.core.search.gaussian_process import Posterior
from nnlo_opt.core.search.margins import Bounded

_LOG_SQRT_2PI = 0.5 * float(np.log(2.0 * np.pi))
#: log of the expected improvement, in standard deviations of the values, below which no risk of failure is worth it
_LOG_NEGLIGIBLE = float(np.log(1e-3))
#: standard deviations below the mean beyond which an asymptote is exact to 1e-6
_FAR = 1e3
_SQRT_HALF, _SQRT_HALF_PI = float(np.sqrt(0.5)), float(np.sqrt(0.5 * np.pi))


@dataclass(frozen=True, slots=True)
class Acquisition:
    """Expected improvement, averaged over the fantasies of `values`, times the chances of all `constraints`.

    Args:
        values: posterior of the warped values to minimise.
        constraints: assumed to be independent of each other.
    """

    values: Posterior
    constraints: Sequence[Bounded] = ()

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """Return the acquisition, (m,) float64, for `columns` (m, width)."""
        return self._of(columns, *self.values.predict(columns))

    def of_new(self, columns: np.ndarray) -> np.ndarray:
        """Like calling the object, but minus infinity for near copies of observed points."""
        means, variances, is_known = self.values.predict_with_known(columns)
        return np.where(is_known, -np.inf, self._of(columns, means, variances))

    def _of(self, columns: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
        std = np.sqrt(variances)
        result = np.log(std) + _log_mean_exp(log_improvement((self.values.least - means) / std[:, None])[0])
        if self.constraints:
            result = np.logaddexp(result, _LOG_NEGLIGIBLE)
        for constraint in self.constraints:
            result = result + constraint.log_chance(columns)
        return result

    def along(self, columns: np.ndarray, free: np.ndarray) -> Function:
        """Return the acquisition as a function of the columns `free` (d,) only, for rows `columns` (k, width).

        The function takes row numbers (m,) and values (m, d); it returns the acquisition, (m,), and its gradient, (m,
        d).
        """
        process = self.values.along(columns, free)
        constraints = [constraint.along(columns, free) for constraint in self.constraints]

        def acquisition(rows: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            means, variances, pullback = process(rows, at)
            std = np.sqrt(variances)
            z = (self.values.least - means) / std[:, None]
            logs, slopes = log_improvement(z)
            values = np.log(std) + _log_mean_exp(logs)
            shares = np.exp(logs - logs.max(axis=1, keepdims=True))
            by_z = slopes * shares / shares.sum(axis=1, keepdims=True)
            by_std = (1.0 - (by_z * z).sum(axis=1)) / std
            gradients = pullback(-by_z / std[:, None], by_std / (2.0 * std))
            if constraints:
                with_floor = np.logaddexp(values, _LOG_NEGLIGIBLE)
                values, gradients = with_floor, np.exp(values - with_floor)[:, None] * gradients
            for constraint in constraints:
                log_chances, of_chances = constraint(rows, at)
                values, gradients = values + log_chances, gradients + of_chances
            return values, gradients

        return acquisition


@dataclass(frozen=True, slots=True)
class Elsewhere(Acquisition):
    """Acquisition that excludes a category: minus infinity where the column `barred` is not 0."""

    barred: int = 0

    def _of(self, columns: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
        result = Acquisition._of(self, columns, means, variances)  # `super()` does not work in a dataclass with slots
        result[columns[:, self.barred] > 0.0] = -np.inf
        return result


def log_improvement(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log(phi(z) + z Phi(z)) and its derivative, exact even where the logarithm's argument underflows.

    Ament, Daulton, Eriksson, Balandat and Bakshy, 2023, "Unexpected improvements to expected improvement for Bayesian
    optimization", eq. 9.
    """
    # Below 0, h(z) = phi(z) (1 - |z| R(|z|)) and Phi(z) = phi(z) R(|z|) with Mills' ratio R. Far below 0 the difference
    # is lost to rounding; there R is 1/|z| - 1/|z|^3.
    below = np.maximum(-z, 0.0)
    near = np.minimum(below, _FAR)
    mills = _SQRT_HALF_PI * erfcx(_SQRT_HALF * near)
    rest = 1.0 - near * mills
    slopes = mills / rest
    if (is_far := below >= _FAR).any():
        rest[is_far], slopes[is_far] = 1.0 / below[is_far] ** 2, below[is_far]
    logs = -0.5 * below**2 - _LOG_SQRT_2PI + np.log(rest)
    if (is_above := z >= 0.0).any():
        above = z[is_above]
        phi, chance = np.exp(-0.5 * above**2 - _LOG_SQRT_2PI), ndtr(above)
        h = phi + above * chance
        logs[is_above], slopes[is_above] = np.log(h), chance / h
    return logs, slopes


def _log_mean_exp(logs: np.ndarray) -> np.ndarray:
    """Return log(mean(exp(logs))) over the last axis."""
    largest = logs.max(axis=-1, keepdims=True)
    return largest[..., 0] + np.log(np.exp(logs - largest).mean(axis=-1))
