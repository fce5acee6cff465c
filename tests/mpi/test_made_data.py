"""Samples that a model module makes, under real mpirun."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from nnlo_opt import load_run
from nnlo_opt.app.reporting.results import read_ledger
from tests.helpers import launcher
from tests.helpers.launcher import events_of

pytestmark = pytest.mark.mpi

MODEL = """
import time

import numpy as np
from dense import Net
from some import samples


class Slow(Net):
    def forward(self, x):
        time.sleep({seconds})
        return x


def get_model(n_units=8):
    return Slow(n_units, 20, 3)
"""
SAMPLES = """
import numpy as np


def samples(seed, n):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 20))
    return x, np.argmax(x[:, :3] + 0.1 * rng.normal(size=(n, 3)), axis=1)
"""
MADE = {
    "arrays": """
def get_train():
    return samples(0, 500)


def get_val():
    return samples(1, 203)
""",
}
MADE["torch"] = """
from torch.utils.data import Dataset


class Rows(Dataset):
    def __init__(self, *rows):
        self.x, self.y = samples(*rows)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, number):
        return self.x[number], self.y[number]


def get_train():
    return Rows(0, 500)


def get_val():
    return Rows(1, 203)
"""
MADE["keras"] = """
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras


class Batches(keras.utils.PyDataset):
    def __init__(self, *rows):
        super().__init__()
        self.x, self.y = samples(*rows)

    def __len__(self):
        return -(-len(self.y) // 25)

    def __getitem__(self, number):
        rows = slice(number * 25, (number + 1) * 25)
        return self.x[rows], self.y[rows]


def get_train():
    return Batches(0, 500)


def get_val():
    return Batches(1, 203)
"""
MARKS = {"keras": [pytest.mark.keras, pytest.mark.proof], "torch": [pytest.mark.needs("torch"), pytest.mark.proof]}
KINDS = [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in MADE]
#: of a batch, so that an epoch of two ranks takes about one
SECONDS = {"arrays": 0.3, "torch": 0.3, "keras": 0.1}
SPACE = "from nnlo_opt.space import Integer\nparameter_range = [Integer(4, 32, name='n_units')]\n"
TRAINING = ["TrainingDriver", "--mode", "allreduce", "--lr", "0.01"]


@pytest.fixture
def folder(tmp_path):
    """Has a module `KIND.py` for every kind of samples, one that names none, and files with the same samples."""
    plain = MODEL.format(seconds=0)
    (tmp_path / "plain.py").write_text(plain)
    (tmp_path / "some.py").write_text(SAMPLES)
    for kind, functions in MADE.items():
        (tmp_path / f"of_{kind}.py").write_text(plain + functions)
        (tmp_path / f"slow_{kind}.py").write_text(MODEL.format(seconds=SECONDS[kind]) + functions)
    names: dict = {}
    exec(SAMPLES, names)
    for seed, (name, n) in enumerate({"train": 500, "val": 203}.items()):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["features"], file["labels"] = names["samples"](seed, n)
        (tmp_path / f"{name}.list").write_text(f"{name}.h5\n")
    return tmp_path


FILES = ["--model", "plain.py", "--train-data", "train.list", "--val-data", "val.list"]


def metrics_of(run):
    return [fold.metrics for trial in load_run(run).trials for fold in trial.folds.values()]


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_training_has_the_figures_of_the_same_samples_in_files(folder, kind):
    outcome = launcher.run(3, [*TRAINING, "--model", f"of_{kind}.py", "--epochs", "2", "--checkpoint", "made"], folder)
    assert "Data: 500 training and 203 validation samples." in outcome.out
    assert f"from `get_train` of `of_{kind}.py`" in outcome.out
    launcher.run(3, [*TRAINING, *FILES, "--epochs", "3", "--checkpoint", "files"], folder)
    again = [*TRAINING, "--model", f"of_{kind}.py", "--epochs", "3", "--checkpoint", "made", "--restore"]
    launcher.run(3, again, folder)
    (*_, made), (*_, files) = (metrics_of(folder / "checkpoints" / name) for name in ("made", "files"))
    assert made == files


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_search_by_folds_has_the_figures_of_the_same_samples_in_files(folder, kind):
    (folder / "space.py").write_text(SPACE)
    search = ["OptimizationDriver", "--search-space", "space.py", "--num-iterations", "3", "--hyper-opt", "random"]
    search += [*TRAINING[1:], "--epochs", "2", "--n-fold", "2", "--block-size", "2"]
    for name, data in ("made", ["--model", f"of_{kind}.py"]), ("files", FILES):
        launcher.run(5, [*search, *data, "--checkpoint", name], folder)
    made, files = (metrics_of(folder / "checkpoints" / name) for name in ("made", "files"))
    assert len(made) == 6
    assert made == files


@pytest.mark.keras
@pytest.mark.proof
def test_batches_of_a_py_dataset_train_as_batches_of_files(folder):
    training = [*TRAINING, "--epochs", "2", "--no-shuffle"]
    outcome = launcher.run(2, [*training, "--model", "of_keras.py", "--checkpoint", "made"], folder)
    assert "Data: 500 training and 203 validation samples." in outcome.out
    launcher.run(2, [*training, *FILES, "--batch", "25", "--checkpoint", "files"], folder)
    (made,), (files,) = (metrics_of(folder / "checkpoints" / name) for name in ("made", "files"))
    assert made.keys() == files.keys()
    for name, values in made.items():
        np.testing.assert_allclose(values, files[name], rtol=1e-5)
    refused = launcher.run(2, [*training, "--model", "of_keras.py", "--batch", "25"], folder, code=2)
    assert "`--batch` is for samples of which each has a number" in refused.err
    (folder / "space.py").write_text(SPACE)
    search = ["OptimizationDriver", "--model", "of_keras.py", "--search-space", "space.py", "--num-iterations", "1"]
    launcher.run(2, [*search, "--epochs", "1", "--n-fold", "3", "--block-size", "1", "--checkpoint", "cut"], folder)
    (trial,) = read_ledger(folder / "checkpoints/cut").trials
    assert (str(trial.state), len(trial.folds)) == ("complete", 3)


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_preempted_within_an_epoch_goes_on_exactly(folder, kind):
    check_preempted(folder, [*TRAINING, "--model", f"slow_{kind}.py", "--epochs", "3"])


def check_preempted(folder, training):
    launcher.run(2, [*training, "--checkpoint", "whole"], folder)
    run = folder / "checkpoints/cut"
    job = launcher.start(2, [*training, "--checkpoint", "cut"], folder)
    job.wait_for(run, "EpochEnded", 1)
    time.sleep(0.1)  # so that the next epoch has begun
    job.process.send_signal(signal.SIGUSR1)
    job.wait(60, code=75)
    (place,) = (run / "trials/0000/fold0").glob("checkpoint-*-*")  # of an epoch and its batches
    launcher.run(2, [*training, "--checkpoint", "cut", "--restore"], folder)
    assert len(events_of(run, "RunStarted")) == 2, place
    assert metrics_of(run) == metrics_of(folder / "checkpoints/whole")


MODULE = """
import time

import torch
from some import samples
from torch.utils.data import Dataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(20, 3)

    def forward(self, x):
        return self.last(x.sum(1))


def get_model():
    return Net()


class Sequences(Dataset):
    def __init__(self, *rows):
        self.x, self.y = (torch.tensor(rows) for rows in samples(*rows))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, number):
        time.sleep(0.006)
        parts = 1 + number % 3
        return (self.x[number] / parts).float().expand(parts, 20), self.y[number]


