"""Interface of data sources, in which samples are numbered from 0 over all files.

Features and labels are trees (`nnlo_opt.core.base.trees`): an array, or lists of arrays for a model of several inputs
or outputs. An array of sequences of variable length is a `Ragged`, whose shape has None for the steps.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.trees import Arrays, Shapes, leaves, map_tree, shapes_of
from nnlo_opt.core.data.ragged import Ragged

Shape = tuple[int | None, ...]
Indices = NDArray[np.int64]


class NotFiniteError(TrialError):
    """Error for samples with NaN or infinity: no hyperparameters can help."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Data file and its number of samples, which may be 0."""

    path: Path
    n_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """Description of a data source: shapes of one sample, and dtypes as returned by `DataSource.read`."""

    files: tuple[FileInfo, ...]
    #: trees of tuples; None stands for a variable number of steps
    feature_shape: Shapes
    label_shape: Shapes
    #: tree of dtype names, of the same form as the shapes
    label_dtype: Any
    #: names of the features and the labels if they came as dictionaries: the lists have their order
    feature_names: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    #: bytes of a sample in memory, features and labels; an estimate for variable lengths
    sample_bytes: int = 0
    #: samples that can only be read together, such as a chunk of a file
    chunk_samples: int = 1

    @property
    def n_samples(self) -> int:
        """Samples of all files."""
        return sum(file.n_samples for file in self.files)

    def file_numbers(self) -> Indices:
        """Return the file number of every sample, (n_samples,): its group if folds are made of files."""
        return np.repeat(np.arange(len(self.files)), [file.n_samples for file in self.files])

    @classmethod
    def of(cls, name: str, x: Arrays, y: Arrays) -> "DataInfo":
        """Return the description of samples in memory as a single file called `name`."""
        n_samples = len(next(leaves(x)))
        return cls(
            files=(FileInfo(Path(name), n_samples),),
            feature_shape=shapes_of(x),
            label_shape=shapes_of(y),
            label_dtype=map_tree(lambda leaf: leaf.dtype.name, y),
            sample_bytes=sum(leaf.nbytes for leaf in leaves([x, y])) // max(1, n_samples),
        )


class DataSource(Protocol):
    """Reads samples by number. Keep no file open between calls: ranks and threads share the files."""

    #: description of the data
    info: DataInfo

    def read(self, indices: Indices) -> tuple[Arrays, Arrays]:
        """Return the samples `indices` (n,), ascending and without repetition.

        Returns:
            x and y, trees of arrays (n, ...) and `Ragged`. x is float32. y is float32 if it was stored as floats, and
            an integer array if it was stored as integers.

        Raises:
            TrialError: the samples cannot be read.
        """

    def read_labels(self, indices: Indices | None = None) -> Arrays:
        """Return only the labels y of the samples `indices` (n,), like `read`; None for all samples."""

    def read_column(self, name: str, indices: Indices | None = None) -> np.ndarray:
        """Return one number or string for each of the samples `indices` (n,); None for all samples.

        Raises:
            ConfigurationError: there is no data set of this name, or it has other values.
        """


def dtype_as_read(stored: DTypeLike) -> np.dtype:
    """Return the dtype after reading numbers stored as `stored`: float32 for floats, uint8 for booleans.

    Raises:
        TypeError: `stored` is not a numeric type.
    """
    stored = np.dtype(stored)
    match stored.kind:
        case "f":
            return np.dtype(np.float32)
        case "b":
            return np.dtype(np.uint8)
        case "i" | "u":
            return stored.newbyteorder("=")
        case _:
            raise TypeError(f"Numbers are expected. Received: values of type {stored}.")


def first_not_finite(array: np.ndarray | Ragged) -> int | None:
    """Return the number of the first non-finite sample in an array (n, ...); None if all are finite."""
    values = array.steps if isinstance(array, Ragged) else array
    if values.dtype.kind != "f" or (finite := np.isfinite(values)).all():
        return None
    row = np.argmin(finite.reshape(len(values), -1).all(axis=1))
    return int(np.searchsorted(np.cumsum(array.lengths), row, side="right") if isinstance(array, Ragged) else row)


def checked_indices(indices: Indices | None, n_samples: int) -> Indices:
    """Return `indices`, or all sample numbers for None; `ValueError` unless they are strictly ascending."""
    if indices is None:
        return np.arange(n_samples)
    if len(indices) and (indices[0] < 0 or indices[-1] >= n_samples or np.any(np.diff(indices) <= 0)):
        raise ValueError(f"Sample numbers must ascend without repetition from 0 to at most {n_samples - 1}.")
    return indices
