import numpy as np
import pytest

from nnlo_opt.core.search.base import ACQUISITIONS, SURROGATES, History
from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.engine.search.skopt_search import MAX_TRIALS, SkoptSearch, informative_rows, neighbours
from nnlo_opt.space import Real, Space
from nnlo_opt.testing.search_conformance import MIXED_SPACE, SearchConformance, run_search
from tests.helpers.effort import some_of
from tests.helpers.searches import long_history

pytestmark = pytest.mark.many

PLANE = Space([Real(-5, 10, name="a"), Real(0, 15, name="b")])


def bowl(point):
    return (point["a"] - 2) ** 2 + (point["b"] - 9) ** 2


@pytest.mark.proof
class TestSkoptSearch(SearchConformance):
    make = SkoptSearch


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("acquisition", some_of(ACQUISITIONS))
def test_every_surrogate_goes_with_every_acquisition(surrogate, acquisition):
    points = run_search(SkoptSearch(MIXED_SPACE, 0, 5, surrogate, acquisition), MIXED_SPACE, 7)
    assert len(points) == 7
    assert all(MIXED_SPACE.contains(point) for point in points)


@pytest.mark.proof
def test_surrogates_and_acquisitions_differ_in_what_they_suggest():
    history = long_history(PLANE, bowl, 30)
    choices = [(surrogate, "ei") for surrogate in SURROGATES] + [("gp", "lcb"), ("gp", "pi")]
    points = [tuple(SkoptSearch(PLANE, 0, 5, *choice).suggest(history).values()) for choice in choices]
    assert len(set(points)) == len(choices)


def test_long_history_is_cut_to_the_best_and_the_latest():
    history = long_history(PLANE, bowl, 3000)
    rows = informative_rows(history)
    assert len(rows) == len(set(rows.tolist())) == MAX_TRIALS
    assert np.all(np.diff(rows) > 0)
    assert set(range(2950, 3000)) <= set(rows.tolist())
    best = np.argsort(history.values)[: MAX_TRIALS // 2]
    assert set(best.tolist()) <= set(rows.tolist())
    assert PLANE.contains(SkoptSearch(PLANE, 0).suggest(history))


@pytest.mark.parametrize("n_complete", [0, 1, 40, 400])
def test_rows_are_as_many_as_allowed_whatever_the_states(n_complete):
    history = History(PLANE)
    for trial in range(400):
        point = {"a": trial / 100, "b": 1.0}
        history.record(trial, point, *(("complete", 1.0) if trial < n_complete else ("pending",)))
    assert len(informative_rows(history)) == MAX_TRIALS


def test_neighbours_stay_near_and_inside():
    encoding, center = Encoding(PLANE), {"a": 9.9, "b": 0.0}
    points = neighbours(encoding, [center], 0.01, 200, np.random.default_rng(0))
    assert len(points) == 200
    assert all(PLANE.contains(point) and abs(point["a"] - 9.9) < 1 for point in points)
    assert neighbours(encoding, [], 0.01, 200, np.random.default_rng(0)) == []
