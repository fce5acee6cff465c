"""Supervisor of a script: makes sure that none of its processes is left behind.

It is executed as a file, by a Python that imports neither this package nor others, so that the script starts at once.
Its standard input is a socket of the rank. A byte there sends SIGTERM to the script; the end of the socket, also by the
death of the rank, kills the script and all its descendants. If the script ends by itself, its wait status is sent back
to the rank.

All processes of the script stay below this one, even if they fork or change their session, because orphans become our
children (subreaper). The guard, our parent, protects against SIGKILL: the rank has started it, and it has forked this
process. When either of the two dies, the other ends everything, even if the rank has died, too. If both are killed, the
first process of the script dies with them.
"""

import ctypes
import os
import select
import signal
import struct
import sys
import time
from contextlib import suppress

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
#: exit code of a command that cannot be started, like in a shell
_MISSING = 127
#: checks for killed processes, and seconds between two: a process that waits for a broken disk does not die at once
_N_LOOKS, _LOOK_S = 500, 0.01
#: signals that we handle, most of which would end this process
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: name of the guard in `ps`, so that killing supervisors by their file name spares it
_GUARD = b"guard of a script"
#: shells, by the beginning of their name: they do not forward SIGTERM
_SHELLS = ("ash", "bash", "csh", "dash", "fish", "ksh", "lksh", "mksh", "sh", "tcsh", "yash", "zsh")
_C = ctypes.CDLL(None)


def supervise(words: list[str]) -> int:
    """Run a script; return its exit code, like a shell, when none of its processes is left."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the script would inherit
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _C.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guarded, guards = os.pipe()
    supervisor = os.fork()
    if supervisor:
        os.close(guarded)
        _show(_GUARD)
        status = os.waitpid(supervisor, 0)[1]
        _end_all({})
        return _code(status)
    os.close(guards)
    _C.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # forks do not inherit it
    return _code(_run(words, guarded))


def _run(words: list[str], guarded: int) -> int:
    """Run a script; return its status when none of its processes is left. The pipe `guarded` closes with the guard."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        script = _start(words)
    except OSError as error:
        sys.stderr.write(f"`{words[0]}` cannot be started: {error.strerror}\n")
        return _told(_MISSING << 8)
    ended: dict[int, int] = {}
    while script not in ended:
        ready = select.select([0, woken, guarded], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _reap(ended)
        elif guarded not in ready and os.read(0, 1):
            for process in _addressees(script):
                with suppress(OSError):
                    os.kill(process, signal.SIGTERM)
        else:
            break
    else:
        _told(ended[script])
    _end_all(ended)
    return ended.get(script, signal.SIGKILL)


def _told(status: int) -> int:
    """Send the rank the status of a script that has ended by itself; return it."""
    with suppress(OSError):  # the rank may have died
        os.write(0, struct.pack("=i", status))
    return status


def _start(words: list[str]) -> int:
    """Start a script; return the id of its first process, which dies with this one. OSError if it cannot start."""
    failed, tells = os.pipe()  # closed when the script begins
    if script := os.fork():
        os.close(tells)
        if number := os.read(failed, 16):
            os.waitpid(script, 0)
            raise OSError(int(number), os.strerror(int(number)))
        return script
    try:
        _C.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(ignored, signal.SIG_DFL)
        os.execvp(words[0], words)
    except OSError as error:
        os.write(tells, b"%d" % (error.errno or 0))
    finally:
        os._exit(_MISSING)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _show(name: bytes) -> None:
    """Set the name of this process in `ps`, truncated to the length of its command line."""
    begin, end = map(int, _stat("self")[45:47])
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, name, min(len(name), end - begin - 1))


# ---------------------------------------------------------------- the processes of the script


def _addressees(script: int) -> list[int]:
    """Return the processes to send SIGTERM to: the first one that is not a shell, and shells above that trap it.

    A shell waits for its program without forwarding the signal. Signalling the whole group would be wrong: the workers
    of a data loader would end while the script saves. A shell with a trap takes care of its background jobs.
    """
    children, found, ahead = _children(), list[int](), [script]
    while ahead:
        process, *ahead = ahead
        if not _is_shell(process):
            return [*found, process]
        below = sorted(  # background jobs last, which ignore SIGINT
            (_has_signal(child, b"SigIgn:", signal.SIGINT), place, child) for place, child in children.get(process, ())
        )
        # With only a trap for EXIT, bash catches every fatal signal, and ends at once: not a trap for SIGTERM.
        if traps := _catches(process, signal.SIGTERM) and not _catches(process, signal.SIGXCPU):
            found.append(process)
        ahead = [child for is_in_background, _, child in below if not (traps and is_in_background)] + ahead
    return found or [script]


def _is_shell(process: int) -> bool:
    """Return True if a process runs a shell, including BusyBox's."""
    with suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as file:
        program = os.path.basename(os.readlink(f"/proc/{process}/exe"))
        if program.startswith("busybox"):
            words = [os.path.basename(word.decode(errors="replace")) for word in file.read().split(b"\0")]
            program = words[words[0].startswith("busybox")].lstrip("-")
        return program.partition(" ")[0].partition("-")[0].rstrip("0123456789.") in _SHELLS
    return False


def _catches(process: int, number: int) -> bool:
    return _has_signal(process, b"SigCgt:", number)


def _has_signal(process: int, name: bytes, number: int) -> bool:
    with suppress(OSError), open(f"/proc/{process}/status", "rb") as file:
        masks = [line.split()[1] for line in file if line.startswith(name)]
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def _children() -> dict[int, list[tuple[int, int]]]:
    """Return the living children of each process, as (start time, process id)."""
    found: dict[int, list[tuple[int, int]]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            stat = _stat(name)
            if stat[0] not in b"ZX":
                found.setdefault(int(stat[1]), []).append((int(stat[19]), int(name)))
    return found


def _stat(process: str) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, starting with the state."""
    with open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _end_all(ended: dict[int, int]) -> None:
    """Kill all descendants; add their status to `ended`."""
    for _ in range(_N_LOOKS):
        if not _reap(ended):
            break
        for _, process in _children().get(os.getpid(), ()):  # their children then become ours
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _reap(ended: dict[int, int]) -> bool:
    """Add the status of ended processes to `ended`; return True if some are left."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
        return True
    return False


if __name__ == "__main__":
    code = supervise(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
