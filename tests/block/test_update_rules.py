"""What a team does under each update rule, against serial recurrences written down here."""

import numpy as np
import pytest

from nnlo_opt.comm import messages as msg
from nnlo_opt.data.folds import single_fold
from nnlo_opt.testing.loopback_team import LoneTeam, linear_tasks
from nnlo_opt.testing.memory_source import linear_source
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.checkpoint import fold_directory, load_weights
from nnlo_opt.update_rules.easgd import ElasticMomentum
from nnlo_opt.update_rules.gem import Gem
from nnlo_opt.update_rules.optimizers import make_optimizer

pytestmark = pytest.mark.usefixtures("exchange")

N_TRAIN, N_VALIDATION, N_FEATURES, BATCH, EPOCHS = 26, 7, 4, 4, 3
SOURCE = linear_source(N_TRAIN + N_VALIDATION, N_FEATURES)
FOLDS = [single_fold(N_TRAIN, N_VALIDATION)]
#: batches of a pass of one worker
N_BATCHES = 7


def options_of(**changes):
    given = {"batch": BATCH, "epochs": EPOCHS, "optimizer": "sgd", "learning_rate": 0.05, **changes}
    return TrainingOptions(**given)


def trained(directory, options, n_workers=1, seed=None, **how):
    team = LoneTeam(directory, options, linear_tasks(SOURCE, FOLDS, options), n_workers, **how)
    team.run_fold()
    ended = team.settle(None if seed is None else np.random.default_rng(seed))
    assert isinstance(ended, msg.FoldFinished), ended
    return team


def central_of(team):
    return load_weights(fold_directory(team.directory, 0, 0))[0]


class Serial:
    """One worker's batches and gradients, without any team."""

    def __init__(self, options):
        start = msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=1)
        task = linear_tasks(SOURCE, FOLDS, options)().open(start)
        self._stream, self._model = task.stream, task.adapter
        self._model.read_weights(initial := np.empty(N_FEATURES + 1, np.float32))
        self.initial = initial

    def gradient_at(self, weights):
        """The gradient of the next batch."""
        batch = self._stream.next()
        self._model.write_weights(weights)
        self._model.gradient(batch.x, batch.y, out := np.empty_like(weights))
        return out


# ---------------------------------------------------------------- downpour that overlaps


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_worker_that_overlaps_is_sgd_with_gradients_one_step_old(tmp_path, optimizer):
    options = options_of(optimizer=optimizer, exchange="messages")
    serial = Serial(options)
    rule = make_optimizer(optimizer, N_FEATURES + 1, 0.05)
    central = serial.initial.copy()
    for _ in range(EPOCHS):
        before = central.copy()
        gradients = [serial.gradient_at(central)]
        for _ in range(N_BATCHES - 1):
            # The next batch is computed at the weights that the last but one update has made.
            gradients.append(serial.gradient_at(before))
            rule.apply(central, gradients.pop(0))
            before = central.copy()
        rule.apply(central, gradients.pop(0))
    team = trained(tmp_path, options, apart=True)
    assert np.array_equal(central_of(team), central)
    pushes = [d.message for d in team.delivered(msg.PushUpdate)]
    # Nothing of the next pass is computed before the fence.
    assert [push.base_version for push in pushes[:N_BATCHES]] == [0, *range(N_BATCHES - 1)]
    assert sum(push.n_samples for push in pushes) == EPOCHS * N_TRAIN


@pytest.mark.parametrize("mode", ["downpour", "easgd", "gem"])
@pytest.mark.parametrize("sync_every", [1, 3])
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_teams_that_overlap_train_all_epochs_in_any_order_of_events(tmp_path, mode, sync_every, n_workers):
    options = options_of(mode=mode, sync_every=sync_every)
    for seed in range(4):
        team = trained(tmp_path / str(seed), options, n_workers, seed, apart=True)
        pushed = sum(d.message.n_samples for d in team.delivered(msg.PushUpdate))
        left = sum(d.message.n_samples for d in team.delivered(msg.FenceReached))
        # At most the updates on their way when the last epoch was full, and one computed ahead, are too many.
        assert EPOCHS * N_TRAIN <= pushed + left <= EPOCHS * N_TRAIN + n_workers * (sync_every + 1) * BATCH
        assert [r.epoch for r in team.reported(msg.EpochReported)] == list(range(1, EPOCHS + 1))


def test_a_team_in_one_process_does_not_overlap(tmp_path):
    team = trained(tmp_path, options_of(exchange="messages"))
    assert {d.message.overlap for d in team.delivered(msg.StartFold)} == {False}
    assert [d.message.base_version for d in team.delivered(msg.PushUpdate)] == list(range(EPOCHS * N_BATCHES))


