"""What it costs to survive where nothing dies: throughput with all that watches, and without.

with      under `nnlo-opt launch`: ULFM where the MPI has it, watchdogs and heartbeats, signs of life of the run
without   under plain mpirun, with `--hang-timeout 0`

The two take turns, each is the first in every other repeat, and the cost is that of a pair: so a change of the
machine's load meets both.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import training_runs as runs

#: percent of the throughput
MOST_PERCENT = 2.0
#: samples of an epoch, and epochs measured, after one that holds tracing
N_TRAIN, N_EPOCHS = 80_000, 10
N_TRIALS, TRIAL_S, N_BLOCKS = 300, 0.05, 2
OBJECTIVE = """
import time
from nnlo_opt.space import Real


def objective(parameters, comm, report):
    time.sleep({trial_s})
    return parameters["x"]


objective.parameter_range = [Real(0, 1, name="x")]
"""
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Training:
    """Training samples a second of an MLP."""

    n_ranks: int
    options: tuple[object, ...] = ()
    unit: str = "samples_per_s"

    def measure(self, folder: Path, data: runs.Data, options: list[object], *, launched: bool) -> float:
        """From the end of the first epoch to that of the last."""
        arguments = ["--model", runs.model_path("mlp"), "--train-data", data.train, "--batch", runs.BATCH]
        arguments += ["--loss", runs.LOSS, "--epochs", 1 + N_EPOCHS, "--checkpoint-interval", 100, *self.options]
        with h.Job(
            "TrainingDriver", self.n_ranks, [*arguments, *options], folder, _TIMEOUT_S, launched=launched
        ) as job:
            job.wait()
            ends_s = [event["time_s"] for event in h.events_of(job.run_directory, "EpochEnded")]
        return N_TRAIN * N_EPOCHS / (ends_s[-1] - ends_s[0])


@dataclass(frozen=True)
class Search:
    """Trials a second of a search whose trials are short."""

    unit: str = "trials_per_s"

    def measure(self, folder: Path, data: runs.Data, options: list[object], *, launched: bool) -> float:
        """From the first assignment to the end of the last."""
        folder.mkdir()
        module = folder / "short.py"
        module.write_text(OBJECTIVE.format(trial_s=TRIAL_S))
        arguments = ["--model", module, "--block-size", 1, "--num-iterations", N_TRIALS, "--hyper-opt", "random"]
        n_ranks = 1 + N_BLOCKS
        with h.Job("OptimizationDriver", n_ranks, [*arguments, *options], folder, _TIMEOUT_S, launched=launched) as job:
            job.wait()
            first = h.events_of(job.run_directory, "FoldAssigned")[0]
            finished = h.events_of(job.run_directory, "AssignmentFinished")
        return len(finished) / (finished[-1]["time_s"] - first["time_s"])


PARTS: dict[str, Training | Search] = {
    "downpour": Training(3),
    "allreduce": Training(2, ("--mode", "allreduce")),
    "search": Search(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="pairs of runs of each part (%(default)s)")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    arguments = parser.parse_args()
    where = h.machine()
    results: dict[str, Any] = {}
    targets: dict[str, h.Target] = {}
    with h.temporary_folder() as folder:
        data = runs.make_data(folder / "data", N_TRAIN)
        for name in arguments.parts:
            part = PARTS[name]

            def measure(place: Path, *, launched: bool, part: Training | Search = part) -> float:
                return part.measure(place, data, [] if launched else ["--hang-timeout", 0], launched=launched)

            found = pairs(measure, folder / name, arguments.repeats)
            costs = [100 * (1 - a / b) for a, b in zip(found[True], found[False], strict=True)]
            results[f"{name}_with_{part.unit}"] = h.spread(found[True])
            results[f"{name}_without_{part.unit}"] = h.spread(found[False])
            results[f"{name}_cost_percent"] = h.spread(costs, 3)
            targets[f"{name}_cost_percent"] = ("<", MOST_PERCENT, results[f"{name}_cost_percent"]["median"])
    h.report("healthy", results, targets, where)


def pairs(measure: Callable[..., float], folder: Path, repeats: int) -> dict[bool, list[float]]:
    """What is measured with everything on, and without, of each repeat."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(repeats):
        for launched in (True, False) if repeat % 2 else (False, True):
            place = folder / f"{repeat}-{'with' if launched else 'without'}"
            place.parent.mkdir(exist_ok=True)
            found[launched].append(measure(place, launched=launched))
        h.say(f"{folder.name}: {found[True][-1]:.5g} with, {found[False][-1]:.5g} without")
    return found


if __name__ == "__main__":
    main()
