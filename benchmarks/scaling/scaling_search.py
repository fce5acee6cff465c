"""Search part of docs/scaling.md, made from the output of `simulation.py`."""

import math
import textwrap
from typing import Any

INTRODUCTION = """## The search: many blocks

`python benchmarks/search/simulation.py` made this part. It is a simulation: the coordinator, its journal, the ledger
and the search algorithms are the real ones; blocks and time are virtual (`nnlo-opt simulate`). Trials take {median:g} s
in the median, log-normal with sigma {sigma:g}: a tenth of them takes more than {tail:.0f} s. The time that the
coordinator took for messages, including the fsync of its journal, and the time that a search took for each suggestion
were measured on this machine; they are virtual time in which blocks wait. The machine has {cores} cores ({cpu}) and was
shared with other work (load {load:.0f}). An append to the journal took {fsync:.1f} ms to be on disk (median). The
simulation has no network: a message arrives when it is sent.

### How busy one coordinator keeps its blocks

Random search. *teams*: share of the whole time that a block had a trial, including the end, when no trial is left
to begin; *searching*: the same share while trials were left, by the coordinator's clock. *gap*: from the end of a
trial to the next order. *a trial*: CPU time and real time of the simulation, with blocks, search and disk. *no
fsync*: the gap if the journal does not wait for the disk. The last columns are *searching* if a search takes
{slow} s for each suggestion and everything else takes no time.

"""
QUALITY = """
A trial has to be on disk before its block gets it. Messages that arrive while the coordinator writes are taken
together and written at once, so a busy coordinator writes less for each message. With {most} blocks a trial took
{trial_ms:.1f} ms of this machine, which is {pace:.0f} trials begun a second, enough for {enough:,.0f} blocks whose
trials take {mean:.0f} s in the mean. Blocks wait in any case at the start, when every block wants its first trial,
and if trials are short. (If blocks have a few trials each, {most_trials:.0f} with the most blocks, the end of the
search is a large part of it: *teams*.)

Suggestions are computed ahead, one after another. As many are held ready as keep 95 % of the blocks that end from
waiting: one if they are made much faster than blocks end, up to one a block. A search that takes c seconds for a
suggestion keeps about {mean:.0f} / c blocks busy ({mean:.0f} s is the mean of a trial). Twice that many blocks are
half idle, as the last columns show.

### What it finds

{n_trials} trials of Hartmann's six-dimensional function, whose optimum is -3.322: the regret, median (worst) of
{n_seeds} seeds. Suggestions take the CPU time that they took here. With more blocks the same trials take less
time, and a search that learns knows less when it has to choose. For a random search the trials are the same, and
`nnlo-opt simulate --blocks {few} --trials {n_trials} --seed 0`, then with the other seeds, finds the same regrets.

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
        slow=" and ".join(f"{seconds:g}" for seconds in results["slow_s"]),
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
        ["blocks", "trials", "teams", "searching", "gap (99 %)", "a trial", "no fsync", *(f"{s:g} s" for s in slow_s)],
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
