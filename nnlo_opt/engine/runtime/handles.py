"""Handles for opening files of other processes on the same node.

`/proc/<pid>/fd` leads to an open file of another process of the same user. The file needs no name, so nothing is left
behind, however a process ends. A process gives a handle of the file to other processes. If a handle was made in another
container, its process number may belong to another process here. So a handle also holds a token, which stands in a
second file of the process that made the handle.
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
    #: numbers of two open files: the file with the token, and the file that the handle is for
    token_file: int
    file: int
    token: bytes

    @classmethod
    def of(cls, file: int) -> "Handle":
        """Return a handle of this process for its open file `file`; raises OSError as `memory` does."""
        token = os.urandom(_TOKEN_BYTES)
        token_file = memory("nnlo_opt-token")
        os.write(token_file, token)
        return cls(os.getpid(), token_file, file, token)

    def pack(self) -> bytes:
        """Return HANDLE_BYTES bytes to send to other processes."""
        return _PACKED.pack(*self)

    @classmethod
    def unpack(cls, handle: bytes) -> "Handle":
        """Return the handle that `pack` has made these bytes of."""
        return cls(*_PACKED.unpack(handle))

    def open(self, flags: int) -> int:
        """Open the file as `os.open` does; raises OSError if it cannot be reached from here."""
        if self._token_there() != self.token:
            raise OSError(f"number {self.pid} is another process here")
        return open_file(self.pid, self.file, flags)

    def _token_there(self) -> bytes:
        # The file is mapped, not read: in another process this number may be a pipe, from which nothing may be taken.
        file = open_file(self.pid, self.token_file, os.O_RDONLY | os.O_NONBLOCK)
        try:
            with mmap.mmap(file, _TOKEN_BYTES, prot=mmap.PROT_READ) as token:
                return token[:]
        except ValueError as error:
            raise OSError(f"a file of process {self.pid} is too short") from error
        finally:
            os.close(file)


def memory(name: str) -> int:
    """Return a new, empty file in memory, which has no name in any folder; raises OSError if the system has none."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memory without a name")
    return os.memfd_create(name)


def open_file(pid: int, file: int, flags: int) -> int:
    """Open file number `file` of process `pid` of this node as `os.open` does; raises OSError if the process ended."""
    return os.open(f"/proc/{pid}/fd/{file}", flags | os.O_CLOEXEC)
