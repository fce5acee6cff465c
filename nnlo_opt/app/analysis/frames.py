"""Tables of a run as pandas data frames with typed columns.

Integers are Int64 and booleans are boolean, so that missing values do not turn them into floats; floats are float64
with NaN for missing values. Parameters have the dtype of their declaration: a choice of strings is a category, ordered
for an Ordinal; a choice of integers, floats or booleans has the dtype of its values; and a choice of mixed values (even
1 and 0.5), of lists, or with None has Python objects, with pandas.NA if the trial does not have the parameter.
"""

import re
import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.identity import ParameterFacts
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Assignment, AssignmentEnd, Trial, TrialState

if TYPE_CHECKING:
    import pandas

    Frame: TypeAlias = pandas.DataFrame
    Series: TypeAlias = pandas.Series

#: columns of integers, booleans, text, or categories; all other columns except parameters are floats
_INTEGERS = ("trial", "n_folds", "epochs", "attempt", "block", "n_ranks", "fold", "epoch", "assignment", "team", "job")
_TRUTHS = ("feasible", "pareto", "checkpointed")
_WORDS = {"state": [state.value for state in TrialState], "end": [end.value for end in AssignmentEnd]}
#: types of values -> dtype of a column with only these
_DTYPES: list[tuple[set[type], Any]] = [
    ({bool}, "boolean"),
    ({int}, "Int64"),
    ({int, float}, "float64"),
    ({str}, "string"),
]


def trials_frame(ledger: Ledger) -> "Frame":
    """Return one row for each trial, with the columns of results.csv."""
    frame = results_frame(ledger)
    declared = {parameter.name: parameter for parameter in ledger.identity.parameters}
    for name in parameter_names(ledger):
        frame[f"p:{name}"] = _parameter_column(ledger.trials, name, declared.get(name, ParameterFacts(name=name)))
    return _typed(frame)


def folds_frame(ledger: Ledger) -> "Frame":
    """Return one row for each finished fold: figure of merit, epochs, seconds, objectives `o:`, metrics `m:`."""
    rows = [
        {"trial": trial.number, "fold": fold, "figure_of_merit": result.figure_of_merit, "epochs": result.n_epochs}
        | {"train_s": result.train_s}
        | prefixed("o:", result.objectives)
        | prefixed("m:", result.metrics)
        for trial in ledger.trials
        for fold, result in sorted(trial.folds.items())
    ]
    return _frame(rows, "trial", "fold", "figure_of_merit", "epochs", "train_s")


def assignments_frame(ledger: Ledger) -> "Frame":
    """Return one row per attempt of a block at a fold: when it was assigned, began and ended, and how."""
    same = ("trial", "fold", "attempt", "block", "team", "n_ranks", "epoch")
    times = ("assigned_at_s", "started_at_s", "ended_at_s", "waited_s")
    rows = [
        {"assignment": assignment.number}
        | {name: getattr(assignment, name) for name in (*same, *times, "reason")}
        | {"end": None if assignment.end is None else assignment.end.value}
        | of_job(assignment, ledger)
        for assignment in ledger.assignments
    ]
    return _frame(rows, "assignment", *same, *times, "end", "reason")


def epochs_frame(ledger: Ledger, events: Iterable[ev.Event]) -> "Frame":
    """Return one row per epoch of each fold, with its metrics `m:`; for a repeated epoch the last report.

    Args:
        ledger: ledger of the same events.
        events: events of the run; only ends of epochs are used.
    """
    same = ("assignment", "time_s", "figure_of_merit", "checkpointed")
    rows: dict[tuple[int, int, int], dict[str, Any]] = {}
    for event in events:
        if isinstance(event, ev.EpochEnded):
            of = ledger.assignments[event.assignment]
            key = of.trial, of.fold, event.epoch
            rows[key] = dict(zip(("trial", "fold", "epoch"), key, strict=True)) | prefixed("m:", event.metrics)
            rows[key] |= {name: getattr(event, name) for name in same}
    return _frame([rows[key] for key in sorted(rows)], "trial", "fold", "epoch", *same)


def of_job(assignment: Assignment | None, ledger: Ledger) -> dict[str, int | None]:
    """Return the column `job` of an assignment, in runs that jobs have shared; no column in others."""
    if not ledger.jobs:
        return {}
    job = None if assignment is None else ledger.job_of(assignment)
    return {"job": None if job is None else job.number}


