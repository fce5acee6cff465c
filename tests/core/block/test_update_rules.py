"""What a team does under each update rule, against serial recurrences written down here."""

import numpy as np
import pytest

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.update_rules.easgd import ElasticMomentum
from nnlo_opt.core.update_rules.gem import Gem
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from tests.helpers.effort import some_of
from tests.helpers.linear_serial import EPOCHS, N_FEATURES, N_TRAIN, RATE, SIZES, Serial
from tests.helpers.linear_teams import central_of, finish, options_of, team_of, trained, tree_of, val_losses

pytestmark = [pytest.mark.usefixtures("exchange"), pytest.mark.many]

N_WEIGHTS, N_BATCHES = N_FEATURES + 1, len(SIZES)
#: learning rates in the course of a training
schedules = pytest.mark.parametrize("schedule", [{}, {"warmup_epochs": 0.5, "lr_schedule": "cosine"}], ids=str)


# ---------------------------------------------------------------- downpour that overlaps


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_worker_that_overlaps_is_sgd_with_gradients_one_step_old(tmp_path, optimizer):
    options = options_of(optimizer=optimizer, exchange="messages")
    serial = Serial(options)
    rule = make_optimizer(optimizer, N_WEIGHTS, RATE)
    central = serial.initial.copy()
    for _ in range(EPOCHS):
        before = central.copy()
        gradients = [serial.gradient_at(central)[1]]
        for _ in range(N_BATCHES - 1):
            # The next batch is computed at the weights that the last but one update has made.
            gradients.append(serial.gradient_at(before)[1])
            rule.apply(central, gradients.pop(0))
            before = central.copy()
        rule.apply(central, gradients.pop(0))
    team = trained(tmp_path, options, apart=True)
    assert np.array_equal(central_of(team), central)
    pushes = [d.message for d in team.delivered(msg.PushUpdate)]
    # Nothing of the next pass is computed before the fence.
    assert [push.base_version for push in pushes[:N_BATCHES]] == [0, *range(N_BATCHES - 1)]
    assert sum(push.n_samples for push in pushes) == EPOCHS * N_TRAIN


def test_a_team_in_one_process_does_not_overlap(tmp_path):
    team = trained(tmp_path, options_of(exchange="messages"))
    assert {d.message.overlap for d in team.delivered(msg.StartFold)} == {False}
    assert [d.message.base_version for d in team.delivered(msg.PushUpdate)] == list(range(EPOCHS * N_BATCHES))


# ---------------------------------------------------------------- elastic averaging


@schedules
@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("sync_every", [1, 2, 7])
@pytest.mark.parametrize(("momentum", "optimizer"), [(0.0, "sgd"), (0.0, "adam"), (0.9, "sgd")])
def test_one_elastic_worker_is_the_papers_recurrence(tmp_path, schedule, synchronous, sync_every, momentum, optimizer):
    changes = {"elastic_momentum": momentum, "elastic_lr": 0.02, "elastic_force": 0.6, "optimizer": optimizer}
    options = options_of(mode="easgd", sync_every=sync_every, synchronous=synchronous, **changes, **schedule)
    serial = Serial(options)
    central, local = serial.initial.copy(), serial.initial.copy()
    steps = ElasticMomentum(N_WEIGHTS, 0.02, momentum) if momentum else make_optimizer(optimizer, N_WEIGHTS, 0.02)
    ahead = np.empty_like(local)
    for _ in range(EPOCHS):
        for batch in range(1, N_BATCHES + 1):
            _, gradient = serial.gradient_at(steps.look_ahead(local, ahead) if momentum else local)
            steps.learning_rate = 0.02 * serial.factor
            steps.apply(local, gradient)
            if batch % sync_every == 0 or batch == N_BATCHES:
                difference = np.float32(0.6) * (local - central)
                central += difference
                local -= difference
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), central, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("synchronous", [False, True])
def test_an_exchange_keeps_the_sum_of_all_weights(tmp_path, synchronous):
    """Workers whose gradients are zero: only the force moves them, and it conserves local + central."""
    options = options_of(mode="easgd", synchronous=synchronous, elastic_lr=1e-30, epochs=1)
    team = trained(tmp_path, options, 3, seed=1, apart=True)
    (initial,) = [d.payload for d in team.delivered(msg.WorkerReady) if d.payload is not None]
    np.testing.assert_allclose(central_of(team), initial[:N_WEIGHTS], rtol=1e-6)


