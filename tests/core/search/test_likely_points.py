"""The point of all likely values, which a new search tries first."""

import math

import pytest

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.bayesian import BayesianSearch
from nnlo_opt.core.search.design import latin_hypercube
from nnlo_opt.core.search.start_points import (
    LIKELY,
    START_POINT,
    StartPointSearch,
    check_start_points,
    likely_refusal,
    likely_values,
)
from nnlo_opt.core.space.conditions import When
from nnlo_opt.core.space.parameters import Categorical, Integer, Ordinal, Real
from nnlo_opt.core.space.space import Space
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.engine.search.registry import make_search
from nnlo_opt.testing.search_conformance import SearchConformance
from tests.helpers.searches import suggest_all

LIKELY_LR = Real(1e-4, 1.0, "log-uniform", name="lr", likely=0.01)
SPACE = Space([LIKELY_LR, Ordinal([8, 16, 32], name="width", likely=16), Real(0, 1, name="dropout")])
BRANCHES = Space(
    [
        Categorical(["sgd", "adam", "lion"], name="optimizer"),
        Real(0, 1, name="momentum", likely=0.9, condition=When("optimizer", "sgd")),
        Real(0, 1, name="nesterov", condition=When("optimizer", "sgd")),
        Real(0, 1, name="beta", likely=0.95, condition=When("optimizer", "adam")),
    ]
)


def likely_search(space, algorithm="bayesian", start_points=(), seed=0):
    first = {START_POINT: check_start_points(space, start_points)}
    return StartPointSearch(make_search(algorithm, space, seed, {}), first, likely_values(space))


class TestLikelyFirst(SearchConformance):
    leaves_failed_regions = False

    @staticmethod
    def make(space, seed):
        return StartPointSearch(make_search("random", space, seed, {}), {}, likely_values(space))


@pytest.mark.parametrize(
    "name",
    [
        "bayesian",
        "freeze-thaw",
        "bayesian-skopt",
        "genetic",
        "random",
        "sobol",
        *(pytest.param(name, marks=pytest.mark.needs("optuna", "cmaes", "torch")) for name in ("tpe", "gp", "cmaes")),
    ],
)
def test_every_algorithm_tries_the_likely_values_first_and_once(name):
    history = suggest_all(likely_search(SPACE, name), History(SPACE), 4)
    assert [p["lr"] == 0.01 and p["width"] == 16 for p in history.points] == [True, False, False, False]


def test_the_other_values_come_from_the_first_point_of_the_design_whose_further_points_stay():
    design = [SPACE.from_unit(units) for units in latin_hypercube(5, 3, 7).tolist()]
    search = StartPointSearch(BayesianSearch(SPACE, 7, 5), {}, likely_values(SPACE))
    history = suggest_all(search, History(SPACE), 5)
    assert history.points[0] == {"lr": 0.01, "width": 16, "dropout": design[0]["dropout"]}
    assert list(history.points[1:]) == design[1:]


@pytest.mark.parametrize("seed", range(4))
def test_parameters_that_likely_values_bring_into_the_point_come_from_the_design_too(seed):
    space = Space(
        [
            Ordinal([1, 2], name="n_layers", likely=2),
            Real(0, 1, name="width_1"),
            Real(0, 1, name="width_2", condition=When("n_layers", 2)),
        ]
    )
    design = latin_hypercube(5, 3, seed)
    search = StartPointSearch(BayesianSearch(space, seed, 5), {}, likely_values(space))
    assert search.suggest(History(space)) == {"n_layers": 2, "width_1": design[0, 1], "width_2": design[0, 2]}


def test_start_points_come_before_the_likely_values():
    start = {"lr": 0.5, "width": 8, "dropout": 0.1}
    search, history = likely_search(SPACE, start_points=[start]), History(SPACE)
    origins = []
    for trial in range(3):
        point, origin = search.suggest_with_origin(history)
        history.record(trial, point, "pending")
        origins.append(origin)
    assert origins == [START_POINT, LIKELY, ""]
    assert history.points[0] == start
    assert history.points[1]["lr"] == 0.01


@pytest.mark.parametrize("start", [{"lr": 0.01, "width": 16, "dropout": 0.3}, {"lr": 0.01, "width": 16}])
def test_a_start_point_with_the_likely_values_is_not_repeated(start):
    history = suggest_all(likely_search(SPACE, "random", [start]), History(SPACE), 4)
    assert [p["lr"] for p in history.points].count(0.01) == 1


