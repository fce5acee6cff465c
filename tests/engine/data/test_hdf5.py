from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.data.ragged import Ragged, padded
from nnlo_opt.engine.data.hdf5 import parts as hdf5_parts
from nnlo_opt.engine.data.hdf5.source import Hdf5Source, write_hdf5
from tests.helpers.refusals import refusal

RNG = np.random.default_rng(0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A good file with something of everything."""
    path = tmp_path / "good.h5"
    write_hdf5(path, {"features": RNG.random((10, 4)), "labels": np.eye(10)[:, :3], "name": np.array([b"a", b"b"] * 5)})
    with h5py.File(path, "a") as file:
        file["inputs/a"] = np.zeros((10, 2))
        file["inputs/b"] = np.zeros((10, 3))
        file["scalar"] = 1.0
        file["short"] = np.zeros((9, 4))
        file["text"] = ["ä", "b"] * 5
    return path


refused = partial(refusal, Hdf5Source)


def test_one_sentence_for_each_wrong_request(path: Path) -> None:
    assert "without 'x'. The data sets are: features, inputs/a, inputs/b, labels" in refused([path], "x", "labels")
    assert "9 rows of 'short'" in refused([path], "features", "short")
    assert "a single value" in refused([path], "features", "scalar")
    assert "must hold numbers" in refused([path], "features", "text")
    assert "no file" in refused([], "features", "labels")


def test_a_data_file_that_is_no_regular_file_is_refused(path: Path, irregular) -> None:
    other = irregular(path.with_name("other.h5"))
    assert f"{other} (not a regular file)" in refused([path, other], "features", "labels")


def test_one_sentence_for_each_wrong_file(path: Path, tmp_path: Path) -> None:
    good, other = path.read_bytes(), tmp_path / "other.h5"

    def with_other() -> str:
        message = refused([path, other], "features", "labels")
        assert str(other) in message
        return message

    assert "must exist" in with_other()
    for content in (b"", b"features, labels", good[: len(good) // 2]):
        other.write_bytes(content)
        assert "complete HDF5 file" in with_other()
    write_hdf5(other, {"features": np.zeros((10, 5)), "labels": np.zeros((10, 3))})
    assert "(4,) as in" in with_other()
    h5py.File(other, "w").close()
    assert "There is no data set" in with_other()
    other.unlink()
    other.mkdir()
    assert "(Is a directory)" in with_other()


def test_empty_files_are_passed_over_but_not_only_empty_files(path: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.h5"
    write_hdf5(empty, {"features": np.zeros((0, 4)), "labels": np.zeros((0, 3))})
    assert "at least one sample" in refused([empty, empty], "features", "labels")
    source = Hdf5Source([empty, path, empty], "features", "labels")
    assert [file.n_samples for file in source.info.files] == [0, 10, 0]
    assert len(source.read_labels()) == 10


def test_nested_names_and_columns_of_text(path: Path) -> None:
    source = Hdf5Source([path], "inputs/a", "labels")
    assert source.info.feature_shape == (2,)
    assert source.read_column("text").tolist() == ["ä", "b"] * 5
    assert source.read_column("name").tolist() == ["a", "b"] * 5
    for name in ("labels", "short"):
        refusal(source.read_column, name, says=["one value for each sample"])
    refusal(source.read_column, "inputs", says=["a group"])


def test_labels_of_different_integers_fit_all_files(tmp_path: Path) -> None:
    for number, dtype in enumerate((np.uint8, ">i4", np.bool_)):
        write_hdf5(tmp_path / f"{number}.h5", {"x": np.zeros((1, 1)), "y": np.ones(1, dtype)})
    source = Hdf5Source([tmp_path / f"{number}.h5" for number in range(3)], "x", "y")
    assert source.info.label_dtype == source.read_labels().dtype == np.int32
    assert source.read_labels().tolist() == [1, 1, 1]
    assert Hdf5Source([tmp_path / "2.h5"], "x", "y").info.label_dtype == "uint8"


def test_adaptors_decide_shapes_and_types(path: Path) -> None:
    def square(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, 2, 2) ** 2

    source = Hdf5Source([path], "features", "labels", (square, lambda rows: rows.argmax(axis=1)))
    assert (source.info.feature_shape, source.info.label_shape) == ((2, 2), ())
    plain = Hdf5Source([path], "features", "labels")
    indices = np.array([0, 2, 9])
    x, y = source.read(indices)
    assert (x.dtype, source.info.label_dtype) == ("float32", "int64")
    np.testing.assert_allclose(x.reshape(3, 4), plain.read(indices)[0] ** 2, rtol=1e-6)
    assert y.tolist() == source.read_labels()[indices].tolist() == [0, 2, 0]


def test_adaptors_that_fail(path: Path) -> None:
    assert "ValueError" in refused([path], "features", "labels", (lambda rows: rows.reshape(-1, 3), None))
    assert "one sample for each row" in refused([path], "features", "labels", (None, lambda rows: rows.sum()))
    only_first = Hdf5Source([path], "features", "labels", (lambda rows: rows.reshape(1, 4), None))
    with pytest.raises(TrialError, match="adapts the features"):
        only_first.read(np.arange(10))
    shape_by_content = Hdf5Source([path], "features", "labels", (None, lambda rows: np.eye(len(rows))))
    with pytest.raises(TrialError, match=r"\(1,\) are expected, not \(10,\)"):
        shape_by_content.read_labels()
    type_by_content = Hdf5Source(
        [path], "features", "labels", (None, lambda rows: rows / 3 if len(rows) > 1 else rows > 0)
    )
    with pytest.raises(TrialError, match="Cannot cast"):
        type_by_content.read_labels()


def test_what_happens_to_files_later_fails_the_trial(path: Path) -> None:
    source = Hdf5Source([path], "features", "labels")
    good = path.read_bytes()
    for arrays, said in (
        ({"features": np.zeros((8, 4)), "labels": np.zeros((8, 3))}, "it has 8 rows now"),
        ({"features": np.zeros((10, 1)), "labels": np.zeros((10, 3))}, r"'features' of .*good.h5"),
        ({"labels": np.zeros((10, 3))}, r"'features' of .*good.h5"),
    ):
        write_hdf5(path, arrays)
        with pytest.raises(TrialError, match=said):
            source.read(np.arange(10))
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(TrialError, match="complete HDF5 file"):
        source.read(np.arange(10))
    path.unlink()
    with pytest.raises(TrialError, match="must exist"):
        source.read_labels()


def test_damage_inside_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=RNG.random((4000, 4)), chunks=(100, 4), compression="gzip", fletcher32=True)
        file["y"] = np.zeros(4000)
    source = Hdf5Source([path], "x", "y")
    with h5py.File(path) as file:
        chunk = file["x"].id.get_chunk_info(20)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(bytes(chunk.size))
    source.read(np.arange(2000))  # the damage lies behind
    with pytest.raises(TrialError, match=r"'x' of .*damaged.h5 must be readable"):
        source.read(np.arange(4000))


def test_damage_anywhere_is_an_error_of_ours_or_not_seen(path: Path, tmp_path: Path) -> None:
    good, damaged = path.read_bytes(), tmp_path / "damaged.h5"
    n_read = n_refused = 0
    for offset in range(0, len(good), 150):
        damaged.write_bytes(good[:offset] + bytes(len(good[offset : offset + 200])) + good[offset + 200 :])
        try:
            x, y = Hdf5Source([damaged], "features", "labels").read(np.arange(10))
        except (ConfigurationError, TrialError):
            n_refused += 1
        else:
            assert (len(x), len(y)) == (10, 10)
            n_read += 1
    # Zeros among the values are values; in the headers they are damage.
    assert min(n_read, n_refused) > 0


def test_a_source_holds_no_file_open(path: Path) -> None:
    source = Hdf5Source([path], "features", "labels")
    source.read(np.arange(3))
    source.read_column("name")
    with h5py.File(path, "a") as file:  # refused while a reader holds the file
        assert "features" in file


def test_writing_is_whole_or_not_at_all(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_hdf5(path, {"features": np.zeros(3), "labels": np.array([object()])})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# ---------------------------------------------------------------- groups, lists and sequences

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
def trees(tmp_path: Path) -> Path:
    return write(tmp_path / "a.h5")


def test_a_group_is_a_list_by_alphabet_nested_as_it_is(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.h5", slice(0, 4)), write(tmp_path / "b.h5", slice(4, 4)), write(tmp_path / "c.h5")]
    source = Hdf5Source(paths, "x", "y")
    info = source.info
    assert info.feature_shape == [(), [(3,), ()]]
    assert info.label_shape == [(3,), ()]
    assert info.label_dtype == ["float32", "float32"]
    assert info.sample_bytes == 4 * (1 + 3 + 1) + 4 * (3 + 1)
    (a, (first, second)), (one, two) = source.read(np.array([1, 3, 4, 8]))
    assert a.dtype == np.float32
    assert a.tolist() == [100, 300, 0, 400]
    assert second.tolist() == [10, 30, 0, 40]
    assert first[:, 2].tolist() == [1, 3, 0, 4]
    assert one.argmax(axis=1).tolist() == [1, 0, 0, 1]
    assert two.tolist() == [0.5, 1.5, 0, 2]
    assert source.read_labels()[1].tolist() == [0, 0.5, 1, 1.5, *(np.arange(N) / 2)]


def test_names_with_commas_are_a_list_in_that_order(trees: Path) -> None:
    source = Hdf5Source([trees], "x/b/second, x/a", "labels")
    assert source.info.feature_shape == [(), ()]
    assert source.info.label_dtype == "int64"
    assert [leaf.tolist() for leaf in source.read(np.array([2]))[0]] == [[20], [200]]
    nested = Hdf5Source([trees], "x,labels", "y,labels")
    assert nested.info.feature_shape == [[(), [(3,), ()]], ()]
    assert nested.info.label_dtype == [["float32", "float32"], "int64"]


def test_wrong_groups_and_lists(trees: Path, tmp_path: Path) -> None:
    assert "an empty group" in refused([trees], "empty", "labels")
    assert "x/c" in refused([trees], "x,x/c", "labels")
    assert "--features-name" in refused([trees], "x,,y", "labels")
    other = write(tmp_path / "b.h5")
    with h5py.File(other, "a") as file:
        file["x/b/third"] = np.zeros(N)
    message = refused([trees, other], "x", "labels")
    assert "x/b/third" in message
    assert str(other) in message
    with h5py.File(other, "a") as file:
        del file["x/b/third"], file["x/a"]
        file["x/a"] = np.zeros(N - 1)
    assert "10 rows of 'x/a' and 11 rows of 'x/b/first'" in refused([trees, other], "x", "labels")
    with h5py.File(other, "a") as file:
        del file["x/a"]
        file["x/a"] = ["text"] * N
    assert "'x/a' must hold numbers" in refused([trees, other], "x", "labels")


@pytest.mark.parametrize("piece_bytes", [1, 64, 1 << 20])
@pytest.mark.parametrize("gap_bytes", [0, 16, 1 << 20])
@pytest.mark.parametrize(
    ("how", "chunk"), [({}, 3), ({"chunks": (7, 2)}, 7), ({"chunks": (50, 3), "compression": "gzip"}, 50)]
)
def test_reading_in_pieces_that_fit_each_other_makes_no_difference(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, gap_bytes: int, how: dict, chunk: int
) -> None:
    monkeypatch.setattr(hdf5_parts, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(hdf5_parts, "GAP_BYTES", gap_bytes)
    numbers = RNG.integers(0, 256, (101, 3), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x/a", data=numbers, **how)
        file.create_dataset("x/b", data=np.arange(101), chunks=(3,))
        file["y"] = np.arange(101) / 7
    source = Hdf5Source([tmp_path / "a.h5"], "x", "y")
    assert source.info.chunk_samples == chunk
    some = np.flatnonzero(RNG.random(101) < 0.5)
    for indices in (np.arange(101), np.arange(30, 60), np.arange(5, 50, 9), np.array([0, 1, 50, 99]), some):
        (a, b), y = source.read(indices)
        np.testing.assert_array_equal(a, numbers[indices].astype(np.float32))
        np.testing.assert_array_equal(b, indices)
        np.testing.assert_array_equal(y, (indices / 7).astype(np.float32))


# ---------------------------------------------------------------- adaptors


def test_an_adaptor_takes_the_tree_and_may_return_another(trees: Path) -> None:
    def join(tree):
        a, (first, second) = tree
        return np.concatenate([a[:, None], first, second[:, None]], axis=1)

    source = Hdf5Source([trees], "x", "y", (join, lambda tree: (tree[1], [tree[0].argmax(axis=1)])))
    assert source.info.feature_shape == (5,)
    assert source.info.label_shape == [(), [()]]
    assert source.info.label_dtype == ["float32", ["int64"]]
    x, y = source.read(np.array([3]))
    assert x.tolist() == [[300, 3, 3, 3, 30]]
    assert [y[0].tolist(), y[1][0].tolist()] == [[1.5], [0]]


def test_an_adaptor_takes_sequences_as_an_array_of_arrays(trees: Path) -> None:
    def to_length_3(rows):
        return np.stack([np.concatenate([row, np.zeros((3, 2))])[:3] for row in rows])

    source = Hdf5Source([trees], "vlen", "labels", (to_length_3, None))
    assert source.info.feature_shape == (3, 2)
    assert source.read(np.array([0, 1]))[0].tolist() == [[[1, 1], [1, 2], [1, 3]], [[0, 0]] * 3]
    # A padded one is there as it is stored.
    assert Hdf5Source([trees], "words", "labels", (lambda rows: rows, None)).info.feature_shape == (5, 2)


# ---------------------------------------------------------------- sequences


@pytest.mark.parametrize("name", ["vlen", "words"])
def test_sequences_of_both_kinds_are_the_same_samples(tmp_path: Path, name: str) -> None:
    paths = [write(tmp_path / "a.h5", slice(0, 4)), write(tmp_path / "b.h5", slice(4, N))]
    source = Hdf5Source(paths, name, "labels")
    info = source.info
    assert (info.feature_shape, source.read(np.arange(1))[0].steps.dtype) == ((None, 2), "float32")
    assert 8 < info.sample_bytes < 50
    for indices in (np.arange(N), np.array([1]), np.array([0, 1, 3, 4, 9])):
        x, _ = source.read(indices)
        assert isinstance(x, Ragged)
        assert x.dtype == np.float32
        assert x.lengths.tolist() == LENGTHS[indices].tolist()
        assert np.array_equal(x.steps, np.concatenate([ragged_rows()[i] for i in indices]))


def test_sequences_of_single_numbers_and_as_labels(trees: Path) -> None:
    source = Hdf5Source([trees], "vlen,words", "steps")
    assert source.info.feature_shape == [(None, 2), (None, 2)]
    assert (source.info.label_shape, source.info.label_dtype) == ((None,), "int32")
    labels = padded(source.read_labels())
    assert labels.shape == (N, 5)
    assert labels[3].tolist() == [1, 2, 3, 4, 0]


def test_in_a_group_every_data_set_is_an_array_of_its_own(trees: Path) -> None:
    assert Hdf5Source([trees], "group", "labels").info.feature_shape == [(5, 2), ()]


def test_sequences_that_are_none(trees: Path) -> None:
    with h5py.File(trees, "a") as file:
        file["words_length"][2] = 6
        file["vlen"][0] = np.zeros(3)
        file["text"] = ["a"] * N
        file.create_dataset("two", (N, 2), h5py.vlen_dtype(np.float32))
        for name, row_shape in (("shape0", 0), ("shape_text", "a"), ("shape_float", 1.5)):
            file.create_dataset(name, N, h5py.vlen_dtype(np.float32)).attrs["row_shape"] = row_shape
        for name, lengths in (("float", LENGTHS * 1.0), ("short", LENGTHS[1:]), ("flat", LENGTHS)):
            file[name] = np.zeros((N, 5)) if name != "flat" else np.zeros(N)
            file[f"{name}_length"] = lengths
    assert "must hold numbers" in refused([trees], "text", "labels")
    assert "one array for each sample" in refused([trees], "two", "labels")
    for name in ("shape0", "shape_text", "shape_float"):
        assert "`row_shape`" in refused([trees], name, "labels")
    for name in ("float", "short", "flat"):
        assert f"{name}_length" in refused([trees], name, "labels")
    assert "says 6 for row 2, which has 5 steps" in refused([trees], "words", "labels")
    assert "not a multiple of its `row_shape` (2,)" in refused([trees], "vlen", "labels")


def test_sequences_that_went_wrong_later_fail_the_trial(trees: Path) -> None:
    source = Hdf5Source([trees], "words", "labels")
    with h5py.File(trees, "a") as file:
        file["words_length"][2] = -1
    with pytest.raises(TrialError, match=r"'words' of .* says -1 for row 2"):
        source.read(np.arange(N))


def test_what_is_not_finite_is_named_where_it_stands(tmp_path: Path) -> None:
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for path in paths:
        with h5py.File(path, "w") as file:
            file["x/one"], file["x/two"] = np.full((6, 2), 3e38), np.zeros((6, 3))
            file["steps"], file["steps_length"] = np.zeros((6, 4)), np.arange(6) % 5
            file["y"] = np.zeros(6)
    with h5py.File(paths[1], "a") as file:
        file["x/two"][4, 1], file["y"][2], file["steps"][3, 2], file["steps"][3, 3] = np.nan, np.inf, -np.inf, np.nan

    def said(number: int, *names: str, **settings) -> str:
        source = Hdf5Source(paths, *names, **settings)
        source.read(np.array([0, number - 1]))  # large numbers, of which the sum is too large, are sound
        for _ in range(2):  # it stays so
            with pytest.raises(TrialError) as refusal:
                source.read(np.arange(number + 1))
        return str(refusal.value)

    assert said(10, "x", "y", finite=["features"]).endswith(
        f"'x/two' of {paths[1]}, first in sample 4. Correct the file, or leave it out."
    )
    assert f"'y' of {paths[1]}, first in sample 2" in said(8, "x", "y")
    assert f"'steps' of {paths[1]}, first in sample 3" in said(9, "steps", "y", finite=["features"])
    own = Hdf5Source(paths, "x", "y", (lambda x: x[1], np.nan_to_num))  # who transforms data knows what they may hold
    assert np.isnan(own.read(np.arange(12))[0]).sum() == 1
