"""Transport of messages between numbered ends, with a single way to wait.

Sending never blocks; messages between two ends arrive in the order in which they were sent. The payload of a received
message is a view that is valid until the next `poll` of the same transport.

If ranks may outlive ranks that die (ULFM), a transport knows which ends are *lost*, and which ends are vital to it.
Messages that came before a loss are handed out first. When none is left, every `poll` raises `RanksLost`.
"""

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.messages import Message


class RanksLost(BaseException):
    """Ranks have died without which this rank cannot continue, or another rank has noticed such deaths.

    This is control flow, not an error of a trial. No handler of trial errors, ours or a user's, may catch it, so it is
    no `Exception`. `app.run.rank.server` and the entry points catch it.
    """


@dataclass(frozen=True, slots=True)
class Received:
    """Message with its sender and the float32 vector beside it.

    >>> from nnlo_opt.core.comm.messages import Fence
    >>> Received(source=0, message=Fence(assignment=7), payload=None).message.assignment
    7

    Raises:
        ProtocolError: by `vector`, if the message came without one.
    """

    source: int
    message: Message
    payload: np.ndarray | None

    @property
    def vector(self) -> np.ndarray:
        """Return the payload; ProtocolError if the message came without it."""
        if self.payload is None:
            raise ProtocolError(f"{type(self.message).__name__} came without its vector.")
        return self.payload


class SharedMemory(Protocol):
    """Memory to which the ends of a transport write in turn."""

    #: the memory, uint8, one-dimensional
    bytes: np.ndarray
    #: handle by which other ends join the memory
    place: tuple[int, int]

    def acquire(self, lock: int) -> None:
        """Wait until this end alone has the lock of this number; an end may not ask for a lock that it has."""

    def release(self, lock: int) -> None:
        """Give the lock back. If an end that has a lock dies, the lock is given back, too."""


class Transport(Protocol):
    """One end of a group of numbered ends.

    >>> from nnlo_opt.core.comm.loopback import LoopbackNetwork
    >>> from nnlo_opt.core.comm.messages import Fence
    >>> network = LoopbackNetwork(2)
    >>> one, other = network.end(0), network.end(1)
    >>> one.send(1, Fence(assignment=7), np.ones(2, np.float32))
    >>> other.poll().payload
    array([1., 1.], dtype=float32)
    >>> other.poll() is None
    True

    Raises:
        ProtocolError: by `send`, for a message or a vector that may not travel.
        RanksLost: by `poll`, if a vital end is lost; only with ULFM.
    """

    #: number of this end
    rank: int
    #: number of ends
    size: int
    #: number of processes they are in
    n_processes: int

    @property
    def rings(self) -> bool:
        """True if every end wakes this one from a `pause` when it sends."""
        return False

    @property
    def lost(self) -> Set[int]:
        """Ends whose processes have died, as far as this end knows; the set only grows."""
        return frozenset()

    def blame(self, error: BaseException) -> None:
        """Raise RanksLost if the death of a rank has caused `error`, which a call to MPI outside this class raised."""
        return

    def pause(self, seconds: float) -> None:
        """Sleep at most `seconds`; a message from an end that can ring ends the sleep."""
        time.sleep(seconds)

    def share(self, n_bytes: int, ends: Iterable[int] | None = None) -> SharedMemory | None:
        """Return new memory of zeros, which `ends` (None: all) may join while it is kept; None if an end cannot."""
        return None

    def join(self, source: int, place: tuple[int, int]) -> SharedMemory:
        """Return the memory that the end `source` shares at `place`; raises OSError if `source` no longer keeps it."""
        raise OSError("the ends of this transport share no memory")

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        """Send to end `dest`; does nothing if `dest` is lost. The payload is copied before the call returns."""

    def poll(self) -> Received | None:
        """Return the next message that has arrived, or None at once.

        Raises:
            RanksLost: a vital end is lost, and no message is left.
        """

    def flush(self, timeout_s: float) -> None:
        """Wait until all messages have left, at most `timeout_s` seconds; here they have when they are sent."""
        return


class Collective(Protocol):
    """Group of ranks that make the same calls in the same order."""

    def sum_in_place(self, vector: np.ndarray) -> None:
        """Replace `vector` (float32, one-dimensional) by the sum over all ranks, with the same bits on each rank.

        Collective: every rank of the group. The call blocks until all ranks have made it, and raises RanksLost if a
        rank has died.
        """

    def check(self) -> None:
        """Raise RanksLost if a rank of the group has died; for a rank that waits in another way."""


#: seconds of spinning, enough for a prompt answer: a look costs 1-2 us, a sleep at least 60 us
SPIN_S = 50e-6
#: longest pause between two looks, seconds; measured: 1 ms costs 2 % of a core and 1.7 ms of latency
LONGEST_PAUSE_S = 1e-3
#: seconds of waiting after which the longest pause doubles, which halves the CPU time
QUIET_S = 1.0
LONGEST_QUIET_PAUSE_S = 2e-3
#: if every message rings, a look is only needed for signals, deadlines, failures, and messages that MPI has held back:
#: the pause is this part of the time already waited, up to the longest, seconds
_RUNG_PART, LONGEST_RUNG_PAUSE_S = 1 / 8, 64e-3
_FIRST_PAUSE_S = 20e-6


def wait_until(look: Callable[[], bool], timeout_s: float | None = None, transport: Transport | None = None) -> bool:
    """Call `look` until it returns True, and return True; return False if `timeout_s` has passed before.

    This is the only waiting primitive. It spins shortly, then sleeps between looks, ever longer up to a millisecond.
    Whatever a rank has to notice while it waits (messages, signals, deadlines, failures) belongs in `look`. Messages of
    `transport` end a sleep if its ends can ring; if all of them can, there is no need to spin. What `look` raises ends
    the wait.

    >>> wait_until(lambda: False, timeout_s=0.01)
    False
    """
    start = time.perf_counter()
    pause = time.sleep if transport is None else transport.pause
    rings = transport is not None and transport.rings
    pause_s, spin_s = (LONGEST_PAUSE_S, 0.0) if rings else (_FIRST_PAUSE_S, SPIN_S)
    while True:
        if look():
            return True
        waited_s = time.perf_counter() - start
        if timeout_s is not None and waited_s >= timeout_s:
            return False
        if waited_s >= spin_s:
            pause(pause_s)
            if rings:
                pause_s = min(max(LONGEST_PAUSE_S, waited_s * _RUNG_PART), LONGEST_RUNG_PAUSE_S)
            else:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S if waited_s < QUIET_S else LONGEST_QUIET_PAUSE_S)


def receive(
    transports: Sequence[Transport], timeout_s: float | None = None, until: Callable[[], bool] | None = None
) -> tuple[Transport, Received] | None:
    """Return the next message on any of `transports`; None if `timeout_s` has passed or `until` returns True.

    >>> from nnlo_opt.core.comm.loopback import LoopbackNetwork
    >>> receive([LoopbackNetwork(1).end(0)], timeout_s=0.0) is None
    True

    Raises:
        RanksLost: a vital end of one of them is lost, and no message is left.
    """
    found: list[tuple[Transport, Received]] = []

    def look() -> bool:
        for transport in transports:
            received = transport.poll()
            if received is not None:
                found.append((transport, received))
                return True
        return until is not None and until()

    # All transports of a process share one bell. If a transport does not ring, the wait must not rely on rings.
    least = min(transports, key=lambda transport: transport.rings)
    wait_until(look, timeout_s, least)
    return found[0] if found else None
