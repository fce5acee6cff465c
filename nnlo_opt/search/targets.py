"""What a surrogate is fitted to: values of order one, whatever the losses are."""

import numpy as np


def warp(values: np.ndarray) -> np.ndarray:
    """(n,) float64: finite values compressed in their order; the best becomes 0, the median log(2).

    Losses span orders of magnitude, and one that diverged must not flatten the differences between the good ones: it
    counts by its logarithm. Scale and shift of the values do not matter; all are 0 when all are equal.
    """
    return np.log1p(_above(values)[0])


def relative_noise(values: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """(n,) float64 around 1: how the variances of warped `values` compare, given their standard errors (NaN: unknown).

    Only their ratio is told, and the level is left to be fitted: folds differ from each other in a way that all trials
    share, so their spread says which trial is known better, but not how well. An error of a few folds is itself
    uncertain, so a ratio is drawn half way to 1, and kept within 0.1 and 10.
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
    """`values` with mean 0 and standard deviation 1; all 0 when all are equal."""
    return (values - values.mean()) / (float(values.std()) or 1.0)


def penalty(warped: np.ndarray) -> float:
    """What a failed trial counts as, given warped values: as the worst, and clearly worse than the best."""
    return max(1.0, float(warped.max()))


def _above(values: np.ndarray) -> tuple[np.ndarray, float]:
    """How far `values` lie above the least, in units of the median of that; and that unit."""
    largest = float(np.abs(values).max())
    if largest == 0.0:
        return np.zeros(len(values)), 1.0
    above = values / largest  # before any difference, which may overflow
    above -= above.min()
    # In units of at least 1e-12: below that the differences are rounding, and a quotient could overflow.
    scale = max(float(np.median(above)) or float(above.mean()), 1e-12)
    return above / scale, scale * largest
