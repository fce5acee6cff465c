"""Keras on TensorFlow in this process; models small enough for milliseconds."""

import gc
import importlib
import os
import resource
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from nnlo_opt.algorithms.optimizers import make_optimizer
from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.models import keras_model
from nnlo_opt.models.keras_model import KerasAdapter
from nnlo_opt.testing.model_conformance import ModelConformance
from nnlo_opt.vectors import aligned_empty

pytestmark = [
    pytest.mark.keras,
    # Keras's own conversion of variables, when it saves a model.
    pytest.mark.filterwarnings("ignore:__array__ implementation"),
]
N_FEATURES, N_CLASSES = 6, 3


class LateKeras:
    """Keras, imported at the first use: not when these tests are collected but not run."""

    def __getattr__(self, name):
        keras_model.import_framework(1)
        return getattr(importlib.import_module("keras"), name)


keras = LateKeras()


def layer(name, *arguments, **options):
    """A function that makes the layer."""
    return lambda: getattr(keras.layers, name)(*arguments, **options)


def mlp(*hidden, activation="softmax", n_outputs=N_CLASSES, seed=0):
    keras_model.set_seed(seed)
    output = layer("Dense", n_outputs, activation=activation)
    return keras.Sequential([keras.Input((N_FEATURES,)), *(make() for make in (*hidden, output))])


def images(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, N_FEATURES)).astype(np.float32), np.eye(N_CLASSES, dtype=np.float32)[
        rng.integers(N_CLASSES, size=n)
    ]


def gradient(adapter, batch):
    metrics = adapter.gradient(*batch, out := aligned_empty(adapter.n_weights))
    return out, metrics


def weights_of(adapter):
    adapter.read_weights(out := aligned_empty(adapter.n_weights))
    return out


dense = layer("Dense", 8, activation="tanh")
penalised = layer("Dense", 8, activation="tanh", kernel_regularizer="l2")
normalisation = layer("BatchNormalization")
dropout = layer("Dropout", 0.5)


class TestKerasAdapter(ModelConformance):
    def make(self):
        return KerasAdapter(mlp(dense), "categorical_crossentropy")

    def batch(self, n_samples, seed):
        return images(n_samples, seed)


class TestKerasAdapterWithState(TestKerasAdapter):
    deterministic = False

    def make(self):
        model = mlp(dense, normalisation, dropout)
        return KerasAdapter(model, "categorical_crossentropy")


class TestKerasAdapterRegression(ModelConformance):
    def make(self):
        return KerasAdapter(mlp(penalised, activation=None, n_outputs=1), "mse")

    def batch(self, n_samples, seed):
        x, _ = images(n_samples, seed)
        return x, x.sum(axis=1)


