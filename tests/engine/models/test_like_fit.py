"""A compiled Keras model in a team, against `fit` on the same batches from the same weights."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from nnlo_opt.app.run.workload.fold_tasks import Feeding
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.engine.models.keras import framework
from nnlo_opt.engine.models.keras.metrics import metrics_of
from nnlo_opt.engine.models.losses import LossTerm
from nnlo_opt.engine.models.own_optimizer import Instead, Own, OwnOptimizer
from tests.helpers import effort
from tests.helpers.adapters import keras
from tests.helpers.keras_adapters import keras_adapter
from tests.helpers.linear_teams import central_of, finish
from tests.helpers.loopback_team import BuiltTasks, LoneTeam, LoopbackTeam, tasks_from
from tests.helpers.memory_source import ArraySource
from tests.helpers.refusals import refusal

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


@functools.cache
def fitted(optimizer, averages=False):
    """Weights after each step of `fit`, those that it leaves, and the validation losses."""
    model, steps = compiled(optimizer), []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(flat(model)))
    callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)] if averages else []
    data = {"validation_data": (X[N_TRAIN:], Y[N_TRAIN:]), "batch_size": BATCH, "epochs": EPOCHS}
    history = model.fit(X[:N_TRAIN], Y[:N_TRAIN], shuffle=False, verbose=0, callbacks=[note, *callbacks], **data)
    return steps, flat(model), history.history["val_loss"]


def team_of(directory, optimizer, **options):
    steps = framework.compiled_of(compiled(optimizer)).steps
    return _team(directory, optimizer, steps, options)


def _team(directory, optimizer, steps, options, n_workers=1):
    options = TrainingOptions(batch=BATCH, epochs=EPOCHS, shuffle=False, **options).with_steps(steps)
    source, folds = ArraySource(X, Y), [single_fold(N_TRAIN, len(X) - N_TRAIN)]

    def build(parameters, options, seed):
        return keras_adapter(compiled(optimizer), "mean_squared_error")

    return LoneTeam(directory, options, lambda: OwnTasks(build, source, folds, options), n_workers)


class OwnTasks:
    """Tasks whose models bring optimizers of Keras, as of a workload."""

    def __init__(self, *parts):
        self._tasks = tasks_from(*parts)

    def open(self, start):
        task = self._tasks.open(start)
        if not task.options.own_optimizer:
            return task
        own = framework.compiled_of(task.adapter.synced_model()).own
        instead = Instead(weight_decay=task.options.weight_decay, no_decay=task.options.no_decay)
        stepping = task.adapter.stepping(own, instead)
        ema = task.options.ema if task.options.rule.averages_every_batch else None
        steps = OwnOptimizer(task.adapter.n_weights, stepping, own.words, ema)
        return task.replaced(options=replace(task.options, own=steps))

    def close(self):
        self._tasks.close()


def own_team(directory, optimizer, n_workers=1, **options):
    """A team that trains with the framework's own optimizer, which has no twin."""
    found = framework.compiled_of(compiled(optimizer))
    options = {"mode": "downpour", **options}
    return _team(directory, optimizer, found.brings(TrainingOptions()), options, n_workers)


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


@pytest.mark.parametrize("name", effort.some_of(["adamw", "sgd", "adamw of kernels", "nadam", "adagrad", "lion"], 2))
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
@pytest.mark.parametrize("name", effort.some_of(["adamw", "sgd"]))
def test_a_compiled_model_is_trained_as_by_fit_in_shared_memory_and_in_every_mode(tmp_path, monkeypatch, name, options):
    monkeypatch.setattr(LoopbackTeam, "shares", True)
    _, left, _ = fitted(OPTIMIZERS[name])
    finish(team := team_of(tmp_path, OPTIMIZERS[name], **options))
    np.testing.assert_allclose(central_of(team), left, rtol=1e-4, atol=1e-4)


def averaging(o):
    return o.AdamW(0.02, weight_decay=0.01, use_ema=True, ema_momentum=0.9)


@pytest.fixture(scope="module", params=effort.some_of([MODES[2], MODES[0], MODES[1]]), ids=str)
def whole(request, tmp_path_factory):
    """The options of a team that averages its weights, and what it leaves if nothing happens: that of `fit`."""
    _, left, losses = fitted(averaging, averages=True)
    finish(team := team_of(tmp_path_factory.mktemp("whole"), averaging, **request.param))
    np.testing.assert_allclose(central_of(team), left, rtol=1e-4, atol=1e-4)
    ours = [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]
    assert ours == pytest.approx(losses, rel=1e-3)
    return request.param, central_of(team)


@pytest.mark.parametrize("dies_after", effort.some_of([34, 9, 0, 1, 22]))
def test_a_team_killed_within_an_average_of_weights_leaves_that_of_fit(tmp_path, whole, dies_after):
    options, left = whole
    killed = team_of(tmp_path, averaging, **options)
    killed.run_fold()
    killed.steps(dies_after)
    if dies_after > 20:
        # As at a notice of the batch system: a checkpoint within an epoch, then the end.
        killed.order(msg.PreemptFold(assignment=0))
        killed.settle()
    finish(again := team_of(tmp_path, averaging, **options))
    assert np.array_equal(central_of(again), left)
    assert again.reported(msg.EpochReported)[0].epoch > 1 or dies_after < 20, "it has begun anew"


