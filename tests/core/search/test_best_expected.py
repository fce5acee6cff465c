"""The trial that the search expects to be the best, by the mean of its process, where values are noisy."""

import math

import numpy as np
import pytest

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.bayesian import BayesianSearch
from nnlo_opt.core.search.start_points import StartPointSearch
from nnlo_opt.core.trials.trial import TrialState
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.engine.search.registry import can_expect_best, make_search
from nnlo_opt.space import Categorical, Real, Space
from tests.helpers.effort import some_of

SPACE = Space([Real(0, 1, name="x"), Real(0, 1, name="y"), Categorical(["a", "b"], name="c")])


def value(point):
    return (point["x"] - 0.3) ** 2 + (point["y"] - 0.7) ** 2 + 0.2 * (point["c"] == "b")


def history_of(noise, n_trials=40, seed=0):
    """Trials near ten random points, four at each, whose values have a normal error."""
    rng, history = np.random.default_rng(seed), History(SPACE)
    centres = [SPACE.draw(rng) for _ in range(10)]
    for trial in range(n_trials):
        centre = centres[trial % 10]
        point = centre | {"x": float(np.clip(centre["x"] + 0.01 * rng.normal(), 0, 1))}
        history.record(trial, point, "complete", value(point) + noise * rng.normal())
    return history


def expected(history, algorithm="bayesian"):
    return StartPointSearch(make_search(algorithm, SPACE, 0, {}), {}).best_expected(history)


@pytest.mark.parametrize("seed", range(4))
def test_no_trial_is_named_if_values_are_not_noisy(seed):
    assert expected(history_of(0.0, seed=seed)) == -1


def searched(space, function, n_trials, *, n_pending=3, seed=0):
    """The history of a search of ours, trial by trial."""
    space, history = Space(space), History(Space(space))
    algorithm = BayesianSearch(space, seed)
    for trial in range(n_trials):
        point = algorithm.suggest(history)
        history.record(trial, point, "pending")
        if (ended := trial - n_pending) >= 0:
            history.record(ended, history.points[ended], "complete", function(history.points[ended]))
        yield history


def box(n):
    return [Real(0, 1, name=f"x{i}") for i in range(n)]


def bowl(point):
    return sum((i + 1) * (x - 0.3 - 0.4 * (i % 2)) ** 2 for i, x in enumerate(point.values()))


def rosenbrock(point):
    x, y = (4 * value - 2 for value in point.values())
    return 100 * (y - x**2) ** 2 + (1 - x) ** 2


def with_category(point):
    return 0.3 * "bca".index(point["c"]) + (point["x"] - 0.2 * "abc".index(point["c"])) ** 2


EXACT = {
    "12 parameters": (box(12), bowl),
    "kinks": (box(2), lambda point: abs(point["x0"] - 0.4) + 2 * abs(point["x1"] - 0.7)),
    "decades": (box(2), lambda point: math.exp(9 * bowl(point))),
    "1 parameter": (box(1), bowl),
    "2 parameters": (box(2), bowl),
    "a logarithm": ([Real(1e-5, 1, "log-uniform", name="rate")], lambda p: (math.log10(p["rate"]) + 3) ** 2),
    "a valley": (box(2), rosenbrock),
    "categories": ([Categorical(["a", "b", "c"], name="c"), Real(0, 1, name="x")], with_category),
}


@pytest.mark.parametrize("kind", some_of([*EXACT], 3))
def test_no_exact_function_is_taken_for_a_noisy_one_while_it_is_searched(kind):
    space, function = EXACT[kind]
    for n, history in enumerate(searched(space, function, 43)):
        if n in (14, 22, 32, 42):
            named = StartPointSearch(BayesianSearch(history.space, 0), {}).best_expected(history)
            assert named == -1, f"after {n} trials"


def test_values_near_the_optimum_of_an_exact_function_are_not_taken_for_all_there_are():
    """Three of the first ten are so near to it that all others look like penalties."""
    points = [0.4227, 0.2387, 0.7451, 0.9815, 0.567, 0.02922, 0.2951, 0.3007, 0.3039, 0.3303, 0.3545, 0.5199]
    history = History(Space(box(1)))
    for trial, x in enumerate(points):
        history.record(trial, {"x0": x}, "complete", (x - 0.3) ** 2)
    assert StartPointSearch(BayesianSearch(history.space, 0), {}).best_expected(history) == -1


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_penalties_are_no_noise_and_hide_none(noise):
    rng, history = np.random.default_rng(2), History(Space(box(2)))
    for trial in range(40):
        point = history.space.draw(rng)
        history.record(trial, point, "complete", 1e6 if point["x0"] > 0.7 else bowl(point) + noise * rng.normal())
    named = StartPointSearch(BayesianSearch(history.space, 0), {}).best_expected(history)
    assert (named >= 0) == bool(noise)


