import asyncio
import copy
import json
from unittest.mock import Mock

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ProtocolError, TrialError
from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.trials.checkpoint import load_latest, load_weights
from tests.helpers import linear_teams
from tests.helpers.linear_serial import Data, data_of
from tests.helpers.linear_teams import fail, finish, place_of, run, step_to_an_epoch, val_losses
from tests.helpers.loopback_team import FAULTS

pytestmark = pytest.mark.many

DATA = data_of(24, 9, n_features=3)
ENDS = (msg.FoldFinished, msg.FoldFailed, msg.FoldStopped)


def options_of(**changes):
    return linear_teams.options_of(**{"epochs": 2, **changes})


def team_of(directory, n_workers=2, data=DATA, **changes):
    return linear_teams.team_of(directory, options_of(**changes), n_workers, data)


def checkpoints_of(team):
    return sorted(path.name for path in place_of(team).glob("checkpoint-*"))


def recorded(team, number):
    """Have the end of an assignment recorded."""
    team.order(msg.FoldRecorded(assignment=number))
    team.settle()


def ends_of(team):
    return [report for report in team.reports if isinstance(report, ENDS)]


# ---------------------------------------------------------------- what is told to the coordinator


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_fold_is_started_reported_epoch_by_epoch_and_finished(tmp_path, synchronous):
    team = team_of(tmp_path, synchronous=synchronous, epochs=3)
    finished = finish(team)
    assert [type(report).__name__ for report in team.reports] == ["FoldStarted", *["EpochReported"] * 3, "FoldFinished"]
    assert all(report.assignment == finished.assignment for report in team.reports)
    assert [report.epoch for report in team.reported(msg.EpochReported)] == [1, 2, 3]
    assert finished.n_epochs == 3
    assert finished.metrics == team.reported(msg.EpochReported)[-1].metrics
    assert set(finished.metrics) == {"loss", "val_loss"}
    assert finished.reason == "all epochs are done"


def test_a_finished_fold_leaves_its_weights_and_its_history(tmp_path):
    team = team_of(tmp_path, epochs=3)
    finished = finish(team)
    weights, state = load_weights(place_of(team))
    assert (weights.shape, weights.dtype, state.shape) == ((4,), np.float32, (1,))
    history = json.loads((place_of(team) / "history.json").read_bytes())
    assert [metrics["val_loss"] for metrics in history["epochs"]][-1] == finished.figure_of_merit
    assert set(history["workers"]) == {"1", "2"}
    assert all(len(worker["loss"]) == 3 for worker in history["workers"].values())
    assert (history["n_workers"], history["train_s"]) == (2, finished.train_s)
    assert sum(history["staleness"].values()) == len(team.delivered(msg.PushUpdate))


def test_the_time_a_team_was_idle_is_measured_from_its_second_fold_on(tmp_path):
    team = team_of(tmp_path)
    run(team, trial=0)
    team.clock.advance(100.0)
    run(team, trial=1)
    first, second = team.reported(msg.FoldStarted)
    assert first.waited_s is None
    assert 100.0 <= second.waited_s < 110.0


def test_train_parameters_of_a_point_replace_options_for_its_trial_alone(tmp_path):
    team = team_of(tmp_path, epochs=2)
    for trial, point in enumerate([{"train.epochs": 3, "train.batch": 24}, {}]):
        run(team, point=point, trial=trial)
    assert [report.n_epochs for report in team.reported(msg.FoldFinished)] == [3, 2]


# ---------------------------------------------------------------- best weights


def test_early_stopping_restores_the_weights_and_figures_of_the_best_epoch(tmp_path):
    # So large a step makes the loss swing; the best epoch is seldom the last.
    team = team_of(tmp_path, epochs=40, learning_rate=0.9, early_stopping="val_loss,<,3", synchronous=True)
    finished = finish(team)
    losses = val_losses(team)
    best = int(np.argmin(losses))
    assert len(losses) == finished.n_epochs < 40
    assert best == len(losses) - 1 - 3
    assert finished.figure_of_merit == losses[best]
    assert finished.metrics == team.reported(msg.EpochReported)[best].metrics
    validated = team.delivered(msg.Validate, dest=1)[best].payload
    assert np.array_equal(np.concatenate(load_weights(place_of(team))), validated)


