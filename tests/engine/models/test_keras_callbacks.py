"""Callbacks of a model module: as in `fit`, wherever a training is interrupted; and those that are refused."""

import pathlib
import threading
from collections import defaultdict, deque

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.checkpoint import load_weights
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.engine.models.keras.adapter import KerasAdapter
from nnlo_opt.engine.models.keras.callbacks import KerasCallbacks, with_keras_names
from nnlo_opt.engine.models.losses import LossTerm
from tests.helpers import effort
from tests.helpers.adapters import N_CLASSES, N_FEATURES, keras, state_of, weights_of
from tests.helpers.keras_adapters import keras_adapter
from tests.helpers.linear_teams import finish, history_of, place_of
from tests.helpers.loopback_team import LoneTeam, tasks_from
from tests.helpers.memory_source import ArraySource

pytestmark = pytest.mark.keras

N_TRAIN, BATCH, EPOCHS = 60, 20, 7
KNOWN = ["loss", "acc", "val_loss", "val_acc"]


def test_what_a_callback_changes_in_the_model_is_trained_on():
    dense, normalisation = keras.layers.Dense(N_CLASSES), keras.layers.BatchNormalization()
    adapter = keras_adapter(keras.Sequential([keras.Input((N_FEATURES,)), dense, normalisation]), "mean_squared_error")
    adapter.synced_model()
    assert not adapter.take_from_model()
    normalisation.moving_mean.assign([5.0] * N_CLASSES)
    assert adapter.take_from_model()
    assert np.count_nonzero(state_of(adapter) == 5.0) == N_CLASSES
    dense.bias.assign([7.0] * N_CLASSES)
    assert adapter.take_from_model()
    assert np.count_nonzero(weights_of(adapter) == 7.0) == N_CLASSES


def test_accuracies_have_kerass_names_too():
    named = with_keras_names({"loss": 1.0, "acc": 0.5, "val_tags_acc": 0.25, "val_mass": 2.0})
    assert named == {
        "loss": 1.0,
        "acc": 0.5,
        "val_tags_acc": 0.25,
        "val_mass": 2.0,
        "accuracy": 0.5,
        "val_tags_accuracy": 0.25,
    }


