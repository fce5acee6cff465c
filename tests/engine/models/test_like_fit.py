"""A compiled Keras model in a team, against `fit` on the same batches from the same weights."""

import numpy as np
import pytest

from nnlo_opt.app.run.workload.fold_tasks import Feeding
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.engine.models.keras import framework
from nnlo_opt.engine.models.keras.metrics import metrics_of
from nnlo_opt.engine.models.losses import LossTerm
from tests.helpers.adapters import keras
from tests.helpers.keras_adapters import keras_adapter
from tests.helpers.linear_teams import central_of, finish
from tests.helpers.loopback_team import BuiltTasks, LoneTeam, LoopbackTeam, tasks_from
from tests.helpers.memory_source import ArraySource

pytestmark = pytest.mark.keras

N_TRAIN, BATCH, EPOCHS, N_STEPS = 26, 4, 3, 21
rng = np.random.default_rng(0)
X = rng.normal(size=(N_TRAIN + 6, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [3.0]] + 0.1 * rng.normal(size=(len(X), 1))).astype(np.float32)


def compiled(optimizer):
    keras.utils.set_random_seed(1)
    hidden, last = keras.layers.Dense(8, "tanh", name="hidden"), keras.layers.Dense(1, name="last")
    model = keras.Sequential([keras.Input((3,)), hidden, last], name="net")
    model.compile(optimizer=optimizer(keras.optimizers), loss="mse")
    return model


def flat(model):
    return np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])


def fitted(optimizer, *callbacks):
    """Weights after each step of `fit`, those that it leaves, and the validation losses."""
    model, steps = compiled(optimizer), []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(flat(model)))
    data = {"validation_data": (X[N_TRAIN:], Y[N_TRAIN:]), "batch_size": BATCH, "epochs": EPOCHS}
    history = model.fit(X[:N_TRAIN], Y[:N_TRAIN], shuffle=False, verbose=0, callbacks=[note, *callbacks], **data)
    return steps, flat(model), history.history["val_loss"]


def team_of(directory, optimizer, **options):
    steps = framework.compiled_of(compiled(optimizer)).steps
    options = TrainingOptions(batch=BATCH, epochs=EPOCHS, shuffle=False, **options).with_steps(steps)
    source, folds = ArraySource(X, Y), [single_fold(N_TRAIN, len(X) - N_TRAIN)]

    def build(parameters, options, seed):
        return keras_adapter(compiled(optimizer), "mean_squared_error")

    return LoneTeam(directory, options, lambda: tasks_from(build, source, folds, options))


def test_metrics_of_each_epoch_are_those_of_fit_in_training_too(tmp_path):
    labels, weights = (Y > 0).astype(np.float32), rng.uniform(0.5, 2, len(X)).astype(np.float32)
    asked = {"metrics": ["AUC", "mae"], "weighted_metrics": [keras.metrics.MeanSquaredError(name="w")]}

    def model():
        keras.utils.set_random_seed(1)
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
        network.compile("sgd", "binary_crossentropy", **asked)
        return network

    data = {"validation_data": (X[N_TRAIN:], labels[N_TRAIN:]), "batch_size": BATCH, "epochs": EPOCHS}
    given = {"sample_weight": weights[:N_TRAIN], "shuffle": False, "verbose": 0}
    theirs = model().fit(X[:N_TRAIN], labels[:N_TRAIN], **data, **given).history
    options = TrainingOptions(batch=BATCH, epochs=EPOCHS, shuffle=False, optimizer="sgd", learning_rate=0.01)
    source, folds = ArraySource(X, labels, {"w": weights}), [single_fold(N_TRAIN, len(X) - N_TRAIN)]

    def build(parameters, options, seed):
        network = model()
        own = framework.compiled_of(network)
        terms = (LossTerm("out", "binary_crossentropy"),)
        measures = metrics_of(own.metrics, terms, own.weighted_metrics)
        return framework.adapter(network, terms, metrics=measures.metrics, merging=measures.names)

    def tasks():
        feeding = Feeding(sample_weights_name="w")
        return BuiltTasks(build=build, source=source, folds=folds, options=options, feeding=feeding)

    finish(team := LoneTeam(tmp_path, options, tasks, 1))
    ours = [report.metrics for report in team.reported(msg.EpochReported)]
    names = {"auc": "AUC", "mae": "mae", "w": "w"}
    for name, theirs_name in names.items():
        for prefix in ("", "val_"):
            assert [m[prefix + name] for m in ours] == pytest.approx(theirs[prefix + theirs_name], abs=1e-5), name


def spared(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


OPTIMIZERS = {
    "adamw": lambda o: o.AdamW(0.01, weight_decay=0.01, clipnorm=1.0),
    "adamw of kernels": lambda o: spared(o.AdamW(0.05, weight_decay=0.5, global_clipnorm=0.5)),
    "sgd": lambda o: o.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1, clipvalue=0.2),
    "nadam": lambda o: o.Nadam(0.02, global_clipnorm=1.0),
    "adagrad": lambda o: o.Adagrad(0.1),
    "lion": lambda o: o.Lion(0.01, weight_decay=0.5),
}
MODES = [{}, {"synchronous": True}, {"mode": "allreduce"}]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_of_a_compiled_model_is_that_of_fit(tmp_path, name):
    steps, _, losses = fitted(OPTIMIZERS[name])
    finish(team := team_of(tmp_path, OPTIMIZERS[name], exchange="messages"))
    begun = [d.payload for d in team.delivered(msg.Train, dest=1)]
    n_weights = len(steps[0])
    moved = np.abs(steps[-1] - begun[0][:n_weights]).max()
    assert moved > 0.05
    assert len(begun) == len(steps) == N_STEPS
    for ours, theirs in zip([*begun[1:], central_of(team)], steps, strict=True):
        np.testing.assert_allclose(ours[:n_weights], theirs, rtol=1e-4, atol=1e-4 * moved)
    ours = [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]
    assert ours == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_compiled_model_is_trained_as_by_fit_in_shared_memory_and_in_every_mode(tmp_path, monkeypatch, name, options):
    monkeypatch.setattr(LoopbackTeam, "shares", True)
    _, left, _ = fitted(OPTIMIZERS[name])
    finish(team := team_of(tmp_path, OPTIMIZERS[name], **options))
    np.testing.assert_allclose(central_of(team), left, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("dies_after", [0, 1, 9, 22, 34])
def test_a_team_killed_within_an_average_of_weights_leaves_that_of_fit(tmp_path, options, dies_after):
    def optimizer(o):
        return o.AdamW(0.02, weight_decay=0.01, use_ema=True, ema_momentum=0.9)

    _, left, losses = fitted(optimizer, keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    finish(whole := team_of(tmp_path / "whole", optimizer, **options))
    np.testing.assert_allclose(central_of(whole), left, rtol=1e-4, atol=1e-4)
    ours = [report.metrics["val_loss"] for report in whole.reported(msg.EpochReported)]
    assert ours == pytest.approx(losses, rel=1e-3)
    killed = team_of(tmp_path / "parts", optimizer, **options)
    killed.run_fold()
    killed.steps(dies_after)
    if dies_after > 20:
        # As at a notice of the batch system: a checkpoint within an epoch, then the end.
        killed.order(msg.PreemptFold(assignment=0))
        killed.settle()
    finish(again := team_of(tmp_path / "parts", optimizer, **options))
    assert np.array_equal(central_of(again), central_of(whole))
