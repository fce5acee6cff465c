import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.random import RandomSearch
from nnlo_opt.core.search.scalarisation import RHO, ScalarisedSearch, VectorHistory, normalised, tchebycheff
from nnlo_opt.core.trials.objectives import ParetoSet, dominates
from nnlo_opt.core.trials.trial import TrialState
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.space import Integer, Real, Space

SPACE = Space([Integer(0, 999, name="n")])


def history_of(losses, n_pending=1):
    history = VectorHistory(SPACE, len(losses[0]))
    for trial, own in enumerate(losses):
        history.record(trial, {"n": trial}, "complete", own[0], own)
    for trial in range(len(losses), len(losses) + n_pending):
        history.record(trial, {"n": trial}, "pending")
    return history


def front_of(losses):
    pareto = ParetoSet()
    for trial, own in enumerate(losses):
        pareto.add(trial, own)
    return np.array([losses[trial] for trial in pareto.trials])


def test_a_pruned_trial_has_no_losses_and_is_as_bad_as_the_worst():
    history = history_of([(0.0, 1.0), (1.0, 0.0), (2.0, 2.0)], n_pending=0)
    history.record(3, {"n": 3}, "pending")
    history.record(3, {"n": 3}, "pruned", -5.0)
    with pytest.raises(ValueError, match="A pruned trial must have 0 losses"):
        history.record(3, {"n": 3}, "pruned", -5.0, [-5.0, 0.0])
    shown = history.scalarised(np.array([0.5, 0.5]))
    assert shown.values[3] == shown.values[2] == shown.values.max()
    assert list(history.values) == [0.0, 1.0, 2.0, -5.0]
    # It goes on, and has its losses.
    history.record(3, {"n": 3}, "complete", -5.0, [-5.0, -5.0])
    assert np.argmin(history.scalarised(np.array([0.5, 0.5])).values) == 3


def test_an_infeasible_trial_has_a_value_and_does_not_say_what_is_good():
    history = VectorHistory(SPACE, 2)
    history.record(0, {"n": 0}, "failed", -9.0, [-9.0, -9.0])
    assert np.isnan(history.scalarised(np.array([0.5, 0.5])).values).all()
    for trial, own in enumerate([(0.0, 1.0), (1.0, 0.0)], 1):
        history.record(trial, {"n": trial}, "complete", own[0], own)
    shown = history.scalarised(np.array([0.5, 0.5]))
    assert shown.values[0] < 0.0 < shown.values[1] == shown.values[2]
    assert shown.states[0] is TrialState.FAILED


def test_before_any_trial_is_complete_pruned_ones_are_all_alike():
    history = VectorHistory(SPACE, 2)
    for trial in range(2):
        history.record(trial, {"n": trial}, "pruned", float(trial))
    assert list(history.scalarised(np.array([0.5, 0.5])).values) == [0.0, 0.0]


def test_the_function_is_the_paper_s():
    values = tchebycheff(np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([0.25, 0.75]))
    np.testing.assert_allclose(values, [0.6 + RHO * 0.65, 0.375 + RHO * 0.5], rtol=1e-15)


def test_losses_are_normalised_by_the_pareto_set_and_not_by_a_trial_that_diverged():
    losses = np.array([[1.0, 30.0], [3.0, 10.0], [2.0, 20.0], [1e12, 1e12]])
    normal = normalised(losses, front_of([tuple(row) for row in losses]))
    np.testing.assert_allclose(normal[:3], [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    assert (normal[3] > 1e9 / 2).all()


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([[1.0, 1.0], [2.0, 1.0], [5.0, 1.0]], [[0, 0], [1, 0], [4, 0]]),
        ([[1.0, 1.0], [1.0, 1.0], [3.0, 2.0]], [[0, 0], [0, 0], [1, 1]]),
        ([[7.0, 7.0]], [[0, 0]]),
    ],
)
def test_if_the_pareto_set_has_one_value_other_trials_give_the_scale(losses, expected):
    losses = np.array(losses)
    np.testing.assert_allclose(normalised(losses, front_of([tuple(row) for row in losses])), expected)


