"""Memory a trainer rank gains with every trial: a search over an MLP on MNIST, one block of a master and a trainer.

The resident memory is read as each trial ends; the figure is the slope of a straight line through it by least squares,
the first trials left out, in which libraries load what they need.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness as h

N_TRIALS, N_WARM_UP = 50, 5
ROLE_OF_RANK = {0: "coordinator", 1: "master", 2: "trainer"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=N_TRIALS)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    where = h.machine()
    with h.temporary_folder() as folder:
        data = h.make_mnist(folder / "mnist", "--source", "bundled", "--n-samples", 2000)
        runs = [measure(data, folder / str(repeat), arguments.trials) for repeat in range(arguments.repeats)]
    results: dict[str, Any] = {"n_trials": arguments.trials, "n_warm_up_trials": N_WARM_UP}
    for role in ROLE_OF_RANK.values():
        lines = [fit(run[role][N_WARM_UP:]) for run in runs]
        results[f"{role}_growth_mb_per_trial"] = h.spread([slope for slope, _ in lines], 3)
        results[f"{role}_growth_standard_error_mb"] = h.rounded(max(error for _, error in lines), 2)
    trainers = [run["trainer"] for run in runs]
    half = arguments.trials // 2
    results["trainer_growth_second_half_mb_per_trial"] = h.spread([fit(mb[half:])[0] for mb in trainers], 3)
    results["trainer_rss_after_warm_up_mb"] = h.rounded(trainers[0][N_WARM_UP])
    results["trainer_rss_last_mb"] = h.rounded(trainers[0][-1])
    growth = results["trainer_growth_mb_per_trial"]["max"]
    h.report("trainer_growth", results, {"trainer_growth_mb_per_trial": ("<", 1, growth)}, where)


def measure(data: list[object], folder: Path, n_trials: int) -> dict[str, list[float]]:
    """Resident MB by role as each trial ended."""
    arguments = ["--model", h.ROOT / "examples" / "example_mlp.py", *data, "--block-size", 2, "--epochs", 1]
    arguments += ["--num-iterations", n_trials, "--hyper-opt", "random"]
    sizes: dict[str, list[float]] = {role: [] for role in ROLE_OF_RANK.values()}
    with h.Job("OptimizationDriver", len(ROLE_OF_RANK), arguments, folder, timeout_s=900) as job:
        journal = h.JournalReader(job.run_directory)
        ranks: dict[int, Any] = {}

        def look() -> bool:
            if not ranks:
                ranks.update(job.ranks())
                return False
            ended = sum(event["event"] in ("TrialCompleted", "TrialFailed") for event in journal.new_events())
            for _ in range(ended):
                for rank, role in ROLE_OF_RANK.items():
                    sizes[role].append(h.rss_mb(ranks[rank]))
                if len(sizes["trainer"]) % 10 == 0:
                    h.say(f"{len(sizes['trainer'])} trials: trainer {sizes['trainer'][-1]:.0f} MB")
            return False

        job.watch(look, 0.01)
    if len(sizes["trainer"]) < n_trials - 1:
        raise SystemExit(f"Expected {n_trials} trials. Received: {len(sizes['trainer'])}.")
    return sizes


def fit(values: Sequence[float]) -> tuple[float, float]:
    """Slope of the line through (0, values[0]), (1, values[1]), … by least squares, and its standard error."""
    line = statistics.linear_regression(range(len(values)), values)
    rest = sum((v - line.intercept - line.slope * i) ** 2 for i, v in enumerate(values))
    x_variance = sum((i - (len(values) - 1) / 2) ** 2 for i in range(len(values)))
    return line.slope, math.sqrt(rest / max(1, len(values) - 2) / x_variance)


if __name__ == "__main__":
    main()
