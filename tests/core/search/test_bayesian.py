import math

import numpy as np
import pytest

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.bayesian import MAX_SEEN, BayesianSearch, _Targets, representative, scheduled
from nnlo_opt.core.search.random import RandomSearch
from nnlo_opt.space import Categorical, Integer, Real, Space
from nnlo_opt.testing.search_conformance import MIXED_SPACE, SearchConformance, SimulatedSearch
from tests.helpers.searches import best_of, long_history

pytestmark = pytest.mark.many

BRANIN_SPACE = Space([Real(-5, 10, name="a"), Real(0, 15, name="b")])


def branin(point):
    a, b = point["a"], point["b"]
    bowl = (b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10 - 0.39788735772973816


class TestBayesianSearch(SearchConformance):
    make = BayesianSearch


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_branin_is_found_with_four_pending(seed):
    assert best_of(BayesianSearch(BRANIN_SPACE, seed), BRANIN_SPACE, branin, 45) < 0.01
    assert best_of(RandomSearch(BRANIN_SPACE, seed), BRANIN_SPACE, branin, 45) > 0.02


def test_the_best_of_integers_and_categories_is_found():
    categories = Categorical(list("abcdef"), name="c")
    space = Space([Integer(1, 300, "log-uniform", name="n"), Integer(0, 9, name="m"), categories])

    def value(point):
        return math.log(point["n"] / 40) ** 2 + (point["m"] - 7) ** 2 / 9 + "dbface".index(point["c"]) / 3

    assert best_of(BayesianSearch(space, 1), space, value, 45) < 0.02
    assert best_of(RandomSearch(space, 1), space, value, 45) > 0.02


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


def test_a_long_history_with_failures_is_searched():
    history = long_history(BRANIN_SPACE, branin, 4 * MAX_SEEN)
    point = BayesianSearch(BRANIN_SPACE, 0).suggest(history)
    assert branin(point) < np.nanquantile(history.values, 0.02)


def test_what_is_remembered_of_fits_changes_nothing():
    used = BayesianSearch(BRANIN_SPACE, 1)
    for n_trials in (30, 41, 42, 43, 55):
        history = long_history(BRANIN_SPACE, branin, n_trials)
        assert used.suggest(history) == BayesianSearch(BRANIN_SPACE, 1).suggest(history)


def test_observations_of_other_runs_guide_the_first_points():
    history = History(BRANIN_SPACE)
    rng = np.random.default_rng(0)
    for _ in range(60):
        point = BRANIN_SPACE.sample(rng)
        history.adopt({"point": point, "value": branin(point)})
    best = min(branin(point) for point in history.points)
    search = SimulatedSearch(BayesianSearch(BRANIN_SPACE, 0, n_initial_points=1), history, 0)
    for _ in range(6):
        search.step(lambda _, point: branin(point))
    assert np.nanmin(history.values) < best / 10


def test_hyperparameters_are_fitted_at_few_lengths_of_a_long_history():
    fitted = {scheduled(n) for n in range(1, 1001)}
    assert fitted >= set(range(1, 41))
    assert len(fitted) < 120
    assert all(0.94 * n < scheduled(n) <= n for n in range(1, 1001))


def test_representative_trials_are_the_lowest_and_some_of_all():
    values = np.random.default_rng(0).permutation(1000).astype(float)
    chosen = representative(values, 100)
    assert len(set(chosen.tolist())) == 100
    assert np.all(np.diff(chosen) > 0)
    assert set(range(50)) <= set(values[chosen].astype(int).tolist())
    assert np.diff(chosen).max() < 60
    assert representative(values, 1000).tolist() == list(range(1000))


@pytest.mark.parametrize(("noise", "n_trials"), [(0.0, 15), (1.0, 30)])
def test_a_smooth_function_is_searched_precisely_and_a_noisy_one_without_near_copies(noise, n_trials):
    space, searched = Space([Real(-5, 5, name="x")]), []
    for seed in range(3):
        rng, search = np.random.default_rng(seed), SimulatedSearch(BayesianSearch(space, seed), History(space), 0)
        for _ in range(n_trials):
            search.step(lambda _, point, rng=rng: (point["x"] - 2) ** 2 + noise * rng.normal())
        searched.append(np.sort([point["x"] for point in search.history.points]))
    if noise:
        assert sum(np.sum(np.diff(xs) < 0.03) for xs in searched) <= 12  # 33 to 54 if copies are refused by n^-2
    else:
        assert np.median([np.square(xs - 2).min() for xs in searched]) < 3e-6


def constrained(make, value, is_feasible, n_trials=30):
    """The least feasible value that a search of BRANIN_SPACE finds, and the number of its infeasible trials."""
    search, history, n_infeasible, least = make(BRANIN_SPACE, 0), History(BRANIN_SPACE), 0, math.inf
    for trial in range(n_trials):
        point = search.suggest(history)
        kept, found = is_feasible(point), value(point)
        history.record(trial, point, "complete" if kept else "failed", found)
        least, n_infeasible = min(least, found) if kept else least, n_infeasible + (not kept)
    return least, n_infeasible


def test_the_best_feasible_point_is_found_at_the_border_with_few_infeasible_trials():
    """Values fall on, into the half that is infeasible: the least feasible one is 2.5."""
    case = (lambda point: point["a"] + point["b"], lambda point: point["a"] > 2.5)
    (found, n_wasted), (drawn, n_drawn) = (constrained(make, *case) for make in (BayesianSearch, RandomSearch))
    assert 2.5 < found < 2.8 < drawn
    assert n_wasted < n_drawn


def test_the_best_point_that_a_constraint_allows_is_suggested_and_not_a_random_one():
    """Values fall on, over the border: the least allowed one is in its middle."""
    space = Space([Real(0, 1, name="x"), Real(0, 1, name="y")], lambda point: point["x"] + point["y"] <= 0.5)
    for seed in range(3):
        history, rng = History(space), np.random.default_rng(seed)
        for trial in range(12):
            point = space.sample(rng)
            history.record(trial, point, "complete", (point["x"] - 1) ** 2 + (point["y"] - 1) ** 2)
        suggested = BayesianSearch(space, seed, n_initial_points=4).suggest(history)
        assert 0.48 < suggested["x"] + suggested["y"] <= 0.5


def test_before_any_trial_is_feasible_points_are_spread():
    least, n_infeasible = constrained(BayesianSearch, branin, lambda point: False, 14)
    assert (least, n_infeasible) == (math.inf, 14)


def deep_and_shallow(point):
    """Category `a` is good everywhere, `c` is the best if it is searched."""
    floor, width, x, exponent = {
        "a": (0.05, 0.6, 0.3, 2.0),
        "b": (0.4, 1.0, 0.9, 1.0),
        "c": (0.0, 3.0, 0.75, 3.5),
        "d": (0.6, 1.0, 0.1, 4.0),
        "e": (0.3, 1.0, 0.5, 3.0),
    }[point["c"]]
    return floor + width * ((point["x"] - x) ** 2 + (math.log10(point["rate"]) + exponent) ** 2 / 16)


CATEGORIES = Space(
    [Categorical(list("abcde"), name="c"), Real(0, 1, name="x"), Real(1e-5, 1, "log-uniform", name="rate")]
)


@pytest.mark.proof
def test_the_best_category_is_found_though_another_one_is_good_everywhere():
    searches = [BayesianSearch(CATEGORIES, seed) for seed in range(4)]
    found = [best_of(search, CATEGORIES, deep_and_shallow, 45, n_pending=0) for search in searches]
    assert sum(least < 0.04 for least in found) >= 3, found


def test_every_fourth_suggestion_leaves_a_category_of_the_best_trial():
    search = SimulatedSearch(BayesianSearch(CATEGORIES, 0), History(CATEGORIES), 0)
    for _ in range(10):
        search.step(lambda _, point: deep_and_shallow(point))
    for step in range(12):
        best = search.history.points[int(np.nanargmin(search.history.values))]
        point = search.step(lambda _, point: deep_and_shallow(point))
        assert step % 4 != 3 or point["c"] != best["c"]


def noisy(scale, sd):
    """A history of 40 random trials of a parabola, whose values have noise."""
    history, rng = History(BRANIN_SPACE), np.random.default_rng(0)
    for trial in range(40):
        point = BRANIN_SPACE.sample(rng)
        value = (point["a"] / 10) ** 2 + (point["b"] / 15) ** 2 + sd * rng.normal()
        history.record(trial, point, "complete", math.exp(scale * value))
    return history


@pytest.mark.parametrize(("scale", "sd", "is_warped"), [(1, 0.0, True), (1, 0.3, False), (20, 0.3, True)])
def test_noisy_values_are_not_compressed_unless_they_span_decades(scale, sd, is_warped, monkeypatch):
    asked, observed = [], _Targets.observed

    def spied(targets, n_rows, encoding, *, is_warped):
        asked.append(is_warped)
        return observed(targets, n_rows, encoding, is_warped=is_warped)

    monkeypatch.setattr(_Targets, "observed", spied)
    BayesianSearch(BRANIN_SPACE, 0).suggest(noisy(scale, sd))
    assert asked[-1] == is_warped
