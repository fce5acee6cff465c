"""MPI: the only module that imports mpi4py.

Importing it initialises MPI. Messages travel point to point, one MPI message each, with one tag on a communicator of
their own; waiting is by Iprobe, never by a blocking call, so that a rank that fails leaves nobody stuck.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "funneled"

from mpi4py import MPI  # noqa: E402  (the thread level must be chosen before)

from nnlo_opt.comm.codec import decode, encode  # noqa: E402
from nnlo_opt.comm.messages import Message  # noqa: E402
from nnlo_opt.comm.transport import Received, Transport, wait_until  # noqa: E402
from nnlo_opt.vectors import aligned_bytes  # noqa: E402

_TAG = 1
#: how long a rank that leaves waits for the others
LEAVE_TIMEOUT_S = 60.0


class MpiTransport(Transport):
    """The ranks of a communicator as ends. The communicator carries nothing else."""

    #: every transport of this process, to be drained before it leaves MPI
    open_transports: ClassVar[list["MpiTransport"]] = []

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.open_transports.append(self)
        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._status = MPI.Status()
        #: sends under way, with the buffers that must live as long
        self._sending: list[tuple[MPI.Request, np.ndarray]] = []
        #: reused for every message received; grows to the largest seen
        self._buffer = aligned_bytes(1 << 16)

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        buffer = encode(message, payload)
        self._sending.append((self._comm.Isend([buffer, MPI.BYTE], dest, _TAG), buffer))
        if len(self._sending) > 1:
            self._reap()

    def poll(self) -> Received | None:
        if self._sending:
            self._reap()
        # Open MPI looks first and makes progress after: what has just come is seen by the second look only.
        if not (
            self._comm.Iprobe(MPI.ANY_SOURCE, _TAG, self._status)
            or self._comm.Iprobe(MPI.ANY_SOURCE, _TAG, self._status)
        ):
            return None
        n_bytes = self._status.Get_count(MPI.BYTE)
        source = self._status.Get_source()
        if n_bytes > self._buffer.size:
            self._buffer = aligned_bytes(n_bytes)
        buffer = self._buffer[:n_bytes]
        self._comm.Recv([buffer, MPI.BYTE], source, _TAG)
        return Received(source, *decode(buffer))

    def flush(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self._sending and time.monotonic() < deadline_s:
            self._reap()
            time.sleep(1e-4)

    def drain(self) -> bool:
        """Throw away what has come; -> whether something sent from here has not been received yet."""
        while self.poll() is not None:
            pass
        return bool(self._sending)

    def _reap(self) -> None:
        self._sending = [(request, buffer) for request, buffer in self._sending if not request.Test()]


class World:
    """This process's place in the MPI world, and the communicators cut from it."""

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()

    def transport(self) -> MpiTransport:
        """A transport between all ranks. Collective: every rank of the world."""
        return MpiTransport(self._comm.Dup())

    def team_communicator(self, teams: Sequence[Sequence[int]]) -> MPI.Comm | None:
        """The communicator of this rank's team (world ranks per team). Collective: every rank of the world.

        None for a rank in no team, which is the coordinator's.
        """
        color = next((i for i, ranks in enumerate(teams) if self.rank in ranks), MPI.UNDEFINED)
        comm = self._comm.Split(color, self.rank)
        return None if comm == MPI.COMM_NULL else comm

    def node_ranks(self) -> tuple[int, int]:
        """(rank on this node, number of ranks on this node). Collective: every rank of the world."""
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        place = node.Get_rank(), node.Get_size()
        node.Free()
        return place

    def alone(self) -> MPI.Intracomm:
        """A communicator of this rank only."""
        return MPI.COMM_SELF

    def abort(self, exit_code: int) -> None:
        """End all ranks at once, whatever they do."""
        self._comm.Abort(exit_code)


