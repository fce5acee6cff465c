"""What processes of one node have besides MPI: memory that both see, and a bell that wakes a sleeper.

MPI moves a large message by a handshake and two copies, and a rank that waits has to look for it again and again. Here
a payload is written once, into memory of the sender that the receiver maps, and the MPI message only says where; and
a sender rings, so that a receiver may sleep meanwhile. On a core that is shared this makes an exchange of 35,000
weights three times as cheap.

Processes reach each other by handles (`runtime.handles`). Where that is not to be had (another system, processes in
containers of their own), `Neighbour.of` finds out, and messages travel by MPI alone.

`Bell` belongs to a process, a `Neighbour` to a pair of processes, `Outbox` and `Inbox` to one direction of a pair of
ends of a transport. `CommonMemory` is written by many.
"""

import fcntl
import math
import mmap
import os
import select
import time
import weakref
from contextlib import suppress
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.runtime.handles import Handle, memory, open_file

#: payloads in flight in one direction: a worker pushes before the answer that says its last push has been read
_N_SLOTS = 2
#: slots begin where pages do
_PAGE_BYTES = 4096
#: a larger payload costs too much memory, and its copies take long beside a handshake
_LARGEST_BYTES = 64 << 20
#: who finds a lock taken asks again for so long before it sleeps: about as long as it is held. To fall asleep and be
#: woken takes longer, and cost two workers a twentieth of their throughput; seconds
_SPIN_S = 3e-4

#: lines of a bell; transports share them where there are more
N_LINES = 256
#: what rings within so many seconds of the last look is heard by the next
_SAME_MOMENT_S = 10e-6
_RINGS = [bytes([line]) for line in range(N_LINES)]


class Bell:
    """Wakes this process when another one of its node has sent something, and tells on which line.

    A line is a transport's, the same number at all its ends.
    """

    #: the one of this process
    _mine: ClassVar["Bell | None"] = None

    def __init__(self) -> None:
        self._listening, self._ringing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ear = select.poll()
        self._ear.register(self._listening, select.POLLIN)
        #: by line, how often it was found rung; each grows
        self._n_rings = [0] * N_LINES
        #: when it was listened to last, perf_counter seconds
        self._listened_at_s = 0.0
        #: when any was last found rung, perf_counter seconds
        self.rang_at_s = -math.inf
        #: whether any was, since the last `wait` returned
        self._was_rung = False
        #: the first line that no transport of this process has
        self.free_line = 0
        #: tells others how to reach this process, HANDLE_BYTES bytes
        self.handle = Handle.of(self._ringing).pack()

    @classmethod
    def mine(cls) -> "Bell | None":
        """The bell of this process; None where the system has no such thing."""
        if cls._mine is None:
            with suppress(OSError):
                cls._mine = cls()
        return cls._mine

    def listen(self, line: int) -> int:
        """How often `line` has rung. What was sent before a ring has come when the ring is heard."""
        # Transports are looked at one after another: one question to the system serves them all.
        now_s = time.perf_counter()
        if now_s - self._listened_at_s > _SAME_MOMENT_S:
            self._listened_at_s = now_s
            if self._ear.poll(0):
                self._answer()
        return self._n_rings[line]

    def wait(self, seconds: float) -> None:
        """Sleep until somebody rings, at most `seconds`. Who has rung since the last time ends it at once."""
        # Not by `_ear`, which knows whole milliseconds only.
        if not self._was_rung and select.select([self._listening], [], [], seconds)[0]:
            self._answer()
        self._was_rung = False

    def _answer(self) -> None:
        self._was_rung, self.rang_at_s = True, time.perf_counter()
        with suppress(BlockingIOError):
            for line in os.read(self._listening, 1 << 16):
                self._n_rings[line] += 1


class Neighbour:
    """Another process of this node, as seen from here."""

    #: by handle, as transports share them
    _known: ClassVar[dict[bytes, "Neighbour | None"]] = {}

    def __init__(self, handle: Handle) -> None:
        """OSError where it cannot be reached from here."""
        self._pid = handle.pid
        self._bell = handle.open(os.O_WRONLY | os.O_NONBLOCK)

    @classmethod
    def of(cls, handle: bytes) -> "Neighbour | None":
        """The process that gave `handle`; None if it cannot be reached from here."""
        if handle not in cls._known:
            cls._known[handle] = None
            with suppress(OSError):
                cls._known[handle] = cls(Handle.unpack(handle))
        return cls._known[handle]

    def ring(self, line: int) -> None:
        """Wake it. It may have ended, or have been rung for often enough: neither is our concern."""
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._bell, _RINGS[line])

    def join(self, place: tuple[int, int]) -> "CommonMemory":
        """The memory that is `place` there; OSError when that process has let go of it."""
        return CommonMemory(open_file(self._pid, place[0], os.O_RDWR), place[1])

    def map(self, file: int, n_bytes: int) -> NDArray[np.uint8]:
        """Memory of that process, (n_bytes,); OSError when it has ended."""
        mine = open_file(self._pid, file, os.O_RDWR)
        try:
            return np.frombuffer(mmap.mmap(mine, n_bytes), np.uint8)
        finally:
            os.close(mine)


