"""Workers that move the central weights themselves, in memory they share with their master."""

import numpy as np
import pytest

from nnlo_opt.core.block.exchange.shared_weights import SharedWeights
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.training.schedules import LearningRates, LearningRateSchedule
from nnlo_opt.core.update_rules.downpour import Downpour
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.core.update_rules.staleness import StalenessPolicy, StalenessStatistics, explicit_momentum
from nnlo_opt.core.update_rules.vectors import BLOCK
from tests.helpers import linear_teams
from tests.helpers.linear_serial import EPOCHS, N_TRAIN
from tests.helpers.linear_teams import central_of, history_of, options_of, team_of
from tests.helpers.loopback_team import LoopbackTeam

pytestmark = pytest.mark.many


def trained(directory, n_workers=1, seed=None, *, shares=True, apart=False, **changes):
    options = options_of(**{"optimizer": "adam", **changes})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopbackTeam, "shares", shares)
        return linear_teams.trained(directory, options, n_workers, seed, apart=apart)


def staleness_of(team):
    return history_of(team)["staleness"]


def batches_of(team):
    """Return the number of batches that the model of each worker has seen."""
    reached = team.delivered(msg.FenceReached)
    return {d.source: d.message.position["discrete"][0][0] for d in reached}


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam"},
        {"optimizer": "sgd", "optimizer_params": {"momentum": 0.9}, "lr_schedule": "cosine"},
        {"optimizer": "rmsprop", "sync_every": 3, "warmup_epochs": 1.5},
        {"mode": "easgd", "sync_every": 2},
        {"mode": "easgd", "elastic_momentum": 0.9, "elastic_lr": 0.02},
        {"mode": "gem", "sync_every": 3},
        {"mode": "gem", "lr_schedule": "step:1:0.5"},
    ],
    ids=str,
)
def test_one_worker_trains_to_the_same_bits_as_by_messages(tmp_path, changes):
    teams = [trained(tmp_path / str(shares), shares=shares, **changes) for shares in (True, False)]
    ours, theirs = (central_of(team) for team in teams)
    assert np.array_equal(ours, theirs)
    assert staleness_of(teams[0]) == staleness_of(teams[1])


@pytest.mark.parametrize("mode", ["downpour", "easgd", "gem"])
@pytest.mark.parametrize("n_workers", [2, 3])
@pytest.mark.parametrize("apart", [False, True])
def test_several_workers_train_all_epochs_in_any_order_of_events(tmp_path, mode, n_workers, apart):
    for seed in range(4):
        team = trained(tmp_path / str(seed), n_workers, seed, mode=mode, apart=apart)
        told = team.delivered(msg.PushUpdate)
        assert len(told) == EPOCHS * n_workers, "each worker tells once an epoch"
        assert all(d.payload is None for d in told)
        n_samples = sum(d.message.n_samples for d in told)
        # The updates under way when the last epoch was full are too many.
        assert EPOCHS * N_TRAIN <= n_samples <= EPOCHS * N_TRAIN + n_workers * 4
        assert sum(staleness_of(team).values()) == sum(batches_of(team).values())
        assert [r.epoch for r in team.reported(msg.EpochReported)] == list(range(1, EPOCHS + 1))
        assert np.isfinite(central_of(team)).all()


@pytest.mark.parametrize("mode", ["downpour", "easgd", "gem"])
def test_a_worker_ends_its_period_when_other_workers_have_trained_the_last_samples(tmp_path, mode, monkeypatch):
    monkeypatch.setattr(LoopbackTeam, "shares", True)
    team = team_of(tmp_path, options_of(epochs=1, mode=mode, sync_every=3), 2)
    team.run_fold()
    while not all(worker.can_work for worker in team.workers):
        assert team.step()
    fast, slow = team.workers
    slow.work()
    while fast.can_work:
        fast.work()
    slow.work()
    assert not slow.can_work
    team.settle()
    assert sorted(batches_of(team).values()) == [2, 8]


def test_old_updates_are_dropped(tmp_path):
    team = trained(tmp_path, 3, 1, staleness="drop:0")
    counts = staleness_of(team)
    assert counts["dropped"] == sum(n for name, n in counts.items() if name not in ("0", "dropped")) > 0


@pytest.mark.parametrize(
    "changes", [{"exchange": "messages"}, {"overlap": True}, {"synchronous": True}, {"shares": False}], ids=str
)
def test_updates_are_sent_where_that_is_asked_for_or_memory_is_not_shared(tmp_path, changes):
    team = trained(tmp_path, 2, **changes)
    assert all(d.payload is not None and not d.message.applied for d in team.delivered(msg.PushUpdate))


