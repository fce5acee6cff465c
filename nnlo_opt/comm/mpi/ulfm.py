"""User-level failure mitigation (ULFM): ranks that outlive others, in Open MPI 5 under `mpirun --with-ft ulfm`.

Bland, Bouteiller, Herault, Bosilca, Dongarra, "Post-failure recovery of MPI communication capability" (IJHPCA 2013):
an operation with a dead rank raises; `Ack_failed` lets a receive from anybody go on without it; `Revoke` ends all that
is under way on a communicator at every rank; `Shrink` makes one of the ranks that are left. What was found of Open MPI:
any error of MPI may be what a death looks like; `Get_failed` sees none before another call has progressed; `Finalize`
may hang after a failure, so a process that has seen one leaves by `os._exit`.
"""

import logging
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar, NoReturn

import numpy as np
from mpi4py import MPI

from nnlo_opt.comm.messages import Message
from nnlo_opt.comm.transport import RanksLost, Received, Transport
from nnlo_opt.errors import ProtocolError
from nnlo_opt.runtime.environment import ranks_outlive_others

logger = logging.getLogger(__name__)

#: whether ranks outlive others here
IS_ON = ranks_outlive_others()
#: ends this process with an exit code, and leaves the others to end by themselves
leave_unnoticed = os._exit


def be_missed() -> None:
    """Where ranks outlive others, have `os._exit` kill this process: the others hear of signals, and of no exit.

    They would wait for a rank whose watchdog, or whose user's code, has ended it so. A process that it has forked
    leaves as ever.
    """
    pid = os.getpid()

    def end(status: int) -> NoReturn:
        if os.getpid() == pid:
            os.kill(pid, signal.SIGKILL)
        leave_unnoticed(status)

    if IS_ON:
        os._exit = end


class Losses:
    """What this process knows of deaths."""

    #: whether any rank has died: then nobody finalizes MPI
    any: ClassVar[bool] = False


def acknowledge(comm: MPI.Comm) -> set[int]:
    """Go on without the ranks of `comm` that have died; -> all that have, as far as is known here."""
    Losses.any = True
    with suppress(MPI.Exception):
        comm.Ack_failed()
    with suppress(MPI.Exception):
        failed = comm.Get_failed()
        return set(failed.Translate_ranks(None, comm.Get_group()))
    return set()


def is_revoked(comm: MPI.Comm) -> bool:
    """Whether a rank has given `comm` up for all."""
    return IS_ON and bool(comm.Is_revoked())


@contextmanager
def losing_ranks() -> Iterator[None]:
    """Errors of MPI inside are RanksLost, where there is such a thing."""
    try:
        yield
    except MPI.Exception as error:
        if not IS_ON:
            raise
        Losses.any = True
        raise RanksLost from error


def shrink(comm: MPI.Comm, made: Iterable[MPI.Comm] = ()) -> tuple[MPI.Comm, list[int]]:
    """A communicator of the ranks of `comm` that live, and which ranks of `comm` they were, ascending.

    `made`: communicators that were made from it. They and `comm` are revoked, so that every rank comes here, whatever
    call it waits in. Collective: every rank of `comm` that lives.
    """
    Losses.any = True
    left: MPI.Comm = comm
    while True:
        for other in (*made, left):
            if other != MPI.COMM_NULL:
                with suppress(MPI.Exception):
                    other.Revoke()
        try:
            left = left.Shrink()
            left.Agree(1)
            break
        except MPI.Exception:
            logger.info("another rank has died meanwhile")
    return left, list(MPI.Group.Translate_ranks(left.Get_group(), None, comm.Get_group()))


class Watch(Transport):
    """Carries nothing: a rank that does not train hears by it that ranks of its team have died."""

    def __init__(self, comm: MPI.Comm) -> None:
        """`comm` is that of the team; nothing is sent on it."""
        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = self.n_processes = comm.Get_size()

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        raise ProtocolError("A rank that does not train has nothing to send to its team.")

    def poll(self) -> Received | None:
        with losing_ranks():
            self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        return None

    def flush(self, timeout_s: float) -> None:
        """Nothing is sent."""
