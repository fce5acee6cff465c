import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.bayesian import BayesianSearch
from nnlo_opt.core.search.segments import Segment, Segments
from nnlo_opt.space import Categorical, Integer, Real, Space
from nnlo_opt.tools.simulate.workload import BUILTIN
from tests.helpers.searches import long_history

pytestmark = pytest.mark.many

SPACE = Space([Real(0, 1, name="x"), Real(0, 1, name="y"), Categorical(["a", "b"], name="c")])
N_POINTS = 6


def distance(point):
    return abs(point["x"] - 0.3) + abs(point["y"] - 0.6)


def polished(space=SPACE, n_trials=100, history=None, state="complete"):
    """A history whose trials draw near the best value, and differ from it by less and less."""
    history, rng = history or History(space), np.random.default_rng(0)
    for trial in range(n_trials):
        point = space.sample(rng)
        history.record(trial, point, state, 1.0 + 0.5**trial if state == "complete" else None)
    return history


def segments(space=SPACE):
    return Segments(space, N_POINTS, seed=3)


def test_a_search_that_polishes_begins_again_and_the_history_shows_where():
    history = polished()
    assert segments().of(history) == Segment(number=1, start=100)
    for row in range(100, 130):
        found = segments().of(history)
        assert (found is None) == (row % 3 == 102 % 3), "every third suggestion belongs to the whole search"
        assert found in (None, Segment(number=1, start=100))
        point = found and segments().point(found, history)
        history.record(row, point or SPACE.sample(np.random.default_rng(row)), "pending")
    assert segments().point(Segment(number=1, start=100), history) is None
    assert Segment(number=1, start=100).rows(107).tolist() == [100, 101, 103, 104, 106]


def test_a_segment_that_has_stalled_is_followed_by_the_next():
    history, numbers = polished(), []
    for row in range(100, 220):
        found = segments().of(history)
        point = found and segments().point(found, history)
        history.record(row, point or SPACE.sample(np.random.default_rng(row)), "complete", 2.0 + 0.8 ** (row - 100))
        numbers.append(found.number if found else 0)
    assert {0, 1, 2} <= set(numbers)
    assert segments()._design(1) != segments()._design(2)


@pytest.mark.parametrize("n_trials", [20, 99])
def test_a_short_search_does_not_begin_again(n_trials):
    assert segments().of(polished(n_trials=n_trials)) is None


def test_a_search_that_still_improves_or_still_looks_elsewhere_does_not_begin_again():
    improving, looking = History(SPACE), long_history(SPACE, distance, 400)
    for trial in range(150):
        improving.record(trial, SPACE.sample(np.random.default_rng(trial)), "complete", -float(trial))
    assert segments().of(improving) is segments().of(looking) is None


def test_only_values_of_whole_trainings_of_one_objective_tell_of_a_stall():
    scalarised = polished().with_values(polished().values.copy())
    scalarised.has_fixed_values = False
    pruned = polished(n_trials=120)
    pruned.record(120, SPACE.sample(np.random.default_rng(9)), "pruned", 3.0, curve=[(1, 3.0)])
    pruned.max_epochs = 9
    assert segments().of(scalarised) is segments().of(pruned.settled()) is None
    assert segments().of(polished(state="failed")) is segments().of(polished(state="pending")) is None


def test_a_space_of_finitely_many_points_is_searched_in_one_segment():
    space = Space([Integer(1, 10**9, name="n"), Real(0, 1, step=1e-6, name="x")])
    assert segments(space).of(polished(space)) is None


def test_adopted_observations_belong_to_the_first_segment():
    history = History(SPACE)
    for point in segments()._design(1):  # of an earlier run with the same seed
        history.adopt({"point": point, "value": 5.0})
    found = segments().of(polished(history=history))
    assert found is None, "every point of the design has been tried"
    history = History(SPACE)
    history.adopt({"point": SPACE.sample(np.random.default_rng(0)), "value": 5.0})
    assert segments().of(polished(history=history)) == Segment(number=1, start=101)


def test_points_of_a_design_are_feasible():
    space = Space([Real(0, 1, name="x"), Real(0, 1, name="y")], lambda p: p["x"] + p["y"] < 0.3)
    design = segments(space)._design(1)
    assert len(design) >= 3, "a fifth of a fifth of the square is feasible, and few points are drawn for each"
    assert all(space.is_feasible(point) for point in design)


@pytest.mark.proof
def test_a_search_in_a_local_optimum_finds_the_other_one():
    space, hartmann6 = BUILTIN["hartmann6"].space, BUILTIN["hartmann6"].function
    search, history = BayesianSearch(space, 5, n_initial_points=18), History(space)
    for trial in range(220):
        point = search.suggest(history)
        history.record(trial, point, "complete", hartmann6(point))
    assert history.values[:100].min() > -3.21, "the local optimum is -3.203, the global one -3.322"
    assert history.values.min() < -3.32


LINE = Space([Real(0, 1, name="x")])


def restarted(n_trials, n_pending):
    """A history of a search that has begun again after 100 trials."""
    search, history = BayesianSearch(LINE, 0, n_initial_points=3), polished(LINE)
    for trial in range(100, n_trials):
        history.record(trial, search.suggest(history), "pending")
        ended = trial - n_pending
        if ended >= 100:
            point = history.points[ended]
            history.record(ended, point, "complete", 2.0 + (point["x"] - 0.4) ** 2)
    return history


@pytest.fixture(scope="module")
def whole():
    return {n_pending: restarted(150, n_pending) for n_pending in (0, 3)}


@settings(max_examples=10, deadline=None)
@given(n_trials=st.integers(100, 149), n_pending=st.sampled_from([0, 3]))
def test_a_resumed_search_suggests_what_it_would_have_suggested(whole, n_trials, n_pending):
    prefix, history = polished(LINE), whole[n_pending]
    for trial in range(100, n_trials):
        point = history.points[trial]
        is_pending = trial >= n_trials - n_pending
        value = None if is_pending else 2.0 + (point["x"] - 0.4) ** 2
        prefix.record(trial, point, "pending" if is_pending else "complete", value)
    assert BayesianSearch(LINE, 0, n_initial_points=3).suggest(prefix) == history.points[n_trials]
