"""What every data source does, whatever it reads from."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnlo_opt.data.arrays import ArraySource
from nnlo_opt.data.hdf5 import Hdf5Source, write_hdf5
from nnlo_opt.data.source import DataInfo, DataSource, FileInfo, dtype_as_read
from nnlo_opt.errors import ConfigurationError

N = 23
X = np.arange(N * 6, dtype=np.float64).reshape(N, 2, 3)
Y = np.arange(N, dtype=np.int16)
GROUP = np.arange(N) // 4
Make = Callable[[Path], DataSource]


def from_memory(folder: Path) -> DataSource:
    return ArraySource(X, Y, {"group": GROUP})


def from_files(folder: Path) -> DataSource:
    edges = (0, 9, 9, 10, N)
    paths = [folder / f"{number}.h5" for number in range(len(edges) - 1)]
    for path, start, stop in zip(paths, edges[:-1], edges[1:], strict=True):
        write_hdf5(path, {"x": X[start:stop], "y": Y[start:stop], "group": GROUP[start:stop]})
    return Hdf5Source(paths, "x", "y")


@pytest.fixture(params=[from_memory, from_files])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> DataSource:
    make: Make = request.param
    return make(tmp_path)


def test_info(source: DataSource) -> None:
    info = source.info
    assert (info.n_samples, info.feature_shape, info.label_shape) == (N, (2, 3), ())
    assert (info.feature_dtype, info.label_dtype) == ("float32", "int16")
    assert DataInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


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
    np.testing.assert_array_equal(source.read_column("group"), GROUP)
    with pytest.raises(ConfigurationError, match="group"):
        source.read_column("grup")


def test_what_is_read_is_the_callers(source: DataSource) -> None:
    everything = np.arange(N)
    for array in (*source.read(everything), source.read_labels(), source.read_column("group")):
        array[:] = 0
    np.testing.assert_array_equal(source.read(everything)[0], X)
    np.testing.assert_array_equal(source.read_labels(), Y)
    np.testing.assert_array_equal(source.read_column("group"), GROUP)


def test_file_numbers() -> None:
    info = DataInfo(
        files=(FileInfo(Path("a"), 2), FileInfo(Path("b"), 0), FileInfo(Path("c"), 3)),
        feature_shape=(),
        label_shape=(),
        feature_dtype="float32",
        label_dtype="float32",
    )
    assert info.file_numbers().tolist() == [0, 0, 2, 2, 2]


def test_dtypes() -> None:
    assert dtype_as_read(np.float16) == dtype_as_read(">f8") == np.float32
    assert dtype_as_read(bool) == np.uint8
    assert dtype_as_read(">i4") == np.int32
    for strange in ("S3", "O", "c8", [("a", "i4")]):
        with pytest.raises(TypeError, match="Numbers"):
            dtype_as_read(strange)


def test_arrays_of_different_lengths() -> None:
    with pytest.raises(ConfigurationError, match="23 features, 22 rows of labels"):
        ArraySource(X, Y[1:])
    with pytest.raises(ConfigurationError, match="21 rows of group"):
        ArraySource(X, Y, {"group": GROUP[2:]})
