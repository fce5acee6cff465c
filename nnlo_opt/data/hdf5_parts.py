"""Features or labels in HDF5 files: a data set, a list of data sets, or a group, which is a list as well."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from nnlo_opt.data.hdf5_files import find, reading
from nnlo_opt.data.hdf5_leaves import Leaf
from nnlo_opt.data.ragged import Ragged, concatenate, take
from nnlo_opt.data.source import Indices, dtype_as_read
from nnlo_opt.errors import ConfigurationError, NnloError, TrialError
from nnlo_opt.trees import Arrays, Shapes, leaves, map_tree

#: Turns the rows of some samples, a tree of arrays (n, ...), into as many samples, an array or a list of arrays. It
#: must treat each row by itself, because rows come in pieces. A thread calls it if samples are read ahead.
Adaptor = Callable[[Arrays], Arrays]

#: Bytes of a contiguous piece of rows, from which samples are selected in memory. A fancy index inside the file takes
#: 27 times as long as a selection in memory after a contiguous read (measured), and a full file may not fit in memory.
PIECE_BYTES = 64 << 20
#: Bytes of unused rows between two samples that are read and dropped, because a new read would take as long.
GAP_BYTES = 256 << 10


class Part:
    """Features or labels: the same data sets in every file.

    Args:
        role: "features" or "labels", for messages.
        name: name of a data set or group, or several names separated by commas.
        adaptor: transforms samples after reading; None for no change.
        as_float32: True to convert all numbers to float32.
    """

    def __init__(self, role: str, name: str, adaptor: Adaptor | None, *, as_float32: bool) -> None:
        #: "features" or "labels", for messages
        self.role = role
        self.name = name
        self._adaptor = adaptor
        self._as_float32 = as_float32
        #: data sets, and the first file in which they were found; None before the first scan
        self._tree: tuple[Any, Path] | None = None
        #: trees of shapes and dtypes of a returned sample; known after `settle`
        self.shape: Shapes = ()
        self.dtype: Any = np.dtype(np.float32)
        #: bytes of a sample in memory, and of a row in the file
        self.sample_bytes = 0
        self._row_bytes = 1

    @property
    def chunk(self) -> int:
        """Rows of the largest chunk."""
        return max(leaf.chunk for leaf in leaves(self._leaves))

    @property
    def _leaves(self) -> Any:
        assert self._tree is not None
        return self._tree[0]

    def scan(self, file: h5py.File, path: Path) -> int:
        """Check the headers in one file, and return its number of rows."""
        found = self._find(file, path)
        if self._tree is None:
            self._tree = found, path
        known, first = self._tree
        names, expected = (map_tree(lambda leaf: leaf.name, tree) for tree in (found, known))
        if names != expected:
            raise ConfigurationError(
                f"All files must hold the same data sets as {self.role}, {expected} as in {first}. Received: {names} "
                f"in {path}. Leave one of them out."
            )
        counts = {leaf.name: leaf.scan(file, path) for leaf in leaves(known)}
        name, n_rows = next(iter(counts.items()))
        for other, n_others in counts.items():
            if n_others != n_rows:
                raise ConfigurationError(
                    f"Features and labels must have one row for each sample. Received: {path} with {n_rows} rows of "
                    f"{name!r} and {n_others} rows of {other!r}. Correct the file or leave it out."
                )
        return n_rows

    def settle(self, file: h5py.File, path: Path) -> None:
        """Find out shape and dtype of a sample from the first row, after all files were scanned."""
        with reading(self.name, path, ConfigurationError):
            row_bytes = {leaf.name: leaf.row_bytes(file) for leaf in leaves(self._leaves)}
            self._row_bytes = sum(row_bytes.values())
            rows = map_tree(lambda leaf: leaf.rows(file, 0, 1), self._leaves)
            sample = self._adapted(rows, ConfigurationError)
            self.shape = map_tree(lambda array: tuple(array.shape[1:]), sample)
            self.dtype = map_tree(
                lambda array: np.dtype(np.float32) if self._as_float32 else dtype_as_read(array.dtype), sample
            )
        for array, dtype, leaf in zip(leaves(sample), leaves(self.dtype), self._same_leaves(sample), strict=True):
            if leaf is not None:
                self.sample_bytes += row_bytes[leaf.name] * dtype.itemsize // leaf.dtype.itemsize
            else:
                self.sample_bytes += int(np.prod(array.shape[1:], dtype=np.int64)) * dtype.itemsize

    def _same_leaves(self, sample: Arrays) -> list[Leaf | None]:
        """Return the data set of each leaf of a sample; None if an adaptor makes the leaf."""
        if self._adaptor is None:
            return list(leaves(self._leaves))
        return [None] * sum(1 for _ in leaves(sample))

    def empty(self, n_samples: int) -> "Target":
        """Return the target for reading `n_samples` samples."""
        return Target(self.shape, self.dtype, n_samples)

    def read(self, file: h5py.File, path: Path, rows: Indices, target: "Target") -> None:
        """Read `rows` (ascending, at least one) into `target`."""
        with reading(self.name, path, TrialError):
            for piece in self._pieces(rows):
                first, stop = int(piece[0]), int(piece[-1]) + 1
                stored = map_tree(lambda leaf: self._rows(leaf, file, path, first, stop), self._leaves)  # noqa: B023
                chosen = stored if len(piece) == stop - first else take(stored, piece - first)
                target.add(self._adapted(chosen, TrialError))

    @staticmethod
    def _rows(leaf: Leaf, file: h5py.File, path: Path, start: int, stop: int) -> NDArray | Ragged:
        with reading(leaf.name, path, TrialError):
            return leaf.rows(file, start, stop)

    def _find(self, file: h5py.File, path: Path) -> Any:
        """Return the tree of leaves that the name means in a file."""
        names = [name.strip() for name in self.name.split(",")]
        if not all(names):
            raise ConfigurationError(
                f"`--{self.role}-name` must name a data set or group, or several separated by commas. "
                f"Received: {self.name!r}."
            )
        branches = [self._branch(find(file, name, path), name, path, alone=True) for name in names]
        return branches if len(names) > 1 else branches[0]

    def _branch(self, found: h5py.Dataset | h5py.Group, name: str, path: Path, *, alone: bool = False) -> Any:
        if isinstance(found, h5py.Dataset):
            return Leaf(name, self.role, as_stored=self._adaptor is not None, alone=alone)
        members = sorted(found)
        if not members:
            raise ConfigurationError(
                f"A group must hold at least one data set. Received: {name!r}, an empty group in {path}. Choose other "
                f"{self.role}."
            )
        with reading(name, path, ConfigurationError):
            return [self._branch(found[member], f"{name.rstrip('/')}/{member}", path) for member in members]

    def _adapted(self, rows: Arrays, blame: type[NnloError]) -> Arrays:
        """Return the samples that the adaptor makes of `rows`, if there is one; its exceptions become a `blame`."""
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
        """Return `rows` in pieces, cut if a piece is full or a gap is too wide to be read.

        The ends of pieces are ends of chunks, so that no chunk is decompressed twice.
        """
        n_rows = -(-max(1, PIECE_BYTES // max(1, self._row_bytes)) // self.chunk) * self.chunk
        gap = max(self.chunk, GAP_BYTES // max(1, self._row_bytes))
        return np.split(rows, np.flatnonzero((np.diff(rows // n_rows) > 0) | (np.diff(rows) > gap)) + 1)


class Target:
    """Arrays that are filled piece by piece.

    Args:
        shape: tree of the shapes of a sample.
        dtype: tree of its dtypes.
        n_samples: number of samples to be added.
    """

    def __init__(self, shape: Shapes, dtype: Any, n_samples: int) -> None:
        self._shape = shape
        self._dtype = dtype
        #: arrays; lists of pieces for leaves of variable length
        self._filled = map_tree(lambda s, t: [] if _variable(s) else np.empty((n_samples, *s), t), shape, dtype)
        self._slots = list(self._collect())
        self._n_done = 0

    def _collect(self) -> Any:
        # A leaf's list of pieces is not a branch, so the walk follows the shapes.
        def walk(shape: Any, filled: Any) -> Any:
            if isinstance(shape, list):
                for branch in zip(shape, filled, strict=True):
                    yield from walk(*branch)
            else:
                yield shape, filled

        return walk(self._shape, self._filled)

    def add(self, samples: Arrays) -> None:
        """Add samples that follow the ones added before; ValueError if their shape differs."""
        shapes = map_tree(lambda array: tuple(array.shape[1:]), samples)
        if shapes != self._shape:
            raise ValueError(f"samples of shape {self._shape} are expected, not {shapes}")
        n = len(next(leaves(samples)))
        for (_, slot), array, dtype in zip(self._slots, leaves(samples), leaves(self._dtype), strict=True):
            if isinstance(slot, list):
                slot.append(array.astype(dtype, copy=False))
            else:
                np.copyto(slot[self._n_done : self._n_done + n], array, casting="same_kind")
        self._n_done += n

    def tree(self) -> Arrays:
        """Return all samples added."""

        def build(shape: Any, dtype: Any, filled: Any) -> Any:
            if isinstance(shape, list):
                return [build(*branches) for branches in zip(shape, dtype, filled, strict=True)]
            if not _variable(shape):
                return filled
            none = Ragged(np.empty((0, *shape[1:]), dtype), np.empty(0, np.int64))
            return concatenate([none, *filled])

        return build(self._shape, self._dtype, self._filled)


def _variable(shape: tuple[int | None, ...]) -> bool:
    return bool(shape) and shape[0] is None


def _as_tree(value: Any) -> Arrays:
    """Return the result of an adaptor as a tree: several arrays in a list or a tuple, or one array."""
    if isinstance(value, list | tuple) and any(isinstance(item, np.ndarray | list | tuple) for item in value):
        return [_as_tree(item) for item in value]
    return np.asarray(value)
