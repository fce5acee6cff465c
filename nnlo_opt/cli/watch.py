"""`nnlo-opt watch` with `nnlo-opt status`: a look at a run from any machine that sees its files."""

import signal
import sys
from collections.abc import Sequence

from nnlo_opt.cli.arguments import run_parser
from nnlo_opt.cli.tool import checked_run
from nnlo_opt.errors import EXIT_OK, EXIT_PREEMPTED
from nnlo_opt.reporting.status import RunState
from nnlo_opt.reporting.status_lines import print_status
from nnlo_opt.run.option_kinds import FLAG, TIME
from nnlo_opt.run.option_table import Option
from nnlo_opt.trials.run_lock import LAUNCH_LOCK_NAME, LOCK_NAME

# fmt: off
#: options of `nnlo-opt watch`
WATCH_OPTIONS = (
    Option("interval", "TIME", TIME, default=1.0, example="10", help="time between two looks at the journal"),
)
#: options of `nnlo-opt status`
STATUS_OPTIONS = (
    Option("json", "", FLAG, default=False, help="print all that is known as one JSON object"),
)
# fmt: on


def watch(argv: Sequence[str]) -> int:
    """Show a run until it is over; return 0 if it is finished, 75 if it can be resumed, 130 after Ctrl-C."""
    from nnlo_opt.reporting.watch import watch as show

    what = (
        "Show a run while it runs, from its journal: a page in a terminal, one line for each change in a pipe. Nothing "
        "is written. Exit codes: 0 finished, 75 not finished and no process at work on it, 130 after Ctrl-C."
    )
    arguments = run_parser("watch", WATCH_OPTIONS, what).values(argv)
    if not any((arguments.run / name).exists() for name in (LOCK_NAME, LAUNCH_LOCK_NAME)):  # no start has begun
        checked_run(arguments.run)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which restores the terminal
    try:
        return EXIT_OK if show(arguments.run, arguments.interval) is RunState.FINISHED else EXIT_PREEMPTED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def status(argv: Sequence[str]) -> int:
    """Print the state of a run."""
    what = "Print the state of a run in a few lines, from its journal."
    arguments = run_parser("status", STATUS_OPTIONS, what).values(argv)
    checked_run(arguments.run)
    print_status(arguments.run, as_json=arguments.json)
    return EXIT_OK
