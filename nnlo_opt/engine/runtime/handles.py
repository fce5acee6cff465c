"""Handles for opening files of other processes on the same node.

`/proc/<pid>/fd` gives access to open files of another process of the same user. The file needs no name, so nothing is
left behind, however a process ends. A process sends a handle of the file to other processes. If the handle comes from
another container, its process id may belong to a different process here. So a handle also contains a token, which is
compared with a second file of the process that made the handle.
"""

import mmap
import os
import struct
from typing import NamedTuple

_TOKEN_BYTES = 16
_PACKED = struct.Struct(f"<QII{_TOKEN_BYTES}s")
HANDLE_BYTES = _PACKED.size


class Handle(NamedTuple):
    """Handle of one open file of a process."""

    pid: int
    #: file descriptors of the file with the token, and of the file itself
    token_file: int
    file: int
    token: bytes

    @classmethod
    def of(cls, file: int) -> "Handle":
        """Return a handle for the open file `file` of this process; raises OSError like `memory`."""
        token = os.urandom(_TOKEN_BYTES)
        token_file = memory("nnlo_opt-token")
        os.write(token_file, token)
        return cls(os.getpid(), token_file, file, token)

    def pack(self) -> bytes:
        """Return HANDLE_BYTES bytes to send to other processes."""
        return _PACKED.pack(*self)

    @classmethod
    def unpack(cls, handle: bytes) -> "Handle":
        """Decode the result of `pack`."""
        return cls(*_PACKED.unpack(handle))

    def open(self, flags: int) -> int:
        """Open the file like `os.open`; raises OSError if it cannot be reached from here."""
        if self._token_there() != self.token:
            raise OSError(f"number {self.pid} is another process here")
        return open_file(self.pid, self.file, flags)

    def _token_there(self) -> bytes:
        # Map the file instead of reading: in the wrong process it may be a pipe, and reading would steal data.
        file = open_file(self.pid, self.token_file, os.O_RDONLY | os.O_NONBLOCK)
        try:
            with mmap.mmap(file, _TOKEN_BYTES, prot=mmap.PROT_READ) as token:
                return token[:]
        except ValueError as error:
            raise OSError(f"a file of process {self.pid} is too short") from error
        finally:
            os.close(file)


def memory(name: str) -> int:
    """Return a new, empty, unnamed file in memory; raises OSError if the system does not support it."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memory without a name")
    return os.memfd_create(name)


def open_file(pid: int, file: int, flags: int) -> int:
    """Open file descriptor `file` of process `pid` on this node like `os.open`; raises OSError if it has ended."""
    return os.open(f"/proc/{pid}/fd/{file}", flags | os.O_CLOEXEC)