def test_without_early_stopping_the_last_weights_are_kept(tmp_path):
    team = team_of(tmp_path, epochs=4, learning_rate=0.9, synchronous=True)
    finished = finish(team)
    assert finished.figure_of_merit == team.reported(msg.EpochReported)[-1].metrics["val_loss"]
    validated = team.delivered(msg.Validate, dest=1)[-1].payload
    assert np.array_equal(np.concatenate(load_weights(place_of(team))), validated)


# ---------------------------------------------------------------- checkpoints


def test_checkpoints_stay_until_the_coordinator_has_recorded_the_end(tmp_path):
    team = team_of(tmp_path, epochs=3)
    number = finish(team).assignment
    assert checkpoints_of(team) == ["checkpoint-3"]
    recorded(team, number + 1)
    assert checkpoints_of(team) == ["checkpoint-3"]
    recorded(team, number)
    assert checkpoints_of(team) == []
    assert (place_of(team) / "weights.npz").exists()


def test_what_a_crash_left_half_written_goes_with_the_checkpoints(tmp_path):
    team = team_of(tmp_path, epochs=3)
    half = place_of(team) / ".checkpoint-2.0123456789ab"
    make_directory(half)
    (half / "master.npz").write_bytes(b"half")
    recorded(team, finish(team).assignment)
    assert not half.exists()


@pytest.mark.parametrize(("interval", "written"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (9, [4])])
def test_a_checkpoint_is_written_at_every_interval_and_at_the_end(tmp_path, interval, written):
    team = team_of(tmp_path, epochs=4, checkpoint_interval=interval)
    run(team)
    assert [report.epoch for report in team.reported(msg.EpochReported) if report.checkpointed] == written


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_training(tmp_path):
    # A file where the folders of the trial should be.
    team = team_of(tmp_path)
    (tmp_path / "trials" / "0000").mkdir(parents=True)
    (tmp_path / "trials" / "0000" / "fold0").write_text("in the way")
    failed = fail(team)
    assert not any(report.checkpointed for report in team.reported(msg.EpochReported))
    # Weights that cannot be saved are no result.
    assert "fold0" in failed.reason


# ---------------------------------------------------------------- failures stay in their trial


@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("synchronous", [False, True])
def test_a_faulty_trial_fails_once_with_a_reason_and_leaves_the_next_trial_alone(tmp_path, synchronous, fault, at):
    expected = finish(team_of(tmp_path / "undisturbed", synchronous=True), trial=1)
    team = team_of(tmp_path / "disturbed", synchronous=synchronous)
    failed = fail(team, 0, {"fault": fault, "at": at})
    assert ends_of(team) == [failed]
    assert (failed.assignment, bool(failed.reason)) == (0, True)
    assert "\n" not in failed.reason
    finished = finish(team, 1, {"train.synchronous": True}, trial=1)
    assert finished.metrics == expected.metrics


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("build", "there is no such layer"),
        ("build out of memory", "out of memory"),
        ("gradient", "ZeroDivisionError: in the gradient"),
        ("gradient out of memory", "out of memory: 4 GB wanted"),
        ("infinite loss", "non-finite loss"),
        ("evaluate", "RuntimeError: in the evaluation"),
        ("infinite validation loss", "val_loss is nan"),
    ],
)
def test_a_failure_says_what_where_and_with_which_traceback(tmp_path, fault, words):
    team = team_of(tmp_path)
    failed = fail(team, point={"fault": fault})
    assert words in failed.reason
    assert failed.world_rank in (1, 2)
    assert failed.host
    assert failed.traceback.startswith("Traceback")


