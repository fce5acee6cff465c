import math

import numpy as np
import pytest

from nnlo_opt.search.base import History
from nnlo_opt.search.random import RandomSearch
from nnlo_opt.search.skopt_search import MAX_TRIALS, BayesianSearch, informative_rows, neighbours
from nnlo_opt.space import Real, Space
from nnlo_opt.testing.search_conformance import MIXED_SPACE, SearchConformance, SimulatedSearch

BRANIN_SPACE = Space([Real(-5, 10, name="a"), Real(0, 15, name="b")])


def branin(point):
    a, b = point["a"], point["b"]
    bowl = (b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10 - 0.39788735772973816


def best_of(algorithm, n_trials):
    search = SimulatedSearch(algorithm, History(BRANIN_SPACE), 4)
    for _ in range(n_trials):
        search.step(lambda _, point: branin(point))
    return np.nanmin(search.history.values)


class TestBayesianSearch(SearchConformance):
    @staticmethod
    def make(space, seed):
        return BayesianSearch(space, seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_branin_is_found_with_four_pending(seed):
    assert best_of(BayesianSearch(BRANIN_SPACE, seed), 45) < 0.02
    assert best_of(RandomSearch(BRANIN_SPACE, seed), 45) > 0.02


def test_scale_and_shift_of_the_values_do_not_matter():
    points = []
    for scale, shift in ((1.0, 0.0), (1024.0, 0.0), (2.0**-60, 0.0)):
        search = SimulatedSearch(BayesianSearch(BRANIN_SPACE, 3), History(BRANIN_SPACE))
        for _ in range(14):
            last = search.step(lambda _, point, scale=scale, shift=shift: scale * branin(point) + shift)
        points.append(last)
    assert points[0] == points[1] == points[2]


def test_initial_design_does_not_depend_on_values():
    designs = []
    for value in (1.0, -5.0):
        search = SimulatedSearch(BayesianSearch(MIXED_SPACE, 1), History(MIXED_SPACE), 0)
        designs.append([search.step(lambda trial, _, value=value: value * trial) for _ in range(10)])
    assert designs[0] == designs[1]


def long_history(n_trials):
    history, rng = History(BRANIN_SPACE), np.random.default_rng(0)
    for trial in range(n_trials):
        point = BRANIN_SPACE.sample(rng)
        state = "pending" if trial >= n_trials - 8 else "failed" if trial % 9 == 0 else "complete"
        history.record(trial, point, state, branin(point) if state == "complete" else None)
    return history


def test_long_history_is_cut_to_the_best_and_the_latest():
    history = long_history(3000)
    rows = informative_rows(history)
    assert len(rows) == len(set(rows.tolist())) == MAX_TRIALS
    assert np.all(np.diff(rows) > 0)
    assert set(range(2950, 3000)) <= set(rows.tolist())
    best = np.argsort(history.values)[: MAX_TRIALS // 2]
    assert set(best.tolist()) <= set(rows.tolist())
    assert BRANIN_SPACE.contains(BayesianSearch(BRANIN_SPACE, 0).suggest(history))


@pytest.mark.parametrize("n_complete", [0, 1, 40, 400])
def test_rows_are_as_many_as_allowed_whatever_the_states(n_complete):
    history = History(BRANIN_SPACE)
    for trial in range(400):
        point = {"a": trial / 100, "b": 1.0}
        history.record(trial, point, *(("complete", 1.0) if trial < n_complete else ("pending",)))
    assert len(informative_rows(history)) == MAX_TRIALS


def test_neighbours_stay_near_and_inside():
    center = {"a": 9.9, "b": 0.0}
    points = neighbours(BRANIN_SPACE, [center], 0.01, 200, np.random.default_rng(0))
    assert len(points) == 200
    assert all(BRANIN_SPACE.contains(point) and abs(point["a"] - 9.9) < 1 for point in points)
    assert neighbours(BRANIN_SPACE, [], 0.01, 200, np.random.default_rng(0)) == []
