"""Encoding of points for surrogates: rows of columns of order one, for all kinds of parameters."""

from collections.abc import Sequence

import numpy as np

from nnlo_opt.search.base import History
from nnlo_opt.space.parameters import Categorical, Constant
from nnlo_opt.space.space import Point, Space


class Encoding:
    """Columns of a space: the quantile of an ordered value, and one column for each category of an unordered one.

    The column of an Integer takes the Integer's own values only, never one between them, so that a kernel sees the
    value that a trial sees (Garrido-Merchan and Hernandez-Lobato, 2020, Neurocomputing 380, 20). Two different
    categories have distance one. A parameter that a point does not have lies in the middle, at equal distance from all
    categories. A Constant has no column.

    Args:
        space: space of the points.
        has_shares: True for a last column with the share of a whole training, 1 for all points.
    """

    def __init__(self, space: Space, *, has_shares: bool = False) -> None:
        self.space = space
        self.has_shares = has_shares
        #: index of the parameter of each column, (width,) int
        groups = [i for i, p in enumerate(space.parameters) for _ in range(_n_columns(p))]
        #: with shares, the group of these is the last one; a surrogate needs at least one column
        self.groups = np.array([*groups, len(space.parameters)] if has_shares else groups or [0], dtype=int)
        #: True for each unordered parameter, (n_parameters,) bool
        self.unordered = np.array([isinstance(parameter, Categorical) for parameter in space.parameters])
        #: index of the first column of each parameter
        self.first = np.searchsorted(self.groups, np.arange(len(space.parameters)))

    def columns(self, points: Sequence[Point]) -> np.ndarray:
        """Return the rows of `points`, (n, width) float64."""
        encoded = np.zeros((len(points), len(self.groups)))
        if self.has_shares:
            encoded[:, -1] = 1.0
        for first, parameter in zip(self.first.tolist(), self.space.parameters, strict=True):
            name = parameter.name
            if isinstance(parameter, Constant):
                continue
            if isinstance(parameter, Categorical):
                for row, point in enumerate(points):
                    if name in point:
                        encoded[row, first + parameter.key(point[name])] = np.sqrt(0.5)
            else:
                encoded[:, first] = [parameter.to_unit(p[name]) if name in p else 0.5 for p in points]
        return encoded

    def columns_of(self, history: History, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the rows of the points in `rows` of a history, (len(rows), width) float64."""
        return self.columns([history.points[row] for row in rows])


def _n_columns(parameter: object) -> int:
    if isinstance(parameter, Constant):
        return 0
    return parameter.n_values if isinstance(parameter, Categorical) else 1
