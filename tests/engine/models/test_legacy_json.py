"""Architectures of Keras 0, 1 and 2 said as Keras 3 says them; no framework is imported."""

import json
import logging
from pathlib import Path

import pytest

from nnlo_opt.engine.models.legacy import architecture as legacy_json
from nnlo_opt.engine.models.legacy.architecture import read_architecture
from nnlo_opt.engine.models.legacy.layers import ARGUMENTS, CLASSES, HARD_SIGMOID, RENAMED, RENAMED_IN
from tests.helpers.launcher import python
from tests.helpers.refusals import check_refused

FILES = sorted((Path(__file__).parent / "legacy").glob("*.json"))
INPUT = {"batch_input_shape": [None, 8, 8, 3]}
FAN_AVERAGE = {"scale": 1.0, "mode": "fan_avg", "distribution": "uniform", "seed": None}
HE_NORMAL = {"scale": 2.0, "mode": "fan_in", "distribution": "untruncated_normal"}


def sequential(*layers, **others):
    return {"class_name": "Sequential", "config": [*layers], **others}


def layer(class_name, /, **config):
    return {"class_name": class_name, "config": {"name": "it", **config}}


def read(architecture, source="a.json"):
    return read_architecture(json.dumps(architecture), source)


def translated(class_name, /, **config):
    """Class and arguments of Keras 3 for one layer."""
    (result,) = read(sequential(layer(class_name, **config)))["config"]["layers"]
    assert result["config"].pop("name") == "it"
    return result["class_name"], result["config"]


@pytest.mark.parametrize(
    ("class_name", "given", "expected_class", "expected"),
    [
        ("Dense", {"output_dim": 3, "bias": False}, "Dense", {"units": 3, "use_bias": False}),
        ("Dense", {"units": 3, "trainable": False, "activation": None}, "Dense", {"trainable": False}),
        ("TimeDistributedDense", {"output_dim": 3, "input_length": 5}, "Dense", {"units": 3}),
        ("Convolution2D", {"nb_filter": 4, "nb_row": 3, "nb_col": 2}, "Conv2D", {"filters": 4, "kernel_size": [3, 2]}),
        ("Convolution2D", {"subsample": [2, 2]}, "Conv2D", {"strides": [2, 2]}),
        ("Convolution2D", {"border_mode": "same"}, "Conv2D", {"padding": "same"}),
        ("Convolution2D", {"dim_ordering": "th"}, "Conv2D", {"data_format": "channels_first"}),
        ("Convolution3D", {"kernel_dim1": 1, "kernel_dim2": 2, "kernel_dim3": 3}, "Conv3D", {"kernel_size": [1, 2, 3]}),
        ("Convolution3D", {"dim_ordering": "tf"}, "Conv3D", {"data_format": "channels_last"}),
        ("AtrousConvolution1D", {"filter_length": 3}, "Conv1D", {"kernel_size": 3}),
        ("AtrousConvolution1D", {"atrous_rate": 2}, "Conv1D", {"dilation_rate": 2}),
        ("Deconvolution2D", {"output_shape": [None, 8, 8, 3], "nb_filter": 3}, "Conv2DTranspose", {"filters": 3}),
        ("SeparableConvolution2D", {"nb_filter": 3, "depth_multiplier": 2}, "SeparableConv2D", {"depth_multiplier": 2}),
        ("SeparableConv2D", {"groups": 1, "kernel_initializer": "one"}, "SeparableConv2D", {}),
        ("MaxPooling1D", {"pool_length": 2, "stride": 1}, "MaxPooling1D", {"pool_size": 2, "strides": 1}),
        ("ZeroPadding1D", {"padding": {"left_pad": 2}}, "ZeroPadding1D", {"padding": [2, 0]}),
        ("ZeroPadding2D", {"padding": [1, 2, 3, 4]}, "ZeroPadding2D", {"padding": [[1, 2], [3, 4]]}),
        ("ZeroPadding2D", {"padding": {"top_pad": 1, "right_pad": 2}}, "ZeroPadding2D", {"padding": [[1, 0], [0, 2]]}),
        ("UpSampling1D", {"length": 3}, "UpSampling1D", {"size": 3}),
        ("Dropout", {"p": "0.5"}, "Dropout", {"rate": 0.5}),
        ("GaussianNoise", {"sigma": 0.1}, "GaussianNoise", {"stddev": 0.1}),
        ("LeakyReLU", {"alpha": {"type": "ndarray", "value": 0.3}}, "LeakyReLU", {"negative_slope": 0.3}),
        ("ThresholdedReLU", {"theta": 0.4}, "ReLU", {"threshold": 0.4}),
        ("ELU", {"alpha": 0.4}, "ELU", {"alpha": 0.4}),
        ("BatchNormalizationV1", {"axis": [3], "fused": True, "renorm": False}, "BatchNormalization", {"axis": 3}),
        ("Embedding", {"output_dim": 3, "input_dim": 9}, "Embedding", {"output_dim": 3, "input_dim": 9}),
        ("Embedding", {"output_dim": 3, "input_length": 5}, "Embedding", {"output_dim": 3}),
        ("GRU", {"units": 3, "implementation": 1}, "GRU", {"units": 3, "reset_after": False}),
        ("CuDNNGRU", {}, "GRU", {"activation": "tanh", "recurrent_activation": "sigmoid", "reset_after": True}),
        ("CuDNNGRU", {"units": 3}, "GRU", {"units": 3}),
        ("LSTM", {"forget_bias_init": "one"}, "LSTM", {"unit_forget_bias": True}),
        ("LSTM", {"dropout_U": 0.2}, "LSTM", {"recurrent_dropout": 0.2}),
        ("Merge", {"mode": "concat", "concat_axis": 1, "dot_axes": -1, "arguments": {}}, "Concatenate", {"axis": 1}),
        ("Merge", {"mode": "cos", "dot_axes": [[1], [2]]}, "Dot", {"axes": [1, 2], "normalize": True}),
    ],
)
def test_layers(class_name, given, expected_class, expected):
    new_class, config = translated(class_name, **given)
    assert new_class == expected_class
    assert {key: config[key] for key in expected} == expected
    assert set(config) <= ARGUMENTS[new_class] | {"trainable"}


