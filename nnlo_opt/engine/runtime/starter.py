"""Watches the process that started this rank: mpirun, or its daemon on the node.

If mpirun is killed, MPI ends only ranks that are in a call to MPI. A rank that computes has to check by itself. Its
parent may be a wrapper script, so we search all ancestors: a wrapper has the variables of the rank, and the process
that started both does not, or has those of another rank.
"""

import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from nnlo_opt.core.base.errors import EXIT_FAILURE

#: variables with which a launcher tells a rank its number and its job
_OF_A_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_PORT", "PMI_JOBID")


def starter_of(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return a file descriptor that becomes readable when the process that started this rank ends.

    None if this process is not a rank, or if the starter is not visible (in another container, for example).
    """
    own = {name.encode(): environ[name].encode() for name in _OF_A_RANK if name in environ}
    if own:
        with suppress(OSError, AttributeError):  # it has ended, or the system has no pidfds
            process = os.getppid()
            while process and _has(process, own):
                process = _parent_of(process)
            return os.pidfd_open(process) if process else None
    return None


@contextmanager
def ending_with_starter() -> Iterator[None]:
    """End this process if mpirun, which started it, ends meanwhile; the watchdog does this for a driver's ranks."""
    if (starter := starter_of()) is None:
        yield
        return
    left, leaves = os.pipe()
    thread = threading.Thread(target=_end_with, args=(starter, left), name="starter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(leaves, b".")  # closing the pipe is not enough: a forked child may have it open
        thread.join()
        for file in (starter, left, leaves):
            os.close(file)


def _end_with(starter: int, left: int) -> None:
    poll = select.poll()
    poll.register(starter, select.POLLIN)
    poll.register(left, select.POLLIN)
    events = dict(poll.poll())
    # Stay if the search is over, or if user code has closed our files; a reaped process only reports POLLHUP.
    if left not in events and events.get(starter, 0) & select.POLLIN:
        with suppress(OSError):
            os.write(2, b"mpirun, or its daemon on this node, has ended: this rank ends, too.\n")
        os._exit(EXIT_FAILURE)


def _has(process: int, variables: Mapping[bytes, bytes]) -> bool:
    """Return True if a process was started with these variables; False if we may not read them."""
    with suppress(PermissionError), open(f"/proc/{process}/environ", "rb") as file:
        found = dict(line.partition(b"=")[::2] for line in file.read().split(b"\0"))
        return all(found.get(name) == value for name, value in variables.items())
    return False


def _parent_of(process: int) -> int:
    with open(f"/proc/{process}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
