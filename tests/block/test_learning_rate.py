"""The learning rate in the course of a training, under each update rule, against recurrences written down here."""

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
from nnlo_opt.update_rules.rule import SteppingWorker

pytestmark = pytest.mark.usefixtures("exchange")

N_TRAIN, N_VALIDATION, N_FEATURES, BATCH, EPOCHS, RATE = 26, 7, 4, 4, 3, 0.05
SOURCE = linear_source(N_TRAIN + N_VALIDATION, N_FEATURES)
FOLDS = [single_fold(N_TRAIN, N_VALIDATION)]
#: samples of the batches of a pass of one worker
SIZES = [4, 4, 4, 4, 4, 4, 2]
SCHEDULES = [
    {"warmup_epochs": 1.5},
    {"lr_schedule": "cosine"},
    {"warmup_epochs": 0.5, "lr_schedule": "linear"},
    {"lr_schedule": "exponential:0.3"},
    {"lr_schedule": "step:1:0.1"},
]


def options_of(**changes):
    return TrainingOptions(
        **{"batch": BATCH, "epochs": EPOCHS, "optimizer": "sgd", "learning_rate": RATE, "shuffle": True, **changes}
    )


def trained(directory, options, n_workers=1, seed=None, **how):
    team = LoneTeam(directory, options, linear_tasks(SOURCE, FOLDS, options), n_workers, **how)
    team.run_fold()
    ended = team.settle(None if seed is None else np.random.default_rng(seed))
    assert isinstance(ended, msg.FoldFinished), ended
    return team


def central_of(team):
    return load_weights(fold_directory(team.directory, 0, 0))[0]


def factor(options, n_before, n_after):
    """What multiplies the learning rate of an update from the one to the other number of samples."""
    return options.schedule.factor((n_before + n_after) / 2 / N_TRAIN, EPOCHS)


def factors_of_batches(options):
    """One for each batch of one worker."""
    found, n_before = [], 0
    for size in SIZES * EPOCHS:
        found.append(factor(options, n_before, n_before + size))
        n_before += size
    return found


class Serial:
    """The batches and gradients of one worker, without any team."""

    def __init__(self, options, worker=1, n_workers=1):
        start = msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=worker, n_workers=n_workers)
        task = linear_tasks(SOURCE, FOLDS, options)().open(start)
        self.stream, self._model = task.stream, task.adapter
        self._model.read_weights(initial := np.empty(N_FEATURES + 1, np.float32))
        self.initial = initial

    def gradient_at(self, weights):
        """The gradient of the next batch."""
        batch = self.stream.next()
        self._model.write_weights(weights)
        self._model.gradient(batch.x, batch.y, out := np.empty_like(weights))
        return out


