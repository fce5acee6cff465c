"""Outcome constraints in the search: what the process of a margin knows, and what it makes of the search."""

import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import log_ndtr, ndtr

from nnlo_opt.core.search.acquisition import Acquisition
from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.bayesian import BayesianSearch
from nnlo_opt.core.search.gaussian_process import Hyperparameters, Observations, Posterior
from nnlo_opt.core.search.margins import (
    Bounded,
    Scale,
    _log_between,
    breaks_a_bound,
    margins_of,
    nearest_first,
    rows_with,
)
from nnlo_opt.core.search.scalarisation import ScalarisedSearch, VectorHistory
from nnlo_opt.core.trials.objectives import OutcomeConstraint
from nnlo_opt.core.trials.trial import TrialState
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.space import Categorical, Integer, Real, Space

pytestmark = pytest.mark.many

INTEGERS = Space([Integer(1, 512, name="w"), Integer(1, 512, name="b")])
LINE = Space([Real(0, 1, name="x")])


def bounds(*texts):
    return tuple(map(OutcomeConstraint.parse, texts))


def history_on_a_line(figures, *texts, **outcomes):
    """Trials at equal distances whose outcomes `f` are these figures; None is a failure without one."""
    history = History(LINE)
    history.bounds = bounds(*texts)
    for trial, figure in enumerate(figures):
        shown = None if figure is None else {"f": figure}
        kept = figure is not None and all(bound.allows(figure) for bound in history.bounds)
        state, value = ("complete" if kept else "failed"), None if figure is None else float(trial)
        history.record(trial, {"x": trial / len(figures)}, state, value, outcomes=shown)
    return history


def memory(point):
    return point["w"] * point["b"] / 1000


def searched(n_trials, *, seed=0, tells=True, memory=memory, limit="memory<=20", search=BayesianSearch, history=None):
    """A search of the issue of limited memory, two integers whose product is bounded; -> its history."""
    history = history or History(INTEGERS)
    history.bounds = bounds(limit)
    algorithm = search(INTEGERS, seed, 5)
    for _ in range(n_trials):
        point = algorithm.suggest(history)
        shown = memory(point)
        state = "complete" if history.bounds[0].allows(shown) else "failed"
        loss = 1 / point["w"] + 1 / point["b"]
        outcomes = {"memory": shown} if tells and math.isfinite(shown) else None
        history.record(history.n_suggested, point, state, loss, outcomes=outcomes)
    return history


def best_of(history):
    return np.min(history.values[history.rows(TrialState.COMPLETE)])


# ---------------------------------------------------------------- chances


def process(seed, n_values=1):
    rng = np.random.default_rng(seed)
    columns, values = rng.random((12, 3)), rng.normal(size=(12, n_values))
    hyperparameters = Hyperparameters(lengths=np.array([0.4, 0.7]), scale=1.2, noise=1e-3)
    return Posterior(hyperparameters, Observations(columns, np.array([0, 0, 1]), values, np.ones(12)))


@pytest.mark.parametrize(
    "constraints",
    [
        [Bounded(process=process(1), high=0.3)],
        [Bounded(process=process(1), low=0.2, noise=0.1)],
        [Bounded(process=process(1), low=-0.1, high=0.1)],
        [Bounded(process=process(1), low=4.0, high=4.5)],
        [Bounded(process=process(1), high=0.0, noise=0.1), Bounded(process=process(2), low=-0.5, high=0.5)],
    ],
    ids=["above", "below", "both", "far", "several"],
)
def test_the_gradient_with_constraints_is_the_difference_quotient(constraints):
    acquisition = Acquisition(process(0, 4), constraints)
    rows = np.random.default_rng(4).random((5, 3))
    free = np.array([2])  # the others are those of one parameter
    values, gradients = acquisition.along(rows, free)(np.arange(len(rows)), rows[:, free])
    np.testing.assert_allclose(values, acquisition(rows), rtol=1e-9)
    for row, gradient in zip(rows, gradients, strict=True):
        expected = approx_fprime(row, lambda x: acquisition(x[None])[0], 1e-7)[free]
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-3)


