"""Transport between ends in one process, without MPI: deterministic order, same codec.

Used for a team of one rank (master and worker in one process), a world of one rank, tests and simulation. Tests can
lose an end, as if its rank had died.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Set
from itertools import count
from weakref import WeakValueDictionary

import numpy as np

from nnlo_opt.core.base.logs import TRACE
from nnlo_opt.core.base.vectors import aligned_bytes
from nnlo_opt.core.comm.codec import decode, encode
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.transport import RanksLost, Received, SharedMemory, Transport, check_end

logger = logging.getLogger(__name__)


class _Memory:
    """Shared memory of ends in one process, which take turns."""

    def __init__(self, n_bytes: int, place: tuple[int, int]) -> None:
        self.bytes = aligned_bytes(n_bytes)
        self.bytes[:] = 0
        self.place = place

    def acquire(self, lock: int) -> None:
        """Return at once, as no other end is running."""

    def release(self, lock: int) -> None:
        """Return at once, as no other end is waiting."""


class LoopbackNetwork:
    """Ends in one process, connected by queues.

    Args:
        size: number of ends.
        shares: True if the ends support shared memory.
    """

    def __init__(self, size: int, *, shares: bool = False) -> None:
        self.shares = shares
        #: number -> shared memory, as long as an end refers to it
        self.memories: WeakValueDictionary[int, _Memory] = WeakValueDictionary()
        self._numbers = count()
        #: for each end, (source, encoded message) in the order of sending
        self.queues: list[deque[tuple[int, np.ndarray]]] = [deque() for _ in range(size)]
        #: ends that are lost
        self.lost: set[int] = set()

    @property
    def size(self) -> int:
        """Number of ends."""
        return len(self.queues)

    def share(self, n_bytes: int) -> SharedMemory:
        """Return new shared memory for all ends."""
        number = next(self._numbers)
        self.memories[number] = memory = _Memory(n_bytes, (number, n_bytes))
        return memory

    def end(self, rank: int, vital: Collection[int] = ()) -> "Loopback":
        """Return end number `rank`, which cannot continue without the `vital` ends."""
        return Loopback(self, rank, vital)

    def lose(self, rank: int) -> None:
        """Simulate the death of an end; messages that it has sent still arrive."""
        self.lost.add(rank)
        self.queues[rank].clear()


class Loopback(Transport):
    """One end of a `LoopbackNetwork`."""

    def __init__(self, network: LoopbackNetwork, rank: int, vital: Collection[int] = ()) -> None:
        self._network = network
        self._vital = frozenset(vital)
        self.rank = rank
        self.size = network.size
        self.n_processes = 1

    @property
    def lost(self) -> Set[int]:
        return self._network.lost

    def share(self, n_bytes: int, ends: Iterable[int] | None = None) -> SharedMemory | None:
        return self._network.share(n_bytes) if self._network.shares else None

    def join(self, source: int, place: tuple[int, int]) -> SharedMemory:
        try:
            return self._network.memories[place[0]]
        except KeyError:
            raise OSError(f"end {source} has released its memory") from None

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        check_end(dest, self.size)
        if dest in self._network.lost:
            return
        logger.log(TRACE, "%d to %d: %s", self.rank, dest, message)
        self._network.queues[dest].append((self.rank, encode(message, payload)))

    def poll(self) -> Received | None:
        queue = self._network.queues[self.rank]
        if not queue:
            if self._network.lost & self._vital:
                raise RanksLost
            return None
        source, buffer = queue.popleft()
        return Received(source, *decode(buffer))
