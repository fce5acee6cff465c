"""Features or labels in HDF5 files: a data set, a group of data sets, or a list of names.

A row is a sample. Rows of variable length become a `Ragged`; they can be stored in two ways:

- as a data set (n,) of variable-length arrays (`h5py.vlen_dtype`). An attribute `row_shape`, for example 12 or (8, 8),
  makes a row of k * 12 numbers k steps of 12 numbers; without it each number is a step.
- as a data set (n, steps, ...), padded to the longest row, with a data set (n,) of whole numbers that has the same name
  and the suffix `_length`: the number of valid steps of each row. The lengths are used if the data set itself is
  requested, not if it is part of a group.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, NnloError, TrialError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays, Shapes, leaves, map_tree, shapes_of
from nnlo_opt.core.data.ragged import Ragged, concatenate, take
from nnlo_opt.core.data.source import Indices, NotFiniteError, Shape, dtype_as_read, first_not_finite
from nnlo_opt.engine.data.hdf5.file import DataFile, find, find_dataset, reading, text_of


def common_count(counts: Mapping[str, int], path: Path) -> int:
    """Return the common number of rows of all data sets in a file; `counts`: number of rows by name."""
    (name, n_rows), *others = counts.items()
    for other, n_others in others:
        if n_others != n_rows:
            raise ConfigurationError(
                f"Features and labels must have one row for each sample. Received: {path} with {n_rows} rows of "
                f"{name!r} and {n_others} rows of {other!r}. Correct the file or leave it out."
            )
    return n_rows


#: suffix of the data set of lengths
LENGTH_SUFFIX = "_length"
#: rows read to estimate their mean length
_N_HINT = 1000


class Leaf:
    """Data set with the same name, row shape and kind of numbers in every file.

    Args:
        name: path of the data set in each file.
        role: "features" or "labels", for messages.
        as_stored: True if an adaptor receives the rows as stored.
        alone: True if requested by name, False if found in a group.
    """

    def __init__(self, name: str, role: str, *, as_stored: bool, alone: bool) -> None:
        self.name = name
        self._role = role
        self._as_stored = as_stored
        self._heeds_lengths = alone and not as_stored
        #: first file; None before the first scan
        self._first: Path | None = None
        #: shape of a row in memory; for rows of variable length None and the shape of a step: they are read as a
        #: `Ragged`, or as an array of arrays for an adaptor
        self.row_shape: Shape = ()
        #: True if stored as variable-length arrays
        self._is_vlen = False
        #: type that can hold the numbers of all scanned files
        self.dtype = np.dtype(np.uint8)
        #: rows of the largest chunk of all files
        self.chunk = 1

    def scan(self, file: DataFile, path: Path) -> int:
        """Check the header in one file, and return its number of rows."""
        with reading(self.name, path, ConfigurationError):
            dataset = find_dataset(file, self.name, path)
            row_shape, dtype, is_vlen = self._header(dataset, file, path)
            if self._first is None:
                self._first, self.row_shape, self.dtype, self._is_vlen = path, row_shape, dtype, is_vlen
            if (row_shape, is_vlen) != (self.row_shape, self._is_vlen):
                raise ConfigurationError(
                    f"All files must hold rows of one shape in data set {self.name!r}, {self.row_shape} as in "
                    f"{self._first}. Received: {row_shape} in {path}. Leave one of them out."
                )
            self.dtype = np.result_type(self.dtype, dtype)
            self.chunk = max(self.chunk, dataset.chunks[0] if dataset.chunks else 1)
            return len(dataset)

    def row_bytes(self, file: DataFile) -> int:
        """Return the bytes of a row in memory; an estimate from the first rows of a file if lengths differ."""
        step = math.prod(n for n in self.row_shape if n is not None) * self.dtype.itemsize
        if None not in self.row_shape:
            return step
        rows = self.rows(file, 0, min(_N_HINT, len(file.need(self.name))))
        lengths = rows.lengths if isinstance(rows, Ragged) else [len(row) for row in rows]
        return int(step * max(1.0, float(np.mean(lengths))))

    def rows(self, file: DataFile, start: int, stop: int) -> np.ndarray | Ragged:
        """Return rows `start` to `stop`: an array (n, ...), a `Ragged`, or an array (n,) of arrays for an adaptor."""
        dataset = file.need(self.name)
        if stop > len(dataset):
            raise ValueError(f"it has {len(dataset)} rows now, but had more when the run began")
        stored = dataset[start:stop]
        if None not in self.row_shape:
            return stored.astype(self.dtype, copy=False)
        if self._is_vlen:
            return self._of_vlen(stored, start)
        lengths = file.need(self.name + LENGTH_SUFFIX)[start:stop].astype(np.int64)
        wrong = np.flatnonzero((lengths < 0) | (lengths > stored.shape[1]))
        if len(wrong):
            raise ValueError(
                f"{self.name + LENGTH_SUFFIX!r} says {lengths[wrong[0]]} for row {start + wrong[0]}, which has "
                f"{stored.shape[1]} steps"
            )
        return Ragged.of(stored.astype(self.dtype, copy=False), lengths)

    def _of_vlen(self, stored: np.ndarray, start: int) -> np.ndarray | Ragged:
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

    def _header(self, dataset: h5py.Dataset, file: DataFile, path: Path) -> tuple[Shape, np.dtype, bool]:
        """Return the shape of a row, the type of its numbers, and True if rows are variable-length arrays."""
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
        row_shape = dataset.shape[1:]
        if is_vlen:
            if row_shape:
                raise ConfigurationError(
                    f"Data set {name!r} of variable-length arrays must have one array for each sample. Received: shape "
                    f"{dataset.shape} in {path}. {remedy}"
                )
            row_shape = (None, *_step_shape(dataset, name, path))
        elif self._heeds_lengths and file.reach(name + LENGTH_SUFFIX) is not None:
            self._check_lengths(dataset, file, path)
            row_shape = (None, *row_shape[1:])
        return row_shape, dtype, is_vlen

    def _check_lengths(self, dataset: h5py.Dataset, file: DataFile, path: Path) -> None:
        name = self.name + LENGTH_SUFFIX
        lengths = find_dataset(file, name, path)
        if lengths.shape != dataset.shape[:1] or lengths.dtype.kind not in "iu" or dataset.ndim < 2:
            raise ConfigurationError(
                f"Data set {name!r} must hold a whole number for each sample, the valid steps of {self.name!r}, which "
                f"must have the shape (samples, steps, ...). Received: {lengths.dtype} of shape {lengths.shape} for "
                f"shape {dataset.shape} in {path}. Rename it, or correct the file."
            )


def _step_shape(dataset: h5py.Dataset, name: str, path: Path) -> tuple[int, ...]:
    stored = np.atleast_1d(dataset.attrs.get("row_shape", ()))
    if stored.ndim != 1 or (stored.size and stored.dtype.kind not in "iu") or np.any(stored < 1):
        raise ConfigurationError(
            f"The attribute `row_shape` of data set {name!r} must be whole numbers of at least 1. Received: "
            f"{stored.tolist()} in {path}. Correct the file."
        )
    return tuple(int(n) for n in stored)


#: Converts rows, a tree of arrays (n, ...), to the same number of samples, an array or a list of arrays. It must treat
#: each row independently, because rows come in pieces. A thread calls it if samples are read ahead.
Adaptor = Callable[[Arrays], Arrays]

#: Bytes of a contiguous piece of rows, from which samples are selected in memory. Fancy indexing in the file takes
#: 27 times as long as a contiguous read with selection in memory (measured), and a full file may not fit in memory.
PIECE_BYTES = 64 << 20
#: Gap in bytes between two samples that is read and dropped, because a separate read would take as long.
GAP_BYTES = 256 << 10


class Part:
    """Features or labels: the same data sets in every file.

    Args:
        role: "features" or "labels", for messages.
        name: name of a data set or group, or several names separated by commas.
        adaptor: transforms samples after reading; None for no change.
        finite: True if all samples must be finite, unless there is an adaptor.
    """

    def __init__(self, role: str, name: str, adaptor: Adaptor | None, *, finite: bool = False) -> None:
        #: "features" or "labels", for messages
        self.role = role
        self.name = name
        self._adaptor = adaptor
        #: (data set, file, first row, last row) already found to be finite; None: do not check
        self._finite: set[tuple[str, Path, int, int]] | None = set() if finite and adaptor is None else None
        #: first file, and the tree of the data sets that were found in it; None before the first scan
        self._first: Path | None = None
        self._leaves: Any = None
        #: trees of shapes and dtypes of a returned sample; valid after `settle`
        self.shape: Shapes = ()
        self.dtype: Any = np.dtype(np.float32)
        #: bytes of a sample in memory, and of a row in the file
        self.sample_bytes = 0
        self._row_bytes = 1

    @property
    def chunk(self) -> int:
        """Rows of the largest chunk."""
        return max(leaf.chunk for leaf in leaves(self._leaves))

    def scan(self, file: DataFile, path: Path) -> int:
        """Check the headers in one file, and return its number of rows."""
        found = self._find(file, path)
        if self._first is None:
            self._first, self._leaves = path, found
        names, expected = (map_tree(lambda leaf: leaf.name, tree) for tree in (found, self._leaves))
        if names != expected:
            raise ConfigurationError(
                f"All files must hold the same data sets as {self.role}, {expected} as in {self._first}. Received: "
                f"{names} in {path}. Leave one of them out."
            )
        return common_count({leaf.name: leaf.scan(file, path) for leaf in leaves(self._leaves)}, path)

    def settle(self, file: DataFile, path: Path) -> None:
        """Determine shape and dtype of a sample from the first row; called after all files were scanned."""
        with reading(self.name, path, ConfigurationError):
            row_bytes = [leaf.row_bytes(file) for leaf in leaves(self._leaves)]
            self._row_bytes = sum(row_bytes)
            rows = map_tree(lambda leaf: leaf.rows(file, 0, 1), self._leaves)
            sample = self._adapted(rows, ConfigurationError)
            self.shape = shapes_of(sample)
            self.dtype = map_tree(
                lambda array: np.dtype(np.float32) if self.role == "features" else dtype_as_read(array.dtype), sample
            )
        item_bytes = [dtype.itemsize for dtype in leaves(self.dtype)]
        if self._adaptor is None:
            stored = [leaf.dtype.itemsize for leaf in leaves(self._leaves)]
            sizes = [n * new // old for n, new, old in zip(row_bytes, item_bytes, stored, strict=True)]
        else:
            sizes = [math.prod(shape) * n for shape, n in zip(leaves(self.shape), item_bytes, strict=True)]
        self.sample_bytes = sum(sizes)

    def read(self, file: DataFile, path: Path, rows: Indices, target: "Target") -> None:
        """Read `rows` (ascending, at least one) into `target`."""
        with reading(self.name, path, TrialError):
            for piece in self._pieces(rows):
                first, stop = int(piece[0]), int(piece[-1]) + 1
                stored = map_tree(lambda leaf: self._rows(leaf, file, path, first, stop), self._leaves)  # noqa: B023
                chosen = stored if len(piece) == stop - first else take(stored, piece - first)
                target.add(self._adapted(chosen, TrialError))

    def _rows(self, leaf: Leaf, file: DataFile, path: Path, start: int, stop: int) -> np.ndarray | Ragged:
        with reading(leaf.name, path, TrialError):
            rows, place = leaf.rows(file, start, stop), (leaf.name, path, start, stop)
        if self._finite is not None and place not in self._finite:
            number = first_not_finite(rows)
            if number is not None:
                raise NotFiniteError(
                    f"Data must be finite as float32. Received: NaN or infinity in data set {leaf.name!r} of {path}, "
                    f"first in sample {start + number}. Correct the file, or leave it out."
                )
            self._finite.add(place)
        return rows

    def _find(self, file: DataFile, path: Path) -> Any:
        """Return the tree of leaves for our name in a file."""
        names = [name.strip() for name in self.name.split(",")]
        if not all(names):
            raise ConfigurationError(
                f"`{spelled(f'{self.role}_name')}` must name a data set or group, or several separated by commas. "
                f"Received: {self.name!r}."
            )
        branches = [self._branch(file, name, path, alone=True) for name in names]
        return branches if len(names) > 1 else branches[0]

    def _branch(self, file: DataFile, name: str, path: Path, *, alone: bool = False) -> Any:
        found = find(file, name, path)
        if isinstance(found, h5py.Dataset):
            return Leaf(name, self.role, as_stored=self._adaptor is not None, alone=alone)
        with reading(name, path, ConfigurationError):
            members = sorted(map(text_of, found))
            if not members:
                raise ConfigurationError(
                    f"A group must hold at least one data set. Received: {name!r}, an empty group in {path}. Choose "
                    f"other {self.role}."
                )
            return [self._branch(file, f"{name.rstrip('/')}/{member}", path) for member in members]

    def _adapted(self, rows: Arrays, blame: type[NnloError]) -> Arrays:
        """Apply the adaptor to `rows`, if there is one; its exceptions become `blame`."""
        if self._adaptor is None:
            return rows
        n_rows = len(next(leaves(rows)))
        shapes = map_tree(lambda array: array.shape, rows)
        try:
            samples = _as_tree(self._adaptor(rows))
        except Exception as error:
            raise blame(
                f"The function that adapts the {self.role} must take rows of data set {self.name!r}. Received: "
                f"{type(error).__name__} ({error}) for an array of shape {shapes}. Correct the function."
            ) from error
        for array in leaves(samples):
            if array.shape[:1] != (n_rows,):
                raise blame(
                    f"The function that adapts the {self.role} must return one sample for each row. Received: an array "
                    f"of shape {array.shape} for one of {shapes}. Correct the function."
                )
        return samples

    def _pieces(self, rows: Indices) -> list[Indices]:
        """Split `rows` where a piece is full or a gap is too wide to read through.

        Pieces end at chunk boundaries, so that no chunk is decompressed twice.
        """
        n_rows = -(-max(1, PIECE_BYTES // max(1, self._row_bytes)) // self.chunk) * self.chunk
        gap = max(self.chunk, GAP_BYTES // max(1, self._row_bytes))
        return np.split(rows, np.flatnonzero((np.diff(rows // n_rows) > 0) | (np.diff(rows) > gap)) + 1)


class Target:
    """Arrays that are filled piece by piece.

    Args:
        shape: tree of the shapes of a sample.
        dtype: tree of its dtypes.
        n_samples: number of samples that will be added.
    """

    def __init__(self, shape: Shapes, dtype: Any, n_samples: int) -> None:
        self._shape = shape

        def slot(sample: Any, kind: np.dtype) -> np.ndarray | deque[Ragged]:
            if None not in sample:
                return np.empty((n_samples, *sample), kind)
            return deque([Ragged(np.empty((0, *sample[1:]), kind), np.empty(0, np.int64))])

        #: arrays; for leaves of variable length their pieces, in a deque because a list would be a branch
        self._slots = map_tree(slot, shape, dtype)
        self._n_done = 0

    def add(self, samples: Arrays) -> None:
        """Add samples that follow the ones added before; ValueError if their shape differs."""
        if shapes_of(samples) != self._shape:
            raise ValueError(f"samples of shape {self._shape} are expected, not {shapes_of(samples)}")
        n = len(next(leaves(samples)))
        for slot, array in zip(leaves(self._slots), leaves(samples), strict=True):
            if isinstance(slot, deque):
                slot.append(array.astype(slot[0].dtype, copy=False))
            else:
                np.copyto(slot[self._n_done : self._n_done + n], array, casting="same_kind")
        self._n_done += n

    def tree(self) -> Arrays:
        """Return all samples added."""
        return map_tree(lambda slot: concatenate([*slot]) if isinstance(slot, deque) else slot, self._slots)


def _as_tree(value: Any) -> Arrays:
    """Return the result of an adaptor as a tree: one array, or a list or tuple of arrays."""
    if isinstance(value, list | tuple) and any(isinstance(item, np.ndarray | list | tuple) for item in value):
        return [_as_tree(item) for item in value]
    return np.asarray(value)
