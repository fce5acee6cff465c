"""Encodes points of all kinds of parameters for surrogates, in columns of order one."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nnlo_opt.core.search.base import History
from nnlo_opt.core.space.parameters import Categorical, Constant
from nnlo_opt.core.space.quantiles import Quantiles, snapped_row
from nnlo_opt.core.space.space import Point, PointKey, Space


class Encoding:
    """Columns of a space: the position of an ordered value, and one column for each category of an unordered one.

    The column of an Integer takes exactly the positions of its values, never one in between, so the kernel sees the
    value that the trial gets (Garrido-Merchan and Hernandez-Lobato, 2020, Neurocomputing 380, 20). Two different
    categories have distance one. An absent parameter is encoded as the middle, equally far from all categories. A
    Constant has no column.

    Likely values shape the prior, from which the first points are drawn, but not the columns: on the prior's quantiles,
    a search was trapped far from a wrong guess.

    Args:
        space: space of the points; `self.space` is the same without likely values.
        has_shares: True for a last column with the completed fraction of the training, 1 for all points.
    """

    def __init__(self, space: Space, *, has_shares: bool = False) -> None:
        self.space = space = space.without_likely
        self.quantiles = Quantiles(space)
        self.has_shares = has_shares
        #: index of the parameter of each column, (width,) int
        groups = [i for i, p in enumerate(space.parameters) for _ in range(_n_columns(p))]
        #: the column of fractions, if any, is the last group; a surrogate needs at least one column
        self.groups = np.array([*groups, len(space.parameters)] if has_shares else groups or [0], dtype=int)
        #: True for each unordered parameter, (n_parameters,) bool
        self.unordered = np.array([isinstance(parameter, Categorical) for parameter in space.parameters])
        #: index of the first column of each parameter
        self.first = np.searchsorted(self.groups, np.arange(len(space.parameters)))
        self._n_columns = np.array([_n_columns(parameter) for parameter in space.parameters])
        #: the parameters with a column for each value; the parameters whose only column is the quantile, and these
        #: columns
        self._unordered = np.flatnonzero(self.unordered)
        self._ordered = np.flatnonzero(~self.unordered & (self._n_columns > 0))
        self._ordered_columns = self.first[self._ordered]

    @cached_property
    def all_points(self) -> tuple[list[Point], list[PointKey], np.ndarray]:
        """All feasible points of a finite space, their keys and encoded rows."""
        points = list(self.space.iter_points())
        return points, [self.space.key(point) for point in points], self.columns(points)

    def columns(self, points: Sequence[Point]) -> np.ndarray:
        """Encode full or partial points, (n, width) float64."""
        rows = [snapped_row(self.space, point) for point in points]
        return self.of_snapped(np.array(rows).reshape(len(rows), len(self.space.parameters)))

    def columns_of(self, history: History, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Encode the points in `rows` of a history, (len(rows), width) float64."""
        return self.of_snapped(history.snapped(rows))

    def of_snapped(self, snapped: np.ndarray) -> np.ndarray:
        """Encode points given by snapped rows (n, n_parameters) of `self.space`, (n, width) float64."""
        encoded = np.zeros((len(snapped), len(self.groups)))
        if self.has_shares:
            encoded[:, -1] = 1.0
        is_missing = np.isnan(snapped)
        encoded[:, self._ordered_columns] = np.where(is_missing, 0.5, snapped)[:, self._ordered]
        points, chosen = np.nonzero(~is_missing[:, self._unordered])
        rows = self._unordered[chosen]
        index = np.floor(snapped[points, rows] * self._n_columns[rows]).astype(int)
        encoded[points, self.first[rows] + index] = np.sqrt(0.5)
        return encoded


def _n_columns(parameter: object) -> int:
    if isinstance(parameter, Constant):
        return 0
    return parameter.n_values if isinstance(parameter, Categorical) else 1
