"""What a model is trained on, seen as one row of samples numbered from 0, file after file.

Features and labels are trees (`nnlo_opt.trees`): an array, or lists of arrays for a model of several inputs or outputs.
An array of sequences of variable length is a `Ragged`, whose shape has None for the steps.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nnlo_opt.trees import Arrays, Shapes, map_tree

Shape = tuple[int | None, ...]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A data file, and how many samples it holds (0 is allowed)."""

    path: Path
    n_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """What a data source holds. Shapes are of one sample, dtypes those that `DataSource.read` returns."""

    files: tuple[FileInfo, ...]
    #: trees of tuples; None stands for a variable number of steps
    feature_shape: Shapes
    label_shape: Shapes
    #: trees of names, of the same form
    feature_dtype: Any
    label_dtype: Any
    #: bytes of a sample in memory, features and labels; of variable length, about
    sample_bytes: int = 0
    #: samples that can only be read together, as the chunks of a file are
    chunk_samples: int = 1

    @property
    def n_samples(self) -> int:
        """Samples of all files."""
        return sum(file.n_samples for file in self.files)

    def file_numbers(self) -> Indices:
        """For every sample the number of its file, (n_samples,): the groups of folds by files."""
        return np.repeat(np.arange(len(self.files)), [file.n_samples for file in self.files])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "files": [[str(file.path), file.n_samples] for file in self.files],
            "feature_shape": map_tree(list, self.feature_shape),
            "label_shape": map_tree(list, self.label_shape),
            "feature_dtype": self.feature_dtype,
            "label_dtype": self.label_dtype,
            "sample_bytes": self.sample_bytes,
            "chunk_samples": self.chunk_samples,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "DataInfo":
        """The inverse of `to_json`."""
        return cls(
            files=tuple(FileInfo(Path(path), n_samples) for path, n_samples in data["files"]),
            feature_shape=_shapes_from_json(data["feature_shape"]),
            label_shape=_shapes_from_json(data["label_shape"]),
            feature_dtype=data["feature_dtype"],
            label_dtype=data["label_dtype"],
            sample_bytes=data["sample_bytes"],
            chunk_samples=data["chunk_samples"],
        )


class DataSource(Protocol):
    """Samples by number. Holds no file open between calls, so any number of ranks and threads may share the files."""

    @property
    def info(self) -> DataInfo:
        """What is there."""

    def read(self, indices: Indices) -> tuple[Arrays, Arrays]:
        """Samples `indices` (n,), ascending and without repetition: x and y, trees of arrays (n, ...) and `Ragged`.

        x is float32; y is float32 if it was stored as floats, and an integer array if it was stored as integers.
        Raises `TrialError` for what cannot be read.
        """

    def read_labels(self, indices: Indices | None = None) -> Arrays:
        """The labels y of samples `indices` (n,) as in `read`; None: of all of them."""

    def read_column(self, name: str, indices: Indices | None = None) -> NDArray:
        """One value a sample, numbers or strings, of samples `indices` (n,) as in `read`; None: of all of them.

        Raises `ConfigurationError` if there is no such data set, or it holds anything else.
        """


def dtype_as_read(stored: DTypeLike) -> np.dtype:
    """The dtype in which numbers stored as `stored` are handed out: float32 for floats, uint8 for booleans.

    Raises `TypeError` for what is not a number.
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


def check_indices(indices: Indices, n_samples: int) -> None:
    """Raise `ValueError` unless `indices` ascend without repetition and lie in 0 .. n_samples - 1."""
    if len(indices) and (indices[0] < 0 or indices[-1] >= n_samples or np.any(np.diff(indices) <= 0)):
        raise ValueError(f"Sample numbers must ascend without repetition from 0 to at most {n_samples - 1}.")


def _shapes_from_json(data: list[Any]) -> Shapes:
    """A list of lists is a branch, which is never empty; any other is a shape."""
    if data and isinstance(data[0], list):
        return [_shapes_from_json(branch) for branch in data]
    return tuple(data)
