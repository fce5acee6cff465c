"""Transport over MPI: the ranks of a communicator as ends.

Messages are sent point to point, one MPI message each, on a separate communicator. A rank waits by Improbe, never by a
blocking call, so that a failed rank blocks no other.

If ranks survive the death of others (`ulfm`), a dead rank shows as an MPI error. The transport records the lost ranks,
and raises `RanksLost` to its owner.
"""

import logging
import os
import struct
import time
from collections.abc import Collection, Iterable, Set
from typing import ClassVar

import numpy as np
from mpi4py import MPI

from nnlo_opt.core.base.logs import TRACE
from nnlo_opt.core.base.vectors import aligned_bytes
from nnlo_opt.core.comm.codec import decode, encode
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.transport import Collective, RanksLost, Received, Transport, check_end, wait_until
from nnlo_opt.engine.comm.mpi.parts import parts
from nnlo_opt.engine.comm.mpi.ulfm import IS_ON, acknowledge, is_revoked, losing_ranks
from nnlo_opt.engine.comm.node import N_LINES, NOWHERE, Bell, CommonMemory, Inbox, Neighbour, Outbox, Place
from nnlo_opt.engine.runtime.handles import HANDLE_BYTES
from nnlo_opt.engine.runtime.process import end_if_forked

logger = logging.getLogger(__name__)

#: tags: a message as `codec` writes it, or its last part; a message to a neighbour, without payload, behind a `_HEAD`;
#: an earlier part of a message, as MPI keeps the order of what a rank sends
_PLAIN, _LOCAL, _PART = 1, 2, 3
#: number of payloads that the sender of this message has read, and `Place` of its payload, all 0 without payload
_HEAD = struct.Struct("<QIIQQQ")
#: (rank, free line of its bell, its handle), which a rank sends to all ranks of its node
_ROW = struct.Struct(f"<QQ{HANDLE_BYTES}s")
#: a smaller payload travels in the message
_SMALL_BYTES = 2048
#: seconds between two looks although every end rings: MPI may have sent a message late, and notices failures. If
#: there are more ranks than cores, a look that finds nothing yields the core (Open MPI), and returns after
#: milliseconds. So the time is longer after a ring, as a rank then waits for the answer to the message that rang
SILENCE_S, LONG_SILENCE_S = 1e-3, 16e-3
#: seconds in which MPI must know the dead ranks after one of its calls has failed; it took 1.4 s at most
NOTICE_S = 3.0


