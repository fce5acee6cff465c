"""Quasi-random search: the points of a Sobol sequence cover the space evenly at any length."""

import numpy as np
from scipy.stats import qmc

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.random import SeededSearch, first_new
from nnlo_opt.core.space.space import Point

#: at most this many consecutive points are skipped because they were tried or are infeasible
_N_TRIES = 64


class SobolSearch(SeededSearch):
    """Scrambled Sobol sequence in the quantiles of the priors (Owen, 1998, J. Complexity 14, 466).

    Suggestion n is point n of the sequence, or the next new point after it.
    """

    def suggest(self, history: History) -> Point | None:
        sequence = sobol_sequence(len(self._space.parameters), self._seed, history.n_suggested)
        points = (self._space.from_unit(sequence.random(1)[0].tolist()) for _ in range(_N_TRIES))
        return first_new(points, history, self._rng(history))


def sobol_sequence(n_parameters: int, seed: int, n_skipped: int = 0) -> qmc.Sobol:
    """Return a Sobol sequence in 0..1, scrambled by the seed, without its first `n_skipped` points."""
    sequence = qmc.Sobol(n_parameters, scramble=True, rng=np.random.default_rng(seed))
    return sequence.fast_forward(n_skipped) if n_skipped else sequence
