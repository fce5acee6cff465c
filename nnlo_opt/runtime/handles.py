"""Handles: how processes of one node reach each other's open files.

`/proc/<pid>/fd` leads to an open file of another process of the same user: nothing has a name, so nothing is left
behind, however a process ends. A process gives others a handle of such a file. The same number may be another process
where the handle was given in another container, so it proves whose it is by a token, which stands in a file as well.
"""

import mmap
import os
import struct
from typing import NamedTuple

_TOKEN_BYTES = 16
_PACKED = struct.Struct(f"<QII{_TOKEN_BYTES}s")
HANDLE_BYTES = _PACKED.size


class Handle(NamedTuple):
    """Of one open file of a process."""

    pid: int
    #: numbers of the files: of that with the token, and of that which the handle is for
    token_file: int
    file: int
    token: bytes

    @classmethod
    def of(cls, file: int) -> "Handle":
        """A handle of this process, for its open file `file`; OSError as `memory`."""
        token = os.urandom(_TOKEN_BYTES)
        token_file = memory("nnlo_opt-token")
        os.write(token_file, token)
        return cls(os.getpid(), token_file, file, token)

    def pack(self) -> bytes:
        """HANDLE_BYTES bytes, to be given to others."""
        return _PACKED.pack(*self)

    @classmethod
    def unpack(cls, handle: bytes) -> "Handle":
        """Inverse of `pack`."""
        return cls(*_PACKED.unpack(handle))

    def open(self, flags: int) -> int:
        """Open the file, as `os.open` does; OSError where it cannot be reached from here."""
        if self._token_there() != self.token:
            raise OSError(f"process {self.pid} is another one here")
        return open_file(self.pid, self.file, flags)

    def _token_there(self) -> bytes:
        # Mapped, not read: of another process it may be a pipe, from which nothing may be taken.
        file = open_file(self.pid, self.token_file, os.O_RDONLY | os.O_NONBLOCK)
        try:
            with mmap.mmap(file, _TOKEN_BYTES, prot=mmap.PROT_READ) as token:
                return token[:]
        except ValueError as error:
            raise OSError(f"a file of process {self.pid} is too short") from error
        finally:
            os.close(file)


def memory(name: str) -> int:
    """An open file in memory that no folder has, empty; OSError where the system has no such thing."""
    if not hasattr(os, "memfd_create"):
        raise OSError("no memory without a name on this system")
    return os.memfd_create(name)


def open_file(pid: int, file: int, flags: int) -> int:
    """Open file number `file` of process `pid` of this node, as `os.open` does; OSError when it has ended."""
    return os.open(f"/proc/{pid}/fd/{file}", flags | os.O_CLOEXEC)
