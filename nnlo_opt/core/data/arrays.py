"""Data sources of arrays in memory, or mapped from a file by NumPy."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays, leaves, map_tree, shapes_of
from nnlo_opt.core.data.ragged import Ragged, concatenate, take
from nnlo_opt.core.data.source import (
    DataInfo,
    DataSource,
    FileInfo,
    Indices,
    NotFiniteError,
    checked_indices,
    dtype_as_read,
    first_not_finite,
)

#: bytes that a fingerprint reads at once
_PIECE_BYTES = 16 << 20


class ArraySource:
    """`DataSource` of arrays, of which it keeps no copy: `read` converts the samples that are asked for.

    Args:
        x: features (n, ...), an array, a `Ragged`, or a nested list of them.
        y: labels (n, ...), in the same form.
        columns: further columns (n,) by name.
        name: what messages call the arrays.
        finite: which of "features" and "labels" must be finite when read.

    Raises:
        ConfigurationError: the numbers of rows differ, or there are none.
        TypeError: an array holds no numbers.
    """

    def __init__(
        self,
        x: Arrays,
        y: Arrays,
        columns: Mapping[str, NDArray[Any]] | None = None,
        *,
        name: str = "memory",
        finite: Collection[str] = (),
    ) -> None:
        self._x, self._y, self._columns = x, y, dict(columns or {})
        self._name, self._finite = name, finite
        n_rows = len(next(leaves(x)))
        for what, tree in {"features": x, "labels": y, **self._columns}.items():
            for leaf in leaves(tree):
                if len(leaf) != n_rows:
                    raise ConfigurationError(
                        f"All arrays of a data source must have one row for each sample. Received: {n_rows} "
                        f"features, {len(leaf)} rows of {what}."
                    )
        labels = map_tree(lambda leaf: dtype_as_read(leaf.dtype), y)
        for leaf in leaves(x):
            dtype_as_read(leaf.dtype)
        n_bytes = sum(_bytes_of(leaf, np.dtype(np.float32)) for leaf in leaves(x))
        n_bytes += sum(map(_bytes_of, leaves(y), leaves(labels)))
        self.info = DataInfo(
            files=(FileInfo(Path(name), n_rows),),
            feature_shape=shapes_of(x),
            label_shape=shapes_of(y),
            label_dtype=map_tree(lambda dtype: dtype.name, labels),
            sample_bytes=n_bytes // max(1, n_rows),
        )

    def read(self, indices: Indices) -> tuple[Arrays, Arrays]:
        indices = checked_indices(indices, self.info.n_samples)
        x = map_tree(lambda leaf: self._checked(take(leaf, indices), indices, "features"), self._x)
        return x, self.read_labels(indices)

    def read_labels(self, indices: Indices | None = None) -> Arrays:
        indices = checked_indices(indices, self.info.n_samples)
        return map_tree(lambda leaf: self._checked(take(leaf, indices), indices, "labels"), self._y)

    def read_column(self, name: str, indices: Indices | None = None) -> NDArray[Any]:
        if name not in self._columns:
            options = f"`{spelled('fold_by')}` and `{spelled('sample_weights_name')}`"
            raise ConfigurationError(
                f"{options} must name a data set. Received: {name!r}. The data sets are: "
                f"{', '.join(sorted(self._columns))}."
            )
        return self._columns[name][checked_indices(indices, self.info.n_samples)]

    def fingerprint(self) -> str:
        """Return a digest of all arrays, with their shapes and dtypes; NotFiniteError like `read`."""
        digest = hashlib.sha256()
        for what, tree in {"features": self._x, "labels": self._y, **self._columns}.items():
            for leaf in leaves(tree):
                digest.update(f"{what} {leaf.dtype.str} {leaf.shape}\0".encode())
                n_rows = max(1, _PIECE_BYTES * len(leaf) // max(1, leaf.nbytes))
                for start in range(0, len(leaf), n_rows):
                    piece = leaf[start : start + n_rows]
                    if isinstance(piece, Ragged):
                        digest.update(piece.lengths.tobytes())
                    digest.update((piece.steps if isinstance(piece, Ragged) else piece).tobytes())
                    self._checked(piece, np.arange(start, start + len(piece)), what)
        return digest.hexdigest()

    def _checked(self, rows: NDArray[Any] | Ragged, indices: Indices, what: str) -> NDArray[Any] | Ragged:
        """Return the rows of the samples `indices` in the type of the models; NotFiniteError as of `read`."""
        rows = rows.astype(np.dtype(np.float32) if what == "features" else dtype_as_read(rows.dtype), copy=False)
        if what in self._finite and (number := first_not_finite(rows)) is not None:
            raise NotFiniteError(
                f"Data must be finite as float32. Received: NaN or infinity among the {what} of {self._name}, first in "
                f"sample {indices[number]}. Correct the data, or leave the sample out."
            )
        return rows


class JoinedSource:
    """`DataSource` of the samples of several sources, one source after another.

    Raises:
        ConfigurationError: the samples differ in shape or type.
    """

    def __init__(self, sources: Sequence[DataSource]) -> None:
        self._sources = sources
        infos = [source.info for source in sources]
        first = infos[0]
        for info in infos[1:]:
            for what in ("feature_names", "label_names", "feature_shape", "label_shape", "label_dtype"):
                one, other = getattr(first, what), getattr(info, what)
                if one != other and not (what.endswith("names") and () in (one, other)):  # arrays and files
                    raise ConfigurationError(
                        "Samples for training, validation and tests must have one form. Received: "
                        f"{what.replace('_', ' ')} {one} of {first.files[0].path}, {other} of "
                        f"{info.files[0].path}. Correct one of them."
                    )
        self.info = replace(
            first,
            files=tuple(file for info in infos for file in info.files),
            sample_bytes=max(info.sample_bytes for info in infos),
        )
        #: index of the first sample of every source, then the number of all samples
        self._starts = np.cumsum([0, *(info.n_samples for info in infos)])

    def read(self, indices: Indices) -> tuple[Arrays, Arrays]:
        xs, ys = zip(*(source.read(rows) for source, rows in self._parts(indices)), strict=True)
        return concatenate(xs), concatenate(ys)

    def read_labels(self, indices: Indices | None = None) -> Arrays:
        return concatenate([source.read_labels(rows) for source, rows in self._parts(indices)])

    def read_column(self, name: str, indices: Indices | None = None) -> NDArray[Any]:
        return np.concatenate([source.read_column(name, rows) for source, rows in self._parts(indices)])

    def _parts(self, indices: Indices | None) -> list[tuple[DataSource, Indices]]:
        """Return the sources that hold some of `indices`, with the rows in each; the first one for no samples."""
        indices = checked_indices(indices, self.info.n_samples)
        edges = np.searchsorted(indices, self._starts)
        parts = [
            (source, indices[first:stop] - start)
            for source, start, (first, stop) in zip(self._sources, self._starts, pairwise(edges), strict=False)
            if stop > first
        ]
        return parts or [(self._sources[0], indices)]


def _bytes_of(leaf: NDArray[Any] | Ragged, dtype: np.dtype) -> int:
    """Return the bytes of a leaf in another type."""
    return leaf.nbytes // max(1, leaf.dtype.itemsize) * dtype.itemsize