@pytest.mark.parametrize("hidden", [(dense,), (penalised,), (dense, normalisation)])
def test_training_is_kerass_own(hidden):
    """Gradient, batch statistics, penalties and figures: ten steps beside `train_on_batch`, then `evaluate`."""
    reference = mlp(*hidden)
    reference.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy", metrics=["accuracy"])
    adapter = KerasAdapter(mlp(*hidden), "categorical_crossentropy")
    optimizer, weights = make_optimizer("sgd", adapter.n_weights, 0.1), weights_of(adapter)
    for seed in range(10):
        batch = images(20, seed)
        slope, metrics = gradient(adapter, batch)
        reference.reset_metrics()
        theirs = reference.train_on_batch(*batch)
        np.testing.assert_allclose([*metrics.means().values()], theirs, rtol=1e-4)
        optimizer.apply(weights, slope)
        adapter.write_weights(weights)
    for ours, theirs in zip(adapter.synced_model().get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    batch = images(50, seed=99)
    theirs = reference.evaluate(*batch, verbose=0, batch_size=50)
    np.testing.assert_allclose([*adapter.evaluate(*batch).means().values()], theirs, rtol=1e-4)


def test_accuracy_is_a_count():
    adapter = KerasAdapter(mlp(dense), "categorical_crossentropy")
    for n_samples in (7, 49, 101):
        assert adapter.evaluate(*images(n_samples)).sums["acc"].is_integer()


def test_class_numbers_are_one_hot_labels():
    x, y = images(30)
    one_hot = KerasAdapter(mlp(dense), "categorical_crossentropy")
    for labels in (y.argmax(axis=1), y.argmax(axis=1, keepdims=True)):
        sparse = KerasAdapter(mlp(dense), "sparse_categorical_crossentropy")
        np.testing.assert_allclose(gradient(sparse, (x, labels))[0], gradient(one_hot, (x, y))[0], atol=1e-6)
        assert sparse.evaluate(x, labels).sums["acc"] == one_hot.evaluate(x, y).sums["acc"]


@pytest.mark.parametrize("loss", ["binary_crossentropy", "mean_squared_error", "hinge"])
def test_labels_may_leave_out_a_last_dimension_of_one(loss):
    x, _ = images(30)
    y = (x[:, 0] > 0).astype(np.float32)
    flat = KerasAdapter(mlp(dense, activation="sigmoid", n_outputs=1), loss)
    column = KerasAdapter(mlp(dense, activation="sigmoid", n_outputs=1), loss)
    np.testing.assert_array_equal(gradient(flat, (x, y))[0], gradient(column, (x, y[:, None]))[0])
    assert flat.evaluate(x, y).sums == column.evaluate(x, y[:, None]).sums


def test_a_loss_of_ones_own_counts_classes_by_the_labels():
    def doubled(y_true, y_pred):
        return 2 * keras.losses.categorical_crossentropy(y_true, y_pred)

    own, plain = KerasAdapter(mlp(dense), doubled), KerasAdapter(mlp(dense), "categorical_crossentropy")
    batch = images(40)
    assert own.evaluate(*batch).sums["loss"] == pytest.approx(2 * plain.evaluate(*batch).sums["loss"])
    assert own.evaluate(*batch).sums["acc"] == plain.evaluate(*batch).sums["acc"]


def test_dropout_differs_from_batch_to_batch_and_rests_in_evaluation():
    adapter = KerasAdapter(mlp(dense, dropout), "categorical_crossentropy")
    batch = images(40)
    start = adapter.discrete_state()
    first, second = gradient(adapter, batch)[0], gradient(adapter, batch)[0]
    assert not np.array_equal(first, second)
    assert adapter.discrete_state() != start
    assert adapter.evaluate(*batch) == adapter.evaluate(*batch)


def test_counters_of_another_model_are_refused():
    with pytest.raises(ValueError, match="Counters of"):
        KerasAdapter(mlp(dense), "mse").load_discrete_state([[1, 2]])


def test_layers_of_a_subclassed_model_know_that_they_train():
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.drop, self.head = keras.layers.Dropout(0.9), keras.layers.Dense(N_CLASSES, activation="softmax")

        def call(self, x):
            return self.head(self.drop(x))

    model = Plain()
    keras_model.build_variables(model, (N_FEATURES,))
    adapter = KerasAdapter(model, "categorical_crossentropy")
    batch = images(40)
    assert adapter.n_weights == (N_FEATURES + 1) * N_CLASSES
    assert gradient(adapter, batch)[1].means()["loss"] != pytest.approx(adapter.evaluate(*batch).means()["loss"])


def test_frozen_weights_are_state():
    model = mlp(dense, dense)
    model.layers[0].trainable = False
    adapter = KerasAdapter(model, "categorical_crossentropy")
    assert adapter.n_state == (N_FEATURES + 1) * 8
    assert adapter.n_weights == 9 * 8 + 9 * N_CLASSES


def test_sequences_of_any_length():
    keras_model.set_seed(0)
    model = keras.Sequential([keras.Input((None, 2)), keras.layers.GRU(3), keras.layers.Dense(1)])
    adapter = KerasAdapter(model, "mse")
    for length in (3, 8):
        x = np.ones((5, length, 2), np.float32)
        assert gradient(adapter, (x, np.ones(5, np.float32)))[1].n_samples == 5


def test_weights_of_no_use_have_no_slope():
    model = mlp(dense, layer("Lambda", lambda x: 0 * x[:, :1]))
    slope, _ = gradient(KerasAdapter(model, "categorical_crossentropy"), images(9))
    assert not slope[: (N_FEATURES + 1) * 8].any()


def test_seed_decides_the_weights():
    one, same, other = (
        weights_of(KerasAdapter(mlp(dense, seed=seed), "categorical_crossentropy")) for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_saved_models_compute_the_same(tmp_path):
    adapter = KerasAdapter(mlp(dense, normalisation), "categorical_crossentropy")
    batch = images(20)
    for _ in range(3):
        slope, _ = gradient(adapter, batch)
        adapter.write_weights(weights_of(adapter) - slope)
    adapter.save(tmp_path / "model.keras")
    loaded = KerasAdapter(keras.models.load_model(tmp_path / "model.keras"), "categorical_crossentropy")
    assert loaded.evaluate(*batch) == adapter.evaluate(*batch)


@pytest.mark.parametrize("method", ["gradient", "evaluate"])
def test_a_failing_batch_is_the_trials_fault(method):
    adapter = KerasAdapter(mlp(dense), "categorical_crossentropy")
    x, y = images(5)
    arguments = (x[:, :-1], y, *([aligned_empty(adapter.n_weights)] if method == "gradient" else []))
    with pytest.raises(TrialError, match="of the model failed"):
        getattr(adapter, method)(*arguments)
    assert adapter.evaluate(x, y).n_samples == 5


def test_a_model_without_weights_is_refused():
    with pytest.raises(TrialError, match="trainable weights"):
        KerasAdapter(keras.Sequential([keras.layers.Dense(3)]), "mse")
    with pytest.raises(TrialError, match="trainable weights"):
        KerasAdapter(keras.Sequential([keras.Input((3,)), keras.layers.Flatten()]), "mse")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([layer("Dense", 3, activation="softmax")], "softmax"),
        ([layer("Dense", 3), layer("Softmax")], "softmax"),
        ([layer("Dense", 3), layer("Activation", "sigmoid"), layer("Flatten")], "sigmoid"),
        ([layer("Dense", 3)], None),
    ],
)
def test_last_activation(tail, expected):
    assert keras_model.last_activation(keras.Sequential([keras.Input((4,)), *(make() for make in tail)])) == expected


