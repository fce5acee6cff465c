"""Regret over time of searches that see learning curves: the real coordinator in virtual time, and others' searches.

Tasks: the surrogate of LCBench (Zimmer, Lindauer and Hutter, 2021, in YAHPO Gym), ten tasks to `choose` by and ten for
the `note` only; the two measured `tables` (`pruning_tables.py`); and `late`, synthetic curves of which those that end
best begin worst. `--curves FOLDER` has `lcbench.onnx`, `encoding.json` and `lcbench.py`, and wants `onnxruntime`.

A search has `TRAININGS` mean full trainings of virtual time for each block. An epoch takes what it took in LCBench, to
begin or to resume a training takes START_S, and a suggestion the CPU time that it takes here. Figures have noise of
NOISE points that is correlated from epoch to epoch, drawn once for task, seed and point; `--clean` has none.

**Regret**: at any time the incumbent is the trial, complete or not, whose last reported figure is the best. Its regret
is the error of its own full training, without noise, less the least error of the task, in points of accuracy.

Results are added to `measured/curves.json`, in which a new run of a method replaces its searches of the same tasks. So
methods may be run one at a time, and each in the Python that has its packages (`curves_peers.py`). `--show` only shows.
"""

import argparse
import fcntl
import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import curves_peers
import harness as h
import numpy as np
from curve_tasks import N_EPOCHS, OPTIMA, START_S, TASKS, Reported, Run, Task, optimum_of, task_of

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.instructions import Budget, SearchPlan
from nnlo_opt.core.search.design import design_size
from nnlo_opt.core.search.pruning import PruningPlan
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.tools.simulate.clock import MEASURED
from nnlo_opt.tools.simulate.simulation import Simulation, SimulationPlan
from nnlo_opt.tools.simulate.workload import SimulatedObjective, Workload, lognormal

RESULTS = Path(__file__).parents[1] / "measured" / "curves.json"
#: method -> (algorithm, pruner); those of `curves_peers.METHODS` come from elsewhere
METHODS = {
    "random": ("random", "none"),
    "random-asha": ("random", "asha"),
    "random-median": ("random", "median"),
    "random-hyperband": ("random", "hyperband"),
    "random-one-epoch": ("random", "one-epoch"),
    "bayesian": ("bayesian", "none"),
    "bayesian-median": ("bayesian", "median"),
    "bayesian-asha": ("bayesian", "asha"),
    "bayesian-hyperband": ("bayesian", "hyperband"),
    "freeze-thaw": ("freeze-thaw", "freeze-thaw"),
}
#: blocks -> budget of each block, in full trainings of mean length
TRAININGS = {1: 20, 8: 10, 32: 5}
#: part of the budget in which `one-epoch` begins trials: the best of 0.05 to 0.5 on the tasks to choose by
ONE_EPOCH_SHARE = 0.1
#: shares of the budget at which the regret is kept, and those that are shown
SHARES = [round(0.05 * i, 2) for i in range(1, 21)]
SHOWN = (0.2, 0.5, 1.0)

# ---------------------------------------------------------------- one search


class CurveWorkload(Workload, kw_only=True):
    """Trainings of a task, each epoch with seconds of its own."""

    task: Task

    def train_s(self, order: msg.RunFold, rng: np.random.Generator) -> float:
        return float(self.task.curve(order.point)[1].sum())

    def reports(self, order: msg.RunFold, waited_s: float | None, n_done: int = 0) -> Iterator[tuple[float, Message]]:
        seconds = self.task.curve(order.point)[1]
        for before_s, message in super().reports(order, waited_s, n_done):
            is_epoch = isinstance(message, msg.EpochReported)
            yield float(seconds[message.epoch - 1]) if is_epoch else before_s, message


