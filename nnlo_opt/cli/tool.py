"""`nnlo-opt`: what can be done with a run without training anything."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nnlo_opt
from nnlo_opt.errors import EXIT_OK, EXIT_WRONG_REQUEST, ConfigurationError, JournalError
from nnlo_opt.report.lines import outcome
from nnlo_opt.report.results import read_ledger, write_results
from nnlo_opt.report.table import trials_table
from nnlo_opt.trials.run_directory import JOURNAL_NAME


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="nnlo-opt", description="Look at runs of OptimizationDriver.")
    parser.add_argument("--version", action="version", version=f"nnlo_opt {nnlo_opt.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="print the table of trials of a run, from its journal")
    show.add_argument("run", type=Path, metavar="RUN_DIRECTORY")
    report = commands.add_parser("report", help="write results.csv and summary.json of a run anew, from its journal")
    report.add_argument("run", type=Path, metavar="RUN_DIRECTORY")
    arguments = parser.parse_args(argv)
    try:
        if not (arguments.run / JOURNAL_NAME).is_file():
            raise ConfigurationError(
                f"A run directory must hold a {JOURNAL_NAME}. Received: `{arguments.run}`, which does not; "
                "runs are in `checkpoints/`."
            )
        ledger = read_ledger(arguments.run)
        if arguments.command == "report":
            write_results(arguments.run, ledger)
            print(f"Wrote results.csv and summary.json of {len(ledger.trials)} trials to `{arguments.run}`.")
        else:
            print(trials_table(ledger, str(ledger.identity.get("figure_of_merit", "figure of merit"))))
            state = f"complete: {ledger.completed_because}" if ledger.complete else "not complete"
            print(f"\n{outcome(ledger)}; {state}")
        sys.stdout.flush()
    except (ConfigurationError, JournalError) as error:
        print(error, file=sys.stderr)
        return EXIT_WRONG_REQUEST
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has left; Python must not find that out again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(
            f"The run directory must be writable. Received: `{arguments.run}` ({error.strerror or error}).",
            file=sys.stderr,
        )
        return EXIT_WRONG_REQUEST
    return EXIT_OK
