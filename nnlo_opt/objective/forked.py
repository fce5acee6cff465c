"""Ranks that call the objective, each in a process that the search has forked.

A fork shares all that the objective refers to, so that lambdas, closures, open files and locks need no pickling. The
messages of every other transport travel over pipes.
"""

import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import NoReturn

import numpy as np

from nnlo_opt.comm.codec import decode, encode
from nnlo_opt.comm.messages import Message, RunFold, TeamReformed
from nnlo_opt.comm.run_messages import OpenRun, Shutdown
from nnlo_opt.comm.transport import RanksLost, Received, Transport, receive
from nnlo_opt.errors import EXIT_OK, ConfigurationError
from nnlo_opt.objective.rank import ObjectiveRank

#: frameworks whose threads a fork would not have, although their locks would wait for them
FRAMEWORKS = ("tensorflow", "jax", "torch")
#: seconds between two looks for processes that have died without closing their pipe
_LOOK_S = 0.5
#: seconds that idle processes have to leave
_LEAVE_S = 0.3


def refuse_threads() -> None:
    """Raise ConfigurationError if this process cannot be forked."""
    if not hasattr(os, "fork"):
        raise ConfigurationError(
            f"`n_parallel` needs a system that forks processes. Received: {sys.platform}. Start the script with "
            "`mpirun` instead."
        )
    if imported := next((name for name in FRAMEWORKS if name in sys.modules), None):
        raise ConfigurationError(
            f"`n_parallel` forks this process, and a fork has no threads. Received: a process that has imported "
            f"{imported}, which has threads of its own. Import it within the objective, or start the script with "
            "`mpirun` and without `n_parallel`."
        )


class ForkEnd(Transport):
    """Transport of a forked process to the one that forked it, which has rank 0; it is lost with that process."""

    def __init__(self, connection: Connection, rank: int, size: int) -> None:
        self.rank, self.size, self.n_processes = rank, size, size
        self._connection = connection

    @property
    def rings(self) -> bool:
        return True

    def pause(self, seconds: float) -> None:
        self._connection.poll(seconds)

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        with suppress(OSError):
            self._connection.send_bytes(encode(message, payload).tobytes())

    def poll(self) -> Received | None:
        try:
            return _received(0, self._connection) if self._connection.poll() else None
        except (EOFError, OSError):
            raise RanksLost from None


