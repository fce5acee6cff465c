"""Keras on TensorFlow in this process: what it makes of a model, and what is TensorFlow's own."""

import os

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.engine.models.keras.adapter import KerasAdapter
from nnlo_opt.engine.models.losses import LossTerm
from tests.helpers.adapters import N_CLASSES, N_FEATURES, gradient, images, keras
from tests.helpers.keras_adapters import keras_adapter
from tests.helpers.launcher import python
from tests.helpers.leaks import growth
from tests.helpers.refusals import check_refused

pytestmark = pytest.mark.keras


def layer(name, *arguments, **options):
    """A function that makes the layer."""
    return lambda: getattr(keras.layers, name)(*arguments, **options)


def mlp(*hidden, activation="softmax", n_outputs=N_CLASSES):
    keras_model.set_seed(0)
    output = layer("Dense", n_outputs, activation=activation)
    return keras.Sequential([keras.Input((N_FEATURES,)), *(make() for make in (*hidden, output))])


dense = layer("Dense", 8, activation="tanh")
normalisation = layer("BatchNormalization")


# ---------------------------------------------------------------- figures


def test_accuracy_is_a_count():
    adapter = keras_adapter(mlp(dense), "categorical_crossentropy")
    for n_samples in (7, 49, 101):
        assert adapter.evaluate(*images(n_samples)).sums["acc"].is_integer()


def test_class_numbers_are_one_hot_labels():
    x, y = images(30)
    one_hot = keras_adapter(mlp(dense), "categorical_crossentropy")
    for labels in (y.argmax(axis=1), y.argmax(axis=1, keepdims=True)):
        sparse = keras_adapter(mlp(dense), "sparse_categorical_crossentropy")
        np.testing.assert_allclose(gradient(sparse, (x, labels))[0], gradient(one_hot, (x, y))[0], atol=1e-6)
        assert sparse.evaluate(x, labels).sums["acc"] == one_hot.evaluate(x, y).sums["acc"]


@pytest.mark.parametrize("loss", ["binary_crossentropy", "mean_squared_error", "hinge"])
def test_labels_may_leave_out_a_last_dimension_of_one(loss):
    x, _ = images(30)
    y = (x[:, 0] > 0).astype(np.float32)
    flat = keras_adapter(mlp(dense, activation="sigmoid", n_outputs=1), loss)
    column = keras_adapter(mlp(dense, activation="sigmoid", n_outputs=1), loss)
    np.testing.assert_array_equal(gradient(flat, (x, y))[0], gradient(column, (x, y[:, None]))[0])
    assert flat.evaluate(x, y).sums == column.evaluate(x, y[:, None]).sums


def test_a_loss_of_ones_own_counts_classes_by_the_labels():
    def doubled(y_true, y_pred):
        return 2 * keras.losses.categorical_crossentropy(y_true, y_pred)

    own, plain = keras_adapter(mlp(dense), doubled), keras_adapter(mlp(dense), "categorical_crossentropy")
    batch = images(40)
    assert own.evaluate(*batch).sums["loss"] == pytest.approx(2 * plain.evaluate(*batch).sums["loss"])
    assert own.evaluate(*batch).sums["acc"] == plain.evaluate(*batch).sums["acc"]


def test_sample_weights_need_a_loss_of_each_sample():
    adapter = keras_adapter(mlp(dense), lambda y_true, y_pred: keras.ops.mean(y_pred))
    with pytest.raises(TrialError, match="sample weights need a loss for each sample"):
        gradient(adapter, images(5), np.ones(5, np.float32))


# ---------------------------------------------------------------- weights, state, counters


def test_counters_of_another_model_are_refused():
    with pytest.raises(ValueError, match="Counters of"):
        keras_adapter(mlp(dense), "mse").load_discrete_state([[1, 2]])


def test_layers_of_a_subclassed_model_know_that_they_train():
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.drop, self.head = keras.layers.Dropout(0.9), keras.layers.Dense(N_CLASSES, activation="softmax")

        def call(self, x):
            return self.head(self.drop(x))

    adapter = keras_adapter(Plain(), "categorical_crossentropy", feature_shape=(N_FEATURES,))
    batch = images(40)
    assert adapter.n_weights == (N_FEATURES + 1) * N_CLASSES
    assert gradient(adapter, batch)[1].means()["loss"] != pytest.approx(adapter.evaluate(*batch).means()["loss"])


def test_frozen_weights_are_state():
    model = mlp(dense, dense)
    model.layers[0].trainable = False
    adapter = keras_adapter(model, "categorical_crossentropy")
    assert adapter.n_state == (N_FEATURES + 1) * 8
    assert adapter.n_weights == 9 * 8 + 9 * N_CLASSES


