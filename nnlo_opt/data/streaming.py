"""Samples of a shard that does not fit in memory: read window by window, ahead of need, in one thread.

`ReadAhead` owns the thread; `StreamedWindows` says what it reads. While a window is trained on, the next ones are read,
at most `n_ahead` of them; so a window is in memory 1 + `n_ahead` times.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np

from nnlo_opt.data.batches import Samples, Window
from nnlo_opt.data.order import Order
from nnlo_opt.data.source import Indices
from nnlo_opt.errors import NnloError, TrialError

#: (pass, window)
Key = tuple[int, int]
Result = TypeVar("Result")
#: how long to wait for a read under way when the thread is to end; a file system that hangs must not hang us
_CLOSE_TIMEOUT_S = 30.0


class ReadAhead(Generic[Result]):
    """Calls `read(key)` in a thread for the keys that follow the one asked for last.

    The thread begins with the first `get`, and ends with `close`.
    """

    def __init__(self, read: Callable[[Key], Result], following: Callable[[Key], Key | None], n_ahead: int) -> None:
        """`following(key)`: what will be asked for after it, None: nothing. `n_ahead` 0: no thread."""
        self._read = read
        self._following = following
        self._n_ahead = n_ahead
        self._thread: threading.Thread | None = None
        #: guards what stands below
        self._changed = threading.Condition()
        #: what the thread is to have read, in this order; the first may be under way
        self._wanted: list[Key] = []
        #: read, and not yet asked for; keys of `_wanted`
        self._results: dict[Key, Result | BaseException] = {}
        #: raised by every `close`: a thread of another number is to end
        self._number = 0

    def get(self, key: Key) -> Result:
        """`read(key)`, waited for where it is not done; raises what it raised, as a `TrialError` unless it is ours."""
        if self._n_ahead == 0:
            return _given(_attempt(self._read, key))
        with self._changed:
            if key not in self._wanted:
                self._wanted, self._results = [key], {}  # another place than was foreseen
                self._changed.notify_all()
            self._start()
            self._changed.wait_for(lambda: key in self._results)
            result = self._results[key]
            if isinstance(result, BaseException):
                self._wanted, self._results = [], {}  # asked again, it is tried again
            else:
                self._wanted = self._from(key)[1:]
                self._results = {known: self._results[known] for known in self._wanted if known in self._results}
            self._changed.notify_all()
        return _given(result)

    def close(self) -> None:
        """End the thread and forget what it has read. `get` begins anew."""
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
            # A daemon: it holds nothing that has to be put in order.
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
            del result  # not one window more in memory while it waits

    def _next(self) -> Key | None:
        """What is to be read next; nothing behind a failure."""
        if any(isinstance(result, BaseException) for result in self._results.values()):
            return None
        return next((key for key in self._wanted if key not in self._results), None)


class StreamedWindows:
    """Windows of a shard that are read when their time comes."""

    def __init__(self, read: Callable[[Indices], Samples], order: Order, n_ahead: int) -> None:
        """`read(numbers)`: samples of the shard by number, ascending; called from the thread."""
        self.n_samples = order.n_samples
        self._read = read
        # Two, as one remembers the pass it was asked about last and each has its thread.
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


def read_in_order(
    read: Callable[[Indices], Samples], n_samples: int, n_at_once: int, n_ahead: int
) -> Iterator[Samples]:
    """All samples once, in order, `n_at_once` at a time, each while those before are worked on."""
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