class ForkedRanks(Transport):
    """Transport of the coordinator to ranks that it forks when they are first given a trial.

    A rank that dies is a team that has reformed without its trial: it is forked anew for its next trial.

    Args:
        n_ranks: number of ranks beside this process, which has rank 0.
        make_rank: makes the rank, in its own process, from its transport and the run.
        seed: of the random numbers of `random` and NumPy, which would be the same in all processes otherwise.
    """

    def __init__(self, n_ranks: int, make_rank: Callable[[Transport, OpenRun], ObjectiveRank], seed: int) -> None:
        self.rank, self.size, self.n_processes = 0, 1 + n_ranks, 1 + n_ranks
        self._make_rank, self._seed = make_rank, seed
        #: the run; None before it is open
        self._run: OpenRun | None = None
        #: processes by rank, and the ranks by connection to them
        self._processes: dict[int, int] = {}
        self._ranks: dict[Connection, int] = {}
        #: rank -> assignment that it was given last
        self._assigned: dict[int, int] = {}
        #: deaths that the coordinator has not heard of
        self._news: deque[Received] = deque()
        #: pipe that only this process can write to: its end is the death of this process
        self._life, self._mine = os.pipe()
        self._look_at_s = 0.0

    @property
    def rings(self) -> bool:
        return True

    def pause(self, seconds: float) -> None:
        wait([*self._ranks], seconds)

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        if isinstance(message, OpenRun):
            self._run = message
        if isinstance(message, RunFold):
            self._assigned[dest] = message.assignment
            if dest not in self._processes:
                self._fork(dest)
        for connection, rank in self._ranks.items():
            if rank == dest:
                with suppress(OSError):  # its death is noticed by `poll`
                    connection.send_bytes(encode(message, payload).tobytes())

    def poll(self) -> Received | None:
        for connection in wait([*self._ranks], 0.0):
            assert isinstance(connection, Connection)
            rank = self._ranks[connection]
            try:
                return _received(rank, connection)
            except (EOFError, OSError):
                self._bury(connection, rank)
        if time.monotonic() > self._look_at_s:
            self._look_at_s = time.monotonic() + _LOOK_S
            for connection, rank in [*self._ranks.items()]:
                if self._has_ended(rank) and not connection.poll():
                    self._bury(connection, rank)
        return self._news.popleft() if self._news else None

    def close(self) -> None:
        """End all processes: those that work are killed."""
        until_s = time.monotonic() + _LEAVE_S
        os.close(self._mine)
        for connection, rank in [*self._ranks.items()]:
            while not self._has_ended(rank) and time.monotonic() < until_s:
                time.sleep(1e-3)
            self._bury(connection, rank)
        os.close(self._life)

    def _has_ended(self, rank: int) -> bool:
        """Return True if the process of a rank has ended, or is not a child of this process."""
        try:
            return os.waitid(os.P_PID, self._processes[rank], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _bury(self, connection: Connection, rank: int) -> None:
        """Let go of the process of a rank, which has died or is killed."""
        connection.close()
        del self._ranks[connection]
        process, how = self._processes.pop(rank), ""
        with suppress(ProcessLookupError, ChildProcessError, ValueError):
            os.kill(process, signal.SIGKILL)  # one that is ending already ends as it would have
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            how = f"its process ended ({f'exit code {code}' if code >= 0 else signal.Signals(-code).name})"
        taken = self._assigned.get(rank, -1)
        reformed = TeamReformed(alive=[rank], world_ranks=[rank], n_masters=1, taken=taken, goes_on=-1, how=how)
        self._news.append(Received(rank, reformed, None))

    def _fork(self, rank: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            ours, theirs = Pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12, for any second thread
                process = os.fork()
        except OSError as error:
            raise ConfigurationError(
                "`n_parallel` must leave the system room for as many processes, with an open file each. Received: "
                f"`n_parallel={self.size - 1}`, and after {len(self._ranks)} of them: {error.strerror}. Lower it, or "
                "raise the limit (`ulimit -u`, `ulimit -n`)."
            ) from None
        if not process:
            for connection in (*self._ranks, ours):
                connection.close()
            os.close(self._mine)
            self._serve(ForkEnd(theirs, rank, self.size))
        theirs.close()
        self._processes[rank], self._ranks[ours] = process, rank

    def _serve(self, end: ForkEnd) -> NoReturn:
        """Serve in a forked process until the coordinator has no work, or has died."""
        try:
            # Ctrl-C goes to all processes of a terminal: the coordinator ends this one.
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.set_wakeup_fd(-1)
            threading.Thread(target=_end_with, args=(self._life,), daemon=True).start()
            random.seed(f"{self._seed} {end.rank}")
            np.random.seed([self._seed, end.rank])
            assert self._run is not None
            serve(self._make_rank(end, self._run), end)
        except RanksLost:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(EXIT_OK)


def serve(rank: ObjectiveRank, end: Transport) -> None:
    """Have a rank carry out the coordinator's orders until Shutdown; RanksLost if the coordinator has died."""
    while (found := receive([end])) is not None:
        match found[1].message:
            case Shutdown():
                return
            case OpenRun():
                pass
            case order:
                rank.handle_order(order)


def _received(source: int, connection: Connection) -> Received:
    return Received(source, *decode(np.frombuffer(connection.recv_bytes(), np.uint8)))


def _end_with(life: int) -> None:
    """End this process when the one that forked it has ended."""
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGKILL)
