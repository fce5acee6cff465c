"""Watches the process that started this rank: mpirun, or its daemon on the node.

If mpirun is killed, MPI ends the ranks that it reaches, which are those that call MPI. A rank that computes has to look
by itself. Its parent tells nothing if it was started by a wrapper, so the process is looked for among all ancestors: a
wrapper has the variables of the rank, and what has started both has not, or has those of another rank.
"""

import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from nnlo_opt.core.base.errors import EXIT_FAILURE

#: variables by which a launcher tells a rank which one it is, and of which job
_OF_A_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_PORT", "PMI_JOBID")


def starter_of(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return a file descriptor that is readable once the process that has started this rank has ended.

    None: this process is no rank, or the process cannot be seen from here (in another container, for example).
    """
    own = {name.encode(): environ[name].encode() for name in _OF_A_RANK if name in environ}
    if own:
        with suppress(OSError, AttributeError):  # it has ended, or the system has no such descriptors
            process = os.getppid()
            while process and _has(process, own):
                process = _parent_of(process)
            return os.pidfd_open(process) if process else None
    return None


@contextmanager
def ending_with_starter() -> Iterator[None]:
    """End this process if what has started it as a rank ends meanwhile, as the watchdog of a driver's rank does."""
    if (starter := starter_of()) is None:
        yield
        return
    left, leaves = os.pipe()
    thread = threading.Thread(target=_end_with, args=(starter, left), name="starter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(leaves, b".")  # a child that this process has forked has the pipe as well, so closing it is no sign
        thread.join()
        for file in (starter, left, leaves):
            os.close(file)


def _end_with(starter: int, left: int) -> None:
    poll = select.poll()
    poll.register(starter, select.POLLIN)
    poll.register(left, select.POLLIN)
    events = dict(poll.poll())
    # Not if the search is over, or code of a user has closed our files; a process that was waited for hangs up as well.
    if left not in events and events.get(starter, 0) & select.POLLIN:
        with suppress(OSError):
            os.write(2, b"mpirun, or its daemon on this node, has ended: this rank ends, too.\n")
        os._exit(EXIT_FAILURE)


def _has(process: int, variables: Mapping[bytes, bytes]) -> bool:
    """Return True if a process was started with these variables; False if that may not be seen."""
    with suppress(PermissionError), open(f"/proc/{process}/environ", "rb") as file:
        found = dict(line.partition(b"=")[::2] for line in file.read().split(b"\0"))
        return all(found.get(name) == value for name, value in variables.items())
    return False


def _parent_of(process: int) -> int:
    with open(f"/proc/{process}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
