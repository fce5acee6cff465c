"""Interface of an exporter, with the table of all exporters."""

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
    r"""Writer of the files of another tool.

    The events of a run come in their order: all in one call for a run that is exported, a few at a time for a search
    that is mirrored. An exporter that mirrors may find its own files of an earlier start, and continues them.

    >>> class Lines:
    ...     target, is_file = "trials.txt", True  # in the run directory, if `--out` names nothing else
    ...
    ...     def __init__(self, target, run_name):
    ...         self._target = target
    ...
    ...     def take(self, events, ledger):
    ...         lines = [f"{trial.number} {trial.figure_of_merit}" for trial in ledger.trials.values()]
    ...         atomic_write(self._target, "\n".join(lines))
    """

    def take(self, events: Sequence[ev.Event], ledger: Ledger) -> None:
        """Bring the files up to date with new `events`, which `ledger` has applied already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Another tool, whose exporter is imported when it is made."""

    module: str
    #: class in `module`; it takes the target and the name of the run
    maker: str
    #: package that the exporter needs, and the extra that installs it
    package: str = ""
    extra: str = ""
    #: name of the target in the run directory
    target: str
    #: True if the target is one file, False if it is a folder
    is_file: bool = False
    #: command that shows the target, with `{}` in its place
    shown_by: str = ""


#: name for `--to` -> the tool
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
#: file by which a folder of an exporter is known
MARK = "nnlo_opt-export.json"
#: columns of results.csv that are measured of a trial, beside its objectives and metrics
_RESULTS = ("figure_of_merit", "figure_of_merit_std", "figure_so_far", "feasible", "n_folds", "time_s", "reason")


def tool_named(name: str) -> Tool:
    """Return a tool by the name for `--to`; NAME@PACKAGE is the exporter of an installed package.

    Its class is made by CLASS(target, run_name), and may have `target`, the name of its file or folder, and `is_file`.
    """
    if not installed.is_installed(name):
        return TOOLS[name]
    kind = installed.load(installed.EXPORTERS, name)
    if not callable(kind) or not takes_arguments(getattr(kind, "take", None), 3):
        raise ConfigurationError(
            "An exporter of another package must be a class, made by `CLASS(target, run_name)`, with a method "
            f"`take(events, ledger)`. Received: {kind!r} as {name}. Correct the class, or name another format."
        )
    target = str(getattr(kind, "target", name.partition("@")[0]))
    return Tool(module="", maker="", target=target, is_file=bool(getattr(kind, "is_file", False)))


def require(name: str, asked: str) -> None:
    """Raise ConfigurationError if the package of a tool is not installed; `asked`: option that needs it."""
    tool = tool_named(name)
    if tool.package:
        require_package(asked, tool.package, tool.extra, "leave it out")


def make_exporter(name: str, target: SafePath, run_name: str) -> Exporter:
    """Return the exporter of a tool that writes to `target`, a folder that is made here unless it is a file."""
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
    """Return the trials that `events` are about, in the order of their numbers."""
    numbers = {number for event in events if (number := getattr(event, "trial", None)) is not None}
    numbers |= {a.trial for event in events if (a := assignment_of(event, ledger)) is not None}
    return [ledger.trials[number] for number in sorted(numbers)]


def assignment_of(event: ev.Event, ledger: Ledger) -> Assignment | None:
    """Return the assignment that an event is about; None if it is about none."""
    number = getattr(event, "assignment", -1)
    return ledger.assignments[number] if number >= 0 else None


class FirstReports:
    """Epochs of folds that are known: an epoch that is trained again after a crash keeps its first report."""

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
    """Return the value of a parameter for a tool that knows neither None nor lists: these as their JSON."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def results_of(trial: Trial, ledger: Ledger) -> dict[str, Any]:
    """Return what is measured of a trial, by the columns of results.csv; nothing that is not measured."""
    row = row_of(trial, ledger) | {"figure_so_far": trial.figure_so_far, "time_s": time_s(trial)}
    named = {name: row[name] for name in row if name in _RESULTS or name.startswith("o:")}
    found = named | prefixed("m:", last_metrics(trial))
    return {name: value for name, value in found.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class Epoch:
    """Epoch of a trial with its metrics, the figure of merit among them; `epoch/` stands before their names."""

    number: int
    unix_s: float
    values: dict[str, float]


def epochs_of(events: Iterable[ev.Event], ledger: Ledger) -> dict[int, list[Epoch]]:
    """Return the epochs in `events` by the numbers of their trials; with several folds, `fold-0/` begins a name."""
    reports, found = FirstReports(), defaultdict[int, list[Epoch]](list)
    for event in events:
        of = assignment_of(event, ledger)
        if isinstance(event, ev.EpochEnded) and of is not None and reports.is_new(of, event.epoch):
            fold = f"fold-{of.fold}/" * (ledger.identity.n_fold > 1)
            values = {f"{fold}{name}": value for name, value in curves_of(event).items()}
            found[of.trial].append(Epoch(event.epoch, ledger.first_start_unix_s + event.time_s, values))
    return found


def curves_of(event: ev.EpochEnded) -> dict[str, float]:
    """Return the values of an epoch by the names of their curves."""
    figure = {} if event.figure_of_merit is None else {"figure_of_merit": event.figure_of_merit}
    return {f"epoch/{name}": value for name, value in (event.metrics | figure).items()}


def began_at_s(trial: Trial) -> float | None:
    """Return the time at which a trial was first assigned, in seconds of the run; None before."""
    return trial.assignments[0].assigned_at_s if trial.assignments else None
