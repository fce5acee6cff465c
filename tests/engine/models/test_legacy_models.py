"""Models of Keras 1 and 2 built by Keras 3: they compute what the Keras computed that wrote them."""

import importlib
import inspect
import json
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.engine.models.legacy.layers import ACTIVATIONS, ARGUMENTS, CONSTRAINTS, INITIALIZERS, INITIALIZERS_BY_NAME
from nnlo_opt.engine.models.legacy.weights import load_legacy_weights

pytestmark = [pytest.mark.many, pytest.mark.keras]
FILES = sorted((Path(__file__).parent / "legacy").glob("*.json"))


@pytest.fixture(scope="module")
def keras():
    keras_model.import_framework(1)
    return importlib.import_module("keras")


def built(path):
    return keras_model.model_from_architecture(path.read_text(), str(path))


def sequential(*layers):
    layers = [{"class_name": class_name, "config": config} for class_name, config in layers]
    return json.dumps({"class_name": "Sequential", "config": layers})


def predictions(model, features):
    """What the model makes of `features`, as a list."""
    outputs = model(features if len(features) > 1 else features[0])
    return [np.asarray(output) for output in (outputs if isinstance(outputs, list) else [outputs])]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def golden(request, keras):
    """A file, its model with the weights of that time, features, and what was predicted for them then."""
    model = built(request.param)
    load_legacy_weights(model, request.param.with_suffix(".h5"))
    with np.load(request.param.with_suffix(".npz")) as arrays:
        features, expected = ([arrays[key] for key in sorted(arrays) if key.startswith(kind)] for kind in "xy")
    return request.param, model, features, expected


def test_predictions_are_those_of_the_time(golden, keras, tmp_path):
    _, model, features, expected = golden
    for output, wanted in zip(predictions(model, features), expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)
    # Nothing of ours is left in what is saved: Keras alone reads it.
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    for output, wanted in zip(predictions(again, features), expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)


def test_the_seed_rules_the_weights(keras):
    def weights(seed):
        keras_model.set_seed(seed)
        return [np.asarray(weight) for weight in built(FILES[1]).weights]

    first, again, other = weights(1), weights(1), weights(2)
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_keras_3_knows_layers_and_arguments(keras, name):
    parameters = inspect.signature(getattr(keras.layers, name).__init__).parameters
    of_every_layer = {"activity_regularizer"} if "kwargs" in parameters else set()
    assert ARGUMENTS[name] <= set(parameters) | of_every_layer


def test_keras_3_knows_the_other_objects(keras):
    for known, module in ((INITIALIZERS, keras.initializers), (CONSTRAINTS, keras.constraints)):
        for name, arguments in known.items():
            assert set(arguments.split()) <= set(inspect.signature(getattr(module, name)).parameters)
    for name, config in INITIALIZERS_BY_NAME.values():
        getattr(keras.initializers, name)(**config)
    assert all(callable(keras.activations.get(name)) for name in ACTIVATIONS.values())


def test_the_hard_sigmoid_is_the_former_one(keras):
    text = sequential(("Activation", {"name": "a", "activation": "hard_sigmoid", "batch_input_shape": [None, 5]}))
    (output,) = predictions(
        keras_model.model_from_architecture(text, "a.json"), [np.array([[-3, -2, 0, 1, 3.0]], np.float32)]
    )
    np.testing.assert_allclose(output, [[0, 0.1, 0.5, 0.7, 1]], atol=1e-6)


def test_images_with_channels_first_can_be_trained_on(keras):
    convolution = {"name": "c", "nb_filter": 2, "nb_row": 3, "nb_col": 3, "dim_ordering": "th"}
    text = sequential(
        ("Convolution2D", {**convolution, "batch_input_shape": [None, 1, 6, 6]}),
        ("MaxPooling2D", {"name": "p", "pool_size": [2, 2], "dim_ordering": "th"}),
        ("Flatten", {"name": "f"}),
        ("Dense", {"name": "d", "output_dim": 1}),
    )
    model = keras_model.model_from_architecture(text, "a.json")
    assert model.get_layer("p").output.shape == (None, 2, 2, 2)
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.train_on_batch(np.ones((4, 1, 6, 6)), np.ones((4, 1)))
    assert not np.array_equal(before[0], model.get_weights()[0])


def test_custom_objects_are_found_by_name(keras):
    class Doubled(keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    text = sequential(("Doubled", {"name": "d", "trainable": True, "batch_input_shape": [None, 2]}))
    with keras.saving.custom_object_scope({"Doubled": Doubled}):
        model = keras_model.model_from_architecture(text, "a.json")
    np.testing.assert_array_equal(predictions(model, [np.ones((1, 2), np.float32)])[0], [[2, 2]])
    with pytest.raises(ConfigurationError, match="'d' is a Doubled, which is not one of Keras's layers"):
        keras_model.model_from_architecture(text, "a.json")


def test_what_keras_cannot_build_is_one_sentence(keras):
    text = sequential(("Conv2D", {"name": "c", "filters": 0, "kernel_size": [3, 3]}))
    with pytest.raises(ConfigurationError, match=r"Received: a\.json, .*filters") as caught:
        keras_model.model_from_architecture(text, "a.json")
    assert "\n" not in str(caught.value)
