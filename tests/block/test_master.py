import json

import numpy as np
import pytest

from nnlo_opt.block.master.endpoints import WorkerEndpoints
from nnlo_opt.block.master.master import Master, MasterSetup
from nnlo_opt.block.master.state import FoldPlan, fold_plan
from nnlo_opt.clock import ManualClock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.transport import Received
from nnlo_opt.data.folds import single_fold
from nnlo_opt.errors import ProtocolError, TrialError
from nnlo_opt.testing.loopback_team import FAULTS, LoneTeam, linear_tasks
from nnlo_opt.testing.memory_source import UnreadableSource, linear_source
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.trials.checkpoint import fold_directory, load_latest, load_weights

SOURCE = linear_source(33)
FOLDS = [single_fold(24, 9)]
ENDS = (msg.FoldFinished, msg.FoldFailed, msg.FoldStopped)


def options_of(**changes):
    return TrainingOptions(**{"batch": 4, "epochs": 2, "optimizer": "sgd", "learning_rate": 0.05, **changes})


def team_of(directory, n_workers=2, source=SOURCE, **changes):
    options = options_of(**changes)
    return LoneTeam(directory, options, linear_tasks(source, FOLDS, options), n_workers)


def checkpoints_in(directory, trial=0):
    return sorted(path.name for path in fold_directory(directory, trial, 0).glob("checkpoint-*"))


def ends_of(team):
    return [report for report in team.reports if isinstance(report, ENDS)]


# ---------------------------------------------------------------- what is told to the coordinator


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_fold_is_started_reported_epoch_by_epoch_and_finished(tmp_path, synchronous):
    team = team_of(tmp_path, synchronous=synchronous, epochs=3)
    number = team.run_fold()
    team.settle()
    assert [type(report).__name__ for report in team.reports] == ["FoldStarted", *["EpochReported"] * 3, "FoldFinished"]
    assert all(report.assignment == number for report in team.reports)
    assert [report.epoch for report in team.reported(msg.EpochReported)] == [1, 2, 3]
    finished = team.reported(msg.FoldFinished)[0]
    assert finished.n_epochs == 3
    assert finished.metrics == team.reported(msg.EpochReported)[-1].metrics
    assert set(finished.metrics) == {"loss", "val_loss"}
    assert "3 epochs" in finished.reason


def test_a_finished_fold_leaves_its_weights_and_its_history(tmp_path):
    team = team_of(tmp_path, epochs=3)
    team.run_fold()
    finished = team.settle()
    weights, state = load_weights(fold_directory(tmp_path, 0, 0))
    assert (weights.shape, weights.dtype, state.shape) == ((4,), np.float32, (1,))
    history = json.loads((fold_directory(tmp_path, 0, 0) / "history.json").read_text())
    assert [metrics["val_loss"] for metrics in history["epochs"]][-1] == finished.figure_of_merit
    assert set(history["workers"]) == {"1", "2"}
    assert all(len(worker["loss"]) == 3 for worker in history["workers"].values())
    assert (history["n_workers"], history["train_s"]) == (2, finished.train_s)
    assert sum(history["staleness"].values()) == len(team.delivered(msg.PushUpdate))


def test_the_time_a_team_was_idle_is_measured_from_its_second_fold_on(tmp_path):
    team = team_of(tmp_path)
    team.run_fold(trial=0)
    team.settle()
    team.clock.advance(100.0)
    team.run_fold(trial=1)
    team.settle()
    first, second = team.reported(msg.FoldStarted)
    assert first.waited_s is None
    assert 100.0 <= second.waited_s < 110.0


def test_train_parameters_of_a_point_replace_options_for_its_trial_alone(tmp_path):
    team = team_of(tmp_path, epochs=2)
    for trial, point in enumerate([{"train.epochs": 3, "train.batch": 24}, {}]):
        team.run_fold(point, trial)
        team.settle()
    assert [report.n_epochs for report in team.reported(msg.FoldFinished)] == [3, 2]


def test_the_plan_of_a_fold_follows_the_options():
    options = options_of(early_stopping="val_loss,~<,3", target_metric="val_acc,>,0.9", checkpoint_interval=5)
    assert fold_plan(options, n_workers=4) == FoldPlan(
        n_workers=4,
        epochs=2,
        checkpoint_interval=5,
        early_stopping=EarlyStopping(metric="val_loss", better="<", patience=3, smoothed=True),
        target_metric=TargetMetric(metric="val_acc", side=">", value=0.9),
    )


# ---------------------------------------------------------------- best weights


def test_early_stopping_restores_the_weights_and_figures_of_the_best_epoch(tmp_path):
    # So large a step makes the loss swing; the best epoch is seldom the last.
    team = team_of(tmp_path, epochs=40, learning_rate=0.9, early_stopping="val_loss,<,3", synchronous=True)
    team.run_fold()
    finished = team.settle()
    losses = [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]
    best = int(np.argmin(losses))
    assert len(losses) == finished.n_epochs < 40
    assert best == len(losses) - 1 - 3
    assert finished.figure_of_merit == losses[best]
    assert finished.metrics == team.reported(msg.EpochReported)[best].metrics
    validated = team.delivered(msg.Validate, dest=1)[best].payload
    assert np.array_equal(np.concatenate(load_weights(fold_directory(tmp_path, 0, 0))), validated)


