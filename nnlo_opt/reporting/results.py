"""Result files of a run, `results.csv` with `summary.json`, which can always be rebuilt from the journal."""

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.files import atomic_write
from nnlo_opt.trials.journal import load_events, without_collection
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_directory import JOURNAL_NAME
from nnlo_opt.trials.trial import AssignmentEnd, Trial

if TYPE_CHECKING:
    import pandas

    Frame: TypeAlias = pandas.DataFrame


def read_ledger(run_directory: Path) -> Ledger:
    """Return the ledger of a run, read from its journal without changing the journal."""
    path = run_directory / JOURNAL_NAME
    with without_collection():
        return Ledger(load_events(path))


def results_frame(ledger: Ledger) -> "Frame":
    """Return a table with one row for each trial.

    Its columns are the keys of `_row`, then `p:<parameter>`, which is empty if the trial does not have this parameter,
    then `figure_so_far`, `time_s` and `m:<metric>`, which trials that were paused or pruned have as well.
    With several objectives, `pareto` is True if no other trial is better in all objectives, and `o:<objective>` and
    `o:<objective>_std` are the mean and the population standard deviation over the folds.
    """
    import pandas

    names, metrics = parameter_names(ledger), [last_metrics(trial) for trial in ledger.trials]
    rows = [
        _row(trial, ledger)
        | {f"p:{name}": trial.point.get(name) for name in names}
        | {"figure_so_far": trial.figure_so_far, "time_s": time_s(trial)}
        | {f"m:{name}": value for name, value in last.items()}
        for trial, last in zip(ledger.trials, metrics, strict=True)
    ]
    measured = dict.fromkeys(f"m:{name}" for last in metrics for name in last)
    columns = [*_row(Trial(number=0, point={}), ledger), *(f"p:{name}" for name in names)]
    return pandas.DataFrame(rows, columns=[*columns, "figure_so_far", "time_s", *measured], dtype=object)


def sorted_by(ledger: Ledger, name: str) -> list[Trial]:
    """Return the trials ordered by a column of results.csv, or a parameter or metric; those without a value follow."""
    import pandas

    frame = results_frame(ledger)
    column = next((c for c in (name, f"p:{name}", f"m:{name}", f"o:{name}") if c in frame.columns), None)
    if column is None:
        raise ConfigurationError(
            f"`--sort` must name a column of results.csv. Received: {name}; it has {', '.join(frame.columns)}."
        )
    numbers = pandas.to_numeric(frame[column], errors="coerce")
    values = numbers if numbers.notna().any() else frame[column].astype(str)
    return [ledger.trials[n] for n in values.sort_values(kind="stable", na_position="last").index]


def time_s(trial: Trial) -> float | None:
    """Return the seconds for which a trial held its ranks, by assignments that no crash has ended; None without one."""
    ended = [a for a in trial.assignments if a.ended_at_s is not None and a.end is not AssignmentEnd.LOST]
    return sum((a.ended_at_s or 0.0) - a.assigned_at_s for a in ended) if ended else None


def last_metrics(trial: Trial) -> dict[str, float]:
    """Return the metrics of a trial: means over its folds, of the result of each or of its last epoch."""
    of_folds = {a.fold: a.metrics for a in trial.assignments if a.metrics}
    of_folds |= {fold: result.metrics for fold, result in trial.folds.items()}
    names = dict.fromkeys(name for metrics in of_folds.values() for name in metrics)
    values = {name: [metrics[name] for metrics in of_folds.values() if name in metrics] for name in names}
    return {name: statistics.fmean(found) for name, found in values.items()}


def parameter_names(ledger: Ledger) -> list[str]:
    """Return the names of all parameters, in the order of the search space; a trial may have only some of them."""
    space = ledger.identity.get("search_space") or {"parameters": []}
    of_space = [parameter["name"] for parameter in space["parameters"]]
    return list(dict.fromkeys([*of_space, *(name for trial in ledger.trials for name in trial.point)]))


def write_results(run_directory: Path, ledger: Ledger) -> None:
    """Write `results.csv` and `summary.json`, each whole or not at all."""
    table = results_frame(ledger).to_csv(index=False, lineterminator="\n")
    atomic_write(run_directory / "results.csv", table, durable=False)
    atomic_write(run_directory / "summary.json", json.dumps(summarise(ledger), indent=2) + "\n", durable=False)


