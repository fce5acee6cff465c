"""What every backend of Keras must compute; runs on the one that KERAS_BACKEND names, TensorFlow without it.

`test_keras_backends` runs this file on the others, each in a process of its own.
"""

import numpy as np
import pytest

from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.testing.model_conformance import ModelConformance
from tests.helpers.adapters import N_CLASSES, N_FEATURES, gradient, images, keras, samples, weights_of
from tests.helpers.keras_adapters import keras_adapter

pytestmark = [pytest.mark.many, pytest.mark.keras]


def mlp(*hidden, activation="softmax", n_outputs=N_CLASSES):
    """The hidden layers are given as (name, arguments, options)."""
    keras_model.set_seed(0)
    layers = [getattr(keras.layers, name)(*arguments, **options) for name, arguments, options in hidden]
    output = keras.layers.Dense(n_outputs, activation=activation, dtype="float32")
    return keras.Sequential([keras.Input((N_FEATURES,)), *layers, output])


dense = ("Dense", (8,), {"activation": "tanh"})
penalised = ("Dense", (8,), {"activation": "tanh", "kernel_regularizer": "l2", "activity_regularizer": "l2"})
normalisation = ("BatchNormalization", (), {})
dropout = ("Dropout", (0.5,), {})


class TestOneHotLabels(ModelConformance):
    def make(self):
        return keras_adapter(mlp(dense), "categorical_crossentropy")

    batch = staticmethod(images)


@pytest.mark.proof
class TestClassNumbers(ModelConformance):
    def make(self):
        return keras_adapter(mlp(dense), "sparse_categorical_crossentropy")

    batch = staticmethod(samples)


class TestStateAndDropout(TestOneHotLabels):
    deterministic = False

    def make(self):
        return keras_adapter(mlp(dense, normalisation, dropout), "categorical_crossentropy")


@pytest.mark.proof
class TestRegression(ModelConformance):
    def make(self):
        hidden = ("Dense", (8,), {"activation": "tanh", "kernel_regularizer": "l2"})
        return keras_adapter(mlp(hidden, activation=None, n_outputs=1), "mse")

    def batch(self, n_samples, seed):
        x, _ = images(n_samples, seed)
        return x, x.sum(axis=1)


@pytest.mark.proof
class TestOwnLoss(TestOneHotLabels):
    """A function that returns the mean has no loss of each sample to be weighed."""

    takes_sample_weights = False

    def make(self):
        return keras_adapter(mlp(dense), lambda y, p: keras.ops.mean(keras.losses.categorical_crossentropy(y, p)))


class TestSeveralInputsAndOutputs(ModelConformance):
    """Two inputs, nested labels, three losses and their weights."""

    def make(self):
        return keras_adapter(forked(), ["categorical_crossentropy", "mse", "binary_crossentropy"], [1.0, 0.5, 2.0])

    def batch(self, n_samples, seed):
        return forked_batch(n_samples, seed)


class TestMixedPrecision(TestOneHotLabels):
    """Layers compute in bfloat16; weights, losses and gradients are float32."""

    rtol = 2e-2
    #: a slope of two steps of bfloat16 says nothing
    deterministic = False

    def make(self):
        options = {**dense[2], "dtype": "mixed_bfloat16"}
        return keras_adapter(mlp(("Dense", (8,), options)), "categorical_crossentropy")


@pytest.mark.proof
class TestSequences(ModelConformance):
    def make(self):
        keras_model.set_seed(0)
        layers = keras.layers
        model = keras.Sequential([keras.Input((None, 2)), layers.Masking(), layers.LSTM(4), layers.Dense(1)])
        return keras_adapter(model, "mse")

    def batch(self, n_samples, seed):
        x = np.random.default_rng(seed).normal(size=(n_samples, 5, 2)).astype(np.float32)
        x[::2, 3:] = 0
        return x, x.sum(axis=(1, 2))


