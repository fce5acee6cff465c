"""Last steps of a start, after its last trial: reports, cleanup, `--on-end`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from nnlo_opt.app.reporting.follow import Reporter
from nnlo_opt.app.reporting.page import PAGE_NAME
from nnlo_opt.app.reporting.results import RESULT_NAMES, write_results
from nnlo_opt.core.base.errors import EXIT_FAILURE
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.trials.attempts import forget_others, result_directory
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.manifest import remove_all
from nnlo_opt.core.trials.run_directory import RunDirectory
from nnlo_opt.core.trials.run_state import state_of
from nnlo_opt.core.trials.trial import TrialState
from nnlo_opt.engine.runtime.environment import start_helper, without_mpi

#: minimum seconds for ranks to leave after a search with possibly stuck ranks
LEAVE_S = 60.0
#: seconds that the command of `--on-end` may take
ON_END_S = 60.0


def write_last_reports(
    reporter: Reporter,
    directory: RunDirectory,
    say: Callable[[str, TextIO], None],
    *,
    wait: AbstractContextManager[None] | None = None,
    is_slow: Callable[[str], None] | None = None,
) -> tuple[str, ...]:
    """Write the reports for the last time; return the names of those that are written.

    They can always be rebuilt from the journal.

    Args:
        reporter: writes them, within its time limit.
        directory: the run.
        say: prints a line for the user.
        wait: context for waiting for the reporter; it may end the wait.
        is_slow: called with the reason if the wait takes long.
    """
    is_written = False
    with wait or nullcontext():
        slow = None if is_slow is None else partial(is_slow, f"Writing {PAGE_NAME}")
        is_written = reporter.finish(is_slow=slow)
    if not is_written:
        # The page may have caused the failure: do not try it again in this process.
        try:
            write_results(directory.path, directory.ledger)
        except OSError as error:
            say(
                f"results.csv and summary.json could not be written ({error.strerror or error}): `nnlo-opt report "
                f"{directory.shown}` writes them from the journal.",
                sys.stderr,
            )
            return ()
    if not reporter.has_page:
        say(f"{PAGE_NAME} is not written: `nnlo-opt report {directory.shown}` writes it, or prints why.", sys.stderr)
    return (*[PAGE_NAME] * reporter.has_page, *RESULT_NAMES)


def leave_tables(reporter: Reporter, directory: RunDirectory) -> None:
    """Write the tables here instead of waiting for the reporter, unless it has ended."""
    if reporter.end():
        with suppress(OSError):
            write_results(directory.path, directory.ledger)


def remove_stale_checkpoints(directory: Path, ledger: Ledger) -> None:
    """Remove what ended folds have left: checkpoints that a killed master did not remove, and surplus attempts."""
    for assignment in ledger.assignments:
        PULSE.ticks += 1
        trial = ledger.trials[assignment.trial]
        is_over = trial.state.ended or assignment.fold in trial.folds
        if is_over and ledger.term:
            forget_others(directory, trial, assignment.fold)
        if ledger.identity.data is None:  # an objective's saves of finished folds are its weights
            is_over = trial.state.ended and trial.state is not TrialState.COMPLETE
        if is_over:
            remove_all(result_directory(directory, trial, assignment.fold))


def end_if_stuck(blocks: Collection[int], trial_timeout_s: float, say: Callable[[str, TextIO], None]) -> None:
    """Start a timer that ends the job if ranks of `blocks` are stuck in user code; return at once."""
    if not blocks:
        return

    def leave() -> None:
        say(
            f"Block {' and '.join(map(str, sorted(blocks)))} is stuck in a trial that took too long: the job "
            "ends. Finished trials are in the journal.",
            sys.stderr,
        )
        os._exit(EXIT_FAILURE)

    timer = threading.Timer(max(LEAVE_S, trial_timeout_s), leave)
    timer.daemon = True  # it does not delay the end if all ranks leave
    timer.start()


def run_at_end(
    command: str, directory: RunDirectory, code: int, left_s: float | None, say: Callable[[str, TextIO], None]
) -> None:
    """Run the shell command of `--on-end`, for at most ON_END_S seconds; print a warning if it fails.

    Args:
        code: exit code of the run.
        left_s: remaining seconds of a preempted job; None without a limit.
    """
    ledger = directory.ledger
    state = state_of(directory.path, ledger, at_work=False)
    best = ledger.best()
    facts = {
        "RUN": str(directory.path),
        "STATE": state,
        "CODE": str(code),
        "REASON": ledger.ended_because,
        "TRIALS": str(len(ledger.trials)),
        "BEST_TRIAL": "" if best is None else str(best.number),
        "BEST_FIGURE": "" if best is None else repr(best.figure_of_merit),
        "BEST_POINT": "" if best is None else json.dumps(best.point),
    }
    environ = os.environ | {f"NNLO_OPT_{name}": text for name, text in facts.items()}
    sys.stdout.flush()
    try:
        process = start_helper(["/bin/sh", "-c", command], without_mpi(environ), stdin=subprocess.DEVNULL)
    except OSError as error:
        say(f"`--on-end` could not be started ({error.strerror or error}).", sys.stderr)
        return
    limit_s = ON_END_S if left_s is None else min(ON_END_S, max(1.0, left_s))
    until_s = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < until_s:
        PULSE.ticks += 1
        time.sleep(0.05)
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        say(f"`--on-end` had not ended after {limit_s:.0f} s, and was killed: `{command}`.", sys.stderr)
    elif process.returncode:
        say(f"`--on-end` has failed with code {process.returncode}: `{command}`.", sys.stderr)