def test_weights_of_no_use_have_no_slope():
    model = mlp(dense, layer("Lambda", lambda x: 0 * x[:, :1]))
    slope, _ = gradient(keras_adapter(model, "categorical_crossentropy"), images(9))
    assert not slope[: (N_FEATURES + 1) * 8].any()


def test_tensors_and_tables_that_a_model_holds_are_computed_with():
    whole = keras.Input((1,), dtype="int64")
    table = keras.layers.IntegerLookup(vocabulary=[7, 9], output_mode="one_hot")(whole)
    model = keras.Model(whole, keras.layers.Dense(1)(table + keras.ops.arange(3, dtype="float32")))
    adapter = KerasAdapter(model, [LossTerm("out", "mean_squared_error")])
    x, y, out = np.array([[7.0], [9.0], [8.0]], np.float32), np.ones((3, 1), np.float32), aligned_empty(4)
    expected = float(np.mean((keras.ops.convert_to_numpy(model(x)) - y) ** 2))
    assert adapter.gradient(x, y, out).means()["loss"] == pytest.approx(expected)
    assert adapter.evaluate(x, y).means()["loss"] == pytest.approx(expected)


def test_a_last_dimension_of_one_is_optional_in_features():
    inputs = {name: keras.Input(shape, name=name) for name, shape in {"a": (1,), "b": (), "c": (2,)}.items()}
    joined = keras.layers.concatenate([inputs["a"], keras.ops.expand_dims(inputs["b"], -1), inputs["c"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    outputs = keras_model.describe_outputs(model, [(), (1,), (2,)])
    adapter = KerasAdapter(model, [LossTerm(outputs[0].name, "mean_squared_error")])
    x = [np.ones(3, np.float32), np.ones((3, 1), np.float32), np.ones((3, 2), np.float32)]
    theirs = model({"a": x[0][:, None], "b": x[1][:, 0], "c": x[2]})
    assert adapter.outputs(x, model)[0] == pytest.approx(keras.ops.convert_to_numpy(theirs))
    check_refused("samples of shape (2,) for the input 'c'", keras_model.describe_outputs, model, [(), (1,), ()])


@pytest.fixture
def by_name():
    """A model that takes a dictionary, and that Keras cannot save."""

    class ByName(keras.Model):
        def __init__(self, n):
            super().__init__()
            self.dense = keras.layers.Dense(n)

        def call(self, inputs):
            return self.dense(inputs["b"]) * inputs["a"][:, None]

    model = ByName(2)
    keras_model.name_inputs(model, ["a", "b"])
    keras_model.describe_outputs(model, [(), (3,)])
    return model


def test_a_subclassed_model_gets_the_dictionary_that_it_takes(by_name):
    x = [np.array([1.0, 2.0], np.float32), np.ones((2, 3), np.float32)]
    outputs = KerasAdapter(by_name, [LossTerm("out", "mean_squared_error")]).outputs(x, by_name)
    assert outputs[0][1] == pytest.approx(2 * outputs[0][0])


def test_a_model_that_keras_cannot_save_is_told_before_and_after_its_training(tmp_path, by_name):
    (remark,) = keras_model.remarks_on(by_name)
    assert remark.startswith("The best model cannot be saved whole, but its weights are: Object ByName was created by")
    adapter = KerasAdapter(by_name, [LossTerm("out", "mean_squared_error")])
    sentence = check_refused("must be one that Keras can save whole", adapter.save, tmp_path / "model.keras")
    assert "define `get_config`" in sentence
    assert not [*tmp_path.iterdir()]


def test_a_model_without_weights_is_refused():
    with pytest.raises(TrialError, match="trainable weights"):
        keras_model.adapter(keras.Sequential([keras.layers.Dense(3)]), ())
    with pytest.raises(TrialError, match="trainable weights"):
        keras_adapter(keras.Sequential([keras.Input((3,)), keras.layers.Flatten()]), "mse")


@pytest.mark.proof
def test_compiled_computations_give_the_same():
    plain = keras_adapter(mlp(dense, normalisation), "categorical_crossentropy")
    compiled = keras_adapter(mlp(dense, normalisation), "categorical_crossentropy", jit_compile=True)
    for n in (20, 7):
        batch = images(n)
        (slope, metrics), (expected, same) = gradient(compiled, batch), gradient(plain, batch)
        np.testing.assert_allclose(slope, expected, atol=1e-6)
        assert metrics.means() == pytest.approx(same.means())
        assert compiled.evaluate(*batch).means() == pytest.approx(plain.evaluate(*batch).means())


# ---------------------------------------------------------------- shapes and outputs


@pytest.mark.parametrize("method", ["gradient", "evaluate"])
def test_a_failing_batch_is_the_trials_fault(method):
    adapter = keras_adapter(mlp(dense), "categorical_crossentropy")
    x, y = images(5)
    out = [aligned_empty(adapter.n_weights)] if method == "gradient" else []
    for wrong in ((x[:, :-1], y), (x, y[:, :-1])):
        with pytest.raises(TrialError, match="of the model failed"):
            getattr(adapter, method)(*wrong, *out)
    assert adapter.evaluate(x, y).n_samples == 5
    for wrong in ((x[:, :-1], y), (x[:-1], y)):
        with pytest.raises(TrialError, match="of the model failed"):
            getattr(adapter, method)(*wrong, *out)
    # Another type of number than before is nothing wrong.
    for other in (np.float64, np.int64, np.uint8, np.bool_):
        assert getattr(adapter, method)(x, y.astype(other), *out).n_samples == 5


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([layer("Dense", 3, activation="softmax")], "softmax"),
        ([layer("Dense", 3), layer("Softmax")], "softmax"),
        ([layer("Dense", 3), layer("Activation", "sigmoid"), layer("Flatten")], "sigmoid"),
        ([layer("Dense", 3)], None),
        ([lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh")])], "tanh"),
    ],
)
def test_the_activation_of_an_output(tail, expected):
    model = keras.Sequential([keras.Input((4,)), *(make() for make in tail)])
    (output,) = keras_model.describe_outputs(model, (4,))
    assert (output.shape, output.activation) == ((3,), expected)


def test_outputs_have_names_shapes_and_activations():
    keras_model.set_seed(0)
    stem = keras.Input((4,), name="stem")
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(stem)
    heads = [kind, keras.layers.Flatten(name="flat")(keras.layers.Dense(1, activation="sigmoid")(stem))]
    assert [(o.name, o.shape, o.activation) for o in keras_model.describe_outputs(keras.Model(stem, heads), (4,))] == [
        ("kind", (3,), "softmax"),
        ("flat", (1,), "sigmoid"),
    ]
    by_key = keras.Model({"only": stem}, {"b": heads[0], "a": heads[1]})
    assert [o.name for o in keras_model.describe_outputs(by_key, [(4,)])] == ["a", "b"]
    twice = keras.Model(stem, [kind, kind])
    assert [o.name for o in keras_model.describe_outputs(twice, (4,))] == ["kind_1", "kind_2"]


def test_samples_a_model_cannot_take():
    model = mlp(dense)
    with pytest.raises(ConfigurationError, match=r"takes samples of shape \(6,\)\. Received: .*\(28, 28, 1\)"):
        keras_model.describe_outputs(model, (28, 28, 1))
    two = keras.Model(inputs := [keras.Input((2,), name="a"), keras.Input((2,), name="b")], keras.layers.Add()(inputs))
    assert keras_model.describe_outputs(two, [(2,), (2,)])[0].shape == (2,)
    check_refused("Received: 1 sets of features for 2 inputs, a, b", keras_model.describe_outputs, two, (2,))
    check_refused("(2,) for the input 'b'", keras_model.describe_outputs, two, [(2,), (3,)])
    late = keras.Sequential([keras.layers.Conv2D(2, 3)])
    check_refused("shape of the features, (5,)", keras_model.describe_outputs, late, (5,))


# ---------------------------------------------------------------- building


def test_architectures():
    text = mlp(dense).to_json()
    assert keras_model.model_from_architecture(text, "a.json").count_params() == mlp(dense).count_params()
    with pytest.raises(ConfigurationError, match=r"a\.json, .*Custom layers"):
        keras_model.model_from_architecture(text.replace('"Dense"', '"Dens"'), "a.json")


def test_what_holds_while_a_model_is_built():
    class Doubled(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    text = keras.Sequential([keras.Input((2,)), Doubled()]).to_json().replace("test_what_holds", "nowhere")
    check_refused("Custom layers", keras_model.model_from_architecture, text, "a.json")
    with keras_model.building({"Doubled": Doubled}, "mixed_bfloat16"):
        assert isinstance(keras_model.model_from_architecture(text, "a.json").layers[0], Doubled)
        mixed = keras.layers.Dense(1)
    assert (mixed.compute_dtype, mixed.variable_dtype) == ("bfloat16", "float32")
    with keras_model.building({}, None):
        keras.config.set_dtype_policy("mixed_float16")
    assert keras.layers.Dense(1).compute_dtype == "float32"


# ---------------------------------------------------------------- the process


@pytest.mark.proof
def test_the_import_is_silent_and_takes_the_threads_it_is_given(tmp_path):
    code = """
from nnlo_opt.engine.models.keras.framework import import_framework
import_framework(1)
import tensorflow as tf
from keras.src.backend.config import keras_home
print(tf.config.threading.get_intra_op_parallelism_threads(), float(tf.reduce_sum(tf.ones(3))))
print(keras_home())
"""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "OMP_", "KERAS_HOME"))}
    # Without a writable home Keras itself would take /tmp/.keras.
    quiet["HOME"] = str(tmp_path / "none")
    done = python(code, env=quiet)
    assert (done.out, done.err) == (f"1 3.0\n{tmp_path}/none/.keras\n", "")


def test_backends_that_cannot_be_had(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"one of tensorflow, jax, torch\. Received: 'theano'"):
        keras_model.import_framework(1, backend="theano")
    keras_model.import_framework(1)
    for backend, extra in {"jax": "jax", "torch": "torch", "tensorflow": "keras"}.items():
        monkeypatch.setattr("importlib.util.find_spec", lambda name, lacking=backend: None if name == lacking else name)
        check_refused(f"`pip install 'nnlo_opt[{extra}]'`", keras_model.import_framework, 1, backend=backend)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_refused("Keras on jax needs the package keras", keras_model.import_framework, 1, backend="jax")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found")
    check_refused("already runs on tensorflow", keras_model.import_framework, 1, backend="jax")


@pytest.mark.proof
def test_a_trial_leaves_nothing_behind():
    batch = images(20)

    def trial():
        adapter = keras_adapter(mlp(dense, normalisation), "categorical_crossentropy")
        gradient(adapter, batch)
        adapter.evaluate(*batch)
        adapter.release()

    n_objects, n_kb = growth(trial, 3, 10)
    assert n_objects < 500
    assert n_kb < 10_000


# ---------------------------------------------------------------- ensembles


def test_outputs_are_measured_as_the_model_is():
    x, y = images(30)
    adapter = keras_adapter(mlp(dense, normalisation), "categorical_crossentropy")
    measured, evaluated = adapter.measure(adapter.predict(x), y).sums, adapter.evaluate(x, y).sums
    assert measured["acc"] == evaluated["acc"]
    assert measured["loss"] == pytest.approx(evaluated["loss"], rel=1e-5)


def test_outputs_with_masked_steps_have_no_mean():
    steps = keras.Sequential(
        [keras.Input((None, 4)), keras.layers.Masking(), keras.layers.LSTM(3, return_sequences=True)]
    )
    with pytest.raises(TrialError, match="masked steps"):
        keras_adapter(steps, "mean_squared_error").predict(np.zeros((2, 5, 4), np.float32))


@pytest.mark.proof
def test_the_mean_of_models_is_one_model_that_needs_nothing_of_ours(tmp_path):
    x, _ = images(20)
    models = [mlp(dense), mlp(dense, normalisation), mlp()]
    for model in models:
        model.set_weights([weight + 0.1 for weight in model.get_weights()])
    expected = sum(w * model.predict(x, verbose=0) for model, w in zip(models, (0.5, 0.3, 0.2), strict=True))
    keras_model.save_mean(models, (0.5, 0.3, 0.2), path := tmp_path / "mean.keras")
    load = "keras.saving.load_model(sys.argv[1]).predict(numpy.load(sys.argv[2]))"
    code = f"import sys, keras, numpy; print({load}.tolist())"
    np.save(tmp_path / "x.npy", x)
    out = python(code, path, tmp_path / "x.npy", cwd=tmp_path).expect(0).out
    np.testing.assert_allclose(np.array(eval(out.splitlines()[-1])), expected, rtol=1e-4)


def test_models_of_several_inputs_and_outputs_have_a_mean(tmp_path):
    def model(shift):
        a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
        both = keras.layers.Concatenate()([a, b])
        outputs = {"one": keras.layers.Dense(2, name="one")(both), "two": keras.layers.Dense(1, name="two")(both)}
        made = keras.Model({"a": a, "b": b}, outputs)
        made.set_weights([weight + shift for weight in made.get_weights()])
        return made

    models, x = [model(0.0), model(1.0)], {"a": np.ones((4, 2)), "b": np.ones((4, 3))}
    expected = [one.predict(x, verbose=0) for one in models]
    keras_model.save_mean(models, (0.25, 0.75), path := tmp_path / "mean.keras")
    found = keras.saving.load_model(path).predict(x, verbose=0)
    for name in ("one", "two"):
        np.testing.assert_allclose(found[name], 0.25 * expected[0][name] + 0.75 * expected[1][name], rtol=1e-5)


def test_a_model_without_declared_inputs_has_no_part_in_a_mean(tmp_path):
    class Own(keras.Model):
        def call(self, x):
            return x

    check_refused("must declare their inputs", keras_model.save_mean, [Own()], (1.0,), tmp_path / "mean.keras")
