"""Other processes of this node, as a process that watches them sees them: heartbeats, states, ends.

Everything hangs on `/proc` and on process file descriptors, which hold on to a process whatever becomes of its number.
Where these are not to be had (another system, processes in containers of their own) `Peer.of` finds out.
"""

import mmap
import os
import select
import signal
import struct
from contextlib import suppress

import psutil

from nnlo_opt.runtime.handles import Handle, memory

#: heartbeats, and 1 where the process may be silent
_BEATS = struct.Struct("<QQ")


class Heart:
    """The heartbeats of this process, in memory that others of its node can read."""

    def __init__(self) -> None:
        """OSError where the system has no such memory."""
        file = memory("nnlo_opt-heart")
        os.ftruncate(file, _BEATS.size)
        self._memory = mmap.mmap(file, _BEATS.size)
        self._n_beats = 0
        #: tells others how to find it, HANDLE_BYTES bytes
        self.handle = Handle.of(file).pack()

    def beat(self, *, may_be_silent: bool) -> None:
        """Show that the interpreter runs; `may_be_silent`: code of a user is at work, which may keep it from that."""
        self._n_beats += 1
        _BEATS.pack_into(self._memory, 0, self._n_beats, may_be_silent)


class Peer:
    """A process of this node that gave a handle."""

    def __init__(self, world_rank: int, handle: bytes) -> None:
        """OSError where it cannot be reached from here."""
        self.world_rank = world_rank
        of_peer = Handle.unpack(handle)
        self.pid = of_peer.pid
        #: becomes readable when the process ends
        self.process = os.pidfd_open(self.pid)
        try:
            heart = of_peer.open(os.O_RDONLY)
            try:
                self._memory = mmap.mmap(heart, _BEATS.size, prot=mmap.PROT_READ)
            finally:
                os.close(heart)
        except (OSError, ValueError) as error:
            os.close(self.process)
            raise OSError(f"process {self.pid} cannot be watched: {error}") from error

    @classmethod
    def of(cls, world_rank: int, handle: bytes) -> "Peer | None":
        """The rank that gave `handle`; None if it cannot be reached from here."""
        with suppress(OSError, AttributeError):
            return cls(world_rank, handle)
        return None

    @property
    def beats(self) -> int:
        """Heartbeats so far."""
        return int(_BEATS.unpack_from(self._memory)[0])

    @property
    def may_be_silent(self) -> bool:
        """Whether its heart may stand still, as code of a user is at work."""
        return bool(_BEATS.unpack_from(self._memory)[1])

    @property
    def has_ended(self) -> bool:
        """Whether the process is no more, or a zombie."""
        poll = select.poll()
        poll.register(self.process, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def is_stopped(self) -> bool:
        """True if a signal has stopped the process (SIGSTOP); not if a debugger has, at which somebody sits."""
        with suppress(psutil.Error):
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False

    def kill(self) -> None:
        """End it: SIGKILL reaches a stopped process too."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)
