"""Grid search: its points, their order and their number."""

from functools import partial

import pytest

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.grid import GridSearch, grid_of, grid_size
from nnlo_opt.space import Categorical, Integer, Real, Space, When
from nnlo_opt.testing.search_conformance import ODD_SPACES, SearchConformance, run_search
from tests.helpers.refusals import check_refused


class TestGridSearch(SearchConformance):
    n_trials = 40
    leaves_failed_regions = False
    depends_on_seed = False
    make = staticmethod(partial(GridSearch, grid_points=9))


def points_of(space, grid_points=5, n_more=1):
    """All suggestions for `space`, of which the last are None."""
    grid = grid_of(space, grid_points)
    return run_search(GridSearch(space, 0, grid_points), space, grid.n_points + n_more)


def test_continuous_parameters_are_cut_along_their_priors_and_the_last_varies_fastest():
    space = Space(
        [Real(1e-4, 1e-2, "log-uniform", name="rate"), Integer(1, 2, name="n"), Real(0.0, 1.0, step=0.5, name="p")]
    )
    points = points_of(space, 3)
    assert [point["rate"] for point in points] == pytest.approx([1e-4] * 6 + [1e-3] * 6 + [1e-2] * 6)
    assert [(point["n"], point["p"]) for point in points[:6]] == [(n, p) for n in (1, 2) for p in (0.0, 0.5, 1.0)]
    assert [point["rate"] for point in points_of(space, 1)] == pytest.approx([1e-3] * 6)


def test_a_parameter_that_is_absent_makes_no_further_points():
    momentum = Real(0.0, 0.8, name="momentum", condition=When("optimizer", "sgd"))
    space = Space([Categorical(["sgd", "adam"], name="optimizer"), momentum])
    of_sgd = [{"optimizer": "sgd", "momentum": value} for value in (0.0, 0.8)]
    assert points_of(space, 2) == [*of_sgd, {"optimizer": "adam"}]


def test_points_that_were_tried_from_elsewhere_are_left_out_and_the_rest_keeps_its_order():
    space, history = Space([Integer(0, 4, name="n")]), History(Space([Integer(0, 4, name="n")]))
    search = GridSearch(space)
    history.record(0, {"n": 3}, "failed")
    for trial, expected in enumerate([0, 1, 2, 4], 1):
        point = search.suggest(history)
        assert point == {"n": expected} == GridSearch(space).suggest(history)
        history.record(trial, point, "pending")
    assert search.suggest(history) is None
    assert search.suggest(History(space)) == {"n": 0}


def test_a_grid_without_an_end_is_refused_with_its_widest_parameter():
    assert grid_size(Space([Integer(1, 10, name="n"), Real(0, 1, name="x")]), 4) == 40
    assert grid_size(Space([Real(0, 1, name="x")]), None) == 5
    for space in (ODD_SPACES["huge ranges"], ODD_SPACES["many parameters"]):
        check_refused("must have at most 1,000,000 points. Received: ", grid_size, space, 5)
    check_refused("9,007,199,254,740,992 values of `n`", grid_size, ODD_SPACES["many decades"], 5)
    for n_values in (10**6 + 1, 10**20):  # which are not made
        check_refused("values of `x`", grid_size, Space([Integer(1, 10, name="n"), Real(0, 1, name="x")]), n_values)
    assert grid_size(Space([Real(0, 1, name="x")]), 10**5) == 10**5
