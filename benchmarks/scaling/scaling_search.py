"""Search part of docs/scaling.md, made from the output of `simulation.py`."""

import math
import textwrap
from typing import Any

INTRODUCTION = """## The search: many blocks

This part is a simulation (`python benchmarks/search/simulation.py`): coordinator, journal, ledger and search algorithms
are real; blocks and time are virtual (`nnlo-opt simulate`). The median trial takes {median:g} s, log-normal with sigma
{sigma:g}: a tenth of the trials take more than {tail:.0f} s. The time of the coordinator for messages, including the
fsync of its journal, and of the search for each suggestion were measured on this machine, and count as virtual time in
which blocks wait. The machine has {cores} cores ({cpu}) and was shared with other work (load {load:.0f}). The median
append to the journal took {fsync:.1f} ms to reach the disk. There is no network: a message arrives when it is sent.

### How busy one coordinator keeps its blocks

With random search:

- *busy*: share of the whole time in which a block had a trial, including the end, when no trials are left to begin;
- *searching*: the same share while trials were left, by the coordinator's clock;
- *gap*: time from the end of a trial to the next assignment;
- *per trial*: CPU time and wall time of the simulation, with blocks, search and disk;
- *no fsync*: the gap if the journal does not wait for the disk;
- last columns: *searching* if each suggestion takes {slow} s and everything else takes no time.

"""
QUALITY = """
A trial must be on disk before its block gets it. Messages that arrive during a write are handled together in the next
one, so a busy coordinator writes less per message. With {most} blocks a trial took {trial_ms:.1f} ms on this machine:
{pace:.0f} trials per second, enough for {enough:,.0f} blocks whose trials take {mean:.0f} s on average. Blocks always
wait at the start, when each needs its first trial, and if trials are short. With few trials per block
({most_trials:.0f} with the most blocks), the end of the search is a large part of it (*busy*).

Suggestions are computed ahead, one after another: as many as it takes for 95 % of the blocks not to wait after a trial,
and at most one per block. If suggestions are much faster than trials, one is enough. A search that takes c seconds per
suggestion keeps about {mean:.0f} / c blocks busy ({mean:.0f} s is the mean trial). Twice as many blocks are idle
half of the time, as the last columns show.

### What it finds

{n_trials} trials of Hartmann's six-dimensional function, whose optimum is -3.322: the regret, median (worst) of
{n_seeds} seeds. Suggestions take the CPU time measured here. With more blocks the search takes less time, and a
search that learns knows less at each suggestion. Random search makes the same trials for any number of blocks; to
reproduce its regrets, run `nnlo-opt simulate --blocks {few} --trials {n_trials} --seed 0`, then with the other seeds.

"""


def search_part(results: dict[str, Any]) -> str:
    """Markdown, from a heading of the second level on."""
    dispatch, quality, where = results["dispatch"], results["quality"], results["machine"]
    median_s, sigma = results["median_s"], results["sigma"]
    mean_s = median_s * math.exp(sigma**2 / 2)
    text = wrapped(
        INTRODUCTION,
        median=median_s,
        sigma=sigma,
        tail=median_s * math.exp(1.2816 * sigma),
        cores=where["n_cores"],
        cpu=where["cpu"],
        load=where["load_1min"],
        fsync=results["fsync_ms"]["median"],
        slow=" or ".join(f"{seconds:g}" for seconds in results["slow_s"]),
    )
    text += dispatch_table(dispatch, results["slow_s"])
    most = dispatch[-1]
    text += "\n" + wrapped(
        QUALITY,
        mean=mean_s,
        most=f"{most['n_blocks']:,}",
        most_trials=most["n_trials"] / most["n_blocks"],
        trial_ms=most["wall_ms_per_trial"],
        pace=1e3 / most["wall_ms_per_trial"],
        enough=1e3 / most["wall_ms_per_trial"] * mean_s,
        n_trials=quality[0]["n_trials"],
        n_seeds=quality[0]["regret"]["n"],
        few=" ".join(str(row["n_blocks"]) for row in quality if row["algorithm"] == "random"),
    )
    return text + quality_table(quality)


def dispatch_table(rows: list[dict[str, Any]], slow_s: list[float]) -> str:
    slow = [f"busy_with_suggestions_of_{seconds:g}_s" for seconds in slow_s]
    return table(
        ["blocks", "trials", "busy", "searching", "gap (99 %)", "per trial", "no fsync", *(f"{s:g} s" for s in slow_s)],
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
            for row in rows
        ],
    )


def quality_table(rows: list[dict[str, Any]]) -> str:
    return table(
        ["search", "blocks", "regret", "busy", "simulated time", "suggestion (longest)"],
        [
            [
                row["algorithm"],
                f"{row['n_blocks']}",
                f"{row['regret']['median']:.3f} ({row['regret']['max']:.3f})",
                percent(row["utilization_searching"]["median"]),
                f"{row['makespan_s']['median'] / 60:.1f} min",
                f"{row['suggestion_median_ms']:.1f} ms ({row['suggestion_max_ms']:.0f})",
            ]
            for row in rows
        ],
    )


def wrapped(template: str, **values: object) -> str:
    """Fill in the values of a template and wrap its paragraphs, but not its lists."""
    paragraphs = [paragraph.strip() for paragraph in template.format(**values).split("\n\n")]
    return "\n\n".join(
        text if text.startswith("- ") else textwrap.fill(text, 120, break_on_hyphens=False) for text in paragraphs
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.0f} s"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
