"""`nnlo-opt report`: writes the reports of a run anew, from its journal."""

from collections.abc import Sequence
from pathlib import Path

from nnlo_opt.cli.arguments import Parser, checked_run
from nnlo_opt.reporting.lines import counted
from nnlo_opt.reporting.page import PAGE_NAME, write_page
from nnlo_opt.reporting.results import read_ledger, write_results
from nnlo_opt.reporting.terminal import fitted
from nnlo_opt.run.option_kinds import PATH
from nnlo_opt.run.option_table import Option
from nnlo_opt.runtime.environment import fit_on_one_thread
from nnlo_opt.safe_path import SafePath

# fmt: off
#: options of `nnlo-opt report`
OPTIONS = (
    Option("figures", "DIR", PATH, shown="no figures", example="paper", bare="",
        help="also write figures for a paper, as PNG and PDF; without DIR into the folder `figures` of the run"),
)
# fmt: on


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Write results.csv, summary.json and the page report.html of a run anew, from its journal."""
    arguments = parser.values_of_run(argv)
    run = checked_run(arguments.run)
    fit_on_one_thread()
    ledger = read_ledger(run)
    write_results(run, ledger)
    write_page(run, ledger)
    print(f"Wrote results.csv, summary.json and {PAGE_NAME} of {counted(len(ledger.trials), 'trial')} to `{run}`.")
    if (folder := arguments.figures) is not None:
        from nnlo_opt.reporting.plots import write_figures

        paths = write_figures(ledger, folder := SafePath(Path(folder)) if folder else SafePath(run) / "figures")
        named = ", ".join(path.name[:-4] for path in paths if path.name.endswith(".pdf"))
        text = f"Wrote figures as PNG and PDF to `{folder}`: {named or 'none, as no trial is complete'}."
        print(fitted(text))
