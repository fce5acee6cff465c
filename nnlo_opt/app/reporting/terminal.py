"""Terminal output: width, styles, and a status line at the bottom."""

import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from nnlo_opt.core.base.errors import printable
from nnlo_opt.engine.runtime.launched import is_rank

#: line width for a pipe or a file
WIDE = 200
#: style of a line -> its parameter of the control sequence SGR (ECMA-48, section 8.3.117)
STYLES = {"": "", "good": "32", "bad": "31", "faint": "2"}
#: moves to the beginning of the line and erases it (ECMA-48, section 8.3.41)
CLEAR = "\r\x1b[K"
#: seconds between two drawings of the bottom line, and from other output to the next drawing
DRAW_S, SETTLE_S = 0.25, 0.03


class PrintableStream(TextIOWrapper):
    """Standard output or standard error that escapes control characters in everything printed."""

    def __init__(self, stream: TextIOWrapper) -> None:
        super().__init__(stream.buffer, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)
        #: the unescaped stream, for our own colours and cursor movements
        self.whole = stream

    def write(self, text: str) -> int:
        return super().write(printable(text))


def make_output_printable() -> None:
    """Replace standard output and standard error of this process by a `PrintableStream`."""
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), TextIOWrapper):
            setattr(sys, name, PrintableStream(stream))


def open_terminal(stream: TextIO) -> int | None:
    """Return a new descriptor of the terminal of `stream`; None if it is a pipe or a file.

    The output of a rank goes to mpirun, whose own output may go to a terminal.
    """
    terminal = None
    try:
        if is_rank():
            # A terminal can be opened; a pipe or a file has no size.
            path = os.readlink(f"/proc/{_mpirun()}/fd/{stream.fileno()}")
            terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        else:
            terminal = os.dup(stream.fileno())
        if os.get_terminal_size(terminal).columns:
            return terminal
    except (OSError, ValueError):
        pass
    if terminal is not None:
        os.close(terminal)
    return None


def _mpirun() -> int:
    """Return the process that forwards this rank's output: its parent, or the parent of MPICH's proxy."""
    parent = os.getppid()
    if Path(f"/proc/{parent}/comm").read_text().startswith("hydra_pmi"):
        return int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    return parent


def terminal_width(stream: TextIO) -> int | None:
    """Return the number of columns of the terminal of `stream`; None if it is a pipe or a file."""
    if (terminal := open_terminal(stream)) is None:
        return None
    try:
        return os.get_terminal_size(terminal).columns
    finally:
        os.close(terminal)


def line_width(stream: TextIO | None = None) -> int:
    """Return the line width: `COLUMNS`, else the width of the terminal of `stream`, else `WIDE`.

    `stream`: None for standard output.
    """
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else terminal_width(stream or sys.stdout) or WIDE


def fitted(text: str, stream: TextIO | None = None) -> str:
    """Wrap the lines of `text` to the width of the terminal of `stream`, if it is one.

    Lines that begin with a space are not wrapped: they are commands to copy. `stream`: None for standard output.
    """
    if (width := terminal_width(stream or sys.stdout)) is None:
        return text
    wrap = partial(textwrap.fill, width=width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap(line) if len(line) > width and line[0] != " " else line for line in text.split("\n"))


def styled(text: str, style: str, stream: TextIO) -> str:
    """Return `text` in a style of `STYLES`; unchanged if `stream` is not a terminal, or `NO_COLOR` is set."""
    if not style or os.environ.get("NO_COLOR") or terminal_width(stream) is None:
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


class BottomLine:
    """Status line below all other lines of a terminal, redrawn by a thread.

    The line is written directly to the terminal, because mpirun forwards only whole lines, and with delay. It has no
    newline, and every other line begins with `CLEAR`: so other output replaces it, and it is redrawn below.

    Args:
        terminal: descriptor of the terminal, closed by `close`.
        text: returns the line for a number of columns; called in the thread.
    """

    def __init__(self, terminal: int, text: Callable[[int], str]) -> None:
        self._terminal = terminal
        self._text = text
        #: set when other lines have been printed
        self._displaced = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._draw, name="bottom line", daemon=True)
        self._thread.start()

    def above(self, text: str) -> str:
        """Return text prepared to appear above this line."""
        self._displaced.set()
        return "\n".join(CLEAR + line for line in text.split("\n"))

    def close(self) -> None:
        """Remove the line for good."""
        self._is_closed = True
        self._displaced.set()
        self._thread.join(1.0)
        with suppress(OSError):
            os.write(self._terminal, CLEAR.encode())
            os.close(self._terminal)

    def _draw(self) -> None:
        while not self._is_closed:
            # The ledger may change meanwhile; a stopped terminal (Ctrl-S) accepts nothing.
            with suppress(RuntimeError, OSError):
                text = self._text(os.get_terminal_size(self._terminal).columns - 1)
                os.write(self._terminal, f"{CLEAR}{printable(text)}".encode(errors="replace"))
            if self._displaced.wait(DRAW_S) and not self._is_closed:
                time.sleep(SETTLE_S)
                self._displaced.clear()
