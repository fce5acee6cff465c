"""How messages travel, and the one way to wait for them.

A transport joins numbered ends. Sending never blocks; messages between two ends arrive in the order they were sent.
The payload of a received message is a view that holds until the next `poll` of the same transport.

Where ranks may die and the others live on (ULFM), a transport knows which ends are *lost*, and which of them are vital
to it. What has come before a loss is handed out first; when nothing is left, `poll` raises `RanksLost` for ever.
"""

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nnlo_opt.comm.messages import Message


class RanksLost(BaseException):
    """Ranks that this one cannot go on without have died, or the others have noticed that.

    Control flow, not an error of a trial: no handler of those, ours or a user's, may take it for one, so it is no
    `Exception`. `run.server` and the entry points take it.
    """


@dataclass(frozen=True, slots=True)
class Received:
    """A message, the end that sent it, and the float32 vector that came with it."""

    source: int
    message: Message
    payload: np.ndarray | None


class SharedMemory(Protocol):
    """Memory that the ends of a transport write to in turn."""

    #: uint8, one-dimensional, as every end sees it
    bytes: np.ndarray
    #: tells other ends where it is
    place: tuple[int, int]

    def acquire(self, lock: int) -> None:
        """Wait for the lock of this number, which no other end has then; none may ask twice for one it has."""

    def release(self, lock: int) -> None:
        """Give it back. The death of who has a lock does so too."""


class Transport(Protocol):
    """One end of a group of numbered ends."""

    #: number of this end
    rank: int
    #: number of ends
    size: int
    #: number of processes they are in
    n_processes: int

    @property
    def rings(self) -> bool:
        """Whether every end, when it sends, ends a `pause` here."""
        return False

    @property
    def lost(self) -> Set[int]:
        """Ends whose processes have died, as far as this one knows; they only become more."""
        return frozenset()

    def blame(self, error: BaseException) -> None:
        """Raise RanksLost where `error`, of a call of one's own to MPI, comes of the death of a rank."""
        return

    def pause(self, seconds: float) -> None:
        """Sleep, at most so long: an end that can ring ends it when it sends."""
        time.sleep(seconds)

    def share(self, n_bytes: int, ends: Iterable[int] | None = None) -> SharedMemory | None:
        """Return new memory, all zeros, that `ends` (None: all) may join while it is kept; None if one cannot."""
        return None

    def join(self, source: int, place: tuple[int, int]) -> SharedMemory:
        """What the end `source` shares at `place`; OSError when it has let go of it."""
        raise OSError("the ends of this transport share no memory")

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        """Send to end `dest`. The payload is copied before the call returns. To a lost end it does nothing."""

    def poll(self) -> Received | None:
        """Take the next message that has arrived, or None at once; RanksLost where vital ends are lost, and no more."""

    def flush(self, timeout_s: float) -> None:
        """Wait until everything sent has left, at most `timeout_s`."""


class Collective(Protocol):
    """A group of ranks that call the same things in the same order."""

    def sum_in_place(self, vector: np.ndarray) -> None:
        """Replace `vector` (float32, one-dimensional) by the sum over all ranks, the same bits on each.

        Collective: every rank of the group. It blocks until all have called it; RanksLost where one cannot.
        """

    def check(self) -> None:
        """Raise RanksLost where a rank of the group has died; for who waits for the others in another way."""


#: Iprobe costs 1-2 us, a sleep at least 60 us: spinning this long covers a prompt answer
SPIN_S = 50e-6
#: the longest pause between two looks; measured: 1 ms costs 2 % of a core and 1.7 ms of latency
LONGEST_PAUSE_S = 1e-3
#: who has waited this long is in no hurry: then the longest pause is twice that, for half the CPU
QUIET_S = 1.0
LONGEST_QUIET_PAUSE_S = 2e-3
#: where all that comes rings, a look is only for what does not: signals, deadlines, failures, and messages that MPI has
#: had to hold back. So the pause is this part of the time already waited, up to so long
_RUNG_PART, LONGEST_RUNG_PAUSE_S = 1 / 8, 64e-3
_FIRST_PAUSE_S = 20e-6


def wait_until(look: Callable[[], bool], timeout_s: float | None = None, transport: Transport | None = None) -> bool:
    """Call `look` until it returns True (-> True) or `timeout_s` has passed (-> False).

    The one waiting primitive: it spins shortly, then sleeps between looks, ever longer up to a millisecond. Whatever
    a rank has to notice while it waits (messages, signals, deadlines, failures) belongs in `look`. `transport` is one
    whose messages end a sleep, where its ends can do that; if all can, there is no need to spin.
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
    """Wait for the next message on any of `transports`; None when `timeout_s` has passed, or `until` says so."""
    found: list[tuple[Transport, Received]] = []

    def look() -> bool:
        for transport in transports:
            received = transport.poll()
            if received is not None:
                found.append((transport, received))
                return True
        return until is not None and until()

    # What rings on the least of them rings on all: a bell belongs to a process.
    least = min(transports, key=lambda transport: transport.rings)
    wait_until(look, timeout_s, least)
    return found[0] if found else None