def test_only_layers_with_weights_are_told_to_be_frozen():
    assert translated("SpatialDropout2D", p=0.5, trainable=False)[1] == {"rate": 0.5, "data_format": "channels_last"}


@pytest.mark.parametrize(
    ("argument", "given", "class_name", "config"),
    [
        ("init", "he_normal", "VarianceScaling", HE_NORMAL),
        ("init", "uniform", "RandomUniform", {"minval": -0.05, "maxval": 0.05}),
        ("init", "one", "Ones", {}),
        ("init", layer("VarianceScaling", **FAN_AVERAGE, dtype="float32"), "VarianceScaling", FAN_AVERAGE),
        ("init", layer("GlorotUniform", seed=7, dtype="float32"), "GlorotUniform", {"seed": 7}),
        ("W_regularizer", {"name": "WeightRegularizer", "l1": 0.0, "l2": 0.5}, "L1L2", {"l1": 0.0, "l2": 0.5}),
        ("W_regularizer", layer("L1L2", l1=0.25, l2=0.0), "L1L2", {"l1": 0.25, "l2": 0.0}),
        ("W_regularizer", layer("L2", l2=0.25), "L1L2", {"l1": 0.0, "l2": 0.25}),
        ("W_regularizer", "l2", "L1L2", {"l1": 0.0, "l2": 0.01}),
        ("W_constraint", {"name": "MaxNorm", "m": 2, "axis": 0}, "MaxNorm", {"max_value": 2, "axis": 0}),
        ("W_constraint", layer("MaxNorm", max_value=2, axis=0), "MaxNorm", {"max_value": 2, "axis": 0}),
        ("W_constraint", {"name": "MinMaxNorm", "low": 1, "rate": 1.0}, "MinMaxNorm", {"min_value": 1, "rate": 1.0}),
        ("W_constraint", "nonneg", "NonNeg", {}),
        ("W_constraint", "unit_norm", "UnitNorm", {}),
    ],
)
def test_what_a_layer_holds(argument, given, class_name, config):
    new = RENAMED[argument]
    value = translated("Dense", units=2, **{argument: given})[1][new]
    assert (value["class_name"], value["config"]) == (class_name, config)
    assert value["module"] == f"keras.{new.removeprefix('kernel_')}s"


