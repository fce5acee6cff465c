"""All ranks: this process's place among them, how it ends them, and how it leaves."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from nnlo_opt.comm.mpi.transport import MpiTransport
from nnlo_opt.comm.mpi.ulfm import IS_ON, Losses, losing_ranks
from nnlo_opt.comm.transport import RanksLost, wait_until

#: a communicator of mpi4py, as other modules name it
Communicator: TypeAlias = MPI.Comm
#: communicator of all ranks
WORLD: Communicator = MPI.COMM_WORLD
#: how long a rank that leaves waits for the others
LEAVE_TIMEOUT_S = 60.0


class World:
    """This process's place in the MPI world, and the communicators cut from it."""

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        """`comm`: another world than that of all ranks."""
        self._comm = comm or MPI.COMM_WORLD
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        #: communicators cut from it
        self._made: list[Communicator] = []

    def transport(self) -> MpiTransport:
        """A transport between all ranks, of which none but rank 0 is vital. Collective: every rank of the world."""
        self._made.append(self._comm.Dup())
        return MpiTransport(self._made[-1], vital={0} - {self.rank})

    def team_communicator(self, teams: Sequence[Sequence[int]]) -> Communicator | None:
        """The communicator of this rank's team (world ranks per team). Collective: every rank of the world.

        None for a rank in no team, which is the coordinator's.
        """
        color = next((i for i, ranks in enumerate(teams) if self.rank in ranks), MPI.UNDEFINED)
        comm = self._comm.Split(color, self.rank)
        if comm == MPI.COMM_NULL:
            return None
        self._made.append(comm)
        return comm

    def let_go(self, made: Sequence[Communicator]) -> None:
        """Take in what comes late, and free what was cut from this world, and `made` of that.

        Collective: every rank of the world, which is not that of all ranks. No transport is used after that.
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
        """The ranks (of the world) on this node, each with what it gave. Collective: every rank of the world.

        All give equally many bytes.
        """
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        mine = np.frombuffer(self.rank.to_bytes(8, "little") + given, np.uint8)
        rows = np.empty((node.Get_size(), mine.size), np.uint8)
        node.Allgather(mine, rows)
        node.Free()
        return {int.from_bytes(row[:8].tobytes(), "little"): row[8:].tobytes() for row in rows}

    def alone(self) -> Communicator:
        """A communicator of this rank only."""
        return MPI.COMM_SELF

    def abort(self, exit_code: int) -> None:
        """End all ranks at once, whatever they do.

        Where ranks outlive others (ULFM), this one dies, and the others go on without it or, if it coordinates, end
        too: there `Abort` ended this rank only, and nobody was told.
        """
        if IS_ON:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self._comm.Abort(exit_code)


def finalize() -> bool:
    """Leave MPI; -> False where ranks have died: then nobody can, and the caller has to end by `os._exit`.

    Collective: every rank of the world that lives. A worker may still be sending to a master that has dropped its
    assignment: all take in what comes until all are through, as no rank may finalize before its messages have been
    received.
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
    """Take in what still comes on `transports` until all ranks have sent all. Collective: every rank of `comm`."""

    def all_sent() -> bool:
        # All of them: each must take in what comes, also while another still waits.
        return Losses.any or not sum([transport.drain() for transport in transports])

    wait_until(all_sent, LEAVE_TIMEOUT_S)
    everybody = comm.Ibarrier()

    def all_here() -> bool:
        all_sent()
        return Losses.any or everybody.Test()

    wait_until(all_here, LEAVE_TIMEOUT_S)
