"""Bayesian search with scikit-optimize's surrogates; only this module imports scikit-optimize.

scikit-optimize's `Optimizer` keeps a random state between calls, proposes points twice, and takes seconds for a
suggestion. This module uses its surrogates and acquisitions without the `Optimizer`: a suggestion is one fit to the
history and one maximisation over points of the space, both seeded by the suggestion. The portfolio `gp_hedge`, which
learns over calls which acquisition to trust, needs the `Optimizer` and is not supported.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from skopt import learning
from skopt.acquisition import gaussian_ei, gaussian_lcb, gaussian_pi
from skopt.learning.gaussian_process.kernels import ConstantKernel, Kernel, Matern, WhiteKernel

from nnlo_opt.core.search.base import ACQUISITIONS, SURROGATES, History
from nnlo_opt.core.search.design import latin_hypercube
from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.core.search.random import SeededSearch, feasible_draws, first_new, may_be_tried
from nnlo_opt.core.search.targets import penalty, warp, without_penalties
from nnlo_opt.core.space.space import Point, PointKey, Space
from nnlo_opt.core.trials.trial import TrialState

#: most trials used by the surrogate, which bounds the cost of a suggestion in long searches
MAX_TRIALS = 150

#: starting points of the maximisation, drawn from the priors and around the best trials
_N_DRAWN, _N_NEAR = 400, 200
#: number of best trials, or best candidates, around which points are drawn
_N_CENTERS = 5
#: further rounds around the best candidates: points per round, and radius of each round in quantiles
_N_ROUND = 100
_RADII = tuple(0.1 / 4**step for step in range(6))

#: bounds of a length scale in quantiles of the prior: from nearly white noise to nearly a constant
_LENGTH_SCALE_BOUNDS = (0.03, 30.0)
#: bounds of the variance of the noise, relative to the variance of the values; the lower bound keeps a covariance
#: invertible
_NOISE_BOUNDS = (1e-8, 1.0)


#: trees of a forest, and least samples in a leaf
_N_TREES, _LEAF_SIZE = 100, 3


class SkoptSearch(SeededSearch):
    """Largest acquisition on a surrogate (Jones, Schonlau and Welch, 1998, J. Global Optim. 13, 455).

    The first `n_initial_points` suggestions are a Latin hypercube, independent of the values. Pending trials count with
    the value that the surrogate predicts for them (Kriging believer; Ginsbourger, Le Riche and Carraro, 2010), so that
    the search looks elsewhere while they run. Failed trials count as the worst value, so that the search leaves their
    region.

    Args:
        space: search space of all points.
        seed: at least 0.
        n_initial_points: size of the Latin hypercube.
        surrogate: gp, a Gaussian process; et, extra trees; rf, a random forest; gbrt, gradient boosted quantiles.
        acquisition: ei, expected improvement; lcb, lower confidence bound; pi, probability of improvement.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        n_initial_points: int = 10,
        surrogate: str = SURROGATES[0],
        acquisition: str = ACQUISITIONS[0],
    ) -> None:
        super().__init__(space, seed)
        self._encoding = Encoding(space)
        self._surrogate = surrogate
        self._acquisition = acquisition
        #: quantiles of the first suggestions, indexed by the number of the suggestion
        self._design = latin_hypercube(n_initial_points, len(space.parameters), seed).tolist()

    def suggest(self, history: History) -> Point | None:
        rng = self._rng(history)
        point: Point | None = None
        if history.n_suggested < len(self._design):
            point = self._space.from_unit(self._design[history.n_suggested])
        elif TrialState.COMPLETE in history.states:
            point = self._most_promising(history, rng)
        return first_new([point], history, rng)

    def _most_promising(self, history: History, rng: np.random.Generator) -> Point | None:
        """Return the unseen candidate with the largest acquisition; None if there is no candidate or no fit."""
        model = _make_model(self._surrogate, len(self._encoding.groups), int(rng.integers(2**31)))
        try:
            surrogate = _Surrogate(history, informative_rows(history), self._encoding, model)
        except np.linalg.LinAlgError:  # values that no smooth function fits; a random point adds information
            return None
        candidates = _Candidates(history, surrogate, self._acquisition)
        drawn = feasible_draws(self._space, _N_DRAWN, rng)
        candidates.add([self._space.from_unit(units) for units in drawn.tolist()])
        candidates.add(neighbours(self._encoding, surrogate.ranking[:_N_CENTERS], _RADII[0], _N_NEAR, rng))
        for radius in _RADII:
            candidates.add(neighbours(self._encoding, candidates.best(_N_CENTERS), radius, _N_ROUND, rng))
        return next(iter(candidates.best(1)), None)