def test_the_chance_between_two_bounds_is_exact_and_finite_in_both_tails():
    low, width = np.linspace(-8, 7, 60), np.geomspace(1e-3, 3, 60)
    exact = np.where(low < 0, ndtr(low + width) - ndtr(low), ndtr(-low) - ndtr(-low - width))
    np.testing.assert_allclose(_log_between(low, low + width), np.log(exact), rtol=1e-9)
    far = np.array([-1e6, -50.0, 50.0, 1e6])
    logs = _log_between(far, far + 1.0)
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(logs[1], log_ndtr(-49.0), rtol=1e-9)
    infinite = np.full(1, np.inf)
    assert _log_between(-infinite, np.array([0.0])) == pytest.approx(math.log(0.5))
    assert _log_between(np.array([0.0]), infinite) == pytest.approx(math.log(0.5))
    assert _log_between(-infinite, infinite) == 0.0


# ---------------------------------------------------------------- margins


def test_two_bounds_of_a_figure_share_a_process_and_each_other_figure_has_its_own():
    search, history = BayesianSearch(LINE, 0), History(LINE)
    history.bounds = bounds("f>0.2", "g<3", "f<0.6")
    for trial in range(6):
        x = trial / 6
        state = "complete" if 0.2 < x < 0.6 else "failed"
        history.record(trial, {"x": x}, state, x, outcomes={"f": x, "g": 2 * x})
    margins = search._margins(history, search._encodings[0])
    assert len(margins) == 2
    assert np.isfinite([margins[0].low, margins[0].high, margins[1].high]).all()
    assert margins[1].low == -math.inf
    chances = np.exp(margins[0].log_chance(search._encodings[0].columns([{"x": x} for x in (0.05, 0.4, 0.9)])))
    assert chances[1] > 0.9
    assert max(chances[0], chances[2]) < 0.1


def test_a_figure_of_a_pending_trial_is_as_good_as_known():
    search, history = BayesianSearch(LINE, 0), History(LINE)
    history.bounds = bounds("f<0.6")
    for trial, x in enumerate((0.1, 0.2, 0.4, 0.5)):
        history.record(trial, {"x": x}, "complete", x, outcomes={"f": x**2})
    encoding = search._encodings[0]
    at = encoding.columns([{"x": 0.9}])
    mean, variance = search._margins(history, encoding)[0].process.predict(at)
    history.record(4, {"x": 0.9}, "pending")
    assumed, left = search._margins(history, encoding)[0].process.predict(at)
    assert assumed == pytest.approx(mean)
    assert left < 0.1 * variance


def test_the_scale_is_linear_unless_figures_span_decades():
    close = margins_of(history_on_a_line([1.0, 2.0, 3.0, 4.0], "f<2.5"), "f", np.arange(4))
    assert [*close] == [Scale.LINEAR]
    margins = close[Scale.LINEAR]
    np.testing.assert_allclose([margins.figures.mean(), margins.figures.std()], [0.0, 1.0], atol=1e-12)
    assert (margins.low, margins.high) == (-math.inf, pytest.approx(0.0, abs=1e-12))
    assert margins.kept.tolist() == [True, True, False, False]
    decades = [10.0**n for n in range(5)]
    scales = margins_of(history_on_a_line(decades, "f<50"), "f", np.arange(5))
    assert [*scales] == [Scale.LINEAR, Scale.SIGNED_LOG, Scale.LOG]
    np.testing.assert_allclose(np.diff(scales[Scale.LOG].figures), np.diff(scales[Scale.LOG].figures)[0])
    signed = [-x for x in decades] + decades
    assert [*margins_of(history_on_a_line(signed, "f<0.5"), "f", np.arange(10))] == [Scale.LINEAR, Scale.SIGNED_LOG]


@pytest.mark.parametrize("limits", [["f<50"], ["f>50"], ["f>20", "f<50"], ["f>10", "f<5e8"]])
def test_on_every_scale_a_figure_stays_on_its_side_of_the_bounds(limits):
    """A penalty among them, too."""
    figures = [11.0, 12.0, 15.0, 30.0, 49.0, 60.0, 400.0, 1e9, 1e30, 1e30, -1e30]
    history = history_on_a_line(figures, *limits)
    for margins in margins_of(history, "f", np.arange(len(figures))).values():
        inside = (margins.low < margins.figures) & (margins.figures < margins.high)
        assert inside.tolist() == margins.kept.tolist()
        assert np.isfinite(margins.figures).all()


