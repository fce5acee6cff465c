"""Host of a run: the process in which it is started."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.coordinator.coordinator import Observer
from nnlo_opt.core.coordinator.instructions import CoordinatorEvent
from nnlo_opt.core.space.space import Space


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
    """Process in which a run is started; here a command, which owns the process."""

    #: name of the program; empty: the driver's
    program: str = ""
    #: lines are printed, search and reports have processes of their own, and the process may be ended by a stuck rank
    owns_process: bool = True
    #: the best model is written to the run directory
    saves_model: bool = True
    #: if False, the first trial that fails ends the search; None: only if no trial has succeeded before
    catch: bool | None = True
    #: wish of the user that the search ends; None: Ctrl-C ends the process
    interruption: Interruption | None = None
    #: search space, if no process of the search loads it; None in a training
    space: Space | None = None
    #: returns how many trials may run at a time, out of as many as there are blocks
    n_wanted: Callable[[int], int] = int
    #: description of model and data; None: a trainer rank is asked
    findings: Findings | None = None
    #: hear every event after the ledger knows it
    observers: Sequence[Observer] = ()
    #: warns the user; None: a line does
    warn: Callable[[str], None] | None = None
    #: is told what a script waits for at its end, if that takes a while; None: nobody is
    waits_for: Callable[[str], None] | None = None
    #: returns requests of a script to its search since the last call
    requests: Callable[[], Sequence[CoordinatorEvent]] = tuple

    def ending_wait(self) -> AbstractContextManager[None]:
        """Return a context in which Ctrl-C ends the wait, and nothing else, if this process takes Ctrl-C."""
        return nullcontext() if self.interruption is None else self.interruption.ending_wait()


class ScriptHost(Host):
    """A user's own script, which goes on after the run; errors are raised."""

    owns_process: bool = False
    saves_model: bool = False
