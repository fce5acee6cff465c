"""Prefetching of samples by a thread: reads them from files, or gathers a shuffled order from a shard in memory.

`ReadAhead` owns the thread. `StreamedWindows` are read from a shard that does not fit in memory; `GatheredWindows` are
copied together, if a rank has a second core. While the model trains on one window, up to `n_ahead` further windows are
read, so 1 + `n_ahead` windows are in memory.
"""

import atexit
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from nnlo_opt.core.base.errors import NnloError, TrialError
from nnlo_opt.core.base.user_code import message_of
from nnlo_opt.core.data.batches import BatchStream, Samples, Window, Windows
from nnlo_opt.core.data.order import Order
from nnlo_opt.core.data.source import Indices
from nnlo_opt.engine.runtime.process import only_here

Result = TypeVar("Result")
#: number to read, and the future for its result; None to end the thread
_Task: TypeAlias = tuple[int, Future[Any]] | None
#: seconds to wait for a running read when closing; a hung file system must not block this process
_CLOSE_TIMEOUT_S = 30.0
#: bytes of samples gathered at once
PIECE_BYTES = 4 << 20


class ReadAhead(Generic[Result]):
    """Calls `read(number)` in a thread for the numbers after the last one requested.

    The thread starts with `get`, and ends with `close` or a failure.

    Args:
        read: returns the result for a number >= 0.
        n_ahead: number of results to read ahead; 0: no thread.
        n_results: total number of results.
    """

    def __init__(self, read: Callable[[int], Result], n_ahead: int, n_results: int = sys.maxsize) -> None:
        self._read = read
        self._n_ahead = n_ahead
        self._n_results = n_results
        #: results read or scheduled, but not requested yet, in the order of their numbers
        self._futures: dict[int, Future[Result]] = {}
        #: thread, its task queue, and what closes it when this process ends; None before the first `get`
        self._worker: tuple[threading.Thread, SimpleQueue[_Task], Callable[[], None]] | None = None

    def get(self, number: int) -> Result:
        """Return `read(number)`, waiting if needed; exceptions that are not ours become `TrialError`."""
        if number != next(iter(self._futures), None):
            self.close()  # out of order: drop what was read ahead
            self._submit(number)
        future = self._futures.pop(number)
        error = future.exception()
        if error is not None:
            self.close()  # the next request tries again
            if isinstance(error, NnloError | MemoryError | KeyboardInterrupt):
                raise error
            raise TrialError(f"Samples could not be read: {type(error).__name__}: {message_of(error)}") from error
        for following in range(number + 1 + len(self._futures), min(number + 1 + self._n_ahead, self._n_results)):
            self._submit(following)
        return future.result()

    def close(self) -> None:
        """End the thread and drop its results; `get` restarts it."""
        worker, self._worker = self._worker, None
        futures, self._futures = self._futures, {}
        for future in futures.values():
            future.cancel()
        if worker is not None:
            thread, tasks, at_exit = worker
            atexit.unregister(at_exit)
            tasks.put(None)
            thread.join(_CLOSE_TIMEOUT_S)

    def _submit(self, number: int) -> None:
        future: Future[Result] = Future()
        self._futures[number] = future
        if self._n_ahead == 0:
            self._fulfil(number, future)
            return
        if self._worker is None:
            tasks: SimpleQueue[_Task] = SimpleQueue()
            # A daemon thread, so that a hung file system cannot keep this process alive. It has to end before Python
            # does: in a user's data set, C++ that then asks for the GIL (torch, pybind11) would abort the process. A
            # forked child has no such thread, and must not wait for its locks.
            at_exit = only_here(self.close)
            atexit.register(at_exit)
            thread = threading.Thread(target=self._work, args=(tasks,), name="read-ahead", daemon=True)
            thread.start()
            self._worker = thread, tasks, at_exit
        self._worker[1].put((number, future))

    def _work(self, tasks: SimpleQueue[_Task]) -> None:
        while (task := tasks.get()) is not None:
            number, future = task
            if future.set_running_or_notify_cancel() and not self._fulfil(number, future):
                return
            del task, future  # free the window while the thread waits

    def _fulfil(self, number: int, future: Future[Result]) -> bool:
        """Read `number` into `future`; return False after a failure."""
        try:
            future.set_result(self._read(number))
        except BaseException as error:
            future.set_exception(error)
            return False
        return True


