import asyncio

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.block.master import instructions as ins
from nnlo_opt.core.block.master.state import FoldPlan, MasterState, Phase
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.models.adapter import CallbackRequests
from nnlo_opt.core.training.options import TrainingOptions
from tests.helpers import linear_teams
from tests.helpers.linear_teams import central_of, fail, finish, history_of, options_of, place_of


class Recorder:
    """Notes what it is called with; `wish` says what it answers."""

    def __init__(self, wish=lambda call: {}):
        self.calls = []
        self._wish = wish

    def call(self, adapter, epoch, metrics, learning_rate, *, is_last, state=None):
        weights = np.empty(adapter.n_weights, np.float32)
        adapter.read_weights(weights)
        self.calls.append((epoch, metrics and sorted(metrics), learning_rate, is_last))
        wish = self._wish(self)
        if wish.get("has_changed"):
            adapter.write_weights(np.zeros_like(weights))
        return CallbackRequests(**{"learning_rate": learning_rate, **wish})


def team_of(directory, recorder, n_workers=2, how=None, **changes):
    how = {"make_callbacks": recorder and (lambda task: recorder), **(how or {})}
    return linear_teams.team_of(directory, options_of(**changes), n_workers, **how)


def rates_applied(team):
    """Rate factors as the workers were told, epoch by epoch."""
    trains = [d.message for d in team.delivered(msg.Train, dest=1)]
    return [train.rate_factor for train in trains if train.rate_factor is not None]


# ---------------------------------------------------------------- the whole way round


@pytest.mark.parametrize("changes", [{}, {"synchronous": True}, {"mode": "easgd", "sync_every": 2}, {"mode": "gem"}])
def test_callbacks_run_before_the_first_epoch_and_after_each(tmp_path, changes):
    recorder = Recorder()
    team = team_of(tmp_path, recorder, **changes)
    finish(team)
    figures = ["loss", "val_loss"]
    expected = [(0, None, False), (1, figures, False), (2, figures, False), (3, figures, True)]
    assert [(epoch, names, last) for epoch, names, _, last in recorder.calls] == expected
    assert rates_applied(team) == [1.0, 1.0, 1.0]


def test_callbacks_that_change_nothing_leave_a_training_as_it_is(tmp_path):
    weights = []
    for name, recorder in (("a", None), ("b", Recorder())):
        team = team_of(tmp_path / name, recorder, synchronous=True)
        finish(team)
        weights.append(central_of(team))
    assert np.array_equal(*weights)


def test_without_callbacks_nothing_is_called(tmp_path):
    team = team_of(tmp_path, None)
    finish(team)
    assert not team.delivered(msg.CallBack)


@pytest.mark.parametrize("changes", [{}, {"mode": "easgd"}, {"sync_every": 3}, {"lr_schedule": "linear"}])
def test_a_learning_rate_is_taken_by_the_optimizer_wherever_it_is(tmp_path, changes):
    # So small a rate moves nothing.
    recorder = Recorder(lambda self: {"learning_rate": 1e-12} if len(self.calls) == 2 else {})
    team = team_of(tmp_path, recorder, synchronous=True, **changes)
    finish(team)
    base = recorder.calls[0][2]
    assert [rate for _, _, rate, _ in recorder.calls] == pytest.approx([base, base, 1e-12, 1e-12])
    shown = [d.payload for d in team.delivered(msg.CallBack)]
    assert not np.allclose(shown[0], shown[1])
    # EASGD's elastic force still draws the central weights to the workers'.
    if changes.get("mode") != "easgd":
        assert np.allclose(shown[1][:-1], shown[3][:-1], atol=1e-6)


def test_a_callback_ends_the_training(tmp_path):
    team = team_of(tmp_path, Recorder(lambda self: {"stop": len(self.calls) == 3}), epochs=10)
    finished = finish(team)
    assert (finished.n_epochs, finished.reason) == (2, "a callback has stopped the training")


def test_weights_that_a_callback_has_set_are_the_central_ones(tmp_path):
    team = team_of(tmp_path, Recorder(lambda self: {"has_changed": len(self.calls) == 4}))
    finish(team)
    assert not central_of(team).any()


