"""Many blocks: how busy one coordinator keeps 1 to 10,000 of them, and what a search finds on them. Simulated.

The coordinator, its journal (with its fsyncs), the ledger and the searches are the real ones; blocks and time are
virtual. What the coordinator takes for each message, and a search for each suggestion, is measured on this machine as
the simulation goes, and is virtual time for the blocks that wait for it.

    python benchmarks/search/simulation.py > benchmarks/measured/simulation.json
    python benchmarks/scaling/scaling.py > docs/scaling.md
"""

import argparse
import os
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h

# As in a search process; NumPy reads it when it is imported, which is below.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.trials.events import TrialCompleted
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.tools.simulate.clock import FREE, MEASURED, Cost
from nnlo_opt.tools.simulate.result import SimulationResult
from nnlo_opt.tools.simulate.simulation import Simulation, SimulationPlan
from nnlo_opt.tools.simulate.workload import BUILTIN, Workload, lognormal

HARTMANN = BUILTIN["hartmann6"]
MEDIAN_S, SIGMA = 60.0, 0.5
#: numbers of blocks, with the trials of each
MANY = {1: 100, 10: 500, 100: 1500, 1000: 4000, 10_000: 15_000}
#: seconds of a suggestion: what a search takes that fits a surrogate to 150 trials, and a tenth of it
SLOW_S = (0.01, 0.1)
#: the search quality: trials of each search, and numbers of blocks
N_TRIALS, FEW = 64, (1, 4, 16, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="searches for each number of blocks (3)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: up to 100 blocks, one seed")
    arguments = parser.parse_args()
    where = h.machine()
    many = {n: trials for n, trials in MANY.items() if n <= 100} if arguments.quick else MANY
    few, seeds = ((1, 4), 1) if arguments.quick else (FEW, arguments.seeds)
    with h.temporary_folder() as folder:
        fsync_ms = measure_fsync_ms(folder)
        dispatch = [dispatch_of(folder, n_blocks, n_trials) for n_blocks, n_trials in many.items()]
        quality = [quality_of(folder, algorithm, n, seeds) for algorithm in ("random", "bayesian") for n in few]
    workload = {"median_s": MEDIAN_S, "sigma": SIGMA, "slow_s": SLOW_S}
    results = {"fsync_ms": h.spread(fsync_ms), "dispatch": dispatch, "quality": quality, "machine": where}
    h.report("simulation", workload | results, {}, where)


def run(
    folder: Path, plan: SimulationPlan, algorithm: str = "random", seed: int = 0, *, syncs: bool = False
) -> SimulationResult:
    search = InlineSearch()
    search.start(algorithm, HARTMANN.space, seed, {})
    with TemporaryDirectory(dir=folder) as own, closing(Journal(Path(own) / "journal.jsonl", syncs=syncs)) as journal:
        return Simulation(plan, search, journal).run()


def plan_of(n_blocks: int, n_trials: int, *, suggestion: Cost = FREE, coordinator: Cost = FREE, seed: int = 0) -> Any:
    return SimulationPlan(
        search=SearchPlan(num_iterations=n_trials),
        topology=Topology.plan(1 + n_blocks, 1),
        workload=Workload(objective=HARTMANN, durations=lognormal(MEDIAN_S, SIGMA), seed=seed),
        suggestion_cost=suggestion,
        coordinator_cost=coordinator,
    )


def dispatch_of(folder: Path, n_blocks: int, n_trials: int) -> dict[str, Any]:
    """Random search, everything measured, fsyncs and all; then a search that takes its time, everything else free."""
    real = run(folder, plan_of(n_blocks, n_trials, suggestion=MEASURED, coordinator=MEASURED), syncs=True)
    unsynced = run(folder, plan_of(n_blocks, n_trials, suggestion=MEASURED, coordinator=MEASURED))
    slow = {
        f"busy_with_suggestions_of_{seconds:g}_s": run(
            folder, plan_of(n_blocks, n_trials, suggestion=seconds)
        ).utilization_searching
        for seconds in SLOW_S
    }
    row = {
        "n_blocks": n_blocks,
        "n_trials": n_trials,
        "makespan_s": real.makespan_s,
        "team_utilization": real.team_utilization,
        "utilization_searching": real.utilization_searching,
        "gap_median_ms": 1e3 * real.dispatch_gap.median_s,
        "gap_99_ms": 1e3 * real.dispatch_gap.percentile_99_s,
        "suggestion_median_ms": 1e3 * real.suggestion.median_s,
        "cpu_ms_per_trial": 1e3 * real.cpu_s / n_trials,
        "wall_ms_per_trial": 1e3 * real.wall_s / n_trials,
        "regret": real.regret,
        "team_utilization_without_fsync": unsynced.team_utilization,
        "utilization_searching_without_fsync": unsynced.utilization_searching,
        "gap_median_ms_without_fsync": 1e3 * unsynced.dispatch_gap.median_s,
        **slow,
    }
    h.say(f"{row}")
    return row


def quality_of(folder: Path, algorithm: str, n_blocks: int, n_seeds: int) -> dict[str, Any]:
    """`N_TRIALS` trials each, suggestions as measured."""
    results = [
        run(folder, plan_of(n_blocks, N_TRIALS, suggestion=MEASURED, seed=seed), algorithm, seed)
        for seed in range(n_seeds)
    ]
    row = {
        "algorithm": algorithm,
        "n_blocks": n_blocks,
        "n_trials": N_TRIALS,
        "regret": h.spread([result.regret or 0.0 for result in results]),
        "makespan_s": h.spread([result.makespan_s for result in results]),
        "suggestion_median_ms": 1e3 * statistics.median(result.suggestion.median_s for result in results),
        "suggestion_max_ms": 1e3 * max(result.suggestion.max_s for result in results),
        "utilization_searching": h.spread([result.utilization_searching or 0.0 for result in results]),
    }
    h.say(f"{row}")
    return row


def measure_fsync_ms(folder: Path) -> list[float]:
    """Milliseconds of each of 100 appends to a journal, on disk."""
    journal = Journal(folder / "control.jsonl")
    took_ms = []
    for number in range(100):
        began_s = time.perf_counter()
        journal.append([TrialCompleted(time_s=0.0, trial=number, figure_of_merit=0.0, figure_of_merit_std=0.0)])
        took_ms.append(1e3 * (time.perf_counter() - began_s))
    journal.close()
    return took_ms


if __name__ == "__main__":
    main()
