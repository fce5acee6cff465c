"""What a team of linear models computes, against serial training."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.app.reporting.words import counted
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.trials.checkpoint import load, load_weights
from nnlo_opt.core.update_rules.optimizers import OPTIMIZERS
from tests.helpers.effort import examples
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.linear_serial import N_FEATURES, N_TRAIN, SMALL, Data, serial_trajectory
from tests.helpers.linear_teams import central_of, finish, history_of, options_of, place_of, team_of, trained, tree_of
from tests.helpers.loopback_team import LoneTeam, tasks_from
from tests.helpers.memory_source import numbered_source

pytestmark = pytest.mark.many

N_WEIGHTS = N_FEATURES + 1

# ---------------------------------------------------------------- one worker is serial training


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "parameters"),
    [("sgd", {"momentum": 0.9, "nesterov": True}), *((name, {}) for name in OPTIMIZERS)],
)
def test_one_worker_is_serial_training_step_by_step(tmp_path, synchronous, optimizer, parameters):
    options = options_of(optimizer=optimizer, optimizer_params=parameters, synchronous=synchronous)
    expected = serial_trajectory(options)
    team = trained(tmp_path, options)
    # In the order in which the master sent them to be trained on.
    sent = [d.payload[:N_WEIGHTS] for d in team.delivered(msg.Train, dest=1)]
    assert len(sent) == len(expected) - 1 == 3 * 7
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(sent, expected, strict=False))
    assert np.array_equal(central_of(team), expected[-1])


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("sync_every", [2, 3, 7, 100])
def test_one_worker_with_local_steps_is_serial_sgd(tmp_path, synchronous, sync_every):
    # Equal batches: with others the last one of a pass weighs less in the update than in a step of its own.
    data = Data(SMALL.source, [single_fold(28, 5)])
    options = options_of(sync_every=sync_every, synchronous=synchronous)
    team = trained(tmp_path, options, data=data)
    np.testing.assert_allclose(central_of(team), serial_trajectory(options, data=data)[-1], rtol=2e-6, atol=2e-6)


# ---------------------------------------------------------------- beside the steps of an optimizer

DECAY = {"weight_decay": 0.5, "learning_rate": 0.1}
CLIPPED = [{"clip_norm": 0.3}, {"global_clip_norm": 0.4}, {"clip_value": 0.2}]
SPARED = {**DECAY, "no_decay": "^bias$"}


def differ(options, plain):
    return not np.allclose(serial_trajectory(options)[-1], serial_trajectory(plain)[-1], rtol=1e-3)


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize(("n_workers", "synchronous"), [(1, False), (1, True), (3, True)])
@pytest.mark.parametrize("changes", [DECAY, SPARED, *CLIPPED], ids=str)
def test_decay_and_clipping_are_those_of_serial_training(tmp_path, n_workers, synchronous, changes):
    options = options_of(synchronous=synchronous, optimizer="sgd", **changes)
    assert differ(options, options_of(learning_rate=options.learning_rate))
    assert changes is not SPARED or differ(options, options_of(**DECAY))
    team = trained(tmp_path, options, n_workers)
    np.testing.assert_allclose(central_of(team), serial_trajectory(options, n_workers)[-1], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("changes", [DECAY, SPARED, *CLIPPED, {"optimizer": "lion"}], ids=str)
def test_an_elastic_worker_alone_makes_the_steps_of_serial_training(tmp_path, changes):
    # With a force of 1 the central weights become those of the worker at the end of the epoch.
    options = options_of(mode="easgd", elastic_force=1.0, sync_every=100, epochs=1, **changes)
    serial = options_of(epochs=1, **changes)
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), serial_trajectory(serial)[-1], rtol=2e-5)


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("mode", ["downpour", "allreduce"])
def test_the_average_of_the_weights_is_evaluated_and_kept_and_the_weights_are_trained_on(tmp_path, mode):
    options = options_of(mode=mode, optimizer="adam", ema=0.8)
    _, first, *others = serial_trajectory(options_of(optimizer="adam"))
    averages = [first]
    for weights in others:
        averages.append(0.8 * averages[-1] + 0.2 * weights)
    team = trained(tmp_path, options)
    np.testing.assert_allclose(central_of(team), averages[-1], rtol=1e-5, atol=1e-6)
    for epoch, validated in enumerate(team.delivered(msg.Validate), 1):
        np.testing.assert_allclose(validated.payload[:N_WEIGHTS], averages[7 * epoch - 1], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize(
    ("mode", "n_workers", "synchronous"), [("easgd", 1, False), ("easgd", 3, True), ("gem", 1, False)]
)
def test_central_weights_without_an_optimizer_are_averaged_over_their_updates(tmp_path, mode, n_workers, synchronous):
    """A batch is all that a worker has, so that an epoch is one update."""
    options = options_of(mode=mode, synchronous=synchronous, batch=N_TRAIN, epochs=6)
    plain = trained(tmp_path / "plain", options, n_workers)
    first, *others = [validated.payload[:N_WEIGHTS].copy() for validated in plain.delivered(msg.Validate, dest=1)]
    averages = [first]
    for weights in others:
        averages.append(0.8 * averages[-1] + 0.2 * weights)
    team = trained(tmp_path / "averaged", replace(options, ema=0.8), n_workers)
    validated = [validated.payload[:N_WEIGHTS] for validated in team.delivered(msg.Validate, dest=1)]
    np.testing.assert_allclose(validated, averages[: len(validated)], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(central_of(team), averages[-1], rtol=1e-5, atol=1e-6)
    assert np.abs(central_of(team) - central_of(plain)).max() > 1e-2


def test_the_best_average_is_kept(tmp_path):
    options = options_of(ema=0.5, learning_rate=1.2, epochs=8, early_stopping="val_loss,<,1")
    team = trained(tmp_path, options)
    validated = team.delivered(msg.Validate)
    best = int(np.argmin([report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]))
    assert best < len(validated) - 1
    assert np.array_equal(central_of(team), validated[best].payload[:N_WEIGHTS])


# ---------------------------------------------------------------- synchronous workers are one worker


@pytest.mark.parametrize("n_workers", [2, 3, 5])
@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": "adam"}, {"warmup_epochs": 0.7, "lr_schedule": "cosine"}], ids=str
)
def test_synchronous_workers_are_serial_training_on_the_union_of_their_batches(tmp_path, n_workers, changes):
    options = options_of(synchronous=True, **changes)
    team = trained(tmp_path, options, n_workers, seed=0)
    np.testing.assert_allclose(central_of(team), serial_trajectory(options, n_workers)[-1], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("sync_every", [1, 3])
@pytest.mark.parametrize("workers", [3, tree_of(5, 3)], ids=["flat", "tree"])
def test_synchronous_training_does_not_depend_on_the_order_of_the_messages(tmp_path, workers, sync_every):
    options = options_of(synchronous=True, sync_every=sync_every, optimizer="adam")
    seen = set()
    for seed in range(8):
        team = team_of(tmp_path / str(seed), options, workers)
        report, history = finish(team, seed), json.dumps(history_of(team), sort_keys=True)
        seen.add((central_of(team).tobytes(), report.figure_of_merit, str(report.metrics), history))
    assert len(seen) == 1


# ---------------------------------------------------------------- figures


@settings(max_examples=examples(25), deadline=None)
@given(n_validation=st.integers(1, 7), n_workers=st.integers(1, 9), synchronous=st.booleans())
def test_validation_means_are_of_the_central_weights_even_with_few_samples(
    tmp_path_factory, n_validation, n_workers, synchronous
):
    data = Data(SMALL.source, [single_fold(N_TRAIN, n_validation)])
    team = team_of(tmp_path_factory.mktemp("run"), options_of(epochs=1, synchronous=synchronous), n_workers, data)
    report = finish(team)
    model = LinearAdapter(N_FEATURES)
    model.write_weights(central_of(team))
    expected = model.evaluate(*SMALL.source.read(data.folds[0].validation)).means()["loss"]
    assert report.figure_of_merit == report.metrics["val_loss"] == pytest.approx(expected, rel=1e-5)


def test_without_validation_samples_the_figure_is_the_training_loss(tmp_path):
    team = team_of(tmp_path, options_of(), data=Data(SMALL.source, [single_fold(N_TRAIN, 0)]))
    report = finish(team)
    assert set(report.metrics) == {"loss"}
    assert report.figure_of_merit == report.metrics["loss"]
    assert not team.delivered(msg.Validate)


# ---------------------------------------------------------------- no sample is dropped


#: batches between two updates; a period longer than a pass ends with it
SYNC = [1, 2, 3, 4, 100]
TEAMS = {"n_workers": st.integers(1, 5), "batch": st.integers(1, 9), "sync_every": st.sampled_from(SYNC)}


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


def recorded(directory, options, n_train, n_workers):
    """Samples trained in each epoch, over all workers."""
    seen: list[int] = []

    def build(parameters, options, seed):
        return RecordingAdapter(seen)

    source, folds = numbered_source(n_train), [single_fold(n_train, 0)]
    team = LoneTeam(directory, options, lambda: tasks_from(build, source, folds, options), n_workers)
    team.run_fold()
    epochs, n_before = [], 0
    rng = np.random.default_rng(n_train)
    while team.step(rng):
        if len(epochs) < len(team.reported(msg.EpochReported)):
            epochs.append(seen[n_before:])
            n_before = len(seen)
    return team, epochs


@settings(max_examples=examples(40), deadline=None)
@given(n_train=st.integers(1, 23), shuffle=st.booleans(), **TEAMS)
def test_synchronous_epochs_train_every_sample_exactly_once(
    tmp_path_factory, n_train, n_workers, batch, sync_every, shuffle
):
    options = options_of(synchronous=True, batch=batch, sync_every=sync_every, shuffle=shuffle, epochs=2)
    directory = tmp_path_factory.mktemp("run")
    team, epochs = recorded(directory, options, n_train, n_workers)
    if n_train < n_workers:
        assert isinstance(team.reports[-1], msg.FoldFailed)
        assert f"Received: {counted(n_train, 'sample')} for {n_workers} workers" in team.reports[-1].reason
    else:
        assert isinstance(team.reports[-1], msg.FoldFinished)
        assert [sorted(epoch) for epoch in epochs] == [list(range(n_train))] * 2


@settings(max_examples=examples(40), deadline=None)
@given(n_train=st.integers(5, 23), **TEAMS)
def test_asynchronous_epochs_train_no_more_than_an_update_a_worker_too_many(
    tmp_path_factory, n_train, n_workers, batch, sync_every
):
    options = options_of(batch=batch, sync_every=sync_every, epochs=3)
    directory = tmp_path_factory.mktemp("run")
    team, epochs = recorded(directory, options, n_train, n_workers)
    assert isinstance(team.reports[-1], msg.FoldFinished)
    n_samples = sum(len(epoch) for epoch in epochs)
    longest = max(d.message.n_samples for d in team.delivered(msg.PushUpdate))
    assert 3 * n_train <= n_samples < 3 * n_train + n_workers * longest
    if n_workers == 1:
        assert [sorted(epoch) for epoch in epochs] == [list(range(n_train))] * 3


@pytest.mark.parametrize("synchronous", [False, True])
def test_more_workers_than_batches_train_all_the_same(tmp_path, synchronous):
    options = options_of(batch=100, synchronous=synchronous, epochs=5)
    assert finish(team_of(tmp_path, options, 6), seed=1).n_epochs == 5


# ---------------------------------------------------------------- model state at the fence


def test_float_state_is_averaged_over_the_workers_at_the_fence_and_integer_state_is_not(tmp_path):
    options = options_of(epochs=2, synchronous=True)
    team = trained(tmp_path, options, 3)
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
    team = trained(tmp_path, options_of(epochs=1, synchronous=True), 2)
    weights, state = load_weights(place_of(team))
    payload = team.delivered(msg.Validate)[0].payload
    assert np.array_equal(np.concatenate([weights, state]), payload)
    assert np.array_equal(load(place_of(team) / "checkpoint-1").arrays["central"], payload)
