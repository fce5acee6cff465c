"""What sharing a search costs: blocks that wait, a job that joins, and a coordinator that hands over.

Six jobs of two to three ranks share a search with `--join`; a trial sleeps. Two of them start later, one leaves by
SIGUSR1, and then the coordinator does, too.

    python benchmarks/resilience/joining.py --trial-s 5 --minutes 2
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import psutil

OBJECTIVE = """
import time
from nnlo_opt.space import Real

parameter_range = [Real(0.0, 1.0, name="x")]


def objective(x):
    time.sleep({trial_s})
    return (x - 0.3) ** 2
"""
#: ranks of each job; each has one coordinating rank and blocks of one
RANKS = (3, 3, 2, 3, 2, 3)
#: at least so busy must blocks be; seconds from the start of a job's mpirun to its first trial, and to the first
#: order of a new coordinator
BUSY, FIRST_S, SUCCESSION_S = 0.9, 5.0, 5.0


Event = dict[str, Any]


class Jobs:
    """Jobs of one search in a folder."""

    def __init__(self, folder: Path, n_trials: int) -> None:
        self._folder, self._n_trials = folder, n_trials
        self.run = folder / "run"
        self.all: list[psutil.Popen] = []
        #: Unix time at which each job was started
        self.started_unix_s: list[float] = []

    def start(self, n_ranks: int) -> psutil.Popen:
        """Start a job."""
        number = len(self.all) + 1
        words = ["mpirun", "-np", n_ranks, sys.executable, h.ROOT / "drivers/OptimizationDriver.py"]
        words += ["--model", self._folder / "objective.py", "--block-size", 1, "--num-iterations", self._n_trials]
        words += ["--hyper-opt", "random", "--checkpoint", self.run, "--join", "--grace", 30]
        self.started_unix_s.append(time.time())
        with (self._folder / f"job-{number}.txt").open("wb") as output:
            job = psutil.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**h.environment(None), h.SESSION_FOLDER: str(self._folder / f"mpi-{number}")},
                start_new_session=True,
            )
        self.all.append(job)
        return job

    def end(self) -> None:
        """Kill what is left."""
        for job in self.all:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trial-s", type=float, default=5.0, help="seconds that a trial sleeps")
    parser.add_argument("--minutes", type=float, default=2.0, help="about how long it takes")
    options = parser.parse_args()
    where = h.machine()
    with h.temporary_folder() as folder:
        (folder / "objective.py").write_text(OBJECTIVE.format(trial_s=options.trial_s))
        n_blocks = sum(RANKS) - len(RANKS)
        jobs = Jobs(folder, round(60 * options.minutes / options.trial_s * n_blocks * 0.75))
        try:
            codes = disturb(jobs, options.trial_s)
            events = h.JournalReader(jobs.run).new_events()
        finally:
            jobs.end()
    found = results(events, options.trial_s, jobs.started_unix_s) | {"codes": codes}
    h.report("joining", found, targets(found), where)


def disturb(jobs: Jobs, trial_s: float) -> list[int | None]:
    """Start the jobs, let two of them leave, and wait for the others; return their exit codes."""
    first, *others = RANKS
    leader = jobs.start(first)
    wait(jobs, lambda events: any(event["event"] == "FoldAssigned" for event in events))
    for n_ranks in others[:3]:
        jobs.start(n_ranks)
    wait(jobs, lambda events: count(events, "JobJoined") == 4)
    time.sleep(3 * trial_s)
    for n_ranks in others[3:]:
        jobs.start(n_ranks)
    wait(jobs, lambda events: count(events, "JobJoined") == 6)
    time.sleep(2 * trial_s)
    jobs.all[2].send_signal(signal.SIGUSR1)
    time.sleep(2 * trial_s)
    leader.send_signal(signal.SIGUSR1)
    return [job.wait(600) for job in jobs.all]


def wait(jobs: Jobs, has_come: Callable[[list[Event]], bool]) -> None:
    """Wait until the journal has something."""
    until_s = time.monotonic() + 120
    while not (jobs.run / "journal.jsonl").exists() or not has_come(h.JournalReader(jobs.run).new_events()):
        if time.monotonic() > until_s:
            raise SystemExit(f"The jobs do not go on; see {jobs.run}.")
        time.sleep(0.2)


def count(events: list[Event], name: str) -> int:
    return sum(event["event"] == name for event in events)


def results(events: list[Event], trial_s: float, started_unix_s: list[float]) -> dict[str, Any]:
    """How busy blocks were until the first one had nothing more to do, and what coming and going took."""
    by_name: dict[str, list[Event]] = {}
    for event in events:
        by_name.setdefault(event["event"], []).append(event)
    assigned = by_name["FoldAssigned"]
    last_s = assigned[-1]["time_s"]
    first_team, teams = 0, {}
    for job in by_name["JobJoined"]:
        teams[job["job"]] = range(first_team, first_team + job["n_teams"])
        first_team += job["n_teams"]
    left_s = {event["job"]: event["time_s"] for event in by_name.get("JobLeft", ())}
    first_trial_s, there_s = [], 0.0
    # Jobs that begin at the same time may have their numbers in another order: their start is the same.
    zero_unix_s = by_name["RunStarted"][0]["unix_s"] - by_name["RunStarted"][0]["time_s"]
    for job in by_name["JobJoined"]:
        of_job = [event["time_s"] for event in assigned if event["team"] in teams[job["job"]]]
        first_trial_s.append(zero_unix_s + min(of_job) - started_unix_s[job["job"] - 1])
        there_s += len(teams[job["job"]]) * (min(left_s.get(job["job"], last_s), last_s) - job["time_s"])
    begun_s = {event["assignment"]: event["time_s"] for event in assigned}
    busy_s = sum(min(trial_s, max(0.0, last_s - time_s)) for time_s in begun_s.values())
    terms = [event["time_s"] for event in by_name["TermBegan"]]
    succession_s = min(event["time_s"] for event in assigned if event["time_s"] >= terms[-1]) - left_of_lead(events)
    return {
        "n_trials": len(by_name["TrialCompleted"]),
        "n_lost": len(by_name.get("AssignmentLost", ())),
        "busy": round(busy_s / there_s, 3),
        "first_trial_s": h.spread(first_trial_s, 3),
        "succession_s": round(succession_s, 2),
        "seconds": round(events[-1]["time_s"], 1),
    }


def left_of_lead(events: list[Event]) -> float:
    """Return the time of the last event of the first term."""
    last = [i for i, event in enumerate(events) if event["event"] == "TermBegan"][-1]
    return float(events[last - 2]["time_s"])


def targets(found: dict[str, Any]) -> dict[str, h.Target]:
    return {
        "busy": (">=", BUSY, found["busy"]),
        "first_trial_s": ("<", FIRST_S, found["first_trial_s"]["max"]),
        "succession_s": ("<", SUCCESSION_S, found["succession_s"]),
    }


if __name__ == "__main__":
    main()
