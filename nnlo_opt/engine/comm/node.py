"""Shared memory between processes of a node, with a bell to wake a waiting process.

MPI moves a large message by a handshake and two copies, and a rank that waits has to look for it again and again. Here
the sender writes a payload once, into memory that the receiver maps; the MPI message only says at which place. The
sender also rings, so that the receiver may sleep. On a shared core this makes an exchange of 35,000 weights three times
as cheap.

Processes reach each other by handles (`engine.runtime.handles`). If they cannot (another system, processes in different
containers), `Neighbour.of` returns None, and messages travel by MPI alone.

`Bell` belongs to a process, `Neighbour` to a pair of processes, `Outbox` and `Inbox` to one direction of a pair of ends
of a transport. Many processes write to `CommonMemory`.
"""

import fcntl
import math
import mmap
import os
import select
import time
import weakref
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.engine.runtime.handles import Handle, memory, open_file

#: payloads in flight per direction: a worker pushes again before it learns that its last push has been read
_N_SLOTS = 2
#: slots begin at multiples of a page
_PAGE_BYTES = 4096
#: a larger payload takes too much memory, and its copies take long compared with a handshake
_LARGEST_BYTES = 64 << 20
#: seconds for which a process that finds a lock taken tries again before it sleeps: about as long as a lock is held. To
#: fall asleep and be woken takes longer, and cost two workers a twentieth of their throughput
_SPIN_S = 3e-4

#: lines of a bell; if there are more transports, several share a line
N_LINES = 256
#: seconds between two looks at the bell; a ring in between is noticed by the next look
_SAME_MOMENT_S = 10e-6
_RINGS = [bytes([line]) for line in range(N_LINES)]


class Bell:
    """Bell that wakes this process when another process of its node has sent something, and says on which line.

    A line belongs to a transport, and has the same number at all ends of the transport.
    """

    def __init__(self) -> None:
        self._listening, self._ringing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ear = select.poll()
        self._ear.register(self._listening, select.POLLIN)
        #: number of rings heard on each line; the numbers grow
        self._n_rings = [0] * N_LINES
        #: time of the last look, perf_counter seconds
        self._listened_at_s = 0.0
        #: time at which a ring was last heard, perf_counter seconds
        self.rang_at_s = -math.inf
        #: True if a ring was heard since the last `wait` returned
        self._was_rung = False
        #: first line that no transport of this process has
        self.free_line = 0
        #: HANDLE_BYTES bytes by which other processes reach this one
        self.handle = Handle.of(self._ringing).pack()

    @classmethod
    @cache
    def mine(cls) -> "Bell | None":
        """Return the bell of this process, or None if the system has no memory without a name."""
        with suppress(OSError):
            return cls()
        return None

    def listen(self, line: int) -> int:
        """Return how often `line` has rung. A message sent before a ring has arrived when the ring is heard."""
        # Transports are polled one after another: one call to the system serves all of them.
        now_s = time.perf_counter()
        if now_s - self._listened_at_s > _SAME_MOMENT_S:
            self._listened_at_s = now_s
            if self._ear.poll(0):
                self._answer()
        return self._n_rings[line]

    def wait(self, seconds: float) -> None:
        """Sleep until a process rings, at most `seconds`. A ring since the last call ends the sleep at once."""
        # `_ear` is not used, as it only knows whole milliseconds.
        if not self._was_rung and select.select([self._listening], [], [], seconds)[0]:
            self._answer()
        self._was_rung = False

    def _answer(self) -> None:
        self._was_rung, self.rang_at_s = True, time.perf_counter()
        with suppress(BlockingIOError):
            for line in os.read(self._listening, 1 << 16):
                self._n_rings[line] += 1


class Neighbour:
    """Another process of this node, as seen from this one."""

    def __init__(self, handle: Handle) -> None:
        """Raise OSError if the process cannot be reached from here."""
        self._pid = handle.pid
        self._bell = handle.open(os.O_WRONLY | os.O_NONBLOCK)

    @classmethod
    @cache
    def of(cls, handle: bytes) -> "Neighbour | None":
        """Return the process that gave `handle`, which transports share; None if it cannot be reached from here."""
        with suppress(OSError):
            return cls(Handle.unpack(handle))
        return None

    def ring(self, line: int) -> None:
        """Wake the process. If it has ended, or its bell is full of rings, there is nothing to do."""
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._bell, _RINGS[line])

    def join(self, place: tuple[int, int]) -> "CommonMemory":
        """Return the memory at `place` of the process; raises OSError if the process no longer keeps it."""
        return CommonMemory(open_file(self._pid, place[0], os.O_RDWR), place[1])