def test_a_penalty_does_not_flatten_the_regular_figures():
    regular = list(np.linspace(1.0, 3.0, 11))
    plain = margins_of(history_on_a_line(regular, "f<2.1"), "f", np.arange(11))[Scale.LINEAR]
    both = margins_of(history_on_a_line([*regular, 1e100], "f<2.1"), "f", np.arange(12))[Scale.LINEAR]
    assert np.ptp(both.figures[:11]) > 0.3 * np.ptp(plain.figures)


def test_figures_that_are_all_equal_have_margins():
    for margins in margins_of(history_on_a_line([7.0] * 4, "f<7"), "f", np.arange(4)).values():
        assert np.isfinite([*margins.figures, margins.high]).all()
    assert not margins.kept.any()


def test_a_trial_whose_figures_do_not_tell_why_it_failed_has_failed():
    history = history_on_a_line([1.0, 9.0, None], "f<5")
    history.record(3, {"x": 0.99}, "failed", 1.0, outcomes={"f": 4.0})
    assert [breaks_a_bound(history, row) for row in range(4)] == [False, True, False, False]
    assert rows_with(history, "f").tolist() == [0, 1, 3]
    search = BayesianSearch(LINE, 0)
    failures = search._failures(history, history.rows(TrialState.COMPLETE), search._encodings[0])
    labels = failures.process._values[:, 0]
    assert labels.tolist() == [-1.0, -1.0, 1.0, 1.0]
    explained = history_on_a_line([1.0, 9.0, 8.0], "f<5")
    assert search._failures(explained, explained.rows(TrialState.COMPLETE), search._encodings[0]) is None


