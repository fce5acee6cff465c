"""`--model` names a saved model: by torch, or an architecture of Keras 1 with weights beside it. Files are real."""

import importlib
import json

import h5py
import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.training.options import TrainingOptions
from tests.helpers.workloads import prepared

N_FEATURES, N_CLASSES = 6, 3
MODULE = """
import torch
def get_model(width=5):
    return torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))
def get_loss():
    return "CrossEntropyLoss"
"""
RNG = np.random.default_rng(0)


@pytest.fixture
def place(tmp_path):
    """Makes the workplace of a model file of `tmp_path`, over 40 samples of six features and three classes."""
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["features"] = RNG.normal(size=(40, N_FEATURES)).astype(np.float32)
        file["labels"] = RNG.integers(N_CLASSES, size=40)
    (tmp_path / "data.list").write_text(f"{tmp_path / 'data.h5'}\n")
    data = ["--train-data", tmp_path / "data.list", "--val-data", tmp_path / "data.list"]
    return lambda name, *arguments: prepared("--model", tmp_path / name, *data, *arguments)


def weights_of(place):
    """The weights that a training begins with."""
    adapter = place.build({}, TrainingOptions(loss=place.options.training.loss), seed=0)
    adapter.read_weights(weights := aligned_empty(adapter.n_weights))
    adapter.gradient(*place.data.training.source.read(np.arange(8)), aligned_empty(adapter.n_weights))
    place.maker.release()
    return weights


# ---------------------------------------------------------------- torch


@pytest.fixture
def torch():
    from nnlo_opt.engine.models.torch import framework as torch_module

    torch_module.import_framework(1)
    return importlib.import_module("torch")


def net(torch, width=5):
    nn = torch.nn
    return nn.Sequential(nn.Linear(N_FEATURES, width), nn.ReLU(), nn.Linear(width, N_CLASSES))


def flat(module):
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in module.parameters()])


@pytest.mark.needs("torch")
def test_a_torchscript_archive_is_a_whole_model(place, torch, tmp_path):
    module = net(torch, width=4)
    torch.jit.script(module).save(tmp_path / "net.pt")
    (tmp_path / "net.py").write_text("raise RuntimeError('this is another model')")
    desk = place("net.pt", "--loss", "CrossEntropyLoss")
    findings = desk.inspect(None)
    assert (findings.model, findings.loss, findings.figure) == ("net", "CrossEntropyLoss", "1 - val_acc")
    np.testing.assert_array_equal(weights_of(desk), flat(module))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("wrapped", [False, True])
def test_saved_weights_are_of_the_module_beside_them(place, torch, tmp_path, wrapped):
    module = net(torch)
    (tmp_path / "net.py").write_text(MODULE)
    state = module.state_dict()
    torch.save({"state_dict": state, "epoch": 3} if wrapped else state, tmp_path / "net.pt")
    desk = place("net.pt")
    findings = desk.inspect(None)
    assert (findings.loss, findings.figure) == ("CrossEntropyLoss", "1 - val_acc")
    assert desk.maker.definition.accepted_parameters == {"width"}
    assert not desk.maker.definition.required_parameters
    np.testing.assert_array_equal(weights_of(desk), flat(module))


@pytest.mark.needs("torch")
def test_the_fingerprint_is_of_both_files(place, torch, tmp_path):
    (tmp_path / "net.py").write_text(MODULE)
    torch.save(net(torch).state_dict(), tmp_path / "net.pt")
    first = place("net.pt").maker.definition.sha256
    assert place("net.pt").maker.definition.sha256 == first
    (tmp_path / "net.py").write_text(MODULE + "# another\n")
    assert place("net.pt").maker.definition.sha256 != first