def test_the_learning_rate_survives_a_checkpoint(tmp_path):
    first = team_of(tmp_path, Recorder(lambda self: {"learning_rate": 0.01}), how={"is_one_training": True}, epochs=2)
    finish(first)
    recorder = Recorder()
    second = team_of(tmp_path, recorder, epochs=4)
    finished = finish(second)
    assert finished.n_epochs == 4
    assert [(epoch, metrics is None) for epoch, metrics, _, _ in recorder.calls] == [(2, True), (3, False), (4, False)]
    assert [rate for _, _, rate, _ in recorder.calls] == pytest.approx([0.01] * 3)


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, GeneratorExit, SystemExit])
def test_an_error_in_a_callback_fails_the_fold(tmp_path, kind):
    def raises(recorder):
        raise kind("no such folder")

    team = team_of(tmp_path, Recorder(raises))
    failed = fail(team)
    assert failed.reason.startswith(f"{kind.__name__}: no such folder (`")


def test_an_interruption_in_a_callback_is_raised(tmp_path):
    def raises(recorder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail(team_of(tmp_path, Recorder(raises)))


def test_a_master_that_writes_no_checkpoints_leaves_weights_and_history_alone(tmp_path):
    team = team_of(tmp_path, Recorder(), how={"writes_checkpoints": False, "is_one_training": True})
    finish(team)
    assert sorted(path.name for path in place_of(team).iterdir()) == ["history.json", "weights.npz"]
    assert len(history_of(team)["epochs"]) == 3


# ---------------------------------------------------------------- their own state


class Halving(Recorder):
    """Halves the rate after every second epoch, and stops after `patience`; it knows of them by its state alone."""

    def __init__(self, patience=99):
        super().__init__()
        self.patience, self.n_stale, self.best = patience, 0, np.inf

    def call(self, adapter, epoch, metrics, learning_rate, *, is_last, state=None):
        self.calls.append((epoch, metrics is None, learning_rate, state is not None))
        if state is not None:
            self.n_stale, self.best = np.frombuffer(state.tobytes()[:-1])
        rate = learning_rate
        if metrics is not None:
            self.n_stale, self.best = self.n_stale + 1, min(self.best, metrics["val_loss"])
            rate = rate / 2 if self.n_stale % 2 == 0 else rate
        own = np.frombuffer(np.array([self.n_stale, self.best]).tobytes() + b"?", np.uint8)  # no whole numbers
        stop = bool(self.n_stale >= self.patience)
        return CallbackRequests(learning_rate=rate, stop=stop, has_changed=epoch == 2, state=own)


def result_of(team):
    return central_of(team).tobytes(), history_of(team)


CASES = [
    (2, {"synchronous": True}),
    (1, {"mode": "gem", "gem_lr": 0.05}),
    (2, {"mode": "easgd", "sync_every": 2, "synchronous": True}),
    (1, {"mode": "allreduce"}),
    (linear_teams.tree_of(3, 2), {"synchronous": True}),
]


@pytest.mark.parametrize(("workers", "changes"), CASES)
def test_interrupted_after_every_epoch_a_training_ends_as_if_it_were_not(tmp_path, workers, changes):
    changes = {"epochs": 6, "learning_rate": 0.05, **changes}
    whole = team_of(tmp_path / "whole", Halving(patience=5), workers, **changes)
    assert finish(whole).n_epochs == 5
    rates, n_epochs = [], 0
    while not rates or n_epochs < 5:
        recorder = Halving(patience=5)
        team = team_of(tmp_path / "parts", recorder, workers, **changes)
        team.run_fold()
        while not team.reported(msg.EpochReported):
            assert team.step()
        n_epochs += 1
        assert [(epoch, begins, knows) for epoch, begins, _, knows in recorder.calls] == [
            (n_epochs - 1, True, n_epochs > 1),
            (n_epochs, False, False),
        ]
        rates.append(recorder.calls[-1][2])
    assert rates == pytest.approx([0.05, 0.05, 0.025, 0.025, 0.0125])
    again = team_of(tmp_path / "parts", Halving(patience=5), workers, **changes)
    assert finish(again).reason == "a callback has stopped the training"
    assert not again.delivered(msg.PushUpdate), "it had ended"
    assert result_of(again) == result_of(whole)


def test_a_preempted_training_keeps_their_state(tmp_path):
    """Within an epoch, by its checkpoint of that moment."""
    whole = team_of(tmp_path / "whole", Halving(), 2, epochs=4, synchronous=True)
    finish(whole)
    team = team_of(tmp_path / "parts", Halving(), 2, epochs=4, synchronous=True)
    number = linear_teams.step_to_an_epoch(team)
    team.steps(9)
    team.order(msg.PreemptFold(assignment=number))
    assert isinstance(team.settle(), msg.FoldStopped)
    recorder = Halving()
    again = team_of(tmp_path / "parts", recorder, 2, epochs=4, synchronous=True)
    finish(again)
    assert recorder.calls[0] == (1, True, 0.05, True)
    assert result_of(again) == result_of(whole)


@pytest.mark.parametrize("n_steps", [0, 11, 25, 40])
def test_workers_that_replace_dead_ones_go_on_with_it(tmp_path, n_steps):
    """Worker 1 may be another rank than before, and the master has the state."""
    recorders = []
    make = lambda task: recorders.append(Halving()) or recorders[-1]  # noqa: E731
    team = linear_teams.team_of(tmp_path, options_of(epochs=4), 3, make_callbacks=make)
    number = linear_teams.step_to_an_epoch(team)
    team.steps(n_steps)
    if team.regroup(2) == number:
        assert isinstance(team.settle(), msg.FoldFinished)
        first, second = recorders[0].calls, recorders[-1].calls
        assert second[0][1:] == (True, first[-1][2] / (2 if first[-1][0] == 2 else 1), True)
        assert recorders[-1].n_stale == 4


def test_they_begin_before_a_training_that_waits_for_a_decision_goes_on(tmp_path):
    recorder = Halving()
    order = msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={}, waits_for_decision=True)
    for n_epochs in (1, 2):
        recorder = Halving()
        team = team_of(tmp_path, recorder, epochs=4, synchronous=True)
        team.order(order)
        team.settle()
        if n_epochs == 2:
            assert not recorder.calls
            team.order(msg.GoOn(assignment=0))
            team.settle()
    assert [call[:2] for call in recorder.calls] == [(1, True), (2, False)]
    assert recorder.n_stale == 2
    assert isinstance(team.reports[-1], msg.EpochReported)