def test_trials_that_came_near_their_bounds_come_first():
    history = History(LINE)
    history.bounds = bounds("f<1", "g<1000")
    for trial, (f, g) in enumerate([(3.0, 100.0), (1.5, 5000.0), (1.1, 900.0), (0.5, 1100.0)]):
        history.record(trial, {"x": trial / 4}, "failed", 1.0, outcomes={"f": f, "g": g})
    history.record(4, {"x": 0.9}, "failed")
    assert nearest_first(history)[:2].tolist() == [3, 2]
    assert sorted(nearest_first(history).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("outcomes", [{"f": math.nan}, {"f": math.inf}])
def test_an_outcome_that_is_not_finite_is_refused(outcomes):
    history = History(LINE)
    with pytest.raises(ValueError, match="outcomes of a trial must be finite"):
        history.record(0, {"x": 0.5}, "complete", 1.0, outcomes=outcomes)
    with pytest.raises(ValueError, match="outcomes of a trial must be finite"):
        history.adopt({"point": {"x": 0.5}, "value": 1.0, "outcomes": outcomes})
    assert not history.points


# ---------------------------------------------------------------- searches


def test_figures_lead_to_the_border_and_keep_the_search_inside():
    """Yes and no have 5 feasible trials of 30 here, and 0.0146; the least loss is 0.01416."""
    told, yes_or_no = searched(30), searched(30, tells=False)
    assert len(told.rows(TrialState.COMPLETE)) >= 20 > len(yes_or_no.rows(TrialState.COMPLETE))
    assert best_of(told) < 0.01425 < best_of(yes_or_no)


def test_before_any_trial_is_feasible_the_search_goes_where_the_bound_is_near():
    """One point in 500 keeps this bound."""
    assert len(searched(10, limit="memory<=0.05").rows(TrialState.COMPLETE))
    assert not len(searched(10, limit="memory<=0.05", tells=False).rows(TrialState.COMPLETE))


def test_without_figures_suggestions_are_those_of_yes_and_no():
    """Bounds alone change nothing."""
    told = searched(14, tells=False)
    unbounded = History(INTEGERS)
    for row, point in enumerate(told.points):
        unbounded.record(row, point, told.states[row], told.values[row])
    assert BayesianSearch(INTEGERS, 0, 5).suggest(told) == BayesianSearch(INTEGERS, 0, 5).suggest(unbounded)


def test_the_same_history_gives_the_same_point_whatever_was_fitted_before():
    history, used = History(INTEGERS), BayesianSearch(INTEGERS, 3, 5)
    history.bounds = bounds("memory<=20")
    for trial in range(24):
        point = used.suggest(history)
        if trial in (6, 12, 23):
            assert BayesianSearch(INTEGERS, 3, 5).suggest(history) == point
        state = "complete" if memory(point) <= 20 else "failed"
        history.record(trial, point, state, 1 / point["w"] + 1 / point["b"], outcomes={"memory": memory(point)})


def test_a_figure_that_is_missing_now_and_then_is_no_figure():
    def sometimes(point):
        return math.nan if point["w"] % 5 == 0 else memory(point)

    history = searched(30, memory=sometimes)
    assert len(history.rows(TrialState.COMPLETE)) >= 12
    assert best_of(history) < 0.0146


def test_pending_trials_are_spread_and_keep_their_bounds():
    history, search, running = History(INTEGERS), BayesianSearch(INTEGERS, 0, 5), []
    history.bounds = bounds("memory<=20")
    for trial in range(40):
        point = search.suggest(history)
        history.record(trial, point, "pending")
        running.append((trial, point))
        if len(running) > 4:
            ended, at = running.pop(0)
            state = "complete" if memory(at) <= 20 else "failed"
            history.record(ended, at, state, 1 / at["w"] + 1 / at["b"], outcomes={"memory": memory(at)})
    assert len(history.rows(TrialState.COMPLETE)) >= 22
    assert best_of(history) < 0.0143
    assert history.n_distinct == 40


def test_observations_of_other_runs_tell_their_figures_or_yes_and_no():
    rng, mixed = np.random.default_rng(0), History(INTEGERS)
    for n in range(30):
        point = INTEGERS.sample(rng)
        shown = memory(point)
        known = {"outcomes": {"memory": shown}} if n % 2 else {}
        mixed.adopt({"point": point, "value": 1 / point["w"] + 1 / point["b"], "feasible": shown <= 20, **known})
    history = searched(12, history=mixed)
    own = [row for row in history.rows(TrialState.COMPLETE).tolist() if row >= 30]
    assert len(own) >= 8
    assert best_of(history) < 0.0145


def test_several_objectives_and_pruned_trials_have_margins():
    space = Space([Real(0, 1, name="x"), Real(0, 1, name="y"), Categorical(["a", "b"], name="c")])
    history = VectorHistory(space, 2)
    history.bounds = bounds("f<=0.3", "f>=0.1")
    search = ScalarisedSearch(lambda: BayesianSearch(space, 0, 5), 0, 2)
    for trial in range(24):
        point = search.suggest(history)
        f, losses = point["x"] * point["y"], [1 - point["x"] + 0.1 * (point["c"] == "a"), 1 - point["y"]]
        kept = 0.1 <= f <= 0.3
        history.record(trial, point, "complete" if kept else "failed", losses[0], losses=losses, outcomes={"f": f})
    assert len(history.rows(TrialState.COMPLETE)) >= 12
    with_shares = History(LINE)
    with_shares.bounds, with_shares.max_epochs = bounds("f<0.5"), 9
    for trial in range(12):
        x = (trial * 5 % 12) / 12
        kept, curve = x < 0.5, [(1, 2 - x), (9, 1 - x)]
        if trial % 3 == 0:
            with_shares.record(trial, {"x": x}, "pruned", 2 - x, curve=curve[:1])
        else:
            state = "complete" if kept else "failed"
            with_shares.record(trial, {"x": x}, state, 1 - x, curve=curve, outcomes={"f": x})
    assert 0.3 < BayesianSearch(LINE, 0, 5).suggest(with_shares.settled())["x"] < 0.55


def test_a_search_service_is_told_bounds_and_figures():
    def suggested(options, figures):
        search = InlineSearch()
        search.start("bayesian", INTEGERS, 0, {"n_initial_points": 5, **options})
        rng = np.random.default_rng(1)
        for trial in range(12):
            point = INTEGERS.sample(rng)
            record = {"trial": trial, "point": point, "state": "complete" if memory(point) <= 20 else "failed"}
            record["value"] = 1 / point["w"] + 1 / point["b"]
            search.record([record | ({"outcomes": {"memory": memory(point)}} if figures else {})])
        search.request_suggestion(0)
        return search.poll().point

    limited = {"outcome_constraints": ["memory<=20"]}
    assert memory(suggested(limited, True)) <= 20
    assert suggested(limited, True) != suggested(limited, False) == suggested({}, False)
