"""Transforms losses of any magnitude into surrogate targets of order one."""

import numpy as np

#: gap, as a ratio of distances above the best, that separates regular values from penalties; diverged trainings and
#: converging searches have smaller gaps
_GAP = 25.0
#: number of first trials, which are spread over the space; later ones gather near the best
_N_SPREAD = 10
#: penalties within this ratio are equal
_EQUAL = 1.01


def without_penalties(values: np.ndarray, rows: np.ndarray, is_feasible: np.ndarray | None = None) -> np.ndarray:
    """Return `values` (n,) with penalties moved to twice the largest regular distance above the best.

    User code may return a penalty, such as 1e4 or 1e100, for a failed trial. On that scale all regular values are
    equal. So distances above the best are sorted, and from the lower quartile of the first trials on, the first gap of
    a factor of 25 separates regular values from penalties. If more than three quarters of the first trials failed, the
    gap is below their quartile, where a converging search has gaps, too: then half of the values beyond the gap must be
    equal. Without a gap the values are returned unchanged.

    Args:
        values: finite.
        rows: row of each value in the history, (n,) int.
        is_feasible: (n,) bool; None if all are. The best is the best feasible value; infeasible ones below it are
            ignored.
    """
    feasible = values if is_feasible is None else values[is_feasible]
    if not len(feasible):
        return values
    least = feasible.min()
    ascending = np.sort(values[values >= least])
    above, largest = _halves(ascending, least), np.maximum(abs(least), np.abs(ascending))
    # Distances below this are rounding errors and say nothing about the scale of regular values.
    gaps = np.flatnonzero((above[:-1] > 0.5e-12 * largest[:-1]) & (above[1:] / _GAP > above[:-1]))
    spread = np.sort(_halves(values[(rows < _N_SPREAD) & (values >= least)], least))
    n_spread = max(len(spread), min(_N_SPREAD, int(rows.max()) + 1))  # trials without a value count as distant
    quartile = spread[(n_spread - 1) // 4] if (n_spread - 1) // 4 < len(spread) else np.inf
    beyond = [n for n in gaps if above[n] >= quartile]
    below = [n for n in gaps[::-1] if above[n] < quartile and np.median(above[n + 1 :]) <= _EQUAL * above[n + 1]]
    last_regular = next(iter(beyond + below), None)
    if last_regular is None:
        return values
    bad = least + 4.0 * above[last_regular]  # twice the distance: `above` has halves
    return np.where(_halves(values, least) > above[last_regular], bad, values)


def _halves(values: np.ndarray, least: float) -> np.ndarray:
    """Return half the distances above `least`; a whole one could overflow."""
    return 0.5 * values - 0.5 * least


def warp(values: np.ndarray) -> np.ndarray:
    """Compress finite values monotonically, (n,) float64: the best becomes 0, the median log(2).

    Losses span orders of magnitude. Logarithms keep a diverged loss from flattening the differences between good ones.
    The result is invariant under scale and shift, and 0 if all values are equal.
    """
    return np.log1p(_above(values)[0])


def above_best(values: np.ndarray) -> np.ndarray:
    """Return the distances of finite values above the best, in units of their median, (n,) float64."""
    return _above(values)[0]


def span(values: np.ndarray) -> float:
    """Return the largest distance above the best, in units of the median distance; 0 if all are equal."""
    return float(_above(values)[0].max())


def unwarp(warped: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Invert `warp` for the same `values`; negative `warped` means better than all of them."""
    return values.min() + np.expm1(warped) * _above(values)[1]


def relative_noise(values: np.ndarray, stds: np.ndarray, *, is_warped: bool = True) -> np.ndarray:
    """Return the relative variances of `values`, warped or in proportion, (n,) float64 around 1.

    `stds` are the standard errors of the values, NaN if unknown. Only ratios of variances are used; their level is
    fitted. Differences between folds are common to all trials, so the spread over folds shows which trial is known
    better, but not how well. The standard error from a few folds is itself uncertain, so ratios are shrunk half way to
    1 and clipped to 0.1 and 10.
    """
    known = np.isfinite(stds)
    if not known.any():
        return np.ones(len(values))
    above, scale = _above(values)
    with np.errstate(over="ignore"):
        errors = np.minimum(stds / scale, 1e150) / (1.0 + above if is_warped else 1.0)
    typical = float(np.median(errors[known]))
    ratios = np.ones(len(values))
    if typical > 0.0:
        ratios[known] = np.clip(0.5 + 0.5 * (errors[known] / typical) ** 2, 0.1, 10.0)
    return ratios


def standardise(values: np.ndarray) -> np.ndarray:
    """Return `values` with mean 0 and standard deviation 1; all 0 if all are equal."""
    return (values - values.mean()) / (float(values.std()) or 1.0)


def penalty(warped: np.ndarray) -> float:
    """Return the warped value for a failed trial: at least the worst, and clearly worse than the best."""
    return max(1.0, float(warped.max()))


def _above(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the distances of `values` above the minimum in units of their median, and that unit."""
    largest = float(np.abs(values).max())
    if largest == 0.0:
        return np.zeros(len(values)), 1.0
    above = values / largest  # before differences, which could overflow
    above -= above.min()
    # The unit is at least 1e-12: smaller differences are rounding errors, and a ratio could overflow.
    scale = max(float(np.median(above)) or float(above.mean()), 1e-12)
    return above / scale, scale * largest
