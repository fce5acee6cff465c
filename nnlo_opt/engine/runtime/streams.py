"""Repairs standard streams that user code has closed, or whose locks a forked process has inherited.

A fork copies the lock of a stream in its current state. If another thread was writing at that moment, the copy stays
locked forever. Python renews the locks of its original streams, but not of one such as `sys.stdout = open(...)`.
"""

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: seconds to wait for a stream that may be locked
_FLUSH_S = 1.0
#: names of the original streams in `sys`, and their descriptors
_NAMES = {"stdout": 1, "stderr": 2, "__stdout__": 1, "__stderr__": 2}
#: the parent's streams, kept alive: their finalizers would wait for their locks
_inherited: list[Any] = []
#: streams with new locks
_renewed: list[Any] = []


def renew_streams() -> None:
    """Replace the streams of a newly forked process by new ones on the same descriptors.

    Streams of log handlers are replaced, too. Other kinds of streams stay, such as a notebook's.
    """
    holders: list[tuple[Any, str]] = [(sys, name) for name in _NAMES]
    handlers = [ref() for ref in vars(logging)["_handlerList"]]
    holders += [(handler, "stream") for handler in handlers if "stream" in getattr(handler, "__dict__", ())]
    made: dict[int, Any] = {}
    for holder, name in holders:
        old = getattr(holder, name, None)
        if id(old) not in made and (new := _renewed_like(old)) is not None:
            _inherited.append(old)
            _renewed.append(new)
            made[id(old)] = new
        if id(old) in made:
            setattr(holder, name, made[id(old)])


def flush_streams() -> None:
    """Flush the standard streams, except closed or permanently locked ones."""
    for stream in (sys.stdout, sys.stderr):
        if not _inherited or any(stream is new for new in _renewed):
            _flush(stream)
        elif not any(stream is lost for lost in _inherited):
            flushing = threading.Thread(target=_flush, args=(stream,), daemon=True)
            flushing.start()
            flushing.join(_FLUSH_S)
            if flushing.is_alive():
                _inherited.append(stream)


@contextmanager
def keeping_streams() -> Iterator[None]:
    """Restore standard streams that code in the context closes or replaces."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    try:
        yield
    finally:
        for name, old in before.items():
            if old is not None and _is_shut(getattr(sys, name)):
                setattr(sys, name, _stream_on(_NAMES[name], old) if _is_shut(old) else old)


def _flush(stream: Any) -> None:
    with suppress(Exception):  # closed, removed, disk full, or a user's class
        stream.flush()


def _is_shut(stream: Any) -> bool:
    return stream is None or getattr(stream, "closed", False) is True


def _renewed_like(stream: Any) -> io.TextIOWrapper | None:
    """Return a new stream on the descriptor of another one; None if it has none, or is not a plain text stream."""
    stream = getattr(stream, "rich_proxied_file", stream)  # the stream behind the parent's progress line
    if isinstance(stream, io.TextIOWrapper) and type(stream).write is io.TextIOWrapper.write:
        with suppress(OSError, ValueError):
            return _stream_on(stream.fileno(), stream)
    return None


def _stream_on(descriptor: int, like: Any) -> io.TextIOWrapper:
    """Return a stream that does not close its descriptor, with the encoding and buffering of another one."""
    is_direct = getattr(like, "write_through", False)
    return io.TextIOWrapper(
        open(descriptor, "wb", 0 if is_direct else -1, closefd=False),
        encoding=getattr(like, "encoding", None),
        errors=getattr(like, "errors", None),
        line_buffering=getattr(like, "line_buffering", True),
        write_through=is_direct,
    )
