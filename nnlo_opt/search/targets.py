"""What a surrogate is fitted to: coordinates and values of order one, whatever the parameters and the losses are."""

from collections.abc import Sequence

import numpy as np

from nnlo_opt.space.parameters import Categorical, Constant
from nnlo_opt.space.space import Point, Space


def encode(space: Space, points: Sequence[Point]) -> np.ndarray:
    """(n, width) float64 in 0..1: the quantile of an ordered value, and a column for every category of an unordered.

    A constant has no column. A parameter that is not in a point counts as the middle of its range there, or as no
    category: its parent's column says that it is not.
    """
    columns: list[np.ndarray] = []
    for parameter in space.parameters:
        if isinstance(parameter, Constant):
            continue
        rows = [row for row, point in enumerate(points) if parameter.name in point]
        values = [points[row][parameter.name] for row in rows]
        if isinstance(parameter, Categorical):
            block = np.zeros((len(points), parameter.n_values))
            block[rows, [parameter.key(value) for value in values]] = 1.0
        else:
            block = np.full((len(points), 1), 0.5)
            block[rows, 0] = [parameter.to_unit(value) for value in values]
        columns.append(block)
    return np.concatenate(columns, axis=1) if columns else np.zeros((len(points), 1))


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