class Harmful:
    """Unpickling it would execute something."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("what", "module", "sentence"),
    [
        ("another width", MODULE, r"must have the shapes of the model's weights\. Received: .*net\.pt, 0\.weight"),
        ("other names", MODULE, r"must have the names of the model's weights\. Received: .*net\.pt"),
        ("half a file", MODULE, r"must be a `state_dict` saved by torch\. Received: .*net\.pt"),
        ("code", MODULE, "objects, which are not unpickled"),
        ("state", None, r"need their module\. Received: .*net\.pt, a `state_dict` alone\. Put net\.py"),
        ("half a script", MODULE, r"must be a `state_dict` saved by torch\. Received: .*net\.pt"),
        ("state", "def get_model(): return 3", "Saved weights need a torch module. Received: .*net.pt and"),
        (
            "state",
            "def objective(p, c, r): return 1",
            r"must define `get_model`\. Received: .*net\.py with `objective`",
        ),
    ],
)
def test_what_torch_saved_and_is_no_model(place, torch, tmp_path, what, module, sentence):
    path = tmp_path / "net.pt"
    if module is not None:
        (tmp_path / "net.py").write_text(module)
    if what == "half a script":
        torch.jit.script(net(torch)).save(path)
    else:
        content = {"another width": net(torch, 4).state_dict(), "other names": {"a": torch.ones(2)}, "code": Harmful()}
        torch.save(content.get(what, net(torch).state_dict()), path)
    if what.startswith("half"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        place("net.pt", "--loss", "CrossEntropyLoss").inspect(None)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- Keras 1 and 2


def write_architecture(path, keras_version):
    """Two dense layers, as Keras 1 or 2 said it."""
    renamed = {"output_dim": "units"} if keras_version == "2.1.6" else {}

    def dense(name, units, **config):
        config = {"name": name, "output_dim": units, "activation": "softmax" if name == "d2" else "relu", **config}
        return {"class_name": "Dense", "config": {renamed.get(key, key): value for key, value in config.items()}}

    layers = [dense("d1", 5, batch_input_shape=[None, N_FEATURES]), dense("d2", N_CLASSES)]
    text = json.dumps({"class_name": "Sequential", "config": layers, "keras_version": keras_version})
    path.write_text(text)


def write_weights(path, keras_version, width=5):
    """As `save_weights` of Keras 1 or 2 wrote them; -> the arrays."""
    shapes = {"d1": [(N_FEATURES, width), (width,)], "d2": [(width, N_CLASSES), (N_CLASSES,)]}
    arrays = {name: [RNG.normal(size=shape).astype("f") for shape in own] for name, own in shapes.items()}
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [name.encode() for name in arrays]
        file.attrs["keras_version"] = keras_version.encode()
        for name, own in arrays.items():
            group = file.create_group(name)
            group.attrs["weight_names"] = [f"{name}_{kind}".encode() for kind in "Wb"]
            for kind, array in zip("Wb", own, strict=True):
                group[f"{name}_{kind}"] = array
    return [array for own in arrays.values() for array in own]


@pytest.mark.keras
@pytest.mark.parametrize("keras_version", ["1.2.2", "2.1.6"])
@pytest.mark.parametrize("beside", ["old.h5", "old_weights.h5"])
def test_an_architecture_begins_with_the_weights_beside_it(place, tmp_path, keras_version, beside):
    write_architecture(tmp_path / "old_arch.json", keras_version)
    alone = place("old_arch.json").maker.definition.sha256
    arrays = write_weights(tmp_path / beside, keras_version)
    desk = place("old_arch.json")
    findings = desk.inspect(None)
    assert (findings.model, findings.loss) == ("old", "sparse_categorical_crossentropy")
    assert findings.sha256 != alone
    np.testing.assert_array_equal(weights_of(desk), np.concatenate([array.ravel() for array in arrays]))


@pytest.mark.keras
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("another width", r"must fit layer 'd1', a Dense\. Received: .*\(6, 4\)"),
        ("half a file", r"must be a complete HDF5 file\. Received: .*old\.h5"),
        ("data", r"must be one that Keras 1 or 2 saved\. Received: .*old\.h5, which names no layers"),
    ],
)
def test_weights_beside_an_architecture_that_are_not_its_own(place, tmp_path, what, sentence):
    write_architecture(tmp_path / "old.json", "2.1.6")
    path = tmp_path / "old.h5"
    write_weights(path, "2.1.6", width=4 if what == "another width" else 5)
    if what == "half a file":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if what == "data":
        with h5py.File(path, "w") as file:
            file["features"] = np.zeros((3, 2))
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        place("old.json").inspect(None)
    assert "\n" not in str(caught.value)