def test_without_early_stopping_the_last_weights_are_kept(tmp_path):
    team = team_of(tmp_path, epochs=4, learning_rate=0.9, synchronous=True)
    team.run_fold()
    finished = team.settle()
    assert finished.figure_of_merit == team.reported(msg.EpochReported)[-1].metrics["val_loss"]
    validated = team.delivered(msg.Validate, dest=1)[-1].payload
    assert np.array_equal(np.concatenate(load_weights(fold_directory(tmp_path, 0, 0))), validated)


def test_a_target_metric_ends_the_training(tmp_path):
    team = team_of(tmp_path, epochs=50, target_metric="val_loss,<,0.5")
    team.run_fold()
    finished = team.settle()
    losses = [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]
    assert finished.figure_of_merit == losses[-1] < 0.5
    assert all(loss >= 0.5 for loss in losses[:-1])


# ---------------------------------------------------------------- checkpoints


def test_checkpoints_stay_until_the_coordinator_has_recorded_the_end(tmp_path):
    team = team_of(tmp_path, epochs=3)
    number = team.run_fold()
    team.settle()
    assert checkpoints_in(tmp_path) == ["checkpoint-3"]
    team.order(msg.FoldRecorded(assignment=number + 1))
    while team.step():
        pass
    assert checkpoints_in(tmp_path) == ["checkpoint-3"]
    team.order(msg.FoldRecorded(assignment=number))
    while team.step():
        pass
    assert checkpoints_in(tmp_path) == []
    assert (fold_directory(tmp_path, 0, 0) / "weights.npz").exists()


def test_what_a_crash_left_half_written_goes_with_the_checkpoints(tmp_path):
    half = fold_directory(tmp_path, 0, 0) / ".checkpoint-2.0123456789ab"
    half.mkdir(parents=True)
    (half / "master.npz").write_bytes(b"half")
    team = team_of(tmp_path, epochs=3)
    number = team.run_fold()
    team.settle()
    team.order(msg.FoldRecorded(assignment=number))
    while team.step():
        pass
    assert not half.exists()


@pytest.mark.parametrize(("interval", "written"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (9, [4])])
def test_a_checkpoint_is_written_at_every_interval_and_at_the_end(tmp_path, interval, written):
    team = team_of(tmp_path, epochs=4, checkpoint_interval=interval)
    team.run_fold()
    team.settle()
    assert [report.epoch for report in team.reported(msg.EpochReported) if report.checkpointed] == written


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_training(tmp_path):
    # A file where the folders of the trial should be.
    team = team_of(tmp_path)
    (tmp_path / "trials" / "0000").mkdir(parents=True)
    (tmp_path / "trials" / "0000" / "fold0").write_text("in the way")
    team.run_fold()
    end = team.settle()
    assert not any(report.checkpointed for report in team.reported(msg.EpochReported))
    # Weights that cannot be saved are no result.
    assert isinstance(end, msg.FoldFailed)
    assert "fold0" in end.reason


# ---------------------------------------------------------------- failures stay in their trial


@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("synchronous", [False, True])
def test_a_fault_of_a_trial_fails_it_once_with_a_reason_and_the_next_trial_is_as_if_nothing_had_been(
    tmp_path, synchronous, fault, at
):
    undisturbed = team_of(tmp_path / "undisturbed", synchronous=True)
    undisturbed.run_fold(trial=1)
    expected = undisturbed.settle()
    team = team_of(tmp_path / "disturbed", synchronous=synchronous)
    number = team.run_fold({"fault": fault, "at": at}, trial=0)
    failed = team.settle(np.random.default_rng(0))
    assert ends_of(team) == [failed]
    assert isinstance(failed, msg.FoldFailed)
    assert (failed.assignment, bool(failed.reason)) == (number, True)
    assert "\n" not in failed.reason
    team.run_fold({"train.synchronous": True}, trial=1)
    finished = team.settle(np.random.default_rng(1))
    assert isinstance(finished, msg.FoldFinished)
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
    team.run_fold({"fault": fault})
    failed = team.settle()
    assert words in failed.reason
    assert failed.world_rank in (1, 2)
    assert failed.host
    assert failed.traceback.startswith("Traceback")


@pytest.mark.parametrize("n_validation", [0, 9])
@pytest.mark.parametrize("last_batch", [0, 5])
def test_weights_that_are_not_finite_are_never_a_result(tmp_path, n_validation, last_batch):
    # 24 samples are 6 batches: an update of the last one meets no loss that would show it.
    options = options_of(epochs=1)
    team = LoneTeam(tmp_path, options, linear_tasks(SOURCE, [single_fold(24, n_validation)], options))
    team.run_fold({"fault": "infinite gradient", "at": last_batch})
    failed = team.settle()
    assert isinstance(failed, msg.FoldFailed)
    assert "finite" in failed.reason
    assert not (fold_directory(tmp_path, 0, 0) / "weights.npz").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TrialError("`a.h5` is damaged"), "`a.h5` is damaged"),
        (OSError("no such file"), "OSError: no such file"),
        (MemoryError(), "out of memory"),
    ],
)
def test_data_that_cannot_be_read_fail_the_trial(tmp_path, error, words):
    team = team_of(tmp_path, source=UnreadableSource(SOURCE, error))
    team.run_fold()
    failed = team.settle()
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
    team.run_fold(point)
    failed = team.settle()
    assert isinstance(failed, msg.FoldFailed)
    assert words in failed.reason
    assert not team.deliveries


