"""Maximises an acquisition over the untried points of a space.

Random points and points around the best trials are compared first. A local search starts from the best of them:
gradient steps for parameters of many values, neighbours for the others.
"""

from collections.abc import Sequence

import numpy as np

from nnlo_opt.core.search.acquisition import Acquisition
from nnlo_opt.core.search.ascent import Ascents
from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.design import has_many_values
from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.core.search.random import feasible_draws
from nnlo_opt.core.space.space import Point

#: a finite space of at most this many points is searched exhaustively
_MAX_ENUMERATED = 1500
#: random points, and points around each of the best trials
_N_DRAWN, _N_NEAR = 400, 60
#: standard deviations of points around a trial, in quantiles
_RADII = np.array([0.2, 0.05, 0.01, 0.001])
#: local searches, rounds of each, and gradient steps of each round
_N_STARTS, _N_ROUNDS, _N_STEPS = 4, 6, 30


class Maximisation:
    """One search for the maximum of `acquisition` over untried points.

    Points are rows of quantiles (`core.space.quantiles`) in the encoding's space; only the chosen one is converted to
    values.
    """

    def __init__(
        self, acquisition: Acquisition, encoding: Encoding, history: History, rng: np.random.Generator
    ) -> None:
        self._acquisition = acquisition
        self.encoding = encoding
        self._space = encoding.space
        self.history = history
        self._rng = rng
        #: quantiles and acquisition of every evaluated point; minus infinity if it is infeasible or close to a tried
        #: one
        self._units: list[np.ndarray] = []
        self._values: list[float] = []
        many = np.array([has_many_values(parameter) for parameter in self._space.parameters])
        #: parameters with many values, and with few
        self._many, self._few = np.flatnonzero(many), np.flatnonzero(~many)

    def run(self, best_trials: Sequence[Point]) -> Point | None:
        """Return the best new point found that is not close to a tried one; None if there is none."""
        n_points = self._space.n_points
        if n_points is not None and n_points <= _MAX_ENUMERATED:
            return self._best_of_all()
        self._look_at(feasible_draws(self._space, _N_DRAWN, self._rng), are_feasible=True)
        if best_trials:
            self._look_at(np.concatenate([self._near(center) for center in best_trials]))
        self._climb(self._starts())
        return self._best_unseen()

    def _best_of_all(self) -> Point | None:
        points, keys, columns = self.encoding.all_points
        unseen = [i for i, key in enumerate(keys) if not self.history.contains_key(key)]
        if not unseen:
            return None
        return dict(points[unseen[int(self._acquisition(columns[unseen]).argmax())]])

    def _look_at(self, units: np.ndarray, *, are_feasible: bool = False) -> np.ndarray:
        """Evaluate the points at `units` (n, n_parameters); return their acquisition, (n,)."""
        if not len(units):
            return np.empty(0)
        columns = self.encoding.of_snapped(self.encoding.quantiles.snapped(units))
        is_finite = self._space.n_points is not None  # its points are never close copies
        values = self._acquisition(columns) if is_finite else self._acquisition.of_new(columns)
        if self._space.constraint is not None and not are_feasible:
            points = map(self._space.from_unit, units.tolist())
            values[[not self._space.is_feasible(point) for point in points]] = -np.inf
        self._units += list(units)
        self._values += values.tolist()
        return values

    def _best_unseen(self) -> Point | None:
        order = np.argsort(-np.array(self._values), kind="stable").tolist()
        ranking = (self._space.from_unit(self._units[i].tolist()) for i in order if self._values[i] > -np.inf)
        return next((point for point in ranking if not self.history.contains(point)), None)

    def _near(self, center: Point) -> np.ndarray:
        """Return points around `center`: some ordered values move, and one unordered value in five is redrawn."""
        rng, parameters = self._rng, self._space.parameters
        units = np.tile(self._space.to_unit(center), (_N_NEAR, 1))
        unordered = self.encoding.unordered
        share = np.where(unordered, 0.2, rng.choice([1.0, 0.5, 2.0 / len(parameters)], size=(_N_NEAR, 1)))
        moved = rng.random(units.shape) < share
        moved[np.arange(_N_NEAR), rng.integers(len(parameters), size=_N_NEAR)] = True
        radii = rng.choice(_RADII, size=(_N_NEAR, 1))
        steps = np.clip(units + radii * rng.normal(size=units.shape), 0.0, 1.0)
        drawn = np.where(unordered, rng.random(units.shape), steps)
        return np.where(moved, drawn, units)

    def _starts(self) -> list[int]:
        """Return the best point, and others drawn with probability increasing with their acquisition."""
        values = np.array(self._values)
        if not np.isfinite(values).any():
            return []
        order = np.argsort(-values, kind="stable")[: 2 * _N_DRAWN]
        weights = np.exp(values[order] - values[order[0]])
        weights[0] = 0.0
        chosen = [int(order[0])]
        n_more = min(_N_STARTS - 1, int(np.count_nonzero(weights)))
        if n_more:
            chosen += self._rng.choice(order, n_more, replace=False, p=weights / weights.sum()).tolist()
        return chosen

    def _climb(self, starts: list[int]) -> None:
        """Run a local search from each of the points `starts`, in lockstep."""
        units = np.array([self._units[chosen] for chosen in starts]).reshape(len(starts), len(self._space.parameters))
        values = np.array([self._values[chosen] for chosen in starts])
        climbs = np.arange(len(starts))
        for _ in range(_N_ROUNDS):
            if not len(climbs):
                return
            before = values[climbs]
            units[climbs], values[climbs] = self._ascended(units[climbs], before)
            around = [self._neighbours(units[climb]) for climb in climbs]
            found = np.split(self._look_at(np.concatenate(around)), np.cumsum([len(rows) for rows in around])[:-1])
            goes_on = values[climbs] >= before + 1e-3
            for i, (climb, neighbours, reached) in enumerate(zip(climbs, around, found, strict=True)):
                if reached.max(initial=-np.inf) > values[climb]:
                    units[climb], values[climb] = neighbours[reached.argmax()], reached.max()
                    goes_on[i] = True
                elif not len(reached):
                    goes_on[i] = False
            climbs = climbs[goes_on]

    def _ascended(self, units: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Follow the gradient from points (k, n_parameters) along their active parameters of many values.

        Returns:
            Units and acquisition of the points reached; of the given points where nothing was gained.
        """
        snapped = self.encoding.quantiles.snapped(units)
        is_free = ~np.isnan(snapped[:, self._many])
        if not is_free.any():
            return units, values
        columns, rows = self.encoding.first[self._many], self.encoding.of_snapped(snapped)
        ascents = Ascents(self._acquisition.along(rows, columns), rows[:, columns], is_free)
        ascents.run(_N_STEPS)
        climbed = _whole(snapped)
        climbed[:, self._many] = ascents.points
        reached = self._look_at(climbed)
        has_gained = reached > values
        return np.where(has_gained[:, None], climbed, units), np.where(has_gained, reached, values)

    def _neighbours(self, units: np.ndarray) -> np.ndarray:
        """Return all points that differ from the one at `units` in one parameter with few values."""
        snapped = self.encoding.quantiles.snapped(units[None])[0]
        others: dict[int, np.ndarray] = {}
        for row in self._few[~np.isnan(snapped[self._few])].tolist():
            values = self.encoding.quantiles.values(row)
            others[row] = values[values != snapped[row]]
        neighbours = np.tile(_whole(snapped), (sum(map(len, others.values())), 1))
        first = 0
        for row, values in others.items():
            neighbours[first : first + len(values), row] = values
            first += len(values)
        return neighbours


def _whole(snapped: np.ndarray) -> np.ndarray:
    """Return quantiles, without NaN, for which `Space.from_unit` returns the point of this snapped row."""
    return np.where(np.isnan(snapped), 0.5, snapped)
