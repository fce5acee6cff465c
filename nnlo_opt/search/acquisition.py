"""Acquisition of a point: its expected improvement, with the chances that its trial succeeds and keeps its bounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr

from nnlo_opt.search.gaussian_process import Posterior
from nnlo_opt.search.margins import Bounded

_LOG_SQRT_2PI = 0.5 * float(np.log(2.0 * np.pi))
#: log of the expected improvement, in standard deviations of the values, that does not justify any risk of failure
_LOG_NEGLIGIBLE = float(np.log(1e-3))
#: standard deviations below the mean beyond which an asymptote is exact to 1e-6
_FAR = 1e3
_SQRT_HALF, _SQRT_HALF_PI = float(np.sqrt(0.5)), float(np.sqrt(0.5 * np.pi))


@dataclass(frozen=True, slots=True)
class Acquisition:
    """Expected improvement, averaged over the fantasies of `values`, times the chances of all `constraints`.

    Args:
        values: posterior of the warped values to minimise.
        constraints: what a trial must keep, independent of each other.
    """

    values: Posterior
    constraints: Sequence[Bounded] = ()

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """Return the acquisition, (m,) float64, for `columns` (m, width)."""
        means, variances = self.values.predict(columns)
        std = np.sqrt(variances)
        result = np.log(std) + _log_mean_exp(log_improvement((self.values.least - means) / std[:, None])[0])
        if self.constraints:
            result = np.logaddexp(result, _LOG_NEGLIGIBLE)
        for constraint in self.constraints:
            result = result + constraint.log_chance(columns)
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
        if self.constraints:
            with_floor = float(np.logaddexp(value, _LOG_NEGLIGIBLE))
            value, gradient = with_floor, np.exp(value - with_floor) * gradient
        for constraint in self.constraints:
            log_chance, d_log_chance = constraint.log_chance_with_gradient(row)
            value, gradient = value + log_chance, gradient + d_log_chance
        return value, gradient


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
