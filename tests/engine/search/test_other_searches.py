"""Genetic, Sobol and Optuna's searches, and points that a user wants first."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.genetic import GeneticSearch
from nnlo_opt.core.search.random import RandomSearch
from nnlo_opt.core.search.start_points import START_POINT, StartPointSearch, check_start_points, parse_start_point
from nnlo_opt.engine.search.registry import make_search
from nnlo_opt.space import Categorical, Integer, Real, Space
from nnlo_opt.testing.search_conformance import (
    CONDITIONAL_SPACE,
    CONSTRAINED_SPACE,
    MIXED_SPACE,
    SearchConformance,
    SimulatedSearch,
)
from tests.helpers.launcher import python
from tests.helpers.refusals import check_refused
from tests.helpers.searches import best_of, suggest_all

pytestmark = pytest.mark.many

OPTUNAS = [pytest.param(name, marks=pytest.mark.needs("optuna", "cmaes")) for name in ("tpe", "cmaes")]
#: imported with `scipy.stats`, which takes longer than to collect the tests of this folder
sobol_search = partial(make_search, "sobol", options={})
PLANE = Space([Real(0, 1, name="x"), Real(0, 1, name="y"), Categorical(["a", "b", "c"], name="c")])


def bowl(point):
    return (point["x"] - 0.3) ** 2 + (point["y"] - 0.8) ** 2 + 0.2 * (point["c"] != "b")


class TestGeneticSearch(SearchConformance):
    n_trials = 40
    make = GeneticSearch


class TestGeneticSearchOfTwo(SearchConformance):
    n_trials = 40
    make = staticmethod(partial(GeneticSearch, population=2))


class TestSobolSearch(SearchConformance):
    leaves_failed_regions = False
    n_trials = 40
    make = staticmethod(sobol_search)


@pytest.mark.needs("optuna")
class TestTpe(SearchConformance):
    n_trials = 16
    make = staticmethod(partial(make_search, "tpe", options={}))


@pytest.mark.needs("optuna", "cmaes")
class TestCmaEs(SearchConformance):
    n_trials = 40
    make = staticmethod(partial(make_search, "cmaes", options={}))


class TestStartPoints(SearchConformance):
    leaves_failed_regions = False

    @staticmethod
    def make(space, seed):
        rng = np.random.default_rng(seed)
        points = check_start_points(space, [space.sample(rng) for _ in "ab"])
        return StartPointSearch(RandomSearch(space, seed), {START_POINT: points})


@pytest.mark.parametrize("name", ["genetic", *OPTUNAS])
def test_what_learns_is_better_than_what_does_not(name):
    learns, does_not = (
        [best_of(make_search(which, PLANE, seed, {}), PLANE, bowl, 100, 3) for seed in range(5)]
        for which in (name, "random")
    )
    assert np.median(learns) < 0.3 * np.median(does_not)


@pytest.mark.needs("optuna")
@pytest.mark.parametrize(("missing", "name"), [("optuna", "tpe"), ("cmaes", "cmaes"), ("torch", "gp")])
def test_a_missing_package_is_said_in_a_sentence(missing, name):
    code = (
        "import importlib.util as u; found = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {missing!r} else found(name, *rest)\n"
        "from nnlo_opt import ConfigurationError\nfrom nnlo_opt.engine.search.registry import make_search\n"
        "from nnlo_opt.space import Integer, Space\n"
        f"try:\n    make_search({name!r}, Space([Integer(0, 9, name='n')]), 0, {{}})\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    said = python(code, cwd=Path(__file__).parents[3]).expect(0).out
    assert f"`--hyper-opt {name}`" in said or f'"{name}"' in said
    assert missing in said
    assert "pip install" in said


# ---------------------------------------------------------------- genetic


def test_a_generation_does_not_wait_for_its_last_trial_which_changes_what_follows():
    algorithm = GeneticSearch(PLANE, 0, population=6)
    history = suggest_all(algorithm, History(PLANE), 6)
    for trial in range(5):
        history.record(trial, history.points[trial], "complete", bowl(history.points[trial]))
    born = algorithm.suggest(history)
    assert PLANE.contains(born)
    assert born not in history.points
    history.record(5, history.points[5], "complete", -1.0)
    assert algorithm.suggest(history) != born


def test_children_lie_around_the_best_and_have_their_categories():
    history, rng = History(PLANE), np.random.default_rng(0)
    for trial in range(200):
        point = PLANE.sample(rng)
        history.record(trial, point, "complete", bowl(point))
    algorithm, children = GeneticSearch(PLANE, 1), []
    for trial in range(200, 260):
        children.append(algorithm.suggest(history))
        history.record(trial, children[-1], "pending")
    assert np.mean([bowl(child) for child in children]) < 0.3 * np.mean([bowl(p) for p in history.points[:200]])
    assert np.mean([child["c"] == "b" for child in children]) > 0.6


# ---------------------------------------------------------------- Sobol


def test_sobol_points_cover_every_half_of_every_parameter_evenly():
    history = suggest_all(sobol_search(PLANE, 3), History(PLANE), 64)
    x, y = (np.array([point[name] for point in history.points]) for name in "xy")
    cells = np.zeros((8, 8))
    np.add.at(cells, ((8 * x).astype(int), (8 * y).astype(int)), 1)
    assert np.all(cells == 1)


def test_sobol_is_restored_where_it_was():
    history = History(MIXED_SPACE)
    for trial in range(9):
        point = sobol_search(MIXED_SPACE, 5).suggest(history)
        history.record(trial, point, "failed")
    assert history.n_distinct == 9


# ---------------------------------------------------------------- start points


def test_start_points_come_first_in_their_order_and_once():
    points = [PLANE.middle(), {"x": 0.1, "y": 0.2, "c": "a"}]
    first = {START_POINT: check_start_points(PLANE, [*points, points[0]])}
    history = suggest_all(StartPointSearch(make_search("sobol", PLANE, 0, {}), first), History(PLANE), 5)
    assert history.points[:2] == points
    assert history.n_distinct == 5


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("x=1e-3", {"x": 1e-3}),
        ("lr=0.1, n=3", {"lr": 0.1, "n": 3}),
        ("shape=[8, 16],s=(1,(2,3))", {"shape": [8, 16], "s": [1, [2, 3]]}),
        ("name=relu,other='a,b',none=None,yes=True", {"name": "relu", "other": "a,b", "none": None, "yes": True}),
        ("train.optimizer=adam", {"train.optimizer": "adam"}),
        ("text=a=b", {"text": "a=b"}),
    ],
)
def test_start_points_are_read(text, point):
    assert parse_start_point(text) == point


@pytest.mark.parametrize("text", ["", "x", "=1", "x=1,,y=2", "x=1,x=2"])
def test_what_is_no_start_point(text):
    with pytest.raises(ValueError):
        parse_start_point(text)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"x": 0.5, "y": 2.0, "c": "a"}, "y=2.0; it must be in Real(0.0, 1.0)"),
        ({"x": 0.5, "y": 0.5, "c": "d"}, "c=d"),
        ({"x": 0.5, "y": 0.5, "c": "a", "z": 1}, "`z`, which is not a parameter"),
    ],
)
def test_start_points_outside_the_space_are_refused(point, words):
    check_refused(words, check_start_points, PLANE, [point])


@pytest.mark.parametrize("name", ["bayesian", "random"])
def test_a_part_of_a_point_is_completed_by_the_search_and_tried_once(name):
    parts = [{"momentum": 0.5}, {"width_2": 16, "optimizer": "adam"}, {"n_layers": 1}]
    first = {START_POINT: check_start_points(CONDITIONAL_SPACE, parts)}
    search = StartPointSearch(make_search(name, CONDITIONAL_SPACE, 3, {}), first)
    history = suggest_all(search, History(CONDITIONAL_SPACE), 5)
    assert history.n_distinct == 5
    assert all(CONDITIONAL_SPACE.contains(point) for point in history.points)
    for part, point in zip(parts, history.points, strict=False):
        assert part.items() <= point.items()
    assert history.points[0]["optimizer"] == "sgd"
    assert history.points[1]["n_layers"] == 2
    plain = suggest_all(make_search(name, CONDITIONAL_SPACE, 3, {}), History(CONDITIONAL_SPACE), 1)
    assert plain.points[0]["learning_rate"] == history.points[0]["learning_rate"]


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"momentum": 0.5, "optimizer": "adam"}, "`momentum` is in a point only if optimizer is 'sgd'"),
        ({"width_2": 16, "kernel": [3, 3]}, "is in a point only if n_layers is"),
        ({"dropout_2": 0.5, "n_layers": 1}, "`width_2` is in a point only if n_layers is 2 or 3"),
    ],
)
def test_a_start_point_against_a_condition_is_refused_with_the_condition(point, words):
    check_refused(words, check_start_points, CONDITIONAL_SPACE, [point])


def test_start_points_are_put_in_the_order_of_the_space():
    space = Space([Integer(1, 3, name="n"), Real(0, 1, name="x")])
    assert [list(point) for point in check_start_points(space, [{"x": 1, "n": 2}, {"n": 2.0, "x": 1.0}])] == [
        ["n", "x"]
    ]


def test_a_start_point_has_its_values_as_the_parameters_have_them():
    space = Space([Integer(1, 9, name="n"), Real(0, 1, name="x"), Categorical([1, "1", True, None], name="c")])
    for given, own in [(3.0, 3), ("3", 3)]:
        (point,) = check_start_points(space, [{"n": given, "x": 1}])
        assert repr(point) == f"{{'n': {own}, 'x': 1.0}}"
    assert [check_start_points(space, [{"c": c}])[0]["c"] for c in (1, "1", "true", "null")] == [1, "1", True, None]


# ---------------------------------------------------------------- constraints


@pytest.mark.parametrize("name", ["bayesian", "bayesian-skopt", "genetic", "sobol", *OPTUNAS])
def test_only_feasible_points_are_suggested(name):
    search = SimulatedSearch(make_search(name, CONSTRAINED_SPACE, 0, {}), History(CONSTRAINED_SPACE), 2)
    for _ in range(16):
        assert CONSTRAINED_SPACE.is_feasible(search.step(lambda _, point: -sum(point.values())))


def test_a_start_point_that_is_not_feasible_is_refused():
    check_refused("constraint", check_start_points, CONSTRAINED_SPACE, [{"x": 0.9, "y": 0.9, "z": 0.9}])
