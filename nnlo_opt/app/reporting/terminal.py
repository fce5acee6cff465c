"""Terminal on which a person reads, with a line at its bottom."""

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

#: characters of a line in a pipe or a file, which has no width
WIDE = 200
#: style of a line -> its parameter of the control sequence SGR (ECMA-48, section 8.3.117)
STYLES = {"": "", "good": "32", "bad": "31", "faint": "2"}
#: moves to the beginning of a line and erases it (ECMA-48, section 8.3.41)
CLEAR = "\r\x1b[K"
#: seconds between two drawings of the line at the bottom, and between other lines and the next one
DRAW_S, SETTLE_S = 0.25, 0.03


class PrintableStream(TextIOWrapper):
    """Standard output or standard error of a process, whose text is `printable`, whoever prints it."""

    def __init__(self, stream: TextIOWrapper) -> None:
        super().__init__(stream.buffer, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)
        #: the same place, for colours and moves of the cursor, which are ours
        self.whole = stream

    def write(self, text: str) -> int:
        return super().write(printable(text))


def make_output_printable() -> None:
    """Put a `PrintableStream` in the place of standard output and of standard error of this process."""
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), TextIOWrapper):
            setattr(sys, name, PrintableStream(stream))


def open_terminal(stream: TextIO) -> int | None:
    """Return a new descriptor of the terminal that shows `stream`; None if it goes to a pipe or a file.

    The output of a rank goes to mpirun, whose own output may go to a terminal.
    """
    terminal = None
    try:
        if is_rank():
            # The terminal may be opened; a pipe or a file has no size.
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
    """Return the process that hands on the output of this rank: its parent, or the parent of MPICH's proxy."""
    parent = os.getppid()
    if Path(f"/proc/{parent}/comm").read_text().startswith("hydra_pmi"):
        return int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    return parent


def terminal_width(stream: TextIO) -> int | None:
    """Return the number of columns of the terminal that shows `stream`; None if it goes to a pipe or a file."""
    if (terminal := open_terminal(stream)) is None:
        return None
    try:
        return os.get_terminal_size(terminal).columns
    finally:
        os.close(terminal)


def line_width(stream: TextIO | None = None) -> int:
    """Return the most characters of a line: `COLUMNS`, else the width of the terminal of `stream`, else `WIDE`.

    `stream`: None for standard output.
    """
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else terminal_width(stream or sys.stdout) or WIDE


def fitted(text: str, stream: TextIO | None = None) -> str:
    """Return `text` with its lines cut between words to the width of the terminal that shows `stream`, if one does.

    Lines that begin with a space stay whole: they are commands to be copied. `stream`: None for standard output.
    """
    if (width := terminal_width(stream or sys.stdout)) is None:
        return text
    wrap = partial(textwrap.fill, width=width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap(line) if len(line) > width and line[0] != " " else line for line in text.split("\n"))


def styled(text: str, style: str, stream: TextIO) -> str:
    """Return `text` in a style of `STYLES`; as it is if no terminal shows `stream`, or `NO_COLOR` is set."""
    if not style or os.environ.get("NO_COLOR") or terminal_width(stream) is None:
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


class BottomLine:
    """Line below all other lines of a terminal, which a thread draws again and again.

    The line is written to the terminal itself, as mpirun hands on whole lines only, and later. So it has no end, and
    every other line begins with `CLEAR`: whichever of them comes first, the other line takes the place of this one,
    which is drawn again below it.

    Args:
        terminal: descriptor of the terminal, closed by `close`.
        text: returns the line for a number of columns; called in the thread.
    """

    def __init__(self, terminal: int, text: Callable[[int], str]) -> None:
        self._terminal = terminal
        self._text = text
        #: set if other lines have come
        self._displaced = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._draw, name="bottom line", daemon=True)
        self._thread.start()

    def above(self, text: str) -> str:
        """Return lines in the form in which they come to stand above this line."""
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
            # The ledger may change while the text is made; a terminal that is stopped (Ctrl-S) takes nothing.
            with suppress(RuntimeError, OSError):
                text = self._text(os.get_terminal_size(self._terminal).columns - 1)
                os.write(self._terminal, f"{CLEAR}{printable(text)}".encode(errors="replace"))
            if self._displaced.wait(DRAW_S) and not self._is_closed:
                time.sleep(SETTLE_S)
                self._displaced.clear()
