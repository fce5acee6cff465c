"""Process of a rank, which code of a user must leave as it was.

An objective runs in the process of its rank. A child that it forks has copies of the journal and of all messages: if
the child returned to the code of the rank, it would work as a second rank. A child that a user's script forks continues
the script: it may neither use nor end what its parent has opened. File descriptors that an objective closes may
belong to the journal or to MPI: then nobody reaches this rank any more, and MPI may wait for ever.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import TypeVarTuple

from nnlo_opt.errors import EXIT_FAILURE, BrokenProcessError, ConfigurationError

logger = logging.getLogger(__name__)

Arguments = TypeVarTuple("Arguments")


def end_if_forked(pid: int) -> None:
    """End this process unless it is process `pid`, from which a user's code has forked it."""
    if os.getpid() != pid:
        logger.warning(
            "A process that a model or an objective forks must end by itself. Received: process %d, which has "
            "returned from the code that forked it; it ends here. Call `os._exit` in it.",
            os.getpid(),
        )
        os._exit(EXIT_FAILURE)


def refuse_forked(pid: int, what: str, remedy: str) -> None:
    """Raise ConfigurationError unless this is process `pid`, which has opened `what`."""
    if os.getpid() != pid:
        raise ConfigurationError(
            f"{what} belongs to the process that has opened it. Received: a call in process {os.getpid()}, which was "
            f"forked from process {pid}. {remedy}"
        )


def only_here(
    function: Callable[[*Arguments], object], elsewhere: Callable[[*Arguments], object] = lambda *_: None
) -> Callable[[*Arguments], None]:
    """Return a function that calls `function` in this process, and `elsewhere` in every process forked from it."""
    pid = os.getpid()

    def call(*arguments: *Arguments) -> None:
        (function if os.getpid() == pid else elsewhere)(*arguments)

    return call


@cache
def _witness() -> tuple[int, os.stat_result]:
    """Return a file descriptor that no other code uses, and the status of its file, which no other file has."""
    listening, ringing = os.pipe()
    os.close(ringing)
    return listening, os.fstat(listening)


def check_files() -> None:
    """Raise BrokenProcessError if file descriptors that are not theirs were closed by other code since the first call.

    Descriptors are mostly closed from the lowest upwards: the first call comes before MPI opens its own.
    """
    witness, before = _witness()
    try:
        is_whole = os.path.samestat(os.fstat(witness), before)
    except OSError:
        is_whole = False
    if not is_whole:
        _witness.cache_clear()
        raise BrokenProcessError
