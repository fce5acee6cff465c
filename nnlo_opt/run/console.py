"""What a person is told: lines on the terminal, and in `--log-file` too."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from nnlo_opt.errors import ConfigurationError


class Console:
    """Prints lines; a run outlives both the terminal and the log file."""

    def __init__(self, *, prints: bool = True) -> None:
        """`prints`: if False, lines go to the log file alone."""
        self._prints = prints
        #: None before `keep`, where there is no log file, and after `close`
        self._log: TextIO | None = None

    def keep(self, path: Path) -> None:
        """Append every line from now on to this file; ConfigurationError where it cannot be written."""
        try:
            self._log = path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigurationError(
                f"`--log-file` must be writable. Received: `{path}` ({error.strerror}); choose another."
            ) from None

    def say(self, text: str, stream: TextIO | None = None) -> None:
        """Print a line; to standard output unless another stream is named."""
        if self._prints:
            with suppress(OSError):
                print(text, file=stream or sys.stdout, flush=True)
        if self._log is not None:
            with suppress(OSError):
                self._log.write(text + "\n")

    def close(self) -> None:
        """Close the log file."""
        log, self._log = self._log, None
        if log is not None:
            with suppress(OSError):
                log.close()
