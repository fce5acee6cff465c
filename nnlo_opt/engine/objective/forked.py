"""Ranks in forked processes, which call the objective in parallel without MPI.

A fork inherits everything that the objective refers to, so lambdas, closures, open files and locks need no pickling.
Pipes carry the same messages as other transports.

A fork also copies locks that other threads hold at that moment, and nobody frees the copies. Python and the C library
renew those for threads, logging and memory, this module those for streams and NumPy's random numbers. If any other lock
blocks a process before its first message, its attempt is lost.
"""

import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import NoReturn

import numpy as np

from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, BrokenProcessError, ConfigurationError
from nnlo_opt.core.comm.codec import decode, encode
from nnlo_opt.core.comm.messages import Message, RunFold, TeamReformed
from nnlo_opt.core.comm.run_messages import OpenRun, Shutdown
from nnlo_opt.core.comm.transport import RanksLost, Received, Transport, receive
from nnlo_opt.engine.objective.rank import ObjectiveRank
from nnlo_opt.engine.runtime.streams import flush_streams, renew_streams
from nnlo_opt.engine.runtime.watchdog import Watch

#: frameworks whose threads a fork lacks, so that it would wait for their locks
FRAMEWORKS = ("tensorflow", "jax", "torch")
#: seconds for a process to start; for it to end after closing its pipe; between its checks for its parent
BEGIN_S, END_S, LOOK_S = 60.0, 1.0, 0.5
#: exit code of a process whose file descriptors were closed by user code, and its message
_BROKEN = 115
_CLOSED = "its process had closed file descriptors that it did not open"


def refuse_threads() -> None:
    """Raise ConfigurationError if this process cannot be forked."""
    if imported := next((name for name in FRAMEWORKS if name in sys.modules), None):
        raise ConfigurationError(
            "`n_parallel` forks this process, and threads do not survive a fork. Received: a process that has "
            f"imported {imported}, which starts threads. Import it within the objective, or start the script with "
            "`mpirun` and without `n_parallel`."
        )


class _Pipes(Transport):
    """Transport over pipes."""

    def __init__(self, rank: int, size: int, ranks: dict[Connection, int]) -> None:
        self.rank, self.size, self.n_processes = rank, size, size
        #: connection -> rank
        self._ranks = ranks

    @property
    def rings(self) -> bool:
        return True

    def pause(self, seconds: float) -> None:
        wait([*self._ranks], seconds)

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        for connection, rank in self._ranks.items():
            if rank == dest:
                with suppress(OSError):  # `poll` notices a death
                    connection.send_bytes(encode(message, payload).tobytes())

    def poll(self) -> Received | None:
        for connection in wait([*self._ranks], 0.0):
            assert isinstance(connection, Connection)
            try:
                data = connection.recv_bytes()
            except (EOFError, OSError):
                self._lose(connection)
                continue
            self._hear(self._ranks[connection])
            if data:
                return Received(self._ranks[connection], *decode(np.frombuffer(data, np.uint8)))
        return None

    def _hear(self, rank: int) -> None:
        """Note that a process has written a message, or the empty one that shows that it has started."""

    @abstractmethod
    def _lose(self, connection: Connection) -> None:
        """Handle the death of the process at the other end."""


class ForkEnd(_Pipes):
    """Transport of a forked process to its parent, which has rank 0; it ends with the parent."""

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        flush_streams()  # this process may be killed once its trial has ended
        super().send(dest, message, payload)

    def poll(self) -> Received | None:
        received = super().poll()
        if received is not None and isinstance(received.message, Shutdown):
            flush_streams()
            os._exit(EXIT_OK)  # even during a trial: nobody waits for it
        return received

    def say_that_it_has_begun(self) -> None:
        """Send an empty message as a sign that this process has started."""
        for connection in self._ranks:
            with suppress(OSError):
                connection.send_bytes(b"")

    def _lose(self, connection: Connection) -> None:
        raise RanksLost