def forked():
    keras_model.set_seed(0)
    layers = keras.layers
    left, right = keras.Input((N_FEATURES,), name="left"), keras.Input((4, 2), name="right")
    stem = layers.Concatenate()([layers.Dense(5, activation="tanh")(left), layers.Flatten()(right)])
    outputs = [
        layers.Dense(N_CLASSES, activation="softmax", name="kind")(stem),
        layers.Dense(1, name="energy")(stem),
        layers.Dense(1, activation="sigmoid", name="real")(stem),
    ]
    return keras.Model([left, right], outputs)


def forked_batch(n, seed=0):
    x, y = images(n, seed)
    right = np.random.default_rng(seed).normal(size=(n, 4, 2)).astype(np.float32)
    return [x, right], [y, [x.sum(axis=1), (x[:, 0] > 0).astype(np.int32)]]


@pytest.mark.parametrize("hidden", [(dense,), (penalised,), (dense, normalisation)])
def test_training_is_kerass_own(hidden):
    """Gradient, batch statistics, penalties and figures: ten steps beside `train_on_batch`, then `evaluate`."""
    reference = mlp(*hidden)
    reference.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy", metrics=["accuracy"])
    adapter = keras_adapter(mlp(*hidden), "categorical_crossentropy")
    assert_same_training(adapter, reference, images, lambda theirs: [theirs["loss"], theirs["accuracy"]])


def test_training_of_several_outputs_is_kerass_own():
    losses, weights = ["categorical_crossentropy", "mse", "binary_crossentropy"], [1.0, 0.5, 2.0]
    reference = forked()
    metrics = {"kind": "accuracy", "real": "binary_accuracy"}
    reference.compile(keras.optimizers.SGD(0.1), losses, loss_weights=weights, metrics=metrics)
    adapter = keras_adapter(forked(), losses, weights)
    names = ["loss", "kind_acc", "kind_loss", "energy_loss", "real_loss", "kind_acc", "real_acc"]
    assert adapter.figures == ("loss", "acc", *names[2:])
    keys = [{"kind_acc": "kind_accuracy", "real_acc": "real_binary_accuracy"}.get(name, name) for name in names]

    def flat(n, seed):
        x, (kind, (energy, real)) = forked_batch(n, seed)
        return x, [kind, energy[:, None], real[:, None]]

    assert_same_training(adapter, reference, flat, lambda theirs: [theirs[key] for key in keys])


@pytest.mark.parametrize("loss", ["categorical_crossentropy", "mse"])
def test_sample_weights_are_kerass_own(loss):
    reference = mlp(dense)
    reference.compile(keras.optimizers.SGD(0.1), loss)
    adapter = keras_adapter(mlp(dense), loss)
    weights = np.random.default_rng(0).random(20).astype(np.float32)
    batch = images(20)
    ours = gradient(adapter, batch, weights)[1].means()["loss"]
    theirs = reference.train_on_batch(*batch, sample_weight=weights, return_dict=True)["loss"]
    assert ours == pytest.approx(float(theirs), rel=1e-4)


@pytest.mark.proof
def test_masked_steps_count_as_in_keras():
    def tagger():
        keras_model.set_seed(0)
        layers = keras.layers
        head = layers.Dense(N_CLASSES, activation="softmax")
        return keras.Sequential([keras.Input((None, 2)), layers.Masking(), layers.GRU(4, return_sequences=True), head])

    def sequences(n, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 4 + seed % 3, 2)).astype(np.float32)
        x[::2, 2:] = 0
        return x, rng.integers(N_CLASSES, size=x.shape[:2])

    reference = tagger()
    reference.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    adapter = keras_adapter(tagger(), "sparse_categorical_crossentropy")
    # On JAX, Keras itself forgets the mask before it counts.
    compared = ["loss"] if keras.backend.backend() == "jax" else ["loss", "accuracy"]
    assert_same_training(adapter, reference, sequences, lambda theirs: [theirs[name] for name in compared])


