"""Supervisor of a script, which leaves no process of it behind.

It is executed as a file, by a Python that imports nothing of this package or of others, so that a script begins at
once. Its standard input is a socket of the rank. A byte there sends SIGTERM to the script; the end of the socket, which
the death of the rank brings, too, kills the script and all that it has started. If the script ends by itself, its
wait status goes back to the rank.

All of the script stays below this process, however often it forks and whatever session it leaves, as the processes of a
dead parent become children of this one. What SIGKILL takes from this process is left to its parent, the guard: the
process that the rank has started, and that has forked this one. Either of the two ends everything when the other one
has died, also if the rank has died with it. If both are killed, the first process of the script goes with them.
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
#: code of a command that cannot be started, as in a shell
_MISSING = 127
#: looks for killed processes, and seconds between two of them: one that waits for a broken disk outlives its death
_N_LOOKS, _LOOK_S = 500, 0.01
#: signals that end a process unless it handles them
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: what `ps` shows of the guard: who ends supervisors by the name of their file leaves it
_GUARD = b"guard of a script"
#: programs that pass SIGTERM on to no process, by the beginning of their name
_SHELLS = ("ash", "bash", "csh", "dash", "fish", "ksh", "lksh", "mksh", "sh", "tcsh", "yash", "zsh")
_C = ctypes.CDLL(None)


def supervise(words: list[str]) -> int:
    """Run a script to its end; return its code, as a shell would, when nothing is left of it."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # a signal that is ignored would be ignored by the script as well
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
    _C.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # which no fork inherits
    return _code(_run(words, guarded))


def _run(words: list[str], guarded: int) -> int:
    """Return the status of a script when nothing is left of it; the pipe `guarded` ends with the guard."""
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
    """Tell the rank the status with which a script has ended by itself; return it."""
    with suppress(OSError):  # the rank may have died
        os.write(0, struct.pack("=i", status))
    return status


def _start(words: list[str]) -> int:
    """Start a script; return the number of its first process, which ends with this one. OSError if it cannot start."""
    failed, tells = os.pipe()  # which end when the script begins
    if script := os.fork():
        os.close(tells)
        if number := os.read(failed, 16):
            os.waitpid(script, 0)
            raise OSError(int(number), os.strerror(int(number)))
        return script
    try:
        _C.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
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
    """Have `ps` show this process by a name, as far as its command line has room for it."""
    begin, end = map(int, _stat("self")[45:47])
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, name, min(len(name), end - begin - 1))


# ---------------------------------------------------------------- the processes of the script


def _addressees(script: int) -> list[int]:
    """Return the processes that are sent SIGTERM: the first one that is no shell, and shells on the way that trap it.

    Shells wait for the program that they run, which would hear of nothing. A group of processes would be too many: the
    workers of a loader would end while the script saves. A shell with a trap sees to its jobs in the background.
    """
    children, found, ahead = _children(), list[int](), [script]
    while ahead:
        process, *ahead = ahead
        if not _is_shell(process):
            return [*found, process]
        below = sorted(  # those in the background, which a shell has ignore SIGINT, last
            (_has_signal(child, b"SigIgn:", signal.SIGINT), place, child) for place, child in children.get(process, ())
        )
        # With a trap for its exit, bash catches every signal that would end it, and ends at once.
        if traps := _catches(process, signal.SIGTERM) and not _catches(process, signal.SIGXCPU):
            found.append(process)
        ahead = [child for is_in_background, _, child in below if not (traps and is_in_background)] + ahead
    return found or [script]


def _is_shell(process: int) -> bool:
    """Return True if a process runs a shell, also one of BusyBox."""
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
    """Return the living children of each process, each with the time at which it began before it."""
    found: dict[int, list[tuple[int, int]]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            stat = _stat(name)
            if stat[0] not in b"ZX":
                found.setdefault(int(stat[1]), []).append((int(stat[19]), int(name)))
    return found


def _stat(process: str) -> list[bytes]:
    """Return the fields of a process behind its name, from its state on."""
    with open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _end_all(ended: dict[int, int]) -> None:
    """Kill all below this process; add their status to `ended`."""
    for _ in range(_N_LOOKS):
        if not _reap(ended):
            break
        for _, process in _children().get(os.getpid(), ()):  # whose children are this process's own then
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _reap(ended: dict[int, int]) -> bool:
    """Add the status of processes that have ended; return True if some are left."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
        return True
    return False


if __name__ == "__main__":
    code = supervise(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
