"""Simulated searches that several tests look at."""

import numpy as np

from nnlo_opt.core.search.base import History
from nnlo_opt.testing.search_conformance import SimulatedSearch


def best_of(algorithm, space, value, n_trials, n_pending=4):
    """The least of the values that a search finds."""
    search = SimulatedSearch(algorithm, History(space), n_pending)
    for _ in range(n_trials):
        search.step(lambda _, point: value(point))
    return np.nanmin(search.history.values)


def long_history(space, value, n_trials):
    """Random trials: the last eight are pending, and one in nine has failed."""
    history, rng = History(space), np.random.default_rng(0)
    for trial in range(n_trials):
        point = space.sample(rng)
        state = "pending" if trial >= n_trials - 8 else "failed" if trial % 9 == 0 else "complete"
        history.record(trial, point, state, value(point) if state == "complete" else None)
    return history


def suggest_all(algorithm, history, n_trials, state="pending"):
    """Record as many suggestions, which all stay in this state; -> the history."""
    for trial in range(n_trials):
        history.record(trial, algorithm.suggest(history), state)
    return history
