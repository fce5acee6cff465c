"""Batches: endless passes over a shard, each in a fresh order that its number alone decides.

`BatchStream` cuts windows (`data.order`) into batches; where the windows come from is another's business: from a shard
in memory, or from files while the batches before are trained on (`data.streaming`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.data.order import Order
from nnlo_opt.data.ragged import concatenate, padded, take
from nnlo_opt.data.source import Indices
from nnlo_opt.trees import Arrays, n_samples


class Batch(NamedTuple):
    """Some samples x and labels y, n <= batch size; the last of a pass may be smaller.

    x and y are arrays (n, ...), or lists of them, nested, for several inputs or outputs. Sequences of variable length
    are filled up with 0 to the longest of the batch.
    """

    x: Arrays
    y: Arrays
    #: all samples of the shard have been seen as often as each other
    end_of_pass: bool
    #: what the loss of each sample is multiplied by, float32 (n,); None: by 1
    weights: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples in memory: trees of arrays (n, ...) and `Ragged`."""

    x: Arrays
    y: Arrays
    #: float32 (n,), or None
    weights: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return n_samples(self.x)

    def tree(self) -> list[Any]:
        """All of it as one tree."""
        return [self.x, self.y] if self.weights is None else [self.x, self.y, self.weights]


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of a pass that follow each other."""

    #: trees of arrays (m, ...) in which they are
    tree: list[Any]
    #: their numbers in the tree, in the order in which they come
    rows: NDArray[np.int64] | slice


class Windows(Protocol):
    """The windows of a shard, of every pass."""

    @property
    def n_samples(self) -> int:
        """Of the shard, at least 1."""

    def starts(self, pass_number: int) -> Indices:
        """For every window the samples that come before it in the pass, and their total, (n_windows + 1,)."""

    def get(self, pass_number: int, number: int) -> Window:
        """Window `number` of a pass; mostly asked for one after another. Raises `TrialError` if it cannot be read."""

    def close(self) -> None:
        """Let go of threads and memory; `get` works afterwards too."""


class WindowsInMemory:
    """Windows of a shard that is held in memory."""

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
        """Nothing: who made the samples may hold them on."""


class Stream(Protocol):
    """Endless passes over a shard; a position is two numbers, and the batches behind it are those of the first time."""

    @property
    def position(self) -> tuple[int, int]:
        """Passes completed, and how far the current one is: where `seek` leads back to."""

    def seek(self, pass_number: int, offset: int) -> None:
        """Go to a `position`."""

    def next(self) -> Batch:
        """The next batch. Raises `TrialError` if it cannot be had."""

    def close(self) -> None:
        """Let go of what is read ahead; the stream can still be used."""


class BatchStream:
    """Endless passes over the samples of a shard, none left out; batches reach over the ends of windows.

    A position is two numbers, and going back to one is exact. Batches may share memory with the shard: they are to be
    read, not written.
    """

    def __init__(self, windows: Windows, batch_size: int) -> None:
        _check_size(batch_size)
        self._windows = windows
        self._n_samples = windows.n_samples
        self._batch_size = batch_size
        #: passes completed
        self._pass = 0
        #: samples of this pass handed out, 0 <= offset < n_samples
        self._offset = 0
        #: samples of this pass before each of its windows, and their total; None: not asked yet
        self._starts: NDArray[np.int64] | None = None
        #: the window fetched last, and the offsets where it begins and ends; None: not fetched yet
        self._current: tuple[Window, int, int] | None = None

    @property
    def position(self) -> tuple[int, int]:
        """Passes completed, and samples of the current one handed out: where `seek` leads back to."""
        return self._pass, self._offset

    def seek(self, pass_number: int, offset: int) -> None:
        """Go to a `position`: the batches that follow are those that followed it the first time."""
        if pass_number < 0 or not 0 <= offset < self._n_samples:
            raise ValueError(
                f"A position must be a pass >= 0 and an offset from 0 to {self._n_samples - 1}. "
                f"Received: {pass_number}, {offset}."
            )
        self._pass, self._offset = pass_number, offset
        self._starts = self._current = None

    def next(self) -> Batch:
        """The next batch, with one copy of its samples if they are shuffled and none if they are not.

        Raises `TrialError` if they cannot be read; the position is then as before.
        """
        samples, _, end_of_pass = self.next_samples()
        x, y, *weights = padded(samples)
        return Batch(x, y, end_of_pass, weights[0] if weights else None)

    def next_samples(self) -> tuple[list[Any], int, bool]:
        """As `next`, but sequences keep their lengths; -> the samples as one tree, how many, whether a pass ends."""
        start, stop = self._offset, min(self._offset + self._batch_size, self._n_samples)
        window, first, end = self._window_at(start)
        samples = take(window.tree, _part(window.rows, start - first, min(stop, end) - first))
        if stop > end:
            parts = [samples]
            while end < stop:
                start = end
                del window  # not two in memory while the next one is read
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
        """End reading ahead; the stream can still be used."""
        self._current = None
        self._windows.close()

    def _window_at(self, offset: int) -> tuple[Window, int, int]:
        """The window with the sample at `offset` of this pass; the offsets where it begins and ends."""
        if self._current is None or not self._current[1] <= offset < self._current[2]:
            self._current = None
            if self._starts is None:
                self._starts = self._windows.starts(self._pass)
            number = int(np.searchsorted(self._starts, offset, side="right")) - 1
            window = self._windows.get(self._pass, number)
            self._current = window, int(self._starts[number]), int(self._starts[number + 1])
        return self._current


def iterate(x: Arrays, y: Arrays, batch_size: int) -> Iterator[tuple[Arrays, Arrays]]:
    """All samples once, in order, none left out: views (x, y) of at most `batch_size` samples."""
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
