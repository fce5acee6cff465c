"""Sequences of variable length as leaves of trees, beside plain arrays.

A `Ragged` is a leaf like an array (n, None, ...): sample i has `lengths[i]` steps. In a batch it becomes an array
padded with 0 to the longest sample; `keras.layers.Masking` and `Embedding(mask_zero=True)` skip the padding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.trees import Arrays, map_tree

Rows = NDArray[np.int64] | slice


class Ragged:
    """Samples of variable length. Do not modify arrays obtained from it: they are shared.

    Args:
        steps: steps of all samples, one sample after another, (sum of lengths, ...).
        lengths: number of steps of each sample, (n,).
    """

    def __init__(self, steps: np.ndarray, lengths: NDArray[np.int64]) -> None:
        self.steps = steps
        self.lengths = lengths
        #: index of the first step of each sample, and the end of the last, (n + 1,)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        if self._starts[-1] != len(steps):
            raise ValueError(f"{self._starts[-1]} steps are expected for these lengths. Received: {len(steps)}.")

    @classmethod
    def of(cls, padded: np.ndarray, lengths: NDArray[np.int64]) -> "Ragged":
        """Return the first `lengths[i]` steps of each row of an array (n, steps, ...)."""
        inside = np.arange(padded.shape[1]) < lengths[:, None]
        return cls(padded[inside], np.asarray(lengths, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of a step."""
        return self.steps.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape (n, None, ...)."""
        return (len(self), None, *self.steps.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of steps and lengths."""
        return self.steps.nbytes + 2 * self.lengths.nbytes

    def __getitem__(self, rows: Rows) -> "Ragged":
        """Return the samples `rows`: a view for a slice of step 1, a copy for an array of numbers."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            stop = max(start, stop)
            return Ragged(self.steps[self._starts[start] : self._starts[stop]], self.lengths[start:stop])
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        # Index of each step in the result, plus the offset of its sample's source.
        numbers = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._starts[rows] - (ends - lengths), lengths)
        return Ragged(np.take(self.steps, numbers, axis=0), lengths)

    def astype(self, dtype: np.dtype, copy: bool = True) -> "Ragged":
        """Return the same samples in another type."""
        return Ragged(self.steps.astype(dtype, copy=copy), self.lengths)

    def padded(self) -> np.ndarray:
        """Return all samples as an array (n, longest, ...), padded with 0.

        There is at least one step, so that models can run.
        """
        longest = max(1, int(self.lengths.max(initial=0)))
        array = np.zeros((len(self), longest, *self.steps.shape[1:]), self.dtype)
        array[np.arange(longest) < self.lengths[:, None]] = self.steps
        return array


def take(tree: Arrays, rows: Rows) -> Arrays:
    """Return the samples `rows` of every leaf: views for a slice, copies for an array of numbers."""
    # This runs once per batch, and `map_tree` would take as long as the copy.
    if isinstance(tree, list):
        return [take(branch, rows) for branch in tree]
    return tree[rows] if isinstance(rows, slice) or isinstance(tree, Ragged) else tree.take(rows, axis=0)


def concatenate(trees: Sequence[Arrays]) -> Arrays:
    """Return the samples of all trees, one tree after another; a single tree is not copied."""

    def of_leaves(*parts: Any) -> np.ndarray | Ragged:
        if not isinstance(parts[0], Ragged):
            return np.concatenate(parts)
        return Ragged(np.concatenate([part.steps for part in parts]), np.concatenate([part.lengths for part in parts]))

    return trees[0] if len(trees) == 1 else map_tree(of_leaves, trees[0], *trees[1:])


def padded(tree: Arrays) -> Arrays:
    """Return the tree with every `Ragged` as an array."""
    if isinstance(tree, list):
        return [padded(branch) for branch in tree]
    return tree.padded() if isinstance(tree, Ragged) else tree