def search(run: Run, task: Task, budget_s: float) -> Reported:
    """One search by the coordinator."""
    algorithm, pruner = METHODS[run.method]
    function = partial(task.observed, seed=run.noise_seed)
    objective = SimulatedObjective(name=task.name, function=function, space=task.space)
    workload = CurveWorkload(objective=objective, durations=lognormal(1.0), startup_s=START_S, task=task)
    is_thawed = algorithm == "freeze-thaw"
    pruning = None if pruner == "none" else PruningPlan(name=pruner, max_epochs=N_EPOCHS, min_epochs=int(not is_thawed))
    plan = SearchPlan(num_iterations=100_000, pruning=pruning, budget=Budget(timeout_s=budget_s))
    own = None
    if pruner == "one-epoch":
        drawn = np.random.default_rng(0).random((100, len(task.space.names))).tolist()
        first_s = START_S + np.mean([task.curve(task.space.from_unit(units))[1][0] for units in drawn])
        own = curves_peers.OneEpoch(int(run.n_blocks * ONE_EPOCH_SHARE * budget_s / first_s))
    asked = InlineSearch()
    options = {"max_epochs": N_EPOCHS}
    if algorithm == "bayesian" and pruner in ("none", "median"):  # users who can foretell the number of trials give it
        options["n_initial_points"] = design_size(task.space, run.n_blocks * TRAININGS[run.n_blocks])
    asked.start(algorithm, task.space, run.seed, options)
    with h.temporary_folder() as folder:
        with closing(Journal(folder / "journal.jsonl", syncs=False)) as journal:
            topology = Topology.plan(1 + run.n_blocks, 1)
            simulated = SimulationPlan(search=plan, topology=topology, workload=workload, pruner=own)
            simulation = Simulation(simulated.replaced(suggestion_cost=MEASURED), asked, journal)
            simulation.run()
        ended = h.events_of(folder, "EpochEnded")
    assignments, trials = simulation.ledger.assignments, simulation.ledger.trials
    reported = [(e["time_s"], assignments[e["assignment"]].trial, e["figure_of_merit"]) for e in ended]
    return reported, [trial.point for trial in trials]


def measure(run: Run) -> list[float]:
    """The final error of the incumbent, without noise, at each of SHARES of the budget."""
    task = task_of(run.task, run.folder)
    budget_s = TRAININGS[run.n_blocks] * task.training_s
    if run.method in METHODS:
        reported, points = search(run, task, budget_s)
    else:
        reported, points = curves_peers.search(run, task, budget_s)
    last: dict[int, float] = {0: np.inf}
    incumbents: list[int] = []
    for time_s, trial, figure in (*reported, (np.inf, 0, np.inf)):
        while len(incumbents) < len(SHARES) and time_s > SHARES[len(incumbents)] * budget_s:
            incumbents.append(min(last, key=last.__getitem__))
        last[trial] = figure
    return [round(float(task.curve(points[trial])[0][-1]), 3) for trial in incumbents]


# ---------------------------------------------------------------- what came out


