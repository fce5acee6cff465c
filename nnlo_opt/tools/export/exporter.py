"""Interface of exporters, and the table of all of them."""

import importlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import nnlo_opt
from nnlo_opt.app.analysis.frames import last_metrics, prefixed, row_of, time_s
from nnlo_opt.core.base.errors import ConfigurationError, require_package
from nnlo_opt.core.base.files import atomic_write, make_directory
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.user_code import takes_arguments
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Assignment, Trial
from nnlo_opt.engine.loading import installed


class Exporter(Protocol):
    r"""Writes the files of another tool, from the events of a run.

    `take` is called with the events in order: once with all of them for `nnlo-opt export`, and repeatedly with the new
    ones during a search with `--mirror`. A mirroring exporter may find its files from an earlier start, and must
    continue them.

    >>> class Lines:
    ...     target, is_file = "trials.txt", True  # in the run directory, unless `--out` is given
    ...
    ...     def __init__(self, target, run_name):
    ...         self._target = target
    ...
    ...     def take(self, events, ledger):
    ...         lines = [f"{trial.number} {trial.figure_of_merit}" for trial in ledger.trials.values()]
    ...         atomic_write(self._target, "\n".join(lines))
    """

    def take(self, events: Sequence[ev.Event], ledger: Ledger) -> None:
        """Update the files with new `events`, which `ledger` has already applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Another tool; its exporter is imported on use."""

    module: str
    #: class in `module`, with arguments target and name of the run
    maker: str
    #: package that the exporter needs, and the extra that installs it
    package: str = ""
    extra: str = ""
    #: name of the target in the run directory
    target: str
    #: True if the target is one file, False if it is a folder
    is_file: bool = False
    #: command that shows the target, with `{}` as placeholder
    shown_by: str = ""


#: name in `--to` -> tool
# fmt: off
TOOLS = {
    "csv": Tool(module="tables", maker="CsvTables", target="csv"),
    "parquet": Tool(module="tables", maker="ParquetTables", package="pyarrow", extra="parquet", target="parquet"),
    "optuna": Tool(module="optuna_study", maker="StudyFile", package="optuna", extra="optuna", target="optuna.log",
        is_file=True, shown_by="optuna-dashboard {}"),
    "tensorboard": Tool(module="tensorboard_runs", maker="EventFiles", package="tensorboard", extra="tensorboard",
        target="tensorboard", shown_by="tensorboard --logdir {}"),
    "mlflow": Tool(module="mlflow_runs", maker="RunStore", package="mlflow", extra="mlflow", target="mlruns",
        shown_by="MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {}"),
    "wandb-offline": Tool(module="wandb_runs", maker="OfflineRuns", package="wandb", extra="wandb",
        target="wandb-offline", shown_by="wandb sync {}/wandb/offline-run-*"),
}
# fmt: on
#: file that marks a folder of an exporter
MARK = "nnlo_opt-export.json"
#: measured columns of results.csv, besides objectives and metrics
_RESULTS = ("figure_of_merit", "figure_of_merit_std", "figure_so_far", "feasible", "n_folds", "time_s", "reason")


def tool_named(name: str) -> Tool:
    """Return the tool of a name in `--to`; NAME@PACKAGE is the exporter of an installed package.

    Its class is constructed as CLASS(target, run_name), and may have the attributes `target`, the name of its file or
    folder, and `is_file`.
    """
    if not installed.is_installed(name):
        return TOOLS[name]
    kind = installed.load(installed.EXPORTERS, name)
    if not callable(kind) or not takes_arguments(getattr(kind, "take", None), 3):
        raise ConfigurationError(
            "A custom exporter must be a class, created by `CLASS(target, run_name)`, with a method "
            f"`take(events, ledger)`. Received: {kind!r} as {name}. Correct the class, or choose another format."
        )
    target = str(getattr(kind, "target", name.partition("@")[0]))
    return Tool(module="", maker="", target=target, is_file=bool(getattr(kind, "is_file", False)))


def require(name: str, asked: str) -> None:
    """Raise ConfigurationError if a tool's package is not installed; `asked`: option that needs it."""
    tool = tool_named(name)
    if tool.package:
        require_package(asked, tool.package, tool.extra, "leave it out")


