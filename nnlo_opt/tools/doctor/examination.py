"""Checks of the machine: each measures with a time limit, then judges."""

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from nnlo_opt.core.trials.owner import in_words, read_owner
from nnlo_opt.core.trials.run_lock import may_be_at_work
from nnlo_opt.engine.data.memory import control_groups
from nnlo_opt.engine.runtime.devices import VISIBLE, cores, find_gpus
from nnlo_opt.engine.runtime.environment import (
    SESSION_FOLDER,
    THREAD_VARIABLES,
    ULFM,
    idle_nodes_text,
    module_command,
    n_allocated_nodes,
)
from nnlo_opt.engine.runtime.handles import memory
from nnlo_opt.engine.runtime.mpi_kind import UNKNOWN, MpiKind
from nnlo_opt.tools.doctor import judgement
from nnlo_opt.tools.doctor.judgement import Finding
from nnlo_opt.tools.launcher.job import VERSION_S, Job, find_command

#: program of a rank
_RANK = "nnlo_opt.tools.doctor.rank"
#: framework -> expressions for the number of visible GPUs, and for its backend
FRAMEWORKS = {
    "keras": "None, package.backend.backend()",
    "tensorflow": "len(package.config.list_physical_devices('GPU')), ''",
    "torch": "package.cuda.device_count(), ''",
    "jax": "sum(device.platform == 'gpu' for device in package.devices()), ''",
}
_IMPORT = """
import json, os, time
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
begun_s = time.perf_counter()
import {name} as package
seconds = time.perf_counter() - begun_s
n_gpus, backend = {expressions}
print()
print(json.dumps(dict(seconds=seconds, version=package.__version__, n_gpus=n_gpus, backend=backend)))
"""


class Answer(NamedTuple):
    """Output of a program."""

    text: str
    #: description of a failure; empty if it succeeded
    failure: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """JSON objects among its lines."""
        return [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]


