"""User-level failure mitigation (ULFM): ranks survive the death of other ranks.

Open MPI 5 has it under `mpirun --with-ft ulfm`. Bland, Bouteiller, Herault, Bosilca, Dongarra, "Post-failure recovery
of MPI communication capability" (IJHPCA 2013): an operation with a dead rank raises; `Ack_failed` lets a receive from
any rank continue without the dead one; `Revoke` ends all operations on a communicator at every rank; `Shrink` makes a
communicator of the remaining ranks. Observed in Open MPI: a death may show as any error of MPI; `Get_failed` sees no
death before another call has made progress; `Finalize` may hang after a failure, so a process that has seen one ends by
`os._exit`; a rank that dies while others make a communicator with it (`Dup`, `Split`, under 1 ms) often crashes these.
"""

import logging
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar

import numpy as np
from mpi4py import MPI

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.transport import RanksLost, Received, Transport
from nnlo_opt.engine.runtime.environment import ulfm_is_on
from nnlo_opt.engine.runtime.process import only_here

logger = logging.getLogger(__name__)

#: True if ranks of this job survive the death of others
IS_ON = ulfm_is_on()
#: ends this process with an exit code, without the notice of other ranks
plain_exit = os._exit


def die_by_signal() -> None:
    """Make `os._exit` kill this process by a signal under ULFM.

    Other ranks notice a death by a signal, and no exit: they would wait for a rank that its watchdog, or a user's code,
    has ended by `os._exit`. A process forked from this one exits as usual.
    """
    if IS_ON:
        os._exit = only_here(lambda _: os.kill(os.getpid(), signal.SIGKILL), plain_exit)  # type: ignore[assignment]


class Losses:
    """Deaths that this process has noticed."""

    #: True if a rank has died: then no rank finalizes MPI
    any: ClassVar[bool] = False


def acknowledge(comm: MPI.Comm) -> set[int]:
    """Continue without the dead ranks of `comm`, and return those that are known."""
    Losses.any = True
    with suppress(MPI.Exception):
        comm.Ack_failed()
    with suppress(MPI.Exception):
        failed = comm.Get_failed()
        return set(failed.Translate_ranks(None, comm.Get_group()))
    return set()


def is_revoked(comm: MPI.Comm) -> bool:
    """Return True if a rank has revoked `comm`."""
    return IS_ON and bool(comm.Is_revoked())


@contextmanager
def losing_ranks() -> Iterator[None]:
    """Turn MPI errors inside into RanksLost under ULFM."""
    try:
        yield
    except MPI.Exception as error:
        if not IS_ON:
            raise
        Losses.any = True
        raise RanksLost from error


def shrink(comm: MPI.Comm, made: Iterable[MPI.Comm] = ()) -> tuple[MPI.Comm, list[int]]:
    """Return a communicator of the living ranks of `comm`, and their numbers in `comm`, ascending.

    `made`: communicators that were made from `comm`. All of them are revoked, so that every rank gets here, whatever
    call it waits in. Collective: every living rank of `comm`.
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
            logger.info("another rank died at the same time")
    return left, list(MPI.Group.Translate_ranks(left.Get_group(), None, comm.Get_group()))


class Watch(Transport):
    """Transport without messages, by which a rank that does not train notices that ranks of its team have died."""

    def __init__(self, comm: MPI.Comm) -> None:
        """Watch `comm`, the communicator of the team, on which this rank sends nothing."""
        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = self.n_processes = comm.Get_size()

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        raise ProtocolError("A rank that does not train has nothing to send to its team.")

    def poll(self) -> Received | None:
        with losing_ranks():
            self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        return None
