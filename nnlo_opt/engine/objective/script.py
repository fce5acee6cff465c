"""Running script of a trial, and its output."""

import fcntl
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.engine.objective.output import SOCKET, Lines
from nnlo_opt.engine.runtime.environment import start_helper

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
#: limits in bytes: log, end of the output that is kept, one read
MOST_LOGGED, _TAIL, _LOOK = 2**24, 2**14, 2**20
#: signals that are sent by a machine or a person rather than caused by the code
_BY_CHANCE = (signal.SIGKILL, signal.SIGBUS, signal.SIGTERM)
#: wait status of a process
_STATUS = struct.Struct("=i")


class Script:
    """Script of a trial on this rank, with all processes it starts; started when constructed.

    Args:
        words: words of the command.
        environ: environment of the script.
        log: file to append the output to.
        take: called with each line and the connection it came on, or None if it was printed.
        folder: working folder of the script; None for that of this process.
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
        #: number of bytes written to the log or omitted
        self._n_logged = os.fstat(self._log.fileno()).st_size
        #: end of the output
        self._tail = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("")  # Linux chooses an abstract name
        self._listener.listen()
        name = self._listener.getsockname()[1:].decode()
        command = [sys.executable, "-I", "-S", str(_SUPERVISOR), *words]
        #: connection to the supervisor and its guard; closed when both have exited
        self._supervisor, end = socket.socketpair()
        with end:
            pipes: dict[str, Any] = {"stdin": end, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            given = {**environ, SOCKET: name}
            self._process: Any = start_helper(command, given, bufsize=0, cwd=folder, **pipes)
        #: exit status of the first process, if it ended by itself; exit code of the supervisor, once it has exited
        self._status: int | None = None
        self._code: int | None = None
        #: True if this rank has sent SIGTERM to the script; SIGKILL
        self._was_stopped, self._was_killed = False, False
        self._selector = selectors.DefaultSelector()
        streams: list[Any] = [self._listener, self._process.stdout, self._process.stderr]
        for stream in streams:
            self._selector.register(stream, selectors.EVENT_READ, Lines())
        for pipe in streams[1:]:
            with suppress(OSError):  # pipe memory per user may be limited
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _LOOK)

    @property
    def code(self) -> int | None:
        """Exit code, once the script and all its processes have ended; None while it runs."""
        if self._code is None:
            with suppress(BlockingIOError):
                self._code = self._hear(socket.MSG_DONTWAIT)
        return self._code

    def _hear(self, flags: int = 0) -> int:
        """Return the exit code, once supervisor and guard have exited, too."""
        with suppress(ConnectionResetError):  # a byte was sent too late
            while said := self._supervisor.recv(_STATUS.size, flags):
                self._status = _STATUS.unpack(said)[0]
        return int(self._process.wait())

    @property
    def killed_by(self) -> signal.Signals | None:
        """Signal that killed its first process or its supervisor, unless sent by us; else None.

        For the first process only signals that are not caused by the program.
        """
        if self._was_stopped or self.code is None:
            return None
        if self._status is not None:
            number = os.WTERMSIG(self._status)
            return signal.Signals(number) if number in _BY_CHANCE else None
        number = max(-self.code, self.code - 128)  # from the guard, which returns the code of a killed supervisor
        return signal.Signals(number) if number > 0 and not self._was_killed else None

    @property
    def tail(self) -> str:
        """The end of its output."""
        return self._tail.decode(errors="replace")

    def look(self, timeout_s: float) -> bool:
        """Read its output, waiting at most `timeout_s`; return True if there was any."""
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
            self._selector.register(connection, selectors.EVENT_READ, Lines())
        else:
            connection.close()

    def _read(self, source: Any, lines: Lines) -> None:
        """Read a part of a stream."""
        data = os.read(source.fileno(), _LOOK)
        connection = source if isinstance(source, socket.socket) else None
        if connection is None:
            self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]
            room = max(MOST_LOGGED - self._n_logged, 0)
            self._n_logged += len(data)
            self._write(data[:room])
        ended = lines.take(data)
        if not data or (connection is not None and ended):
            self._selector.unregister(source)
        for line in ended:
            self._take(line, connection)

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk, which the script will report
            self._log.write(data)

    def stop(self) -> None:
        """Send SIGTERM to its first process that is not a shell (`supervisor`)."""
        self._was_stopped = True
        with suppress(OSError):
            self._supervisor.send(b"T")

    def close(self) -> None:
        """Kill it and all its processes; return when nothing is left. Idempotent."""
        if self._log.closed:
            return
        if self.code is None:
            self._was_killed = True
            with suppress(OSError):
                self._supervisor.shutdown(socket.SHUT_WR)
            self._code = self._hear()
        while self.look(0.0):
            pass
        if self._n_logged > MOST_LOGGED:
            self._write(b"\n[%d bytes in all; these are the last ones:]\n%s" % (self._n_logged, self._tail))
        ends: list[Any] = [key.fileobj for key in self._selector.get_map().values()]
        for end in (self._selector, self._log, self._supervisor, self._process.stdout, self._process.stderr, *ends):
            end.close()
