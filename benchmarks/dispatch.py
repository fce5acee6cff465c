"""How busy short trials keep the blocks: 400 `objective` trials of 0.1 s on 4 blocks of one rank, random search.

Three measures of the same run: what `summary.json` says (the coordinator's clock, from assignment to end), the time
inside `objective`, and 0.1 s a trial, all as a share of blocks x (last end - first assignment). Two controls tell what
the machine itself takes: the same sleeps in 4 processes without MPI, and an fsync of a journal's few lines, of which a
dispatch gap holds at least one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness as h

N_BLOCKS, N_TRIALS, TRIAL_S = 4, 400, 0.1
OBJECTIVE = """
import time
from nnlo_opt.space import Real

def objective(parameters, comm, report):
    time.sleep({trial_s})
    return parameters["x"]

objective.parameter_range = [Real(0.0, 1.0, name="x")]
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
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    where = h.machine()
    runs, sleeps_s, fsyncs_ms = [], [], []
    with h.temporary_folder() as folder:
        for repeat in range(repeats):
            sleeps_s += control_s()
            fsyncs_ms += control_fsync_ms(folder)
            runs.append(measure(folder / str(repeat)))
            h.say(f"{runs[-1]}")
    results: dict[str, Any] = {
        "n_blocks": N_BLOCKS,
        "n_trials": N_TRIALS,
        "trial_s": TRIAL_S,
        **{name: h.spread([run[name] for run in runs]) for name in runs[0]},
        "control_sleep_s": h.spread(sleeps_s),
        "control_fsync_ms": h.spread(fsyncs_ms),
        "control_utilization": h.rounded(TRIAL_S / statistics.median(sleeps_s)),
    }
    targets = {
        "block_utilization": (">=", 0.92, results["block_utilization"]["median"]),
        "dispatch_gap_median_ms": ("<", 10, results["dispatch_gap_median_ms"]["median"]),
    }
    h.report("dispatch", results, targets, where)


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
