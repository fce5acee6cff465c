"""Strikes jobs that share a search (`--join`), and looks whether anything was lost or done twice.

Every run is a search of a light objective with up to five jobs of one to three ranks in one folder, in which others'
writes are seen late (chaos_late.py). At random moments a job is killed, in part or whole, stopped for longer than the
limit, asked to end, or started; most often that of the coordinator. One trial kills the process that evaluates it.

    python benchmarks/resilience/chaos_join.py --runs 20 --keep DIR
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import chaos_check as check
import harness as h
import psutil
from chaos_processes import RANK_VARIABLES, VANISHED, Family, stopped

from nnlo_opt.engine.runtime.environment import SESSION_FOLDER
from nnlo_opt.testing.mpirun import find_mpirun

HERE = Path(__file__).parent
#: after how many seconds of silence a job counts as gone
LIMIT_S = 10.0
#: how likely each kind of blow is
WEIGHTS = {"start": 4.0, "rank 0": 1.5, "worker": 1.0, "job": 1.0, "pause": 2.0, "usr1": 2.0, "term": 1.0, "int": 0.5}
#: how often the coordinator's job is the victim
COORDINATOR = 0.6
N_JOBS, N_BLOWS, N_TRIALS = 5, (3, 9), (12, 30)
#: exit codes of jobs that nobody has killed: complete, left
SOUND = (0, 75)


@dataclass(slots=True)
class Member:
    """A job: its mpirun, and what was done to it."""

    process: psutil.Popen
    family: Family
    n_ranks: int
    output: Path
    blows: list[str] = field(default_factory=list)
    #: Unix time at which its stopped processes go on
    wakes_s: float | None = None

    def ranks(self) -> dict[int, psutil.Process]:
        """Its ranks that are alive; the first process with the number of a rank is the rank."""
        found: dict[int, psutil.Process] = {}
        for process, values in self.family.members():
            with suppress(*VANISHED):
                rank = next((int(values[name]) for name in RANK_VARIABLES if name in values), None)
                if rank is not None and (rank not in found or process.create_time() < found[rank].create_time()):
                    found[rank] = process
        return found

    def term(self, run: Path) -> int:
        """The term whose journal its rank 0 has open; 0 if it has none."""
        terms, rank_0 = [0], self.ranks().get(0)
        if rank_0 is not None:
            with suppress(*VANISHED):
                for file in Path(f"/proc/{rank_0.pid}/fd").iterdir():
                    with suppress(OSError, ValueError):
                        path = Path(os.readlink(file))
                        if path.name == "journal.jsonl" and path.parent.parent == run / "jobs":
                            terms.append(int(path.parent.name.removeprefix("journal-")))
        return max(terms)


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    blows: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    #: kind of problem -> what it is
    bad: dict[str, Any] = field(default_factory=dict)
    n_jobs: int = 0
    n_late: int = 0
    n_repeated: int = 0
    n_given_up: int = 0


class Run:
    """One search, whose jobs come and go."""

    def __init__(self, folder: Path, rng: random.Random, expected: dict[str, Any], limit_s: float) -> None:
        self.folder, self.rng, self._expected, self._limit_s = folder, rng, expected, limit_s
        self._run = folder / "run"
        self.n_trials = rng.randint(*N_TRIALS)
        self.poisonous = rng.randrange(self.n_trials)
        poison = expected[str(self.poisonous)]["point"]["x"]
        (folder / "setting.json").write_text(json.dumps({"poison": poison, "slower": 10.0}))
        self.members: list[Member] = []
        self.outcome = Outcome()

    def disturb(self) -> Outcome:
        """Strike, wait for the end, and judge."""
        rng, outcome = self.rng, self.outcome
        try:
            for _ in range(rng.randint(2, 3)):
                self._start()
            for _ in range(rng.randint(*N_BLOWS)):
                if not self._wait(rng.uniform(0.5, 12.0)):
                    break
                self._strike(rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])
            until_s = time.monotonic() + self._limit_s
            while self._wait(1.0):
                if time.monotonic() > until_s:
                    outcome.bad["hung"] = "the search is not complete"
                    break
            until_s = time.monotonic() + self._limit_s
            while not outcome.bad and self._alive():
                self._wake()
                if time.monotonic() > until_s:
                    outcome.bad["hung"] = f"{len(self._alive())} jobs have not ended after the search"
                time.sleep(0.2)
        finally:
            self._close()
        self._judge()
        return outcome

    def _start(self) -> None:
        rng, number = self.rng, len(self.members)
        n_ranks = rng.randint(1, 3)
        family, output = Family(), self.folder / f"output-{number}.txt"
        driver = [HERE / "chaos_late.py", "--model", HERE / "chaos_join_objective.py", "--join", LIMIT_S]
        driver += ["--block-size", rng.randint(1, max(1, n_ranks - 1)), "--hyper-opt", "random", "--seed", "7"]
        driver += ["--num-iterations", self.n_trials, "--checkpoint", self._run]
        mpirun = find_mpirun()
        assert mpirun is not None, "chaos needs Open MPI"
        environment = {
            **h.environment(),
            "PYTHONPATH": str(h.ROOT),
            "PYTHONFAULTHANDLER": "1",
            SESSION_FOLDER: str(self.folder / f"mpi-{number}"),
            **family.variables,
        }
        with output.open("wb") as file:
            process = psutil.Popen(
                [str(word) for word in (mpirun, "-np", n_ranks, sys.executable, *driver)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.members.append(Member(process, family, n_ranks, output))
        self._note(f"start job {number} with {n_ranks} ranks")

    def _note(self, what: str) -> None:
        self.outcome.blows.append(what)
        with (self.folder / "blows.txt").open("a") as file:
            print(f"{time.time():.2f} {what}", file=file)

    def _alive(self) -> list[Member]:
        return [member for member in self.members if member.process.poll() is None]

    def _wait(self, seconds: float) -> bool:
        """Wait; -> whether the search goes on. Without any job one is started, as a person would."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._wake()
            if self._is_complete():
                return False
            if not self._alive():
                self._start()
            time.sleep(0.1)
        return True

    def _wake(self) -> None:
        for member in self.members:
            if member.wakes_s is not None and time.time() >= member.wakes_s:
                member.wakes_s = None
                for process, _ in member.family.members():
                    with suppress(*VANISHED):
                        process.send_signal(signal.SIGCONT)

    def _events(self) -> list[dict[str, Any]]:
        data = b""
        with suppress(FileNotFoundError):
            data = (self._run / "journal.jsonl").read_bytes()
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def _is_complete(self) -> bool:
        with suppress(ValueError):
            return any(event["event"] == "RunCompleted" for event in self._events())
        return False

    # ------------------------------------------------------------ blows

    def _strike(self, kind: str) -> None:
        rng, alive = self.rng, [member for member in self._alive() if member.wakes_s is None]
        if kind == "start" or not alive:
            if len(self._alive()) < N_JOBS:
                self._start()
            return
        terms = {id(member): member.term(self._run) for member in alive}
        leader = max(alive, key=lambda member: terms[id(member)])
        member = leader if terms[id(leader)] and rng.random() < COORDINATOR else rng.choice(alive)
        ranks, everybody = member.ranks(), [process for process, _ in member.family.members()]
        if not ranks:
            return
        self._note(f"{kind} of job {self.members.index(member)}, term {terms[id(member)]}")
        member.blows.append(kind)
        with suppress(*VANISHED):
            match kind:
                case "rank 0" if 0 in ranks:
                    ranks[0].kill()
                case "worker":
                    ranks[max(ranks)].kill()
                case "job":
                    for process in everybody:
                        with suppress(*VANISHED):
                            process.kill()
                case "pause":
                    member.wakes_s = time.time() + rng.choice([0.5, 1.0, 2.0, 3.0]) * LIMIT_S
                    for process in [ranks[0]] if rng.random() < 0.3 and 0 in ranks else everybody:
                        stopped(process)
                case "usr1":
                    member.process.send_signal(signal.SIGUSR1)
                case "term":
                    (member.process if rng.random() < 0.5 else ranks[min(ranks)]).send_signal(signal.SIGTERM)
                case "int":
                    member.process.send_signal(signal.SIGINT)

    # ------------------------------------------------------------ the end

    def _close(self) -> None:
        for member in self.members:
            member.wakes_s = 0.0 if member.wakes_s is not None else None
        self._wake()
        until_s = time.monotonic() + 15.0
        is_hung = "hung" in self.outcome.bad
        if is_hung:
            for member in self._alive():
                for process in member.ranks().values():
                    with suppress(*VANISHED):
                        process.send_signal(signal.SIGABRT)
            time.sleep(3.0)
        left = self._left()
        while left and not is_hung and time.monotonic() < until_s:
            time.sleep(0.2)
            left = self._left()
        for process in left:
            with suppress(*VANISHED):
                if not is_hung:
                    self.outcome.bad.setdefault("left", []).append(" ".join(process.cmdline())[-120:])
                process.kill()
        for member in self.members:
            with suppress(psutil.TimeoutExpired):
                member.process.wait(10.0)

    def _left(self) -> list[psutil.Process]:
        return [process for member in self.members for process, _ in member.family.members()]

    def _judge(self) -> None:
        outcome, bad = self.outcome, self.outcome.bad
        outcome.events, outcome.n_jobs = self._events(), len(self.members)
        evaluations = self.folder / "evaluations.jsonl"
        lines = [json.loads(line) for line in evaluations.read_text().splitlines()] if evaluations.exists() else []
        found = check.check(outcome.events, lines, self._expected, self.n_trials)
        # An expelled job that has slept may still evaluate what it was asked; that does not count, so it is no fault.
        late = [text for text in found.twice if "was executed" in text]
        twice = [text for text in found.twice if text not in late]
        outcome.n_late, outcome.n_repeated, outcome.n_given_up = len(late), found.n_repeated, found.n_given_up
        for kind, problems in (("lost", found.lost), ("twice", twice), ("wrong", found.wrong)):
            if problems:
                bad[kind] = problems
        ends = (event for event in outcome.events if event["event"] in ("TrialCompleted", "TrialFailed"))
        ended = Counter(event["trial"] for event in ends)
        if again := [trial for trial, n in ended.items() if n > 1]:
            bad["ended twice"] = again
        if any(e["event"] == "TrialCompleted" and e["trial"] == self.poisonous for e in outcome.events):
            bad["poison"] = "the poisonous trial is complete"
        codes = {i: member.process.returncode for i, member in enumerate(self.members) if not set(member.blows)}
        starts = (self.folder / "blows.txt").read_text()
        for i, code in codes.items():
            text = self.members[i].output.read_text(errors="replace")
            # The poisonous trial kills jobs, too.
            if code not in SOUND and "signal 9" not in text:
                bad.setdefault("codes", {})[i] = code
        for i, member in enumerate(self.members):
            if "Traceback" in member.output.read_text(errors="replace"):
                bad.setdefault("traceback", []).append(i)
        if bad:
            h.say(starts)


