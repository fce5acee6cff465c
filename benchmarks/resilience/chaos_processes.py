"""The processes of one disturbed run, found by a mark in their environment, so that nothing else is ever struck."""

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "NNLO_OPT_CHAOS_RUN"
#: what MPI libraries call the rank of a process in its environment
RANK_VARIABLES = ("PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
#: a process may end while it is looked at
VANISHED = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError)
STARTERS = ("mpirun", "mpiexec", "prterun")
#: by a word of their commands
HELPERS = {
    "search": "nnlo_opt.engine.search.serve",
    "reporter": "nnlo_opt.app.reporting.follow",
    "daemon": "hydra_pmi_proxy",
}


class Family:
    """What descends from one launcher."""

    def __init__(self) -> None:
        #: what the launcher's environment has more than ours
        self.variables = {MARK: uuid.uuid4().hex}

    def members(self) -> list[tuple[psutil.Process, dict[str, str]]]:
        """Those that are alive, with their environments."""
        found = []
        # By hand, as psutil would look at every process of the machine, and the search does not wait.
        mark = "=".join(*self.variables.items()).encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(*VANISHED):
                if mark in Path(f"/proc/{name}/environ").read_bytes():
                    process = psutil.Process(int(name))
                    if alive(process):
                        found.append((process, process.environ()))
        return found

    def roles(self) -> tuple[dict[int, psutil.Process], dict[str, psutil.Process], psutil.Process | None]:
        """The ranks, the helpers by name, and mpirun, of the newest job."""
        ranks: dict[int, psutil.Process] = {}
        helpers: dict[str, psutil.Process] = {}
        starter: psutil.Process | None = None
        for process, values in self.members():
            with suppress(*VANISHED):
                command = process.cmdline()
                rank = next((int(values[name]) for name in RANK_VARIABLES if name in values), None)
                is_driver = any("OptimizationDriver" in word for word in command)
                # The newest: of an earlier start one may be left that is about to end.
                if rank is not None and is_driver and process.create_time() > _born(ranks.get(rank)):
                    ranks[rank] = process
                for name, word in HELPERS.items():
                    if word in command or (command and Path(command[0]).name == word):
                        helpers[name] = process
                if rank is None and command and Path(command[0]).name in STARTERS:
                    starter = process
        return ranks, helpers, starter


def alive(process: psutil.Process) -> bool:
    """Whether it is there, and no zombie."""
    with suppress(*VANISHED):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def stopped(process: psutil.Process) -> bool:
    """Stop it; -> whether it stands."""
    with suppress(*VANISHED):
        process.send_signal(signal.SIGSTOP)
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            if process.status() == psutil.STATUS_STOPPED:
                return True
            time.sleep(0.005)
    return False


def _born(process: psutil.Process | None) -> float:
    return process.create_time() if process else 0.0
