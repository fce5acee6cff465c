"""How good the search engines are, and what a suggestion costs: ours beside scikit-optimize and Optuna.

Every engine has the same number of evaluations on the same tasks with the same seeds, and as many trials pending: the
oldest ends before the next is asked for. Each engine has one thread, and costs are CPU seconds.

`--keep FILE` appends every result as a JSON line and does not measure again what is there. So a long comparison may run
in parts of a minute, one after another or side by side: `--tasks branin --seeds 3:5 --engines optuna-gp --keep FILE`.
`--merge FILE …` measures nothing, and prints what these files hold of the tasks, engines and seeds asked for.
"""

import os
import sys

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import json
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import numpy as np
import search_engines as engines
import search_tasks as tasks

ENGINES = ("bayesian", "optuna-gp", "optuna-tpe", "skopt", "deephyper", "random")
#: ended trials before the suggestions whose cost is measured, and how many of these
LENGTHS, N_MEASURED = (20, 50, 100, 200, 500), 10
#: task on which all these lengths are measured, and one length on each of these tasks
COST_TASK = "hartmann6"
COST_TASKS, COST_LENGTH = ("mixed12", "mixed30"), 60


def main() -> None:
    arguments = _arguments()
    if arguments.merge:
        print(json.dumps(_summary(_Results(arguments.merge), arguments)))
        return
    results = _Results([arguments.keep] if arguments.keep else [])
    skipped = [engines.why_not(name) for name in arguments.engines] + [tasks.missing(n) for n in arguments.tasks]
    for reason in filter(None, skipped):
        h.say(f"Skipped: {reason}.")
    compared = [name for name in arguments.engines if not engines.why_not(name)]
    searched = [name for name in tasks.names_of(arguments.tasks) if not tasks.missing(name)]
    for seed in arguments.seeds:  # outermost: a run that is ended early has some seeds of all, not all of some
        for task in searched:
            for engine in compared:
                key = ("search", task, engine, seed, arguments.evaluations, arguments.pending)
                if not results.has(key):
                    results.add(key, search(engine, task, seed, arguments.evaluations, arguments.pending))
    for engine in compared if arguments.lengths else ():
        for length in arguments.lengths:
            key = ("cost", COST_TASK, engine, length, N_MEASURED, arguments.pending)
            if not results.has(key):
                results.add(key, {"cpu_s": cost(engine, length, arguments.pending)})
    print(json.dumps(_summary(results, arguments)))


def search(engine_name: str, task_name: str, seed: int, n_evaluations: int, n_pending: int) -> dict[str, float]:
    """Simple regret after `n_evaluations`, and mean CPU seconds of a suggestion."""
    task = tasks.task(task_name)
    engine = engines.make_engine(engine_name, task.space, seed)
    points: list[Any] = []
    regrets: list[float] = []
    cpu_s = 0.0
    for trial in range(n_evaluations + n_pending):
        ended = trial - n_pending
        before_s = time.process_time()
        if ended >= 0:
            regrets.append(task.regret(points[ended]))
            engine.tell(ended, regrets[-1])
        if trial < n_evaluations:
            points.append(engine.ask())
        cpu_s += time.process_time() - before_s
    return {"regret": min(regrets), "cpu_s": cpu_s / n_evaluations}


def cost(engine_name: str, length: int, n_pending: int) -> float:
    """Mean CPU seconds of a suggestion after `length` ended trials, over the `N_MEASURED` that come then."""
    task = tasks.task(COST_TASK)
    engine = engines.make_engine(engine_name, task.space, 0)
    rng = np.random.default_rng(0)
    points: list[Any] = [task.space.sample(rng) for _ in range(length)]
    engine.preload(points, [task.regret(point) for point in points])
    points += [engine.ask() for _ in range(n_pending)]
    before_s = time.process_time()
    for ended in range(length, length + N_MEASURED):
        engine.tell(ended, task.regret(points[ended]))
        points.append(engine.ask())
    return (time.process_time() - before_s) / N_MEASURED


