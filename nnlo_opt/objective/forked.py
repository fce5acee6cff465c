"""Ranks that call the objective, each in a process that the search has forked.

A fork shares all that the objective refers to, so that lambdas, closures, open files and locks need no pickling. The
messages of every other transport travel over pipes.
"""

import os
import random
import signal
import sys
import threading
import traceback
import warnings
from abc import abstractmethod
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


def refuse_threads() -> None:
    """Raise ConfigurationError if this process cannot be forked."""
    if imported := next((name for name in FRAMEWORKS if name in sys.modules), None):
        raise ConfigurationError(
            f"`n_parallel` forks this process, and a fork has no threads. Received: a process that has imported "
            f"{imported}, which has threads of its own. Import it within the objective, or start the script with "
            "`mpirun` and without `n_parallel`."
        )


class _Pipes(Transport):
    """Transport over pipes."""

    def __init__(self, rank: int, size: int, ranks: dict[Connection, int]) -> None:
        self.rank, self.size, self.n_processes = rank, size, size
        #: ranks by connection to them
        self._ranks = ranks

    @property
    def rings(self) -> bool:
        return True

    def pause(self, seconds: float) -> None:
        wait([*self._ranks], seconds)

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        for connection, rank in self._ranks.items():
            if rank == dest:
                with suppress(OSError):  # a death is noticed by `poll`
                    connection.send_bytes(encode(message, payload).tobytes())

    def poll(self) -> Received | None:
        for connection in wait([*self._ranks], 0.0):
            assert isinstance(connection, Connection)
            try:
                message = decode(np.frombuffer(connection.recv_bytes(), np.uint8))
            except (EOFError, OSError):
                self._lose(connection)
            else:
                return Received(self._ranks[connection], *message)
        return None

    @abstractmethod
    def _lose(self, connection: Connection) -> None:
        """Take in that the process at the other end has died."""


class ForkEnd(_Pipes):
    """Transport of a forked process to the one that forked it, which has rank 0; it is lost with that process."""

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        _flush()  # this process may be killed once its trial has ended
        super().send(dest, message, payload)

    def _lose(self, connection: Connection) -> None:
        raise RanksLost


class ForkedRanks(_Pipes):
    """Transport of the coordinator to ranks that it forks when they are first given a trial.

    A rank that dies is a team that has reformed without its trial: it is forked anew for its next trial.

    Args:
        n_ranks: number of ranks beside this process, which has rank 0.
        make_rank: makes the rank, in its own process, from its transport and the run.
        seed: of the random numbers of `random` and NumPy, which would be the same in all processes otherwise.
    """

    def __init__(self, n_ranks: int, make_rank: Callable[[Transport, OpenRun], ObjectiveRank], seed: int) -> None:
        super().__init__(0, 1 + n_ranks, {})
        self._make_rank, self._seed = make_rank, seed
        #: the run; None before it is open
        self._run: OpenRun | None = None
        #: processes by rank
        self._processes: dict[int, int] = {}
        #: rank -> assignment that it was given last
        self._assigned: dict[int, int] = {}
        #: deaths that the coordinator has not heard of
        self._news: deque[Received] = deque()
        #: pipe that only this process can write to: its end is the death of this process
        self._life, self._mine = os.pipe()

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
            if self._has_ended(rank) and not connection.poll():  # a child of it keeps the pipe open
                self._lose(connection)
        return self._news.popleft() if self._news else None

    def close(self) -> None:
        """End all processes."""
        for connection in [*self._ranks]:
            self._lose(connection)
        os.close(self._mine)
        os.close(self._life)

    def _has_ended(self, rank: int) -> bool:
        """Return True if the process of a rank has ended, or is not a child of this process."""
        try:
            return os.waitid(os.P_PID, self._processes[rank], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _lose(self, connection: Connection) -> None:
        """Let go of the process of a rank, which has died or is killed."""
        connection.close()
        rank = self._ranks.pop(connection)
        process, how = self._processes.pop(rank), ""
        with suppress(ProcessLookupError, ChildProcessError, ValueError):
            os.kill(process, signal.SIGKILL)  # one that is ending already ends as it would have
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            how = f"its process ended ({f'exit code {code}' if code >= 0 else signal.Signals(-code).name})"
        taken = self._assigned.get(rank, -1)
        reformed = TeamReformed(alive=[rank], world_ranks=[rank], n_masters=1, taken=taken, goes_on=-1, how=how)
        self._news.append(Received(rank, reformed, None))

    def _fork(self, rank: int) -> None:
        _flush()
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
            self._serve(ForkEnd(rank, self.size, {theirs: 0}))
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
            served = self._make_rank(end, self._run)
            while (found := receive([end])) and not isinstance(order := found[1].message, Shutdown):
                served.handle_order(order)
        except RanksLost:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(EXIT_OK)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _end_with(life: int) -> None:
    """End this process when the one that forked it has ended."""
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGKILL)
