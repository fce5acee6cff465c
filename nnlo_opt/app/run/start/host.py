"""Host of a run: the process in which it is started."""

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
    """Wish of the user that a search ends with what it has; a second one raises KeyboardInterrupt.

    The first one raises KeyboardInterrupt only in code of the user: anywhere else it could leave half a line in the
    journal. The search looks for it instead.
    """

    def __init__(self) -> None:
        #: number of wishes so far
        self.n_asked = 0
        self._is_in_call = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take Ctrl-C within the block. Only the main thread can, and only if nobody else takes it."""
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
        """Let an interruption end the block, which is a call of the user's code."""
        self._is_in_call = True
        try:
            if self.n_asked:  # since the search has looked for it
                raise KeyboardInterrupt
            yield
        except KeyboardInterrupt:
            self.n_asked = max(1, self.n_asked)  # the code may have raised it by itself
            raise
        finally:
            self._is_in_call = False

    @contextmanager
    def ending_wait(self) -> Iterator[None]:
        """Let an interruption end the block, in which something is waited for, and nothing else."""
        self._is_in_call = True
        try:
            yield
        except KeyboardInterrupt:
            return
        finally:
            self._is_in_call = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let an interruption wait for the end of the block, our code within a call; a decorator, too."""
        n_before, self._is_in_call = self.n_asked, False
        try:
            yield
        finally:
            self._is_in_call = True
        if self.n_asked > n_before:
            raise KeyboardInterrupt


class Host(Frozen):
    """Process in which a run is started; here a command, which prints lines and may end the process."""

    #: name of the program; empty: the driver's
    program: str = ""
    #: search space, if no process of the search loads it; None in a training
    space: Space | None = None
    #: description of model and data; None: a trainer rank is asked
    findings: Findings | None = None
    #: the best model is written to the run directory
    saves_model: bool = True
    #: returns how many trials may run at a time, out of as many as there are blocks
    n_wanted: Callable[[int], int] = int
    #: returns requests of a script to its search since the last call
    requests: Callable[[], Sequence[CoordinatorEvent]] = tuple

    def console(self, *, quiet: bool) -> Console:
        """Return what prints lines for a person."""
        return Console(quiet=quiet)

    def greet(self, say: Callable[[], None], warning: str = "") -> None:
        """Let `say` print what is about to happen; `warning`: the sentence of it that a script must not miss."""
        say()

    def listeners(self, lines: Callable[[], Observer]) -> Sequence[Observer]:
        """Return what hears every event after the ledger knows it; `lines`: makes what prints events."""
        return [lines()]

    def catches(self, ledger: Ledger, traceback: str) -> bool:
        """Return True if the search goes on after a failure; `traceback`: of the user's exception, or empty."""
        return True

    def is_interrupted(self) -> bool:
        """Return True if the user wishes that the search ends with what it has."""
        return False

    def takes_interrupt(self) -> bool:
        """Return True if a KeyboardInterrupt that came up is such a wish, and ends nothing else."""
        return False

    def end_if_stuck(self, blocks: Collection[int], trial_timeout_s: float, say: Callable[..., None]) -> None:
        """Make sure that this process ends although ranks of `blocks` may be stuck."""
        last_steps.end_if_stuck(blocks, trial_timeout_s, say)

    def write_reports(self, reporter: Reporter, directory: RunDirectory, say: Callable[..., None]) -> tuple[str, ...]:
        """Write the reports for the last time; return the names of those that are written."""
        return last_steps.write_last_reports(reporter, directory, say)

    def conclude(self, say: Callable[[], int]) -> int:
        """Let `say` print how the run has ended; return the exit code."""
        return say()

    def leave(self, reporter: Reporter, directory: RunDirectory) -> None:
        """Leave a reporter, which outlives a command and writes the tables if it was not waited for."""


class ScriptHost(Host):
    """A user's own script, which goes on after the run; errors are raised."""

    saves_model: bool = False
    #: if False, the first trial that fails ends the search; None: only if no trial has succeeded before
    catch: bool | None = True
    #: wish of the user that the search ends; None: Ctrl-C ends the process
    interruption: Interruption | None = None
    #: hear every event after the ledger knows it
    observers: Sequence[Observer] = ()
    #: warns the user; None: nobody is warned
    warn: Callable[[str], None] | None = None
    #: is told what the script waits for at its end, if that takes a while; None: nobody is
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
        last_steps.leave_tables(reporter, directory)  # now, as the script may resume the run