class _Results:
    """What was measured, by its key; kept in a file of JSON lines if there is one."""

    def __init__(self, paths: list[Path]) -> None:
        self._path = paths[0] if paths else None
        self._known: dict[tuple[Any, ...], dict[str, float]] = {}
        for path in paths:
            for line in path.read_text().splitlines() if path.exists() else ():
                entry = json.loads(line)
                self._known[tuple(entry["key"])] = entry["result"]

    def has(self, key: tuple[Any, ...]) -> bool:
        return key in self._known

    def add(self, key: tuple[Any, ...], result: dict[str, float]) -> None:
        h.say(f"{' '.join(map(str, key))}: {result}")
        self._known[key] = result
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "result": result}) + "\n")

    def get(self, key: tuple[Any, ...]) -> dict[str, float]:
        return self._known[key]


def _summary(results: _Results, arguments: argparse.Namespace) -> dict[str, Any]:
    """Of every task the seeds that all engines have which have any: so parts that are missing favour nobody."""

    def regret_of(task: str, engine: str, seed: int) -> float | None:
        key = ("search", task, engine, seed, arguments.evaluations, arguments.pending)
        return results.get(key)["regret"] if results.has(key) else None

    medians: dict[str, dict[str, float]] = {}
    n_seeds: dict[str, int] = {}
    ranks: dict[str, list[float]] = {}
    for task in tasks.names_of(arguments.tasks):
        rows = {e: [regret_of(task, e, seed) for seed in arguments.seeds] for e in arguments.engines}
        rows = {engine: row for engine, row in rows.items() if any(regret is not None for regret in row)}
        columns = [column for column in zip(*rows.values(), strict=True) if None not in column]
        if not columns:
            continue
        values = np.array(columns, dtype=float).T
        n_seeds[task] = len(columns)
        medians[task] = dict(zip(rows, np.median(values, axis=1).tolist(), strict=True))
        # Of every seed; engines that are equal share their rank.
        below = (values[None] < values[:, None]).sum(axis=1) + 0.5 * (values[None] == values[:, None]).sum(axis=1) + 0.5
        for engine, rank in zip(rows, below.mean(axis=1).tolist(), strict=True):
            ranks.setdefault(engine, []).append(rank)
    costs = {
        engine: {
            str(n): round(results.get(key)["cpu_s"], 4)
            for n in arguments.lengths
            if results.has(key := ("cost", COST_TASK, engine, n, N_MEASURED, arguments.pending))
        }
        for engine in arguments.engines
    }
    return {
        "benchmark": "search",
        "evaluations": arguments.evaluations,
        "pending": arguments.pending,
        "seeds": n_seeds,
        "median_regret": {t: {e: float(f"{v:.3g}") for e, v in row.items()} for t, row in medians.items()},
        "average_rank": {e: round(float(np.mean(values)), 2) for e, values in ranks.items()},
        "average_rank_interval": {e: np.round(h.interval(v)[1:], 2).tolist() for e, v in ranks.items()},
        "cpu_s_per_suggestion": {engine: row for engine, row in costs.items() if row},
    }


def _seeds(text: str) -> range:
    """`10` for 0 to 9, `3:5` for 3 and 4."""
    first, colon, end = text.rpartition(":")
    try:
        return range(int(first) if colon else 0, int(end))
    except ValueError:
        raise argparse.ArgumentTypeError(f"Seeds are a number of them, or first:end. Received: {text}.") from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="*", default=["functions", "tables", "bbob"], help="tasks, or groups of them: "
                        + ", ".join(tasks.GROUPS))  # fmt: skip
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), help="also every name of --hyper-opt")
    parser.add_argument(
        "--seeds", type=_seeds, default=range(30), metavar="N|A:B", help="how many, or from A to before B (30)"
    )
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--pending", type=int, default=4)
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=list(LENGTHS), help="ended trials before a cost is measured"
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results, those of earlier runs too; added to")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="print what --keep has kept in these")
    return parser.parse_args()


if __name__ == "__main__":
    main()
