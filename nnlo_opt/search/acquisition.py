"""Acquisition of a point: its expected improvement, with the chance that its trial succeeds."""

from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from nnlo_opt.search.gaussian_process import Posterior

_LOG_SQRT_2PI = 0.5 * float(np.log(2.0 * np.pi))
#: variance added to the variance of the labels -1 and 1; the larger, the softer the border between success and failure
_LABEL_NOISE = 0.1
#: log of the expected improvement, in standard deviations of the values, that does not justify any risk of failure
_LOG_NEGLIGIBLE = float(np.log(1e-3))
#: standard deviations below the mean beyond which an asymptote is exact to 1e-6
_FAR = 1e3
_SQRT_HALF, _SQRT_HALF_PI = float(np.sqrt(0.5)), float(np.sqrt(0.5 * np.pi))


@dataclass(frozen=True, slots=True)
class Acquisition:
    """Expected improvement, averaged over the fantasies of `values`, times the chance of success by `failures`.

    Args:
        values: posterior of the warped values to minimise. failures: posterior fitted to -1 for a trial that succeeded
            and 1 for a trial that failed; None if no trial failed.
    """

    values: Posterior
    failures: Posterior | None = None

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """Return the acquisition, (m,) float64, for `columns` (m, width)."""
        means, variances = self.values.predict(columns)
        std = np.sqrt(variances)
        result = np.log(std) + _log_mean_exp(log_improvement((self.values.least - means) / std[:, None])[0])
        if self.failures is not None:
            result = np.logaddexp(result, _LOG_NEGLIGIBLE) + log_ndtr(_confidence(self.failures, columns))
        return result

    def with_gradient(self, row: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the acquisition and its gradient (width,) at `row` (width,)."""
        means, variance, d_means, d_variance = self.values.predict_with_gradient(row)
        std = float(np.sqrt(variance))
        z = (self.values.least - means) / std
        logs, slopes = log_improvement(z)
        value = float(np.log(std) + _log_mean_exp(logs))
        shares = np.exp(logs - logs.max())
        shares *= slopes / shares.sum()
        d_std = d_variance / (2.0 * std)
        gradient = (d_std - d_means @ shares - float(shares @ z) * d_std) / std
        if self.failures is not None:
            failing, variance, d_failing, d_variance = self.failures.predict_with_gradient(row)
            width = float(np.sqrt(variance + _LABEL_NOISE))
            t = -float(failing[0]) / width
            log_chance = float(log_ndtr(t))
            slope = float(np.exp(-0.5 * t * t - _LOG_SQRT_2PI - log_chance))
            with_floor = float(np.logaddexp(value, _LOG_NEGLIGIBLE))
            d_t = -d_failing[:, 0] / width - t * d_variance / (2.0 * width**2)
            gradient = np.exp(value - with_floor) * gradient + slope * d_t
            value = with_floor + log_chance
        return value, gradient


@dataclass(frozen=True, slots=True)
class Elsewhere(Acquisition):
    """Acquisition that is minus infinity for points with a category: those for which the column `barred` is not 0."""

    barred: int = 0

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """Return the acquisition, (m,) float64, for `columns` (m, width)."""
        result = Acquisition.__call__(self, columns)  # a class with slots has no `super()`
        result[columns[:, self.barred] > 0.0] = -np.inf
        return result


def chance_of_success(failures: Posterior, columns: np.ndarray) -> np.ndarray:
    """Return the chance of success, (m,) float64 in 0..1, for `columns` (m, width); `failures` as in `Acquisition`."""
    return ndtr(_confidence(failures, columns))


def _confidence(failures: Posterior, columns: np.ndarray) -> np.ndarray:
    failing, variances = failures.predict(columns)
    return -failing[:, 0] / np.sqrt(variances + _LABEL_NOISE)


def log_improvement(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log(phi(z) + z Phi(z)) and its derivative, exact even if the argument of the logarithm would underflow.

    Ament, Daulton, Eriksson, Balandat and Bakshy, 2023, "Unexpected improvements to expected improvement for Bayesian
    optimization", eq. 9.
    """
    # Below 0, h(z) = phi(z) (1 - |z| R(|z|)) and Phi(z) = phi(z) R(|z|) with Mills' ratio R. Far below 0 the
    # difference is mere rounding, and R is 1/|z| - 1/|z|^3.
    below = np.maximum(-z, 0.0)
    near = np.minimum(below, _FAR)
    mills = _SQRT_HALF_PI * erfcx(_SQRT_HALF * near)
    rest = np.where(below < _FAR, 1.0 - near * mills, 1.0 / np.maximum(below, 1.0) ** 2)
    above = np.maximum(z, 0.0)
    phi, ndtr = np.exp(-0.5 * above**2 - _LOG_SQRT_2PI), np.exp(log_ndtr(above))
    h = phi + above * ndtr
    logs = np.where(z < 0.0, -0.5 * below**2 - _LOG_SQRT_2PI + np.log(rest), np.log(h))
    return logs, np.where(z < 0.0, np.where(below < _FAR, mills / rest, below), ndtr / h)


def _log_mean_exp(logs: np.ndarray) -> np.ndarray:
    """Return log(mean(exp(logs))) over the last axis."""
    largest = logs.max(axis=-1, keepdims=True)
    return largest[..., 0] + np.log(np.exp(logs - largest).mean(axis=-1))
