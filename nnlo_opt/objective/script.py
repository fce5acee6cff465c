"""Script under way, with its output."""

import os
import re
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnlo_opt.objective.output import SOCKET
from nnlo_opt.runtime.environment import start_helper
from nnlo_opt.safe_path import SafePath

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
#: bytes of a log, of the end of the output that is kept, of a line that is read, and of one look
MOST_LOGGED, _TAIL, _LINE, _LOOK = 2**24, 2**14, 2**16, 2**18
_NEW_LINE = re.compile(rb"[\r\n]+")


class Script:
    """Script of a trial on this rank, started when constructed, with all that it starts.

    Args:
        words: of its command.
        environ: its environment.
        log: file to which its output is added.
        take: takes in its lines, each with the connection on which it has come; None: it was printed.
        folder: in which it starts; None: that of this process.
    """

    def __init__(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        log: SafePath,
        take: Callable[[str, socket.socket | None], None],
        folder: str | None = None,
    ) -> None:
        self._take = take
        self._log = log.open("ab", buffering=0)
        #: number of bytes in the log, or left out
        self._n_logged = os.fstat(self._log.fileno()).st_size
        #: end of the output
        self._tail = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("")  # Linux chooses a name, which is in no folder
        self._listener.listen()
        name = self._listener.getsockname()[1:].decode()
        command = [sys.executable, "-I", "-S", str(_SUPERVISOR), *words]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process: Any = start_helper(command, {**environ, SOCKET: name}, bufsize=0, cwd=folder, **pipes)
        self._selector = selectors.DefaultSelector()
        streams: list[Any] = [self._listener, self._process.stdout, self._process.stderr]
        for stream in streams:
            self._selector.register(stream, selectors.EVENT_READ, [b""])

    @property
    def code(self) -> int | None:
        """Code with which it has ended; None while it runs."""
        return self._process.poll()

    @property
    def tail(self) -> str:
        """The end of its output."""
        return self._tail.decode(errors="replace")

    def look(self, timeout_s: float) -> bool:
        """Take in what it has written, for which to wait at most so long; return True if there was anything."""
        found = self._selector.select(timeout_s)
        for key, _ in found:
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.fileobj, key.data)
        return bool(found)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        of_peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", of_peer)[1] == os.getuid():
            self._selector.register(connection, selectors.EVENT_READ, [b""])
        else:
            connection.close()

    def _read(self, source: Any, rest: list[bytes]) -> None:
        """Read a part of a stream; `rest`: its last line so far."""
        data = os.read(source.fileno(), _LOOK)
        connection = source if isinstance(source, socket.socket) else None
        if connection is None:
            self._tail = (self._tail + data)[-_TAIL:]
            room = max(MOST_LOGGED - self._n_logged, 0)
            self._n_logged += len(data)
            self._write(data[:room])
        *lines, rest[0] = _NEW_LINE.split(rest[0] + data) if data else [rest[0], b""]
        rest[0] = rest[0][:_LINE]
        if not data or (connection is not None and lines):
            self._selector.unregister(source)
        for line in filter(None, lines):
            self._take(line.decode(errors="replace"), connection)

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk, of which the script will tell
            self._log.write(data)

    def stop(self) -> None:
        """Send SIGTERM to it."""
        with suppress(OSError):
            self._process.stdin.write(b"T")

    def close(self) -> None:
        """Kill it with all that it has started; return when nothing is left."""
        self._process.stdin.close()
        self._process.wait()
        while self.look(0.0):
            pass
        if self._n_logged > MOST_LOGGED:
            self._write(b"\n[%d bytes in all; these are the last ones:]\n%s" % (self._n_logged, self._tail))
        ends: list[Any] = [key.fileobj for key in self._selector.get_map().values()]
        for end in (self._selector, self._log, self._process.stdout, self._process.stderr, *ends):
            end.close()