def ask(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a program for at most `timeout_s` seconds, with extra environment variables; leaves no process behind."""
    # Use files in memory: maybe no folder is writable, and a pipe may be kept open by a process that cannot be killed.
    with open(memory("out"), "w+b") as out, open(memory("err"), "w+b") as err:
        until_s = time.monotonic() + timeout_s
        job = Job(command, environment, stdout=out, stderr=err)
        code = job.wait(lambda: time.monotonic() >= until_s, 0.0)
        texts = [os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace") for file in (out, err)]
    said = [line.strip() for line in texts[1].splitlines() if line.strip(" -\n")] or [f"exit code {code}"]
    # In a traceback the last line has the reason, for mpirun the first.
    last = said[-1] if "Traceback" in texts[1] else " ".join(said[:4])
    failure = f"It says: {last.rstrip('.')}." * bool(code)
    return Answer(texts[0], f"It was ended after {timeout_s:g} s." if job.was_late else failure)


@dataclass(slots=True, kw_only=True)
class Examination:
    """Checks of one machine; call them in the order of `checks`."""

    #: command that starts ranks
    starter: list[str]
    #: None for the batch system's number, else two
    n_ranks: int | None
    folder: Path
    timeout_s: float
    #: number of ranks on this host; two until a check has counted them
    n_here: int = 2
    #: True once launcher and library were found
    has_mpi: bool = False
    #: kind of launcher, once found
    kind: MpiKind = UNKNOWN
    #: framework -> number of visible GPUs
    seen: dict[str, int] = field(default_factory=dict)

    def mpi(self) -> Iterator[Finding]:
        """Look for the launcher and the library."""
        found = shutil.which(find_command(self.starter[0]) or "") or ""
        beside = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or ""
        version = ask([found, "--version"], min(VERSION_S, self.timeout_s)).text if found else ""
        answer = ask(module_command(_RANK, "places", ""), self.timeout_s)
        library = next((line["library"] for line in answer.lines if "library" in line), "")
        self.starter[0], self.has_mpi, self.kind = found, bool(version and library), MpiKind.of(version)
        yield judgement.mpi(found, version, library, answer.failure, beside if beside != found else "")

    def ranks(self) -> Iterator[Finding]:
        """Start ranks like a run, and let them report where they are."""
        if not self.has_mpi:
            return
        n_asked = self.n_ranks or (None if n_allocated_nodes() else 2)
        number = [] if n_asked is None else ["-n", str(n_asked)]
        with ExitStack() as stack:
            file = ""
            with suppress(OSError):  # `disk` reports this
                file = stack.enter_context(
                    tempfile.NamedTemporaryFile(prefix=".nnlo_opt-doctor-", dir=self.folder)
                ).name
            answer = ask([*self.starter, *number, *module_command(_RANK, "places", file)], self.timeout_s)
        n_sharing = {line["rank"]: line["n_sharing"] for line in answer.lines if "n_sharing" in line}
        found = [line | {"n_sharing": n_sharing.get(line["rank"])} for line in answer.lines if "host" in line]
        found.sort(key=lambda rank: rank["rank"])
        hosts = [rank["host"] for rank in found]
        self.n_here = hosts.count(hosts[0]) if hosts else self.n_ranks or 2
        pairs = [line | {"host": hosts[0], "other": hosts[line["rank"]]} for line in answer.lines if "mb_per_s" in line]
        idle = idle_nodes_text(len({*hosts}), len(hosts))
        job = judgement.ShortJob(kind=self.kind, n_asked=n_asked, found=found, pairs=pairs, failure=answer.failure)
        yield from judgement.ranks(job, len(cores()), idle)

    def deaths(self) -> Iterator[Finding]:
        """Kill one of two ranks."""
        if not self.has_mpi:
            return
        answer, has_ulfm = Answer("", ""), self.kind.has_ulfm
        if has_ulfm:
            answer = ask([*self.starter, "-n", "2", *module_command(_RANK, "death")], self.timeout_s, ULFM)
        noticed_ms = next((line["noticed_ms"] for line in answer.lines), None)
        yield judgement.deaths(has_ulfm, noticed_ms, answer.failure)

    def cores(self) -> Iterator[Finding]:
        """Count the cores of this host."""
        usable, siblings = cores(), set()
        for core in usable:
            with suppress(OSError):
                siblings.add(Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text())
        n_physical, n_of_machine = len(siblings) or len(usable), os.cpu_count() or len(usable)
        yield judgement.cores(len(usable), n_of_machine, n_physical, min(_quotas(), default=None), self.n_here)

    def threads(self) -> Iterator[Finding]:
        """Read the variables that set numbers of threads."""
        names = (*THREAD_VARIABLES, "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        yield from judgement.threads(_set(names), len(cores()), self.n_here)

    def disk(self) -> Iterator[Finding]:
        """Write to the folder like a run."""
        kinds = {partition.mountpoint: partition.fstype for partition in psutil.disk_partitions(all=True)}
        place = self.folder.resolve()
        kind = next((kinds[str(path)] for path in (place, *place.parents) if str(path) in kinds), "unknown")
        answer = ask(module_command("nnlo_opt.tools.doctor.disk", str(place)), self.timeout_s)
        measured = {name: value for line in answer.lines for name, value in line.items()}
        owner = (in_words(read_owner(place)) or " (jobs that share it)") if may_be_at_work(place) else ""
        yield from judgement.disk(str(self.folder), kind, measured, answer.failure, owner)

    def framework(self, name: str) -> Iterator[Finding]:
        """Import a framework in a separate process."""
        if importlib.util.find_spec(name) is None:
            yield judgement.framework(name, None, "")
            return
        program = _IMPORT.format(name=name, expressions=FRAMEWORKS[name])
        answer = ask([sys.executable, "-P", "-c", program], self.timeout_s)
        measured = answer.lines[-1] if answer.lines else {}
        if measured.get("n_gpus") is not None:
            self.seen[name] = measured["n_gpus"]
        yield judgement.framework(name, measured, answer.failure)

    def gpus(self) -> Iterator[Finding]:
        """Look for GPUs."""
        yield judgement.gpus(find_gpus(os.environ).names, _set(VISIBLE), self.seen)

    def leftovers(self) -> Iterator[Finding]:
        """Look for folders that Open MPI has left behind for dead processes of this user."""
        with tempfile.TemporaryDirectory() as name:
            place, n_left = Path(os.environ.get(SESSION_FOLDER) or Path(name).parent), 0
        for path in [path for name in ("ompi", "prted") for path in place.glob(f"{name}.*")]:
            with suppress(OSError, ValueError):
                if path.stat().st_uid == os.getuid() and not psutil.pid_exists(int(path.name.partition(".")[2])):
                    n_left += 1
        yield judgement.leftovers(str(place), n_left)


def _set(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _quotas() -> Iterator[float]:
    """Yield the CPU quota, in cores, of each control group of this process."""
    for version, folder in control_groups("cpu"):
        with suppress(OSError, ValueError):  # "max": no limit
            files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = " ".join((folder / file).read_text() for file in files).split()
            if int(quota) > 0:
                yield int(quota) / int(period)
