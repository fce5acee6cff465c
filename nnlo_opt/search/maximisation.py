"""Maximisation of an acquisition over the points of a space that were not tried yet.

Points drawn by the priors and around the best trials are compared first. A local search climbs from the best of them:
by the gradient along parameters of many values, and by trying neighbours along the other parameters.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from nnlo_opt.search.acquisition import Acquisition
from nnlo_opt.search.base import History
from nnlo_opt.search.design import has_many_values
from nnlo_opt.search.encoding import Encoding
from nnlo_opt.search.random import feasible_draws
from nnlo_opt.space.space import Point

#: a finite space of at most this many points is searched completely
_MAX_ENUMERATED = 1500
#: points drawn by the priors, and points drawn around each of the best trials
_N_DRAWN, _N_NEAR = 400, 60
#: standard deviations of the points around a trial, in quantiles
_RADII = np.array([0.2, 0.05, 0.01, 0.001])
#: local searches, rounds of each, and gradient steps of each round
_N_STARTS, _N_ROUNDS, _N_STEPS = 4, 6, 30


class Maximisation:
    """One search for the maximum of `acquisition` over unseen points."""

    def __init__(
        self, acquisition: Acquisition, encoding: Encoding, history: History, rng: np.random.Generator
    ) -> None:
        self._acquisition = acquisition
        self.encoding = encoding
        self._space = encoding.space
        self.history = history
        self._rng = rng
        #: every point evaluated, and its acquisition; minus infinity if the point is not feasible or near a tried one
        self._points: list[Point] = []
        self._values: list[float] = []

    def run(self, best_trials: Sequence[Point]) -> Point | None:
        """Return the best point found that is new and no near copy of a point tried; None if there is none."""
        n_points = self._space.n_points
        if n_points is not None and n_points <= _MAX_ENUMERATED:
            self._look_at([p for p in self._space.iter_points() if not self.history.contains(p)])
            return self._best_unseen()
        self._look_at(feasible_draws(self._space, _N_DRAWN, self._rng))
        self._look_at([point for center in best_trials for point in self._near(center)])
        for point, value in self._starts():
            self._climb(point, value)
        return self._best_unseen()

    def _look_at(self, points: list[Point]) -> np.ndarray:
        if not points:
            return np.empty(0)
        columns = self.encoding.columns(points)
        values = self._acquisition(columns)
        if self._space.n_points is None:  # else its points lie apart by themselves
            values[self._acquisition.values.knows(columns)] = -np.inf
        values[[not self._space.is_feasible(point) for point in points]] = -np.inf
        self._points += points
        self._values += values.tolist()
        return values

    def _best_unseen(self) -> Point | None:
        order = np.argsort(-np.array(self._values), kind="stable").tolist()
        ranking = (self._points[i] for i in order if self._values[i] > -np.inf)
        return next((point for point in ranking if not self.history.contains(point)), None)

    def _near(self, center: Point) -> list[Point]:
        """Return points around `center`: some ordered values move, and one unordered value in five is drawn again."""
        rng, parameters = self._rng, self._space.parameters
        units = np.tile(self._space.to_unit(center), (_N_NEAR, 1))
        unordered = self.encoding.unordered
        share = np.where(unordered, 0.2, rng.choice([1.0, 0.5, 2.0 / len(parameters)], size=(_N_NEAR, 1)))
        moved = rng.random(units.shape) < share
        moved[np.arange(_N_NEAR), rng.integers(len(parameters), size=_N_NEAR)] = True
        radii = rng.choice(_RADII, size=(_N_NEAR, 1))
        steps = np.clip(units + radii * rng.normal(size=units.shape), 0.0, 1.0)
        drawn = np.where(unordered, rng.random(units.shape), steps)
        return [self._space.from_unit(row) for row in np.where(moved, drawn, units).tolist()]

    def _starts(self) -> list[tuple[Point, float]]:
        """Return the best point, and further points drawn with a probability that grows with their acquisition."""
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
        return [(self._points[i], self._values[i]) for i in chosen]

    def _climb(self, point: Point, value: float) -> None:
        for _ in range(_N_ROUNDS):
            before = value
            point, value = self._ascend(point, value)
            neighbours = self._neighbours(point)
            values = self._look_at(neighbours)
            if len(values) and values.max() > value:
                point, value = neighbours[int(values.argmax())], float(values.max())
            elif value < before + 1e-3:
                break
            if not len(values):
                break

    def _ascend(self, point: Point, value: float) -> tuple[Point, float]:
        """Follow the gradient along those parameters of many values that the point has."""
        parameters = self._space.parameters
        moved = [i for i, p in enumerate(parameters) if p.name in point and has_many_values(p)]
        if not moved:
            return point, value
        columns = self.encoding.first[moved]
        row, units = self.encoding.columns([point])[0], np.array(self._space.to_unit(point))

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            row[columns] = x
            found, gradient = self._acquisition.with_gradient(row)
            return -found, -gradient[columns]

        result = minimize(
            loss, row[columns], jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * len(moved),
            options={"maxiter": _N_STEPS},
        )  # fmt: skip
        units[moved] = np.clip(result.x, 0.0, 1.0)
        climbed = self._space.from_unit(units.tolist())
        reached = float(self._look_at([climbed])[0])
        return (climbed, reached) if reached > value else (point, value)

    def _neighbours(self, point: Point) -> list[Point]:
        """Return the points that differ from `point` in the value of one parameter of few values."""
        units = self._space.to_unit(point)
        neighbours = []
        for i, parameter in enumerate(self._space.parameters):
            if parameter.name in point and not has_many_values(parameter):
                for index in range(parameter.n_values or 0):
                    value = parameter.value_at(index)
                    if value != point[parameter.name]:
                        moved = [*units[:i], parameter.to_unit(value), *units[i + 1 :]]
                        neighbours.append(self._space.from_unit(moved))
        return neighbours