def test_workers_keep_their_weights_over_a_validation(tmp_path, exchange):
    team = trained(tmp_path, options_of(mode="easgd", elastic_force=0.1))
    adopted = [d.message.adopt for d in team.delivered(msg.Train)]
    assert adopted[0] == "weights"
    assert set(adopted[1:]) == ({"difference", "nothing"} if exchange == "messages" else {"nothing"})


# ---------------------------------------------------------------- gradient energy matching


@schedules
@pytest.mark.parametrize("sync_every", [1, 3])
def test_one_matched_worker_is_the_papers_recurrence(tmp_path, schedule, sync_every):
    changes = {"gem_lr": 0.02, "gem_momentum": 0.8, "gem_kappa": 1.5}
    options = options_of(mode="gem", sync_every=sync_every, **changes, **schedule)
    serial = Serial(options)
    central, gem = serial.initial.copy(), Gem(N_WEIGHTS, 0.02, 0.8, 1.5)
    for _ in range(EPOCHS):
        for first in range(0, N_BATCHES, sync_every):
            gem.adopt(central)
            local, parts, n_before = central.copy(), [], serial.n_samples
            for _ in SIZES[first : first + sync_every]:
                parts.append(serial.gradient_at(local))
                gem.learning_rate = 0.02 * serial.factor
                local -= np.float32(gem.learning_rate) * parts[-1][1]
            weighted = sum(size * gradient for size, gradient in parts)
            update = (len(parts) * weighted / (serial.n_samples - n_before)).astype(np.float32)
            gem.update(update, out=update)
            central += update
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), central, rtol=2e-5, atol=2e-6)


# ---------------------------------------------------------------- downpour with the momentum that staleness leaves


@pytest.mark.parametrize("workers", [1, 3])
def test_the_optimizer_has_the_momentum_that_the_staleness_so_far_leaves(tmp_path, workers):
    asked = {"optimizer_params": {"momentum": 0.9}, "exchange": "messages"}
    options = options_of(**asked, momentum_correction=True)
    team = trained(tmp_path, options, workers, seed=0, apart=True)
    serial, rule = Serial(options), make_optimizer("sgd", N_WEIGHTS, RATE, options.optimizer_params)
    central, total = serial.initial.copy(), 0
    for version, push in enumerate(team.delivered(msg.PushUpdate)):
        total += version - push.message.base_version
        rule.values["momentum"] = 1 - 0.1 * (1 + total / (version + 1))
        rule.apply(central, push.payload)
    np.testing.assert_allclose(central_of(team), central, rtol=1e-6, atol=1e-7)
    assert total > 0


# ---------------------------------------------------------------- allreduce


def test_a_stop_in_the_middle_of_an_allreduce_epoch_ends_it(tmp_path):
    team = team_of(tmp_path, options_of(mode="allreduce"))
    number = team.run_fold()
    while not team.delivered(msg.Train):
        team.step()
    team.order(msg.StopFold(assignment=number))
    assert team.settle() == msg.FoldStopped(assignment=number)
    assert not team.reported(msg.EpochReported)
    finish(team, trial=1)


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("workers", some_of([tree_of(5, 3), 2, 1, 4], 2), ids=["a tree", "2", "1", "4"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"synchronous": True},
        {"mode": "easgd"},
        {"mode": "easgd", "synchronous": True},
        {"mode": "easgd", "elastic_momentum": 0.9, "elastic_lr": 0.02},
        {"mode": "gem"},
        {"staleness": "scale"},
        {"staleness": "drop:1"},
        {"sync_every": 3, "worker_optimizer": "adam"},
    ],
    ids=str,
)
def test_every_rule_learns(tmp_path, workers, changes):
    options = options_of(epochs=20, learning_rate=0.1, **changes)
    losses = val_losses(trained(tmp_path, options, workers, seed=0, apart=not options.waits))
    assert losses[-1] < 0.2 * losses[0]
