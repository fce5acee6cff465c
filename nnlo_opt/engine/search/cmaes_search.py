"""Covariance matrix adaptation (CMA-ES) with the package `cmaes`, which Optuna's sampler also uses."""

import warnings

import numpy as np
from cmaes import CMA

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.random import SeededSearch, may_be_tried, unseen_point
from nnlo_opt.core.search.targets import penalty, warp
from nnlo_opt.core.space.parameters import Categorical
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.trial import TrialState

#: standard deviation of the first generation, in quantiles of the priors
_SIGMA = 0.25
#: most points drawn in a row because the history contained the ones before
_N_TRIES = 20


class CmaEsSearch(SeededSearch):
    """CMA-ES (Hansen and Ostermeier, 2001, Evolutionary Computation 9, 159) on the quantiles of ordered parameters.

    The strategy learns from the ended trials of the history, one population at a time in their order, and then draws a
    point. Pending trials have no influence. Unordered parameters are drawn from their priors.
    """

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed)
        #: indices of the parameters that have an order
        self._ordered = [i for i, p in enumerate(space.parameters) if not isinstance(p, Categorical)]

    def suggest(self, history: History) -> Point | None:
        rng = self._rng(history)
        if len(self._ordered) >= 2 and TrialState.COMPLETE in history.states:  # cmaes does not support one dimension
            strategy = self._strategy(history, int(rng.integers(2**31)))
            for _ in range(_N_TRIES):
                units = rng.random(len(self._space.parameters))
                units[self._ordered] = strategy.ask()
                point = self._space.from_unit(units.tolist())
                if may_be_tried(point, history):
                    return point
        return unseen_point(self._space, history, rng)

    def _strategy(self, history: History, seed: int) -> CMA:
        """Return the strategy after all full generations of the history."""
        n = len(self._ordered)
        strategy = CMA(mean=np.full(n, 0.5), sigma=_SIGMA, bounds=np.tile([0.0, 1.0], (n, 1)), seed=seed)
        complete = history.rows(TrialState.COMPLETE)
        warped = np.full(len(history.points), np.nan)
        warped[complete] = warp(history.values[complete])
        warped[history.rows(TrialState.FAILED)] = penalty(warped[complete])
        rows = np.flatnonzero(np.isfinite(warped))
        with warnings.catch_warnings():  # about tiny steps, with which the search continues
            warnings.simplefilter("ignore")
            for first in range(0, len(rows) - strategy.population_size + 1, strategy.population_size):
                generation = rows[first : first + strategy.population_size]
                if strategy.should_stop():
                    break
                units = [np.array(self._space.to_unit(history.points[row]))[self._ordered] for row in generation]
                strategy.tell(list(zip(units, warped[generation].tolist(), strict=True)))
        return strategy
