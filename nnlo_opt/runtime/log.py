"""Where ranks write: rank 0 to the terminal, every other rank to its own file and nowhere else.

What libraries and user code print on those ranks, from C or Python, goes to the same file. Until the run directory is
known it is kept in an unnamed file.
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
    """The file of a rank."""
    return run_directory / "logs" / f"rank-{world_rank:05d}.log"


class RankOutput:
    """Standard output and error of this rank, and its log."""

    def __init__(self, world_rank: int, level: str, *, to_terminal: bool) -> None:
        """`to_terminal`: this is rank 0, which people look at."""
        self._world_rank = world_rank
        self._to_terminal = to_terminal
        self._held: IO[bytes] | None = None
        #: what people see, also after standard error was turned to the log file
        self.terminal_error: TextIO = sys.stderr
        self._configure(level)
        if not to_terminal:
            self.terminal_error = os.fdopen(os.dup(2), "w", errors="backslashreplace")
            # Unbuffered and in append mode, as two descriptors write to it.
            self._held = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115  (lives until the run is open)
            self._turn_to(self._held.fileno())

    def _configure(self, level: str) -> None:
        # The terminal shows what an operator acts on; a rank's file may say more.
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
        """Write to `logs/rank-<rank>.log` of the run from now on."""
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
        """Say something that people must see, from any rank."""
        self.terminal_error.write(text.rstrip() + "\n")
        self.terminal_error.flush()

    def _turn_to(self, fd: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(fd, 1)
        os.dup2(fd, 2)