def _row(trial: Trial, ledger: Ledger) -> dict[str, Any]:
    """Return the columns of a trial by name; a table without trials has them, too."""
    assignments = trial.assignments
    last = assignments[-1] if assignments else None
    started = [a.started_at_s for a in assignments if a.started_at_s is not None]
    epochs = [result.n_epochs for result in trial.folds.values()] or [a.epoch for a in assignments]
    # Assignments of an earlier session on this block may have had different ranks.
    together = [
        a for a in assignments if last and a.block == last.block and (a is last or a.end is not AssignmentEnd.LOST)
    ]
    row: dict[str, Any] = {
        "trial": trial.number,
        "state": trial.state.value,
        "figure_of_merit": trial.figure_of_merit,
        "figure_of_merit_std": trial.figure_of_merit_std,
        "n_folds": len(trial.folds),
        "epochs": max(epochs, default=0),
        "attempt": max((a.attempt for a in assignments), default=0),
        "block": last.block if last else None,
        # Folds that train at the same time are trained by different teams of one block.
        "n_ranks": sum({a.team: a.n_ranks for a in together}.values()) or None,
        "assigned_at_s": assignments[0].assigned_at_s if assignments else None,
        "started_at_s": min(started, default=None),
        "finished_at_s": trial.ended_at_s,
        "train_s": sum(result.train_s for result in trial.folds.values()) if trial.folds else None,
        "reason": trial.reason,
    }
    if ledger.objectives:
        row["pareto"] = trial.number in ledger.pareto
    for objective in ledger.objectives:
        row[f"o:{objective.name}"] = trial.objectives.get(objective.name)
        row[f"o:{objective.name}_std"] = trial.objectives_std.get(objective.name)
    return row


def summarise(ledger: Ledger) -> dict[str, Any]:
    """Return the summary as plain data; times are in seconds, and a figure without any measurement is None."""
    direction = str(ledger.identity.get("direction", "min"))
    best = ledger.best(direction)
    named = [{"name": objective.name, "direction": objective.direction} for objective in ledger.objectives]
    several = {"objectives": named, "pareto": _pareto(ledger)} if named else {}
    return {
        "complete": ledger.complete,
        "reason": ledger.completed_because or ledger.preempted_because,
        "direction": direction,
        "figure_of_merit": ledger.identity.get("figure_of_merit"),
        "n_trials": ledger.n_by_state(),
        "best": None
        if best is None
        else {
            "trial": best.number,
            "figure_of_merit": best.figure_of_merit,
            "figure_of_merit_std": best.figure_of_merit_std,
            "parameters": best.point,
            "metrics": last_metrics(best),
        },
        **several,
        **({"test": ledger.test} if ledger.test else {}),
        "wall_s": sum(session.last_at_s - session.started_at_s for session in ledger.sessions),
        "n_starts": len(ledger.sessions),
        "journal_cut_bytes": ledger.cut_bytes,
        "lost": _lost(ledger),
        "block_utilization": block_utilization(ledger),
        "coordinator_cpu_s": ledger.coordinator_cpu_s,
        "suggest_s": _spread(ledger.suggest_s),
        "dispatch_gap_s": _spread([a.waited_s for a in ledger.assignments if a.waited_s is not None]),
    }


def _lost(ledger: Ledger) -> dict[str, Any]:
    """Return the dead ranks and lost blocks of the last session, and the number of dead ranks in all sessions."""
    last = ledger.sessions[-1] if ledger.sessions else None
    return {
        "ranks": [] if last is None else sorted(rank for ranks in last.lost_ranks.values() for rank in ranks),
        "blocks": [] if last is None else last.lost_blocks,
        "n_ranks": sum(len(ranks) for session in ledger.sessions for ranks in session.lost_ranks.values()),
    }


def _pareto(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the trials of the Pareto set, ordered from best to worst in the first objective."""
    return [
        {
            "trial": trial.number,
            "objectives": trial.objectives,
            "objectives_std": trial.objectives_std,
            "parameters": trial.point,
        }
        for trial in (ledger.trials[number] for number in ledger.pareto.trials)
    ]


def block_utilization(ledger: Ledger, until_s: float = float("inf")) -> float | None:
    """Return the share of the blocks' time that was spent on trials; None if no time has passed.

    The time of a session counts from its first assignment to its last end, or to `until_s` if that is earlier.
    """
    busy_s = available_s = 0.0
    starts = [session.started_at_s for session in ledger.sessions]
    for session, next_start_s in zip(ledger.sessions, [*starts, float("inf")][1:], strict=True):
        spans: dict[int, list[tuple[float, float]]] = {}
        for assignment in ledger.assignments:
            if session.started_at_s <= assignment.assigned_at_s < min(next_start_s, until_s):
                # The next session closes a lost assignment, but the assignment ended with its own session.
                end_s = session.last_at_s if assignment.ended_at_s is None else assignment.ended_at_s
                span = assignment.assigned_at_s, min(end_s, session.last_at_s, until_s)
                spans.setdefault(assignment.block, []).append(span)
        if not spans:
            continue
        first_s = min(start for block in spans.values() for start, _ in block)
        last_s = max(end for block in spans.values() for _, end in block)
        available_s += session.n_blocks * (last_s - first_s)
        busy_s += sum(_covered_s(block) for block in spans.values())
    return busy_s / available_s if available_s > 0 else None


def _covered_s(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans, which overlap if teams of one block train folds at the same time."""
    covered_s, reached_s = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered_s += max(0.0, end - max(start, reached_s))
        reached_s = max(reached_s, end)
    return covered_s


def _spread(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "max": None}
    return {"median": statistics.median(values), "max": max(values)}
