"""Detects user code that forks a rank's process or closes its files.

An objective runs in the process of its rank. A child that it forks has copies of the journal and of all messages: if
the child returned to our code, it would act as a second rank. A child forked by a user's script continues the script:
it must not use or close what its parent has opened. File descriptors that an objective closes may belong to the journal
or to MPI: then this rank cannot be reached any more, and MPI may wait forever.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NoReturn, TypeVarTuple

from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, BrokenProcessError
from nnlo_opt.engine.runtime.streams import flush_streams

logger = logging.getLogger(__name__)

Arguments = TypeVarTuple("Arguments")


@contextmanager
def code_of_user() -> Iterator[None]:
    """Context for user code; a child process forked inside exits at the end of the context.

    Otherwise the surrounding `finally` and `with` blocks would close or remove what the parent still uses.
    """
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != pid:
            _end_as_python_would(error)
        raise
    end_if_forked(pid)


def _end_as_python_would(error: BaseException) -> NoReturn:
    """Exit with the uncaught exception `error`, like Python."""
    code = EXIT_FAILURE
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            code = error.code or EXIT_OK
        else:
            sys.stderr.write(f"{error.code}\n")
    else:
        trace = error.__traceback__ and error.__traceback__.tb_next  # without this module
        sys.excepthook(type(error), error, trace)
    flush_streams()
    os._exit(code & 0xFF)


def end_if_forked(pid: int) -> None:
    """Exit if user code has forked this process from process `pid`."""
    if os.getpid() != pid:
        logger.warning(
            "A process that a model, an objective or a callback forks must end by itself. Received: process %d, which "
            "has returned from the code that forked it; it ends here. Call `os._exit` in it.",
            os.getpid(),
        )
        flush_streams()
        os._exit(EXIT_FAILURE)


def only_here(
    function: Callable[[*Arguments], object], elsewhere: Callable[[*Arguments], object] = lambda *_: None
) -> Callable[[*Arguments], None]:
    """Return a function that calls `function` in this process, but `elsewhere` in its forked children."""
    pid = os.getpid()

    def call(*arguments: *Arguments) -> None:
        (function if os.getpid() == pid else elsewhere)(*arguments)

    return call


@cache
def _witness() -> tuple[int, os.stat_result]:
    """Return a file descriptor that no other code knows, and the unique status of its file."""
    listening, ringing = os.pipe()
    os.close(ringing)
    return listening, os.fstat(listening)


def check_files() -> None:
    """Raise BrokenProcessError if other code has closed our file descriptors since the first call.

    Code that closes descriptors usually starts at the lowest: call this first before MPI opens its own.
    """
    witness, before = _witness()
    try:
        is_whole = os.path.samestat(os.fstat(witness), before)
    except OSError:
        is_whole = False
    if not is_whole:
        _witness.cache_clear()
        raise BrokenProcessError
