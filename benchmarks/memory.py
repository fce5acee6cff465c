"""Memory of the coordinator, a master, the search process and a trainer during a real search of a CNN on MNIST.

5 ranks, 2 blocks of 2, the demo's search space, random and Bayesian search in turn. A process counts with its peak.
Apart from that, the search process alone with a long history, as a search of hours would have.
"""

import argparse
import random
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import harness as h
import psutil

from nnlo_opt.search.base import TrialRecord
from nnlo_opt.search.process import SearchProcess

N_RANKS, BLOCK_SIZE, N_TRIALS = 5, 2, 14
ROLE_OF_RANK = {0: "coordinator", 1: "master", 2: "trainer", 3: "master", 4: "trainer"}
SEARCH_PROCESS = "search_process"
SPACE = h.ROOT / "search_spaces" / "mnist.py"
#: beyond 150 trials the cost of a suggestion is bounded
N_LONG_HISTORY = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    repeats = parser.parse_args().repeats
    where = h.machine()
    runs: dict[str, list[dict[str, Any]]] = {"random": [], "bayesian": []}
    with h.temporary_folder() as folder:
        data = h.make_mnist(folder / "mnist", "--source", "bundled", "--n-samples", 1500)
        for repeat in range(repeats):
            for algorithm, found in runs.items():
                found.append(measure(algorithm, data, folder / f"{algorithm}-{repeat}"))
                h.say(f"{algorithm}: {found[-1]}")
    long_history_mb = measure_long_history()
    results: dict[str, Any] = {"n_ranks": N_RANKS, "block_size": BLOCK_SIZE, "n_trials": N_TRIALS}
    peaks: dict[str, float] = {}
    for algorithm, found in runs.items():
        for role in (*dict.fromkeys(ROLE_OF_RANK.values()), SEARCH_PROCESS):
            values = [mb for run in found for mb in run["peak_mb"][role]]
            results[f"{algorithm}_{role}_peak_rss_mb"] = h.spread(values)
            peaks[role] = max(peaks.get(role, 0.0), *values)
    results[f"bayesian_search_process_{N_LONG_HISTORY}_trials_peak_rss_mb"] = h.rounded(long_history_mb)
    peaks[SEARCH_PROCESS] = max(peaks[SEARCH_PROCESS], long_history_mb)
    loaded = {
        role: sorted({name for found in runs.values() for run in found for name in run["frameworks"].get(role, ())})
        for role in ("coordinator", "master", SEARCH_PROCESS, "trainer")
    }
    results["frameworks_loaded"] = loaded
    targets: dict[str, h.Target] = {
        "coordinator_peak_rss_mb": ("<", 150, peaks["coordinator"]),
        "master_peak_rss_mb": ("<", 150, peaks["master"]),
        "search_process_peak_rss_mb": ("<", 300, peaks[SEARCH_PROCESS]),
        "frameworks_in_coordinator_and_master": ("<", 1, len(loaded["coordinator"]) + len(loaded["master"])),
    }
    h.report("memory", results, targets, where)


def measure(algorithm: str, data: list[object], folder: Path) -> dict[str, Any]:
    """Peaks in MB and loaded frameworks by role, over one search."""
    arguments = ["--model", "mnist", "--search-space", SPACE, "--loss", "categorical_crossentropy", *data]
    arguments += ["--block-size", BLOCK_SIZE, "--num-iterations", N_TRIALS, "--hyper-opt", algorithm, "--epochs", 1]
    #: by pid: role and peak; the kernel's peak only grows, so the last look counts
    peaks: dict[int, tuple[str, float]] = {}
    frameworks: dict[str, set[str]] = {}
    processes: list[tuple[str, psutil.Process]] = []

    def look() -> bool:
        if not processes:
            ranks, search = job.ranks(), job.helper("nnlo_opt.search.serve")
            if ranks and search:
                processes.extend((ROLE_OF_RANK[rank], process) for rank, process in ranks.items())
                processes.append((SEARCH_PROCESS, search))
        for role, process in processes:
            peaks[process.pid] = role, h.peak_rss_mb(process)
            frameworks.setdefault(role, set()).update(h.frameworks_in(process))
        return False

    with h.Job("OptimizationDriver", N_RANKS, arguments, folder, timeout_s=600) as job:
        job.watch(look, 0.1)
    by_role: dict[str, list[float]] = {}
    for role, mb in peaks.values():
        by_role.setdefault(role, []).append(mb)
    return {"peak_mb": by_role, "frameworks": {role: sorted(names) for role, names in frameworks.items()}}


def measure_long_history() -> float:
    """Peak in MB of a search process that makes Bayesian suggestions from `N_LONG_HISTORY` trials."""
    rng = random.Random(0)
    with closing(SearchProcess(h.environment())) as search:
        space = search.load_space(str(SPACE))
        search.start("random", space, 0, {})
        trials: list[TrialRecord] = []
        for number in range(N_LONG_HISTORY):
            search.request_suggestion(number)
            while (suggestion := search.poll()) is None:
                time.sleep(1e-3)
            point = suggestion.point or {}
            record = TrialRecord(trial=number, point=point, state="complete", value=rng.random())
            search.record([record])
            trials.append(record)
        search.start("bayesian", space, 0, {})
        search.record(trials)
        began_s = time.monotonic()
        for number in range(3):
            search.request_suggestion(N_LONG_HISTORY + number)
            while search.poll() is None:
                time.sleep(1e-3)
        h.say(f"3 suggestions after {N_LONG_HISTORY} trials took {time.monotonic() - began_s:.1f} s")
        return h.peak_rss_mb(psutil.Process().children()[0])


if __name__ == "__main__":
    main()
