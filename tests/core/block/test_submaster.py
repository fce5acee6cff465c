"""Trees of masters, against flat teams and against recurrences written down here."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from nnlo_opt.core.block.master.submaster_state import GroupState
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.trials.checkpoint import load_weights
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.core.update_rules.gem import Gem
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from tests.helpers import linear_serial, linear_teams
from tests.helpers.linear_serial import BATCH, EPOCHS, N_FEATURES, RATE, data_of
from tests.helpers.linear_teams import central_of, fail, finish, history_of, options_of, place_of, tree_of
from tests.helpers.loopback_team import FAULTS, LoneTeam, linear_tasks

pytestmark = pytest.mark.many

N_TRAIN, N_VALIDATION, N_WEIGHTS = 61, 13, N_FEATURES + 1
DATA = data_of(N_TRAIN, N_VALIDATION)
team_of, trained, Serial = (
    partial(made, data=DATA) for made in (linear_teams.team_of, linear_teams.trained, linear_serial.Serial)
)
#: (workers, masters)
TREES = [(1, 2), (2, 3), (3, 2), (5, 3), (7, 4)]


def above(team, kind):
    """What was handed over of one kind between the top master and its sub-masters."""
    return [d for d in team.delivered(kind) if d.group == 0]


# ---------------------------------------------------------------- synchronous downpour: what one master does


@pytest.mark.parametrize(("n_workers", "n_masters"), TREES)
@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "adam"}, {"sync_every": 3}, {"sync_every": 3, "lr_schedule": "cosine", "warmup_epochs": 1.5}],
    ids=str,
)
def test_a_synchronous_tree_trains_as_one_master_does(tmp_path, n_workers, n_masters, changes):
    options = options_of(synchronous=True, **changes)
    flat = trained(tmp_path / "flat", options, n_workers)
    tree = trained(tmp_path / "tree", options, tree_of(n_workers, n_masters), seed=n_workers)
    np.testing.assert_allclose(central_of(tree), central_of(flat), rtol=2e-5, atol=2e-6)
    of_flat, of_tree = history_of(flat), history_of(tree)
    for name, values in of_flat.pop("epochs")[-1].items():
        assert of_tree["epochs"][-1][name] == pytest.approx(values, rel=1e-4)
    # Each worker has its own figures, and the rounds are the same.
    assert of_tree["workers"].keys() == of_flat["workers"].keys() == {str(n) for n in range(1, n_workers + 1)}
    assert of_tree["n_workers"] == n_workers
    # Every update met the version that it was made from; the top master got one of each group in a round.
    pushes = above(tree, msg.PushUpdate)
    assert of_tree["staleness"] == {"0": len(pushes)}
    assert len(pushes) <= sum(of_flat["staleness"].values())
    assert sum(push.message.n_samples for push in pushes) == EPOCHS * N_TRAIN


def test_float_model_state_is_averaged_over_workers_not_over_groups(tmp_path):
    """Groups of 2 and 3: their means count by their workers."""
    options = options_of(synchronous=True, learning_rate=1e-12, epochs=1)
    states = [load_weights(place_of(trained(tmp_path / str(m), options, tree_of(5, m))))[1] for m in (1, 3)]
    assert len(states[0])
    np.testing.assert_allclose(states[1], states[0], rtol=1e-6)


# ---------------------------------------------------------------- asynchronous: groups in step, each at its own pace


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_group_is_sgd_on_the_mean_over_the_samples_of_its_workers(tmp_path, optimizer):
    options = options_of(optimizer=optimizer, epochs=1)
    workers = [Serial(options, worker, 3) for worker in (1, 2, 3)]
    central, rule = workers[0].initial.copy(), make_optimizer(optimizer, N_WEIGHTS, RATE)
    n_samples = n_updates = 0
    while n_samples < N_TRAIN:
        parts = [worker.gradient_at(central) for worker in workers]
        total = sum(n for n, _ in parts)
        rule.apply(central, (sum(n * gradient for n, gradient in parts) / total).astype(np.float32))
        n_samples += total
        n_updates += 1
    team = trained(tmp_path, options, tree_of(3, 2))
    np.testing.assert_allclose(central_of(team), central, rtol=1e-5, atol=1e-6)
    pushes = [d.message for d in above(team, msg.PushUpdate)]
    assert [push.base_version for push in pushes] == list(range(n_updates))
    assert sum(push.n_samples for push in pushes) == n_samples


def test_an_update_of_a_group_is_as_old_as_its_oldest_part():
    group = GroupState(range(1, 3), synchronous=False)
    for worker in (1, 2):
        ready = {"n_weights": 1, "n_state": 0, "n_train": 20, "n_shard": 10, "has_validation": False}
        group.hear(worker, msg.WorkerReady(assignment=0, **ready))
    group.order(msg.Train(assignment=0, version=5))
    for worker, version in ((1, 5), (2, 3)):
        push = {"n_samples": 4, "sums": {}, "end_of_pass": False}
        done = group.hear(worker, msg.PushUpdate(assignment=0, base_version=version, **push))
    assert done[-1].message.base_version == 3


def test_groups_go_at_their_own_pace_and_their_updates_are_as_old_as_they_say(tmp_path):
    team = trained(tmp_path, options_of(epochs=6), tree_of(5, 3), seed=5, apart=True)
    pushes = above(team, msg.PushUpdate)
    expected = Counter(version - push.message.base_version for version, push in enumerate(pushes))
    assert history_of(team)["staleness"] == {str(staleness): n for staleness, n in sorted(expected.items())}
    assert len(expected) > 1
    # Both groups push, of all their workers, and every sample pushed below arrives above.
    assert {push.source for push in pushes} == {1, 2}
    below = sum(d.message.n_samples for d in team.delivered(msg.PushUpdate) if d.group)
    assert sum(push.message.n_samples for push in pushes) == below >= 6 * N_TRAIN


@pytest.mark.parametrize("mode", ["downpour", "easgd", "gem"])
@pytest.mark.parametrize("sync_every", [1, 3])
@pytest.mark.parametrize(("n_workers", "n_masters"), [(1, 1), (2, 1), (3, 1), *TREES])
@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.proof)])
def test_flat_teams_and_trees_train_all_epochs_in_any_order_of_events(
    tmp_path, mode, sync_every, n_workers, n_masters, apart
):
    options = options_of(mode=mode, sync_every=sync_every)
    for seed in range(3):
        plan = tree_of(n_workers, n_masters)
        team = trained(tmp_path / str(seed), options, plan, seed, apart=apart)
        pushed = sum(d.message.n_samples for d in above(team, msg.PushUpdate))
        left = sum(d.message.n_samples for d in above(team, msg.FenceReached))
        # Too many are at most what was on its way when the last epoch was full, and a batch computed ahead.
        assert EPOCHS * N_TRAIN <= pushed + left <= EPOCHS * N_TRAIN + n_workers * (sync_every + 1) * BATCH
        assert [r.epoch for r in team.reported(msg.EpochReported)] == list(range(1, EPOCHS + 1))
        counted = history_of(team)
        assert counted["n_workers"] == n_workers
        assert sum(counted["staleness"].values()) == len(above(team, msg.PushUpdate))


# ---------------------------------------------------------------- elastic averaging in a tree


@pytest.mark.parametrize("synchronous", [False, True])
def test_an_elastic_tree_is_the_recurrence_of_its_centres(tmp_path, synchronous):
    """One group of two workers, exactly: the workers pull on its centre, then it pulls on the central weights."""
    options = options_of(mode="easgd", elastic_force=0.6, synchronous=synchronous, batch=61, epochs=4)
    workers = [Serial(options, worker, 2) for worker in (1, 2)]
    central = workers[0].initial.copy()
    centre, local = central.copy(), np.array([central, central])
    for _ in range(4):
        local -= np.float32(RATE) * np.array([w.gradient_at(x)[1] for w, x in zip(workers, local, strict=True)])
        differences = np.float32(0.3) * (local - centre)
        local -= differences
        centre += differences.sum(axis=0)
        difference = np.float32(0.6) * (centre - central)
        central += difference
        centre -= difference
    np.testing.assert_allclose(central_of(trained(tmp_path, options, tree_of(2, 2))), central, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("synchronous", [False, True])
def test_weights_that_agree_stay_where_they_are(tmp_path, synchronous):
    """Workers whose gradients are zero: no centre moves, however the exchanges fall."""
    options = options_of(mode="easgd", synchronous=synchronous, elastic_lr=1e-30, elastic_force=0.4)
    team = trained(tmp_path, options, tree_of(5, 3), seed=1, apart=True)
    (initial,) = [d.payload for d in above(team, msg.WorkerReady) if d.payload is not None]
    np.testing.assert_array_equal(central_of(team), initial[:N_WEIGHTS])


def test_a_force_that_a_small_group_cannot_take_fails_the_trial_with_a_sentence(tmp_path):
    team = team_of(tmp_path, options_of(mode="easgd", elastic_force=1.5), tree_of(3, 3))
    assert "`--elastic-force`" in fail(team).reason


# ---------------------------------------------------------------- gradient energy matching


def test_a_matched_tree_adds_up_what_its_workers_match(tmp_path):
    options = options_of(mode="gem", gem_lr=0.02, gem_momentum=0.8, gem_kappa=1.5, batch=16, epochs=2)
    workers = [Serial(options, worker, 2) for worker in (1, 2)]
    rules = [Gem(N_WEIGHTS, 0.02, 0.8, 1.5) for _ in workers]
    central = workers[0].initial.copy()
    for _ in range(2):
        n_samples = 0
        while n_samples < N_TRAIN:
            updates = []
            for worker, gem in zip(workers, rules, strict=True):
                gem.adopt(central)
                n, gradient = worker.gradient_at(central)
                n_samples += n
                gem.update(gradient, out=gradient)
                updates.append(gradient)
            central += sum(updates)
    np.testing.assert_allclose(central_of(trained(tmp_path, options, tree_of(2, 2))), central, rtol=2e-5, atol=2e-6)


# ---------------------------------------------------------------- failures, stops, the next assignment


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("synchronous", [False, True])
def test_what_fails_below_a_sub_master_is_told_above_as_it_is(tmp_path, fault, synchronous):
    options, point = options_of(synchronous=synchronous), {"fault": fault, "at": 2}
    team = team_of(tmp_path, options, tree_of(5, 3))
    report, expected = (fail(one, 3, point) for one in (team, team_of(tmp_path / "flat", options, 5)))
    assert (report.reason, report.host) == (expected.reason, expected.host)
    if expected.world_rank >= 0:
        assert report.world_rank in team.plan.trainer_ranks
    # Everybody has let go of the trial, and takes the next.
    finish(team, 4, trial=1)


def test_a_worker_that_fails_alone_ends_its_trial_with_its_rank(tmp_path):
    team = team_of(tmp_path, options_of(), tree_of(5, 3))
    factory = team.factories[3]
    factory.build = lambda parameters, options, seed: 1 / 0
    report = fail(team, 0)
    assert report.world_rank == team.plan.trainer_ranks[3]
    assert "ZeroDivisionError" in report.traceback


@pytest.mark.parametrize("number", [3, 5])
@pytest.mark.parametrize("workers", [5, tree_of(5, 3)], ids=["flat", "tree"])
def test_another_model_is_refused_with_its_size(tmp_path, number, workers):
    options, other = options_of(), data_of(N_TRAIN, N_VALIDATION, N_FEATURES + 1)
    factories = iter([linear_tasks(*(other if worker == number else DATA), options)() for worker in range(1, 6)])
    report = fail(LoneTeam(tmp_path, options, lambda: next(factories), workers))
    assert "the same model on every worker" in report.reason
    assert f"{N_FEATURES + 2}, " in report.reason


@pytest.mark.parametrize("moment", range(2, 200, 9))
def test_a_stop_at_any_moment_ends_it_and_the_next_begins(tmp_path, moment):
    rng = np.random.default_rng(moment)
    team = team_of(tmp_path, options_of(mode="easgd"), tree_of(5, 3), apart=True)
    number = team.run_fold()
    team.steps(moment, rng)
    team.order(msg.StopFold(assignment=number))
    assert team.settle(rng) == msg.FoldStopped(assignment=number)
    finish(team, moment, trial=1)


@pytest.mark.parametrize(
    "changes", [{"early_stopping": "val_loss,<,2", "learning_rate": 0.9}, {"target_metric": "val_loss,<,0.5"}], ids=str
)
def test_early_stopping_and_a_target_end_a_tree_too(tmp_path, changes):
    team = trained(tmp_path, options_of(epochs=50, **changes), tree_of(5, 3))
    assert len(team.reported(msg.EpochReported)) < 50


def test_the_users_figure_of_merit_is_asked_of_worker_1(tmp_path, monkeypatch):
    monkeypatch.setattr(LoneTeam, "figure", staticmethod(lambda fold, task: 0.25 * fold["epoch"]))
    team = team_of(tmp_path, options_of(), tree_of(5, 3), comparison=Comparison(function="figure.py:of"))
    assert finish(team, 0).figure_of_merit == 0.25 * EPOCHS
    assert [(d.group, d.dest) for d in team.delivered(msg.Judge)] == [(0, 1), (1, 1)]