def test_a_regularizer_of_nothing_is_none():
    _, config = translated("Dense", b_regularizer={"name": "L1L2Regularizer", "l1": 0.0, "l2": 0.0})
    assert config == {"bias_regularizer": None}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("relu", "relu"),
        (None, "linear"),
        ("swish", "silu"),
        ({"class_name": "function", "config": "tanh", "registered_name": "function"}, "tanh"),
        ("hard_sigmoid", HARD_SIGMOID),
    ],
)
def test_activations(given, expected):
    assert translated("Activation", activation=given)[1]["activation"] == expected


def test_layers_inside_layers():
    _, config = translated("TimeDistributed", layer=sequential(layer("Dense", output_dim=2)))
    assert config["layer"]["config"]["layers"][0]["config"]["units"] == 2
    _, config = translated("RNN", cell=layer("StackedRNNCells", cells=[layer("GRUCell", units=2)]))
    assert config["cell"]["config"]["cells"][0]["config"]["reset_after"] is False


def test_layers_without_an_order_of_images_take_that_of_other_layers():
    layers = [layer("Convolution2D", nb_filter=1, dim_ordering="th", **INPUT), layer("ZeroPadding2D", padding=[1, 1])]
    *_, padding = read(sequential(*layers))["config"]["layers"]
    assert padding["config"]["data_format"] == "channels_first"
    assert "data_format" not in translated("Flatten")[1]


@pytest.mark.parametrize(("stateful", "size"), [(False, None), (True, 10)])
def test_an_input_layer_says_the_shape(stateful, size):
    first = layer("LSTM", units=2, stateful=stateful, batch_input_shape=[10, 5, 3], input_dtype="int32")
    source, _ = read(sequential(first))["config"]["layers"]
    assert source["config"] == {"batch_shape": [size, 5, 3], "dtype": "int32", "name": "it_input"}


def test_an_input_shape_inside_the_first_layer_counts():
    first = sequential(layer("Bidirectional", layer=layer("GRU", units=2, batch_input_shape=[None, 5, 3])))
    source, _ = read(sequential(first))["config"]["layers"]
    assert source["config"]["batch_shape"] == [None, 5, 3]


def graph(layers, inputs, outputs):
    """A functional model: (class, name, arguments, calls)."""
    layers = [
        {"class_name": class_name, "name": name, "config": {"name": name, **config}, "inbound_nodes": calls}
        for class_name, name, config, calls in layers
    ]
    ends = {"input_layers": [[name, 0, 0] for name in inputs], "output_layers": outputs}
    return {"class_name": "Model", "config": {"name": "model", "layers": layers, **ends}}


def histories(node):
    return json.loads(json.dumps(node), object_hook=lambda d: d.get("keras_history") or d.get("config") or d)


SOURCE = ("InputLayer", "a", {"batch_input_shape": [None, 4]}, [])


