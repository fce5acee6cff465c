"""Result files of a run, `results.csv` and `summary.json`, which can always be rebuilt from the journal."""

import json
import statistics
from pathlib import Path
from typing import Any

from nnlo_opt.app.analysis.frames import csv_of, last_metrics, results_frame
from nnlo_opt.app.reporting.jobs import job_counts
from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.base.records import without_collection
from nnlo_opt.core.trials.events import Event
from nnlo_opt.core.trials.journal import load_events
from nnlo_opt.core.trials.ledger import Ledger, Session
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.core.trials.trial import Trial

#: files of a run directory
RESULT_NAMES = ("results.csv", "summary.json")


def read_run(run_directory: Path) -> tuple[list[Event], Ledger]:
    """Return the events of a run and their ledger, without changing the journal."""
    with without_collection():
        events = load_events(run_directory / JOURNAL_NAME)
        return events, Ledger(events)


def read_ledger(run_directory: Path) -> Ledger:
    """Return the ledger of a run, like `read_run`."""
    return read_run(run_directory)[1]


def write_results(folder: Path, ledger: Ledger) -> None:
    """Write `results.csv` and `summary.json` to a folder, each atomically."""
    texts = csv_of(results_frame(ledger)), json.dumps(summarise(ledger), indent=2) + "\n"
    for name, text in zip(RESULT_NAMES, texts, strict=True):
        atomic_write(folder / name, text, durable=False)


def summarise(ledger: Ledger) -> dict[str, Any]:
    """Return the summary as plain data; times are in seconds, unknown values are None."""
    named = [{"name": objective.name, "direction": objective.direction} for objective in ledger.objectives]
    several = {"objectives": named, "pareto": _pareto(ledger)} if named else {}
    return {
        "complete": ledger.complete,
        "reason": ledger.ended_because,
        "direction": ledger.direction,
        "figure_of_merit": ledger.identity.figure_of_merit,
        "n_trials": ledger.n_by_state(),
        "best": best_of(ledger),
        "best_expected": described(ledger.best_expected),
        **several,
        **({"test": ledger.test} if ledger.test else {}),
        "wall_s": sum(session.last_at_s - session.started_at_s for session in ledger.sessions),
        "n_starts": len(ledger.sessions),
        "journal_cut_bytes": ledger.cut_bytes,
        "lost": lost_of(ledger),
        **({"jobs": job_counts(ledger)} if ledger.jobs else {}),
        "block_utilization": block_utilization(ledger),
        "coordinator_cpu_s": ledger.coordinator_cpu_s,
        "suggest_s": _spread(ledger.suggest_s),
        "dispatch_gap_s": _spread([a.waited_s for a in ledger.assignments if a.waited_s is not None]),
    }


def best_of(ledger: Ledger) -> dict[str, Any] | None:
    """Return the best trial with its parameters and metrics; None before one is complete."""
    return described(ledger.best())


def described(trial: Trial | None) -> dict[str, Any] | None:
    """Return a complete trial with its parameters and metrics."""
    if trial is None:
        return None
    return {
        "trial": trial.number,
        "figure_of_merit": trial.figure_of_merit,
        "figure_of_merit_std": trial.figure_of_merit_std,
        "parameters": trial.point,
        "metrics": last_metrics(trial),
    }


def lost_of(ledger: Ledger) -> dict[str, Any]:
    """Return the dead ranks and lost blocks of the last session, and the number of dead ranks in all sessions."""
    last = ledger.sessions[-1] if ledger.sessions else None
    return {
        "ranks": [] if last is None else sorted(rank for ranks in last.lost_ranks.values() for rank in ranks),
        "blocks": [] if last is None else last.lost_blocks,
        "n_ranks": sum(len(ranks) for session in ledger.sessions for ranks in session.lost_ranks.values()),
    }


def _pareto(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the Pareto set, sorted by the first objective, best first."""
    trials = [ledger.trials[number] for number in ledger.pareto.trials]
    return [
        {"trial": t.number, "objectives": t.objectives, "objectives_std": t.objectives_std, "parameters": t.point}
        for t in trials
    ]


def block_utilization(ledger: Ledger, until_s: float = float("inf")) -> float | None:
    """Return the share of the blocks' time spent on trials; None if no time has passed.

    The time of a session counts from its first assignment to its last end, or to `until_s` if that is earlier; of a
    shared run, the time for which each block was there.
    """
    busy_s = available_s = 0.0
    starts = [session.started_at_s for session in ledger.sessions]
    for session, next_start_s in zip(ledger.sessions, [*starts, float("inf")][1:], strict=True):
        spans: dict[int, list[tuple[float, float]]] = {}
        for assignment in ledger.assignments:
            if session.started_at_s <= assignment.assigned_at_s < min(next_start_s, until_s):
                # The next session records the loss of an assignment, but the assignment ended with its own session.
                end_s = session.last_at_s if assignment.ended_at_s is None else assignment.ended_at_s
                span = assignment.assigned_at_s, min(end_s, session.last_at_s, until_s)
                spans.setdefault(assignment.block, []).append(span)
        if not spans:
            continue
        first_s = min(start for block in spans.values() for start, _ in block)
        last_s = max(end for block in spans.values() for _, end in block)
        available_s += _available_s(ledger, session, first_s, last_s)
        busy_s += sum(_covered_s(block) for block in spans.values())
    return busy_s / available_s if available_s > 0 else None


def _available_s(ledger: Ledger, session: Session, first_s: float, last_s: float) -> float:
    """Return the time of all blocks of a session between two times."""
    if not session.term:
        return session.n_blocks * (last_s - first_s)
    spans = [(job, max(job.joined_at_s, first_s), min(last_s, job.left_at_s or last_s)) for job in ledger.jobs.values()]
    return sum(len(job.blocks) * max(0.0, end_s - begin_s) for job, begin_s, end_s in spans)


def _covered_s(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans; they overlap if teams of one block train folds at the same time."""
    covered_s, reached_s = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered_s += max(0.0, end - max(start, reached_s))
        reached_s = max(reached_s, end)
    return covered_s


def _spread(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "max": None}
    return {"median": statistics.median(values), "max": max(values)}
