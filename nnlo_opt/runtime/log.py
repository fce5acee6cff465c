"""Output of a rank: rank 0 writes to the terminal, every other rank to a log file of its own.

Whatever libraries and user code print on the other ranks, from C or Python, goes to the same file. Until the run
directory is known, an unnamed file keeps the output.
"""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, TextIO

TRACE = 5
_LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
logging.addLevelName(TRACE, "TRACE")


def log_path(run_directory: Path, world_rank: int) -> Path:
    """Return the path of the log file of a rank."""
    return run_directory / "logs" / f"rank-{world_rank:05d}.log"


class RankOutput:
    """Standard output, standard error and log of this rank."""

    def __init__(self, world_rank: int, level: str, *, to_terminal: bool) -> None:
        """Turn the output to a file unless `to_terminal`, which is True for rank 0."""
        self._world_rank = world_rank
        self._to_terminal = to_terminal
        self._held: IO[bytes] | None = None
        #: standard error of the terminal, also after standard error was turned to the log file
        self.terminal_error: TextIO = sys.stderr
        self._configure(level)
        if not to_terminal:
            self.terminal_error = os.fdopen(os.dup(2), "w", errors="backslashreplace")
            # The file is unbuffered and in append mode, as two descriptors write to it.
            self._held = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115  (lives until the run is open)
            self._turn_to(self._held.fileno())

    def _configure(self, level: str) -> None:
        # The terminal shows only messages on which an operator acts; the file of a rank may hold more.
        lowest = _LEVELS[level]
        if self._to_terminal and lowest == logging.INFO:
            lowest = logging.WARNING
        logging.basicConfig(
            level=lowest,
            stream=sys.stderr,
            format=f"%(asctime)s rank {self._world_rank} %(levelname)s %(name)s: %(message)s",
            force=True,
        )

    def open_log(self, run_directory: Path) -> None:
        """Write to `logs/rank-<rank>.log` in the run directory from now on."""
        if self._held is None:
            return
        try:
            path = log_path(run_directory, self._world_rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                self._held.seek(0)
                file.write(self._held.read())
                self._turn_to(file.fileno())
        except OSError as error:
            logging.getLogger(__name__).warning("no log file: %s", error)

    def tell_terminal(self, text: str) -> None:
        """Write `text` to the terminal, from any rank."""
        self.terminal_error.write(text.rstrip() + "\n")
        self.terminal_error.flush()

    def _turn_to(self, fd: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(fd, 1)
        os.dup2(fd, 2)