# ---------------------------------------------------------------- the decisions


def state_at_the_end_of_an_epoch(epochs=2):
    order = msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={})
    state = MasterState(FoldPlan(order=order, n_workers=1, options=TrainingOptions(epochs=epochs)))
    ready = msg.WorkerReady(
        assignment=0, n_weights=1, n_state=0, n_train=4, n_shard=4, has_validation=False, calls_back=True
    )
    assert state.handle(1, ready)[-1] == ins.SendCallBack(epoch=0, metrics=None, is_last=False)
    out = state.handle(1, msg.CalledBack(assignment=0, rate_factor=1.0))
    assert [type(i) for i in out] == [ins.TakeRequests, ins.SendWeights]
    push = msg.PushUpdate(assignment=0, base_version=0, n_samples=4, sums={"loss": 4.0}, end_of_pass=True)
    state.handle(1, push)
    return state, state.handle(1, msg.FenceReached(assignment=0, position={}))


def test_the_epoch_is_reported_when_the_callbacks_have_answered():
    state, out = state_at_the_end_of_an_epoch()
    assert out[-1] == ins.SendCallBack(epoch=1, metrics={"loss": 1.0}, is_last=False)
    assert state.phase is Phase.CALLING_BACK
    out = state.handle(1, msg.CalledBack(assignment=0, rate_factor=0.5))
    assert [type(i) for i in out] == [ins.TakeRequests, ins.ReportEpoch, ins.SendWeights]


def test_callbacks_learn_which_epoch_is_the_last():
    _, out = state_at_the_end_of_an_epoch(epochs=1)
    assert out[-1].is_last


def test_nothing_else_is_taken_meanwhile_and_stopping_ends_it():
    state, _ = state_at_the_end_of_an_epoch()
    with pytest.raises(ProtocolError, match="CALLING_BACK"):
        state.handle(1, msg.Validated(assignment=0, n_samples=1, sums={}))
    assert state.stop() == [ins.End(message=msg.FoldStopped(assignment=0))]


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 0.001),
        ({"optimizer": "sgd"}, 0.01),
        ({"learning_rate": 0.2}, 0.2),
        ({"mode": "easgd", "elastic_lr": 0.3}, 0.3),
        ({"mode": "gem", "gem_lr": 0.4}, 0.4),
    ],
)
def test_the_base_learning_rate(changes, rate):
    options = TrainingOptions.of(changes)
    assert options.rule.base_learning_rate(options) == rate
