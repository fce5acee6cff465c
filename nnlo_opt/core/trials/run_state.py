"""State of a run: running, finished, interrupted or dead."""

from enum import StrEnum
from pathlib import Path

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import INTERRUPTED_NAME
from nnlo_opt.core.trials.sharing import was_left


class RunState(StrEnum):
    """State of a run; its value is shown to users and used in JSON."""

    #: the journal has no start yet
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    #: the last start recorded that it ended before the search was complete: preempted, or by Ctrl-C; or all jobs left
    INTERRUPTED = "interrupted"
    #: no process is running, and the journal does not tell why
    DEAD = "dead"

    @property
    def is_over(self) -> bool:
        """True if nothing more happens without another start."""
        return self not in (RunState.WAITING, RunState.RUNNING)


def state_of(run: Path, ledger: Ledger, *, at_work: bool) -> RunState:
    """Return the state of a run.

    Args:
        run: run directory, which shows whether the last start was interrupted by a signal.
        ledger: trials of the run.
        at_work: True if a process may be working on the run. Determine this before reading the journal: a run that ends
            in between would seem dead.
    """
    if not ledger.sessions:
        return RunState.WAITING
    return state_after(run, ledger.ended_because, complete=ledger.complete, at_work=at_work)


def state_after(run: Path, reason: str, *, complete: bool, at_work: bool) -> RunState:
    """Like `state_of` for a run that has begun, given the reason why its last start ended (empty if none)."""
    if complete:
        return RunState.FINISHED
    if reason or (not at_work and ((SafePath(run) / INTERRUPTED_NAME).exists() or was_left(run))):
        return RunState.INTERRUPTED
    return RunState.RUNNING if at_work else RunState.DEAD
