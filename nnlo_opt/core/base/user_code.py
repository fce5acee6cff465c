"""Inspects user code: signatures of functions, and exceptions with the line that raised them."""

import inspect
import os
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import nnlo_opt
from nnlo_opt.core.base.errors import NnloError

#: folders of the standard library and of this package
_FOREIGN = (os.path.join(os.path.dirname(os.__file__), ""), os.path.join(os.path.dirname(nnlo_opt.__file__), ""))


def takes_arguments(function: Any, n: int = 1) -> bool:
    """Return True if `function` accepts `n` arguments; C functions without a signature are assumed to."""
    try:
        inspect.signature(function).bind(*[{}] * n)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


#: longest message in errors, journal and results, in characters; the rank's log has all of it
LONGEST = 2000


def shortened(text: str, most: int = LONGEST) -> str:
    """Cut the middle of `text` if it has more than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} [{len(text) - most:,} characters left out] {text[-(most // 2) :]}"


def message_of(error: BaseException) -> str:
    """Return the message of an exception on one line, shortened; guards against a `__str__` that raises."""
    try:
        text = str(error)
    except BaseException as raised:
        text = f"its message raises {type(raised).__name__}"
    return " ".join(shortened(text).split())


def describe(error: BaseException) -> str:
    """Return type and message of an exception on one line, without a final full stop."""
    text = str(error.msg) if isinstance(error, SyntaxError) and error.msg else message_of(error)
    text = " ".join(text.split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def reason_of(error: BaseException) -> str:
    """Describe an exception in one sentence: ours by its message, others with their type and line in user code."""
    text = message_of(error)
    if isinstance(error, NnloError):
        return text
    where = f" ({place})" if (place := place_of(error)) else ""
    if isinstance(error, MemoryError):
        return f"out of memory: {text or 'Python could not allocate'}{where}"
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__) + where


def line_in(path: Path, error: BaseException) -> str:
    """Return the innermost line of user code that raised `error`, like ", line 12"; empty if there is none.

    For a file other than `path` the name is included: ", `layers.py`, line 3".
    """
    own = str(path.resolve())
    file, line = _place(error, own)
    return "" if not line else f", line {line}" if file == own else f", `{_shown(file)}`, line {line}"


def place_of(error: BaseException) -> str:
    """Return the innermost line of user code that raised `error`, like "`model.py`, line 12"; empty if none."""
    file, line = _place(error)
    return f"`{_shown(file)}`, line {line}" if line else ""


def of_user(error: BaseException) -> TracebackType | None:
    """Return the traceback of `error` from the first line of user code on, or the whole one if there is none."""
    trace = error.__traceback__
    while trace is not None and not _is_of_user(trace.tb_frame.f_code.co_filename, in_memory=True):
        trace = trace.tb_next
    return trace or error.__traceback__


def _place(error: BaseException, own: str = "") -> tuple[str, int]:
    """Return file and line of user code that raised `error`, line 0 if there is none; `own` is a file of the user."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno or 0))
    return next((place for place in reversed(places) if place[0] == own or _is_of_user(place[0])), ("", 0))


def _is_of_user(file: str, *, in_memory: bool = False) -> bool:
    """Return True if `file` belongs neither to Python, nor to an installed package, nor to this one.

    `in_memory`: also accept code without a file, such as a notebook's.
    """
    path = Path(file)
    is_installed = file.startswith(_FOREIGN) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return not (is_installed or path.name.startswith("__autograph_generated")) and (in_memory or path.is_file())


def _shown(file: str) -> str:
    with suppress(OSError):
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    return file
