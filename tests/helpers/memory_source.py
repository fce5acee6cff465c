"""Small data sets in memory."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.trees import Arrays, leaves, map_tree
from nnlo_opt.core.data.ragged import Ragged, take
from nnlo_opt.core.data.source import DataInfo, Indices, checked_indices, dtype_as_read


class ArraySource:
    """`DataSource` of arrays.

    Args:
        x: features (n, ...), an array, a `Ragged`, or a nested list of them.
        y: labels (n, ...), in the same form.
        columns: further columns (n,) by name.

    Raises:
        ConfigurationError: if the numbers of rows differ.
    """

    def __init__(self, x: Arrays, y: Arrays, columns: Mapping[str, NDArray] | None = None) -> None:
        self._x = map_tree(lambda leaf: _as(leaf, np.float32), x)
        self._y = map_tree(lambda leaf: _as(leaf, dtype_as_read(leaf.dtype)), y)
        self._columns = dict(columns or {})
        n_samples = len(next(leaves(self._x)))
        for name, tree in {"features": self._x, "labels": self._y, **self._columns}.items():
            for leaf in leaves(tree):
                if len(leaf) != n_samples:
                    raise ConfigurationError(
                        f"All arrays of a data source must have one row for each sample. Received: {n_samples} "
                        f"features, {len(leaf)} rows of {name}."
                    )
        self.info = DataInfo.of("memory", self._x, self._y)

    def read(self, indices: Indices) -> tuple[Arrays, Arrays]:
        indices = checked_indices(indices, self.info.n_samples)
        return take(self._x, indices), take(self._y, indices)

    def read_labels(self, indices: Indices | None = None) -> Arrays:
        return take(self._y, checked_indices(indices, self.info.n_samples))

    def read_column(self, name: str, indices: Indices | None = None) -> NDArray:
        if name not in self._columns:
            raise ConfigurationError(
                f"`--fold-by` and `--sample-weights-name` must name a data set. Received: {name!r}. The data sets "
                f"are: {', '.join(sorted(self._columns))}."
            )
        return self._columns[name][checked_indices(indices, self.info.n_samples)]


def _as(leaf: NDArray | Ragged, dtype: DTypeLike) -> NDArray | Ragged:
    return leaf.astype(np.dtype(dtype)) if isinstance(leaf, Ragged) else np.asarray(leaf, dtype)


def linear_source(n_samples: int, n_features: int = 3, seed: int = 0) -> ArraySource:
    """Return samples for a linear model: x (n, n_features) normal, y (n,) linear in x with a little noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_samples, n_features))
    y = x @ rng.normal(size=n_features) + 0.5 + 0.1 * rng.normal(size=n_samples)
    return ArraySource(x, y.astype(np.float32))


def numbered_source(n_samples: int) -> ArraySource:
    """Return samples that are identified by their label: y is the number of the sample, x (n, 1) is 0."""
    return ArraySource(np.zeros((n_samples, 1)), np.arange(n_samples, dtype=np.float32))
