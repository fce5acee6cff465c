"""Many blocks: how busy one coordinator keeps 1 to 10,000 of them, and what a search finds on them. Simulated.

The coordinator, its journal (with its fsyncs), the ledger and the searches are the real ones; blocks and time are
virtual. What the coordinator takes for each message, and a search for each suggestion, is measured on this machine as
the simulation goes, and is virtual time for the blocks that wait for it. `--markdown FILE` writes the page.
"""

import argparse
import json
import math
import os
import statistics
import textwrap
import time
from pathlib import Path
from typing import Any

import harness as h

# As in a search process; NumPy reads it when it is imported, which is below.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.search.process import InlineSearch
from nnlo_opt.simulate.blocks import Workload
from nnlo_opt.simulate.clock import FREE, MEASURED, Cost
from nnlo_opt.simulate.durations import Lognormal
from nnlo_opt.simulate.objectives import BUILTIN
from nnlo_opt.simulate.result import SimulationResult
from nnlo_opt.simulate.simulation import SimulationPlan, simulate
from nnlo_opt.trials.events import TrialCompleted
from nnlo_opt.trials.journal import Journal

HARTMANN = BUILTIN["hartmann6"]
MEDIAN_S, SIGMA = 60.0, 0.5
#: numbers of blocks, with the trials of each
MANY = {1: 100, 10: 1000, 100: 3000, 1000: 10_000, 10_000: 30_000}
#: seconds of a suggestion: what a search takes that fits a surrogate to 150 trials, and a tenth of it
SLOW_S = (0.01, 0.1)
#: the search quality: trials of each search, and numbers of blocks
N_TRIALS, FEW = 64, (1, 4, 16, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="searches for each number of blocks (3)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: up to 100 blocks, one seed")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page there")
    arguments = parser.parse_args()
    where = h.machine()
    many = {n: trials for n, trials in MANY.items() if n <= 100} if arguments.quick else MANY
    few, seeds = ((1, 4), 1) if arguments.quick else (FEW, arguments.seeds)
    with h.temporary_folder() as folder:
        fsync_ms = measure_fsync_ms(folder)
        dispatch = [dispatch_of(folder, n_blocks, n_trials) for n_blocks, n_trials in many.items()]
        quality = [quality_of(folder, algorithm, n, seeds) for algorithm in ("random", "bayesian") for n in few]
    results = {"fsync_ms": h.spread(fsync_ms), "dispatch": dispatch, "quality": quality, "machine": where}
    print(json.dumps(results))
    if arguments.markdown:
        arguments.markdown.write_text(page(results))


def run(
    folder: Path, plan: SimulationPlan, algorithm: str = "random", seed: int = 0, *, syncs: bool = False
) -> SimulationResult:
    search = InlineSearch()
    search.start(algorithm, HARTMANN.space, seed, {})
    journal = Journal(folder / "journal.jsonl", syncs=syncs)
    try:
        return simulate(plan, search, journal)
    finally:
        journal.close()
        journal.path.unlink()


def plan_of(n_blocks: int, n_trials: int, *, suggestion: Cost = FREE, coordinator: Cost = FREE, seed: int = 0) -> Any:
    return SimulationPlan(
        search=SearchPlan(num_iterations=n_trials),
        topology=Topology.plan(1 + n_blocks, 1),
        workload=Workload(objective=HARTMANN, durations=Lognormal(MEDIAN_S, SIGMA), seed=seed),
        suggestion_cost=suggestion,
        coordinator_cost=coordinator,
    )


