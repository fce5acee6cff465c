"""Code of users, seen from outside: what a function takes, and exceptions in words, with the line that raised them."""

import inspect
import os
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import nnlo_opt
from nnlo_opt.core.base.errors import NnloError

#: folders of Python's own code and of this package
_FOREIGN = (os.path.join(os.path.dirname(os.__file__), ""), os.path.join(os.path.dirname(nnlo_opt.__file__), ""))


def takes_arguments(function: Any, n: int = 1) -> bool:
    """Return True if `function` can be called with `n` arguments; a function in C without a signature is trusted."""
    try:
        inspect.signature(function).bind(*[{}] * n)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


#: most characters of a message in a sentence, the journal and the results; the log of the rank has all of them
LONGEST = 2000


def shortened(text: str, most: int = LONGEST) -> str:
    """Return `text` without its middle if it has more than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} [{len(text) - most:,} characters left out] {text[-(most // 2) :]}"


def message_of(error: BaseException) -> str:
    """Return the message of an exception on one line, shortened; code of a user, which may raise, makes the message."""
    try:
        text = str(error)
    except BaseException as raised:
        text = f"its message raises {type(raised).__name__}"
    return " ".join(shortened(text).split())


def describe(error: BaseException) -> str:
    """Return an exception on one line: its type, and its message without a final dot."""
    text = str(error.msg) if isinstance(error, SyntaxError) and error.msg else message_of(error)
    text = " ".join(text.split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def reason_of(error: BaseException) -> str:
    """Return an exception in one sentence: this package's own as they are, any other with type and line of the user."""
    text = message_of(error)
    if isinstance(error, NnloError):
        return text
    where = f" ({place})" if (place := place_of(error)) else ""
    if isinstance(error, MemoryError):
        return f"out of memory: {text or 'Python could not allocate'}{where}"
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__) + where


def line_in(path: Path, error: BaseException) -> str:
    """Return the innermost line of users' code that raised `error`, as ", line 12"; empty if there is none.

    A file other than `path` is named: ", `layers.py`, line 3".
    """
    own = str(path.resolve())
    file, line = _place(error, own)
    return "" if not line else f", line {line}" if file == own else f", `{_shown(file)}`, line {line}"


def place_of(error: BaseException) -> str:
    """Return the innermost line of users' code that raised `error`, as "`model.py`, line 12"; empty without one."""
    file, line = _place(error)
    return f"`{_shown(file)}`, line {line}" if line else ""


def of_user(error: BaseException) -> TracebackType | None:
    """Return the traceback of `error` from the first line of users' code on; the whole one if there is none."""
    trace = error.__traceback__
    while trace is not None and not _is_of_user(trace.tb_frame.f_code.co_filename, in_memory=True):
        trace = trace.tb_next
    return trace or error.__traceback__


def _place(error: BaseException, own: str = "") -> tuple[str, int]:
    """Return file and line of users' code that raised `error`, line 0 if there is none; `own` is a file of the user."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno or 0))
    return next((place for place in reversed(places) if place[0] == own or _is_of_user(place[0])), ("", 0))


def _is_of_user(file: str, *, in_memory: bool = False) -> bool:
    """Return True if `file` is code that belongs neither to Python, nor to an installed package, nor to this one.

    `in_memory`: also if it is in no file, as the code of a notebook.
    """
    path = Path(file)
    is_installed = file.startswith(_FOREIGN) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return not (is_installed or path.name.startswith("__autograph_generated")) and (in_memory or path.is_file())


def _shown(file: str) -> str:
    with suppress(OSError):
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    return file
