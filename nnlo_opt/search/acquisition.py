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
        return self._of(columns, *self.values.predict(columns))

    def of_new(self, columns: np.ndarray) -> np.ndarray:
        """Return the acquisition as above, but minus infinity for near copies of observed points."""
        means, variances, is_known = self.values.predict_with_known(columns)
        return np.where(is_known, -np.inf, self._of(columns, means, variances))

    def _of(self, columns: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
        std = np.sqrt(variances)
        result = np.log(std) + _log_mean_exp(log_improvement((self.values.least - means) / std[:, None])[0])
        if self.failures is not None:
            result = np.logaddexp(result, _LOG_NEGLIGIBLE) + log_ndtr(_confidence(self.failures, columns))
        return result

    def with_gradient(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the acquisition, (m,), and its gradient, (m, width), at `columns` (m, width)."""
        means, variances, pullback = self.values.predict_with_pullback(columns)
        std = np.sqrt(variances)
        z = (self.values.least - means) / std[:, None]
        logs, slopes = log_improvement(z)
        values = np.log(std) + _log_mean_exp(logs)
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        by_z = slopes * shares / shares.sum(axis=1, keepdims=True)
        by_std = (1.0 - (by_z * z).sum(axis=1)) / std
        gradients = pullback(-by_z / std[:, None], by_std / (2.0 * std))
        if self.failures is not None:
            with_floor = np.logaddexp(values, _LOG_NEGLIGIBLE)
            log_chances, of_chances = _log_chances_with_gradient(self.failures, columns)
            gradients = np.exp(values - with_floor)[:, None] * gradients + of_chances
            values = with_floor + log_chances
        return values, gradients


def chance_of_success(failures: Posterior, columns: np.ndarray) -> np.ndarray:
    """Return the chance of success, (m,) float64 in 0..1, for `columns` (m, width); `failures` as in `Acquisition`."""
    return ndtr(_confidence(failures, columns))


def _confidence(failures: Posterior, columns: np.ndarray) -> np.ndarray:
    failing, variances = failures.predict(columns)
    return -failing[:, 0] / np.sqrt(variances + _LABEL_NOISE)


def _log_chances_with_gradient(failures: Posterior, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    failing, variances, pullback = failures.predict_with_pullback(columns)
    width = np.sqrt(variances + _LABEL_NOISE)
    t = -failing[:, 0] / width
    log_chances = log_ndtr(t)
    by_t = np.exp(-0.5 * t * t - _LOG_SQRT_2PI - log_chances)
    return log_chances, pullback((-by_t / width)[:, None], -by_t * t / (2.0 * width**2))


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
