"""Speed of one checkout against another: the same work by both, in turns, on one machine.

`python benchmarks/training/versions.py BEFORE` compares the checkout BEFORE with the one that holds this script. In
every turn both do each part once, in random order, and the figure of a turn is the ratio after / before (above 1:
faster now).

  training   samples a second of the MLP; the trainings of both checkouts run in turns of a quarter of a second
  groups     the same of workers of two ranks (`--n-processes 2`), on 3 and 5 ranks
  dispatch   share of the time that 4 blocks spend inside an objective of 0.1 s (`dispatch.py`)
  search     CPU seconds of a suggestion after 100 trials (`search.py`); the regrets must be equal
  healthy    trials and samples a second under `nnlo-opt launch` (`healthy.py`)

A figure is in order if the 95 % interval of its mean ratio (Student's t, of the logarithms) contains 1 or lies above
0.98.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import training_runs as runs
from scipy.stats import t as student
from training import CONFIGURATIONS, GROUPS, SIZES, Configuration
from turns import Contestant, rate, take_turns

#: the least lower end of an interval that does not contain 1
LEAST = 0.98
_TIMEOUT_S = 900.0
#: part -> script, its options, what it prints -> whether more is better
SCRIPTS: dict[str, tuple[str, list[str], dict[str, bool]]] = {
    "dispatch": (
        "dispatch.py",
        ["--parts", "short", "--repeats", "1"],
        {"inside_objective_utilization": True, "dispatch_gap_median_ms": False, "coordinator_cpu_s": False},
    ),
    "search": ("search.py", ["--tasks", "branin", "--engines", "bayesian", "--seeds", "1", "--lengths", "100"], {}),
    "healthy": (
        "healthy.py",
        ["--repeats", "1", "--parts", "downpour", "search"],
        {"downpour_with_samples_per_s": True, "search_with_trials_per_s": True},
    ),
}
#: part -> configurations of the trainer
TRAININGS = {"training": [c for c in CONFIGURATIONS if c.targets.get("mlp")], "groups": list(GROUPS)}
PARTS = (*TRAININGS, *SCRIPTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the checkout to compare with")
    parser.add_argument("--turns", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(default: all)")
    arguments = parser.parse_args()
    roots = {"before": arguments.before.resolve(), "after": h.ROOT}
    where = h.machine()
    ratios: dict[str, list[float]] = {}
    with h.temporary_folder() as folder:
        data = {n: runs.make_data(folder / f"data-{n}", n * SIZES["mlp"].n_train) for n in (1, 2)}
        for turn in range(arguments.turns):
            for part in arguments.parts:
                if part in TRAININGS:
                    found = train_both(TRAININGS[part], roots, data, folder / f"{part}-{turn}")
                else:
                    found = run_both(part, roots)
                for name, ratio in found.items():
                    ratios.setdefault(f"{part}_{name}", []).append(ratio)
                h.say(f"{turn + 1}: { ({name: round(ratio, 3) for name, ratio in found.items()}) }")
    results = {"n_turns": arguments.turns, **{name: interval(values) for name, values in ratios.items()}}
    targets = {name: (">=", LEAST, in_order(results[name])) for name in ratios}
    h.report("versions", results, targets, where)


def train_both(
    configurations: Sequence[Configuration], roots: Mapping[str, Path], data: Mapping[int, runs.Data], folder: Path
) -> dict[str, float]:
    """Ratio of every configuration; all trainings of both checkouts run in turns, and are started anew."""
    folder.mkdir()
    contestants: dict[tuple[str, str], Contestant] = {}
    with ExitStack() as stack:
        for c in configurations:
            for side in random.sample(list(roots), 2):
                training = runs.Training(
                    "mlp", data[c.n_workers], c.n_ranks, c.options, folder / f"{c.name}-{side}", root=roots[side]
                )
                stack.enter_context(training)
                contestants[c.name, side] = stack.enter_context(Contestant(training.pids, [training.stamps]))
        take_turns(list(contestants.values()), SIZES["mlp"].seconds)
        rates = {key: rate(contestant.made()) for key, contestant in contestants.items()}
    return {c.name: rates[c.name, "after"] / rates[c.name, "before"] for c in configurations}


def run_both(part: str, roots: Mapping[str, Path]) -> dict[str, float]:
    """Ratios of what a benchmark of each checkout prints."""
    script, options, figures = SCRIPTS[part]
    printed: dict[str, dict[str, Any]] = {}
    for side in random.sample(list(roots), 2):
        (path,) = (roots[side] / "benchmarks").rglob(script)
        command = [sys.executable, str(path), *options]
        done = subprocess.run(
            command, capture_output=True, text=True, env=h.environment(roots[side]), timeout=_TIMEOUT_S, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise SystemExit(f"{script} of {side} failed: {done.stderr[-3000:]}")
        printed[side] = json.loads(lines[-1])
    before, after = printed["before"], printed["after"]
    if part == "search":
        if before["median_regret"] != after["median_regret"]:
            raise SystemExit(f"The searches differ: {before['median_regret']} and {after['median_regret']}.")
        costs = [side["cpu_s_per_suggestion"]["bayesian"]["100"] for side in (before, after)]
        return {"suggestions_per_cpu_s": costs[0] / costs[1]}
    found = {}
    for name, more_is_better in figures.items():
        values = [side[name]["median"] for side in (before, after)]
        found[name] = values[1] / values[0] if more_is_better else values[0] / values[1]
    return found


def interval(ratios: list[float]) -> dict[str, Any]:
    """Mean ratio with its 95 % interval, by the logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = math.inf
    if len(logs) > 1:
        half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - half), math.exp(mean + half) if half < math.inf else math.inf
    return {**h.spread(ratios), "mean": h.rounded(math.exp(mean)), "low": h.rounded(low), "high": h.rounded(high)}


def in_order(found: Mapping[str, float]) -> float:
    """1 if the interval contains 1, else its lower end."""
    return 1.0 if found["low"] <= 1.0 <= found["high"] else found["low"]


if __name__ == "__main__":
    main()
