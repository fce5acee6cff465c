import json
import math

import numpy as np
import pytest

from nnlo_opt.app.run.start.earlier import read_earlier
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.tools.export.exporter import make_exporter
from tests.helpers import stories
from tests.helpers.exported import ENDS, REASON, SPACE, UNIX_S, started, story, take_in_parts

pytestmark = pytest.mark.needs("optuna")

TWO = ("val_loss:min", "n_weights:max")


def written(path, events, n_at_once=None):
    """The file of a study, written from so many events at once."""
    take_in_parts(make_exporter("optuna", SafePath.of(path), "run"), events, n_at_once or len(events))
    return path


def study_of(path):
    import optuna

    return optuna.load_study(
        study_name="run", storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    )


def fields(trial):
    return {name: value for name, value in vars(trial).items() if name != "_trial_id"}


@pytest.mark.parametrize("n_at_once", [None, 1, 7])
@pytest.mark.parametrize("n_fold", [1, 3])
def test_a_study_has_all_that_the_journal_has(tmp_path, n_fold, n_at_once):
    events = story(n_fold)
    ledger = Ledger(events)
    study = study_of(written(tmp_path / "study", events, n_at_once))
    assert study.direction.name == "MAXIMIZE"
    assert study.metric_names == ["val_loss"]
    assert study.best_trial.number == ledger.best("max").number
    assert [trial.state.name for trial in study.trials] == [
        {"complete": "COMPLETE", "failed": "FAIL", "pruned": "PRUNED", "": "RUNNING"}[end] for end in ENDS
    ] + ["WAITING"]
    for ours, theirs in zip(ledger.trials, study.trials, strict=True):
        assert theirs.params == ours.point | {"shape": json.dumps(ours.point["shape"])}
        assert theirs.user_attrs["state"] == ours.state
        assert theirs.user_attrs.get("reason", "") == ours.reason
        assert theirs.value == (ours.figure_of_merit or ours.figure_so_far)
        times = [a.assigned_at_s for a in ours.assignments][:1], [ours.ended_at_s] * (ours.ended_at_s is not None)
        assert [t.timestamp() for t in (theirs.datetime_start, theirs.datetime_complete) if t] == pytest.approx(
            [UNIX_S + time_s for some in times for time_s in some], abs=1e-5
        )
        if n_fold == 1:
            assert theirs.intermediate_values == ours.reports.get(0, {})
    assert study.trials[2].user_attrs["reason"] == REASON
    # The first fold of the running trial has reported two epochs.
    assert [*study.trials[4].intermediate_values] == [1, 2]


def test_distributions_are_as_in_the_search_space(tmp_path):
    trials = study_of(written(tmp_path / "study", story())).trials
    texts = {name: str(distribution) for trial in trials for name, distribution in trial.distributions.items()}
    assert texts == {
        "lr": "FloatDistribution(high=0.1, log=True, low=0.0001, step=None)",
        "drop": "FloatDistribution(high=1.0, log=False, low=0.0, step=0.25)",
        "units": "IntDistribution(high=64, log=True, low=1, step=1)",
        "layers": "IntDistribution(high=10, log=False, low=2, step=2)",
        "optimizer": "CategoricalDistribution(choices=('adam', 'sgd'))",
        "momentum": "FloatDistribution(high=1.0, log=False, low=0.0, step=None)",
        "clip": "CategoricalDistribution(choices=(None, 0.5, 1))",
        "batch": "CategoricalDistribution(choices=(16, 32, 64))",
        "shape": "CategoricalDistribution(choices=('[1, 2]', '[3]'))",
        "bias": "CategoricalDistribution(choices=(True, False))",
        "penalty": "CategoricalDistribution(choices=('l1', 'l2', None))",
    }
    with_momentum = [trial.params["optimizer"] == "sgd" for trial in trials]
    assert ["momentum" in trial.params for trial in trials] == with_momentum
    assert {*with_momentum} == {True, False}


def test_several_objectives_are_values(tmp_path):
    events = story(2, TWO)
    study = study_of(written(tmp_path / "study", events))
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert {trial.number for trial in study.best_trials} == {*Ledger(events).pareto.trials}
    assert study.metric_names == ["val_loss", "n_weights"]


def test_bounds_are_constraints_of_a_study_and_come_back_as_figures(tmp_path):
    first = started()
    events = [first.replaced(identity=first.identity | {"constraints": ["size<5", "acc>=0.5"]})]
    shown = [{"size": 3.0, "acc": 0.75}, {"size": 9.0, "acc": 0.5}, {"size": 5.0, "acc": 0.25}, {"acc": 0.5}]
    for trial, metrics in enumerate(shown):
        point = SPACE.sample(np.random.default_rng(trial))
        end = stories.finished(trial, 0.5, 1.0, metrics=metrics, n_epochs=1, train_s=0.5)
        events += [stories.suggested(trial, point), stories.assigned(trial, trial), end, stories.completed(trial, 0.5)]
    place = written(tmp_path / "study", events)
    excesses = [trial.system_attrs["constraints"] for trial in study_of(place).trials]
    assert excesses == [[-2.0, -0.25], [4.0, 0.0], [math.ulp(0.0), 0.25], [1.0, 0.0]]
    observations = read_earlier(place).observations
    assert [o["outcomes"] for o in observations] == shown
    assert [o["feasible"] for o in observations] == [True, False, False, False]


def test_a_mirror_that_begins_again_has_nothing_to_add(tmp_path):
    events = story(2)
    path = written(tmp_path / "study", events[:30], 4)
    at_once = study_of(written(tmp_path / "other", events)).trials
    assert [*map(fields, study_of(written(path, events, 5)).trials)] == [*map(fields, at_once)]
    before = path.read_bytes()
    written(path, events)
    assert path.read_bytes() == before


def of_another_course(events):
    """Events of a run that has lost the last of these, and gone on in another way."""
    last = max(n for n, event in enumerate(events) if isinstance(event, ev.TrialSuggested))
    return [*events[:last], events[last].replaced(point=SPACE.sample(np.random.default_rng(99)))]


@pytest.mark.parametrize("n_kept", [None, -1, 50])
def test_a_study_with_trials_that_the_run_has_lost_is_written_again(tmp_path, n_kept):
    events = of_another_course(story())[:n_kept]
    path = written(written(tmp_path / "study", story()), events)
    at_once = study_of(written(tmp_path / "other", events)).trials
    assert [*map(fields, study_of(path).trials)] == [*map(fields, at_once)]


@pytest.mark.parametrize("events", [[], [started()]])
def test_an_empty_run_is_exported(tmp_path, events):
    path = written(tmp_path / "study", events, 1)
    assert len(study_of(path).trials) == 0 if events else not path.read_bytes()