def test_likely_values_that_another_run_has_measured_are_not_repeated():
    history = History(SPACE)
    history.adopt({"point": {"lr": 0.01, "width": 16, "dropout": 0.2}, "value": 1.0})
    assert likely_search(SPACE).suggest(history)["lr"] != 0.01


def test_other_observations_of_another_run_leave_the_likely_values_to_be_tried():
    history = History(SPACE)
    for n in range(12):
        history.adopt({"point": {"lr": 0.1, "width": 16, "dropout": n / 12}, "value": float(n)})
    assert likely_search(SPACE).suggest(history)["lr"] == 0.01


@pytest.mark.parametrize("seed", range(8))
def test_conditions_decide_which_likely_values_are_in_the_point(seed):
    (point,) = suggest_all(likely_search(BRANCHES, "random", seed=seed), History(BRANCHES), 1).points
    assert BRANCHES.contains(point)
    assert point.get("momentum") == 0.9 or point.get("beta") == 0.95, "a branch without likely values was tried"


def test_a_search_is_restored_with_the_same_likely_point():
    history = suggest_all(likely_search(BRANCHES, seed=3), History(BRANCHES), 1)
    assert likely_search(BRANCHES, seed=3).suggest(History(BRANCHES)) == history.points[0]


@pytest.mark.parametrize(
    ("feasible", "is_tried"),
    [
        (lambda p: p["lr"] < 0.005 or p["width"] != 16, False),
        (lambda p: p["dropout"] < 0.2, True),
    ],
)
def test_likely_values_that_the_constraint_refuses_are_left_out_and_named(feasible, is_tried):
    space = Space(SPACE.parameters, feasible)
    search = InlineSearch(space.constraint)
    remark = search.start("random", space, 0, {"likely_first": True})
    search.request_suggestion(0)
    suggestion = search.poll()
    assert feasible(suggestion.point)
    assert (suggestion.origin == LIKELY, remark == "") == (is_tried, is_tried)
    assert ("lr=0.01,width=16" in remark) is not is_tried


def test_a_space_without_likely_values_is_searched_as_before():
    space = Space([Real(0, 1, name="x"), Integer(1, 9, name="n")])
    assert likely_values(space) == {}
    assert likely_refusal(space) == ""
    points = suggest_all(likely_search(space), History(space), 3).points
    assert list(points) == list(suggest_all(make_search("bayesian", space, 0, {}), History(space), 3).points)


def test_several_objectives_have_the_likely_point_first():
    search = InlineSearch()
    search.start("bayesian", SPACE, 0, {"likely_first": True, "n_objectives": 2})
    origins = []
    for trial in range(3):
        search.request_suggestion(trial)
        suggestion = search.poll()
        origins.append(suggestion.origin)
        measured = {"state": "complete", "value": 1.0, "losses": [1.0 + trial, 2.0 - trial]}
        search.record([{"trial": trial, "point": suggestion.point, **measured}])
    assert origins == [LIKELY, "", ""]


def test_a_wrong_guess_does_not_trap_the_search():
    space = Space([Real(0, 1, name="x", likely=0.1), Real(1e-5, 1, "log-uniform", name="rate", likely=1e-4)])
    search, history = likely_search(space), History(space)
    losses = []
    for trial in range(25):
        point = search.suggest(history)
        losses.append((point["x"] - 0.9) ** 2 + (math.log10(point["rate"]) / 5 + 0.1) ** 2)
        history.record(trial, point, "complete", losses[-1])
    assert min(losses) < 1e-4


@pytest.mark.needs("optuna", "torch")
def test_the_process_of_optuna_does_not_see_likely_values():
    unlikely = Space([Real(1e-4, 1.0, "log-uniform", name="lr"), Ordinal([8, 16, 32], name="width"), SPACE["dropout"]])
    histories = History(SPACE), History(unlikely)
    for trial in range(12):  # the first ten are random
        points = [make_search("gp", history.space, 3, {}).suggest(history) for history in histories]
        assert points[0] == points[1]
        for history in histories:
            history.record(trial, points[0], "complete", points[0]["lr"] + points[0]["dropout"])
