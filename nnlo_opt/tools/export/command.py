"""The commands `nnlo-opt report` and `nnlo-opt export`, which generate files from a journal."""

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.reporting.page import PAGE_NAME, write_page
from nnlo_opt.app.reporting.results import read_ledger, read_run, write_results
from nnlo_opt.app.reporting.terminal import fitted
from nnlo_opt.app.reporting.words import counted
from nnlo_opt.app.run.options.kinds import FLAG, PATH, or_installed
from nnlo_opt.app.run.options.table import Option
from nnlo_opt.core.base.errors import ConfigurationError, NnloError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.core.trials.run_lock import may_be_at_work
from nnlo_opt.engine.loading import installed
from nnlo_opt.engine.runtime.environment import fit_on_one_thread
from nnlo_opt.engine.search.custom import custom_name
from nnlo_opt.tools.export.exporter import MARK, TOOLS, make_exporter, require, tool_named

# fmt: off
#: options of `nnlo-opt report`
REPORT_OPTIONS = (
    Option("figures", "DIR", PATH, shown="no figures", example="paper", bare="",
        help="also write figures for a paper, as PNG and PDF; without DIR to the folder `figures` of the run"),
    Option("out", "FOLDER", PATH, shown="the run directory", example="their-run",
        help="file (optuna) or folder to write"),
)
#: options of `nnlo-opt export`
EXPORT_OPTIONS = (
    Option("to", "FORMAT", or_installed([*TOOLS], installed.EXPORTERS), example="optuna",
        help="csv or parquet: tables of trials, epochs, folds and assignments; optuna: a study in a journal file; "
             "tensorboard: scalars and HParams; mlflow: a file store; wandb-offline: runs for `wandb sync`"),
    Option("out", "PATH", PATH, shown="a name of the format in the run directory", example="study.log",
        help="file (optuna) or folder to write"),
    Option("overwrite", "", FLAG, default=False,
        help="replace the file, or a folder written by this command"),
)
# fmt: on


def report(parser: Parser, argv: Sequence[str]) -> None:
    """Rewrite results.csv, summary.json and the page report.html of a run from its journal."""
    arguments = parser.values_of_run(argv)
    fit_on_one_thread()
    run, ledger = arguments.run, read_ledger(arguments.run)
    place = run if arguments.out is None else _place(Path(arguments.out), run)
    if not os.access(place, os.W_OK):
        raise ConfigurationError(
            f"The folder of a report must be writable. Received: `{place}`. Name another one by `nnlo-opt report {run} "
            "--out FOLDER`."
        )
    write_results(place, ledger)
    write_page(run, ledger, place)
    print(f"Wrote results.csv, summary.json and {PAGE_NAME} of {counted(len(ledger.trials), 'trial')} to `{place}`.")
    if (folder := arguments.figures) is not None:
        from nnlo_opt.app.reporting.plots import write_figures

        paths = write_figures(ledger, folder := SafePath(Path(folder)) if folder else SafePath(place) / "figures")
        named = ", ".join(path.name[:-4] for path in paths if path.name.endswith(".pdf"))
        text = f"Wrote figures as PNG and PDF to `{folder}`: {named or 'none, because no trial is complete'}."
        print(fitted(text))


def _place(folder: Path, run: Path) -> Path:
    """Create and return the folder of `--out`; ConfigurationError if it is another run, or cannot be created."""
    if (folder / JOURNAL_NAME).exists() and not folder.samefile(run):
        raise ConfigurationError(
            f"A report must not replace the files of another run. Received: `{folder}`, which has a {JOURNAL_NAME}. "
            "Name another folder by `--out`."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"`--out` must be a folder that can be written. Received: `{folder}` ({error.strerror}). Name another one."
        ) from None
    return folder


# ---------------------------------------------------------------- files of other tools


def export(parser: Parser, argv: Sequence[str]) -> None:
    """Export a run to the files of other tools. The run may still be active."""
    arguments = parser.values_of_run(argv)
    if arguments.to is None:
        parser.refuse_without("--to")
    run, tool = arguments.run, tool_named(arguments.to)
    require(arguments.to, f"`--to {arguments.to}`")
    events, ledger = read_run(run)
    target = SafePath.of(Path(arguments.out)) if arguments.out else SafePath(run) / tool.target
    is_mirrored = custom_name(arguments.to) in ledger.settings.mirror and may_be_at_work(run)
    if is_mirrored and Path(str(target)).resolve() == (run / tool.target).resolve():
        raise ConfigurationError(
            f"An export must not replace what `--mirror {arguments.to}` of a run under way writes. Received: "
            f"`{target}`; name another place by `--out`, or wait for the end of the run."
        )
    if target.name == JOURNAL_NAME:
        raise ConfigurationError(
            f"An export must not take the place of a run's journal. Received: `{target}`; name another one by `--out`."
        )
    try:
        _make_room(target, tool.is_file, arguments.overwrite)
        make_exporter(arguments.to, target, run.resolve().name).take(events, ledger)
    except NnloError:
        raise
    except OSError as error:
        raise ConfigurationError(
            f"An export needs a place that it may write to, with enough room. Received: `{target}` "
            f"({error.strerror or error}), which is not complete; name another one by `--out`."
        ) from error
    except Exception as error:  # of the other tool, which may refuse a name
        first = str(error).strip().partition("\n")[0]
        raise NnloError(
            f"`--to {arguments.to}` has failed, so that `{target}` is not complete: {type(error).__name__}: {first}"
        ) from error
    print(f"Wrote {counted(len(ledger.trials), 'trial')} of `{run}` to `{target}`.")
    if tool.shown_by:
        print(f"To look at it:\n    {tool.shown_by.format(shlex.quote(str(target)))}")


def _make_room(target: SafePath, is_file: bool, overwrite: bool) -> None:
    """Remove what an export replaces; ConfigurationError if it may not be replaced."""
    if not target.exists() or (not is_file and target.is_dir() and not target.iterdir()):
        return
    if not overwrite:
        raise ConfigurationError(
            f"An export must not replace anything without `--overwrite`. Received: `{target}`, which exists; "
            "add it, or name another place by `--out`."
        )
    if (target.is_dir() and (target / MARK).exists()) if not is_file else stat.S_ISREG(target.stat().st_mode):
        target.remove()
    else:
        raise ConfigurationError(
            f"`--overwrite` replaces {'a file' if is_file else f'a folder of this command, which has a {MARK}'}. "
            f"Received: `{target}`, which is something else; remove it yourself, or name another place by `--out`."
        )