def test_a_trial_is_not_named_if_its_own_value_is_implausibly_far_from_the_best():
    rng, history = np.random.default_rng(0), History(Space(box(1)))
    places = np.linspace(0.0, 1.0, 41)
    for trial, x in enumerate(places.tolist()):
        bad_luck = 0.4 if trial == 16 else 0.05 * rng.normal()
        history.record(trial, {"x0": x}, "complete", (x - places[16]) ** 2 + bad_luck)
    named = StartPointSearch(BayesianSearch(history.space, 0), {}).best_expected(history)
    assert named in {12, 13, 14, 15, 17, 18, 19, 20}


@pytest.mark.parametrize("seed", range(4))
def test_a_rough_function_is_not_taken_for_a_noisy_one(seed):
    rng, history = np.random.default_rng(seed), History(SPACE)
    for trial in range(40):
        point = SPACE.draw(rng)
        history.record(trial, point, "complete", math.sin(40 * point["x"]))
    assert expected(history) == -1


def test_the_named_trials_are_truly_better_than_the_best_observed_ones_on_average():
    regrets = []
    for seed in range(8):
        history = history_of(0.1, seed=seed)
        truths, named = [*map(value, history.points)], expected(history)
        assert named >= 0
        regrets.append([truths[row] - min(truths) for row in (named, int(history.values.argmin()))])
    by_expectation, by_observation = np.mean(regrets, axis=0)
    assert by_expectation < 0.7 * by_observation


def test_a_value_that_chance_has_made_low_is_not_named():
    history = history_of(0.02)
    worst = history.points[int(history.values.argmax())]
    history.record(40, worst | {"x": worst["x"] + 0.005}, "complete", float(history.values.min()) - 0.01)
    assert int(history.values.argmin()) == 40
    assert expected(history) not in (-1, 40)


def test_few_trials_are_not_enough_to_name_one():
    assert expected(history_of(0.1, n_trials=9)) == -1


@pytest.mark.parametrize("algorithm", ["random", "genetic", "sobol", "bayesian-skopt"])
def test_algorithms_without_a_process_of_ours_name_no_trial(algorithm):
    assert expected(history_of(0.1), algorithm) == -1


@pytest.mark.parametrize(
    "algorithm", ["bayesian", "freeze-thaw", "random", "genetic", "sobol", "bayesian-skopt", "grid"]
)
def test_an_algorithm_is_asked_at_the_end_if_it_has_a_method_for_it(algorithm):
    assert can_expect_best(algorithm) == hasattr(make_search(algorithm, SPACE, 0, {}), "best_expected")


def test_the_name_depends_on_the_history_alone():
    history, search = history_of(0.1), StartPointSearch(BayesianSearch(SPACE, 0), {})
    search.suggest(history_of(0.1, n_trials=30))  # what the search has fitted before must not matter
    assert search.best_expected(history) == expected(history)


def test_pending_trials_change_no_name():
    history = history_of(0.1)
    before = expected(history)
    for n in range(3):
        history.record(100 + n, {"x": 0.31 + n / 100, "y": 0.7, "c": "a"}, "pending")
    assert expected(history) == before


def test_adopted_infeasible_and_pruned_trials_are_not_named():
    history = History(SPACE)
    source = history_of(0.1)
    best = np.argsort(source.values)
    states = dict.fromkeys(best[:3].tolist(), "failed") | dict.fromkeys(best[3:6].tolist(), "pruned")
    for row in best[6:9]:
        history.adopt({"point": source.points[row], "value": float(source.values[row])})
    for trial, row in enumerate(row for row in range(40) if row not in best[6:9]):
        history.record(trial, source.points[row], states.get(row, "complete"), float(source.values[row]))
    named = expected(history)
    assert named >= 0
    assert history.states[named + history.n_adopted] is TrialState.COMPLETE


def test_the_spread_of_folds_says_which_value_counts_less():
    def history(*spreads):
        """Two points that are equally good by their values, between whose folds there are `spreads`."""
        known, rng = History(SPACE), np.random.default_rng(3)
        for trial in range(30):
            point = SPACE.draw(rng)
            known.record(trial, point, "complete", value(point) + 0.05 * rng.normal(), std=0.05)
        for x, std in zip((0.1, 0.5), spreads, strict=True):
            point = {"x": x, "y": 0.7, "c": "a"}
            known.record(len(known.points), point, "complete", value(point) - 0.1, std=std)
        return known

    assert expected(history(1.0, 0.05)) == 31
    assert expected(history(0.05, 1.0)) == 30


def test_a_suggestion_names_the_trial_and_so_does_the_last_question():
    search, history = InlineSearch(), history_of(0.1)
    search.start("bayesian", SPACE, 0, {})
    values = zip(history.points, history.values.tolist(), strict=True)
    search.record([{"trial": n, "point": p, "state": "complete", "value": v} for n, (p, v) in enumerate(values)])
    search.request_suggestion(0)
    assert search.poll().expected == search.best_expected() == expected(history) >= 0


def test_several_objectives_have_no_best_expected_trial():
    search, history = InlineSearch(), history_of(0.1)
    search.start("bayesian", SPACE, 0, {"n_objectives": 2})
    for n, (point, v) in enumerate(zip(history.points, history.values.tolist(), strict=True)):
        search.record([{"trial": n, "point": point, "state": "complete", "value": v, "losses": [v, -v]}])
    assert search.best_expected() == -1