class CommonMemory:
    """Memory to which processes of this node write in turn; they agree on what each lock guards.

    The locks are POSIX record locks of the nameless file: if a process dies, the kernel gives its locks back.
    """

    def __init__(self, file: int, n_bytes: int) -> None:
        """Map `file`, an open file of this process, which is closed with this object."""
        mapped = mmap.mmap(file, n_bytes)
        mapped.madvise(mmap.MADV_DONTFORK)  # a process that code of a user forks ends if it writes to it
        #: the memory, (n_bytes,)
        self.bytes = np.frombuffer(mapped, np.uint8)
        #: the only open file of this memory in this process: closing another one would drop all locks
        self._file = file
        self._closing = weakref.finalize(self, os.close, file)
        #: place by which other processes reach the memory, together with the handle of this process
        self.place = (file, n_bytes)

    @classmethod
    def create(cls, n_bytes: int) -> "CommonMemory | None":
        """Return new memory of zeros, or None if there is no room for it."""
        file = memory("nnlo_opt-common")
        try:
            # The pages are allocated now: if one were missing when it is used, the process would end.
            os.posix_fallocate(file, 0, n_bytes)
            return cls(file, n_bytes)
        except OSError:
            os.close(file)
            return None

    def acquire(self, lock: int) -> None:
        """Wait for lock number `lock`. Not reentrant: acquiring a lock twice deadlocks."""
        until_s = time.perf_counter() + _SPIN_S
        while time.perf_counter() < until_s:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lock)
                return
            except BlockingIOError:
                os.sched_yield()  # the process that has the lock may wait for this core
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, lock)

    def release(self, lock: int) -> None:
        """Release the lock."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, lock)


class Place(NamedTuple):
    """Place of a payload in memory of the sender."""

    #: number of the sender's open file, and number of files that it has had for this direction
    file: int = 0
    generation: int = 0
    #: size of the file
    file_bytes: int = 0
    offset: int = 0
    n_bytes: int = 0


#: place of a message without payload
NOWHERE = Place()


class Outbox:
    """Memory for payloads to one end, `_N_SLOTS` of them at a time."""

    def __init__(self) -> None:
        #: number of payloads written, and number that the receiver has read; it reads them in order
        self._n_written = self.n_released = 0
        #: memory of all slots, with its file; None before the first payload
        self._memory: CommonMemory | None = None
        self._generation = 0
        self._slot_bytes = 0

    def put(self, payload: NDArray[np.float32]) -> Place | None:
        """Copy `payload` (n,) and return its place, or None if there is no room now."""
        in_flight = self._n_written - self.n_released
        if in_flight >= _N_SLOTS or payload.nbytes > _LARGEST_BYTES:
            return None
        if payload.nbytes > self._slot_bytes and not in_flight:
            self._grow(payload)
        if payload.nbytes > self._slot_bytes or self._memory is None:
            return None
        offset = self._n_written % _N_SLOTS * self._slot_bytes
        self._memory.bytes[offset : offset + payload.nbytes].view(np.float32)[:] = payload
        self._n_written += 1
        file, n_bytes = self._memory.place
        return Place(file, self._generation, n_bytes, offset, payload.nbytes)

    def _grow(self, payload: NDArray[np.float32]) -> None:
        slot_bytes = -(-payload.nbytes // _PAGE_BYTES) * _PAGE_BYTES
        if memory := CommonMemory.create(_N_SLOTS * slot_bytes):
            self._memory, self._slot_bytes = memory, slot_bytes
            self._generation += 1


class Inbox:
    """Memory of another end, which holds its payloads."""

    def __init__(self, neighbour: Neighbour) -> None:
        self._neighbour = neighbour
        self._generation = 0
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        #: number of payloads that are no longer in use
        self.n_released = 0

    def view(self, place: Place) -> NDArray[np.float32]:
        """Return the payload at `place`, (n,); raises OSError if the sender ended before its memory was mapped."""
        if place.generation != self._generation:
            self._memory = self._neighbour.join((place.file, place.file_bytes)).bytes
            self._generation = place.generation
        return self._memory[place.offset : place.offset + place.n_bytes].view(np.float32)
