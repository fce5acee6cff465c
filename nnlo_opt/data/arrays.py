"""Data in memory: the twin of the adapters that read files, for tests and for one's own scripts."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.data.source import DataInfo, FileInfo, Indices, check_indices, dtype_as_read
from nnlo_opt.errors import ConfigurationError


class ArraySource:
    """A `DataSource` of arrays x (n, ...) and y (n, ...), with further columns (n,) by name."""

    def __init__(self, x: NDArray, y: NDArray, columns: Mapping[str, NDArray] | None = None) -> None:
        self._x = np.asarray(x, np.float32)
        self._y = np.asarray(y, dtype_as_read(y.dtype))
        self._columns = dict(columns or {})
        for name, array in {"labels": self._y, **self._columns}.items():
            if len(array) != len(self._x):
                raise ConfigurationError(
                    f"All arrays of a data source must have one row a sample. Received: {len(self._x)} features, "
                    f"{len(array)} rows of {name}."
                )
        self._info = DataInfo(
            files=(FileInfo(Path("memory"), len(self._x)),),
            feature_shape=self._x.shape[1:],
            label_shape=self._y.shape[1:],
            feature_dtype=self._x.dtype.name,
            label_dtype=self._y.dtype.name,
        )

    @property
    def info(self) -> DataInfo:
        return self._info

    def read(self, indices: Indices) -> tuple[NDArray[np.float32], NDArray]:
        check_indices(indices, len(self._x))
        return self._x[indices], self._y[indices]

    def read_labels(self) -> NDArray:
        return self._y.copy()

    def read_column(self, name: str) -> NDArray:
        if name not in self._columns:
            raise ConfigurationError(
                f"`--fold-by` must name a data set. Received: {name!r}. There are: {', '.join(sorted(self._columns))}."
            )
        return self._columns[name].copy()
