"""Points as rows of quantiles: searches move and compare thousands of rows, and compute the values of only one.

A row has one quantile for each parameter of a space. A *snapped* row has the exact quantiles of allowed values (for a
category the middle of its interval), and NaN for a parameter that is absent from the point.
"""

import math
from collections.abc import Callable

import numpy as np

from nnlo_opt.core.space.parameters import Integer, Ordinal, Parameter, Real
from nnlo_opt.core.space.space import Point, Space, parents_first
from nnlo_opt.core.space.values import position_of, thawed

#: quantiles are cached for at most this many values of a parameter
_MOST_KEPT = 4096


class Quantiles:
    """Rows of quantiles of the points of `space`.

    >>> rows = Quantiles(Space([Integer(1, 4, name="n"), Real(0, 1, name="x", condition=When("n", 1))]))
    >>> rows.snapped(np.array([[0.2, 0.7], [0.9, 0.7]]))
    array([[0.125, 0.7  ],
           [0.875,   nan]])
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        grids = {row: _Grid(one) for row, one in enumerate(space.parameters) if one.n_values is not None}
        #: row -> grid of each parameter with finitely many values
        self._grids = grids
        #: rows of the grids whose values have equal shares of the scale, and their numbers of values
        self._even = np.array([row for row, grid in grids.items() if grid.is_even], dtype=int)
        self._n_even = np.array([grids[row].n_values for row in self._even.tolist()], dtype=float)
        #: (row, row of its parent, indices of the parent's values) of the parameters with a condition, parents first
        self._gates: list[tuple[int, int, list[int]]] = []
        rows = {name: row for row, name in enumerate(space.names)}
        for row in parents_first(space.parameters):
            if (condition := space.parameters[row].condition) is not None:
                parent = rows[condition.parent]
                indices = {space.parameters[parent].index(thawed(value)) for value in condition.values}
                self._gates.append((row, parent, sorted(indices)))

    def snapped(self, units: np.ndarray) -> np.ndarray:
        """Return the snapped rows of the points `Space.from_unit` returns for `units` (n, n_parameters).

        Quantiles of continuous values are kept; the value agrees with its quantile up to rounding.
        """
        snapped = units.copy()
        indices = np.minimum(np.floor(units[:, self._even] * self._n_even), self._n_even - 1.0)
        snapped[:, self._even] = (indices + 0.5) / self._n_even
        for row, grid in self._grids.items():
            if not grid.is_even:
                snapped[:, row] = grid.quantiles(grid.indices(units[:, row]))
        for row, parent, met in self._gates:
            is_met = np.isin(self._grids[parent].indices(units[:, parent]), met)
            snapped[~is_met | np.isnan(snapped[:, parent]), row] = np.nan
        return snapped

    def values(self, row: int) -> np.ndarray:
        """Return the quantiles of all values of the parameter in `row`, which must be finite."""
        return self._grids[row].quantiles(np.arange(self._grids[row].n_values, dtype=float))


def snapped_row(space: Space, point: Point) -> list[float]:
    """Return the snapped row of a full or partial point."""
    return [p.to_unit(point[p.name]) if p.name in point else math.nan for p in space.parameters]


class _Grid:
    """Quantiles of a parameter with finitely many values, bit for bit those of its `to_unit` and `from_unit`."""

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self.n_values = parameter.n_values or 0
        self._is_logarithmic = isinstance(parameter, (Real, Integer)) and parameter.is_logarithmic
        #: position of the likely value; None if there is none
        self._center: float | None = None
        if isinstance(parameter, (Real, Integer, Ordinal)) and parameter.likely is not None:
            self._center = parameter.position(parameter.likely)
        #: True if all values have equal shares of the scale
        self.is_even = self._center is None and not self._is_logarithmic
        #: quantiles of the first values of a grid that is not even; NaN if not computed yet
        self._kept = np.full(0 if self.is_even else min(self.n_values, _MOST_KEPT), np.nan)

    def indices(self, units: np.ndarray) -> np.ndarray:
        """Return the indices, (n,) float64, of the values at the quantiles `units` (n,)."""
        one, center = self._parameter, self._center
        positions = units if center is None else _each(lambda unit: position_of(unit, center), units)
        if not self._is_logarithmic:
            return np.minimum(np.floor(positions * self.n_values), self.n_values - 1)
        assert isinstance(one, (Real, Integer))
        low, high = map(math.log, one.edges)
        numbers = _each(math.exp, low + positions * (high - low))
        return np.clip(np.rint((numbers - one.low) / (one.step or 1)), 0, self.n_values - 1)

    def quantiles(self, indices: np.ndarray) -> np.ndarray:
        """Return the quantiles, (n,), of the values with these `indices`, (n,) float64."""
        if self.is_even:
            return (indices + 0.5) / self.n_values
        if len(self._kept) < self.n_values:
            return _each(self._quantile, indices)
        rows = indices.astype(int)
        missing = np.unique(rows[np.isnan(self._kept[rows])])
        if len(missing):
            self._kept[missing] = _each(self._quantile, missing)
        return self._kept[rows]

    def _quantile(self, index: float) -> float:
        return self._parameter.to_unit(self._parameter.value_at(int(index)))


def _each(function: Callable[[float], float], of: np.ndarray) -> np.ndarray:
    """Apply a Python function to each number: NumPy's exponential differs from Python's in the last bit."""
    return np.array([function(one) for one in of.tolist()])