def assert_same_training(adapter, reference, batch_of, read):
    """Ten steps of both, then an evaluation; `read` takes Keras's figures in our order, or the first of them."""
    optimizer, weights = make_optimizer("sgd", adapter.n_weights, 0.1), weights_of(adapter)
    for seed in range(10):
        batch = batch_of(20, seed)
        slope, metrics = gradient(adapter, batch)
        reference.reset_metrics()
        theirs = reference.train_on_batch(*batch, return_dict=True)
        compare(metrics, read(theirs))
        optimizer.apply(weights, slope)
        adapter.write_weights(weights)
    for ours, theirs in zip(adapter.synced_model().get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    batch = batch_of(50, 99)
    theirs = reference.evaluate(*batch, verbose=0, batch_size=50, return_dict=True)
    compare(adapter.evaluate(*batch), read(theirs))


def compare(metrics, theirs):
    np.testing.assert_allclose([*metrics.means().values()][: len(theirs)], theirs, rtol=1e-4)


def test_dropout_differs_from_batch_to_batch_and_rests_in_evaluation():
    adapter = keras_adapter(mlp(dense, dropout), "categorical_crossentropy")
    batch = images(40)
    start = adapter.discrete_state()
    first, second = gradient(adapter, batch)[0], gradient(adapter, batch)[0]
    assert not np.array_equal(first, second)
    assert adapter.discrete_state() != start
    assert adapter.evaluate(*batch) == adapter.evaluate(*batch)


def test_a_subclassed_model_of_two_inputs_and_a_dict_of_outputs():
    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.drop = keras.layers.Dropout(0.9)
            self.heads = {name: keras.layers.Dense(1) for name in ("up", "down")}

        def call(self, inputs):
            left, right = inputs
            return {name: head(self.drop(left + right)) for name, head in self.heads.items()}

    adapter = keras_adapter(Pair(), {"up": "mse", "down": "mae"}, feature_shape=[(3,), (3,)])
    # Sorted, as Keras flattens a dict.
    assert adapter.figures == ("loss", "down_loss", "up_loss")
    for n in (4, 9):
        batch = [np.ones((n, 3), np.float32)] * 2, [np.zeros(n, np.float32)] * 2
        assert gradient(adapter, batch)[1].means()["loss"] != pytest.approx(adapter.evaluate(*batch).means()["loss"])


def test_saved_models_compute_the_same(tmp_path):
    adapter = keras_adapter(mlp(dense, normalisation), "categorical_crossentropy")
    batch = images(20)
    for _ in range(3):
        slope, _ = gradient(adapter, batch)
        adapter.write_weights(weights_of(adapter) - slope)
    adapter.save(tmp_path / "model.keras")
    loaded = keras_adapter(keras.models.load_model(tmp_path / "model.keras"), "categorical_crossentropy")
    assert loaded.evaluate(*batch) == adapter.evaluate(*batch)


def test_float16_needs_a_loss_scale():
    """Gradients of 1e-6 are nothing in float16; a scale that overflows falls until it does not."""
    options = {**dense[2], "dtype": "mixed_float16"}
    adapter = keras_adapter(mlp(("Dense", (8,), options), n_outputs=1, activation=None), lambda y, p: 1e-6 * p)
    x, _ = images(10)
    full = keras_adapter(mlp(dense, n_outputs=1, activation=None), lambda y, p: 1e-6 * p)
    y = np.zeros(10, np.float32)
    slope, expected = gradient(adapter, (x, y))[0], gradient(full, (x, y))[0]
    np.testing.assert_allclose(slope, expected, rtol=0.05, atol=1e-9)
    assert adapter.discrete_state()[-1] == [15, 1]
    steep = keras_adapter(mlp(("Dense", (8,), options), n_outputs=1, activation=None), lambda y, p: 1e4 * p)
    assert np.isfinite(gradient(steep, (x, y))[0]).all()
    exponent, _ = steep.discrete_state()[-1]
    assert exponent < 15
    steep.load_discrete_state([*steep.discrete_state()[:-1], [exponent, 1999]])
    gradient(steep, (x, y))
    assert steep.discrete_state()[-1] == [exponent + 1, 0]
