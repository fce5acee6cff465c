"""Host of a run: the process that starts it, a command or a user's script."""

import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from nnlo_opt.app.reporting.follow import Reporter
from nnlo_opt.app.run.afterwards import last_steps
from nnlo_opt.app.run.start.console import Console
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import EXIT_OK
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.coordinator.coordinator import Observer
from nnlo_opt.core.coordinator.instructions import CoordinatorEvent
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunDirectory


class Interruption:
    """A user's request to end a search early and keep its results; a second one raises KeyboardInterrupt.

    The first one raises KeyboardInterrupt only in user code: anywhere else it could leave half a line in the journal.
    Our own code checks for it instead.
    """

    def __init__(self) -> None:
        #: number of requests so far
        self.n_asked = 0
        self._is_in_call = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle Ctrl-C in the block; only possible in the main thread, and without another handler."""
        before, is_main = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()
        if is_ours := is_main and before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._take)
        try:
            yield
        finally:
            if is_ours:
                signal.signal(signal.SIGINT, before)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self.n_asked += 1
        if self._is_in_call or self.n_asked > 1:
            raise KeyboardInterrupt

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Let an interruption end the block, a call of user code."""
        self._is_in_call = True
        try:
            if self.n_asked:  # since the last check
                raise KeyboardInterrupt
            yield
        except KeyboardInterrupt:
            self.n_asked = max(1, self.n_asked)  # user code may have raised it itself
            raise
        finally:
            self._is_in_call = False

    @contextmanager
    def ending_wait(self) -> Iterator[None]:
        """Let an interruption end the wait in the block, but nothing else."""
        self._is_in_call = True
        try:
            yield
        except KeyboardInterrupt:
            return
        finally:
            self._is_in_call = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer interruptions to the end of the block, for our code inside a user's call; also a decorator."""
        n_before, self._is_in_call = self.n_asked, False
        try:
            yield
        finally:
            self._is_in_call = True
        if self.n_asked > n_before:
            raise KeyboardInterrupt


class Host(Frozen):
    """Process that starts a run; this base class is a command, which prints lines and may end the process."""

    #: name of the program; empty: the driver's
    program: str = ""
    #: search space, if the host has it; None to load it, and in a training
    space: Space | None = None
    #: description of model and data; None to ask a trainer rank
    findings: Findings | None = None
    #: True to write the best model to the run directory
    saves_model: bool = True
    #: returns how many trials may run at a time, given the number of blocks
    n_wanted: Callable[[int], int] = int
    #: returns a script's requests to its search since the last call
    requests: Callable[[], Sequence[CoordinatorEvent]] = tuple

    def console(self, *, quiet: bool) -> Console:
        """Return the console for the user."""
        return Console(quiet=quiet)

    def greet(self, say: Callable[[], None], warning: str = "") -> None:
        """Let `say` print what is about to happen; `warning`: the part of it that a script must show."""
        say()

    def listeners(self, lines: Callable[[], Observer]) -> Sequence[Observer]:
        """Return observers of every event, called after the ledger; `lines`: creates the one that prints."""
        return [lines()]

    def catches(self, ledger: Ledger, traceback: str) -> bool:
        """Return True if the search continues after a failure; `traceback`: of the user's exception, or empty."""
        return True

    def is_interrupted(self) -> bool:
        """Return True if the user has asked to end the search."""
        return False

    def takes_interrupt(self) -> bool:
        """Return True if a KeyboardInterrupt that was raised is such a request, and must not propagate."""
        return False

    def end_if_stuck(self, blocks: Collection[int], trial_timeout_s: float, say: Callable[..., None]) -> None:
        """Make sure that this process ends even if ranks of `blocks` are stuck."""
        last_steps.end_if_stuck(blocks, trial_timeout_s, say)

    def write_reports(self, reporter: Reporter, directory: RunDirectory, say: Callable[..., None]) -> tuple[str, ...]:
        """Write the reports for the last time; return the names of those written."""
        return last_steps.write_last_reports(reporter, directory, say)

    def conclude(self, say: Callable[[], int]) -> int:
        """Let `say` print how the run has ended; return the exit code."""
        return say()

    def leave(self, reporter: Reporter, directory: RunDirectory) -> None:
        """Stop waiting for a reporter; it continues after the end of a command, and writes the tables."""


class ScriptHost(Host):
    """A user's script, which continues after the run; errors are raised."""

    saves_model: bool = False
    #: False: the first failed trial ends the search; None: only if no trial has succeeded before
    catch: bool | None = True
    #: the user's request to end the search; None: Ctrl-C ends the process
    interruption: Interruption | None = None
    #: observers of every event, called after the ledger
    observers: Sequence[Observer] = ()
    #: warns the user; None: no warnings
    warn: Callable[[str], None] | None = None
    #: called with the reason if the script has to wait long at its end; None: not called
    waits_for: Callable[[str], None] | None = None

    def console(self, *, quiet: bool) -> Console:
        return Console(prints=False, quiet=quiet, warn=self.warn)

    def greet(self, say: Callable[[], None], warning: str = "") -> None:
        if warning and self.warn is not None:
            self.warn(warning)

    def listeners(self, lines: Callable[[], Observer]) -> Sequence[Observer]:
        return self.observers

    def catches(self, ledger: Ledger, traceback: str) -> bool:
        if self.catch is not None:
            return self.catch
        n_trials = ledger.n_by_state()
        return bool(n_trials["complete"] or n_trials["pruned"] or not traceback)

    def is_interrupted(self) -> bool:
        return self.interruption is not None and self.interruption.n_asked > 0

    def takes_interrupt(self) -> bool:
        return self.interruption is not None and self.interruption.n_asked == 1

    def end_if_stuck(self, blocks: Collection[int], trial_timeout_s: float, say: Callable[..., None]) -> None: ...

    def write_reports(self, reporter: Reporter, directory: RunDirectory, say: Callable[..., None]) -> tuple[str, ...]:
        wait = None if self.interruption is None else self.interruption.ending_wait()
        return last_steps.write_last_reports(reporter, directory, say, wait=wait, is_slow=self.waits_for)

    def conclude(self, say: Callable[[], int]) -> int:
        return EXIT_OK

    def leave(self, reporter: Reporter, directory: RunDirectory) -> None:
        last_steps.leave_tables(reporter, directory)  # now, because the script may resume the run
