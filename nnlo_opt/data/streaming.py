"""Samples prepared ahead of need by one thread: read from files, or gathered from all over a shard.

`ReadAhead` owns the thread. `StreamedWindows` are read from a shard that does not fit in memory; `GatheredWindows` are
copied together, if a rank has a second core. While a window is trained, up to `n_ahead`
further windows are read, so 1 + `n_ahead` windows are in memory.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np

from nnlo_opt.data.batches import BatchStream, Samples, Window, Windows
from nnlo_opt.data.order import Order
from nnlo_opt.data.source import Indices
from nnlo_opt.errors import NnloError, TrialError

#: pass and number of a window
Key = tuple[int, int]
Result = TypeVar("Result")
#: seconds to wait for a running read when the thread must end; a file system that hangs must not block this process
_CLOSE_TIMEOUT_S = 30.0
#: bytes of samples gathered at once
PIECE_BYTES = 4 << 20


class ReadAhead(Generic[Result]):
    """Calls `read(key)` in a thread for the keys that follow the last key requested.

    The thread starts with the first `get`, and ends with `close`.

    Args:
        read: reads the result of a key.
        following: returns the key that will be requested after a key, None for none.
        n_ahead: number of results to be read ahead; 0 for no thread.
    """

    def __init__(self, read: Callable[[Key], Result], following: Callable[[Key], Key | None], n_ahead: int) -> None:
        self._read = read
        self._following = following
        self._n_ahead = n_ahead
        self._thread: threading.Thread | None = None
        #: guards the fields below
        self._changed = threading.Condition()
        #: keys to be read, in this order; the first may be in progress
        self._wanted: list[Key] = []
        #: results of keys of `_wanted` that were read and not yet requested
        self._results: dict[Key, Result | BaseException] = {}
        #: incremented by every `close`; a thread with another number ends
        self._number = 0

    def get(self, key: Key) -> Result:
        """Return `read(key)`, after waiting if needed; foreign exceptions are raised as `TrialError`."""
        if self._n_ahead == 0:
            return _given(_attempt(self._read, key))
        with self._changed:
            if key not in self._wanted:
                self._wanted, self._results = [key], {}  # another key than expected
                self._changed.notify_all()
            self._start()
            self._changed.wait_for(lambda: key in self._results)
            result = self._results[key]
            if isinstance(result, BaseException):
                self._wanted, self._results = [], {}  # the next request tries again
            else:
                self._wanted = self._from(key)[1:]
                self._results = {known: self._results[known] for known in self._wanted if known in self._results}
            self._changed.notify_all()
        return _given(result)

    def close(self) -> None:
        """End the thread and drop its results; `get` starts it again."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._number += 1
            self._wanted, self._results = [], {}
            self._changed.notify_all()
        if thread is not None:
            thread.join(_CLOSE_TIMEOUT_S)

    def _from(self, key: Key) -> list[Key]:
        keys = [key]
        while len(keys) <= self._n_ahead and (after := self._following(keys[-1])) is not None:
            keys.append(after)
        return keys

    def _start(self) -> None:
        if self._thread is None:
            # The thread is a daemon, because it holds nothing that must be closed.
            self._thread = threading.Thread(target=self._work, args=(self._number,), name="read-ahead", daemon=True)
            self._thread.start()

    def _work(self, number: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._number != number or self._next() is not None)
                key = self._next()
                if self._number != number or key is None:
                    return
            result = _attempt(self._read, key)
            with self._changed:
                if self._number != number:
                    return
                if key in self._wanted:
                    self._results[key] = result
                    self._changed.notify_all()
            del result  # so that no further window is in memory while the thread waits

    def _next(self) -> Key | None:
        """Return the key to be read next; None after a failure."""
        if any(isinstance(result, BaseException) for result in self._results.values()):
            return None
        return next((key for key in self._wanted if key not in self._results), None)