def informative_rows(history: History) -> np.ndarray:
    """Return at most MAX_TRIALS ascending rows: half are the best of all trials, half are the latest of the rest."""
    rows = np.arange(len(history.points))
    if len(rows) <= MAX_TRIALS:
        return rows
    complete = history.rows(TrialState.COMPLETE)
    best = complete[np.argsort(history.values[complete], kind="stable")][: MAX_TRIALS // 2]
    latest = np.setdiff1d(rows, best)[len(best) - MAX_TRIALS :]
    return np.sort(np.concatenate([best, latest]))


def neighbours(
    encoding: Encoding, centers: Sequence[Point], radius: float, n_points: int, rng: np.random.Generator
) -> list[Point]:
    """Return `n_points` points near some of `centers`.

    About half of the ordered values move, and one unordered value in five is drawn again.

    Args:
        radius: standard deviation of a move, in quantiles of the priors.
    """
    if not centers:
        return []
    space, unordered = encoding.space, encoding.unordered
    quantiles = np.array([space.to_unit(center) for center in centers])
    origin = quantiles[rng.integers(len(centers), size=n_points)]
    moved = rng.random(origin.shape) < np.where(unordered, 0.2, max(0.5, 1 / len(unordered)))
    steps = np.clip(origin + radius * rng.normal(size=origin.shape), 0.0, 1.0)
    drawn = np.where(unordered, rng.random(origin.shape), steps)
    return [space.from_unit(units) for units in np.where(moved, drawn, origin).tolist()]


class _Surrogate:
    """Model fitted to the ended trials, then also to its own mean at pending trials."""

    def __init__(self, history: History, rows: np.ndarray, encoding: Encoding, model: Any) -> None:
        points = [history.points[row] for row in rows]
        states = np.array([history.states[row] for row in rows])
        complete, ended = states == TrialState.COMPLETE, states != TrialState.PENDING
        values, of_all = history.values.copy(), history.rows(TrialState.COMPLETE)
        values[of_all] = without_penalties(values[of_all], of_all)
        warped = np.zeros(len(rows))
        warped[complete] = warp(values[rows][complete])
        warped[states == TrialState.FAILED] = penalty(warped[complete])
        values = (warped - warped[ended].mean()) / (float(warped[ended].std()) or 1.0)
        columns = encoding.columns(points)

        #: complete trials to which the model was fitted, the best first
        self.ranking = [points[i] for i in np.argsort(warped, kind="stable") if complete[i]]
        self._encoding = encoding
        self._least = float(values[complete].min())
        self._model = model
        with warnings.catch_warnings():  # about length scales at their bounds, as a parameter without influence has one
            warnings.simplefilter("ignore")
            model.fit(columns[ended], values[ended])
            if not ended.all():
                values[~ended] = model.predict(columns[~ended])
                if isinstance(model, learning.GaussianProcessRegressor):
                    self._model = learning.GaussianProcessRegressor(model.kernel_, alpha=model.noise_, optimizer=None)
                self._model.fit(columns, values)

    def acquisition(self, name: str, points: Sequence[Point]) -> np.ndarray:
        """Return the acquisition of points, (len(points),) float64; larger is better."""
        columns = self._encoding.columns(points)
        if name == "lcb":
            return -gaussian_lcb(columns, self._model)
        return {"ei": gaussian_ei, "pi": gaussian_pi}[name](columns, self._model, y_opt=self._least, xi=0.0)


class _Candidates:
    """Feasible points that are not in the history, each with its acquisition."""

    def __init__(self, history: History, surrogate: _Surrogate, acquisition: str) -> None:
        self._history = history
        self._surrogate = surrogate
        self._acquisition = acquisition
        #: acquisition and point by the point's key, in the order in which points were added
        self._scored: dict[PointKey, tuple[float, Point]] = {}

    def add(self, points: Sequence[Point]) -> None:
        space = self._history.space
        fresh = {space.key(point): point for point in points if may_be_tried(point, self._history)}
        fresh = {key: point for key, point in fresh.items() if key not in self._scored}
        if fresh:
            scores = self._surrogate.acquisition(self._acquisition, list(fresh.values())).tolist()
            self._scored.update(zip(fresh, zip(scores, fresh.values(), strict=True), strict=True))

    def best(self, n_points: int) -> list[Point]:
        """Return the `n_points` candidates with the largest acquisition, the best first; fewer if there are fewer."""
        ranking = sorted(self._scored.values(), key=lambda scored: -scored[0])  # stable: ties keep their order
        return [point for _, point in ranking[:n_points]]


class _Boosting(learning.GradientBoostingQuantileRegressor):
    """Boosting with a standard deviation; scikit-optimize 0.10 computes it by a function that NumPy 2.4 has removed."""

    def predict(self, columns: np.ndarray, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        low, median, high = super().predict(columns, return_quantiles=True).T  # quantiles 0.16, 0.5 and 0.84
        return (median, (high - low) / 2.0) if return_std else median


def _make_model(surrogate: str, width: int, seed: int) -> Any:
    """Return a regressor for `width` columns that predicts standard deviations."""
    if surrogate == "gp":
        return learning.GaussianProcessRegressor(_kernel(width), noise="gaussian", random_state=seed)
    if surrogate == "gbrt":
        return _Boosting(random_state=seed)
    forest = learning.ExtraTreesRegressor if surrogate == "et" else learning.RandomForestRegressor
    return forest(n_estimators=_N_TREES, min_samples_leaf=_LEAF_SIZE, random_state=seed, n_jobs=1)


def _kernel(width: int) -> Kernel:
    """Return Matérn 5/2 with one length scale for each of `width` columns, plus noise."""
    scales, bounds = np.full(width, 0.5), [_LENGTH_SCALE_BOUNDS] * width
    smooth = ConstantKernel(1.0, (0.01, 1000.0)) * Matern(length_scale=scales, length_scale_bounds=bounds, nu=2.5)
    return smooth + WhiteKernel(1e-4, _NOISE_BOUNDS)
