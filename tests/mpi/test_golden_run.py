"""A run of the built-in model mnist, begun by an earlier version: the SHA-256 of the model's file identifies it."""

import re
import shutil
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.helpers import launcher
from tests.helpers.launcher import results_of

pytestmark = [pytest.mark.mpi, pytest.mark.keras, pytest.mark.proof]

RUN = Path(__file__).parents[1] / "golden/run-of-mnist"
#: folder in which the run began, with its data
BEGAN_IN = b"/tmp/gold/w"


def moved(line: bytes, run: bytes, folder: Path) -> bytes:
    """A line of its journal as if the run had begun in `folder`."""
    seq, body = re.fullmatch(rb'\{"seq":(\d+),"crc":"\w{8}",(.*)', line).groups()
    body = b"{" + body.replace(BEGAN_IN, str(folder).encode())
    return b'{"seq":%s,"crc":"%08x",%s' % (seq, zlib.crc32(body, zlib.crc32(run, int(seq))), body[1:])


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "checkpoints/gold"
    shutil.copytree(RUN, place)
    lines = (RUN / "journal.jsonl").read_bytes().splitlines()
    run = re.search(rb'"run":"(\w+)"', lines[0])[1]
    (place / "journal.jsonl").write_bytes(b"".join(moved(line, run, tmp_path) + b"\n" for line in lines))
    (place / "journal.synced").unlink()
    data, rng = tmp_path / "data/mnist", np.random.default_rng(0)
    data.mkdir(parents=True)
    for name, n in (("mnist_train_0", 175), ("mnist_test_0", 200)):
        with h5py.File(data / f"{name}.h5", "w") as file:
            file["features"] = rng.random((n, 28, 28, 1), np.float32)
            file["labels"] = np.eye(10, dtype=np.float32)[rng.integers(10, size=n)]
    (data / "one.list").write_text("mnist_train_0.h5\n")
    (data / "onetest.list").write_text("mnist_test_0.h5\n")
    return tmp_path


def test_it_goes_on_with_more_trials_and_gives_its_model(folder):
    fixed = (word for pair in ("nb_filters=8", "pool_size=4", "kernel_size=5", "dense=50") for word in ("--fix", pair))
    command = [
        "OptimizationDriver",
        "--model",
        "mnist",
        "--epochs",
        "1",
        "--hyper-opt",
        "random",
        *fixed,
        "--batch",
        "50",
    ]
    data = ["--train-data", "data/mnist/one.list", "--val-data", "data/mnist/onetest.list"]
    more = ["--num-iterations", "4", "--checkpoint", "gold", "--keep-weights", "best:1", "--opt-restore"]
    assert "trial 2" in launcher.run(1, ["nnlo-opt", "best-model", "gold"], folder).out
    assert zipfile.is_zipfile(folder / "checkpoints/gold/best_model.keras")
    outcome = launcher.run(2, [*command, *data, *more], folder)
    assert "3 trials done" in outcome.out
    assert [row["state"] for row in results_of(folder / "checkpoints/gold")] == ["complete"] * 4
