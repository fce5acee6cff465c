import importlib
from functools import partial

import numpy as np
import pytest

from nnlo_opt.core.search.base import ACQUISITIONS, SURROGATES, History
from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.engine.search.registry import make_search
from nnlo_opt.space import Real, Space
from nnlo_opt.testing.search_conformance import MIXED_SPACE, SearchConformance, run_search
from tests.helpers.effort import some_of
from tests.helpers.searches import long_history

pytestmark = pytest.mark.many

SkoptSearch = partial(make_search, "bayesian-skopt")
PLANE = Space([Real(-5, 10, name="a"), Real(0, 15, name="b")])


@pytest.fixture
def module():
    """The module under test, for those who need it: it imports scikit-learn."""
    return importlib.import_module("nnlo_opt.engine.search.skopt_search")


def bowl(point):
    return (point["a"] - 2) ** 2 + (point["b"] - 9) ** 2


def of(surrogate, acquisition):
    return {"n_initial_points": 5, "surrogate": surrogate, "acquisition": acquisition}


@pytest.mark.proof
class TestSkoptSearch(SearchConformance):
    make = staticmethod(partial(SkoptSearch, options={}))


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("acquisition", some_of(ACQUISITIONS))
def test_every_surrogate_goes_with_every_acquisition(surrogate, acquisition):
    points = run_search(SkoptSearch(MIXED_SPACE, 0, of(surrogate, acquisition)), MIXED_SPACE, 7)
    assert len(points) == 7
    assert all(MIXED_SPACE.contains(point) for point in points)


@pytest.mark.proof
def test_surrogates_and_acquisitions_differ_in_what_they_suggest():
    history = long_history(PLANE, bowl, 30)
    choices = [(surrogate, "ei") for surrogate in SURROGATES] + [("gp", "lcb"), ("gp", "pi")]
    points = [tuple(SkoptSearch(PLANE, 0, of(*choice)).suggest(history).values()) for choice in choices]
    assert len(set(points)) == len(choices)


def test_long_history_is_cut_to_the_best_and_the_latest(module):
    history = long_history(PLANE, bowl, 3000)
    rows = module.informative_rows(history)
    assert len(rows) == len(set(rows.tolist())) == module.MAX_TRIALS
    assert np.all(np.diff(rows) > 0)
    assert set(range(2950, 3000)) <= set(rows.tolist())
    best = np.argsort(history.values)[: module.MAX_TRIALS // 2]
    assert set(best.tolist()) <= set(rows.tolist())
    assert PLANE.contains(SkoptSearch(PLANE, 0, {}).suggest(history))


@pytest.mark.parametrize("n_complete", [0, 1, 40, 400])
def test_rows_are_as_many_as_allowed_whatever_the_states(module, n_complete):
    history = History(PLANE)
    for trial in range(400):
        point = {"a": trial / 100, "b": 1.0}
        history.record(trial, point, *(("complete", 1.0) if trial < n_complete else ("pending",)))
    assert len(module.informative_rows(history)) == module.MAX_TRIALS


def test_neighbours_stay_near_and_inside(module):
    encoding, center = Encoding(PLANE), {"a": 9.9, "b": 0.0}
    points = module.neighbours(encoding, [center], 0.01, 200, np.random.default_rng(0))
    assert len(points) == 200
    assert all(PLANE.contains(point) and abs(point["a"] - 9.9) < 1 for point in points)
    assert module.neighbours(encoding, [], 0.01, 200, np.random.default_rng(0)) == []