def make_exporter(name: str, target: SafePath, run_name: str) -> Exporter:
    """Return a tool's exporter for `target`; creates the folder unless it is a file."""
    tool = tool_named(name)
    make_directory(target.parent if tool.is_file else target)
    if not tool.is_file:
        atomic_write(target / MARK, json.dumps({"run": run_name, "nnlo_opt": nnlo_opt.__version__}) + "\n")
    if installed.is_installed(name):
        maker = installed.load(installed.EXPORTERS, name)
    else:
        maker = getattr(importlib.import_module(f"nnlo_opt.tools.export.{TOOLS[name].module}"), tool.maker)
    exporter: Exporter = maker(target, run_name)
    return exporter


# ---------------------------------------------------------------- parts of several exporters


def trials_of(events: Iterable[ev.Event], ledger: Ledger) -> list[Trial]:
    """Return the trials that `events` concern, in the order of their numbers."""
    numbers = {number for event in events if (number := getattr(event, "trial", None)) is not None}
    numbers |= {a.trial for event in events if (a := assignment_of(event, ledger)) is not None}
    return [ledger.trials[number] for number in sorted(numbers)]


def assignment_of(event: ev.Event, ledger: Ledger) -> Assignment | None:
    """Return the assignment that an event concerns; None if there is none."""
    number = getattr(event, "assignment", -1)
    return ledger.assignments[number] if number >= 0 else None


class FirstReports:
    """Detects repeated epochs: an epoch trained again after a crash keeps its first report."""

    def __init__(self) -> None:
        #: (trial, fold) -> number of its last epoch
        self._last: dict[tuple[int, int], int] = {}

    def is_new(self, assignment: Assignment, epoch: int) -> bool:
        """Return True for the first report of an epoch."""
        key = assignment.trial, assignment.fold
        is_new = epoch > self._last.get(key, 0)
        self._last[key] = max(epoch, self._last.get(key, 0))
        return is_new


def trial_name(number: int) -> str:
    """Return the name of a trial in another tool."""
    return f"trial-{number:04d}"


def plain_value(value: Any) -> bool | int | float | str:
    """Return a parameter's value for tools without None and lists, which become JSON text."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def results_of(trial: Trial, ledger: Ledger) -> dict[str, Any]:
    """Return column of results.csv -> measured value of a trial; values not measured are missing."""
    row = row_of(trial, ledger) | {"figure_so_far": trial.figure_so_far, "time_s": time_s(trial)}
    named = {name: row[name] for name in row if name in _RESULTS or name.startswith("o:")}
    found = named | prefixed("m:", last_metrics(trial))
    return {name: value for name, value in found.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class Epoch:
    """Epoch of a trial with its metrics, including the figure of merit; names are prefixed with `epoch/`."""

    number: int
    unix_s: float
    values: dict[str, float]


def epochs_of(events: Iterable[ev.Event], ledger: Ledger) -> dict[int, list[Epoch]]:
    """Return trial number -> epochs in `events`; with several folds, names are prefixed with `fold-0/` etc."""
    reports, found = FirstReports(), defaultdict[int, list[Epoch]](list)
    for event in events:
        of = assignment_of(event, ledger)
        if isinstance(event, ev.EpochEnded) and of is not None and reports.is_new(of, event.epoch):
            fold = f"fold-{of.fold}/" * (ledger.identity.n_fold > 1)
            values = {f"{fold}{name}": value for name, value in curves_of(event).items()}
            found[of.trial].append(Epoch(event.epoch, ledger.first_start_unix_s + event.time_s, values))
    return found


def curves_of(event: ev.EpochEnded) -> dict[str, float]:
    """Return name of a curve -> value of an epoch."""
    figure = {} if event.figure_of_merit is None else {"figure_of_merit": event.figure_of_merit}
    return {f"epoch/{name}": value for name, value in (event.metrics | figure).items()}


def began_at_s(trial: Trial) -> float | None:
    """Return when a trial was first assigned, in seconds since the start of the run; None before that."""
    return trial.assignments[0].assigned_at_s if trial.assignments else None