class GatedComm(MPI.Intracomm):
    """A communicator whose blocking calls can be given up when another rank has raised.

    It is a duplicate of a team's communicator, for a user's objective. Before a collective every rank passes a gate
    (a non-blocking barrier that it polls), before a receive it polls for the message; while it polls, `look_out` is
    called and may raise. So the ranks that wait for one that raised raise too, instead of waiting for ever.
    Communicators made from it (`Split`, `Dup`) are ordinary ones.
    """

    #: raises when another rank of the team has raised
    look_out: Callable[[], None]
    _gate: MPI.Intracomm

    def __new__(cls, comm: MPI.Intracomm, look_out: Callable[[], None]) -> "GatedComm":
        """Duplicate `comm`. Collective: every rank of `comm`."""
        self = super().__new__(cls, comm.Dup())
        self.look_out = look_out
        self._gate = comm.Dup()
        return self

    def close(self) -> None:
        """Free it. Collective; not after a rank has raised, when calls may be pending."""
        self._gate.Free()
        self.Free()

    def wait_at_gate(self) -> None:
        """Return when every rank has come here; raise what `look_out` raises."""
        barrier = self._gate.Ibarrier()
        self._poll(barrier.Test)

    def wait_for_message(self, source: int, tag: int) -> None:
        """Return when a message can be received; raise what `look_out` raises."""
        self._poll(lambda: self.Iprobe(source, tag))

    def _poll(self, done: Callable[[], bool]) -> None:
        def look() -> bool:
            if done():
                return True
            self.look_out()
            return False

        wait_until(look)


def _gated(name: str) -> Callable[..., Any]:
    plain = getattr(MPI.Intracomm, name)

    @functools.wraps(plain)
    def call(self: GatedComm, *args: Any, **kwargs: Any) -> Any:
        self.wait_at_gate()
        return plain(self, *args, **kwargs)

    return call


def _awaited(name: str) -> Callable[..., Any]:
    plain = getattr(MPI.Intracomm, name)
    has_buffer = name in ("Recv", "recv")

    @functools.wraps(plain)
    def call(self: GatedComm, *args: Any, **kwargs: Any) -> Any:
        given = args[1:] if has_buffer else args
        source = kwargs.get("source", given[0] if given else MPI.ANY_SOURCE)
        tag = kwargs.get("tag", given[1] if len(given) > 1 else MPI.ANY_TAG)
        self.wait_for_message(source, tag)
        return plain(self, *args, **kwargs)

    return call


_COLLECTIVES = [
    "Barrier",
    "barrier",
    "Bcast",
    "bcast",
    "Gather",
    "Gatherv",
    "gather",
    "Scatter",
    "Scatterv",
    "scatter",
    "Allgather",
    "Allgatherv",
    "allgather",
    "Alltoall",
    "Alltoallv",
    "alltoall",
    "Reduce",
    "reduce",
    "Allreduce",
    "allreduce",
    "Scan",
    "scan",
    "Exscan",
    "exscan",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Dup",
    "Split",
]
for _name in _COLLECTIVES:
    setattr(GatedComm, _name, _gated(_name))
for _name in ("Recv", "recv", "Probe", "probe"):
    setattr(GatedComm, _name, _awaited(_name))


def finalize() -> None:
    """Leave MPI. Collective: every rank of the world, and only when none has failed.

    A worker may still be sending to a master that has dropped its assignment: all take in what comes until all are
    through, as no rank may finalize before its messages have been received.
    """
    if MPI.Is_finalized():
        return

    def all_sent() -> bool:
        # All of them: each must take in what comes, also while another still waits.
        return not sum([transport.drain() for transport in MpiTransport.open_transports])

    wait_until(all_sent, LEAVE_TIMEOUT_S)
    everybody = MPI.COMM_WORLD.Ibarrier()

    def all_here() -> bool:
        all_sent()
        return everybody.Test()

    wait_until(all_here, LEAVE_TIMEOUT_S)
    MPI.Finalize()