class CommonMemory:
    """Memory that processes of this node write to in turn; what of it a lock guards is theirs to agree on.

    The locks are the kernel's (POSIX record locks of the nameless file): who dies while holding one lets go of it.
    """

    def __init__(self, file: int, n_bytes: int) -> None:
        """Map `file`, an open file of this process, which is closed with this object."""
        #: (n_bytes,)
        self.bytes = np.frombuffer(mmap.mmap(file, n_bytes), np.uint8)
        #: the only file of this process that is this memory: closing any other would drop all of its locks
        self._file = file
        self._closing = weakref.finalize(self, os.close, file)
        #: by which other processes reach it, with the handle of this one
        self.place = (file, n_bytes)

    @classmethod
    def create(cls, n_bytes: int) -> "CommonMemory | None":
        """New memory of zeros; None where there is no room for it."""
        file = memory("nnlo_opt-common")
        try:
            os.posix_fallocate(file, 0, n_bytes)
            return cls(file, n_bytes)
        except OSError:
            os.close(file)
            return None

    def acquire(self, lock: int) -> None:
        """Wait for the lock of this number, which nobody else has then; no process may ask twice for one it has."""
        began_s = time.perf_counter()
        while not self._takes(lock):
            if time.perf_counter() - began_s > _SPIN_S:
                fcntl.lockf(self._file, fcntl.LOCK_EX, 1, lock)
                return
            os.sched_yield()  # for who has it may wait for this core

    def _takes(self, lock: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lock)
        except BlockingIOError:
            return False
        return True

    def release(self, lock: int) -> None:
        """Give it back."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, lock)


class Place(NamedTuple):
    """Where a payload is."""

    #: number of the sender's open file, and how many it has had for this direction
    file: int = 0
    generation: int = 0
    #: bytes of the file
    file_bytes: int = 0
    offset: int = 0
    n_bytes: int = 0


#: where no payload is
NOWHERE = Place()


class Outbox:
    """Memory for payloads to one end, `_N_SLOTS` of them at a time."""

    def __init__(self) -> None:
        #: payloads written, and how many of them the receiver has said to be through with; it takes them in order
        self._n_written = self.n_released = 0
        self._file = -1
        self._generation = 0
        self._slot_bytes = 0
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def put(self, payload: NDArray[np.float32]) -> Place | None:
        """Copy `payload` (n,); None when there is no room now."""
        in_flight = self._n_written - self.n_released
        if in_flight >= _N_SLOTS or payload.nbytes > _LARGEST_BYTES:
            return None
        if payload.nbytes > self._slot_bytes and (in_flight or not self._grow(payload)):
            return None
        offset = self._n_written % _N_SLOTS * self._slot_bytes
        self._memory[offset : offset + payload.nbytes].view(np.float32)[:] = payload
        self._n_written += 1
        return Place(self._file, self._generation, len(self._memory), offset, payload.nbytes)

    def _grow(self, payload: NDArray[np.float32]) -> bool:
        slot_bytes = -(-payload.nbytes // _PAGE_BYTES) * _PAGE_BYTES
        file = os.memfd_create("nnlo_opt-payloads")
        try:
            # Taken now, as a page that is not there when it is touched ends the process.
            os.posix_fallocate(file, 0, _N_SLOTS * slot_bytes)
            memory = np.frombuffer(mmap.mmap(file, _N_SLOTS * slot_bytes), np.uint8)
        except OSError:
            os.close(file)
            return False
        if self._file >= 0:
            os.close(self._file)
        self._file, self._memory, self._slot_bytes = file, memory, slot_bytes
        self._generation += 1
        return True


class Inbox:
    """The memory of one other end, in which its payloads come."""

    def __init__(self, neighbour: Neighbour) -> None:
        self._neighbour = neighbour
        self._generation = 0
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        #: payloads that nobody looks at any more
        self.n_released = 0

    def view(self, place: Place) -> NDArray[np.float32]:
        """The payload at `place`, (n,); OSError when the sender has ended before it was ever mapped."""
        if place.generation != self._generation:
            self._memory = self._neighbour.map(place.file, place.file_bytes)
            self._generation = place.generation
        return self._memory[place.offset : place.offset + place.n_bytes].view(np.float32)