def dispatch_of(folder: Path, n_blocks: int, n_trials: int) -> dict[str, Any]:
    """Random search, everything measured, fsyncs and all; then a search that takes its time, everything else free."""
    real = run(folder, plan_of(n_blocks, n_trials, suggestion=MEASURED, coordinator=MEASURED), syncs=True)
    unsynced = run(folder, plan_of(n_blocks, n_trials, suggestion=MEASURED, coordinator=MEASURED))
    slow = {
        f"busy_with_suggestions_of_{seconds:g}_s": run(
            folder, plan_of(n_blocks, n_trials, suggestion=Cost(seconds))
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


# ---------------------------------------------------------------- the page

INTRODUCTION = """# The search: many blocks

Written by `python benchmarks/simulation.py --markdown docs/searching_at_scale.md`. Simulated: the coordinator, its
journal, the ledger and the search algorithms are the real ones, blocks and time are virtual (`nnlo-opt simulate`).
Trials take {median:g} s in the median, log-normal with sigma {sigma:g}: a tenth takes more than {tail:.0f} s. What the
coordinator took for each message, the fsync of its journal too, and what a search took for each suggestion was measured
on this machine and is virtual time in which blocks wait. The machine: {cores} cores ({cpu}), shared with other work
(load {load:.0f}), where an append to the journal took {fsync:.1f} ms to be on disk (median). There is no network in it:
a message arrives when it is sent.

## How busy one coordinator keeps its blocks

Random search. *teams*: share of the whole time that a block had a trial, the end included, when there is none left to
begin; *searching*: the same while there was, by the coordinator's clock. *gap*: from the end of a trial to the next
order. *a trial*: CPU time and real time of the simulation, with blocks, search and disk. *no fsync*: the gap where the
journal does not wait for the disk. The last columns are *searching* for a search that takes {slow} s for each
suggestion, all else free.

"""
QUALITY = """
Each trial costs the coordinator a write that has to be on disk before the next message is taken in. With {most} blocks
a trial took {trial_ms:.1f} ms of this busy machine, so one coordinator began {pace:.0f} trials a second, enough for
{enough:,.0f} blocks whose trials take {mean:.0f} s in the mean; with more, blocks wait for the disk, and at the start,
when every block wants its first trial, they wait in any case. Without the fsync (*no fsync*) 10,000 blocks are no
burden. Longer trials, larger blocks and a faster disk move the limit in proportion. (Where blocks have a few trials
each, {most_trials:.0f} on the most, the end of the search is a large part of it: *teams*.)

Suggestions are computed ahead, one after another: a search that takes c seconds for one keeps about {mean:.0f} / c
blocks busy ({mean:.0f} s being the mean of a trial), and below that number no block waits for it. Twice that many are
half idle, as the last columns show.

## What it finds

{n_trials} trials of Hartmann's six-dimensional function, whose optimum is -3.322: the regret, median (worst) of
{n_seeds} seeds. Suggestions take what they took here, in CPU time. With more blocks the same trials take less time, and
a search that learns knows less when it has to choose; for a random search the trials are the same.

"""


def page(results: dict[str, Any]) -> str:
    dispatch, quality, where = results["dispatch"], results["quality"], results["machine"]
    text = wrapped(
        INTRODUCTION,
        median=MEDIAN_S,
        sigma=SIGMA,
        tail=MEDIAN_S * math.exp(1.2816 * SIGMA),
        cores=where["n_cores"],
        cpu=where["cpu"],
        load=where["load_1min"],
        fsync=results["fsync_ms"]["median"],
        slow=" and ".join(f"{seconds:g}" for seconds in SLOW_S),
    )
    mean_s = MEDIAN_S * math.exp(SIGMA**2 / 2)
    slow = [f"busy_with_suggestions_of_{seconds:g}_s" for seconds in SLOW_S]
    text += table(
        ["blocks", "trials", "teams", "searching", "gap (99 %)", "a trial", "no fsync", *(f"{s:g} s" for s in SLOW_S)],
        [
            [
                f"{row['n_blocks']:,}",
                f"{row['n_trials']:,}",
                percent(row["team_utilization"]),
                percent(row["utilization_searching"]),
                f"{milliseconds(row['gap_median_ms'])} ({milliseconds(row['gap_99_ms'])})",
                f"{row['cpu_ms_per_trial']:.2f} ms CPU, {row['wall_ms_per_trial']:.2f} ms",
                f"{row['gap_median_ms_without_fsync']:.1f} ms",
                *(percent(row[name]) for name in slow),
            ]
            for row in dispatch
        ],
    )
    text += "\n" + wrapped(
        QUALITY,
        mean=mean_s,
        most=f"{dispatch[-1]['n_blocks']:,}",
        most_trials=dispatch[-1]["n_trials"] / dispatch[-1]["n_blocks"],
        trial_ms=dispatch[-1]["wall_ms_per_trial"],
        pace=1e3 / dispatch[-1]["wall_ms_per_trial"],
        enough=1e3 / dispatch[-1]["wall_ms_per_trial"] * mean_s,
        n_trials=N_TRIALS,
        n_seeds=quality[0]["regret"]["n"],
    )
    text += table(
        ["search", "blocks", "regret", "simulated time", "suggestion (longest)"],
        [
            [
                row["algorithm"],
                f"{row['n_blocks']}",
                f"{row['regret']['median']:.3f} ({row['regret']['max']:.3f})",
                f"{row['makespan_s']['median'] / 60:.1f} min",
                f"{row['suggestion_median_ms']:.1f} ms ({row['suggestion_max_ms']:.0f})",
            ]
            for row in quality
        ],
    )
    return text


def wrapped(template: str, **values: object) -> str:
    """The text with its values put in, its paragraphs filled anew."""
    paragraphs = template.format(**values).split("\n\n")
    return "\n\n".join(textwrap.fill(paragraph.strip(), 120, break_on_hyphens=False) for paragraph in paragraphs)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.0f} s"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