@given(
    hnp.arrays(
        float,
        st.tuples(st.integers(1, 12), st.integers(2, 3)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.integers(0, 1000),
)
def test_values_are_finite_and_a_trial_that_another_beats_is_never_better(losses, seed):
    rows = [tuple(map(float, row)) for row in losses]
    weights = np.random.default_rng(seed).dirichlet(np.ones(losses.shape[1]))
    values = tchebycheff(normalised(losses, front_of(rows)), weights)
    assert np.isfinite(values).all()
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            if dominates(a, b):
                assert values[i] <= values[j]


def test_points_all_along_a_concave_front_are_the_best_for_some_weights():
    """A weighted sum would find its two ends only."""
    angles = np.linspace(0, np.pi / 2, 9)
    losses = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    normal = normalised(losses, losses)
    shares = np.linspace(0.001, 0.999, 400)
    weights = [np.array([share, 1 - share]) for share in shares]
    assert {int((normal * own).sum(axis=1).argmin()) for own in weights} == {0, 8}
    # The neighbours of the ends gain too little for what they lose.
    assert {int(tchebycheff(normal, own).argmin()) for own in weights} == {0, 2, 3, 4, 5, 6, 8}


def test_an_algorithm_sees_the_same_trials_with_scalar_values():
    history = history_of([(1.0, 4.0), (2.0, 2.0), (3.0, 1.0), (5.0, 5.0)], n_pending=2)
    seen = history.scalarised(np.array([0.5, 0.5]))
    assert seen.n_suggested == 6
    assert seen.points == history.points
    assert seen.states == history.states
    assert np.isfinite(seen.values[:4]).all()
    assert np.isnan(seen.values[4:]).all()
    assert seen.values[3] == max(seen.values[:4])
    assert seen.contains({"n": 5})
    np.testing.assert_array_equal(history.values[:4], [1.0, 2.0, 3.0, 5.0])  # and the history stays as it was


def test_without_a_complete_trial_there_are_no_values():
    history = VectorHistory(SPACE, 2)
    history.record(0, {"n": 0}, "failed")
    assert np.isnan(history.scalarised(np.array([0.5, 0.5])).values).all()
    assert VectorHistory(SPACE, 2).scalarised(np.array([0.5, 0.5])).n_suggested == 0


@pytest.mark.parametrize("losses", [None, (1.0,), (1.0, 2.0, 3.0)])
def test_a_complete_trial_without_its_losses_is_refused(losses):
    history = VectorHistory(SPACE, 2)
    with pytest.raises(ValueError, match="must have 2 losses"):
        history.record(0, {"n": 0}, "complete", 1.0, losses)
    assert history.n_suggested == 0


class Recorder:
    """Remembers the values it is shown."""

    seen: list

    def suggest(self, history: History):
        self.seen.append(history.values.copy())
        return {"n": history.n_suggested}


def test_every_suggestion_is_for_other_weights_and_the_same_history_gives_the_same():
    Recorder.seen = []
    search = ScalarisedSearch(Recorder, 3, 2)
    losses = [(1.0, 4.0), (2.0, 2.0), (3.0, 1.0)]
    for n_pending in (0, 1, 1, 2):
        search.suggest(history_of(losses, n_pending))
    ScalarisedSearch(Recorder, 4, 2).suggest(history_of(losses, 0))
    first, second, again, third, other_seed = (values[:3] for values in Recorder.seen)
    np.testing.assert_array_equal(second, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)
    assert not np.array_equal(first, other_seed)


@pytest.mark.proof
def test_a_search_for_two_objectives_finds_points_all_along_the_front():
    """f1 = x², f2 = (x - 1)²: the Pareto set is 0 <= x <= 1, y = 0."""
    space = Space([Real(-2.0, 3.0, name="x"), Real(-2.0, 2.0, name="y")])
    xs = {}
    for name in ("bayesian", "random"):
        service = InlineSearch()
        service.start(name, space, 0, {"n_objectives": 2})
        found = ParetoSet()
        for trial in range(30):
            service.request_suggestion(trial)
            point = service.poll().point
            losses = [point["x"] ** 2 + point["y"] ** 2, (point["x"] - 1) ** 2 + point["y"] ** 2]
            record = {"trial": trial, "point": point, "state": "complete", "value": losses[0], "losses": losses}
            service.record([record])
            found.add(trial, losses)
        history = service._session._search[1]
        xs[name] = [history.points[t]["x"] for t in found.trials if abs(history.points[t]["y"]) < 0.3]
    assert len(xs["bayesian"]) >= 6 > len(xs["random"])
    assert min(xs["bayesian"]) < 0.25
    assert max(xs["bayesian"]) > 0.75


def test_random_search_stays_what_it_is():
    history = history_of([(1.0, 4.0), (2.0, 2.0)])
    search = ScalarisedSearch(lambda: RandomSearch(SPACE, 5), 5, 2)
    assert search.suggest(history) == RandomSearch(SPACE, 5).suggest(history)