class StreamedWindows:
    """Windows of a shard that are read when they are needed.

    Args:
        read: returns samples of the shard by their numbers, ascending; called in the thread.
        order: order of the samples in every pass.
        n_ahead: number of windows to be read ahead.
    """

    def __init__(self, read: Callable[[Indices], Samples], order: Order, n_ahead: int) -> None:
        self.n_samples = order.n_samples
        self._read = read
        # Each thread has its own order, because an order stores its last pass.
        self._order = order
        self._order_of_thread = order.twin()
        self._ahead: ReadAhead[Window] = ReadAhead(self._window, self._following, n_ahead)

    def starts(self, pass_number: int) -> Indices:
        return self._order.starts(pass_number)

    def get(self, pass_number: int, number: int) -> Window:
        return self._ahead.get((pass_number, number))

    def close(self) -> None:
        self._ahead.close()

    def _window(self, key: Key) -> Window:
        samples, order = self._order_of_thread.window(*key)
        rows = slice(0, len(samples)) if order is None else order
        return Window(self._read(samples).tree(), rows)

    def _following(self, key: Key) -> Key:
        pass_number, number = key
        return (pass_number, number + 1) if number + 1 < self._order.n_windows else (pass_number + 1, 0)


class GatheredWindows:
    """Samples of `windows` in their order, gathered by a thread into pieces of `n_at_once` samples.

    Gathering a shuffled batch from all over a shard takes a twelfth of the time in which a small model is trained on
    it. One thread gathers several batches at once, because handing over every single batch takes longer than gathering
    it: each time a core must wake up and the interpreter must be shared (measured for a perceptron on 28 x 28 pixels:
    single batches make training 0.87 times as fast, pieces of 2.5 to 5 MB 1.05 times, and larger pieces less, because
    their memory is new every time). Only the thread may use `windows` afterwards.
    """

    def __init__(self, windows: Windows, n_at_once: int) -> None:
        self.n_samples = windows.n_samples
        self._n_at_once = n_at_once
        self._stream = BatchStream(windows, n_at_once)
        self._ahead: ReadAhead[Window] = ReadAhead(self._gather, self._following, n_ahead=1)

    def starts(self, pass_number: int) -> Indices:
        return np.append(np.arange(0, self.n_samples, self._n_at_once), self.n_samples)

    def get(self, pass_number: int, number: int) -> Window:
        return self._ahead.get((pass_number, number))

    def close(self) -> None:
        self._ahead.close()
        self._stream.close()

    def _gather(self, key: Key) -> Window:
        place = key[0], key[1] * self._n_at_once
        if self._stream.position != place:
            self._stream.seek(*place)
        tree, n_samples, _ = self._stream.next_samples()
        return Window(tree, slice(0, n_samples))

    def _following(self, key: Key) -> Key:
        pass_number, number = key
        return (pass_number, number + 1) if (number + 1) * self._n_at_once < self.n_samples else (pass_number + 1, 0)


def piece(batch: int, sample_bytes: int) -> int:
    """Return the samples to be gathered at once for batches of `batch` samples: full batches, at least one."""
    return batch * max(1, round(PIECE_BYTES / (batch * max(1, sample_bytes))))


def read_in_order(
    read: Callable[[Indices], Samples], n_samples: int, n_at_once: int, n_ahead: int
) -> Iterator[Samples]:
    """Yield all samples once in order, `n_at_once` at a time, and read ahead meanwhile."""
    n_parts = -(-n_samples // n_at_once)

    def part(key: Key) -> Samples:
        return read(np.arange(key[1] * n_at_once, min((key[1] + 1) * n_at_once, n_samples)))

    ahead = ReadAhead(part, lambda key: (0, key[1] + 1) if key[1] + 1 < n_parts else None, n_ahead)
    try:
        for number in range(n_parts):
            yield ahead.get((0, number))
    finally:
        ahead.close()


def _attempt(read: Callable[[Key], Result], key: Key) -> Result | BaseException:
    try:
        return read(key)
    except BaseException as error:
        return error


def _given(result: Result | BaseException) -> Result:
    if not isinstance(result, BaseException):
        return result
    if isinstance(result, NnloError | MemoryError | KeyboardInterrupt):
        raise result
    raise TrialError(f"Samples could not be read: {type(result).__name__}: {result}") from result