class MpiTransport(Transport):
    """Transport between the ranks of a communicator. Nothing else may use the communicator.

    Between ranks of one node payloads stay in shared memory if possible (`engine.comm.node`).
    """

    #: all transports of this process, to be drained before the process leaves MPI
    open_transports: ClassVar[list["MpiTransport"]] = []

    def __init__(self, comm: MPI.Comm, vital: Collection[int] | None = None) -> None:
        """Connect the ranks of `comm`. Collective: every rank. `vital`: ends that this one cannot continue without."""
        self.open_transports.append(self)
        self._vital = frozenset(range(comm.Get_size()) if vital is None else vital)
        self._lost: set[int] = set()
        #: True if a vital end is lost, or another rank has noticed a loss and revoked the communicator
        self._is_broken = False
        #: communicator of this transport
        self.comm = comm
        self.rank = comm.Get_rank()
        self.size = self.n_processes = comm.Get_size()
        self._status = MPI.Status()
        #: unfinished sends, with their buffers, which must be kept
        self._sending: list[tuple[MPI.Request, np.ndarray]] = []
        #: parts that have come of an unfinished message, of each rank that is sending one
        self._begun: dict[int, list[np.ndarray]] = {}
        #: buffer of every message received; grows to the largest message
        self._buffer = aligned_bytes(1 << 16)
        self._bell = Bell.mine()
        #: ranks that share memory with this one, itself included; and the line on which they ring
        self._neighbours, self._line = _neighbours(comm, self._bell)
        #: outgoing and incoming payloads of each neighbour
        self._outboxes = {rank: Outbox() for rank in self._neighbours}
        self._inboxes = {rank: Inbox(neighbour) for rank, neighbour in self._neighbours.items()}
        #: inbox of the payload that was handed out last; None: it is not in shared memory
        self._shown: Inbox | None = None
        #: number of rings without news: their messages have been received, or a later look found nothing
        self._n_rings_past = 0
        #: time of the last look, perf_counter seconds
        self._looked_at_s = 0.0

    @property
    def rings(self) -> bool:
        return len(self._neighbours) == self.size

    @property
    def lost(self) -> Set[int]:
        return self._lost

    def blame(self, error: BaseException) -> None:
        if IS_ON and isinstance(error, MPI.Exception) and wait_until(self._looks_broken, NOTICE_S):
            raise RanksLost from error

    def _looks_broken(self) -> bool:
        try:
            self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        except MPI.Exception as error:
            self._take_losses(error)
        return self._is_broken

    def _take_losses(self, error: MPI.Exception) -> None:
        """Determine the lost ranks from an MPI error; without ULFM raise the error."""
        if not IS_ON:
            raise error
        self._lost |= acknowledge(self.comm)
        self._is_broken = self._is_broken or bool(self._lost & self._vital) or is_revoked(self.comm)

    def pause(self, seconds: float) -> None:
        if self._bell is None:
            time.sleep(seconds)
        else:
            self._bell.wait(seconds)

    def share(self, n_bytes: int, ends: Iterable[int] | None = None) -> CommonMemory | None:
        can_share = self.rings if ends is None else all(end in self._neighbours for end in ends)
        return CommonMemory.create(n_bytes) if can_share else None

    def join(self, source: int, place: tuple[int, int]) -> CommonMemory:
        return self._neighbours[source].join(place)

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        check_end(dest, self.size)
        if dest in self._lost:
            return
        neighbour = self._neighbours.get(dest)
        place: Place | None = None
        if neighbour is not None and (payload is None or payload.nbytes > _SMALL_BYTES):
            place = NOWHERE if payload is None else self._outboxes[dest].put(payload)
        if place is None:
            buffer, tag = encode(message, payload), _PLAIN
        else:
            head = _HEAD.pack(self._inboxes[dest].n_released, *place)
            buffer, tag = encode(message, head=head), _LOCAL
        logger.log(TRACE, "to %d: %s, %d numbers", dest, message, 0 if payload is None else payload.size)
        try:
            *before, last = parts(buffer)
            for part in before:
                self._sending.append((self.comm.Isend([part, MPI.BYTE], dest, _PART), part))
            self._sending.append((self.comm.Isend([last, MPI.BYTE], dest, tag), last))
        except MPI.Exception as error:
            self._take_losses(error)
            return
        if neighbour is not None:
            neighbour.ring(self._line)
        if len(self._sending) > 1:
            self._reap()

    def poll(self) -> Received | None:
        if self._shown is not None:
            self._shown.n_released += 1
            self._shown = None
        if self._sending:
            self._reap()
        n_rings, now_s = 0, time.perf_counter()
        if self.rings and self._bell is not None:
            n_rings = self._bell.listen(self._line)
            silence_s = SILENCE_S if now_s > self._bell.rang_at_s + SILENCE_S else LONG_SILENCE_S
            is_silent = n_rings <= self._n_rings_past and not self._sending and not self._is_broken
            if is_silent and now_s < self._looked_at_s + silence_s:
                return None
        self._looked_at_s = now_s
        try:
            while (found := self._look()) and self._status.Get_tag() == _PART:
                self._begun.setdefault(self._status.Get_source(), []).append(self._taken(found).copy())
            if found is None:
                if self._is_broken:
                    raise RanksLost
                self._n_rings_past = n_rings
                return None
            self._n_rings_past += 1
            if received := self._receive(found):
                logger.log(TRACE, "from %d: %s", received.source, received.message)
            return received
        except MPI.Exception as error:
            self._take_losses(error)
            if is_revoked(self.comm):
                raise RanksLost from error
            return None

    def _look(self) -> MPI.Message | None:
        """Return a message that has come, of the status `_status`.

        It is taken out of MPI's queue: Open MPI refuses to receive from a rank that has died, and a message that stayed
        there would hide all later ones.
        """
        # Open MPI looks first and makes progress afterwards: only the second look sees a message that just came.
        return self.comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status) or self.comm.Improbe(
            MPI.ANY_SOURCE, MPI.ANY_TAG, self._status
        )

    def _taken(self, found: MPI.Message) -> np.ndarray:
        """Return the bytes of the message that a look has found, which the next message overwrites."""
        n_bytes = self._status.Get_count(MPI.BYTE)
        if n_bytes > self._buffer.size:
            self._buffer = aligned_bytes(n_bytes)
        buffer = self._buffer[:n_bytes]
        found.Recv([buffer, MPI.BYTE])
        return buffer

    def _receive(self, found: MPI.Message) -> Received | None:
        """Receive the message, or the last part of it, that a look has found."""
        source, tag = self._status.Get_source(), self._status.Get_tag()
        buffer = self._taken(found)
        if tag == _PLAIN:
            if source in self._begun:
                buffer = _joined([*self._begun.pop(source), buffer])
            return Received(source, *decode(buffer))
        n_released, *fields = _HEAD.unpack_from(buffer.data)
        self._outboxes[source].n_released = n_released
        message, _ = decode(buffer[_HEAD.size :])
        place = Place(*fields)
        if not place.n_bytes:
            return Received(source, message, None)
        try:
            payload = self._inboxes[source].view(place)
        except OSError:
            logger.warning("rank %d ended before its payload was read: %s", source, message)
            return None
        self._shown = self._inboxes[source]
        return Received(source, message, payload)

    def flush(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self._sending and time.monotonic() < deadline_s:
            self._reap()
            time.sleep(1e-4)

    def drain(self) -> bool:
        """Drop all received messages; return True if a message sent from here has not been received yet."""
        while self.poll() is not None:
            pass
        return bool(self._sending)

    def _reap(self) -> None:
        try:
            self._sending = [(request, buffer) for request, buffer in self._sending if not request.Test()]
        except MPI.Exception as error:
            self._take_losses(error)
            self._sending = [sending for sending in self._sending if self._is_under_way(sending[0])]

    def _is_under_way(self, request: MPI.Request) -> bool:
        try:
            return not request.Test()
        except MPI.Exception:
            return False  # its receiver is lost


def _joined(received: list[np.ndarray]) -> np.ndarray:
    """Return the parts of a message one behind the other, aligned as its sender has made it."""
    buffer = aligned_bytes(sum(part.size for part in received))
    np.concatenate(received, out=buffer)
    return buffer


def _neighbours(comm: MPI.Comm, bell: Bell | None) -> tuple[dict[int, Neighbour], int]:
    """Return the ranks of `comm` that share memory with this one, and a line of their bells for this transport alone.

    Collective: every rank of `comm`. Two ranks share memory if each can reach the other.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    mine = _ROW.pack(comm.Get_rank(), bell.free_line if bell else 0, bell.handle if bell else b"")
    rows = np.empty((node.Get_size(), _ROW.size), np.uint8)
    node.Allgather(np.frombuffer(mine, np.uint8), rows)
    ranks, lines, handles = zip(*(_ROW.unpack(row.tobytes()) for row in rows), strict=True)
    reached = [Neighbour.of(handle) if bell else None for handle in handles]
    can_reach = np.array([neighbour is not None for neighbour in reached], np.uint8)
    of_all = np.empty((len(reached), len(reached)), np.uint8)
    node.Allgather(can_reach, of_all)
    reaches_me = of_all[:, node.Get_rank()]
    node.Free()
    line = max(lines)
    if bell:
        bell.free_line = (line + 1) % N_LINES
    neighbours = {
        rank: neighbour
        for rank, neighbour, both in zip(ranks, reached, reaches_me, strict=True)
        if neighbour is not None and both
    }
    return neighbours, line


class MpiCollective(Collective):
    """Collective of all ranks of a communicator. Nothing else may use the communicator."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def sum_in_place(self, vector: np.ndarray) -> None:
        with losing_ranks():
            for part in parts(vector):
                self._comm.Allreduce(MPI.IN_PLACE, [part, MPI.FLOAT])

    def check(self) -> None:
        with losing_ranks():
            self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)


def _leave_mpi(pid: int = os.getpid()) -> None:
    """Make the first use of MPI exit this process, which user code has forked from process `pid`."""
    for kind in (MpiTransport, MpiCollective):
        kind.__getattribute__ = lambda *_: end_if_forked(pid)  # type: ignore[method-assign]


os.register_at_fork(after_in_child=_leave_mpi)  # to ask at every message would cost time
