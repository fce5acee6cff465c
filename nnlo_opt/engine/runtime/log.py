"""Output of a rank: rank 0 writes to the terminal, every other rank to its log file.

Output of libraries and user code on other ranks, from C or Python, goes to the same file. Until the run directory is
known, a temporary file collects the output.
"""

import fcntl
import logging
import os
import stat
import sys
import tempfile
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TextIO

from nnlo_opt.core.base.errors import printable
from nnlo_opt.core.base.logs import WHOLE, log_path
from nnlo_opt.core.base.safe_path import SafePath

#: seconds that a rank waits, before it ends the job, for mpirun to read its output; and then to forward it
READ_S, FORWARD_S = 2.0, 0.05


def wait_until_read(*streams: TextIO) -> None:
    """Flush `streams` and wait until their output has been read, for at most `READ_S` seconds.

    Under mpirun they are pipes, and unread output is lost when the job ends. Call this before ending the job, so that
    the user sees the reason.
    """
    deadline_s = time.monotonic() + READ_S
    for stream in streams:
        with suppress(OSError, ValueError):  # closed, or the reader has ended
            stream.flush()
            while _unread_bytes(stream.fileno()) and time.monotonic() < deadline_s:
                time.sleep(1e-3)
            if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
                time.sleep(FORWARD_S)


def _unread_bytes(fd: int) -> int:
    """Return the number of bytes in a pipe or in the queue of a terminal; 0 for a file."""
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        request = termios.FIONREAD
    elif os.isatty(fd):
        request = termios.TIOCOUTQ
    else:
        return 0
    return int.from_bytes(fcntl.ioctl(fd, request, bytes(4)), sys.byteorder)


class _Printable(logging.Formatter):
    """Formatter that escapes unprintable text."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _LogOfRankZero(logging.Handler):
    """Log file of rank 0, whose output goes to the terminal; created with the first record."""

    def __init__(self, path: SafePath) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(record.getMessage() + "\n")


class RankOutput:
    """Standard output, standard error and log of this rank."""

    def __init__(self, world_rank: int, level: str, *, to_terminal: bool, quiet: bool = False) -> None:
        """Redirect the output to a file unless `to_terminal` (rank 0); `quiet`: print less on the terminal."""
        self._world_rank = world_rank
        self._held: IO[bytes] | None = None
        #: standard error of the terminal, even after standard error was redirected to the log file
        self.terminal_error: TextIO = sys.stderr
        # The terminal shows only messages that need action; a rank's log file may contain more.
        if to_terminal and (level == "info" or (quiet and level != "error")):
            level = "warn"
        handler = logging.StreamHandler()
        handler.setFormatter(_Printable(f"%(asctime)s rank {world_rank} %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        WHOLE.setLevel("INFO")
        if not to_terminal:
            self.terminal_error = os.fdopen(os.dup(2), "w", errors="backslashreplace")
            # Unbuffered and in append mode, because two descriptors write to it.
            self._held = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115  (lives until the run is open)
            self._turn_to(self._held.fileno())

    def open_log(self, run_directory: Path, first_rank: int = 0) -> None:
        """From now on write to `logs/rank-<rank>.log` in the run directory, numbered from `first_rank`."""
        path = log_path(run_directory, first_rank + self._world_rank)
        if self._held is None:
            WHOLE.handlers, WHOLE.propagate = [_LogOfRankZero(path)], False
            return
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("ab", buffering=0) as file:
                self._held.seek(0)
                file.write(self._held.read())
                self._turn_to(file.fileno())
        except OSError as error:
            logging.getLogger(__name__).warning("no log file: %s", error)

    def tell_terminal(self, text: str) -> None:
        """Write `text` to the terminal, from any rank."""
        for stream in (self.terminal_error, sys.stderr):
            with suppress(OSError, ValueError):  # user code may have closed the terminal; then use the log
                stream.write(printable(text.rstrip()) + "\n")
                stream.flush()
                wait_until_read(stream)
                break

    def tell_at_the_end(self, text: str, *, rank_died: bool) -> None:
        """Write `text` to the terminal, from any thread, while mpirun ends the job.

        After a signal to end (also Ctrl-C), Open MPI's mpirun stops reading from its ranks: then write to the terminal
        directly, if it is on this node. After the death of a rank it reads everything once the ranks have ended.
        """
        with suppress(OSError, ValueError):
            os.write(self.terminal_error.fileno(), f"{printable(text)}\n".encode())
            time.sleep(FORWARD_S)
            if rank_died or not _unread_bytes(self.terminal_error.fileno()):
                return
        with suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(f"\n{printable(text)}\n")

    def _turn_to(self, fd: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(fd, 1)
        os.dup2(fd, 2)
