"""Data in HDF5 files; the only importer of h5py.

Headers are read once, when a source is made: what is wrong with them is the user's to mend (`ConfigurationError`).
What goes wrong when samples are read, such as a file that vanished, fails the trial (`TrialError`).
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from nnlo_opt.data.source import DataInfo, FileInfo, Indices, Shape, check_indices, dtype_as_read
from nnlo_opt.errors import ConfigurationError, NnloError, TrialError
from nnlo_opt.files import atomic_path

#: Turns the rows (n, ...) of a data set into as many samples; takes each row by itself, as rows come in pieces.
Adaptor = Callable[[NDArray], NDArray]

#: Rows are read in contiguous pieces of about this size and selected in memory: a fancy index inside the file takes
#: 27 times as long as a gather in memory after a contiguous read (measured), and a whole file may not fit in memory.
PIECE_BYTES = 64 << 20


class Hdf5Source:
    """A `DataSource` of HDF5 files with one data set of features and one of labels each."""

    def __init__(
        self,
        paths: Sequence[Path | str],
        features_name: str,
        labels_name: str,
        adaptors: tuple[Adaptor | None, Adaptor | None] = (None, None),
    ) -> None:
        """Read the headers of all files. `adaptors` transform features and labels after reading.

        Raises `ConfigurationError`, which names the file, for what is not HDF5, lacks a data set, or does not fit.
        """
        self._features = _Part("features", features_name, adaptors[0])
        self._labels = _Part("labels", labels_name, adaptors[1])
        files = tuple(FileInfo(path, self._scan(path)) for path in map(Path, paths))
        not_empty = next((file.path for file in files if file.n_samples), None)
        if not_empty is None:
            raise ConfigurationError(
                f"The data files must hold at least one sample. Received: "
                f"{', '.join(str(file.path) for file in files[:3]) or 'no file'}. Name files with samples."
            )
        with _open(not_empty, ConfigurationError) as file:
            self._features.settle(file, not_empty)
            self._labels.settle(file, not_empty)
        # Models compute in float32, whatever the features are stored as.
        self._features.dtype = np.dtype(np.float32)
        self._info = DataInfo(
            files=files,
            feature_shape=self._features.shape,
            label_shape=self._labels.shape,
            feature_dtype=self._features.dtype.name,
            label_dtype=self._labels.dtype.name,
        )
        #: number of the first sample of every file, and of the end of the last one
        self._starts: Indices = np.cumsum([0, *(file.n_samples for file in files)])

    @property
    def info(self) -> DataInfo:
        return self._info

    def read(self, indices: Indices) -> tuple[NDArray[np.float32], NDArray]:
        x, y = self._read(indices, (self._features, self._labels))
        return x, y

    def read_labels(self) -> NDArray:
        return self._read(np.arange(self._info.n_samples), (self._labels,))[0]

    def read_column(self, name: str) -> NDArray:
        columns = []
        for info in self._info.files:
            with _open(info.path, ConfigurationError) as file:
                columns.append(_column(_dataset(file, name, info.path), info))
        return np.concatenate(columns)

    def _scan(self, path: Path) -> int:
        """Check the headers in one file; its number of samples."""
        with _open(path, ConfigurationError) as file:
            n_samples, n_labels = self._features.scan(file, path), self._labels.scan(file, path)
        if n_samples != n_labels:
            raise ConfigurationError(
                f"Features and labels must have one row a sample. Received: {path} with {n_samples} rows of "
                f"{self._features.name!r} and {n_labels} rows of {self._labels.name!r}. Mend the file or leave it out."
            )
        return n_samples

    def _read(self, indices: Indices, parts: Sequence["_Part"]) -> list[NDArray]:
        """An array (len(indices), ...) of each part."""
        check_indices(indices, self._info.n_samples)
        arrays = [np.empty((len(indices), *part.shape), part.dtype) for part in parts]
        edges = np.searchsorted(indices, self._starts)
        for number in np.flatnonzero(np.diff(edges)):
            mine, path = slice(edges[number], edges[number + 1]), self._info.files[number].path
            with _open(path, TrialError) as file:
                for part, array in zip(parts, arrays, strict=True):
                    part.read(file, path, indices[mine] - self._starts[number], array[mine])
        return arrays


class _Part:
    """One of the two data sets of a source: the same name, row shape and kind of numbers in every file."""

    def __init__(self, role: str, name: str, adaptor: Adaptor | None) -> None:
        #: "features" or "labels", for messages
        self.role = role
        self.name = name
        self._adaptor = adaptor
        #: shape of a row as stored, and the file it was seen in first; None before the first scan
        self._stored_shape: tuple[Shape, Path] | None = None
        #: what the numbers stored in all files scanned fit into
        self._stored_dtype = np.dtype(np.uint8)
        #: shape and dtype of a sample as handed out; known once settled
        self.shape: Shape = ()
        self.dtype = np.dtype(np.float32)

    def scan(self, file: h5py.File, path: Path) -> int:
        """Check the header in one file; the number of rows."""
        dataset = _dataset(file, self.name, path)
        if not dataset.shape:
            raise ConfigurationError(
                f"Data set {self.name!r} must have one row a sample. Received: a single value in {path}. "
                f"Choose another data set as {self.role}."
            )
        try:
            dtype = dtype_as_read(dataset.dtype)
        except TypeError as error:
            raise ConfigurationError(
                f"Data set {self.name!r} must hold numbers. Received: values of type {dataset.dtype} in {path}. "
                f"Choose another data set as {self.role}."
            ) from error
        n_rows, row_shape = dataset.shape[0], dataset.shape[1:]
        if self._stored_shape is None:
            self._stored_shape, self._stored_dtype = (row_shape, path), dtype
        shape, first = self._stored_shape
        if row_shape != shape:
            raise ConfigurationError(
                f"All files must hold rows of one shape in data set {self.name!r}, {shape} as in {first}. "
                f"Received: {row_shape} in {path}. Leave one of them out."
            )
        self._stored_dtype = np.result_type(self._stored_dtype, dtype)
        return n_rows

    def settle(self, file: h5py.File, path: Path) -> None:
        """Find out shape and dtype of a sample from the first row, once all files are scanned."""
        with _reading(self.name, path, ConfigurationError):
            sample = self._adapted(file[self.name][:1].astype(self._stored_dtype), ConfigurationError)
            self.shape, self.dtype = sample.shape[1:], dtype_as_read(sample.dtype)

    def read(self, file: h5py.File, path: Path, rows: Indices, out: NDArray) -> None:
        """Read `rows` (ascending, at least one) into `out` (len(rows), *shape)."""
        with _reading(self.name, path, TrialError):
            dataset = file[self.name]
            if rows[-1] >= len(dataset):
                raise ValueError(f"it had more than the {len(dataset)} rows of now when the run began")
            done = 0
            for piece in _pieces(rows, _rows_of_a_piece(dataset)):
                first, stop = piece[0], piece[-1] + 1
                stored = dataset[first:stop]
                chosen = stored if len(piece) == len(stored) else np.take(stored, piece - first, axis=0)
                samples = self._adapted(chosen.astype(self._stored_dtype, copy=False), TrialError)
                if samples.shape[1:] != self.shape:
                    raise ValueError(f"samples of shape {self.shape} are expected, not {samples.shape[1:]}")
                np.copyto(out[done : done + len(piece)], samples, casting="same_kind")
                done += len(piece)

    def _adapted(self, rows: NDArray, blame: type[NnloError]) -> NDArray:
        """What the adaptor makes of `rows`, if there is one; whatever it raises becomes a `blame`."""
        if self._adaptor is None:
            return rows
        try:
            samples = np.asarray(self._adaptor(rows))
        except Exception as error:
            raise blame(
                f"The function that adapts the {self.role} must take rows of data set {self.name!r}. Received: "
                f"{type(error).__name__} ({error}) for an array of shape {rows.shape}. Mend the function."
            ) from error
        if samples.shape[:1] != rows.shape[:1]:
            raise blame(
                f"The function that adapts the {self.role} must return one sample a row. Received: an array of shape "
                f"{samples.shape} for one of {rows.shape}. Mend the function."
            )
        return samples


def write_hdf5(path: Path, arrays: Mapping[str, NDArray]) -> None:
    """Write `arrays` as the data sets of a file, whole or not at all."""
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


@contextmanager
def _open(path: Path, blame: type[NnloError]) -> Iterator[h5py.File]:
    try:
        # Parallel file systems are often mounted without locks, and readers do not need them.
        file = h5py.File(path, "r", locking="best-effort")
    except FileNotFoundError as error:
        raise blame(f"A data file must exist. Received: {path}, which does not. Check the list of files.") from error
    except OSError as error:
        raise blame(
            f"A data file must be a complete HDF5 file that can be read. Received: {path} ({_reason(error)}). "
            f"Write it again or leave it out."
        ) from error
    with file:
        yield file


@contextmanager
def _reading(name: str, path: Path, blame: type[NnloError]) -> Iterator[None]:
    """Whatever goes wrong inside becomes a `blame` that names data set and file."""
    try:
        yield
    except NnloError:
        raise
    except Exception as error:
        raise blame(
            f"Data set {name!r} of {path} must be readable. Received: {_reason(error)}. Write the file again or "
            f"leave it out."
        ) from error


def _dataset(file: h5py.File, name: str, path: Path) -> h5py.Dataset:
    """The data set `name`, or a `ConfigurationError` that says what is there instead."""
    names: list[str] = []
    with _reading(name, path, ConfigurationError):
        found = file.get(name)
        if isinstance(found, h5py.Dataset):
            return found
        file.visititems(lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None)
    there = f"There are: {', '.join(names)}." if names else "There is no data set."
    if isinstance(found, h5py.Group):
        raise ConfigurationError(
            f"Features and labels must be one data set each; groups, for models of several inputs, are not supported "
            f"yet. Received: {name!r}, a group in {path}. {there}"
        )
    raise ConfigurationError(
        f"Every data file must hold the data sets asked for. Received: {path} without {name!r}. {there}"
    )


def _column(dataset: h5py.Dataset, info: FileInfo) -> NDArray:
    """The values (n_samples,) of a data set of numbers or strings."""
    name, remedy = dataset.name.removeprefix("/"), "Choose another data set."
    if dataset.shape not in ((info.n_samples,), (info.n_samples, 1)):
        raise ConfigurationError(
            f"A data set to fold by must have one value a sample, {info.n_samples}. Received: {name!r} of shape "
            f"{dataset.shape} in {info.path}. {remedy}"
        )
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if not is_text and dataset.dtype.kind not in "iufb":
        raise ConfigurationError(
            f"A data set to fold by must hold numbers or strings. Received: {name!r} of type {dataset.dtype} in "
            f"{info.path}. {remedy}"
        )
    with _reading(name, info.path, ConfigurationError):
        values = np.asarray(dataset.asstr()[...], np.str_) if is_text else dataset[...]
    return values.reshape(-1)


def _rows_of_a_piece(dataset: h5py.Dataset) -> int:
    """Rows of about `PIECE_BYTES`; a multiple of the rows of a chunk, so that none is decompressed twice."""
    row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:]))
    n_rows = max(1, PIECE_BYTES // max(1, row_bytes))
    chunk_rows = dataset.chunks[0] if dataset.chunks else 1
    return -(-n_rows // chunk_rows) * chunk_rows


def _pieces(rows: Indices, n_rows: int) -> list[Indices]:
    """`rows` cut where they pass from one piece of `n_rows` of the file to another."""
    return np.split(rows, np.flatnonzero(np.diff(rows // n_rows)) + 1)


def _reason(error: Exception) -> str:
    """In a few words; HDF5's own text has the operating system's reason among lines of times and addresses."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0].strip()