def points(folder: Path) -> dict[str, Any]:
    """What an undisturbed search without `--join` gives."""
    place = folder / "undisturbed"
    place.mkdir()
    (place / "setting.json").write_text(json.dumps({"poison": -1.0, "slower": 0.0}))
    options = ["--model", HERE / "chaos_join_objective.py", "--num-iterations", N_TRIALS[1], "--hyper-opt", "random"]
    with h.Job("OptimizationDriver", 2, [*options, "--seed", "7"], place, 300.0, root=h.ROOT) as job:
        job.wait()
    return check.outcomes(h.JournalReader(place / "run").new_events(), any_ranks=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after that")
    parser.add_argument("--limit", type=float, default=150.0, help="what takes longer after the last blow hangs")
    parser.add_argument("--keep", type=Path, help="folder for runs that failed")
    options = parser.parse_args()
    where, until_s = h.machine(), time.monotonic() + 60 * options.minutes
    outcomes: dict[int, Outcome] = {}
    with h.temporary_folder() as folder:
        expected = points(folder)
        keep = options.keep or folder / "keep"
        keep.mkdir(parents=True, exist_ok=True)
        for number in range(options.first, options.first + options.runs):
            if time.monotonic() >= until_s:
                break
            place = folder / f"run-{number}"
            place.mkdir()
            began_s = time.monotonic()
            rng = random.Random(f"{options.seed}-join-{number}")
            run = Run(place, rng, expected, options.limit)
            h.say(f"run {number}: {run.n_trials} trials, {run.poisonous} is poisonous")
            outcomes[number] = outcome = run.disturb()
            h.say(f"  {time.monotonic() - began_s:.0f} s, {outcome.n_jobs} jobs: {outcome.bad or 'sound'}")
            if outcome.bad:
                shutil.copytree(place, keep / f"failed-join-{options.seed}-{number}", dirs_exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
    show(outcomes, options.seed, where)


def show(outcomes: dict[int, Outcome], seed: int, where: dict[str, Any]) -> None:
    """Print the one line."""
    kinds = ("lost", "twice", "wrong", "ended twice", "poison", "hung", "left", "codes", "traceback")
    counts = {kind: sum(kind in outcome.bad for outcome in outcomes.values()) for kind in kinds}
    blows = Counter(blow.partition(" of ")[0] for outcome in outcomes.values() for blow in outcome.blows)
    events = Counter(event["event"] for outcome in outcomes.values() for event in outcome.events)
    results = {
        "seed": seed,
        "runs": len(outcomes),
        "jobs": sum(outcome.n_jobs for outcome in outcomes.values()),
        "terms": events["TermBegan"],
        "trials": events["TrialCompleted"],
        "blows": {kind: n for kind, n in blows.items() if kind in WEIGHTS},
        "evaluations_repeated": sum(outcome.n_repeated for outcome in outcomes.values()),
        "trials_evaluated_after_their_end": sum(outcome.n_late for outcome in outcomes.values()),
        "trials_given_up": sum(outcome.n_given_up for outcome in outcomes.values()),
        "failed_runs": {str(number): outcome.bad for number, outcome in outcomes.items() if outcome.bad},
    }
    h.report("chaos_join", results, {kind: ("<", 1.0, float(n)) for kind, n in counts.items()}, where)


if __name__ == "__main__":
    main()
