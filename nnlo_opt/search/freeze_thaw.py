"""Freeze-thaw search: resumes a paused trial, or begins a new one, by what is expected for a second of a block."""

import numpy as np

from nnlo_opt.search.acquisition import Acquisition
from nnlo_opt.search.base import History
from nnlo_opt.search.bayesian import BayesianSearch
from nnlo_opt.search.maximisation import Maximisation
from nnlo_opt.search.random import first_new
from nnlo_opt.space.space import Point


class FreezeThawSearch(BayesianSearch):
    """Expected improvement of the end of a training, for each second that is left of it.

    Swersky, Snoek and Adams, 2014, "Freeze-thaw Bayesian optimization", arXiv:1406.3896, with the process of
    `BayesianSearch` over points and shares of a training: one process foretells the ends of paused trials and of new
    ones. A trial that goes on is paused again at its next rung (`search.pruners.FreezeThaw`).
    """

    def suggest(self, history: History) -> Point | None:
        point = self._proposal(history)
        if point is not None and history.waiting_trial(point) is not None:
            return point
        return first_new([point], history, self._rng(history))

    def _rng(self, history: History) -> np.random.Generator:
        return np.random.default_rng((self._seed, history.n_suggested, history.n_promoted))

    def _chosen(self, acquisition: Acquisition, search: Maximisation, best: list[Point]) -> Point | None:
        new, history = super()._chosen(acquisition, search, best), search.history
        if not (waiting := history.waiting):
            return new
        rows, taken = list(waiting), list(waiting.values())
        start_s = np.array([one["start_s"] for one in taken])
        epoch_s = np.array([one["train_s"] / one["n_epochs"] for one in taken])
        n_left = np.array([max(1, history.max_epochs - history.epochs_of(row)) for row in rows])
        # The acquisition is a logarithm; a nanosecond more, lest a simulated training that takes no time be free.
        scores = acquisition(search.encoding.columns_of(history, rows)) - np.log(start_s + epoch_s * n_left + 1e-9)
        if new is not None:
            of_new = acquisition(search.encoding.columns([new]))[0]
            if of_new - np.log((start_s + epoch_s * history.max_epochs).mean() + 1e-9) > scores.max():
                return new
        return dict(history.points[rows[int(scores.argmax())]])