# ---------------------------------------------------------------- optimizers that Keras runs


def signs(o, **config):
    """An optimizer of a user: steps along the sign of a momentum, and counts in an attribute."""

    class Signs(o.Optimizer):
        def __init__(self, learning_rate=0.01, **more):
            super().__init__(learning_rate=learning_rate, **more)
            self.note = {"kind": "signs", "limits": [0.5, 1.0]}

        def build(self, variables):
            super().build(variables)
            self.moments = self.add_optimizer_variables(variables, "moment")

        def update_step(self, gradient, variable, learning_rate):
            moment = self.moments[self._get_variable_index(variable)]
            self.assign(moment, 0.9 * moment + gradient)
            self.assign_sub(variable, learning_rate * keras.ops.tanh(moment))

    return Signs(**config)


OWN = {
    "ftrl": lambda o: o.Ftrl(0.1),
    "adamax": lambda o: o.Adamax(0.05, clipnorm=1.0, weight_decay=0.1),
    "adam": lambda o: o.Adam(o.schedules.CosineDecay(0.05, 15), amsgrad=True, gradient_accumulation_steps=2),
    "muon": lambda o: o.Muon(0.05),
    "signs": signs,
}


@pytest.mark.parametrize(
    ("name", "options"),
    effort.some_of(
        [
            ("adam", {"mode": "allreduce"}),
            ("signs", {}),
            ("ftrl", {}),
            ("adamax", {"synchronous": True}),
            ("adam", {"sync_every": 2}),
            ("muon", {"exchange": "messages"}),
        ],
        2,
    ),
    ids=str,
)
def test_an_optimizer_that_keras_runs_steps_as_in_fit(tmp_path, monkeypatch, name, options):
    monkeypatch.setattr(LoopbackTeam, "shares", True)
    _, left, losses = fitted(OWN[name])
    finish(team := own_team(tmp_path, OWN[name], **options))
    begun = compiled(OWN[name])
    moved = np.abs(left - flat(begun)).max()
    assert moved > 0.05
    np.testing.assert_allclose(central_of(team), left, rtol=1e-4, atol=1e-4 * moved)
    ours = [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]
    assert ours == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "dies_after"),
    effort.some_of(
        [
            ("adam", {}, 22),
            ("signs", {"mode": "easgd"}, 34),
            ("adam", {"synchronous": True}, 34),
            ("signs", {"mode": "allreduce"}, 34),
            ("adam", {"mode": "easgd"}, 34),
        ]
    ),
    ids=str,
)
def test_a_team_killed_with_an_optimizer_of_keras_leaves_what_a_whole_one_leaves(tmp_path, name, options, dies_after):
    finish(whole := own_team(tmp_path / "whole", OWN[name], **options))
    killed = own_team(tmp_path / "parts", OWN[name], **options)
    killed.run_fold()
    killed.steps(dies_after)
    killed.order(msg.PreemptFold(assignment=0))
    killed.settle()
    finish(again := own_team(tmp_path / "parts", OWN[name], **options))
    assert np.array_equal(central_of(again), central_of(whole))
    assert again.reported(msg.EpochReported)[0].epoch > 1, "it has begun anew"


@pytest.mark.parametrize("name", effort.some_of(["Adamax", "Muon"]))
def test_options_replace_the_weight_decay_of_an_optimizer_that_keras_runs(tmp_path, name):
    def optimizer(o):
        own = getattr(o, name)(0.05, weight_decay=0.3, **{"adam_weight_decay": 0.3} if name == "Muon" else {})
        own.exclude_from_weight_decay(var_names=["bias"])
        return own

    _, left, _ = fitted(optimizer)
    finish(team := own_team(tmp_path, lambda o: getattr(o, name)(0.05), weight_decay=0.3, no_decay="bias"))
    np.testing.assert_allclose(central_of(team), left, rtol=1e-4, atol=1e-4)


def test_state_of_an_optimizer_that_no_checkpoint_holds_is_refused_by_name(tmp_path):
    def optimizer(o):
        own = signs(o)
        own.source = iter([])
        return own

    model = compiled(optimizer)
    adapter = keras_adapter(model, "mean_squared_error")
    refusal(adapter.stepping, Own(model.optimizer, ""), Instead(), says=["`source` of Signs, list_iterator"])


def averaging_adamax(o):
    return o.Adamax(0.05, use_ema=True, ema_momentum=0.9)


SHARED = [("allreduce", True), ("downpour", False), ("allreduce", False), ("downpour", True)]


@pytest.mark.parametrize(("mode", "shares"), effort.some_of(SHARED, 2))
def test_the_average_of_weights_beside_an_optimizer_that_keras_runs_is_that_of_fit(tmp_path, monkeypatch, mode, shares):
    monkeypatch.setattr(LoopbackTeam, "shares", shares)
    _, left, losses = fitted(averaging_adamax, averages=True)
    finish(team := own_team(tmp_path, averaging_adamax, mode=mode))
    np.testing.assert_allclose(central_of(team), left, rtol=1e-4, atol=1e-4)
    ours = [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]
    assert ours == pytest.approx(losses, rel=1e-3)
