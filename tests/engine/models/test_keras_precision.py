"""Mixed precision of Keras, on every backend: as in `fit`, and with its loss scale after a resume."""

import numpy as np
import pytest

from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.checkpoint import load_latest, load_weights
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.engine.models.keras.adapter import LossScale
from nnlo_opt.engine.models.keras.compiled import arguments_of
from tests.helpers import effort
from tests.helpers.adapters import N_CLASSES, N_FEATURES, keras, samples, weights_of
from tests.helpers.keras_adapters import keras_adapter
from tests.helpers.linear_teams import finish, history_of, place_of
from tests.helpers.loopback_team import LoneTeam, tasks_from
from tests.helpers.memory_source import ArraySource

pytestmark = pytest.mark.keras

N_TRAIN, BATCH, EPOCHS, RATE = 60, 20, 3, 0.1
#: a scale at which no gradient overflows, and which doubles within a training
SCALE, PATIENCE = 2.0**6, 4


def model(policy):
    with keras_model.building({}, policy):
        layers = [
            keras.layers.Dense(n, activation=name, kernel_initializer=keras.initializers.GlorotUniform(seed=n))
            for n, name in ((16, "tanh"), (N_CLASSES, "softmax"))
        ]
        return keras.Sequential([keras.Input((N_FEATURES,)), layers[0], keras.layers.BatchNormalization(), layers[1]])


def compiled(policy, scale=SCALE):
    made, optimizer = model(policy), keras.optimizers.SGD(RATE)
    if policy == "mixed_float16" and scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale, dynamic_growth_steps=PATIENCE)
    made.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def team_of(directory, policy, workers=1, scale=SCALE, **changes):
    given = {"batch": BATCH, "epochs": EPOCHS, "optimizer": "sgd", "learning_rate": RATE, "shuffle": False, **changes}
    options = TrainingOptions.of(given)

    def build(parameters, options, seed):
        return keras_adapter(compiled(policy, scale), "sparse_categorical_crossentropy")

    source, folds = ArraySource(*samples(90, 3)), [single_fold(N_TRAIN, 30)]
    return LoneTeam(directory, options, lambda: tasks_from(build, source, folds, options), workers)


@pytest.mark.parametrize("policy", effort.some_of(["mixed_float16", "mixed_bfloat16"]))
def test_a_training_is_that_of_fit(tmp_path, policy):
    (x, y), fitted = samples(90, 3), compiled(policy)
    history = fitted.fit(
        *(x[:N_TRAIN], y[:N_TRAIN]),
        validation_data=(x[N_TRAIN:], y[N_TRAIN:]),
        **{"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0},
    ).history
    finish(team := team_of(tmp_path, policy))
    for name in ("loss", "val_loss"):
        assert [epoch[name] for epoch in history_of(team)["epochs"]] == pytest.approx(history[name], rel=1e-4)
    weights, state = load_weights(place_of(team))
    for vector, variables in ((weights, fitted.trainable_variables), (state, fitted.non_trainable_variables)):
        expected = [keras.ops.convert_to_numpy(variable).ravel() for variable in variables]
        np.testing.assert_allclose(vector, np.concatenate(expected), rtol=1e-4, atol=2e-5)
    if policy == "mixed_float16":
        (*_, scale) = load_latest(place_of(team)).workers[1]["discrete"]
        assert 2.0 ** scale[0] == float(fitted.optimizer.dynamic_scale) == SCALE * 4


@pytest.mark.parametrize(
    ("policy", "workers"),
    effort.some_of([("mixed_float16", 1), ("mixed_float16", 2), ("mixed_bfloat16", 2)]),
)
def test_killed_after_every_epoch_a_training_ends_with_the_very_same_bits(tmp_path, policy, workers):
    """The scale begins so high that the first gradients overflow, and is halved until they do not."""
    how = {"workers": workers, "scale": 2.0**24, "synchronous": True}
    finish(whole := team_of(tmp_path / "whole", policy, **how))
    for epoch in range(EPOCHS):
        team = team_of(tmp_path / "parts", policy, **how)
        team.run_fold()
        while not team.reported(msg.EpochReported):
            assert team.step()
        assert team.reported(msg.FoldStarted)[0].epoch == epoch
        if policy == "mixed_float16":
            assert load_latest(place_of(team)).workers[workers]["discrete"][-1][0] < 24
    if not team.reported(msg.FoldFinished):  # killed between its last report and its end
        finish(team := team_of(tmp_path / "parts", policy, **how))
    assert history_of(team) == history_of(whole)
    assert all(map(np.array_equal, load_weights(place_of(team)), load_weights(place_of(whole))))


def test_a_resumed_loss_scale_doubles_when_it_would_have():
    fitting, whole, resumed = np.ones(2, np.float32), LossScale(exponent=3, patience=4), LossScale(patience=4)
    for _ in range(3):
        whole.fits(fitting)
        whole.rise()
    resumed.resume(whole.state)
    resumed.fits(fitting)
    resumed.rise()
    assert resumed.state == [4, 0]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_outputs_can_be_averaged_and_an_unchanged_model_keeps_its_weights(policy):
    adapter = keras_adapter(model(policy), "sparse_categorical_crossentropy")
    x, y = samples(8)
    (output,) = adapter.predict(x)
    assert output.dtype == np.float32
    assert np.isfinite(adapter.measure([output], y).means()["loss"])
    weights = aligned_empty(adapter.n_weights)
    weights[:] = np.linspace(-1, 1, len(weights))
    adapter.write_weights(weights)
    adapter.synced_model()
    assert not adapter.take_from_model()
    assert np.array_equal(weights_of(adapter), weights)
    adapter.synced_model().layers[0].bias.assign(np.ones(16))
    assert adapter.take_from_model()
    assert np.count_nonzero(weights_of(adapter) != weights) == 16


def test_what_is_not_honoured_is_said():
    assert keras_model.remarks_on(model("mixed_float16")) == []
    assert "Weights in bfloat16 are trained" in keras_model.remarks_on(model("bfloat16"))[0]
    assert arguments_of(compiled("mixed_float16")).unused == ()
    assert arguments_of(compiled("mixed_float16", 1000.0)).unused == (
        "initial_scale=1000 of LossScaleOptimizer (it begins at 1024)",
    )
