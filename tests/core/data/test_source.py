"""What every data source does, whatever it reads from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnlo_opt.core.base.trees import leaves
from nnlo_opt.core.data.arrays import ArraySource, JoinedSource
from nnlo_opt.core.data.ragged import Ragged, padded
from nnlo_opt.core.data.source import DataInfo, DataSource, FileInfo, dtype_as_read
from nnlo_opt.engine.data.hdf5.source import Hdf5Source, write_hdf5
from nnlo_opt.engine.data.indexed import ItemSource
from nnlo_opt.engine.data.made import made_of
from tests.helpers.refusals import refusal

N = 23
X = np.arange(N * 6, dtype=np.float64).reshape(N, 2, 3)
Y = np.arange(N, dtype=np.int16)
GROUP = np.arange(N) // 4
Make = Callable[[Path], DataSource]


def from_memory(folder: Path) -> DataSource:
    return ArraySource(X, Y, {"group": GROUP})


def from_two(folder: Path) -> DataSource:
    parts = [slice(9), slice(9, N)]
    return JoinedSource([ArraySource(X[part], Y[part], {"group": GROUP[part]}) for part in parts])


def from_files(folder: Path) -> DataSource:
    edges = (0, 9, 9, 10, N)
    paths = [folder / f"{number}.h5" for number in range(len(edges) - 1)]
    for path, start, stop in zip(paths, edges[:-1], edges[1:], strict=True):
        write_hdf5(path, {"x": X[start:stop], "y": Y[start:stop], "group": GROUP[start:stop]})
    return Hdf5Source(paths, "x", "y")


class Items:
    """In place of a torch `Dataset`."""

    def __init__(self, rows: slice) -> None:
        self.rows = range(N)[rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.int16]:
        return X[self.rows[number]], Y[self.rows[number]]


Items.__module__, Items.__name__ = "torch.utils.data", "Dataset"


def from_items(folder: Path) -> DataSource:
    """Items one by one, of two data sets."""
    first, second = (made_of(Items(rows), "`get_train`", ()).source for rows in (slice(9), slice(9, N)))
    assert isinstance(first, ItemSource)
    assert isinstance(second, ItemSource)
    return first.followed_by(second)


class Batches:
    """In place of a Keras `PyDataset`, of batches of one sample."""

    num_batches = N

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return X[[number]], Y[[number]]


Batches.__module__, Batches.__name__ = "keras.src", "PyDataset"


def from_batches(folder: Path) -> DataSource:
    return made_of(Batches(), "`get_train`", ()).source


@pytest.fixture(params=[from_memory, from_two, from_files, from_items, from_batches])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> DataSource:
    make: Make = request.param
    return make(tmp_path)


def test_info(source: DataSource) -> None:
    info = source.info
    assert (info.n_samples, info.feature_shape, info.label_shape) == (N, (2, 3), ())
    x, _ = source.read(np.arange(1))
    assert (x.dtype, info.label_dtype) == ("float32", "int16")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(chosen=st.sets(st.integers(0, N - 1)))
def test_reads_exactly_the_samples_asked_for(source: DataSource, chosen: set[int]) -> None:
    indices = np.array(sorted(chosen), np.int64)
    x, y = source.read(indices)
    assert x.dtype == np.float32
    assert y.dtype == np.int16
    np.testing.assert_array_equal(x, X[indices])
    np.testing.assert_array_equal(y, Y[indices])


@pytest.mark.parametrize("indices", [[-1], [N], [1, 1], [2, 1]])
def test_refuses_numbers_out_of_order_or_range(source: DataSource, indices: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        source.read(np.array(indices))


def test_labels_and_columns_of_all_samples(source: DataSource) -> None:
    np.testing.assert_array_equal(source.read_labels(), Y)
    if not isinstance(source, ItemSource):  # it has no columns
        np.testing.assert_array_equal(source.read_column("group"), GROUP)
    refusal(source.read_column, "grup", says=["grup"])


def test_labels_and_columns_of_some_samples(source: DataSource) -> None:
    indices = np.array([0, 8, 9, 10, 22])
    np.testing.assert_array_equal(source.read_labels(indices), Y[indices])
    assert len(source.read_labels(indices[:0])) == 0
    if not isinstance(source, ItemSource):
        np.testing.assert_array_equal(source.read_column("group", indices), GROUP[indices])
        assert len(source.read_column("group", indices[:0])) == 0


def tree_from_memory(folder: Path) -> DataSource:
    lengths = np.arange(N) % 4
    steps = np.concatenate([X[i, :1].repeat(n, axis=0) for i, n in enumerate(lengths)])
    return ArraySource([Y, [X, Ragged(steps, lengths)]], [Y, GROUP])


def tree_from_files(folder: Path) -> DataSource:
    rows = tree_from_memory(folder).read(np.arange(N))[0][1][1]
    with h5py.File(folder / "tree.h5", "w") as file:
        file["c"], file["a"], file["b"] = rows.padded(), Y, X
        file["c_length"], file["y/1"], file["y/2"] = rows.lengths, Y, GROUP
        file["bc/a"], file["bc/b"] = X, X
    source = Hdf5Source([folder / "tree.h5"], "a,bc", "y")
    assert source.info.feature_shape == [(), [(2, 3), (2, 3)]]
    return Hdf5Source([folder / "tree.h5"], "a,b,c", "y")


@pytest.mark.parametrize("make", [tree_from_memory, tree_from_files])
def test_trees_of_arrays_and_sequences(make: Make, tmp_path: Path) -> None:
    source = make(tmp_path)
    info = source.info
    assert [*leaves(info.feature_shape)] == [(), (2, 3), (None, 3)]
    assert info.label_shape == [(), ()]
    assert info.label_dtype == ["int16", GROUP.dtype.name]
    indices = np.array([1, 5, 22])
    x, y = source.read(indices)
    first, second, third = leaves(x)
    assert first.dtype == second.dtype == third.dtype == np.float32
    np.testing.assert_array_equal(second, X[indices])
    np.testing.assert_array_equal(third.lengths, indices % 4)
    np.testing.assert_array_equal(padded(third)[1, 0], X[5, 0])
    np.testing.assert_array_equal(y[1], GROUP[indices])
    np.testing.assert_array_equal(source.read_labels()[0], Y)


def test_what_is_read_is_the_callers(source: DataSource) -> None:
    everything = np.arange(N)
    columns = [] if isinstance(source, ItemSource) else [source.read_column("group")]
    for array in (*source.read(everything), source.read_labels(), *columns):
        array[:] = 0
    np.testing.assert_array_equal(source.read(everything)[0], X)
    np.testing.assert_array_equal(source.read_labels(), Y)
    if columns:
        np.testing.assert_array_equal(source.read_column("group"), GROUP)


def test_file_numbers() -> None:
    files = (FileInfo(Path("a"), 2), FileInfo(Path("b"), 0), FileInfo(Path("c"), 3))
    info = replace(DataInfo.of("memory", X, Y), files=files)
    assert info.file_numbers().tolist() == [0, 0, 2, 2, 2]


def test_dtypes() -> None:
    assert dtype_as_read(np.float16) == dtype_as_read(">f8") == np.float32
    assert dtype_as_read(bool) == np.uint8
    assert dtype_as_read(">i4") == np.int32
    for strange in ("S3", "O", "c8", [("a", "i4")]):
        with pytest.raises(TypeError, match="Numbers"):
            dtype_as_read(strange)


def test_sources_of_another_form_are_not_joined() -> None:
    one = ArraySource(X, Y)
    refusal(JoinedSource, [one, ArraySource(X[:, :1], Y)], says=["(2, 3) of memory, (1, 3)"])
    refusal(JoinedSource, [one, ArraySource(X, Y / 2)], says=["label dtype int16 of memory, float32"])


def test_arrays_of_different_lengths() -> None:
    refusal(ArraySource, X, Y[1:], says=["23 features, 22 rows of labels"])
    refusal(ArraySource, X, Y, {"group": GROUP[2:]}, says=["21 rows of group"])