def show(found: dict[str, Any], methods: list[str], tasks: list[Task], differences: list[str]) -> None:
    """Print tables for each number of blocks, with and without noise, of the tasks and seeds that all methods have."""
    columns = [SHARES.index(share) for share in SHOWN]
    for n_blocks, noise in itertools.product(TRAININGS, ("noisy", "clean")):
        of = {name: found[key] for name in methods if (key := f"{name} {n_blocks} {noise}") in found}
        n_seeds = {task: min((len(by_task.get(task.name, ())) for by_task in of.values()), default=0) for task in tasks}
        shared = [task for task, n in n_seeds.items() if n]
        if not shared:
            continue
        # method -> (tasks, shares), the mean over the seeds
        regret = {
            name: np.array([np.mean(by[task.name][: n_seeds[task]], axis=0) - task.optimum for task in shared])
            for name, by in of.items()
        }
        seeds = sorted({n_seeds[task] for task in shared})
        print(f"\n{n_blocks} blocks, {noise}, {len(shared)} tasks, {seeds} seeds; at {SHOWN} of the budget")
        print(f"{'':20} mean regret, 95 % interval{'':33} of random's{'':8} average rank")
        every = np.array(list(regret.values()))[:, :, columns]
        ranks = 1 + (every[:, None] > every).sum(axis=1) + ((every[:, None] == every).sum(axis=1) - 1) / 2
        for i, name in enumerate(regret):
            of_random = every[i] / np.maximum(regret["random"][:, columns], 1e-3) if "random" in regret else [[np.nan]]
            print(f"{name:20} {_cells(every[i])}  {_row(of_random)}  {_row(ranks[i])}")
        for x, y in (pair.split(",") for pair in differences):
            if x in regret and y in regret:
                away = (regret[x] - regret[y])[:, columns]
                # the share of the budget at which X has what Y has at its end; 2: never
                there = regret[x] <= regret[y][:, -1:]
                share = np.median(np.where(there.any(axis=1), np.array(SHARES)[there.argmax(axis=1)], 2.0))
                print(f"{x} minus {y}: {_cells(away)}; at the end of {y} after {share:.2f} of the budget (median)")


def _cells(values: np.ndarray) -> str:
    return "  ".join("{:6.2f} ({:6.2f}, {:6.2f})".format(*h.interval(column)) for column in values.T)


def _row(values: np.ndarray) -> str:
    return " ".join(f"{value:5.2f}" for value in np.mean(values, axis=0))


def lines_of(found: dict[str, Any]) -> str:
    """JSON with a line for each key."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def keep(run: Run, values: list[float]) -> None:
    """Put what was measured into the file, which no other process writes meanwhile."""
    with RESULTS.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        found = json.loads(file.read() or "{}")
        seeds = found.setdefault(run.key, {}).setdefault(run.task, [])
        seeds[run.seed : run.seed + 1] = [values]
        file.truncate(0)
        file.write(lines_of(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", type=Path, metavar="FOLDER", help="the surrogate of LCBench and `lcbench.py`")
    parser.add_argument("--tasks", nargs="+", default=["choose"], help=f"names, or {', '.join(TASKS)}")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *curves_peers.METHODS], default=list(METHODS))
    parser.add_argument("--blocks", nargs="+", type=int, choices=list(TRAININGS), default=list(TRAININGS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0, help="those before it are measured already")
    parser.add_argument("--clean", action="store_true", help="no noise")
    parser.add_argument("--jobs", type=int, default=1, help="searches at once")
    parser.add_argument("--show", action="store_true", help="only show what is in measured/curves.json")
    parser.add_argument("--differences", nargs="*", default=[], metavar="X,Y", help="methods to subtract")
    parser.add_argument("--optima", action="store_true", help="find the optima of the tasks first, and end")
    arguments = parser.parse_args()
    names = [task for name in arguments.tasks for task in TASKS.get(name, [name])]
    # Decisions are timed, so each process has one thread.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    if arguments.optima:
        found = json.loads(OPTIMA.read_text())
        for name in names:
            found[name] = optimum_of(task_of(name, arguments.curves))
            OPTIMA.write_text(lines_of(found))
            h.say(f"{name}: {found[name]}")
        return
    noisy, folder = not arguments.clean, arguments.curves
    runs = [
        Run(method, task, seed, n_blocks, noisy, folder)
        for method in arguments.methods
        for n_blocks in arguments.blocks
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for task in names
    ]
    if not arguments.show:
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            for run, values in zip(runs, pool.map(measure, runs), strict=True):
                keep(run, values)
                h.say(f"{run.key}, {run.task}, seed {run.seed}: {[values[SHARES.index(share)] for share in SHOWN]}")
    tasks = [task_of(name, folder) for name in names]
    show(json.loads(RESULTS.read_text()), arguments.methods, tasks, arguments.differences)


if __name__ == "__main__":
    main()
