"""`nnlo-opt list`: prints the runs of a folder.

A finished run is known from its reports, `config.json` with `summary.json`; only a run whose journal is newer than
they are has its journal read.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnlo_opt.cli.arguments import Parser
from nnlo_opt.errors import ConfigurationError, NnloError
from nnlo_opt.files import parse_object
from nnlo_opt.reporting.results import read_ledger, summarise
from nnlo_opt.reporting.table import text_table, wrapped
from nnlo_opt.reporting.terminal import line_width
from nnlo_opt.run.option_table import RUNS
from nnlo_opt.safe_path import MOST_BYTES, SafePath
from nnlo_opt.trials.identity import RunIdentity, StartSettings
from nnlo_opt.trials.run_directory import JOURNAL_NAME
from nnlo_opt.trials.run_lock import may_be_at_work
from nnlo_opt.trials.run_state import state_after

#: files by which a folder without a journal shows that it was a run
_OF_A_RUN = ("config.json", "summary.json", "trials", "journal.synced")
#: seconds of a unit -> its name
_AGES = {86400: "d", 3600: "h", 60: "min", 1: "s"}


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Print the runs of a folder, the newest first: running, finished, interrupted (ended early, may be resumed) or
    dead (killed, may be resumed).
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
    """Return the run directories in a folder, or the folder if it is one; ConfigurationError without a folder."""
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
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # then the journal has all of it
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
    asked = "?" if settings.plan.num_iterations is None else settings.plan.num_iterations
    figure = "-" if best is None else f"{best['figure_of_merit']:.6g}"
    state = state_after(run, summary["reason"], complete=summary["complete"], at_work=at_work)
    return [run.name, program, identity.model.name or "-", state, f"{n_ended}/{asked}", figure]


def _age(seconds: float) -> str:
    """Return a time since now in its largest unit."""
    unit = next((unit for unit in _AGES if seconds >= unit), 1)
    return f"{max(0, seconds) / unit:.0f} {_AGES[unit]}"
