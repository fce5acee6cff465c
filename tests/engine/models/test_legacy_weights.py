"""Weights of Keras 0, 1 and 2, laid out as Keras 3 has them; layers are imitated."""

import h5py
import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.legacy.weight_files import read_saved_weights
from nnlo_opt.engine.models.legacy.weights import find_legacy_weights, load_legacy_weights
from tests.helpers.refusals import check_refused

RNG = np.random.default_rng(0)


class Variable:
    def __init__(self, *shape):
        self.shape = shape
        self.value = np.zeros(shape)

    def assign(self, value):
        self.value = value


class Layer:
    data_format = "channels_last"
    non_trainable_weights = ()

    def __init__(self, *shapes, name="it", **attributes):
        self.name = name
        self.trainable_weights = [Variable(*shape) for shape in shapes]
        vars(self).update(attributes)

    @property
    def weights(self):
        return [*self.trainable_weights, *self.non_trainable_weights]

    @property
    def values(self):
        return [variable.value for variable in self.weights]


class Model:
    def __init__(self, *layers):
        self.layers = layers


Dense, Conv1D, Conv2D, Conv2DTranspose, LSTM, GRU = (
    type(name, (Layer,), {}) for name in ("Dense", "Conv1D", "Conv2D", "Conv2DTranspose", "LSTM", "GRU")
)


@pytest.fixture
def saved(tmp_path):
    def write(layers, **attributes):
        path = tmp_path / "w.h5"
        with h5py.File(path, "w") as file:
            file.attrs["layer_names"] = [name.encode() for name in layers]
            file.attrs.update(attributes)
            for name, arrays in layers.items():
                group = file.create_group(name)
                group.attrs["weight_names"] = [f"{name}/w_{n}".encode() for n in range(len(arrays))]
                for n, array in enumerate(arrays):
                    group.create_dataset(f"{name}/w_{n}", data=array)
        return path

    return write


def arrays(*shapes):
    return [RNG.normal(size=shape) for shape in shapes]


def test_by_name_then_by_order(saved):
    (first,), (second,) = arrays((2, 3)), arrays((2, 3))
    path = saved({"b": [second], "a": [first], "without": []}, keras_version=b"2.0.8")
    model = Model(Dense((2, 3), name="a"), Dense((2, 3), name="b"))
    load_legacy_weights(model, path)
    np.testing.assert_array_equal(model.layers[0].values, [first])
    model = Model(Dense((2, 3), name="c"), Dense((2, 3), name="d"))
    load_legacy_weights(model, path)
    np.testing.assert_array_equal(model.layers[0].values, [second])


def test_layers_inside_a_model_may_be_saved_as_its_own(saved):
    (first,), (second,) = arrays((2, 3)), arrays((3, 1))
    inner = Layer(name="inner", layers=[Dense((2, 3), name="a")])
    inner.trainable_weights = inner.layers[0].trainable_weights
    model = Model(inner, Dense((3, 1), name="b"))
    load_legacy_weights(model, saved({"a": [first], "b": [second]}))
    np.testing.assert_array_equal(inner.values, [first])


def test_gates_of_keras_1_are_joined(saved):
    parts = arrays(*[(2, 3), (3, 3), (3,)] * 4)
    lstm = LSTM((2, 12), (3, 12), (12,))
    load_legacy_weights(Model(lstm), saved({"it": parts}))
    # i, c, f, o become i, f, c, o
    np.testing.assert_array_equal(lstm.values[0], np.hstack([parts[0], parts[6], parts[3], parts[9]]))
    np.testing.assert_array_equal(lstm.values[2], np.hstack([parts[2], parts[8], parts[5], parts[11]]))


@pytest.mark.parametrize(
    ("make", "stored", "order"),
    [
        (lambda **k: Conv2D((3, 2, 1, 4), **k), (3, 2, 1, 4), None),
        (lambda **k: Conv2D((3, 2, 1, 4), data_format="channels_first", **k), (4, 1, 3, 2), (2, 3, 1, 0)),
        (lambda **k: Conv2DTranspose((3, 2, 4, 1), **k), (3, 2, 1, 4), (0, 1, 3, 2)),
    ],
)
def test_kernels_of_keras_1(saved, make, stored, order):
    (kernel,) = arrays(stored)
    layer = make()
    load_legacy_weights(Model(layer), saved({"it": [kernel]}))
    expected = kernel if order is None else kernel.transpose(order)
    np.testing.assert_array_equal(layer.values[0], expected)
    load_legacy_weights(Model(layer), saved({"it": [kernel]}, backend=b"theano"))
    np.testing.assert_array_equal(layer.values[0], expected[::-1, ::-1])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 0, 1)], ids=["1.2", "1.1"])
def test_kernels_of_sequences_of_keras_1(saved, order):
    (kernel,) = arrays((5, 1, 2, 3))
    layer = Conv1D((5, 2, 3), filters=3)
    load_legacy_weights(Model(layer), saved({"it": [kernel.transpose(order)]}))
    np.testing.assert_array_equal(layer.values[0], kernel[:, 0])


