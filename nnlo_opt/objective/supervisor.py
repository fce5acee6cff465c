"""Supervisor of a script: it starts the script, and leaves no process of it behind.

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

_SET_CHILD_SUBREAPER = 36
#: code of a command that cannot be started, as in a shell
MISSING = 127
#: seconds for which killed processes are waited for: one that waits for a broken disk outlives its death
_KILL_S, _LOOK_S = 5.0, 0.01


class Supervisor:
    """A script with all that it has started.

    Args:
        words: of the command.
    """

    def __init__(self, words: list[str]) -> None:
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._woken = woken
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)  # unlike an ignored one, it is not ignored by the script as well
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        not_ours = [signal.SIGPIPE, signal.SIGXFSZ]
        self._script = os.posix_spawnp(words[0], words, os.environ, file_actions=[nothing], setsigdef=not_ours)
        #: status of the script; None while it runs
        self._status: int | None = None

    def run(self) -> int:
        """Return the code of the script, as a shell would, when nothing is left of it."""
        while self._status is None:
            ready = self._wait(None)
            if 0 in ready and not os.read(0, 1):
                break
            if 0 in ready and self._status is None:
                os.kill(self._script, signal.SIGTERM)
        for _ in range(int(_KILL_S / _LOOK_S)):
            if not self._reap():
                break
            for process in _descendants(os.getpid()):
                _kill(process)
            self._wait(_LOOK_S)
        code = os.waitstatus_to_exitcode(signal.SIGKILL if self._status is None else self._status)
        return code if code >= 0 else 128 - code

    def _wait(self, timeout_s: float | None) -> list[int]:
        """Return what is readable: 0 for the pipe of the rank, while the script runs."""
        ready = select.select([self._woken] if self._status is not None else [0, self._woken], [], [], timeout_s)[0]
        if self._woken in ready:
            os.read(self._woken, 4096)
            self._reap()
        return ready

    def _reap(self) -> bool:
        """Take in the ends of processes; return True if some are left."""
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._script:
                    self._status = found[1]
        except ChildProcessError:
            return False
        return True


def _descendants(process: int) -> list[int]:
    """Return the processes below `process`."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # it has just ended
    found = [process]
    for above in found:
        found += [child for child, parent in parents.items() if parent == above]
    return found[1:]


def _kill(process: int) -> None:
    try:  # noqa: SIM105  (an import takes time)
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    try:
        code = Supervisor(sys.argv[1:]).run()
    except OSError as error:
        print(f"`{sys.argv[1]}` cannot be started: {error.strerror}", file=sys.stderr)
        code = MISSING
    os._exit(code)
