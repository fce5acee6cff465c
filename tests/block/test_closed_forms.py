"""What a team of linear models computes, against serial training written down here."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.comm import messages as msg
from nnlo_opt.data.folds import single_fold
from nnlo_opt.testing.linear_model import LinearAdapter
from nnlo_opt.testing.loopback_team import LoneTeam, linear_tasks, tasks_from
from nnlo_opt.testing.memory_source import linear_source, numbered_source
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.checkpoint import fold_directory, load, load_weights
from nnlo_opt.update_rules.optimizers import make_optimizer

N_TRAIN, N_VALIDATION = 26, 7
SOURCE = linear_source(N_TRAIN + N_VALIDATION, n_features=4)
FOLDS = [single_fold(N_TRAIN, N_VALIDATION)]


def options_of(**changes):
    return TrainingOptions(**{"batch": 4, "epochs": 3, "optimizer": "sgd", "learning_rate": 0.05, **changes})


def team_of(directory, options, n_workers=1, **tasks):
    given = {"source": SOURCE, "folds": FOLDS, **tasks}
    return LoneTeam(directory, options, linear_tasks(given["source"], given["folds"], options), n_workers)


def trained(directory, options, n_workers=1, rng=None, **tasks):
    team = team_of(directory, options, n_workers, **tasks)
    team.run_fold()
    assert isinstance(team.settle(rng), msg.FoldFinished)
    return team


def worker_tasks(options, n_workers=1):
    """What each worker trains on: the same models and the same order of batches as in the team."""
    factories = [linear_tasks(SOURCE, FOLDS, options)() for _ in range(n_workers)]
    starts = [
        msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=worker, n_workers=n_workers)
        for worker in range(1, n_workers + 1)
    ]
    return [factory.open(start) for factory, start in zip(factories, starts, strict=True)]


def serial_trajectory(options, next_batches, model):
    """Weights before the first batch and after each: plain serial training. `next_batches` yields (x, y)."""
    optimizer = make_optimizer(options.optimizer, model.n_weights, options.learning_rate, options.optimizer_params)
    model.read_weights(weights := np.empty(model.n_weights, np.float32))
    trajectory, gradient = [weights.copy()], np.empty_like(weights)
    for x, y in next_batches:
        model.gradient(x, y, gradient)
        optimizer.apply(weights, gradient)
        model.write_weights(weights)
        trajectory.append(weights.copy())
    return trajectory


def one_stream(task, n_epochs):
    n_passes = 0
    while n_passes < n_epochs:
        batch = task.stream.next()
        yield batch.x, batch.y
        n_passes += batch.end_of_pass


def union_of_streams(tasks, n_epochs):
    """The batches of all workers as one; a worker at the end of its shard waits for the others."""
    for _ in range(n_epochs):
        still = list(tasks)
        while still:
            batches = [(task, task.stream.next()) for task in still]
            yield tuple(np.concatenate([getattr(batch, part) for _, batch in batches]) for part in ("x", "y"))
            still = [task for task, batch in batches if not batch.end_of_pass]


def weights_sent(team, n_weights):
    """Central weights in the order in which the master sent them to worker 1 to be trained on."""
    return [d.payload[:n_weights] for d in team.delivered(msg.Train, dest=1)]


def final_weights(team):
    return load_weights(fold_directory(team.directory, 0, 0))[0]


# ---------------------------------------------------------------- one worker is serial training


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "parameters"),
    [("sgd", {}), ("sgd", {"momentum": 0.9, "nesterov": True}), ("adam", {}), ("rmsprop", {}), ("adadelta", {})],
)
def test_one_worker_is_serial_training_step_by_step(tmp_path, synchronous, optimizer, parameters):
    options = options_of(optimizer=optimizer, optimizer_params=parameters, synchronous=synchronous)
    (task,) = worker_tasks(options)
    expected = serial_trajectory(options, one_stream(task, options.epochs), task.adapter)
    team = trained(tmp_path, options)
    sent = weights_sent(team, task.adapter.n_weights)
    assert len(sent) == len(expected) - 1 == 3 * 7
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(sent, expected, strict=False))
    assert np.array_equal(final_weights(team), expected[-1])


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("sync_every", [2, 3, 7, 100])
def test_one_worker_with_local_steps_is_serial_sgd(tmp_path, synchronous, sync_every):
    # Equal batches: with others the last one of a pass weighs less in the update than in a step of its own.
    folds = [single_fold(28, 5)]
    options = options_of(sync_every=sync_every, synchronous=synchronous, batch=4)
    task = linear_tasks(SOURCE, folds, options)().open(
        msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=1)
    )
    expected = serial_trajectory(options, one_stream(task, options.epochs), task.adapter)
    team = trained(tmp_path, options, folds=folds)
    np.testing.assert_allclose(final_weights(team), expected[-1], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("sync_every", [1, 3, 7, 100])
@pytest.mark.parametrize("synchronous", [False, True])
def test_an_epoch_trains_every_sample_once_however_long_the_sync_period_is(tmp_path, synchronous, sync_every):
    team = trained(tmp_path, options_of(sync_every=sync_every, synchronous=synchronous, epochs=4))
    assert sum(d.message.n_samples for d in team.delivered(msg.PushUpdate)) == 4 * N_TRAIN


# ---------------------------------------------------------------- synchronous workers are one worker


@pytest.mark.parametrize("n_workers", [2, 3, 5])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_synchronous_workers_are_serial_training_on_the_union_of_their_batches(tmp_path, n_workers, optimizer):
    options = options_of(optimizer=optimizer, synchronous=True)
    tasks = worker_tasks(options, n_workers)
    expected = serial_trajectory(options, union_of_streams(tasks, options.epochs), tasks[0].adapter)
    team = trained(tmp_path, options, n_workers)
    np.testing.assert_allclose(final_weights(team), expected[-1], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("sync_every", [1, 3])
def test_synchronous_training_does_not_depend_on_the_order_of_the_messages(tmp_path, sync_every):
    options = options_of(synchronous=True, sync_every=sync_every, optimizer="adam")
    seen = set()
    for seed in range(8):
        team = trained(tmp_path / str(seed), options, n_workers=3, rng=np.random.default_rng(seed))
        finished = team.reported(msg.FoldFinished)[0]
        seen.add((final_weights(team).tobytes(), finished.figure_of_merit, str(finished.metrics)))
    assert len(seen) == 1


@pytest.mark.parametrize("n_workers", [1, 2, 4])
@pytest.mark.parametrize("synchronous", [False, True])
def test_training_learns(tmp_path, n_workers, synchronous):
    options = options_of(epochs=12, learning_rate=0.2, synchronous=synchronous)
    team = trained(tmp_path, options, n_workers, rng=np.random.default_rng(0))
    losses = [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]
    assert losses[-1] < 0.1 * losses[0]


# ---------------------------------------------------------------- figures


@pytest.mark.parametrize("n_workers", [1, 2, 3, 7])
def test_validation_figures_are_means_over_all_validation_samples_at_the_central_weights(tmp_path, n_workers):
    team = trained(tmp_path, options_of(epochs=1), n_workers)
    model = LinearAdapter(4)
    model.write_weights(final_weights(team))
    x, y = SOURCE.read(FOLDS[0].validation)
    finished = team.reported(msg.FoldFinished)[0]
    assert finished.figure_of_merit == finished.metrics["val_loss"]
    assert finished.figure_of_merit == pytest.approx(model.evaluate(x, y).means()["loss"], rel=1e-5)


@settings(max_examples=examples(25), deadline=None)
@given(n_validation=st.integers(1, 7), n_workers=st.integers(1, 9))
def test_every_validation_sample_counts_once_also_with_more_workers_than_samples(
    tmp_path_factory, n_validation, n_workers
):
    folds = [single_fold(N_TRAIN, n_validation)]
    directory = tmp_path_factory.mktemp("run")
    team = trained(directory, options_of(epochs=1, synchronous=True), n_workers, folds=folds)
    model = LinearAdapter(4)
    model.write_weights(final_weights(team))
    expected = model.evaluate(*SOURCE.read(folds[0].validation)).means()["loss"]
    assert team.reported(msg.FoldFinished)[0].figure_of_merit == pytest.approx(expected, rel=1e-5)


def test_without_validation_samples_the_figure_is_the_training_loss(tmp_path):
    team = trained(tmp_path, options_of(), folds=[single_fold(N_TRAIN, 0)])
    finished = team.reported(msg.FoldFinished)[0]
    assert set(finished.metrics) == {"loss"}
    assert finished.figure_of_merit == finished.metrics["loss"]
    assert not team.delivered(msg.Validate)


# ---------------------------------------------------------------- no sample is dropped


class RecordingAdapter(LinearAdapter):
    """Writes down the samples (told apart by their labels) it has computed gradients of; never moves."""

    def __init__(self, seen):
        super().__init__(1)
        self._seen = seen

    def gradient(self, x, y, out, sample_weight=None):
        self._seen.extend(int(label) for label in y)
        metrics = super().gradient(x, y, out)
        out[:] = 0
        return metrics


def recorded(directory, options, n_train, n_workers, rng=None):
    """Samples trained in each epoch, over all workers."""
    seen: list[int] = []

    def build(parameters, options, seed):
        return RecordingAdapter(seen)

    source, folds = numbered_source(n_train), [single_fold(n_train, 0)]
    team = LoneTeam(
        directory,
        options,
        lambda: tasks_from(build, source, folds, options),
        n_workers,
    )
    team.run_fold()
    epochs, n_before = [], 0
    while team.step(rng):
        if len(epochs) < len(team.reported(msg.EpochReported)):
            epochs.append(seen[n_before:])
            n_before = len(seen)
    return team, epochs


@settings(max_examples=examples(40), deadline=None)
@given(
    n_train=st.integers(1, 23),
    n_workers=st.integers(1, 5),
    batch=st.integers(1, 9),
    sync_every=st.integers(1, 4),
    shuffle=st.booleans(),
)
def test_synchronous_epochs_train_every_sample_exactly_once(
    tmp_path_factory, n_train, n_workers, batch, sync_every, shuffle
):
    options = options_of(synchronous=True, batch=batch, sync_every=sync_every, shuffle=shuffle, epochs=2)
    directory = tmp_path_factory.mktemp("run")
    team, epochs = recorded(directory, options, n_train, n_workers, np.random.default_rng(n_train))
    if n_train < n_workers:
        assert isinstance(team.reports[-1], msg.FoldFailed)
        assert f"{n_train} samples for {n_workers} workers" in team.reports[-1].reason
    else:
        assert isinstance(team.reports[-1], msg.FoldFinished)
        assert [sorted(epoch) for epoch in epochs] == [list(range(n_train))] * 2


@settings(max_examples=examples(40), deadline=None)
@given(n_train=st.integers(5, 23), n_workers=st.integers(1, 5), batch=st.integers(1, 9), sync_every=st.integers(1, 4))
def test_asynchronous_epochs_train_no_more_than_an_update_a_worker_too_many(
    tmp_path_factory, n_train, n_workers, batch, sync_every
):
    options = options_of(batch=batch, sync_every=sync_every, epochs=3)
    directory = tmp_path_factory.mktemp("run")
    team, epochs = recorded(directory, options, n_train, n_workers, np.random.default_rng(n_train))
    assert isinstance(team.reports[-1], msg.FoldFinished)
    n_samples = sum(len(epoch) for epoch in epochs)
    longest = max(d.message.n_samples for d in team.delivered(msg.PushUpdate))
    assert 3 * n_train <= n_samples < 3 * n_train + n_workers * longest
    if n_workers == 1:
        assert [sorted(epoch) for epoch in epochs] == [list(range(n_train))] * 3


@pytest.mark.parametrize("synchronous", [False, True])
def test_more_workers_than_batches_train_all_the_same(tmp_path, synchronous):
    options = options_of(batch=100, synchronous=synchronous, epochs=5)
    team = trained(tmp_path, options, n_workers=6, rng=np.random.default_rng(1))
    assert team.reported(msg.FoldFinished)[0].n_epochs == 5


# ---------------------------------------------------------------- model state at the fence


def test_float_state_is_averaged_over_the_workers_at_the_fence_and_integer_state_is_not(tmp_path):
    options = options_of(epochs=2, synchronous=True)
    team = trained(tmp_path, options, n_workers=3)
    handed_in = team.delivered(msg.FenceReached)
    first = sorted(handed_in[:3], key=lambda d: d.source)
    assert len({float(d.payload[0]) for d in first}) == 3
    mean = np.mean([d.payload for d in first], axis=0, dtype=np.float64).astype(np.float32)
    with_state = [d for d in team.delivered(msg.Train) if len(d.payload) == 6]
    assert len(with_state) == 3 * 2
    assert all(np.array_equal(d.payload[5:], mean) for d in with_state[3:])
    validated = team.delivered(msg.Validate)
    assert all(np.array_equal(d.payload[5:], mean) for d in validated[:3])
    # 26 samples in shards of 8, 9, 9 are 2, 3, 3 batches an epoch; every worker keeps its own count.
    counts = {d.source: d.message.position["discrete"] for d in handed_in[3:]}
    assert counts == {1: [[4]], 2: [[6]], 3: [[6]]}


def test_the_state_of_the_last_fence_is_saved_with_the_weights(tmp_path):
    team = trained(tmp_path, options_of(epochs=1, synchronous=True), n_workers=2)
    weights, state = load_weights(fold_directory(tmp_path, 0, 0))
    payload = team.delivered(msg.Validate)[0].payload
    assert np.array_equal(np.concatenate([weights, state]), payload)
    assert np.array_equal(load(fold_directory(tmp_path, 0, 0) / "checkpoint-1").arrays["central"], payload)
