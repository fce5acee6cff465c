"""Groups, lists of data sets, and sequences of variable length in HDF5 files."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from nnlo_opt.data import hdf5_parts
from nnlo_opt.data.hdf5 import Hdf5Source
from nnlo_opt.data.ragged import Ragged, padded
from nnlo_opt.data.source import DataInfo
from nnlo_opt.errors import ConfigurationError, TrialError

N = 11
LENGTHS = np.array([3, 0, 1, 4, 2, 2, 5, 1, 0, 3, 1])


def steps_of(sample: int, step: int) -> list[float]:
    return [sample + 1, step + 1]


def ragged_rows() -> list[np.ndarray]:
    return [np.array([steps_of(i, s) for s in range(n)], float).reshape(-1, 2) for i, n in enumerate(LENGTHS)]


def write(path: Path, rows: slice = slice(None)) -> Path:
    """A file with groups, lists and sequences of both kinds."""
    numbers = np.arange(N)[rows]
    with h5py.File(path, "w") as file:
        file["x/b/first"] = np.repeat(numbers[:, None], 3, axis=1)
        file["x/b/second"] = numbers * 10
        file["x/a"] = numbers * 100
        file["y/one"] = np.eye(3)[numbers % 3]
        file["y/two"] = numbers / 2
        file["labels"] = numbers % 2
        flat = file.create_dataset("vlen", len(numbers), h5py.vlen_dtype(np.float64))
        steps = file.create_dataset("steps", len(numbers), h5py.vlen_dtype(np.int32))
        words = np.full((len(numbers), 5, 2), -1.0)
        for i, row in enumerate(ragged_rows()[rows]):
            flat[i], steps[i], words[i, : len(row)] = row.ravel(), row[:, 1], row
        flat.attrs["row_shape"] = 2
        file["words"] = words
        file["words_length"] = LENGTHS[rows]
        file["group/words"] = words
        file["group/words_length"] = LENGTHS[rows]
        file.create_group("empty")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.h5")


def refused(*args: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Hdf5Source(*args)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert "Received: " in message
    return message


def test_a_group_is_a_list_by_alphabet_nested_as_it_is(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.h5", slice(0, 4)), write(tmp_path / "b.h5", slice(4, 4)), write(tmp_path / "c.h5")]
    source = Hdf5Source(paths, "x", "y")
    info = source.info
    assert info.feature_shape == [(), [(3,), ()]]
    assert info.label_shape == [(3,), ()]
    assert info.label_dtype == ["float32", "float32"]
    assert info.sample_bytes == 4 * (1 + 3 + 1) + 4 * (3 + 1)
    assert DataInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
    (a, (first, second)), (one, two) = source.read(np.array([1, 3, 4, 8]))
    assert a.dtype == np.float32
    assert a.tolist() == [100, 300, 0, 400]
    assert second.tolist() == [10, 30, 0, 40]
    assert first[:, 2].tolist() == [1, 3, 0, 4]
    assert one.argmax(axis=1).tolist() == [1, 0, 0, 1]
    assert two.tolist() == [0.5, 1.5, 0, 2]
    assert source.read_labels()[1].tolist() == [0, 0.5, 1, 1.5, *(np.arange(N) / 2)]


def test_names_with_commas_are_a_list_in_that_order(path: Path) -> None:
    source = Hdf5Source([path], "x/b/second, x/a", "labels")
    assert source.info.feature_shape == [(), ()]
    assert source.info.label_dtype == "int64"
    assert [leaf.tolist() for leaf in source.read(np.array([2]))[0]] == [[20], [200]]
    nested = Hdf5Source([path], "x,labels", "y,labels")
    assert nested.info.feature_shape == [[(), [(3,), ()]], ()]
    assert nested.info.label_dtype == [["float32", "float32"], "int64"]


def test_wrong_groups_and_lists(path: Path, tmp_path: Path) -> None:
    assert "an empty group" in refused([path], "empty", "labels")
    assert "x/c" in refused([path], "x,x/c", "labels")
    assert "--features-name" in refused([path], "x,,y", "labels")
    other = write(tmp_path / "b.h5")
    with h5py.File(other, "a") as file:
        file["x/b/third"] = np.zeros(N)
    message = refused([path, other], "x", "labels")
    assert "x/b/third" in message
    assert str(other) in message
    with h5py.File(other, "a") as file:
        del file["x/b/third"], file["x/a"]
        file["x/a"] = np.zeros(N - 1)
    assert "10 rows of 'x/a' and 11 rows of 'x/b/first'" in refused([path, other], "x", "labels")
    with h5py.File(other, "a") as file:
        del file["x/a"]
        file["x/a"] = ["text"] * N
    assert "'x/a' must hold numbers" in refused([path, other], "x", "labels")


@pytest.mark.parametrize("piece_bytes", [1, 64, 1 << 20])
@pytest.mark.parametrize("gap_bytes", [0, 16, 1 << 20])
def test_groups_are_read_in_pieces_that_fit_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, gap_bytes: int
) -> None:
    monkeypatch.setattr(hdf5_parts, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(hdf5_parts, "GAP_BYTES", gap_bytes)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x/a", data=np.arange(300).reshape(100, 3), chunks=(7, 2))
        file.create_dataset("x/b", data=np.arange(100), chunks=(3,))
        file["y"] = np.arange(100)
    source = Hdf5Source([tmp_path / "a.h5"], "x", "y")
    assert source.info.chunk_samples == 7
    for indices in (np.arange(100), np.arange(5, 50, 9), np.array([0, 1, 2, 80, 99])):
        (a, b), y = source.read(indices)
        assert a[:, 0].tolist() == (3 * indices).tolist()
        assert b.tolist() == y.tolist() == indices.tolist()


# ---------------------------------------------------------------- adaptors


def test_an_adaptor_takes_the_tree_and_may_return_another(path: Path) -> None:
    def join(tree):
        a, (first, second) = tree
        return np.concatenate([a[:, None], first, second[:, None]], axis=1)

    source = Hdf5Source([path], "x", "y", (join, lambda tree: (tree[1], [tree[0].argmax(axis=1)])))
    assert source.info.feature_shape == (5,)
    assert source.info.label_shape == [(), [()]]
    assert source.info.label_dtype == ["float32", ["int64"]]
    x, y = source.read(np.array([3]))
    assert x.tolist() == [[300, 3, 3, 3, 30]]
    assert [y[0].tolist(), y[1][0].tolist()] == [[1.5], [0]]


def test_an_adaptor_takes_sequences_as_an_array_of_arrays(path: Path) -> None:
    def to_length_3(rows):
        return np.stack([np.concatenate([row, np.zeros((3, 2))])[:3] for row in rows])

    source = Hdf5Source([path], "vlen", "labels", (to_length_3, None))
    assert source.info.feature_shape == (3, 2)
    assert source.read(np.array([0, 1]))[0].tolist() == [[[1, 1], [1, 2], [1, 3]], [[0, 0]] * 3]
    # A padded one is there as it is stored.
    assert Hdf5Source([path], "words", "labels", (lambda rows: rows, None)).info.feature_shape == (5, 2)


# ---------------------------------------------------------------- sequences


@pytest.mark.parametrize("name", ["vlen", "words"])
def test_sequences_of_both_kinds_are_the_same_samples(tmp_path: Path, name: str) -> None:
    paths = [write(tmp_path / "a.h5", slice(0, 4)), write(tmp_path / "b.h5", slice(4, N))]
    source = Hdf5Source(paths, name, "labels")
    info = source.info
    assert (info.feature_shape, info.feature_dtype) == ((None, 2), "float32")
    assert DataInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
    assert 8 < info.sample_bytes < 50
    for indices in (np.arange(N), np.array([1]), np.array([0, 1, 3, 4, 9])):
        x, _ = source.read(indices)
        assert isinstance(x, Ragged)
        assert x.dtype == np.float32
        assert x.lengths.tolist() == LENGTHS[indices].tolist()
        assert np.array_equal(x.steps, np.concatenate([ragged_rows()[i] for i in indices]))


def test_sequences_of_single_numbers_and_as_labels(path: Path) -> None:
    source = Hdf5Source([path], "vlen,words", "steps")
    assert source.info.feature_shape == [(None, 2), (None, 2)]
    assert (source.info.label_shape, source.info.label_dtype) == ((None,), "int32")
    labels = padded(source.read_labels())
    assert labels.shape == (N, 5)
    assert labels[3].tolist() == [1, 2, 3, 4, 0]


def test_in_a_group_every_data_set_is_an_array_of_its_own(path: Path) -> None:
    assert Hdf5Source([path], "group", "labels").info.feature_shape == [(5, 2), ()]


def test_sequences_that_are_none(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["words_length"][2] = 6
        file["vlen"][0] = np.zeros(3)
        file["text"] = ["a"] * N
        file.create_dataset("two", (N, 2), h5py.vlen_dtype(np.float32))
        for name, row_shape in (("shape0", 0), ("shape_text", "a"), ("shape_float", 1.5)):
            file.create_dataset(name, N, h5py.vlen_dtype(np.float32)).attrs["row_shape"] = row_shape
        for name, lengths in (("float", LENGTHS * 1.0), ("short", LENGTHS[1:]), ("flat", LENGTHS)):
            file[name] = np.zeros((N, 5)) if name != "flat" else np.zeros(N)
            file[f"{name}_length"] = lengths
    assert "must hold numbers" in refused([path], "text", "labels")
    assert "one array for each sample" in refused([path], "two", "labels")
    for name in ("shape0", "shape_text", "shape_float"):
        assert "`row_shape`" in refused([path], name, "labels")
    for name in ("float", "short", "flat"):
        assert f"{name}_length" in refused([path], name, "labels")
    assert "says 6 for row 2, which has 5 steps" in refused([path], "words", "labels")
    assert "not a multiple of its `row_shape` (2,)" in refused([path], "vlen", "labels")


def test_sequences_that_went_wrong_later_fail_the_trial(path: Path) -> None:
    source = Hdf5Source([path], "words", "labels")
    with h5py.File(path, "a") as file:
        file["words_length"][2] = -1
    with pytest.raises(TrialError, match=r"'words' of .* says -1 for row 2"):
        source.read(np.arange(N))


def test_weights_are_read_for_some_samples_too(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.h5", slice(0, 4)), write(tmp_path / "b.h5", slice(4, N))]
    source = Hdf5Source(paths, "x", "y")
    assert source.read_column("y/two", np.array([1, 3, 4, 10])).tolist() == [0.5, 1.5, 2, 5]
