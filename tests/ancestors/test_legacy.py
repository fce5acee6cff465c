"""Modules of NNLO and mpi_learn, and names of Keras 1 and 2, by the import hook of `run-legacy`."""

import shutil
from pathlib import Path

import pytest

from nnlo_opt.ancestors.scripts.classes import get_device
from nnlo_opt.ancestors.scripts.names import MODULES
from tests.helpers.launcher import python

HERE = Path(__file__).parent


@pytest.fixture
def run_legacy(preloaded):
    """Runs `nnlo-opt run-legacy` on a script in a process of its own, in a folder of its own."""

    def run(folder, script, *words):
        return preloaded.run(["nnlo-opt", "run-legacy", str(script), *map(str, words)], folder, code=None)

    return run


@pytest.fixture
def run_text(run_legacy):
    """As `run_legacy`, for the text of a script."""

    def run(folder, program, *words):
        script = folder / "script.py"
        script.write_text(program)
        return run_legacy(folder, script, *words)

    return run


def test_every_name_of_the_table_is_there_and_none_imports_a_framework(tmp_path, run_text):
    lines = [f"from {module} import {name}" for module, names in MODULES.items() for name in names.split()]
    lines += [f"import {module}" for module in MODULES]
    program = "\n".join([*lines, "import sys", "print(sorted({'keras', 'tensorflow', 'torch'} & {*sys.modules}))"])
    assert run_text(tmp_path, program).expect(0).out == "[]\n"


def test_nothing_of_it_is_there_unless_run_legacy_asks():
    program = "import importlib.util, nnlo_opt.cli.tool; print(importlib.util.find_spec('mpi_learn'))"
    assert python(program).expect(0).out == "None\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("from nnlo.train.model import Unknown", "cannot import name 'Unknown'"),
        ("from nnlo.train.GanModel import GANModel; GANModel()", "with `GANModelBuilder`"),
        ("from nnlo.train.GanModel import GANModelBuilder as B; B(None, weights='a,b')", "must be left out"),
        ("raise SystemExit('over')", "over"),
    ],
)
def test_what_there_is_not_is_said(tmp_path, program, words, run_text):
    done = run_text(tmp_path, program)
    assert words in done.err
    assert done.code


def test_a_module_finds_the_models_of_nnlo_and_its_working_folder(tmp_path, run_text):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "first.py").write_text("from models.Models import make_mnist_model\n")
    program = (
        "import sys; from examples.first import *; from nnlo.models.model_cifar10_tf import get_model, get_name\n"
        "print(make_mnist_model.parameter_range[0].name, get_name(), sys.argv[1:])"
    )
    done = run_text(tmp_path, program, "--epochs", "3")
    assert done.out == "nb_filters cifar10 ['--epochs', '3']\n", done.err
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "beside.py").write_text("mine = 6\n")
    program = "from models.beside import mine; from models.Models import make_mnist_model; print(mine)"
    assert run_text(tmp_path, program).out == "6\n"
    (tmp_path / "models" / "__init__.py").write_text("mine = 7\n")
    assert run_text(tmp_path, "import models; print(models.mine)").out == "7\n"


FORMER = """
import keras
from keras.layers import AveragePooling1D, Conv1D, Convolution2D, Convolution3D, Dense, GaussianNoise, Input, merge
from keras.layers.convolutional import Conv2D
from keras.layers.merge import concatenate
from keras.models import Model, Sequential
from keras.optimizers import SGD
from keras.utils.np_utils import to_categorical
import keras.backend as K

image = Input((8, 8, 1))
first = Convolution2D(4, 5, 3, border_mode="same", activation="relu")(image)
second = Conv2D(nb_filter=4, nb_row=3, nb_col=3, border_mode="same", dim_ordering="tf")(image)
model = Model(input=image, output=merge([first, second], mode="concat"))
dense = Sequential([Dense(output_dim=3, input_dim=2)])
again = keras.models.model_from_json(model.to_json())
print(K.image_dim_ordering(), model.weights[0].shape, again.output_shape, dense.output_shape, float(K.sum([1.0, 2.0])))
box, line, pool = Convolution3D(4, 3, 3, 2), Conv1D(4, 3, 2), AveragePooling1D(pool_length=2, stride=1)
print(box.kernel_size, line.kernel_size, line.strides, pool.strides, GaussianNoise(sigma=0.5).stddev)
print(round(float(SGD(lr=0.5, decay=0.0).learning_rate), 1), to_categorical([1], 3).tolist())
"""


@pytest.mark.keras
@pytest.mark.proof
def test_models_in_the_words_of_keras_1_and_2_are_built(tmp_path, run_text):
    done = run_text(tmp_path, FORMER)
    first, middle, second = done.out.splitlines()[-3:]
    assert first == "tf (5, 3, 1, 4) (None, 8, 8, 8) (None, 3) 3.0", done.err
    assert middle == "(3, 3, 2) (3,) (2,) (1,) 0.5"
    assert second == "0.5 [[0.0, 1.0, 0.0]]"


@pytest.mark.keras
@pytest.mark.proof
def test_a_script_of_mpi_learn_trains_as_it_is(tmp_path, run_legacy):
    done = run_legacy(tmp_path, HERE / "script_of_mpi_learn.py", "--epochs", "20").expect(0)
    said, trained = done.out.splitlines()
    assert said.startswith("`elastic_lr=1.0` of Algo is ignored")
    device, *metrics, loss = trained.split()
    assert (device, "'val_acc'," in metrics) == ("cpu", True)
    assert float(loss) < 0.6