def stepwise(options, optimizer):
    """Serial training whose every step has its own learning rate."""
    serial = Serial(options)
    weights, rule = serial.initial.copy(), make_optimizer(optimizer, N_FEATURES + 1, RATE)
    for part in factors_of_batches(options):
        rule.learning_rate = RATE * part
        rule.apply(weights, serial.gradient_at(weights))
    return weights


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_each_update_of_one_worker_has_the_rate_of_its_middle(tmp_path, schedule, synchronous, optimizer):
    options = options_of(optimizer=optimizer, synchronous=synchronous, **schedule)
    expected = stepwise(options, optimizer)
    assert np.array_equal(central_of(trained(tmp_path, options)), expected)
    constant = stepwise(options_of(optimizer=optimizer), optimizer)
    assert not np.allclose(expected, constant, rtol=1e-3)


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=str)
def test_a_common_step_of_all_ranks_has_the_rate_of_its_middle(tmp_path, schedule):
    options = options_of(mode="allreduce", optimizer="adam", **schedule)
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), stepwise(options, "adam"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_workers", [2, 3])
def test_a_round_of_workers_that_wait_has_the_rate_of_the_middle_of_the_round(tmp_path, n_workers):
    options = options_of(synchronous=True, warmup_epochs=0.7, lr_schedule="cosine")
    workers = [Serial(options, worker, n_workers) for worker in range(1, n_workers + 1)]
    weights, n_before = workers[0].initial.copy(), 0
    rule = make_optimizer("sgd", N_FEATURES + 1, RATE)
    model = workers[0]._model
    for _ in range(EPOCHS):
        still = list(workers)
        while still:
            batches = [(worker, worker.stream.next()) for worker in still]
            x, y = (np.concatenate([getattr(batch, part) for _, batch in batches]) for part in ("x", "y"))
            model.write_weights(weights)
            model.gradient(x, y, gradient := np.empty_like(weights))
            rule.learning_rate = RATE * factor(options, n_before, n_before + len(y))
            rule.apply(weights, gradient)
            n_before += len(y)
            still = [worker for worker, batch in batches if not batch.end_of_pass]
    team = trained(tmp_path, options, n_workers, seed=0)
    np.testing.assert_allclose(central_of(team), weights, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("sync_every", [2, 3])
def test_local_steps_have_each_its_own_rate_and_the_update_that_of_its_middle(tmp_path, sync_every):
    options = options_of(sync_every=sync_every, warmup_epochs=0.5, lr_schedule="linear")
    serial, n_before = Serial(options), 0
    central = serial.initial.copy()
    for _ in range(EPOCHS):
        for first in range(0, len(SIZES), sync_every):
            sizes, local, gradients, n_began = SIZES[first : first + sync_every], central.copy(), [], n_before
            for size in sizes:
                gradients.append(serial.gradient_at(local))
                local -= np.float32(RATE * factor(options, n_before, n_before + size)) * gradients[-1]
                n_before += size
            mean = sum(size * gradient for size, gradient in zip(sizes, gradients, strict=True)) / sum(sizes)
            central -= np.float32(RATE * factor(options, n_began, n_before) * len(sizes)) * mean
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), central, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_elastic_worker_has_the_rate_of_its_own_steps(tmp_path, momentum):
    changes = {"elastic_momentum": momentum, "elastic_lr": 0.02, "elastic_force": 0.6, "sync_every": 2}
    options = options_of(mode="easgd", warmup_epochs=0.5, lr_schedule="cosine", **changes)
    serial, factors = Serial(options), iter(factors_of_batches(options))
    central, local, n_weights = serial.initial.copy(), serial.initial.copy(), N_FEATURES + 1
    steps = ElasticMomentum(n_weights, 0.02, momentum) if momentum else make_optimizer("sgd", n_weights, 0.02)
    ahead = np.empty_like(local)
    for _ in range(EPOCHS):
        for batch in range(1, len(SIZES) + 1):
            steps.learning_rate = 0.02 * next(factors)
            point = steps.look_ahead(local, ahead) if momentum else local
            steps.apply(local, serial.gradient_at(point))
            if batch % 2 == 0 or batch == len(SIZES):
                difference = np.float32(0.6) * (local - central)
                central += difference
                local -= difference
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), central, rtol=1e-5, atol=1e-6)


def test_a_matched_worker_has_the_rate_of_its_update(tmp_path):
    options = options_of(mode="gem", gem_lr=0.02, gem_momentum=0.8, gem_kappa=1.5, lr_schedule="cosine")
    serial = Serial(options)
    central, gem = serial.initial.copy(), Gem(N_FEATURES + 1, 0.02, 0.8, 1.5)
    for part in factors_of_batches(options):
        gem.adopt(central)
        gem.learning_rate = 0.02 * part
        gem.update(serial.gradient_at(central), out=(update := np.empty_like(central)))
        central += update
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), central, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("sync_every", [1, 3])
def test_a_worker_that_computes_ahead_goes_through_the_same_rates(tmp_path, monkeypatch, sync_every):
    taken = []
    monkeypatch.setattr(SteppingWorker, "scale_learning_rate", lambda self, part: taken.append(part))
    options = options_of(mode="easgd", sync_every=sync_every, lr_schedule="linear")
    trained(tmp_path, options, apart=True)
    assert taken == factors_of_batches(options)


@pytest.mark.parametrize("mode", ["downpour", "easgd", "gem"])
@pytest.mark.parametrize("sync_every", [1, 3])
@pytest.mark.parametrize("n_workers", [2, 3])
def test_workers_at_their_own_pace_end_with_rates_near_the_schedules_end(
    tmp_path, monkeypatch, mode, sync_every, n_workers
):
    taken = []
    ordinary = SteppingWorker.scale_learning_rate
    monkeypatch.setattr(
        SteppingWorker, "scale_learning_rate", lambda self, part: (taken.append(part), ordinary(self, part))
    )
    options = options_of(mode=mode, sync_every=sync_every, warmup_epochs=1, lr_schedule="linear", epochs=20)
    team = trained(tmp_path, options, n_workers, seed=3, apart=True)
    assert np.isfinite(central_of(team)).all()
    if mode == "easgd":
        assert all(0 <= part <= 1 for part in taken)
        assert max(taken) > 0.9
        assert max(taken[-n_workers:]) < 0.1
        assert min(taken[:n_workers]) < 0.3


def test_without_a_schedule_no_rate_is_touched(tmp_path, monkeypatch):
    touched = []
    monkeypatch.setattr(SteppingWorker, "scale_learning_rate", lambda self, part: touched.append(part))
    trained(tmp_path / "constant", options_of(mode="easgd"))
    assert not touched
    trained(tmp_path / "scheduled", options_of(mode="easgd", lr_schedule="linear"))
    assert touched
