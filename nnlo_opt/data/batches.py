"""Batches: endless passes over a shard, each in a fresh order that its number alone decides."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples x (n, ...) and labels y (n, ...), n <= batch size; the last of a pass may be smaller."""

    x: NDArray
    y: NDArray
    #: all samples of the shard have been seen as often as each other
    end_of_pass: bool


class BatchStream:
    """Endless passes over the samples of a shard, none left out.

    The order of pass p depends on (*rng_key, p) alone. So a position is two numbers, and going back to one is exact.
    Batches may share memory with the shard: they are to be read, not written.
    """

    def __init__(self, x: NDArray, y: NDArray, batch_size: int, *, rng_key: tuple[int, ...], shuffle: bool) -> None:
        """`x` (n, ...) and `y` (n, ...) with n >= 1; `rng_key` holds numbers >= 0. Else a `ValueError`."""
        _check(x, y, batch_size)
        if len(x) == 0:
            raise ValueError("A stream of batches needs at least one sample.")
        self._x = x
        self._y = y
        self._batch_size = batch_size
        self._rng_key = rng_key
        self._shuffle = shuffle
        #: passes completed
        self._pass = 0
        #: samples of this pass handed out, 0 <= offset < len(x)
        self._offset = 0
        #: order of the samples in pass `_pass`; None: stored order, or not drawn yet
        self._order: NDArray[np.int64] | None = None

    @property
    def position(self) -> tuple[int, int]:
        """Passes completed, and samples of the current one handed out: where `seek` leads back to."""
        return self._pass, self._offset

    def seek(self, pass_number: int, offset: int) -> None:
        """Go to a `position`: the batches that follow are those that followed it the first time."""
        if pass_number < 0 or not 0 <= offset < len(self._x):
            raise ValueError(
                f"A position must be a pass >= 0 and an offset from 0 to {len(self._x) - 1}. "
                f"Received: {pass_number}, {offset}."
            )
        self._pass, self._offset, self._order = pass_number, offset, None

    def next(self) -> Batch:
        """The next batch, with one copy of its samples if they are shuffled and none if they are not."""
        start, stop = self._offset, min(self._offset + self._batch_size, len(self._x))
        if self._shuffle:
            if self._order is None:
                self._order = np.random.default_rng((*self._rng_key, self._pass)).permutation(len(self._x))
            chosen = self._order[start:stop]
            x, y = np.take(self._x, chosen, axis=0), np.take(self._y, chosen, axis=0)
        else:
            x, y = self._x[start:stop], self._y[start:stop]
        self._offset = stop
        end_of_pass = stop == len(self._x)
        if end_of_pass:
            self._pass, self._offset, self._order = self._pass + 1, 0, None
        return Batch(x, y, end_of_pass)


def iterate(x: NDArray, y: NDArray, batch_size: int) -> Iterator[tuple[NDArray, NDArray]]:
    """All samples once, in order, none left out: views (x, y) of at most `batch_size` samples."""
    _check(x, y, batch_size)
    return ((x[start : start + batch_size], y[start : start + batch_size]) for start in range(0, len(x), batch_size))


def _check(x: NDArray, y: NDArray, batch_size: int) -> None:
    if len(x) != len(y):
        raise ValueError(f"There must be as many labels as samples. Received: {len(x)} samples, {len(y)} labels.")
    if batch_size < 1:
        raise ValueError(f"A batch must have at least one sample. Received: batch size {batch_size}.")
