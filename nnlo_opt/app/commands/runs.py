"""The commands `nnlo-opt list` and `nnlo-opt compare` on several runs.

`list` reads finished runs from their reports, `config.json` and `summary.json`, and the journal only if it is newer.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnlo_opt.app.commands.arguments import Parser, checked_run, run_named
from nnlo_opt.app.reporting.comparison import compared
from nnlo_opt.app.reporting.results import read_ledger, summarise
from nnlo_opt.app.reporting.table import Spare, text_table, wrapped
from nnlo_opt.app.reporting.terminal import line_width
from nnlo_opt.app.reporting.words import counted, duration_text, value_text
from nnlo_opt.core.base.errors import ConfigurationError, NnloError
from nnlo_opt.core.base.files import parse_object
from nnlo_opt.core.base.safe_path import MOST_BYTES, SafePath
from nnlo_opt.core.trials.identity import RunIdentity, StartSettings
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME, RUNS
from nnlo_opt.core.trials.run_lock import may_be_at_work
from nnlo_opt.core.trials.run_state import RunState, state_after, state_of
from nnlo_opt.core.trials.trial import TrialState

#: files that show that a folder without a journal was a run
_OF_A_RUN = ("config.json", "summary.json", "trials", "journal.synced")
#: seconds of a unit -> its name
_AGES = {86400: "d", 3600: "h", 60: "min", 1: "s"}
#: longest value in a table, in characters
_MOST_CHARACTERS = 60
#: settings shown in other sections, or derived from others
_ELSEWHERE = {"command_line", "versions", "search_space", "figure_of_merit", "objectives"}


def listing(parser: Parser, argv: Sequence[str]) -> None:
    """Print the runs of a folder, newest first: running, finished, interrupted (ended early, can be resumed) or dead
    (killed, can be resumed).
    """
    parser.add_argument("folder", type=Path, nargs="?", default=Path(RUNS), help=f"folder of runs, default: {RUNS}")
    folder: Path = parser.given(argv)["folder"]
    runs = runs_in(folder)
    found, broken = [], []
    for run in runs:
        try:
            found.append((os.stat(run / JOURNAL_NAME).st_mtime, _row(run)))
        except (OSError, NnloError) as error:
            broken.append(f"`{run.name}` cannot be read: {error}")
    lost = [path for path in _folders(folder) if path not in runs and any((path / n).exists() for n in _OF_A_RUN)]
    broken += [f"`{path.name}` has lost its {JOURNAL_NAME}." for path in lost]
    width, now_s = line_width(), time.time()
    rows = [[*row, _age(now_s - at_s)] for at_s, row in sorted(found, key=lambda item: -item[0])]
    heads = ["run", "program", "model", "state", "trials", "best", "age"]
    if rows:
        print(text_table("", heads, rows, left=True, width=width))
    elif not broken:
        print(f"No runs in `{folder}`.")
    print("\n".join(wrapped(line, width) for line in ["", *broken] if rows or line), end="\n" * bool(broken))


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories in a folder, or the folder if it is one; ConfigurationError if there is none."""
    if (folder / JOURNAL_NAME).exists():
        return [folder]
    return [path for path in _folders(folder) if (path / JOURNAL_NAME).exists()]


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise ConfigurationError(
            f"Runs must be in a folder. Received: `{folder}` ({error.strerror}). Name another one."
        ) from None


def _row(run: Path) -> list[str]:
    """Return the cells of a run; OSError or NnloError if its journal cannot be read."""
    at_work = may_be_at_work(run)
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # then read the journal
        place = SafePath(run)
        if (place / "summary.json").stat().st_mtime_ns >= (place / JOURNAL_NAME).stat().st_mtime_ns:
            files = (parse_object((place / f"{name}.json").read_bytes(MOST_BYTES)) for name in ("config", "summary"))
            return _cells(run, *files, at_work=at_work)
    ledger = read_ledger(run)
    if not ledger.sessions:
        raise ConfigurationError("its journal is empty.")
    return _cells(run, {**ledger.settings.plain, **ledger.identity.plain}, summarise(ledger), at_work=at_work)


def _cells(run: Path, config: dict[str, Any], summary: dict[str, Any], *, at_work: bool) -> list[str]:
    identity, settings = RunIdentity.of(config), StartSettings.of(config)
    program = (settings.command_line or ["-"])[0].removesuffix("Driver")
    n_trials, best = summary["n_trials"], summary["best"]
    n_ended = sum(n_trials[state] for state in ("complete", "failed", "pruned"))
    n_asked = settings.plan.num_iterations
    done = f"{n_ended}/{'?' if n_asked is None else n_asked}" if n_asked != 0 else f"{n_ended}"
    figure = "-" if best is None else f"{best['figure_of_merit']:.6g}"
    state: str = state_after(run, summary["reason"], complete=summary["complete"], at_work=at_work)
    if state == RunState.RUNNING and "jobs" in summary:
        state += f", {counted(summary['jobs']['here'], 'job')}" if summary["jobs"]["here"] else ", no job"
    return [
        run.name,
        program,
        identity.model.name or "-",
        state,
        done,
        figure,
    ]


