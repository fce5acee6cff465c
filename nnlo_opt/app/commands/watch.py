"""The commands `nnlo-opt show`, `watch` and `status`, for any machine with access to the run's files."""

import argparse
import signal
import sys
from collections.abc import Sequence

from nnlo_opt.app.analysis.frames import sorted_by
from nnlo_opt.app.commands.arguments import Parser, checked_run
from nnlo_opt.app.reporting.results import read_run
from nnlo_opt.app.reporting.status_lines import print_status
from nnlo_opt.app.reporting.table import MOST_ROWS, pareto_table, ranked, trial_page, trials_table
from nnlo_opt.app.reporting.terminal import line_width
from nnlo_opt.app.reporting.words import counted, figure_text, outcome
from nnlo_opt.app.run.options.kinds import FLAG, TEXT, TIME, whole
from nnlo_opt.app.run.options.table import Option
from nnlo_opt.core.base.errors import EXIT_OK, EXIT_PREEMPTED, ConfigurationError
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.core.trials.run_lock import may_be_at_work
from nnlo_opt.core.trials.run_state import RunState
from nnlo_opt.core.trials.trial import Trial

# fmt: off
#: options of `nnlo-opt show`
SHOW_OPTIONS = (
    Option("top", "N", whole(unit="trials"), shown=f"all, or {MOST_ROWS} of a longer search", example="5",
        help="show the N best trials, best first"),
    Option("all", "", FLAG, default=False, help="show all trials"),
    Option("sort", "COLUMN", TEXT, shown="the number of the trial", example="train_s",
        help="sort by a column of results.csv or a parameter, lowest value first; figure_of_merit: best first"),
    Option("trial", "N", whole(0), shown="the table of trials", example="7",
        help="print all details of trial N: parameters, metrics, assignments, epochs, logs, traceback"),
)
#: options of `nnlo-opt watch`
WATCH_OPTIONS = (
    Option("interval", "TIME", TIME, default=1.0, example="10", help="time between two updates"),
)
#: options of `nnlo-opt status`
STATUS_OPTIONS = (
    Option("json", "", FLAG, default=False, help="print everything as one JSON object"),
)
# fmt: on


def watch(parser: Parser, argv: Sequence[str]) -> int:
    """Follow a run by reading its journal: a live page in a terminal, one line per change in a pipe. Nothing is
    written. Exit codes: 0 finished, 75 not finished but no longer running, 130 after Ctrl-C.
    """
    from nnlo_opt.app.reporting.watch import watch as watched

    arguments = parser.values_of_run(argv, has_begun=False)
    run = checked_run(arguments.run) if any(arguments.run.glob(f"*/{JOURNAL_NAME}")) else arguments.run
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which restores the terminal
    try:
        state = watched(run, arguments.interval)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if state is RunState.WAITING:
        checked_run(run)
    return EXIT_OK if state is RunState.FINISHED else EXIT_PREEMPTED


def status(parser: Parser, argv: Sequence[str]) -> None:
    """Print the state of a run in a few lines, from its journal."""
    arguments = parser.values_of_run(argv)
    print_status(arguments.run, as_json=arguments.json)


def show(parser: Parser, argv: Sequence[str]) -> None:
    """Print the trials of a run, from its journal."""
    arguments = parser.values_of_run(argv)
    run, width = arguments.run, line_width()
    events, ledger = read_run(run)
    if arguments.trial is not None:
        if arguments.trial >= len(ledger.trials):
            raise ConfigurationError(
                f"`--trial` must be the number of a trial. Received: {arguments.trial}, but `{run}` has "
                f"{counted(len(ledger.trials), 'trial')}, numbered from 0."
            )
        print(trial_page(run, events, ledger.trials[arguments.trial], width))
        return
    chosen = _chosen(ledger, arguments)
    if figure := ledger.identity.figure_of_merit:
        print(figure_text(figure, ledger.direction))
    print(trials_table(ledger, width, chosen))
    if ledger.objectives:
        print(f"\n{pareto_table(ledger, width)}")
    reason = ledger.ended_because
    state = "Finished" if ledger.complete else "Not finished"
    print(f"\n{state}{f' ({reason})' * bool(reason)}: {outcome(ledger, at_work=may_be_at_work(run))}.")


def _chosen(ledger: Ledger, arguments: argparse.Namespace) -> list[Trial] | None:
    """Return the trials to show, in order; None for the default."""
    if arguments.top is None and arguments.sort is None and not arguments.all:
        return None
    chosen = ledger.trials if arguments.top is None else ranked(ledger)[: arguments.top]
    if arguments.sort is None:
        return chosen
    by_column = ranked(ledger) if arguments.sort == "figure_of_merit" else sorted_by(ledger, arguments.sort)
    numbers = {trial.number for trial in chosen}
    return [trial for trial in by_column if trial.number in numbers]
