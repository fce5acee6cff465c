from pathlib import Path

import h5py
import numpy as np
import pytest

from nnlo_opt.data import hdf5_parts
from nnlo_opt.data.hdf5 import Hdf5Source, write_hdf5
from nnlo_opt.errors import ConfigurationError, TrialError

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


def refused(*args: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Hdf5Source(*args)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert "Received: " in message
    return message


def test_one_sentence_for_each_wrong_request(path: Path) -> None:
    assert "without 'x'. The data sets are: features, inputs/a, inputs/b, labels" in refused([path], "x", "labels")
    assert "9 rows of 'short'" in refused([path], "features", "short")
    assert "a single value" in refused([path], "features", "scalar")
    assert "must hold numbers" in refused([path], "features", "text")
    assert "no file" in refused([], "features", "labels")


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
    with h5py.File(other, "w"):
        pass
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
    for name, said in [
        ("labels", "one value for each sample"),
        ("short", "one value for each sample"),
        ("inputs", "a group"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            source.read_column(name)


@pytest.mark.parametrize("how", [{}, {"chunks": (7, 2)}, {"chunks": (50, 4), "compression": "gzip"}])
@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_reading_in_pieces_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict, piece_bytes: int
) -> None:
    monkeypatch.setattr(hdf5_parts, "PIECE_BYTES", piece_bytes)
    x, y = RNG.integers(0, 256, (101, 4), np.uint8), RNG.random((101, 1))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=x, **how)
        file.create_dataset("y", data=y)
    source = Hdf5Source([tmp_path / "a.h5"], "x", "y")
    for indices in (np.arange(101), np.arange(30, 60), np.array([0, 1, 50, 99]), np.flatnonzero(RNG.random(101) < 0.5)):
        got_x, got_y = source.read(indices)
        np.testing.assert_array_equal(got_x, x[indices].astype(np.float32))
        np.testing.assert_array_equal(got_y, y[indices].astype(np.float32))


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
    assert (source.info.feature_dtype, source.info.label_dtype) == ("float32", "int64")
    plain = Hdf5Source([path], "features", "labels")
    indices = np.array([0, 2, 9])
    x, y = source.read(indices)
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
    write_hdf5(path, {"features": np.zeros((8, 4)), "labels": np.zeros((8, 3))})
    with pytest.raises(TrialError, match="it has 8 rows now"):
        source.read(np.arange(10))
    write_hdf5(path, {"features": np.zeros((10, 1)), "labels": np.zeros((10, 3))})
    with pytest.raises(TrialError, match=r"'features' of .*good.h5"):
        source.read(np.arange(10))
    write_hdf5(path, {"labels": np.zeros((10, 3))})
    with pytest.raises(TrialError, match=r"'features' of .*good.h5"):
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
