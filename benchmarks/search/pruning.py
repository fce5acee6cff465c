"""Time to the same figure with and without a pruner: on virtual learning curves, and on MNIST.

Virtual: searches in virtual time (`nnlo_opt.tools.simulate`) whose trainings are tables of a figure by epoch: 2 s to
build a model (again after each pause) and a second an epoch. The search is random, so
that both sides try the same points. A curve is a power law, end + scale * epoch^-rate (Domhan et al., 2015), with
noise; ends are lognormal, rates vary, so that early figures tell something and not everything. Measured: when the
first trial is complete whose figure is no worse than the best of the run without a pruner.

Tables: searches over real learning curves (`pruning_tables.py`: 600 networks of 52 epochs; a point has the curve of the
nearest network) for so long that random search with asha trains every second network for an epoch or more. Measured:
the regret of the best complete trial, halfway and at the end, and the share of suggestions that fell on a network which
an earlier suggestion had found.

Real: random searches of a multilayer perceptron in torch, and of `examples/example_mlp.py` in Keras, on real digits,
with and without `--pruner asha`, one block, the same points on both sides; measured as the virtual ones. Successive
halving has its first complete trial when eta^rungs have come to the first rung, so there have to be more trials than
that; and a promoted trial is built anew, which is worth its while where an epoch takes longer than building the model:
`real_<framework>_asha_start_s` and `_epoch_s` say so.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import numpy as np
import pruning_tables

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.instructions import Budget, SearchPlan
from nnlo_opt.core.search.pruning import PruningPlan
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.space import Point, Real, Space
from nnlo_opt.tools.simulate.simulation import Simulation, SimulationPlan
from nnlo_opt.tools.simulate.workload import SimulatedObjective, Workload, lognormal

N_BLOCKS, N_TRIALS, N_EPOCHS = 8, 243, 81
PRUNERS = ("median", "asha", "hyperband")
#: of the searches over tables: (search algorithm, pruner), blocks, and virtual seconds
SEARCHES = (("random", "none"), ("random", "asha"), ("bayesian", "none"), ("bayesian", "asha"))
N_TABLE_BLOCKS, TABLE_S = 4, 300.0
#: of the real searches: three rungs, so the first trial is complete when a third of all have begun
N_REAL_TRIALS, N_REAL_EPOCHS = 81, 27
#: figures no farther apart are taken to be equal: three of the real validation samples
TOLERANCE = 0.01
TORCH = """
from torch import nn

KINDS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


def get_model(n_layers=2, n_units=64, activation="relu", dropout=0.2):
    layers, n = [nn.Flatten()], 784
    for _ in range(n_layers):
        layers += [nn.Linear(n, n_units), KINDS[activation](), nn.Dropout(dropout)]
        n = n_units
    return nn.Sequential(*layers, nn.Linear(n, 10))