class StreamedWindows:
    """Windows of a shard that are read on demand.

    Args:
        read: returns samples of the shard by index, ascending; called in the thread.
        order: order of the samples in every pass.
        n_ahead: number of windows to read ahead.
    """

    def __init__(self, read: Callable[[Indices], Samples], order: Order, n_ahead: int) -> None:
        self.n_samples = order.n_samples
        self._read = read
        self._order = order
        self._ahead: ReadAhead[Window] = ReadAhead(self._window, n_ahead)

    def starts(self, pass_number: int) -> Indices:
        return self._order.starts(pass_number)

    def get(self, pass_number: int, number: int) -> Window:
        return self._ahead.get(pass_number * self._order.n_windows + number)

    def close(self) -> None:
        self._ahead.close()

    def _window(self, number: int) -> Window:
        samples, order = self._order.window(*divmod(number, self._order.n_windows))
        rows = slice(0, len(samples)) if order is None else order
        return Window(self._read(samples).tree(), rows)


class GatheredWindows:
    """Samples of `windows` in their order, gathered by a thread into pieces of `n_at_once` samples.

    Gathering a shuffled batch from a shard takes a twelfth of the time to train a small model on it. The thread gathers
    several batches at once, because handing over single batches costs more than gathering them: each time a core must
    wake up and the GIL changes hands (measured for a perceptron on 28 x 28 pixels: single batches make training 0.87
    times as fast, pieces of 2.5 to 5 MB 1.05 times, and larger pieces less, because they always need fresh memory).
    Do not use `windows` afterwards: it belongs to the thread.
    """

    def __init__(self, windows: Windows, n_at_once: int) -> None:
        self.n_samples = windows.n_samples
        self._n_at_once = n_at_once
        self._n_pieces = -(-self.n_samples // n_at_once)
        self._stream = BatchStream(windows, n_at_once)
        self._ahead: ReadAhead[Window] = ReadAhead(self._gather, n_ahead=1)

    def starts(self, pass_number: int) -> Indices:
        return np.append(np.arange(0, self.n_samples, self._n_at_once), self.n_samples)

    def get(self, pass_number: int, number: int) -> Window:
        return self._ahead.get(pass_number * self._n_pieces + number)

    def close(self) -> None:
        self._ahead.close()
        self._stream.close()

    def _gather(self, number: int) -> Window:
        pass_number, piece_number = divmod(number, self._n_pieces)
        place = pass_number, piece_number * self._n_at_once
        if self._stream.position != place:
            self._stream.seek(*place)
        tree, n_samples, _ = self._stream.next_samples()
        return Window(tree, slice(0, n_samples))


def piece(batch: int, sample_bytes: int) -> int:
    """Return how many samples to gather at once: full batches of `batch` samples, at least one."""
    return batch * max(1, round(PIECE_BYTES / (batch * max(1, sample_bytes))))


def read_in_order(
    read: Callable[[Indices], Samples], n_samples: int, n_at_once: int, n_ahead: int
) -> Iterator[Samples]:
    """Yield all samples once in order, `n_at_once` at a time, with read-ahead."""
    n_parts = -(-n_samples // n_at_once)

    def part(number: int) -> Samples:
        return read(np.arange(number * n_at_once, min((number + 1) * n_at_once, n_samples)))

    ahead = ReadAhead(part, n_ahead, n_parts)
    try:
        for number in range(n_parts):
            yield ahead.get(number)
    finally:
        ahead.close()