@pytest.mark.keras
@pytest.mark.proof
def test_a_script_of_nnlo_trains_its_gan_as_it_is(tmp_path, printed, run_legacy):
    printed("showers", 2, 1, "--cells", 9, "--n-samples", 48, "--out", tmp_path, program="GetData")
    done = run_legacy(tmp_path, HERE / "gan_of_nnlo.py", "train_showers.list", "test_showers.list").expect(0)
    assert "on cpu" in done.out
    assert "val_combined_model_energy_loss val_combined_model_loss" in done.out


#: reads two lists as mpi_learn's MPIDriver.py does, by the working folder
LISTS = """
import sys
from mpi_learn.train.data import H5Data
names = [line.strip() for line in open(sys.argv[-1].rpartition("=")[2])]
data = H5Data(batch_size=10, cache="", preloading=0, features_name="features", labels_name="labels")
data.set_file_names(names)
print(data.count_data())
"""


@pytest.mark.parametrize("form", ["{}", "--train-list={}"])
def test_the_names_of_a_list_are_found_beside_it_from_any_folder(tmp_path, digits, form, run_legacy, run_text):
    alone = run_text(tmp_path, LISTS, form.format(digits / "train_mnist.list")).expect(0)
    beside = shutil.copytree(digits, tmp_path / "beside")
    (beside / "script.py").write_text(LISTS)
    assert run_legacy(beside, beside / "script.py", form.format("train_mnist.list")).expect(0).out == alone.out
    assert int(alone.out) > 0


def test_the_working_folder_comes_before_that_of_the_list(tmp_path, digits, run_text):
    lists = shutil.copytree(digits, tmp_path / "lists")
    name = (lists / "train_mnist.list").read_text().split()[0]
    shutil.copy(lists / (lists / "test_mnist.list").read_text().split()[0], tmp_path / name)
    (lists / "one.list").write_text(f"{name}\n")
    here = run_text(tmp_path, LISTS, lists / "one.list").expect(0).out
    (tmp_path / name).unlink()
    assert run_text(tmp_path, LISTS, lists / "one.list").expect(0).out != here


def test_a_data_file_that_is_nowhere_is_refused_with_the_folders_that_were_tried(tmp_path, run_text):
    (lists := tmp_path / "lists").mkdir()
    (lists / "train.list").write_text("nowhere.h5\n")
    done = run_text(tmp_path, LISTS, lists / "train.list").expect(2)
    assert f"Received: nowhere.h5, looked for in {tmp_path} and {lists}, which does not" in done.err


def test_a_driver_looks_for_the_names_of_a_list_in_the_working_folder_too(tmp_path, digits, run_legacy):
    data = shutil.copytree(digits, tmp_path / "digits")
    (lists := tmp_path / "lists").mkdir()
    for name in ("train_mnist.list", "test_mnist.list"):
        shutil.move(data / name, lists / name)
    words = ["--train-data", lists / "train_mnist.list", "--val-data", lists / "test_mnist.list", "--verify-data"]
    # The files are found, and then have no checksums.
    found = run_legacy(data, "TrainingDriver", "--model", "mnist", *words).expect(2).err
    assert "`--verify-data` needs a file of checksums" in found
    refused = run_legacy(tmp_path, "TrainingDriver", "--model", "mnist", *words[:4]).expect(2).err
    assert f"looked for in {lists} and {tmp_path}, which does not exist" in refused


OF_TORCH = pytest.param("mnist_torch", marks=pytest.mark.needs("torch"))


@pytest.mark.proof
@pytest.mark.parametrize("name", [pytest.param("mnist", marks=pytest.mark.keras), OF_TORCH])
def test_a_model_that_a_script_of_mpi_learn_has_saved_is_trained_as_it_is(tmp_path, digits, name, run_legacy):
    folder, lists = shutil.copytree(digits, tmp_path / "digits"), ["train_mnist.list", "test_mnist.list"]
    done = run_legacy(folder, HERE / "driver_of_mpi_learn.py", name, *lists).expect(0)
    said, *device, learnt = done.out.splitlines()
    assert said.startswith("A timeline of a script is not recorded")
    assert (device, learnt) == ([] if "torch" in name else ["using device cpu"], "learnt")


TORCH = """
import torch
from models.Models import make_mnist_torch_model
layer = torch.nn.Linear(2, 2).cuda()
print(layer(torch.ones(1, 2).cuda()).shape, make_mnist_torch_model(kernel_size=4)(torch.ones(2, 28, 28, 1)).shape)
"""


@pytest.mark.needs("torch")
def test_torch_models_that_ask_for_a_gpu_run_without_one(tmp_path, run_text):
    assert run_text(tmp_path, TORCH).out == "torch.Size([1, 2]) torch.Size([2, 10])\n"


@pytest.mark.parametrize(
    ("visible", "devices"),
    [("2,0", ["gpu2", "gpu0", "gpu2"]), ("-1", ["cpu"] * 3), ("MIG-1,MIG-2", ["gpuMIG-1", "gpuMIG-2", "gpuMIG-1"])],
)
def test_ranks_of_a_node_take_its_gpus_in_turn(monkeypatch, visible, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "3")
    found = []
    for rank in range(3):
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", str(rank))
        found.append(get_device(None))
        assert get_device(None, gpu_limit=0) == "cpu"
    assert found == devices