def test_connections():
    inner = graph([SOURCE, ("Dense", "d", {"units": 4}, [[["a", 0, 0]]])], ["a"], [["d", 0, 0]])["config"]
    layers = [
        SOURCE,
        # A model counts its own making as its first call.
        ("Model", "part", inner, [[["a", 0, 0]], [["part", 1, 0]]]),
        ("Merge", "sum", {"mode": "sum"}, [[["part", 2, 0, {"mask": [None, None]}], ["a", 0, 0]]]),
        ("LSTM", "rnn", {"units": 2}, [[["sum", 0, 0], ["a", 0, 0], ["a", 0, 0]]]),
        ("MultiHeadAttention", "mha", {"num_heads": 1}, [[["rnn", 0, 0, {"value": ["a", 0, 0], "mask": None}]]]),
    ]
    config = read(graph(layers, ["a"], [["part", 2, 0], ["mha", 0, 0]]))["config"]
    nodes = {item["name"]: histories(item["inbound_nodes"]) for item in config["layers"]}
    assert nodes["part"] == [{"args": [["a", 0, 0]], "kwargs": {}}, {"args": [["part", 0, 0]], "kwargs": {}}]
    assert nodes["sum"] == [{"args": [[["part", 1, 0], ["a", 0, 0]]], "kwargs": {}}]
    assert nodes["rnn"] == [{"args": [["sum", 0, 0]], "kwargs": {"initial_state": [["a", 0, 0], ["a", 0, 0]]}}]
    assert nodes["mha"] == [{"args": [["rnn", 0, 0]], "kwargs": {"value": ["a", 0, 0]}}]
    assert config["input_layers"] == ["a", 0, 0]
    assert config["output_layers"] == [["part", 2, 0], ["mha", 0, 0]]


def test_branches_become_a_graph():
    branches = [
        sequential(layer("Dense", **{"name": name, "output_dim": 2, "batch_input_shape": [None, 3]})) for name in "xy"
    ]
    config = read(sequential(layer("Merge", mode="mul", layers=branches), layer("Dense", name="z", units=1)))
    assert config["class_name"] == "Model"
    assert config["config"]["input_layers"] == [["x_input", 0, 0], ["y_input", 0, 0]]
    assert config["config"]["output_layers"] == ["z", 0, 0]


def test_the_format_of_keras_0():
    old = {
        "name": "Sequential",
        "layers": [
            {"name": "Dense", "custom_name": "dense", "output_dim": 3, "input_shape": [4], "cache_enabled": True},
            {"name": "Dense", "custom_name": "dense", "output_dim": 2, "cache_enabled": True},
            {"name": "Activation", "activation": "softmax"},
        ],
        "loss": "mse",
        "optimizer": {"name": "SGD"},
    }
    layers = read(old)["config"]["layers"]
    assert [item["config"]["name"] for item in layers] == ["dense_input", "dense", "dense_2", "activation"]