@pytest.mark.parametrize("n_validation", [0, 9])
@pytest.mark.parametrize("last_batch", [0, 5])
def test_weights_that_are_not_finite_are_never_a_result(tmp_path, n_validation, last_batch):
    # 24 samples are 6 batches: an update of the last one meets no loss that would show it.
    team = team_of(tmp_path, 1, Data(DATA.source, [single_fold(24, n_validation)]), epochs=1)
    failed = fail(team, point={"fault": "infinite gradient", "at": last_batch})
    assert "finite" in failed.reason
    assert not (place_of(team) / "weights.npz").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TrialError("`a.h5` is damaged"), "`a.h5` is damaged"),
        (OSError("no such file"), "OSError: no such file"),
        (asyncio.CancelledError("enough"), "CancelledError: enough"),
        (MemoryError(), "out of memory"),
    ],
)
def test_data_that_cannot_be_read_fail_the_trial(tmp_path, error, words):
    source = copy.copy(DATA.source)
    source.read = Mock(side_effect=error)
    team = team_of(tmp_path, data=Data(source, DATA.folds))
    failed = fail(team)
    assert ends_of(team) == [failed]
    assert words in failed.reason


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"train.speed": 3}, "train.speed"),
        ({"train.batch": 0}, "--batch"),
        ({"train.early_stopping": "val_loss"}, "--early-stopping"),
    ],
)
def test_a_point_that_is_no_training_fails_its_trial_before_any_worker_starts(tmp_path, point, words):
    team = team_of(tmp_path)
    failed = fail(team, point=point)
    assert words in failed.reason
    assert not team.deliveries


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"optimizer_params": {"mass": 1.0}}, "mass"), ({"target_metric": "val_acc,>,0.5"}, "val_acc")],
)
def test_a_refused_optimizer_or_an_unmeasured_figure_fails_the_trial(tmp_path, changes, word):
    assert word in fail(team_of(tmp_path, **changes)).reason


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_fold_can_be_stopped_at_any_moment_and_the_next_is_as_if_nothing_had_been(tmp_path, synchronous):
    expected = finish(team_of(tmp_path / "undisturbed", synchronous=True), trial=1)
    moment, finished_by_itself = 0, False
    while not finished_by_itself:
        rng = np.random.default_rng(moment)
        team = team_of(tmp_path / str(moment), synchronous=synchronous)
        number = team.run_fold(trial=0)
        team.steps(moment, rng)
        team.order(msg.StopFold(assignment=number))
        while not ends_of(team):
            team.step(rng)
        (end,) = ends_of(team)
        finished_by_itself = isinstance(end, msg.FoldFinished)
        assert finished_by_itself or end == msg.FoldStopped(assignment=number)
        # The next order comes while messages of the last fold are still on their way.
        team.run_fold({"train.synchronous": True}, trial=1)
        finished = team.settle(rng)
        assert len(ends_of(team)) == 2
        assert finished.metrics == expected.metrics
        moment += 5
    assert moment >= 50


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_fold_paused_at_any_moment_ends_like_one_that_was_not_paused(tmp_path, synchronous):
    options = {"synchronous": synchronous, "epochs": 4, "checkpoint_interval": 3}
    expected = finish(team_of(tmp_path / "undisturbed", **options))
    moment, epochs, finished_by_itself = 0, set(), False
    while not finished_by_itself:
        team = team_of(tmp_path / str(moment), **options)
        number = team.run_fold()
        team.steps(moment)
        team.order(msg.PreemptFold(assignment=number))
        team.settle()
        (end,) = ends_of(team)
        finished_by_itself = isinstance(end, msg.FoldFinished)
        if not finished_by_itself:
            assert end == msg.FoldStopped(assignment=number)
            # Nothing that was trained is lost.
            reported = team.reported(msg.EpochReported)
            handed_in = [*team.delivered(msg.PushUpdate), *team.delivered(msg.FenceReached)]
            kept = load_latest(place_of(team))
            assert sum(d.message.n_samples for d in handed_in) == (0 if kept is None else kept.master["n_samples"])
            epochs.add(len(reported))
            again = team_of(tmp_path / str(moment), **options)
            finished = finish(again)
            assert again.reported(msg.FoldStarted)[0].epoch == len(reported)
            assert finished.n_epochs == expected.n_epochs
            if synchronous:
                assert finished.metrics == expected.metrics
        moment += 4
    assert epochs == {0, 1, 2, 3}


def test_a_stop_that_comes_too_late_is_ignored(tmp_path):
    team = team_of(tmp_path)
    finished = finish(team)
    team.order(msg.StopFold(assignment=finished.assignment))
    assert team.settle() is finished
    assert ends_of(team) == [finished]


def test_the_checkpoints_of_a_stopped_fold_go_when_its_end_is_recorded(tmp_path):
    team = team_of(tmp_path, epochs=9)
    number = step_to_an_epoch(team)
    team.order(msg.StopFold(assignment=number))
    team.settle()
    assert checkpoints_of(team)
    recorded(team, number)
    assert not checkpoints_of(team)


# ---------------------------------------------------------------- bugs of ours


def test_a_second_fold_while_one_is_under_way_is_a_protocol_error(tmp_path):
    team = team_of(tmp_path)
    team.run_fold()
    team.step()
    team.run_fold(trial=1)
    with pytest.raises(ProtocolError):
        team.settle()


def test_a_message_no_coordinator_sends_is_a_protocol_error(tmp_path):
    team = team_of(tmp_path)
    team.order(msg.EndFold(assignment=0))
    with pytest.raises(ProtocolError):
        team.step()
