"""Points as rows of quantiles, which a search moves and compares by the thousand before it makes the values of one.

A row has one quantile for each parameter of a space. It is *snapped* if these are the quantiles of values, such as the
middle of a category's part of the scale, and NaN for a parameter that the point does not have.
"""

import math
from collections.abc import Callable

import numpy as np

from nnlo_opt.space.parameters import Integer, Ordinal, Parameter, Real
from nnlo_opt.space.space import Point, Space, parents_first
from nnlo_opt.space.values import position_of, thawed

#: most values of a parameter whose quantiles are kept once they were computed
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
        self._scales = [_Scale(parameter) for parameter in space.parameters]
        rows = {name: row for row, name in enumerate(space.names)}
        #: (row, row of its parent, indices of the parent's values) of the parameters with a condition, parents first
        self._gates: list[tuple[int, int, list[int]]] = []
        for row in parents_first(space.parameters):
            if (condition := space.parameters[row].condition) is not None:
                parent = rows[condition.parent]
                indices = {space.parameters[parent].index(thawed(value)) for value in condition.values}
                self._gates.append((row, parent, sorted(indices)))

    def snapped(self, units: np.ndarray) -> np.ndarray:
        """Return the snapped rows of the points that `Space.from_unit` makes of `units` (n, n_parameters)."""
        snapped = np.empty(units.shape)
        for row, scale in enumerate(self._scales):
            snapped[:, row] = scale.snapped(units[:, row])
        for row, parent, indices in self._gates:
            is_met = np.isin(self._scales[parent].indices(units[:, parent]), indices)
            snapped[~is_met | np.isnan(snapped[:, parent]), row] = np.nan
        return snapped

    def values(self, row: int) -> np.ndarray:
        """Return the quantiles of all values of the parameter in `row`, which are finitely many."""
        scale = self._scales[row]
        return scale.of_indices(np.arange(scale.parameter.n_values or 0, dtype=float))


def snapped_row(space: Space, point: Point) -> list[float]:
    """Return the snapped row of a point, or of a part of one."""
    return [p.to_unit(point[p.name]) if p.name in point else math.nan for p in space.parameters]


class _Scale:
    """Quantiles of the values of one parameter, as `to_unit` and `from_unit` have them to the bit."""

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        self._n_values = parameter.n_values
        self._is_logarithmic = isinstance(parameter, (Real, Integer)) and parameter.is_logarithmic
        #: position of the likely value; None without one
        self._center: float | None = None
        if isinstance(parameter, (Real, Integer, Ordinal)) and parameter.likely is not None:
            self._center = parameter.position(parameter.likely)
        #: quantiles of the values of a grid that is not even, by index; NaN if not computed yet
        self._kept: np.ndarray | None = None
        if self._n_values is not None and (self._is_logarithmic or self._center is not None):
            self._kept = np.full(min(self._n_values, _MOST_KEPT), np.nan)

    def snapped(self, units: np.ndarray) -> np.ndarray:
        """Return the quantiles, (n,), of the values at the quantiles `units` (n,)."""
        if self._n_values is not None:
            return self.of_indices(self.indices(units))
        one = self.parameter
        if self._center is not None:
            return _each(lambda unit: one.to_unit(one.from_unit(unit)), units)
        assert isinstance(one, Real)
        if self._is_logarithmic:
            first, length = self._logarithms()
            numbers = np.clip(_each(math.exp, first + units * length), one.low, one.high)
            return np.clip((_each(math.log, numbers) - first) / length, 0.0, 1.0)
        numbers = np.clip(one.low * (1.0 - units) + one.high * units, one.low, one.high)
        return np.clip((numbers - one.low) / (one.high - one.low), 0.0, 1.0)

    def indices(self, units: np.ndarray) -> np.ndarray:
        """Return the indices, (n,) float64, of the finitely many values at the quantiles `units` (n,)."""
        one, center = self.parameter, self._center
        assert self._n_values is not None
        positions = units if center is None else _each(lambda unit: position_of(unit, center), units)
        if not self._is_logarithmic:
            return np.minimum(np.floor(positions * self._n_values), self._n_values - 1)
        assert isinstance(one, (Real, Integer))
        first, length = self._logarithms()
        numbers = _each(math.exp, first + positions * length)
        return np.clip(np.rint((numbers - one.low) / (one.step or 1)), 0, self._n_values - 1)

    def of_indices(self, indices: np.ndarray) -> np.ndarray:
        """Return the quantiles, (n,), of the values with these `indices`, (n,) float64."""
        assert self._n_values is not None
        if self._kept is None:
            return (indices + 0.5) / self._n_values
        if len(self._kept) < self._n_values:
            return _each(self._quantile, indices)
        rows = indices.astype(int)
        missing = np.unique(rows[np.isnan(self._kept[rows])])
        self._kept[missing] = _each(self._quantile, missing)
        return self._kept[rows]

    def _quantile(self, index: float) -> float:
        return self.parameter.to_unit(self.parameter.value_at(int(index)))

    def _logarithms(self) -> tuple[float, float]:
        """Return the logarithm of the lower end of the scale, and the distance of the upper end from it."""
        assert isinstance(self.parameter, (Real, Integer))
        low, high = self.parameter.edges
        return math.log(low), math.log(high) - math.log(low)


def _each(function: Callable[[float], float], of: np.ndarray) -> np.ndarray:
    """Return a function of Python of each number: NumPy's logarithm differs from it in the last bit."""
    return np.array([function(one) for one in of.tolist()])