@pytest.mark.parametrize(("make", "n_gates"), [(LSTM, 4), (GRU, 3)])
def test_weights_of_cudnn(saved, make, n_gates):
    kernel, recurrent, bias = arrays((2, 3 * n_gates), (3, 3 * n_gates), (2, 3 * n_gates))
    cudnn = [
        # The matrix of each gate, transposed, in the place of the gate.
        np.hstack([gate.reshape(gate.shape, order="F").T.reshape(gate.shape) for gate in np.hsplit(kernel, n_gates)]),
        np.hstack([gate.T for gate in np.hsplit(recurrent, n_gates)]),
        bias.ravel(),
    ]
    layer = make((2, 3 * n_gates), (3, 3 * n_gates), (12,) if make is LSTM else (2, 9))
    load_legacy_weights(Model(layer), saved({"it": cudnn}, keras_version=b"2.2.4"))
    np.testing.assert_array_equal(layer.values[0], kernel)
    np.testing.assert_array_equal(layer.values[1], recurrent)
    np.testing.assert_array_equal(layer.values[2], bias.sum(0) if make is LSTM else bias)


def test_keras_0_numbered_its_layers(tmp_path):
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.attrs["nb_layers"] = 1
        file.create_group("layer_0").attrs["nb_params"] = 1
        file["layer_0"]["param_0"] = np.ones(3)
    saved = read_saved_weights(tmp_path / "w.h5")
    assert [(name, [array.shape for array in arrays]) for name, arrays in saved.layers] == [("layer_0", [(3,)])]
    assert (saved.keras_version, saved.backend) == ("1", None)


def test_long_lists_of_names_lie_in_parts(saved):
    path = saved({"a": arrays((2,)), "b": arrays((2,))}, backend=b"theano")
    with h5py.File(path, "a") as file:
        names = file.attrs.pop("layer_names")
        file.attrs["layer_names0"], file.attrs["layer_names1"] = names[:1], names[1:]
    assert [name for name, _ in read_saved_weights(path).layers] == ["a", "b"]
    assert read_saved_weights(path).backend == "theano"


def test_all_or_none(saved):
    model = Model(Dense((2,), name="a"), Dense((3,), name="b"))
    with pytest.raises(ConfigurationError, match=r"must fit layer 'b', a Dense. Received: an array of shape \(4,\)"):
        load_legacy_weights(model, saved({"a": arrays((2,)), "b": arrays((4,))}))
    assert not model.layers[0].values[0].any()


@pytest.mark.parametrize(
    ("layers", "what"),
    [({"a": 1, "b": 1}, "which has 1 layers with weights. Received: .* with 2"), ({"a": 2}, "must fit layer 'a'")],
)
def test_weights_of_another_model_are_refused(saved, layers, what):
    path = saved({name: arrays(*[(2,)] * n) for name, n in layers.items()})
    with pytest.raises(ConfigurationError, match=what):
        load_legacy_weights(Model(Dense((2,), name="a")), path)


def test_other_files_are_refused(tmp_path):
    check_refused("must be a complete HDF5 file", read_saved_weights, tmp_path / "missing.h5")
    h5py.File(tmp_path / "empty.h5", "w").close()
    check_refused("which names no layers", read_saved_weights, tmp_path / "empty.h5")


@pytest.mark.parametrize(
    ("architecture", "weights"),
    [("m.json", "m.h5"), ("m.json", "m_weights.h5"), ("m_arch.json", "m_weights.h5"), ("m_arch.json", "m_arch.h5")],
)
def test_weights_lie_beside_the_architecture(tmp_path, architecture, weights):
    assert find_legacy_weights(tmp_path / architecture) is None
    (tmp_path / weights).touch()
    assert find_legacy_weights(tmp_path / architecture) == tmp_path / weights


def test_the_name_of_an_architecture_may_be_as_long_as_any_name(tmp_path):
    assert find_legacy_weights(tmp_path / ("m" * 250 + ".json")) is None


@pytest.mark.parametrize(("n_layers", "n_params"), [(2**62, 1), (2**62, 0), (1, 2**62), ("two", 1)])
def test_more_layers_or_weights_declared_than_there_are_is_refused(tmp_path, n_layers, n_params):
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.attrs["nb_layers"] = n_layers
        file.create_group("layer_0").attrs["nb_params"] = n_params
        file["layer_0"]["param_0"] = np.ones(3)
    check_refused("must be a complete HDF5 file", read_saved_weights, tmp_path / "w.h5")


def test_weights_that_are_no_regular_file_are_refused(tmp_path, irregular):
    check_refused("not a regular file", read_saved_weights, irregular(tmp_path / "w.h5"))


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        ([b"many"], "of which at most 0 are stored"),
        ([b"text"], "'text' holds no numbers"),
        ([b"inside"], "'inside' is not there"),
        ([b"none"], "'none' is not there"),
        ([b"other"], "refers to another file"),
        (3, "not iterable"),
    ],
)
def test_damaged_weights_are_refused(saved, weights, what):
    path = saved({"a": arrays((2,))})
    h5py.File(path.with_name("other.h5"), "w").close()
    with h5py.File(path, "a") as file:
        group = file["a"]
        group.create_dataset("many", (2**50,), "f4")
        group["text"], group["inside/w"], group["other"] = ["a"], 1.0, h5py.ExternalLink("other.h5", "/")
        group.attrs["weight_names"] = weights
    with pytest.raises(ConfigurationError, match=f"must be a complete HDF5 file. Received: .*{what}"):
        read_saved_weights(path)


def test_names_that_are_no_utf8_are_names(saved):
    path = saved({"a": arrays((2,))})
    with h5py.File(path, "a") as file:
        file[b"\xff"] = file["a"]
        file.attrs["layer_names"] = np.array([b"\xff"])
    assert [(name, len(stored)) for name, stored in read_saved_weights(path).layers] == [("\udcff", 1)]
