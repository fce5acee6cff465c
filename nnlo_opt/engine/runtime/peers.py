"""Watching other processes of the same node.

A process is watched through its process file descriptor (pidfd), which stays valid when the process id is reused, and
becomes readable when the process ends. psutil would have to be polled. If the system has no such descriptors, or the
processes are in different containers, `Peer.of` returns None.
"""

import mmap
import os
import select
import signal
import struct
from contextlib import suppress

from nnlo_opt.engine.runtime.handles import Handle, memory

#: number of heartbeats, and 1 if they may pause
_BEATS = struct.Struct("<QQ")


class Heart:
    """Heartbeats of this process, in memory shared with other processes of the node."""

    def __init__(self) -> None:
        """Raise OSError if the system does not support unnamed files in memory."""
        file = memory("nnlo_opt-heart")
        os.ftruncate(file, _BEATS.size)
        self._memory = mmap.mmap(file, _BEATS.size)
        self._n_beats = 0
        #: HANDLE_BYTES bytes with which other processes open this memory
        self.handle = Handle.of(file).pack()

    def beat(self, *, may_be_silent: bool) -> None:
        """Count a heartbeat; `may_be_silent`: user code runs, which may block the interpreter."""
        self._n_beats += 1
        _BEATS.pack_into(self._memory, 0, self._n_beats, may_be_silent)


def has_ended(process: int) -> bool:
    """Return True if the process of a pidfd has ended, even if it is still a zombie."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


class Peer:
    """Another process of this node, known by its handle.

    Raises:
        OSError: the process cannot be reached from here.
    """

    def __init__(self, world_rank: int, handle: bytes) -> None:
        self.world_rank = world_rank
        of_peer = Handle.unpack(handle)
        self.pid = of_peer.pid
        #: becomes readable when the process ends
        self.process = os.pidfd_open(self.pid)
        try:
            with open(of_peer.open(os.O_RDONLY), "rb", buffering=0) as heart:
                self._memory = mmap.mmap(heart.fileno(), _BEATS.size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            os.close(self.process)
            raise OSError(f"process {self.pid} cannot be watched: {error}") from error

    @classmethod
    def of(cls, world_rank: int, handle: bytes) -> "Peer | None":
        """Return the rank with this handle, or None if it cannot be reached from here."""
        with suppress(OSError, AttributeError):
            return cls(world_rank, handle)
        return None

    @property
    def beats(self) -> int:
        """Number of heartbeats so far."""
        return int(_BEATS.unpack_from(self._memory)[0])

    @property
    def may_be_silent(self) -> bool:
        """True if heartbeats may pause, because user code runs."""
        return bool(_BEATS.unpack_from(self._memory)[1])

    @property
    def has_ended(self) -> bool:
        """True if the process has ended, even if it is still a zombie."""
        return has_ended(self.process)

    @property
    def is_stopped(self) -> bool:
        """True if a signal has stopped the process (SIGSTOP); False if a debugger has, because a person is using it."""
        import psutil

        with suppress(psutil.Error):
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False

    def kill(self) -> None:
        """Kill the process by SIGKILL, which also works on a stopped one."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)
