"""Result files of a run, `results.csv` with `summary.json`, which can always be rebuilt from the journal."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nnlo_opt.files import atomic_write
from nnlo_opt.reporting.summary import summarise
from nnlo_opt.trials.journal import read_events, without_collection
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_directory import JOURNAL_NAME
from nnlo_opt.trials.trial import AssignmentEnd, Trial

if TYPE_CHECKING:
    import pandas

    Frame: TypeAlias = pandas.DataFrame

COLUMNS = (
    "trial",
    "state",
    "figure_of_merit",
    "figure_of_merit_std",
    "n_folds",
    "epochs",
    "attempt",
    "block",
    "n_ranks",
    "assigned_at_s",
    "started_at_s",
    "finished_at_s",
    "train_s",
    "reason",
)


def read_ledger(run_directory: Path) -> Ledger:
    """Return the ledger of a run, read from its journal without changing the journal."""
    path = run_directory / JOURNAL_NAME
    ledger = Ledger()
    with without_collection():
        for event in read_events(path.read_bytes(), str(path))[0]:
            ledger.apply(event)
    return ledger


def results_frame(ledger: Ledger) -> "Frame":
    """Return a table with one row for each trial.

    Its columns are `COLUMNS`, then the columns of several objectives, then `p:<parameter>`, which is empty if the trial
    does not have this parameter. With several objectives, `pareto` is True if no other trial is better in all
    objectives, and `o:<objective>` and `o:<objective>_std` are the mean and the population standard deviation over the
    folds.
    """
    import pandas

    names = parameter_names(ledger)
    rows = [
        _row(trial) | _objectives(trial, ledger) | {f"p:{name}": trial.point.get(name) for name in names}
        for trial in ledger.trials
    ]
    several = [f"o:{objective.name}{of}" for objective in ledger.objectives for of in ("", "_std")]
    columns = [*COLUMNS, *(["pareto", *several] if several else []), *(f"p:{name}" for name in names)]
    return pandas.DataFrame(rows, columns=columns, dtype=object)


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


def _objectives(trial: Trial, ledger: Ledger) -> dict[str, Any]:
    values: dict[str, Any] = {"pareto": trial.number in ledger.pareto}
    for objective in ledger.objectives:
        values[f"o:{objective.name}"] = trial.objectives.get(objective.name)
        values[f"o:{objective.name}_std"] = trial.objectives_std.get(objective.name)
    return values


def _row(trial: Trial) -> dict[str, Any]:
    assignments = trial.assignments
    last = assignments[-1] if assignments else None
    started = [a.started_at_s for a in assignments if a.started_at_s is not None]
    epochs = [result.n_epochs for result in trial.folds.values()] or [a.epoch for a in assignments]
    # Assignments of an earlier session on this block may have had different ranks.
    together = [
        a for a in assignments if last and a.block == last.block and (a is last or a.end is not AssignmentEnd.LOST)
    ]
    return {
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