def comparison_frame(results: Mapping[str, Mapping[str, Any]]) -> "Frame":
    """Return one row per run, indexed by name: results of `app.reporting.comparison`."""
    import pandas

    frame = pandas.DataFrame.from_dict({**results}, orient="index")
    whole = ["best_trial", "best_expected_trial", *(state.value for state in TrialState), "trials_to_common"]
    return frame.astype(
        dict.fromkeys(whole, "Int64") | dict.fromkeys(("best", "common", "time_to_common_s"), "float64")
    )


def importance_frame(shares: Mapping[str, Iterable[float]]) -> "Frame":
    """Return one row per parameter: its share of the variance, with bounds; `shares`: low, middle, high."""
    import pandas

    rows = [(name, *band) for name, band in shares.items()]
    return pandas.DataFrame(rows, columns=["parameter", "low", "importance", "high"])


def prefixed(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Prefix the names of values: `o:` for objectives, `m:` for metrics."""
    return {f"{prefix}{name}": value for name, value in values.items()}


def _frame(rows: list[dict[str, Any]], *columns: str) -> "Frame":
    """Return rows as a frame with these columns first, then all others."""
    import pandas

    further = dict.fromkeys(name for row in rows for name in row if name not in columns)
    return _typed(pandas.DataFrame(rows, columns=[*columns, *further], dtype=object))


def _typed(frame: "Frame") -> "Frame":
    """Convert the columns of a frame of objects, except parameters, to their dtypes."""
    import pandas

    dtypes = dict.fromkeys(_INTEGERS, "Int64") | dict.fromkeys(_TRUTHS, "boolean") | {"reason": "string"}
    words = {name: pandas.CategoricalDtype(found) for name, found in _WORDS.items()}
    known: dict[str, Any] = {**dtypes, **words}
    return frame.astype({name: known.get(name, "float64") for name in frame.columns if not name.startswith("p:")})


def _parameter_column(trials: list[Trial], name: str, declared: ParameterFacts) -> "Series":
    """Return the values of a parameter; `declared`: its declaration, without a kind if not in the search space."""
    import pandas

    from nnlo_opt.core.space.tuples import Tuples  # imports NumPy, which `nnlo-opt status` avoids

    tuples = Tuples([declared.plain])
    values = [tuples.given(trial.point).get(name, pandas.NA) for trial in trials]
    column = pandas.Series(values, dtype=object)
    match declared.kind:
        case "real":
            return column.astype("Float64").astype("float64")
        case "integer":
            return column.astype("Int64")
    tried = [value for trial, value in zip(trials, values, strict=True) if name in trial.point]
    choices = tried if declared.categories is None else declared.categories
    types = {type(choice) for choice in choices} or {float}
    if types == {str} and declared.categories is not None:
        return column.astype(pandas.CategoricalDtype(choices, ordered=declared.kind == "ordinal"))
    dtype = next((dtype for found, dtype in _DTYPES if types <= found), None)
    if dtype == "float64" and int in types and declared.categories is not None:
        return column  # floats would turn the choice 1 into 1.0
    if dtype is None or any(isinstance(choice, int) and abs(choice) >= 2**63 for choice in choices):
        return column
    return column.astype("Float64").astype(dtype) if dtype == "float64" else column.astype(dtype)


# ---------------------------------------------------------------- CSV

#: beginning of text that a spreadsheet would interpret as a formula, or that `cell_of` has escaped
_FORMULA = re.compile("'*[-=+@\t\r\n\uff0d\uff1d\uff0b\uff20]")
#: quoted part of a cell, or end of a row
_QUOTED_OR_END = re.compile('("[^"]*")|\r\n')


def csv_of(frame: "Frame") -> str:
    """Return a table as CSV, with cells of `cell_of`."""
    import pandas

    rows = [[*map(cell_of, row)] for row in frame.to_numpy(dtype=object)]  # `frame.map` would turn integers into floats
    marked = pandas.DataFrame(rows, columns=frame.columns, dtype=object)
    # Python quotes cells that contain a line break.
    return _QUOTED_OR_END.sub(lambda found: found[1] or "\n", marked.to_csv(index=False, lineterminator="\r\n"))


def cell_of(value: Any) -> Any:
    """Return a value as a CSV cell: text that looks like a formula is escaped by an apostrophe, as OWASP advises."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def text_of(cell: str) -> str:
    """Undo `cell_of` for text."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


# ---------------------------------------------------------------- results.csv


def results_frame(ledger: Ledger) -> "Frame":
    """Return the table of results.csv, one row per trial, with Python objects.

    Its columns are the keys of `row_of`, then `p:<parameter>`, empty if the trial does not have it, then
    `figure_so_far`, `time_s` and `m:<metric>`, also for paused and pruned trials. With outcome constraints, `feasible`
    tells whether a complete trial satisfies them all. With several objectives, `pareto` is True for trials in the
    Pareto set, and `o:<objective>` and `o:<objective>_std` are the mean and the population standard deviation over the
    folds.
    """
    import pandas

    names, metrics = parameter_names(ledger), [last_metrics(trial) for trial in ledger.trials]
    rows = [
        row_of(trial, ledger)
        | {f"p:{name}": trial.point.get(name) for name in names}
        | {"figure_so_far": trial.figure_so_far, "time_s": time_s(trial)}
        | {f"m:{name}": value for name, value in last.items()}
        for trial, last in zip(ledger.trials, metrics, strict=True)
    ]
    measured = dict.fromkeys(f"m:{name}" for last in metrics for name in last)
    columns = [*row_of(Trial(number=0, point={}), ledger), *(f"p:{name}" for name in names)]
    return pandas.DataFrame(rows, columns=[*columns, "figure_so_far", "time_s", *measured], dtype=object)


def sorted_by(ledger: Ledger, name: str) -> list[Trial]:
    """Return the trials sorted by a column of results.csv, a parameter or a metric; those without a value come last."""
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
    """Return the seconds that a trial occupied its ranks, not counting crashed assignments; None without others."""
    ended = [a for a in trial.assignments if a.ended_at_s is not None and a.end is not AssignmentEnd.LOST]
    return sum((a.ended_at_s or 0.0) - a.assigned_at_s for a in ended) if ended else None


def last_metrics(trial: Trial) -> dict[str, float]:
    """Return the metrics of a trial: means over its folds, of their results or last epochs."""
    of_folds = {a.fold: a.metrics for a in trial.assignments if a.metrics}
    of_folds |= {fold: result.metrics for fold, result in trial.folds.items()}
    names = dict.fromkeys(name for metrics in of_folds.values() for name in metrics)
    values = {name: [metrics[name] for metrics in of_folds.values() if name in metrics] for name in names}
    return {name: statistics.fmean(found) for name, found in values.items()}


def parameter_names(ledger: Ledger) -> list[str]:
    """Return the names of all parameters, in the order of the search space; a trial may have only some of them."""
    of_space = [parameter.name for parameter in ledger.identity.parameters]
    return list(dict.fromkeys([*of_space, *(name for trial in ledger.trials for name in trial.point)]))


def row_of(trial: Trial, ledger: Ledger) -> dict[str, Any]:
    """Return column -> value of a trial."""
    assignments = trial.assignments
    last = assignments[-1] if assignments else None
    started = [a.started_at_s for a in assignments if a.started_at_s is not None]
    epochs = [result.n_epochs for result in trial.folds.values()] or [a.epoch for a in assignments]
    # In an earlier session this block may have had different ranks.
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
        # Different teams of a block train folds at the same time.
        "n_ranks": sum({a.team: a.n_ranks for a in together}.values()) or None,
        "assigned_at_s": assignments[0].assigned_at_s if assignments else None,
        "started_at_s": min(started, default=None),
        "finished_at_s": trial.ended_at_s,
        "train_s": sum(result.train_s for result in trial.folds.values()) if trial.folds else None,
        "reason": trial.reason,
    }
    row |= of_job(last, ledger)
    if ledger.constraints:
        row["feasible"] = trial.feasible
    if ledger.objectives:
        row["pareto"] = trial.number in ledger.pareto
    for objective in ledger.objectives:
        row[f"o:{objective.name}"] = trial.objectives.get(objective.name)
        row[f"o:{objective.name}_std"] = trial.objectives_std.get(objective.name)
    return row
