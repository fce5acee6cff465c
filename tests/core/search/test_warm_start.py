import json

import pytest

from nnlo_opt.app.run.start.earlier import observations_of_runs
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.search.base import History, TrialState
from nnlo_opt.core.search.warm_start import adopted_observations, observations_of
from nnlo_opt.core.trials.identity import RunIdentity
from nnlo_opt.core.trials.trial import FoldResult, Trial
from nnlo_opt.space import Categorical, Integer, Real, Space
from tests.helpers.refusals import check_refused
from tests.helpers.stories import START, completed, suggested, write_journal

THEIRS = Space([Real(0, 1, name="x"), Integer(1, 9, name="n"), Real(0, 1, name="old")])
OURS = Space([Integer(1, 5, name="n"), Real(0, 1, name="x")])
IDENTITY = {"search_space": THEIRS.to_json(), "figure_of_merit": "val_loss", "direction": "min"}


def trial(number, x, n, figure, n_folds=1):
    folds = {fold: FoldResult(figure_of_merit=1.0, metrics={}, n_epochs=1, train_s=0.0) for fold in range(n_folds)}
    std = None if figure is None else 0.3
    point = {"x": x, "n": n, "old": 0.5}
    return Trial(number=number, point=point, folds=folds, figure_of_merit=figure, figure_of_merit_std=std)


def test_points_are_matched_by_name_and_what_does_not_fit_is_said():
    trials = [trial(0, 0.5, 2, 0.1), trial(1, 0.5, 8, 0.2), trial(2, 0.1, 1, None), trial(3, 0.7, 5, 0.3, n_folds=10)]
    observations, remarks = adopted_observations(observations_of(trials), THEIRS.names, OURS)
    assert observations == [
        {"point": {"n": 2, "x": 0.5}, "value": 0.1, "std": None},
        {"point": {"n": 5, "x": 0.7}, "value": 0.3, "std": pytest.approx(0.1)},
    ]
    assert remarks == [
        "`old` is not a parameter here and is ignored",
        "1 of 3 trials skipped: `n` is outside Integer(1, 5)",
    ]


def test_trials_without_a_value_of_a_new_parameter_are_left_out():
    ours = Space([Real(0, 1, name="x"), Categorical(["a", "b"], name="new")])
    theirs = observations_of([trial(0, 0.5, 2, 0.1)])
    observations, remarks = adopted_observations(theirs, THEIRS.names, ours)
    assert observations == []
    assert remarks[-1] == "1 of 1 trials skipped: they have no value of `new`"


def test_adopted_observations_come_before_the_trials_and_are_none():
    history = History(OURS)
    history.adopt({"point": {"n": 2, "x": 0.5}, "value": 0.25, "std": 0.1})
    history.record(0, {"n": 2, "x": 0.5}, "pending")
    assert (history.n_adopted, history.n_suggested, history.n_distinct) == (1, 1, 1)
    assert history.values[0] == 0.25
    assert history.stds[0] == 0.1
    assert history.rows(TrialState.COMPLETE).tolist() == [0]
    assert history.trials.tolist() == [0]
    with pytest.raises(ValueError, match="before the first trial"):
        history.adopt({"point": {"n": 2, "x": 0.5}, "value": 0.25})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_adopted(value):
    with pytest.raises(ValueError, match="must be finite"):
        History(OURS).adopt({"point": {"n": 2, "x": 0.5}, "value": value})


@pytest.mark.parametrize("std", [None, 0.0, float("nan"), float("inf")])
def test_a_standard_error_that_says_nothing_is_not_known(std):
    history = History(OURS)
    history.record(0, {"n": 2, "x": 0.5}, "complete", 1.0, std=std)
    assert str(history.stds[0]) == "nan"


def a_run(folder, **identity):
    folder.mkdir()
    points = [{"x": 0.5, "n": n, "old": 0.0} for n in (2, 8, 3)]
    suggestions = [suggested(number, point) for number, point in enumerate(points)]
    started = START.replaced(identity={**IDENTITY, **identity})
    return write_journal(folder, [started, *suggestions, completed(0, 0.2), completed(1, 0.8)])


def test_runs_are_read_from_their_journals(tmp_path):
    runs = [a_run(tmp_path / "one"), a_run(tmp_path / "two")]
    observations, lines = observations_of_runs(runs, RunIdentity.of(IDENTITY), OURS)
    assert [observation["value"] for observation in observations] == [0.2, 0.2]
    assert json.loads(json.dumps(observations)) == observations
    assert lines[:3] == [
        f"Warm start from `{runs[0]}`: `old` is not a parameter here and is ignored.",
        f"Warm start from `{runs[0]}`: 1 of 2 trials skipped: `n` is outside Integer(1, 5).",
        f"Warm start from `{runs[0]}`: 1 of 2 complete trials are used.",
    ]
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ({"figure_of_merit": "1 - val_acc"}, "the same figure of merit"),
        ({"direction": "max"}, "the same direction"),
        ({"search_space": None}, "runs that are searches"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, identity, words):
    with pytest.raises(ConfigurationError, match=words):
        observations_of_runs([a_run(tmp_path / "one", **identity)], RunIdentity.of(IDENTITY), OURS)


def test_a_directory_without_a_run_is_refused(tmp_path):
    check_refused("which holds a `journal", observations_of_runs, [tmp_path], RunIdentity.of(IDENTITY), OURS)
