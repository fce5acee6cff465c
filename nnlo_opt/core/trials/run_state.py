"""State of a run: what decides that it is running, finished, interrupted or dead."""

from enum import StrEnum
from pathlib import Path

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import INTERRUPTED_NAME


class RunState(StrEnum):
    """State of a run; its value is the word for people and in JSON."""

    #: no start is in the journal yet
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    #: the last start has said itself that it ends before the search is over: in good order, or after Ctrl-C
    INTERRUPTED = "interrupted"
    #: nobody is at work on the run, which has not said why
    DEAD = "dead"

    @property
    def is_over(self) -> bool:
        """True if nothing more comes without another start."""
        return self not in (RunState.WAITING, RunState.RUNNING)


def state_of(run: Path, ledger: Ledger, *, at_work: bool) -> RunState:
    """Return the state of a run.

    Args:
        run: its directory, which shows whether the last start has heard a signal that ends it at once.
        ledger: its trials.
        at_work: a process may be at work on the run. This is looked up before the journal is read: a run that ends
            between the two would seem to be dead.
    """
    if not ledger.sessions:
        return RunState.WAITING
    return state_after(run, ledger.ended_because, complete=ledger.complete, at_work=at_work)


def state_after(run: Path, reason: str, *, complete: bool, at_work: bool) -> RunState:
    """Return the same of a run that has begun, by the reason for which its last start ended; empty if it has none."""
    if complete:
        return RunState.FINISHED
    if reason or (not at_work and (SafePath(run) / INTERRUPTED_NAME).exists()):
        return RunState.INTERRUPTED
    return RunState.RUNNING if at_work else RunState.DEAD
