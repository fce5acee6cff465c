"""Targets of a surrogate: values of order one, for losses of any size."""

import numpy as np


def warp(values: np.ndarray) -> np.ndarray:
    """Return finite values compressed in their order, (n,) float64; the best becomes 0, the median log(2).

    Losses span orders of magnitude. A diverged loss counts by its logarithm, so that it does not flatten the
    differences between good losses. Scale and shift of the values do not matter; the result is 0 if all values are
    equal.
    """
    return np.log1p(_above(values)[0])


def unwarp(warped: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return what `warp` compresses to `warped` among `values`; below 0 it is better than all of these."""
    return values.min() + np.expm1(warped) * _above(values)[1]


def relative_noise(values: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """Return the relative variances of warped `values`, (n,) float64 around 1.

    `stds` are the standard errors of the values, NaN if unknown. | Only the ratio of the variances is used, and their
    level is fitted. All trials share the differences between folds, so the spread over the folds says which trial is
    known better, but not how well. The error of a few folds is itself uncertain, so a ratio is moved half way to 1 and
    kept within 0.1 and 10.
    """
    known = np.isfinite(stds)
    if not known.any():
        return np.ones(len(values))
    above, scale = _above(values)
    with np.errstate(over="ignore"):
        warped = np.minimum(stds / scale, 1e150) / (1.0 + above)
    typical = float(np.median(warped[known]))
    ratios = np.ones(len(values))
    if typical > 0.0:
        ratios[known] = np.clip(0.5 + 0.5 * (warped[known] / typical) ** 2, 0.1, 10.0)
    return ratios


def standardise(values: np.ndarray) -> np.ndarray:
    """Return `values` with mean 0 and standard deviation 1; all 0 if all are equal."""
    return (values - values.mean()) / (float(values.std()) or 1.0)


def penalty(warped: np.ndarray) -> float:
    """Return the warped value of a failed trial: as bad as the worst, and clearly worse than the best."""
    return max(1.0, float(warped.max()))


def _above(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the distances of `values` above the least, in units of their median, and this unit."""
    largest = float(np.abs(values).max())
    if largest == 0.0:
        return np.zeros(len(values)), 1.0
    above = values / largest  # before any difference, which may overflow
    above -= above.min()
    # The unit is at least 1e-12: smaller differences are rounding errors, and a quotient could overflow.
    scale = max(float(np.median(above)) or float(above.mean()), 1e-12)
    return above / scale, scale * largest