class TestExchange:
    """Two holders of the same weights, of several blocks."""

    N, N_STATE = 2 * BLOCK + 5, 3

    @pytest.fixture(params=[2, 30], ids="{} workers".format)
    def holders(self, request):
        return self.holders_of(request.param)

    def holders_of(self, n_workers=2, before=None, **of_worker):
        block = LoopbackNetwork(2, shares=True).end(0)
        central = np.linspace(-1, 1, self.N + self.N_STATE, dtype=np.float32)
        master = SharedWeights.of_master(block, self.half(), central, self.N, n_workers)
        master.begin(version=7, n_samples=100, full_at=112, staleness=before or StalenessStatistics())
        memory, sizes = block.join(0, master.place), (self.N, self.N_STATE)
        return master, SharedWeights(memory, self.half(), sizes, n_workers, **of_worker)

    def half(self):
        return Downpour().master_half(TrainingOptions(optimizer="adam", learning_rate=0.01), self.N, 2)

    def test_an_exchange_of_any_holder_is_a_step_of_the_optimizer(self, holders):
        rng = np.random.default_rng(0)
        expected, rule = holders[0].central[: self.N].copy(), make_optimizer("adam", self.N, 0.01)
        answer = np.empty(self.N, np.float32)
        for i in range(4):
            gradient = rng.normal(size=self.N).astype(np.float32)
            rule.apply(expected, gradient)
            done = holders[i % 2].exchange(gradient, answer, 4, base_version=7)
            assert np.array_equal(answer, expected)
            assert done == (8 + i, 104 + 4 * i, i >= 2)
        assert [holder.take_applied() for holder in holders] == [{"0": 1, "2": 1}, {"1": 1, "3": 1}]
        state = holders[0].settle().state()
        assert state["n_steps"] == 4
        assert np.array_equal(state["velocity"], rule.state()["velocity"])
        assert np.array_equal(holders[1].central[self.N :], np.linspace(-1, 1, self.N + 3, dtype=np.float32)[self.N :])

    def test_takes_the_momentum_that_the_staleness_so_far_has_left(self):
        options = {"optimizer": "sgd", "learning_rate": 0.01, "optimizer_params": {"momentum": 0.9}}
        self.half = lambda: Downpour().master_half(TrainingOptions(**options, momentum_correction=True), self.N, 2)
        holders, rng = self.holders_of(before=StalenessStatistics({2: 2})), np.random.default_rng(0)
        expected, rule = holders[0].central[: self.N].copy(), make_optimizer("sgd", self.N, 0.01, {"momentum": 0.9})
        answer = np.empty(self.N, np.float32)
        for i, mean in enumerate((4 / 3, 5 / 4, 7 / 5)):
            gradient = rng.normal(size=self.N).astype(np.float32)
            rule.values["momentum"] = explicit_momentum(0.9, mean)
            rule.apply(expected, gradient)
            holders[i % 2].exchange(gradient, answer, 4, base_version=7)
            assert np.array_equal(answer, expected)

    @pytest.mark.parametrize("n_workers", [2, 30])
    def test_counts_an_update_by_its_staleness(self, n_workers):
        master, worker = self.holders_of(n_workers, policy=StalenessPolicy.parse("drop:1"))
        before, answer = master.central.copy(), np.empty(self.N, np.float32)
        done = worker.exchange(np.ones(self.N, np.float32), answer, 4, base_version=5)
        assert (done.version, done.n_samples) == (7, 104)
        assert worker.take_applied() == {"2": 1, "dropped": 1}
        assert not worker.take_applied()
        assert np.array_equal(master.central, before)
        assert np.array_equal(answer, before[: self.N])

    @pytest.mark.parametrize("n_workers", [2, 30])
    def test_takes_the_learning_rate_of_its_moment(self, n_workers):
        rates = LearningRates(LearningRateSchedule.parse("linear"), n_train=200, epochs=1)
        asked, factor = [], rates.factor
        rates.factor = lambda before, after: asked.append((before, after)) or factor(before, after)
        _, worker = self.holders_of(n_workers, policy=StalenessPolicy.parse("drop:0"), rates=rates)
        for base_version in (7, 6, 8):  # the second is dropped
            worker.exchange(np.ones(self.N, np.float32), np.empty(self.N, np.float32), 4, base_version)
        assert asked == [(100, 104), (104, 112)]

    def test_is_the_last_when_the_master_calls_back(self, holders):
        master, worker = holders
        master.recall()
        assert not worker.is_trained
        assert worker.exchange(np.ones(self.N, np.float32), np.empty(self.N, np.float32), 1, 7).is_full

    def test_ends_the_training_when_it_has_the_last_samples(self, holders):
        for _ in range(3):
            assert not any(holder.is_trained for holder in holders)
            done = holders[1].exchange(np.ones(self.N, np.float32), np.empty(self.N, np.float32), 4, 7)
        assert done.is_full
        assert all(holder.is_trained for holder in holders)

    def test_a_training_continues_under_another_rule(self, holders):
        master, _ = holders
        answer = np.empty(self.N, np.float32)
        master.exchange(np.ones(self.N, np.float32), answer, 1, 7)
        rule = self.half()
        rule.load_state(master.settle().state())
        block = LoopbackNetwork(2, shares=True).end(0)
        again = SharedWeights.of_master(block, rule, master.central, self.N, 1)
        assert np.array_equal(again.central[: self.N], answer)
        assert again.settle().state()["n_steps"] == 1
        assert np.array_equal(again.settle().state()["momentum"], master.settle().state()["momentum"])


def test_memory_that_its_master_has_let_go_of_cannot_be_joined():
    network = LoopbackNetwork(2, shares=True)
    place = network.end(0).share(64).place
    with pytest.raises(OSError, match="released"):
        network.end(1).join(0, place)