def collate_fn(items):
    x, y = zip(*items)
    return torch.nn.utils.rnn.pad_sequence(x, batch_first=True), torch.stack(y)


def get_train():
    return Sequences(0, 500)


def get_val():
    return Sequences(1, 203)
"""


@pytest.mark.proof
@pytest.mark.needs("torch")
def test_a_torch_module_goes_on_exactly_within_an_epoch_of_batches_that_collate_fn_pads(folder):
    (folder / "module.py").write_text(MODULE)
    check_preempted(folder, [*TRAINING, "--model", "module.py", "--epochs", "3", "--batch", "50"])
    assert metrics_of(folder / "checkpoints/cut")[-1]["val_acc"] > 0.45


@pytest.mark.proof
def test_other_samples_are_refused_when_a_run_is_resumed(folder):
    training = [*TRAINING, "--model", "of_arrays.py", "--epochs", "1", "--checkpoint", "other"]
    # The file of the model stays as it is, or that would be refused first.
    text = (folder / "of_arrays.py").read_text()
    (folder / "of_arrays.py").write_text(text.replace("samples(0, 500)", "np.load('x.npy'), np.load('y.npy')"))
    y = np.arange(500) % 3
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(500, 20)))
    np.save(folder / "y.npy", y)
    launcher.run(2, training, folder)
    assert set(read_ledger(folder / "checkpoints/other").identity.data.made) == {"get_train", "get_val"}
    np.save(folder / "y.npy", y[::-1])
    refused = launcher.run(2, [*training, "--epochs", "2", "--restore"], folder, code=2)
    assert "the data differ: `get_train` returns other samples than before; seed all random draws" in refused.err


@pytest.mark.proof
def test_samples_that_differ_from_rank_to_rank_fail_with_a_sentence(folder):
    (folder / "unseeded.py").write_text(MODEL.format(seconds=0) + MADE["arrays"].replace("samples(0,", "samples(None,"))
    refused = launcher.run(3, [*TRAINING, "--model", "unseeded.py", "--epochs", "1"], folder, code=None)
    assert refused.code not in (0, None)
    assert "`get_train` of unseeded.py must return the same samples on every rank" in refused.out + refused.err


@pytest.mark.proof
def test_parameters_of_the_search_reach_the_samples_of_each_trial(folder):
    (folder / "sized.py").write_text(
        MODEL.format(seconds=0)
        + """