def _age(seconds: float) -> str:
    """Format an age in its largest unit."""
    unit = next((unit for unit in _AGES if seconds >= unit), 1)
    return f"{max(0, seconds) / unit:.0f} {_AGES[unit]}"


# ---------------------------------------------------------------- differences between runs


def compare(parser: Parser, argv: Sequence[str]) -> None:
    """Print the differences between runs: results, time to a common figure of merit, settings, search spaces, versions,
    commands.
    """
    parser.add_argument("run", type=run_named, nargs="+", metavar="RUN_DIRECTORY", help="two runs or more")
    runs: list[Path] = [checked_run(run) for run in parser.given(argv)["run"]]
    if len(runs) < 2:
        raise ConfigurationError(
            f"`nnlo-opt compare` needs two runs or more. Received: `{runs[0]}` alone; add another."
        )
    at_work, ledgers = [may_be_at_work(run) for run in runs], [read_ledger(run) for run in runs]
    states = [state_of(run, ledger, at_work=at) for run, ledger, at in zip(runs, ledgers, at_work, strict=True)]
    if empty := [str(run) for run, ledger in zip(runs, ledgers, strict=True) if not ledger.sessions]:
        raise ConfigurationError(f"Runs must have begun. Received: `{empty[0]}`, whose journal is empty; leave it out.")
    names, width = [run.resolve().name for run in runs], line_width()
    names = names if len({*names}) == len(names) else [str(run) for run in runs]
    parts = {
        "Results": _results(states, ledgers),
        "Settings that differ": _differing(ledgers, _settings),
        "Search spaces: parameters that differ": _differing(
            ledgers, lambda ledger: {one.name: {**one.plain, "name": None} for one in ledger.identity.parameters}
        ),
        "Versions that differ": _differing(ledgers, lambda ledger: ledger.settings.versions),
    }
    spare = Spare([range(3, len(names) + 1)], "Compare fewer runs at a time.")
    for title, rows in parts.items():
        if rows:
            print(text_table(f"{title}:", ["", *names], rows, left=True, width=width, spare=spare), end="\n\n")
    print("Commands:")
    for name, ledger in zip(names, ledgers, strict=True):
        print(wrapped(f"{name}: {shlex.join(ledger.settings.command_line or ['unknown'])}", width))


def _results(states: Sequence[str], ledgers: Sequence[Ledger]) -> list[list[str]]:
    runs = compared(states, ledgers)
    rows = [
        ["state", *(run["state"] for run in runs)],
        ["figure of merit", *(f"{run['figure_of_merit']}, {run['direction']}" for run in runs)],
        ["best", *("-" if run["best"] is None else f"{run['best']:.6g}" for run in runs)],
        ["best trial", *("-" if run["best"] is None else str(run["best_trial"]) for run in runs)],
        *([state, *(str(run[state]) for run in runs)] for state in TrialState),
        ["time", *(duration_text(run["time_s"]) for run in runs)],
        ["block utilization", *(f"{run['block_utilization'] or 0:.0%}" for run in runs)],
    ]
    if any(run["best_expected_trial"] is not None for run in runs):
        numbers = ("-" if run["best_expected_trial"] is None else str(run["best_expected_trial"]) for run in runs)
        rows.insert(4, ["best expected trial", *numbers])
    if (common := runs[0]["common"]) is not None:
        rows.append([f"time to {common:.6g}", *(duration_text(run["time_to_common_s"]) for run in runs)])
        rows.append([f"trials to {common:.6g}", *(str(run["trials_to_common"]) for run in runs)])
    return [row for row in rows if {*row[1:]} != {"0"}]


def _settings(ledger: Ledger) -> dict[str, Any]:
    """Return dotted name -> setting of a run."""
    settings, identity = ledger.settings, ledger.identity.plain
    plan = {name: value for name, value in settings.plan.plain.items() if name not in identity}
    found = {**settings.plain, "plan": plan, **identity, "n_blocks": ledger.n_blocks}
    return _flat({name: value for name, value in found.items() if name not in _ELSEWHERE})


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return flat


def _differing(ledgers: Sequence[Ledger], of: Callable[[Ledger], Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each name whose values differ: the name, then a text for each run."""
    found = [of(ledger) for ledger in ledgers]
    rows = []
    for name in dict.fromkeys(name for values in found for name in values):
        values = [known.get(name) for known in found]
        if any(value != values[0] for value in values):
            rows.append([name, *map(_text, values)])
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{name} {_text(item)}" for name, item in value.items() if item not in (None, [], {}))
    text = json.dumps(value) if isinstance(value, list) else value_text(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
