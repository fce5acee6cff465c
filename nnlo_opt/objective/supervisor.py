"""Supervisor of a script, which leaves no process of it behind.

It is executed as a file, by a Python that imports nothing of this package or of others, so that a script begins at
once. Its standard input is a pipe of the rank: a byte there sends SIGTERM to the script; the end of the pipe, which the
death of the rank brings, too, kills the script and all that it has started. All of it stays below this process, however
often it forks and whatever session it leaves, as the processes of a dead parent become children of this one.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

_SET_CHILD_SUBREAPER = 36
#: code of a command that cannot be started, as in a shell
_MISSING = 127
#: looks for killed processes, and seconds between two of them: one that waits for a broken disk outlives its death
_N_LOOKS, _LOOK_S = 500, 0.01
#: signals that end a process unless it handles them
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def supervise(words: list[str]) -> int:
    """Run a script to its end; return its code, as a shell would, when nothing is left of it."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # a signal that is ignored would be ignored by the script as well
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    not_ours = [signal.SIGPIPE, signal.SIGXFSZ]  # which Python ignores
    script = os.posix_spawnp(words[0], words, os.environ, file_actions=[nothing], setsigdef=not_ours)
    ended: dict[int, int] = {}
    while script not in ended:
        if woken in select.select([0, woken], [], [])[0]:
            os.read(woken, 4096)
            _reap(ended)
        elif os.read(0, 1):
            os.kill(script, signal.SIGTERM)
        else:
            break
    for _ in range(_N_LOOKS):
        if not _reap(ended):
            break
        _kill_children()
        time.sleep(_LOOK_S)
    code = os.waitstatus_to_exitcode(ended.get(script, signal.SIGKILL))
    return code if code >= 0 else 128 - code


def _reap(ended: dict[int, int]) -> bool:
    """Add the status of processes that have ended; return True if some are left."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
        return True
    return False


def _kill_children() -> None:
    """Kill all children, whose children are this process's own then."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                os.kill(int(name), signal.SIGKILL)


if __name__ == "__main__":
    try:
        code = supervise(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"`{sys.argv[1]}` cannot be started: {error.strerror}\n")
        code = _MISSING
    sys.stderr.flush()
    os._exit(code)