# ---------------------------------------------------------------- elastic averaging


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("sync_every", [1, 2, 7])
@pytest.mark.parametrize(("momentum", "optimizer"), [(0.0, "sgd"), (0.0, "adam"), (0.9, "sgd")])
def test_one_elastic_worker_is_the_papers_recurrence(tmp_path, synchronous, sync_every, momentum, optimizer):
    changes = {"elastic_momentum": momentum, "elastic_lr": 0.02, "elastic_force": 0.6, "optimizer": optimizer}
    options = options_of(mode="easgd", sync_every=sync_every, synchronous=synchronous, **changes)
    serial = Serial(options)
    central, local = serial.initial.copy(), serial.initial.copy()
    steps = (
        ElasticMomentum(N_FEATURES + 1, 0.02, momentum) if momentum else make_optimizer(optimizer, N_FEATURES + 1, 0.02)
    )
    ahead = np.empty_like(local)
    for _ in range(EPOCHS):
        for batch in range(1, N_BATCHES + 1):
            point = steps.look_ahead(local, ahead) if momentum else local
            steps.apply(local, serial.gradient_at(point))
            if batch % sync_every == 0 or batch == N_BATCHES:
                difference = np.float32(0.6) * (local - central)
                central += difference
                local -= difference
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), central, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("synchronous", [False, True])
def test_an_exchange_keeps_the_sum_of_all_weights(tmp_path, synchronous):
    """Workers whose gradients are zero: only the force moves them, and it conserves local + central."""
    options = options_of(mode="easgd", synchronous=synchronous, elastic_lr=1e-30, epochs=1)
    team = trained(tmp_path, options, n_workers=3, seed=1, apart=True)
    (initial,) = [d.payload for d in team.delivered(msg.WorkerReady) if d.payload is not None]
    np.testing.assert_allclose(central_of(team), initial[: N_FEATURES + 1], rtol=1e-6)


def test_workers_keep_their_weights_over_a_validation(tmp_path, exchange):
    options = options_of(mode="easgd", elastic_force=0.1)
    team = trained(tmp_path, options)
    adopted = [d.message.adopt for d in team.delivered(msg.Train)]
    assert adopted[0] == "weights"
    assert set(adopted[1:]) == ({"difference", "nothing"} if exchange == "messages" else {"nothing"})


# ---------------------------------------------------------------- gradient energy matching


@pytest.mark.parametrize("sync_every", [1, 3])
def test_one_matched_worker_is_the_papers_recurrence(tmp_path, sync_every):
    options = options_of(mode="gem", sync_every=sync_every, gem_lr=0.02, gem_momentum=0.8, gem_kappa=1.5)
    serial = Serial(options)
    central = serial.initial.copy()
    gem = Gem(N_FEATURES + 1, 0.02, 0.8, 1.5)
    for _ in range(EPOCHS):
        batch = 0
        while batch < N_BATCHES:
            gem.adopt(central)
            local, gradients, sizes = central.copy(), [], []
            while batch < N_BATCHES and len(gradients) < sync_every:
                batch += 1
                sizes.append(BATCH if batch < N_BATCHES else N_TRAIN - BATCH * (N_BATCHES - 1))
                gradients.append(serial.gradient_at(local))
                local -= np.float32(0.02) * gradients[-1]
            weighted = sum(size * gradient for size, gradient in zip(sizes, gradients, strict=True))
            update = (len(sizes) * weighted / sum(sizes)).astype(np.float32)
            gem.update(update, out=update)
            central += update
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), central, rtol=2e-5, atol=2e-6)


# ---------------------------------------------------------------- allreduce


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_allreduce_of_one_is_serial_training(tmp_path, optimizer):
    options = options_of(mode="allreduce", optimizer=optimizer)
    serial = Serial(options)
    weights, rule = serial.initial.copy(), make_optimizer(optimizer, N_FEATURES + 1, 0.05)
    for _ in range(EPOCHS * N_BATCHES):
        rule.apply(weights, serial.gradient_at(weights))
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), weights, rtol=1e-5, atol=1e-6)


def test_a_stop_in_the_middle_of_an_allreduce_epoch_ends_it(tmp_path):
    options = options_of(mode="allreduce")
    team = LoneTeam(tmp_path, options, linear_tasks(SOURCE, FOLDS, options))
    number = team.run_fold()
    while not team.delivered(msg.Train):
        team.step()
    team.order(msg.StopFold(assignment=number))
    assert team.settle() == msg.FoldStopped(assignment=number)
    assert not team.reported(msg.EpochReported)
    team.run_fold(trial=1)
    assert isinstance(team.settle(), msg.FoldFinished)


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("n_workers", [1, 2, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "easgd"},
        {"mode": "easgd", "synchronous": True},
        {"mode": "easgd", "elastic_momentum": 0.9, "elastic_lr": 0.02},
        {"mode": "gem"},
        {"staleness": "scale"},
        {"staleness": "drop:4"},
        {"sync_every": 3, "worker_optimizer": "adam"},
    ],
    ids=str,
)
def test_every_rule_learns(tmp_path, n_workers, changes):
    options = options_of(epochs=20, learning_rate=0.1, **changes)
    team = trained(tmp_path, options, n_workers, seed=0, apart=True)
    losses = [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]
    assert losses[-1] < 0.2 * losses[0]
