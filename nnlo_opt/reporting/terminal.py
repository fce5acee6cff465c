"""Terminal on which a person reads: its width, its colours."""

import os
import textwrap
from functools import partial
from typing import TextIO

from nnlo_opt.runtime.environment import is_rank

#: characters of a line in a pipe or a file, which has no width
WIDE = 200
#: style of a line -> its parameter of the control sequence SGR (ECMA-48, section 8.3.117)
STYLES = {"": "", "good": "32", "bad": "31", "faint": "2"}


def terminal_width(stream: TextIO) -> int | None:
    """Return the number of columns of the terminal that shows `stream`; None if it goes to a pipe or a file.

    The output of a rank goes to mpirun, whose own output may go to a terminal.
    """
    try:
        if not is_rank():
            return os.get_terminal_size(stream.fileno()).columns or None
        # The terminal may be opened; a pipe or a file has no size.
        path = os.readlink(f"/proc/{os.getppid()}/fd/{stream.fileno()}")
        terminal = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        return os.get_terminal_size(terminal).columns or None
    except OSError:
        return None
    finally:
        os.close(terminal)


def line_width(stream: TextIO) -> int:
    """Return the most characters of a line for `stream`: `COLUMNS`, else the width of its terminal, else `WIDE`."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else terminal_width(stream) or WIDE


def fitted(text: str, stream: TextIO) -> str:
    """Return `text` with its lines cut between words to the width of the terminal that shows `stream`, if one does.

    Lines that begin with a space stay whole: they are commands to be copied.
    """
    if (width := terminal_width(stream)) is None:
        return text
    wrap = partial(textwrap.fill, width=width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap(line) if len(line) > width and line[0] != " " else line for line in text.split("\n"))


def styled(text: str, style: str, stream: TextIO) -> str:
    """Return `text` in a style of `STYLES`; as it is if no terminal shows `stream`, or `NO_COLOR` is set."""
    if not style or os.environ.get("NO_COLOR") or terminal_width(stream) is None:
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"
