"""Batches from endless passes over a shard, each pass in a new order that depends only on its number.

`BatchStream` cuts windows (`core.data.order`) into batches. The windows come from a shard in memory, or from files read
ahead while earlier batches are trained (`engine.data.streaming`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.trees import Arrays, n_samples
from nnlo_opt.core.data.order import Order
from nnlo_opt.core.data.ragged import concatenate, padded, take
from nnlo_opt.core.data.source import Indices


class Batch(NamedTuple):
    """Batch of n samples; only the last batch of a pass may have fewer than the batch size.

    x and y are arrays (n, ...), or nested lists of arrays for several inputs or outputs. Sequences of variable length
    are padded with 0 to the longest one of the batch.
    """

    x: Arrays
    y: Arrays
    #: True if the batch ends a pass: all samples of the shard have been seen equally often
    end_of_pass: bool
    #: weight of each sample in the loss, float32 (n,); None for 1
    weights: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples in memory: trees of arrays (n, ...) and `Ragged`."""

    x: Arrays
    y: Arrays
    #: weight of each sample in the loss, float32 (n,); None for 1
    weights: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return n_samples(self.x)

    def tree(self) -> list[Any]:
        """Return features, labels and weights, if there are any, as one tree."""
        return [self.x, self.y] if self.weights is None else [self.x, self.y, self.weights]


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive samples of a pass."""

    #: trees of arrays (m, ...) with the samples
    tree: list[Any]
    #: rows of the samples in the tree, in the order of the pass
    rows: NDArray[np.int64] | slice


class Windows(Protocol):
    """Windows of a shard, for every pass."""

    #: number of samples of the shard, at least 1
    n_samples: int

    def starts(self, pass_number: int) -> Indices:
        """Return the number of samples before each window of the pass, and their total, (n_windows + 1,)."""

    def get(self, pass_number: int, number: int) -> Window:
        """Return window `number` of a pass; usually called in ascending order. `TrialError` if it cannot be read."""

    def close(self) -> None:
        """Release threads and memory; `get` still works afterwards."""


class WindowsInMemory:
    """Windows of a shard that is held in memory.

    Args:
        samples: all samples of the shard.
        order: order of the samples in every pass.
    """

    def __init__(self, samples: Samples, order: Order) -> None:
        if len(samples) != order.n_samples or n_samples(samples.tree()) != order.n_samples:
            raise ValueError(f"{order.n_samples} samples are expected. Received: {len(samples)}.")
        self.n_samples = order.n_samples
        self._tree = samples.tree()
        self._order = order

    def starts(self, pass_number: int) -> Indices:
        return self._order.starts(pass_number)

    def get(self, pass_number: int, number: int) -> Window:
        samples, order = self._order.window(pass_number, number)
        if order is None:
            return Window(self._tree, slice(int(samples[0]), int(samples[-1]) + 1))
        return Window(self._tree, np.take(samples, order))

    def close(self) -> None:
        """Do nothing: other objects may still use the samples."""


class Stream(Protocol):
    """Endless passes over a shard; after `seek` to a position the same batches follow."""

    @property
    def position(self) -> tuple[int, int]:
        """Number of completed passes and offset in the current pass: the arguments of `seek`."""

    def seek(self, pass_number: int, offset: int) -> None:
        """Continue from a `position`."""

    def next(self) -> Batch:
        """Return the next batch; `TrialError` if it cannot be read."""

    def close(self) -> None:
        """Discard what was read ahead; the stream can still be used."""


class BatchStream:
    """Endless passes over all samples of a shard; batches cross the ends of windows.

    `seek` is exact. Do not modify batches: they may share memory with the shard.

    Args:
        windows: windows of the shard.
        batch_size: samples of a batch, at least 1.
    """

    def __init__(self, windows: Windows, batch_size: int) -> None:
        _check_size(batch_size)
        self._windows = windows
        self._n_samples = windows.n_samples
        self._batch_size = batch_size
        #: completed passes
        self._pass = 0
        #: samples of this pass returned so far, 0 <= offset < n_samples
        self._offset = 0
        #: number of samples of this pass before each window, and their total; None before they are needed
        self._starts: NDArray[np.int64] | None = None
        #: last window fetched, with the offsets of its begin and end; None before the first
        self._current: tuple[Window, int, int] | None = None

    @property
    def position(self) -> tuple[int, int]:
        """Number of completed passes, and of samples returned in the current pass: the arguments of `seek`."""
        return self._pass, self._offset

    def seek(self, pass_number: int, offset: int) -> None:
        """Continue from a `position`; the same batches follow as the first time."""
        if pass_number < 0 or not 0 <= offset < self._n_samples:
            raise ValueError(
                f"A position must be a pass >= 0 and an offset from 0 to {self._n_samples - 1}. "
                f"Received: {pass_number}, {offset}."
            )
        self._pass, self._offset = pass_number, offset
        self._starts = self._current = None

    def next(self) -> Batch:
        """Return the next batch; its samples are copied once if shuffled, and not otherwise.

        Raises:
            TrialError: the samples cannot be read; the position does not change.
        """
        samples, _, end_of_pass = self.next_samples()
        x, y, *weights = padded(samples)
        return Batch(x, y, end_of_pass, weights[0] if weights else None)

    def next_samples(self) -> tuple[list[Any], int, bool]:
        """Return the next samples unpadded: one tree, their number, and True if the pass ends."""
        start, stop = self._offset, min(self._offset + self._batch_size, self._n_samples)
        window, first, end = self._window_at(start)
        samples = take(window.tree, _part(window.rows, start - first, min(stop, end) - first))
        if stop > end:
            parts = [samples]
            while end < stop:
                start = end
                del window  # keep only one window in memory while the next is read
                window, first, end = self._window_at(start)
                parts.append(take(window.tree, _part(window.rows, 0, min(stop, end) - first)))
            samples = concatenate(parts)
        n_samples = stop - self._offset
        end_of_pass = stop == self._n_samples
        if end_of_pass:
            self.seek(self._pass + 1, 0)
        else:
            self._offset = stop
        return samples, n_samples, end_of_pass

    def close(self) -> None:
        """Stop reading ahead; the stream can still be used."""
        self._current = None
        self._windows.close()

    def _window_at(self, offset: int) -> tuple[Window, int, int]:
        """Return the window of the sample at `offset` of this pass, with the offsets of its begin and end."""
        if self._current is None or not self._current[1] <= offset < self._current[2]:
            self._current = None
            if self._starts is None:
                self._starts = self._windows.starts(self._pass)
            number = int(np.searchsorted(self._starts, offset, side="right")) - 1
            window = self._windows.get(self._pass, number)
            self._current = window, int(self._starts[number]), int(self._starts[number + 1])
        return self._current


def iterate(x: Arrays, y: Arrays, batch_size: int) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield all samples once in order: views (x, y) of at most `batch_size` samples."""
    _check_size(batch_size)
    n = n_samples(x)
    if n != n_samples(y):
        raise ValueError(f"There must be as many labels as samples. Received: {n} samples, {n_samples(y)} labels.")
    rows = (slice(start, start + batch_size) for start in range(0, n, batch_size))
    return ((padded(take(x, mine)), padded(take(y, mine))) for mine in rows)


def _part(rows: NDArray[np.int64] | slice, start: int, stop: int) -> NDArray[np.int64] | slice:
    if isinstance(rows, slice):
        return slice(rows.start + start, rows.start + stop)
    return rows[start:stop]


def _check_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"A batch must have at least one sample. Received: batch size {batch_size}.")
