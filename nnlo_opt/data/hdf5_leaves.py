"""Data set that has the same name in every file.

A row is a sample. Rows of variable length become a `Ragged`; they can be stored in two ways:

- as a data set (n,) of variable-length arrays (`h5py.vlen_dtype`). An attribute `row_shape`, for example 12 or (8, 8),
  makes a row of k * 12 numbers k steps of 12 numbers; without it each number is a step.
- as a data set (n, steps, ...), padded to the longest row, with a data set (n,) of whole numbers that has the same name
  and the suffix `_length`: the number of valid steps of each row. The lengths are used if the data set itself is
  requested, not if it is part of a group.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from nnlo_opt.data.hdf5_files import find_dataset, reading
from nnlo_opt.data.ragged import Ragged
from nnlo_opt.data.source import Shape, dtype_as_read
from nnlo_opt.errors import ConfigurationError

#: suffix of the data set of lengths
LENGTH_SUFFIX = "_length"
#: rows read to estimate their mean length
_N_HINT = 1000


@dataclass(frozen=True, slots=True)
class _Header:
    n_rows: int
    #: shape of a row; shape of a step with None before it if rows are variable
    row_shape: Shape
    dtype: np.dtype
    #: True if stored as variable-length arrays
    is_vlen: bool
    #: rows of a chunk, 1 if there are no chunks
    chunk: int


class Leaf:
    """Data set with the same name, row shape and kind of numbers in every file.

    Args:
        name: path of the data set in each file.
        role: "features" or "labels", for messages.
        as_stored: True if an adaptor takes the rows as they are stored.
        alone: True if requested by itself, False if found in a group.
    """

    def __init__(self, name: str, role: str, *, as_stored: bool, alone: bool) -> None:
        self.name = name
        self._role = role
        self._as_stored = as_stored
        self._heeds_lengths = alone and not as_stored
        #: header of the first file, and the file; None before the first scan
        self._first: tuple[_Header, Path] | None = None
        #: type that can hold the numbers of all scanned files
        self.dtype = np.dtype(np.uint8)
        #: rows of the largest chunk of all files
        self.chunk = 1

    @property
    def row_shape(self) -> Shape:
        """Shape of a row in memory; (None, ...) if rows are variable."""
        assert self._first is not None
        return self._first[0].row_shape

    @property
    def is_variable(self) -> bool:
        """True if rows are read as a `Ragged`, or as an array of arrays for an adaptor."""
        return bool(self.row_shape) and self.row_shape[0] is None

    def scan(self, file: h5py.File, path: Path) -> int:
        """Check the header in one file, and return its number of rows."""
        header = self._header(find_dataset(file, self.name, path), file, path)
        if self._first is None:
            self._first, self.dtype = (header, path), header.dtype
        known, first = self._first
        if (header.row_shape, header.is_vlen) != (known.row_shape, known.is_vlen):
            raise ConfigurationError(
                f"All files must hold rows of one shape in data set {self.name!r}, {known.row_shape} as in {first}. "
                f"Received: {header.row_shape} in {path}. Leave one of them out."
            )
        self.dtype = np.result_type(self.dtype, header.dtype)
        self.chunk = max(self.chunk, header.chunk)
        return header.n_rows

    def row_bytes(self, file: h5py.File) -> int:
        """Return the bytes of a row in memory; an estimate from the first rows of a file if lengths differ."""
        step = math.prod(n for n in self.row_shape if n is not None) * self.dtype.itemsize
        return int(step * self._mean_steps(file)) if self.is_variable else step

    def rows(self, file: h5py.File, start: int, stop: int) -> NDArray | Ragged:
        """Return rows `start` to `stop`: an array (n, ...), a `Ragged`, or an array (n,) of arrays for an adaptor."""
        dataset = file[self.name]
        if stop > len(dataset):
            raise ValueError(f"it has {len(dataset)} rows now, but had more when the run began")
        stored = dataset[start:stop]
        if not self.is_variable:
            return stored.astype(self.dtype, copy=False)
        if self._first is not None and self._first[0].is_vlen:
            return self._of_vlen(stored, start)
        lengths = file[self.name + LENGTH_SUFFIX][start:stop].astype(np.int64)
        wrong = np.flatnonzero((lengths < 0) | (lengths > stored.shape[1]))
        if len(wrong):
            raise ValueError(
                f"{self.name + LENGTH_SUFFIX!r} says {lengths[wrong[0]]} for row {start + wrong[0]}, which has "
                f"{stored.shape[1]} steps"
            )
        return Ragged.of(stored.astype(self.dtype, copy=False), lengths)

    def _of_vlen(self, stored: NDArray, start: int) -> NDArray | Ragged:
        step_shape = self.row_shape[1:]
        step_size = math.prod(n or 0 for n in step_shape)
        sizes = np.array([len(row) for row in stored], np.int64)
        wrong = np.flatnonzero(sizes % step_size)
        if len(wrong):
            raise ValueError(
                f"row {start + wrong[0]} has {sizes[wrong[0]]} numbers, which is not a multiple of its `row_shape` "
                f"{step_shape}"
            )
        if self._as_stored:
            rows = np.empty(len(stored), object)
            for number, row in enumerate(stored):
                rows[number] = np.asarray(row, self.dtype).reshape(-1, *step_shape)
            return rows
        numbers = np.concatenate([np.empty(0, self.dtype), *stored]).astype(self.dtype, copy=False)
        return Ragged(numbers.reshape(-1, *step_shape), sizes // step_size)

    def _mean_steps(self, file: h5py.File) -> float:
        rows = self.rows(file, 0, min(_N_HINT, len(file[self.name])))
        lengths = rows.lengths if isinstance(rows, Ragged) else [len(row) for row in rows]
        return max(1.0, float(np.mean(lengths)))

    def _header(self, dataset: h5py.Dataset, file: h5py.File, path: Path) -> _Header:
        name, remedy = self.name, f"Choose another data set as {self._role}."
        if not dataset.shape:
            raise ConfigurationError(
                f"Data set {name!r} must have one row for each sample. Received: a single value in {path}. {remedy}"
            )
        numbers = h5py.check_vlen_dtype(dataset.dtype)
        is_vlen = isinstance(numbers, np.dtype) and h5py.check_string_dtype(dataset.dtype) is None
        try:
            dtype = dtype_as_read(numbers if is_vlen else dataset.dtype)
        except TypeError as error:
            raise ConfigurationError(
                f"Data set {name!r} must hold numbers. Received: values of type {dataset.dtype} in {path}. {remedy}"
            ) from error
        n_rows, row_shape = dataset.shape[0], dataset.shape[1:]
        if is_vlen:
            if row_shape:
                raise ConfigurationError(
                    f"Data set {name!r} of variable-length arrays must have one array for each sample. Received: shape "
                    f"{dataset.shape} in {path}. {remedy}"
                )
            row_shape = (None, *_step_shape(dataset, path))
        elif self._heeds_lengths and name + LENGTH_SUFFIX in file:
            self._check_lengths(dataset, file, path)
            row_shape = (None, *row_shape[1:])
        return _Header(n_rows, row_shape, dtype, is_vlen, dataset.chunks[0] if dataset.chunks else 1)

    def _check_lengths(self, dataset: h5py.Dataset, file: h5py.File, path: Path) -> None:
        name = self.name + LENGTH_SUFFIX
        lengths = find_dataset(file, name, path)
        if lengths.shape != dataset.shape[:1] or lengths.dtype.kind not in "iu" or dataset.ndim < 2:
            raise ConfigurationError(
                f"Data set {name!r} must hold a whole number for each sample, the valid steps of {self.name!r}, which "
                f"must have the shape (samples, steps, ...). Received: {lengths.dtype} of shape {lengths.shape} for "
                f"shape {dataset.shape} in {path}. Rename it, or correct the file."
            )


def _step_shape(dataset: h5py.Dataset, path: Path) -> tuple[int, ...]:
    name = (dataset.name or "").removeprefix("/")
    with reading(name, path, ConfigurationError):
        stored = np.atleast_1d(dataset.attrs.get("row_shape", ()))
    if stored.ndim != 1 or (stored.size and stored.dtype.kind not in "iu") or np.any(stored < 1):
        raise ConfigurationError(
            f"The attribute `row_shape` of data set {name!r} must be whole numbers of at least 1. Received: "
            f"{stored.tolist()} in {path}. Correct the file."
        )
    return tuple(int(n) for n in stored)
