"""What a surrogate is fitted to: coordinates and values of order one, whatever the parameters and the losses are."""

from collections.abc import Sequence

import numpy as np

from nnlo_opt.space.parameters import Categorical
from nnlo_opt.space.space import Point, Space


def encode(space: Space, points: Sequence[Point]) -> np.ndarray:
    """(n, width) float64 in 0..1: the quantile of an ordered value, and a column for every category of an unordered."""
    columns: list[np.ndarray] = []
    for parameter in space.parameters:
        values = [point[parameter.name] for point in points]
        if isinstance(parameter, Categorical):
            columns.append(np.eye(parameter.n_values)[[parameter.key(value) for value in values]])
        else:
            columns.append(np.array([parameter.to_unit(value) for value in values])[:, None])
    return np.concatenate(columns, axis=1)


def warp(values: np.ndarray) -> np.ndarray:
    """(n,) float64: finite values compressed in their order; the best becomes 0, the median log(2).

    Losses span orders of magnitude, and one that diverged must not flatten the differences between the good ones: it
    counts by its logarithm. Scale and shift of the values do not matter; all are 0 when all are equal.
    """
    largest = float(np.abs(values).max())
    if largest == 0.0:
        return np.zeros(len(values))
    above = values / largest  # before any difference, which may overflow
    above -= above.min()
    # In units of at least 1e-12: below that the differences are rounding, and a quotient could overflow.
    scale = max(float(np.median(above)) or float(above.mean()), 1e-12)
    return np.log1p(above / scale)


def penalty(warped: np.ndarray) -> float:
    """What a failed trial counts as, given warped values: as the worst, and clearly worse than the best."""
    return max(1.0, float(warped.max()))