def test_text_that_was_written_as_json_twice():
    architecture = sequential(layer("Dense", units=2))
    assert read(json.dumps(architecture)) == read(architecture)


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (layer("Lambda", function=["code", None, None]), "whose layer 'it' is a Lambda, whose code"),
        (layer("TFOpLambda", function="math.abs"), "'it' is a TFOpLambda, a function of TensorFlow's"),
        (layer("Highway"), "'it' is a Highway, which Keras 3 does not have"),
        (layer("MaxoutDense"), "MaxoutDense"),
        (layer("ParametricSoftplus"), "ParametricSoftplus"),
        (layer("LocallyConnected1D"), "LocallyConnected1D"),
        (layer("AttentionDecoder"), "'it' is a AttentionDecoder, which is not one of Keras's layers"),
        (layer("BatchNormalization", mode=1), "BatchNormalization with mode=1"),
        (layer("LSTM", time_major=True), "LSTM with time_major=True"),
        (layer("Dense", quantizer={"bits": 4}), "Dense with quantizer={'bits': 4}"),
        (layer("Convolution1D", border_mode="full"), "has border mode 'full'"),
        (layer("Merge", mode="code", mode_type="lambda"), "is a Merge by a function"),
        (layer("Dense", init="my_init"), "has initializer 'my_init'"),
        (layer("Dense", W_regularizer={"name": "EigenvalueRegularizer", "k": 1}), "EigenvalueRegularizer"),
        (layer("Dense", activation="my_activation"), "has activation 'my_activation'"),
        (layer("TimeDistributed", layer=layer("Lambda", name="inner")), "whose layer 'inner' is a Lambda"),
        (layer("InputLayer", sparse=True, batch_input_shape=[None, 2]), "whose input 'it' is sparse"),
    ],
)
def test_what_keras_3_does_not_have_is_refused_by_name(item, what):
    message = check_refused(what, read, sequential(item), "old.json")
    assert message.startswith(
        "An architecture of Keras 1 or 2 must be made of layers that Keras 3 has too. Received: old"
    )
    assert message.endswith("Build the model in a Python module with `get_model`.")


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ({"class_name": "Graph", "config": {}}, "which is a Graph"),
        ({"name": "Graph", "layers": []}, "which is a Graph"),
        (sequential(), "which cannot be followed, IndexError"),
        ({"class_name": "Sequential"}, "which cannot be followed, KeyError: 'config'"),
        (graph([SOURCE, ("Dense", "d", {}, [[["b", 0, 0]]])], ["a"], [["d", 0, 0]]), "takes an input from 'b'"),
        (graph([SOURCE], ["a"], ["in1"]), "names 'in1' where an input or output must be"),
        ({"class_name": "Model", "config": 5}, "which cannot be followed, TypeError"),
        (sequential({"class_name": "Policy", "config": None}), "which cannot be followed, TypeError"),
    ],
)
def test_broken_files_are_refused(broken, what):
    check_refused(what, read, broken, "old.json")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, json.dumps("[" * 100_000), '{"class_name": "Sequential", "config": ' + "[" * 300 + "]" * 300 + "}"],
    ids=len,
)
def test_text_that_is_nested_beyond_all_use_is_refused(text):
    check_refused("old.json, not JSON (it is nested more than 100 levels deep)", read_architecture, text, "old.json")


def test_layers_may_be_nested_as_deeply_as_text_may():
    item = layer("Dense", output_dim=3)
    for _ in range(45):
        item = layer("TimeDistributed", layer=item)
    assert json.dumps(read(sequential(item))).count('"TimeDistributed"') == 45


def test_classes_that_are_known_are_left_to_themselves():
    text = json.dumps(sequential(layer("Mine", batch_input_shape=[None, 2], units=3)))
    check_refused("is a Mine", read_architecture, text, "a.json")
    *_, mine = read_architecture(text, "a.json", {"Mine"}.__contains__)["config"]["layers"]
    assert mine == {"module": None, "registered_name": "Mine", **layer("Mine", units=3)}


def test_a_translation_is_announced_once(caplog):
    legacy_json._announce.cache_clear()
    text = json.dumps(sequential(layer("BatchNormalization", mode=2), keras_version="1.2.2"))
    with caplog.at_level(logging.INFO):
        read_architecture(text, "a.json")
        read_architecture(text, "a.json")
    assert [record.getMessage() for record in caplog.records] == [
        "a.json was written by Keras 1.2.2 and is translated to Keras 3",
        "a.json: BatchNormalization with mode=2 evaluates with its moving averages, not with those of the batch",
    ]


def test_what_keras_3_writes_is_taken_as_it_is():
    new = {"module": "keras", "class_name": "Sequential", "config": {"layers": []}}
    assert read(new) == new


def test_names_lead_to_what_keras_3_has():
    everything = {argument for arguments in ARGUMENTS.values() for argument in arguments}
    assert set(CLASSES.values()) <= set(ARGUMENTS)
    assert set(RENAMED.values()) <= everything
    assert all(set(renamed.values()) <= ARGUMENTS[name] for name, renamed in RENAMED_IN.items())


def test_no_framework_is_imported():
    program = (
        "import sys; from nnlo_opt.engine.models.legacy.architecture import read_architecture;"
        f"read_architecture(open({str(FILES[0])!r}).read(), '');"
        "print(sorted({'keras', 'tensorflow', 'h5py'} & set(sys.modules)))"
    )
    assert python(program).expect(0).out == "[]\n"
