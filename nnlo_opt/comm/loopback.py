"""The transport without MPI: ends of one process, exact order, messages through the same codec.

It serves a team of one rank (master and worker in one process), a world of one rank, tests and simulation.
"""

from collections import deque

import numpy as np

from nnlo_opt.comm.codec import decode, encode
from nnlo_opt.comm.messages import Message
from nnlo_opt.comm.transport import Received, Transport


class LoopbackNetwork:
    """`size` ends joined by queues."""

    def __init__(self, size: int) -> None:
        #: per end, what was sent to it: (source, encoded message), in the order of sending
        self.queues: list[deque[tuple[int, np.ndarray]]] = [deque() for _ in range(size)]

    @property
    def size(self) -> int:
        """Number of ends."""
        return len(self.queues)

    def end(self, rank: int) -> "Loopback":
        """The end numbered `rank`."""
        return Loopback(self, rank)


class Loopback(Transport):
    """One end of a `LoopbackNetwork`."""

    def __init__(self, network: LoopbackNetwork, rank: int) -> None:
        self._network = network
        self.rank = rank
        self.size = network.size
        self.n_processes = 1

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        self._network.queues[dest].append((self.rank, encode(message, payload)))

    def poll(self) -> Received | None:
        queue = self._network.queues[self.rank]
        if not queue:
            return None
        source, buffer = queue.popleft()
        return Received(source, *decode(buffer))

    def flush(self, timeout_s: float) -> None:
        """Nothing to do: what is sent has arrived."""