from nnlo_opt.space import Categorical

get_model.parameter_range = [Categorical([100, 200], name="n"), Categorical([4, 8], name="n_units")]


def get_train(n):
    print("asked for", n)
    return samples(0, n)


def get_val():
    return samples(1, 50)
"""
    )
    search = ["OptimizationDriver", "--model", "sized.py", "--hyper-opt", "grid", "--epochs", "1", *TRAINING[1:]]
    launcher.run(3, [*search, "--checkpoint", "run", "--block-size", "2"], folder)
    run = folder / "checkpoints/run"
    assert read_ledger(run).n_by_state()["complete"] == 4
    sizes = {trial.point["n"]: trial.point for trial in read_ledger(run).trials}
    assert set(sizes) == {100, 200}
    logs = "".join(path.read_text() for path in (run / "logs").iterdir())
    assert "asked for 100" in logs
    assert "asked for 200" in logs


@pytest.mark.keras
@pytest.mark.proof
def test_the_example_has_the_figures_of_the_script_that_it_was(tmp_path):
    examples = Path(__file__).parents[2] / "examples"
    script = [sys.executable, str(examples / "fit_script.py")]
    done = subprocess.run(
        script, cwd=tmp_path, env=launcher.environment(), capture_output=True, text=True, timeout=200, check=True
    )
    *_, last = re.findall(r"accuracy: (\S+) - loss: (\S+) - val_accuracy: (\S+) - val_loss: (\S+)", done.stdout)
    training = ["TrainingDriver", "--model", str(examples / "example_fit.py"), "--mode", "allreduce"]
    outcome = launcher.run(1, [*training, "--batch", "50", "--epochs", "5", "--no-shuffle"], tmp_path)
    acc, loss, val_acc, val_loss = last
    assert f"Last epoch, 5: loss {loss} acc {acc} val_loss {val_loss} val_acc {val_acc}" in outcome.out
