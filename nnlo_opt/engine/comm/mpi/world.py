"""One process's view of the world of all ranks."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from nnlo_opt.core.comm.transport import RanksLost, wait_until
from nnlo_opt.engine.comm.mpi.transport import MpiTransport
from nnlo_opt.engine.comm.mpi.ulfm import IS_ON, Losses, losing_ranks
from nnlo_opt.engine.runtime.log import wait_until_read

#: communicator of mpi4py, under a name for other modules
Communicator: TypeAlias = MPI.Comm
#: communicator of all ranks
WORLD: Communicator = MPI.COMM_WORLD
#: seconds for which a rank that leaves waits for the other ranks
LEAVE_TIMEOUT_S = 60.0


def library() -> str:
    """Return the description of the MPI library by itself, with its version."""
    return MPI.Get_library_version().strip("\0\n ")


class World:
    """Place of this process in the MPI world, and the communicators created from it.

    Args:
        comm: another world than the one of all ranks.
    """

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        self._comm = comm or MPI.COMM_WORLD
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        #: communicators that were made from the world
        self._made: list[Communicator] = []

    def transport(self) -> MpiTransport:
        """Return a transport between all ranks; only rank 0 is vital. Collective: every rank of the world."""
        self._made.append(self._comm.Dup())
        return MpiTransport(self._made[-1], vital={0} - {self.rank})

    def team_communicator(self, teams: Sequence[Sequence[int]]) -> Communicator | None:
        """Return the communicator of this rank's team, or None for a rank in no team, as the coordinator.

        `teams`: world ranks of each team. Collective: every rank of the world.
        """
        color = next((i for i, ranks in enumerate(teams) if self.rank in ranks), MPI.UNDEFINED)
        comm = self._comm.Split(color, self.rank)
        if comm == MPI.COMM_NULL:
            return None
        self._made.append(comm)
        return comm

    def let_go(self, made: Sequence[Communicator]) -> None:
        """Receive late messages, and free `made` and all communicators that were made from this world.

        Collective: every rank of the world, which is not the one of all ranks. No transport may be used afterwards.
        """
        mine = [*made, *self._made]
        transports = [one for one in MpiTransport.open_transports if one.comm in mine]
        drain(self._comm, transports)
        for transport in transports:
            MpiTransport.open_transports.remove(transport)
        for comm in mine:
            comm.Free()
        self._made.clear()

    def on_node(self, given: bytes) -> dict[int, bytes]:
        """Return the bytes that each world rank of this node has given; all ranks give equally many bytes.

        Collective: every rank of the world.
        """
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        mine = np.frombuffer(self.rank.to_bytes(8, "little") + given, np.uint8)
        rows = np.empty((node.Get_size(), mine.size), np.uint8)
        node.Allgather(mine, rows)
        node.Free()
        return {int.from_bytes(row[:8].tobytes(), "little"): row[8:].tobytes() for row in rows}

    def n_nodes(self) -> int:
        """Return the number of nodes on which ranks run. Collective: every rank of the world."""
        is_first = np.array([min(self.on_node(b"")) == self.rank], np.int64)
        n_nodes = np.empty_like(is_first)
        self._comm.Allreduce(is_first, n_nodes)
        return int(n_nodes[0])

    def alone(self) -> Communicator:
        """Return a communicator of this rank alone."""
        return MPI.COMM_SELF

    def abort(self, exit_code: int) -> None:
        """Abort all ranks, as soon as this rank's output has been read.

        If ranks outlive ranks that die (ULFM), this rank dies; the other ranks continue without it, or end, too, if
        this rank coordinates. With ULFM `Abort` ended this rank only, and no other rank noticed.
        """
        wait_until_read(sys.stdout, sys.stderr)
        if IS_ON:
            os.kill(os.getpid(), signal.SIGKILL)
        self._comm.Abort(exit_code)


def finalize() -> bool:
    """Leave MPI and return True. Return False if ranks have died: the caller must then end by `os._exit`.

    Collective: every living rank of the world. A worker may still be sending to a master that has dropped its
    assignment. So every rank receives messages until all ranks are here, as no rank may finalize before its messages
    have been received.
    """
    if MPI.Is_finalized():
        return True
    with suppress(RanksLost), losing_ranks():
        drain(MPI.COMM_WORLD, MpiTransport.open_transports)
    if Losses.any:
        return False
    MPI.Finalize()
    return True


def drain(comm: MPI.Comm, transports: Sequence[MpiTransport]) -> None:
    """Receive messages on `transports` until all ranks have sent all of theirs. Collective: every rank of `comm`."""

    def all_sent() -> bool:
        # A list, not a generator: every transport must receive, also while another one still waits.
        return Losses.any or not sum([transport.drain() for transport in transports])

    wait_until(all_sent, LEAVE_TIMEOUT_S)
    everybody = comm.Ibarrier()

    def all_here() -> bool:
        all_sent()
        return Losses.any or everybody.Test()

    wait_until(all_here, LEAVE_TIMEOUT_S)