def test_parameters_the_optimizer_refuses_fail_the_trial(tmp_path):
    team = team_of(tmp_path, optimizer_params={"mass": 1.0})
    team.run_fold()
    failed = team.settle()
    assert isinstance(failed, msg.FoldFailed)
    assert "mass" in failed.reason


def test_a_metric_that_is_not_measured_fails_the_trial(tmp_path):
    team = team_of(tmp_path, target_metric="val_acc,>,0.5")
    team.run_fold()
    failed = team.settle()
    assert isinstance(failed, msg.FoldFailed)
    assert "val_acc" in failed.reason


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_fold_can_be_stopped_at_any_moment_and_the_next_is_as_if_nothing_had_been(tmp_path, synchronous):
    undisturbed = team_of(tmp_path / "undisturbed", synchronous=True)
    undisturbed.run_fold(trial=1)
    expected = undisturbed.settle()
    moment, finished_by_itself = 0, False
    while not finished_by_itself:
        rng = np.random.default_rng(moment)
        team = team_of(tmp_path / str(moment), synchronous=synchronous)
        number = team.run_fold(trial=0)
        for _ in range(moment):
            team.step(rng)
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
def test_a_fold_can_be_paused_at_any_moment_and_goes_on_as_if_it_had_not_been(tmp_path, synchronous):
    options = {"synchronous": synchronous, "epochs": 4, "checkpoint_interval": 3}
    undisturbed = team_of(tmp_path / "undisturbed", **options)
    undisturbed.run_fold()
    expected = undisturbed.settle()
    moment, epochs, finished_by_itself = 0, set(), False
    while not finished_by_itself:
        team = team_of(tmp_path / str(moment), **options)
        number = team.run_fold()
        for _ in range(moment):
            team.step()
        team.order(msg.PreemptFold(assignment=number))
        team.settle()
        (end,) = ends_of(team)
        finished_by_itself = isinstance(end, msg.FoldFinished)
        if not finished_by_itself:
            assert end == msg.FoldStopped(assignment=number)
            # Nothing that was trained is lost.
            reported = team.reported(msg.EpochReported)
            handed_in = [*team.delivered(msg.PushUpdate), *team.delivered(msg.FenceReached)]
            kept = load_latest(fold_directory(tmp_path / str(moment), 0, 0))
            assert sum(d.message.n_samples for d in handed_in) == (0 if kept is None else kept.master["n_samples"])
            epochs.add(len(reported))
            again = team_of(tmp_path / str(moment), **options)
            again.run_fold()
            finished = again.settle()
            assert again.reported(msg.FoldStarted)[0].epoch == len(reported)
            assert finished.n_epochs == expected.n_epochs
            if synchronous:
                assert finished.metrics == expected.metrics
        moment += 4
    assert epochs == {0, 1, 2, 3}


def test_a_stop_that_comes_too_late_is_ignored(tmp_path):
    team = team_of(tmp_path)
    number = team.run_fold()
    finished = team.settle()
    team.order(msg.StopFold(assignment=number))
    assert team.settle() is finished
    assert ends_of(team) == [finished]


def test_the_checkpoints_of_a_stopped_fold_go_when_its_end_is_recorded(tmp_path):
    team = team_of(tmp_path, epochs=9)
    number = team.run_fold()
    while not team.reported(msg.EpochReported):
        team.step()
    team.order(msg.StopFold(assignment=number))
    team.settle()
    assert checkpoints_in(tmp_path)
    team.order(msg.FoldRecorded(assignment=number))
    team.settle()
    assert not checkpoints_in(tmp_path)


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


def test_workers_whose_models_differ_fail_the_trial(tmp_path):
    network = LoopbackNetwork(3)
    orders = LoopbackNetwork(2)
    master = Master(
        MasterSetup(
            orders=orders.end(1),
            endpoints=WorkerEndpoints(network.end(0)),
            directory=tmp_path,
            options=TrainingOptions(),
            clock=ManualClock(),
        )
    )
    master.handle_order(msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={}))
    ready = {"assignment": 0, "n_state": 0, "n_train": 8, "n_shard": 4, "has_validation": False}
    master.handle(Received(1, msg.WorkerReady(n_weights=10, **ready), np.zeros(10, np.float32)))
    master.handle(Received(2, msg.WorkerReady(n_weights=12, **ready), None))
    failed = orders.end(0).poll().message
    assert isinstance(failed, msg.FoldFailed)
    assert "the same model" in failed.reason