def test_shapes_that_fit_and_do_not():
    model = mlp(dense)
    check = partial(keras_model.check_shapes, model)
    assert check((N_FEATURES,), (N_CLASSES,)) is None
    assert check((N_FEATURES,), (), "sparse_categorical_crossentropy") is None
    assert "takes samples of shape (6,)" in check((28, 28, 1), (N_CLASSES,))
    assert "shape of the model's output, (3,)" in check((N_FEATURES,), (10,))
    two = keras.Model(inputs := [keras.Input((2,)), keras.Input((2,))], keras.layers.Add()(inputs))
    assert "one input. Received: 2" in keras_model.check_shapes(two, (2,), (2,))
    fork = keras.Model(stem := keras.Input((2,)), [keras.layers.Dense(1)(stem), keras.layers.Dense(1)(stem)])
    assert "one output. Received: 2" in keras_model.check_shapes(fork, (2,), (1,))


def test_architectures():
    text = mlp(dense).to_json()
    assert keras_model.model_from_architecture(text, "a.json").count_params() == mlp(dense).count_params()
    with pytest.raises(ConfigurationError, match=r"a\.json, .*Custom layers"):
        keras_model.model_from_architecture(text.replace('"Dense"', '"Dens"'), "a.json")


def test_the_import_is_silent_and_takes_the_threads_it_is_given():
    code = """
from nnlo_opt.models.keras_model import import_framework
import_framework(1)
import tensorflow as tf
print(tf.config.threading.get_intra_op_parallelism_threads(), float(tf.reduce_sum(tf.ones(3))))
"""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "OMP_"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=quiet, check=False)
    assert (done.stdout, done.stderr) == ("1 3.0\n", "")


def test_a_trial_leaves_nothing_behind():
    batch = images(20)

    def trial():
        adapter = KerasAdapter(mlp(dense, normalisation), "categorical_crossentropy")
        gradient(adapter, batch)
        adapter.evaluate(*batch)
        adapter.release()

    def n_objects():
        gc.collect()
        return len(gc.get_objects())

    for _ in range(3):
        trial()
    objects, peak_kb = n_objects(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10):
        trial()
    assert n_objects() - objects < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb < 10_000