def samples():
    """Noise, so that the validation loss rises soon."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(90, N_FEATURES)).astype(np.float32), rng.integers(N_CLASSES, size=90).astype(np.int32)


def model():
    def dense(n, **options):
        return keras.layers.Dense(n, kernel_initializer=keras.initializers.GlorotUniform(seed=n), **options)

    return keras.Sequential(
        [keras.Input((N_FEATURES,)), dense(16, activation="tanh"), dense(N_CLASSES, activation="softmax")]
    )


def own(**more):
    """A callback with state of every kind, whose rate depends on all of it."""

    class Own(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.losses, self.by_name = [], {"tuple": (1, None), 3: True, "text": "x"}
            self.mean, self.lowest = np.zeros(2), float("inf")
            self.place, self.choose = pathlib.Path("here"), max
            vars(self).update(more)

        def on_epoch_begin(self, epoch, logs=None):
            rate = self.model.optimizer.learning_rate
            self.model.optimizer.learning_rate = float(rate) * (0.9 if len(self.losses) % 2 else 1.05)

        def on_epoch_end(self, epoch, logs=None):
            self.losses.append(logs["val_loss"])
            self.mean = self.mean * 0.5 + [logs["loss"], logs["val_accuracy"]]
            self.lowest = min(self.lowest, *self.losses)
            if self.mean[0] > 1.2 and epoch < 4:
                self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.8

    return Own()


CASES = {
    "plateau": lambda: [keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.02, cooldown=1)],
    "scheduler": lambda: [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.5 + epoch % 2))],
    "stopping": lambda: [keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)],
    "own": lambda: [own(), keras.callbacks.TerminateOnNaN()],
    "all": lambda: [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau("val_accuracy", factor=0.5, patience=2),
        keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=0.001, start_from_epoch=1),
        own(),
    ],
}


def fitted(callbacks):
    """Rates of the epochs, history and weights of `fit`."""
    rates = []

    class Note(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    (x, y), trained = samples(), model()
    trained.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = trained.fit(
        *(x[:N_TRAIN], y[:N_TRAIN]),
        validation_data=(x[N_TRAIN:], y[N_TRAIN:]),
        **{"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0},
        callbacks=[Note(), *callbacks],
    ).history
    return rates, history, np.concatenate([weight.ravel() for weight in trained.get_weights()])


def team_of(directory, make, rates=None, **changes):
    """A team of one rank; `rates` gets the rate of every epoch."""
    options = TrainingOptions.of(
        {"batch": BATCH, "epochs": EPOCHS, "optimizer": "sgd", "learning_rate": 0.5, "shuffle": False, **changes}
    )

    class Noting:
        def __init__(self, callbacks):
            self._callbacks = callbacks

        def call(self, adapter, epoch, metrics, learning_rate, **how):
            if rates is not None and metrics is not None:
                rates.append(learning_rate)
            return self._callbacks.call(adapter, epoch, metrics, learning_rate, **how)

    def callbacks_of(task):
        is_scheduled = options.schedule.changes
        return Noting(keras_model.epoch_callbacks(make(), "m.py", KNOWN, options.epochs, is_scheduled=is_scheduled))

    def build(parameters, options, seed):
        return keras_adapter(model(), "sparse_categorical_crossentropy")

    source, folds = ArraySource(*samples()), [single_fold(N_TRAIN, 30)]
    return LoneTeam(directory, options, lambda: tasks_from(build, source, folds, options), make_callbacks=callbacks_of)


def kept(where):
    """What a training has left."""
    return load_weights(place_of(where))[0], history_of(where)


@pytest.mark.parametrize("case", effort.some_of(["all", "stopping", "plateau", "scheduler", "own"], 2))
def test_rates_epochs_and_weights_are_those_of_fit(tmp_path, case):
    rates, history, weights = fitted(CASES[case]())
    of_team = []
    team = team_of(tmp_path, CASES[case], of_team)
    finished = finish(team)
    assert finished.n_epochs == len(history["loss"])
    assert [epoch["val_loss"] for epoch in history_of(team)["epochs"]] == pytest.approx(history["val_loss"], rel=1e-4)
    assert len(set(of_team)) > 1 or case == "stopping"
    np.testing.assert_allclose(kept(team)[0], weights, rtol=2e-4, atol=1e-5)
    assert of_team == pytest.approx(rates)


@pytest.mark.parametrize("case", effort.some_of([*reversed(CASES)]))
def test_killed_after_every_epoch_a_training_ends_with_the_very_same_bits(tmp_path, case):
    whole, rates = [], []
    finished = finish(team := team_of(tmp_path / "whole", CASES[case], whole))
    expected = kept(team)
    for _ in range(finished.n_epochs):
        team = team_of(tmp_path / "parts", CASES[case], rates)
        team.run_fold()
        while not team.reported(msg.EpochReported):
            assert team.step()
    if not team.reported(msg.FoldFinished):  # killed between its last report and its end
        team = team_of(tmp_path / "parts", CASES[case], rates)
        finish(team)
    assert rates == whole
    assert kept(team)[1] == expected[1]
    np.testing.assert_array_equal(kept(team)[0], expected[0])


def test_more_epochs_go_on_where_the_last_ones_ended(tmp_path):
    whole, rates = [], []
    expected = finish(team_of(tmp_path / "whole", CASES["scheduler"], whole))
    finish(team_of(tmp_path / "parts", CASES["scheduler"], rates, epochs=4))
    assert finish(team_of(tmp_path / "parts", CASES["scheduler"], rates)).metrics == expected.metrics
    assert rates == whole


def test_the_mode_of_a_metric_that_keras_knows_is_derived_as_in_fit():
    metrics = [keras.metrics.AUC(), keras.metrics.MeanSquaredError(name="error")]
    terms = (LossTerm("out", "mean_squared_error"),)
    asked = keras_model.metrics_of(metrics, terms)
    adapter = KerasAdapter(model(), terms, metrics=asked.metrics, merging=None)
    monitors = ("val_auc", "val_error", "val_loss")
    callbacks = [keras.callbacks.EarlyStopping(monitor, patience=1) for monitor in monitors]
    made = KerasCallbacks(callbacks, EPOCHS)
    values = dict.fromkeys(monitors, 0.5)
    made.call(adapter, 0, None, 0.1, is_last=False)
    assert not made.call(adapter, 1, values, 0.1, is_last=False).stop
    assert [callback.mode for callback in callbacks] == ["max", "min", "min"]
    better = {"val_auc": 0.6, "val_error": 0.4, "val_loss": 0.4}
    assert not made.call(adapter, 2, better, 0.1, is_last=False).stop
    assert made.call(adapter, 3, better | {"val_auc": 0.5}, 0.1, is_last=False).stop


# ---------------------------------------------------------------- refusals


def of_class(name, *arguments, **options):
    return lambda: getattr(keras.callbacks, name)(*arguments, **options)


def refused(make, *, is_scheduled=False):
    with pytest.raises(ConfigurationError) as error:
        keras_model.epoch_callbacks([make()], "m.py", KNOWN, 3, is_scheduled=is_scheduled)
    return str(error.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (of_class("ModelCheckpoint", "best.keras"), ["ModelCheckpoint", "`--checkpoint-interval`", "one file"]),
        (of_class("BackupAndRestore", "backup"), ["BackupAndRestore", "`--checkpoint-interval`"]),
        (of_class("CSVLogger", "log.csv"), ["CSVLogger", "history"]),
        (of_class("TensorBoard", "logs"), ["TensorBoard", "`nnlo-opt export --to tensorboard`"]),
        (of_class("SwapEMAWeights"), ["SwapEMAWeights"]),
        (of_class("EarlyStopping", "val_los"), ["'val_los' of EarlyStopping", "Did you mean `val_loss`?"]),
        (of_class("ReduceLROnPlateau", "val_auc"), ["loss, acc, val_loss, val_acc, accuracy, val_accuracy", "val_auc"]),
        (of_class("LambdaCallback", on_train_batch_end=print), ["`on_train_batch_end`", "`on_epoch_end`"]),
        (lambda: own(on_test_begin=print), ["Own with `on_test_begin`", "`on_epoch_end`"]),
        (lambda: keras.callbacks.EarlyStopping, ["<class", "Write `()`"]),
        (lambda: 3, ["must return Keras callbacks", "3"]),
    ],
)
def test_a_callback_that_would_not_act_as_in_fit_is_refused_with_what_does(make, says):
    text = refused(make)
    assert all(word in text for word in says), text


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock,
        lambda: {1, 2},
        lambda: deque([1]),
        lambda: defaultdict(list),
        lambda: [{"deep": (object(),)}],
        lambda: np.random.default_rng(0),
        lambda: np.array([object()]),
    ],
)
def test_what_is_no_plain_data_is_refused_by_name(value):
    assert "`thing` of Own" in refused(lambda: own(thing=value()))


def test_data_that_appear_in_a_training_are_refused_before_its_first_batch(tmp_path):
    def make():
        return [keras.callbacks.LambdaCallback(on_train_begin=lambda logs: setattr(made[0], "log", object()))]

    made = make()
    team = team_of(tmp_path, lambda: made)
    team.run_fold()
    failed = team.settle()
    assert isinstance(failed, msg.FoldFailed)
    assert "`log` of LambdaCallback, object" in failed.reason
    assert not team.delivered(msg.Train)


@pytest.mark.parametrize("name", ["ReduceLROnPlateau", "LearningRateScheduler"])
def test_either_a_schedule_or_a_callback_sets_the_rate(name):
    options = [lambda epoch: 0.1] if name == "LearningRateScheduler" else []
    assert "`--lr-schedule`" in refused(of_class(name, *options), is_scheduled=True)


CHANGES = {
    "the learning rate": (lambda model: setattr(model.optimizer, "learning_rate", 0.1), {"lr_schedule": "linear"}, ""),
    "a setting": (lambda model: setattr(model.optimizer, "momentum", 0.9), {}, "settings of the optimizer"),
    "a setting of another optimizer": (lambda model: setattr(model.optimizer, "beta_1", 0.9), {}, "settings of the"),
    "the optimizer": (lambda model: setattr(model, "optimizer", keras.optimizers.Adam()), {}, "`model.optimizer`"),
    "layers that train": (lambda model: setattr(model.layers[0], "trainable", False), {}, "which weights are trained"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_callback_changes_without_effect_ends_the_training(tmp_path, what):
    change, options, says = CHANGES[what]
    note = lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: change(callbacks[0].model))  # noqa: E731
    callbacks = [note()]
    team = team_of(tmp_path, lambda: callbacks, **options)
    team.run_fold()
    failed = team.settle()
    assert isinstance(failed, msg.FoldFailed)
    assert says in failed.reason
    assert says or "`--lr-schedule`" in failed.reason


def test_a_function_that_changes_cannot_be_resumed(tmp_path):
    def make():
        class Phases(keras.callbacks.Callback):
            def __init__(self):
                super().__init__()
                self.phase = self.first

            def first(self):
                self.phase = self.second

            def second(self): ...

            def on_epoch_end(self, epoch, logs=None):
                self.phase()

        return [Phases()]

    team = team_of(tmp_path, make)
    team.run_fold()
    while not team.reported(msg.EpochReported):
        assert team.step()
    team = team_of(tmp_path, make)
    team.run_fold()
    failed = team.settle()
    assert isinstance(failed, msg.FoldFailed)
    assert "`phase` of Phases" in failed.reason


def test_a_training_resumes_with_its_own_callbacks(tmp_path):
    finish(team_of(tmp_path, CASES["plateau"], epochs=2))
    team = team_of(tmp_path, CASES["stopping"])
    team.run_fold()
    failed = team.settle()
    assert isinstance(failed, msg.FoldFailed)
    assert "that it began with: ReduceLROnPlateau. Received: EarlyStopping." in failed.reason