class ForkedRanks(_Pipes):
    """Transport of the coordinator to ranks that it forks when they get their first trial.

    The death of a rank counts as a team that has reformed without its trial: it is forked again for its next trial. So
    is one that has not started after `BEGIN_S`, counting only time in which the coordinator was running.

    Args:
        n_ranks: number of ranks in addition to this process, which has rank 0.
        make_rank: creates the rank in its own process, from its transport and the run.
        seed: seed for `random` and NumPy, whose random numbers would otherwise be equal in all processes.
    """

    def __init__(self, n_ranks: int, make_rank: Callable[[Transport, OpenRun], ObjectiveRank], seed: int) -> None:
        super().__init__(0, 1 + n_ranks, {})
        self._make_rank, self._seed = make_rank, seed
        #: the run; None before it is open
        self._run: OpenRun | None = None
        #: rank -> process id
        self._processes: dict[int, int] = {}
        #: rank -> its last assignment
        self._assigned: dict[int, int] = {}
        #: rank -> watch over its process until it has started
        self._starting: dict[int, Watch] = {}
        #: deaths that the coordinator has not received yet
        self._news: deque[Received] = deque()

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        if isinstance(message, OpenRun):
            self._run = message
        if isinstance(message, RunFold):
            self._assigned[dest] = message.assignment
            if dest not in self._processes:
                self._fork(dest)
        super().send(dest, message, payload)

    def poll(self) -> Received | None:
        if received := super().poll():
            return received
        for connection, rank in [*self._ranks.items()]:
            if connection.poll():
                continue
            watch = self._starting.get(rank)
            if self._has_ended(rank):  # although a child of it keeps the pipe open
                self._lose(connection)
            elif watch is not None and watch.look(0, 1.0, time.monotonic()):
                self._lose(connection, f"its process had not begun after {BEGIN_S:g} s")
        return self._news.popleft() if self._news else None

    def close(self) -> None:
        """End all processes."""
        for connection in [*self._ranks]:
            self._lose(connection, "the search is over")

    def _hear(self, rank: int) -> None:
        self._starting.pop(rank, None)

    def _has_ended(self, rank: int) -> bool:
        """Return True if the process of a rank has ended, or is not a child of this process."""
        try:
            return os.waitid(os.P_PID, self._processes[rank], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _lose(self, connection: Connection, why: str = "") -> None:
        """Give up the process of a rank; `why`: reason to kill it, "" if its pipe is closed or it has died."""
        rank = self._ranks.pop(connection)
        self._starting.pop(rank, None)
        if not why:
            until_s = time.monotonic() + END_S  # a process closes its files before it ends
            while not (has_ended := self._has_ended(rank)) and time.monotonic() < until_s:
                time.sleep(1e-3)
            why = "" if has_ended else _CLOSED
        process, how = self._processes.pop(rank), why
        with suppress(ProcessLookupError, ChildProcessError, ValueError):
            os.kill(process, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            ended = f"its process ended ({f'exit code {code}' if code >= 0 else signal.Signals(-code).name})"
            how = why or (_CLOSED if code == _BROKEN else ended)
        connection.close()
        taken = self._assigned.get(rank, -1)
        reformed = TeamReformed(alive=[rank], world_ranks=[rank], n_masters=1, taken=taken, goes_on=-1, how=how)
        self._news.append(Received(rank, reformed, None))

    def _fork(self, rank: int) -> None:
        flush_streams()
        parent = os.getpid()
        try:
            ours, theirs = Pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about any second thread
                process = os.fork()
        except OSError as error:
            raise ConfigurationError(
                "`n_parallel` must not exceed the limits on processes and open files. Received: "
                f"`n_parallel={self.size - 1}`, and after {len(self._ranks)} of them: {error.strerror}. Lower it, or "
                "raise the limit (`ulimit -u`, `ulimit -n`)."
            ) from None
        if not process:
            for connection in (*self._ranks, ours):
                connection.close()
            self._serve(ForkEnd(rank, self.size, {theirs: 0}), parent)
        theirs.close()
        self._processes[rank], self._ranks[ours] = process, rank
        self._starting[rank] = Watch(BEGIN_S, 1.0)

    def _serve(self, end: ForkEnd, parent: int) -> NoReturn:
        """Serve in a forked process until the coordinator has no work, or has died."""
        code = EXIT_OK
        try:
            renew_streams()
            # A terminal sends Ctrl-C to all processes: ignore it, the coordinator will end this one.
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.set_wakeup_fd(-1)
            threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
            random.seed(f"{self._seed} {end.rank}")
            np.random.set_bit_generator(np.random.MT19937())  # type: ignore[attr-defined]  # with a new lock
            np.random.seed([self._seed, end.rank])
            assert self._run is not None
            served = self._make_rank(end, self._run)
            end.say_that_it_has_begun()
            while found := receive([end]):
                served.handle_order(found[1].message)
        except RanksLost:
            pass
        except BrokenProcessError:
            code = _BROKEN
        except BaseException:
            code = EXIT_FAILURE
            traceback.print_exc()
        flush_streams()
        os._exit(code)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)
