"""Interface of transports, which carry messages between numbered ends, and the only function that waits.

Sending never blocks; messages between two ends arrive in the order of sending. The payload of a received message is a
view that is valid until the next `poll` of the same transport.

If ranks can survive the death of other ranks (ULFM), a transport knows which ends are *lost*, and which ends are vital
to it. Messages from before a loss are delivered first; after them, every `poll` raises `RanksLost`.
"""

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.messages import Message


class RanksLost(BaseException):
    """Ranks that this rank depends on have died, or another rank has noticed such deaths.

    This is control flow, not an error of a trial: it derives from BaseException so that no handler of trial errors,
    ours or a user's, catches it. Only `app.run.rank.server` and the entry points do.
    """


@dataclass(frozen=True, slots=True)
class Received:
    """Message with its sender and payload, as `Transport.poll` returns it.

    >>> from nnlo_opt.core.comm.messages import Fence
    >>> Received(source=0, message=Fence(assignment=7), payload=None).message.assignment
    7

    Raises:
        ProtocolError: by `vector`, if the message has no payload.
    """

    source: int
    message: Message
    payload: np.ndarray | None

    @property
    def vector(self) -> np.ndarray:
        """Return the payload; ProtocolError if there is none."""
        if self.payload is None:
            raise ProtocolError(f"{type(self.message).__name__} came without its vector.")
        return self.payload


class SharedMemory(Protocol):
    """Memory shared by ends of a transport, with locks."""

    #: the memory, uint8, one-dimensional
    bytes: np.ndarray
    #: handle for `Transport.join` on other ends
    place: tuple[int, int]

    def acquire(self, lock: int) -> None:
        """Wait for lock number `lock`. Locks are not reentrant: acquiring one twice deadlocks."""

    def release(self, lock: int) -> None:
        """Release the lock. If an end dies, its locks are released, too."""


class Transport(Protocol):
    """One end of a group of numbered ends; a custom transport implements all of it.

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
        ProtocolError: by `send`, for an end that does not exist, or a message or vector that cannot be encoded.
        RanksLost: by `poll`, if a vital end is lost (only with ULFM).
    """

    #: number of this end
    rank: int
    #: number of ends
    size: int
    #: number of processes that the ends are in
    n_processes: int

    @property
    def rings(self) -> bool:
        """True if a message from any end wakes this one from `pause`."""
        return False

    @property
    def lost(self) -> Set[int]:
        """Ends known to have died; the set only grows."""
        return frozenset()

    def blame(self, error: BaseException) -> None:
        """Raise RanksLost if the death of a rank caused `error`, which an MPI call outside this class raised."""
        return

    def pause(self, seconds: float) -> None:
        """Sleep for at most `seconds`, or until a message arrives from an end that can wake this one."""
        time.sleep(seconds)

    def share(self, n_bytes: int, ends: Iterable[int] | None = None) -> SharedMemory | None:
        """Return new zeroed memory that `ends` (None: all) can join while this end keeps it; None if an end cannot."""
        return None

    def join(self, source: int, place: tuple[int, int]) -> SharedMemory:
        """Return the memory that end `source` shares at `place`; OSError if `source` has released it."""
        raise OSError("the ends of this transport share no memory")

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        """Send to end `dest` without blocking; ignored if `dest` is lost. The payload may be overwritten afterwards."""

    def poll(self) -> Received | None:
        """Return the next message that has arrived; None if there is none. Never waits.

        Raises:
            RanksLost: a vital end is lost, and no message is left.
        """

    def flush(self, timeout_s: float) -> None:
        """Wait until all sent messages have left, for at most `timeout_s` seconds; called before a process exits.

        This default returns at once, for transports whose messages leave in `send`.
        """
        return


class Collective(Protocol):
    """Group of ranks whose members make the same calls in the same order."""

    def sum_in_place(self, vector: np.ndarray) -> None:
        """Replace `vector` (float32, one-dimensional) by the sum over all ranks, bit for bit the same on each rank.

        Collective: every rank of the group must call it. Blocks until all have, and raises RanksLost if one has died.
        """

    def check(self) -> None:
        """Raise RanksLost if a rank of the group has died; for code that waits by other means."""


def check_end(dest: int, size: int) -> None:
    """Raise ProtocolError unless `dest` is the number of one of `size` ends."""
    if not 0 <= dest < size:
        raise ProtocolError(f"There is no end {dest}, but only 0 to {size - 1}.")


#: spin time in seconds, enough for a prompt answer: a check takes 1-2 us, a sleep at least 60 us
SPIN_S = 50e-6
#: longest pause between two checks, seconds; measured: 1 ms costs 2 % of a core and 1.7 ms of latency
LONGEST_PAUSE_S = 1e-3
#: after so many seconds of waiting the longest pause doubles, which halves the CPU time
QUIET_S = 1.0
LONGEST_QUIET_PAUSE_S = 2e-3
#: if every message wakes the rank, checks only serve signals, deadlines, failures, and messages that MPI has held back:
#: a pause is this fraction of the time already waited, up to the longest, seconds
_RUNG_PART, LONGEST_RUNG_PAUSE_S = 1 / 8, 64e-3
_FIRST_PAUSE_S = 20e-6


def wait_until(look: Callable[[], bool], timeout_s: float | None = None, transport: Transport | None = None) -> bool:
    """Call `look` until it returns True; return False if `timeout_s` seconds pass before.

    This is the only waiting primitive. It spins briefly, then sleeps between calls, up to a millisecond. `look` must
    check everything that the rank has to notice while it waits: messages, signals, deadlines, failures. A message of
    `transport` ends a sleep if its sender can wake this end; if all ends can, there is no spinning. An exception of
    `look` ends the wait.

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
        RanksLost: a vital end of one transport is lost, and no message is left.
    """
    found: list[tuple[Transport, Received]] = []

    def look() -> bool:
        for transport in transports:
            received = transport.poll()
            if received is not None:
                found.append((transport, received))
                return True
        return until is not None and until()

    # All transports of a process share one wake-up. If one of them lacks it, the wait must not rely on it.
    least = min(transports, key=lambda transport: transport.rings)
    wait_until(look, timeout_s, least)
    return found[0] if found else None