"""


def curves(seed: int) -> np.ndarray:
    """(N_TRIALS, N_EPOCHS) float64: a figure for every trial and epoch, to be minimised."""
    rng = np.random.default_rng(seed)
    ends = 0.02 * np.exp(rng.normal(1.0, 0.8, (N_TRIALS, 1)))
    scales, rates = rng.uniform(0.2, 0.9, (N_TRIALS, 1)), rng.uniform(0.4, 1.2, (N_TRIALS, 1))
    epochs = np.arange(1, N_EPOCHS + 1)
    values: np.ndarray = ends + scales * epochs**-rates
    return values * np.exp(0.03 * rng.normal(size=values.shape))


class Curves(Workload, kw_only=True):
    """Trials whose learning curves are rows of a table, a second an epoch."""

    rows: np.ndarray
    #: the row of a trial by its number and its point
    row_of: Callable[[int, Point], int] = lambda trial, point: trial

    def train_s(self, order: msg.RunFold, rng: np.random.Generator) -> float:
        return float(self.rows.shape[1])

    def values(self, order: msg.RunFold) -> list[float]:
        return list(map(float, self.rows[self.row_of(order.trial, order.point)]))


def simulated(
    pruner: str,
    workload: Curves,
    n_blocks: int,
    n_trials: int,
    algorithm: str = "random",
    seed: int = 0,
    **limits: float,
) -> Ledger:
    """The trials of a search in virtual time; `limits` are of its budget."""
    pruning = None if pruner == "none" else PruningPlan(name=pruner, max_epochs=workload.rows.shape[1])
    plan = SearchPlan(num_iterations=n_trials, pruning=pruning, budget=Budget(**limits))
    search = InlineSearch()
    search.start(algorithm, workload.objective.space, seed, {"max_epochs": workload.rows.shape[1]})
    topology = Topology.plan(1 + n_blocks, 1)
    with h.temporary_folder() as folder, closing(Journal(folder / "journal.jsonl", syncs=False)) as journal:
        simulation = Simulation(SimulationPlan(search=plan, topology=topology, workload=workload), search, journal)
        simulation.run()
    return simulation.ledger


def workload_of(space: Space, rows: np.ndarray, startup_s: float, **others: Any) -> Curves:
    objective = SimulatedObjective(name="a table", function=lambda point: 0.0, space=space)
    return Curves(objective=objective, durations=lognormal(1.0), startup_s=startup_s, rows=rows, **others)


def nearest_in(table: pruning_tables.Table) -> Callable[[int, Point], int]:
    """What finds the network of a trial, looking once for each point."""

    @cache
    def row_of(point: tuple[tuple[str, Any], ...]) -> int:
        return table.nearest(dict(point))

    return lambda trial, point: row_of(tuple(point.items()))


def tables(names: list[str], n_seeds: int) -> dict[str, Any]:
    """Mean regret of searches over tables halfway and at the end, and how many suggestions found nothing new."""
    found: dict[str, list[float]] = {}
    for name in names:
        table = pruning_tables.Table(name)
        least, worst = table.errors[:, -1].min(), table.errors[:, -1].max()
        nearest = nearest_in(table)
        workload = workload_of(pruning_tables.SPACE, table.errors, 1.0, row_of=nearest)
        for algorithm, pruner in SEARCHES:
            for seed in range(n_seeds):
                ledger = simulated(pruner, workload, N_TABLE_BLOCKS, 10_000, algorithm, seed, timeout_s=TABLE_S)
                for when, until_s in (("half", TABLE_S / 2), ("end", TABLE_S)):
                    ended = [t.figure_of_merit for t in ledger.trials if t.ended_at_s and t.ended_at_s <= until_s]
                    best = min((figure for figure in ended if figure is not None), default=worst)
                    found.setdefault(f"tables_{name}_{algorithm}_{pruner}_regret_{when}", []).append(best - least)
                known = 1 - len({nearest(t.number, t.point) for t in ledger.trials}) / len(ledger.trials)
                found.setdefault(f"tables_{name}_{algorithm}_{pruner}_known", []).append(known)
            regrets = found[f"tables_{name}_{algorithm}_{pruner}_regret_end"]
            h.say(f"{name}, {algorithm} search, {pruner}: {[round(float(regret), 5) for regret in regrets]}")
    return {key: round(float(np.mean(values)), 5) for key, values in found.items()}


def reached_s(ledger: Ledger, figure: float) -> float | None:
    """When a trial with this figure or a better one was complete; None where none was."""
    times = [t.ended_at_s for t in ledger.trials if t.figure_of_merit is not None and t.figure_of_merit <= figure]
    return min((time_s for time_s in times if time_s is not None), default=None)


def virtual(n_seeds: int) -> dict[str, Any]:
    """How many times sooner each pruner has the best figure of the search without one, or one of its best three.

    A search that never has it counts as 0 times, and is counted.
    """
    sooner: dict[str, list[float]] = {}
    missed: dict[str, int] = {}
    for seed in range(n_seeds):
        values = curves(seed)
        workload = workload_of(Space([Real(0.0, 1.0, name="x")]), values, 2.0)
        plain = simulated("none", workload, N_BLOCKS, N_TRIALS)
        finals = np.sort(values[:, -1])
        for name in PRUNERS:
            pruned = simulated(name, workload, N_BLOCKS, N_TRIALS)
            sooner.setdefault(f"virtual_{name}_share_of_epochs", []).append(n_epochs(pruned) / n_epochs(plain))
            for kind, figure in (("best", float(finals[0])), ("best_three", float(finals[2]))):
                before, after = reached_s(plain, figure), reached_s(pruned, figure)
                assert before is not None
                key = f"virtual_{name}_{kind}"
                missed[f"{key}_missed"] = missed.get(f"{key}_missed", 0) + (after is None)
                sooner.setdefault(f"{key}_times_sooner", []).append(0.0 if after is None else before / after)
    return {**{key: h.spread(ratios, 3) for key, ratios in sooner.items()}, **missed}


def real(framework: str, n_seeds: int) -> dict[str, Any]:
    """The same of real trainings; also counted in epochs, which no other load on the machine changes."""
    kinds = ("best_times_sooner", "best_three_times_sooner", "best_fewer_epochs", "best_three_fewer_epochs")
    found: dict[str, list[float]] = {name: [] for name in ("share_of_epochs", *kinds, "start_s", "epoch_s")}
    with h.temporary_folder() as folder:
        data = h.make_mnist(folder / "mnist", "--source", "bundled", "--n-samples", 2000)
        model = h.ROOT / "examples" / "example_mlp.py"
        if framework == "torch":
            model = folder / "torch_mlp.py"
            model.write_text(TORCH)
        for seed in range(n_seeds):
            h.say(f"real searches in {framework}, seed {seed}")
            run = real_run(model, data, folder / f"plain-{seed}", seed)
            plain = read_ledger(run)
            pruned_run = real_run(model, data, folder / f"asha-{seed}", seed, "--pruner", "asha")
            pruned = read_ledger(pruned_run)
            finals = sorted(t.figure_of_merit for t in plain.trials if t.figure_of_merit is not None)
            for kind, figure in (("best", finals[0] + TOLERANCE), ("best_three", finals[2] + TOLERANCE)):
                before, after = reached_s(plain, figure), reached_s(pruned, figure)
                assert before is not None
                ratio = 0.0 if after is None else (before - began_s(plain)) / (after - began_s(pruned))
                fewer = 0.0 if after is None else n_epochs_until(run, before) / n_epochs_until(pruned_run, after)
                found[f"{kind}_times_sooner"].append(ratio)
                found[f"{kind}_fewer_epochs"].append(fewer)
            found["share_of_epochs"].append(n_epochs(pruned) / n_epochs(plain))
            for name, seconds in zip(("start_s", "epoch_s"), start_and_epoch_s(run, plain), strict=True):
                found[name].append(seconds)
            h.say(f"{ {name: round(values[-1], 4) for name, values in found.items()} }")
    missed = {
        f"real_{framework}_asha_{kind}_missed": found[f"{kind}_times_sooner"].count(0.0)
        for kind in ("best", "best_three")
    }
    return {f"real_{framework}_asha_{name}": h.spread(values, 3) for name, values in found.items()} | missed


def real_run(model: Path, data: list[object], folder: Path, seed: int, *options: object) -> Path:
    """The run directory of a search of one block with these options."""
    arguments = ["--model", model, *data, "--block-size", 1, "--epochs", N_REAL_EPOCHS, "--seed", seed]
    arguments += ["--search-space", h.ROOT / "search_spaces" / "mlp.py", "--num-iterations", N_REAL_TRIALS]
    arguments += ["--loss", "categorical_crossentropy", "--hyper-opt", "random"]
    with h.Job("OptimizationDriver", 2, [*arguments, *options], folder, 1800) as job:
        job.wait()
        return job.run_directory


def start_and_epoch_s(run_directory: Path, ledger: Ledger) -> tuple[float, float]:
    """Median seconds that a trial takes besides its epochs, and that an epoch takes, where none was pruned."""
    ends_s: dict[int, list[float]] = {}
    for event in h.events_of(run_directory, "EpochEnded"):
        ends_s.setdefault(event["assignment"], []).append(event["time_s"])
    epochs = {number: (times[-1] - times[0]) / (len(times) - 1) for number, times in ends_s.items()}
    starts = [times[0] - ledger.assignments[number].assigned_at_s - epochs[number] for number, times in ends_s.items()]
    return statistics.median(starts), statistics.median(epochs.values())


def n_epochs_until(run_directory: Path, time_s: float) -> int:
    """Epochs trained by then, which no other load on the machine changes."""
    return sum(event["time_s"] <= time_s for event in h.events_of(run_directory, "EpochEnded"))


def n_epochs(ledger: Ledger) -> int:
    """Epochs trained, over all trials."""
    return sum(max(assignment.epoch for assignment in trial.assignments) for trial in ledger.trials)


def began_s(ledger: Ledger) -> float:
    """When the first trial began to train: what comes before, an import of a framework, is the same for both."""
    return min(a.started_at_s for a in ledger.assignments if a.started_at_s is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--table-seeds", type=int, default=8)
    parser.add_argument("--tables", nargs="*", choices=list(pruning_tables.N_TRAIN), default=["digits", "mnist"])
    parser.add_argument("--real-seeds", type=int, default=3)
    parser.add_argument("--real", nargs="*", choices=["torch", "keras"], default=["torch", "keras"])
    arguments = parser.parse_args()
    where = h.machine()
    results = virtual(arguments.seeds) if arguments.seeds else {}
    if arguments.table_seeds:
        results |= tables(arguments.tables, arguments.table_seeds)
    for framework in arguments.real if arguments.real_seeds else ():
        results |= real(framework, arguments.real_seeds)
    measured = {key: value["median"] for key, value in results.items() if key.endswith("_times_sooner")}
    targets: dict[str, h.Target] = {key: (">=", 3.0, value) for key, value in measured.items()}
    for key in [key for key in results if "_bayesian_asha_regret" in key]:
        below = results[key.replace("bayesian", "random")] - results[key]
        targets[f"{key}_below_random"] = (">=", 0.0, round(below, 5))
    h.report("pruning", results, targets, where)


if __name__ == "__main__":
    main()
