"""A running search as seen by its script: callbacks, a progress line, stopping."""

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nnlo_opt.app.api.door import in_python
from nnlo_opt.app.api.run import FrozenTrial, SearchResult
from nnlo_opt.app.reporting.terminal import terminal_width
from nnlo_opt.app.reporting.words import counts_from_0_text
from nnlo_opt.core.base.errors import ConfigurationError, SearchWarning, refuse_forked, shown
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.search.start_points import check_start_points
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.engine.objective.other_names import absence
from nnlo_opt.engine.runtime.launched import is_rank
from nnlo_opt.engine.runtime.process import code_of_user

if TYPE_CHECKING:
    from nnlo_opt.app.reporting.watch import SearchBar

STOPPED = "stopped by `study.stop()`"
#: events by which a search has not ended with the failure before them
_ENDS = (ev.TrialCompleted, ev.TrialFailed, ev.TrialPruned, ev.RunCompleted, ev.RunPreempted)


class Steering:
    """Running search, the first argument of callbacks.

    Args:
        space: the search space.
        grace_s: seconds that running trials get to end when the search is stopped. directory: run directory; None if it
            is not kept.
    """

    def __init__(self, space: Space, grace_s: float, directory: Path | None = None) -> None:
        self._space, self._grace_s, self._directory = space, grace_s, directory
        #: state of the search after the last event
        self._ledger = Ledger()
        #: requests not yet handled by the coordinator
        self._asked: deque[ins.CoordinatorEvent] = deque()
        #: PID of this process; forked children have a copy of the search and must not use it
        self._pid = os.getpid()

    @property
    def result(self) -> SearchResult:
        """Result so far."""
        return SearchResult(self._ledger, self._directory)

    def stop(self) -> None:
        """Stop the search; no new trial begins, and the result has the trials so far.

        Raises:
            ConfigurationError: this process was forked from the searching one.
        """
        self._check_process()
        self._asked.append(ins.Preempt(reason=STOPPED, grace_s=self._grace_s))

    @in_python()
    def enqueue(self, parameters: Mapping[str, Any]) -> None:
        """Try these parameters next; the search completes missing ones.

        Raises:
            ConfigurationError: they are no mapping, or not of the search space, or this process was forked from the
                one with the search.
        """
        self._check_process()
        try:
            point = dict(parameters)
        except (TypeError, ValueError):
            example = f'study.enqueue({{"{self._space.parameters[0].name}": ...}})'
            raise ConfigurationError(
                "`study.enqueue` must be given the names and values of parameters. Received: "
                f"{shown(parameters)}. Write it as `{example}`."
            ) from None
        self._asked.extend(ins.Enqueue(point=point) for point in check_start_points(self._space, [point]))

    def _check_process(self) -> None:
        refuse_forked(self._pid, "A study", f"Hand values back to process {self._pid}, for example by a pipe.")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.result._found}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise absence("study", name, self)

    def _see(self, ledger: Ledger) -> None:
        """Update the state of the search."""
        self._ledger = ledger

    def _requests(self) -> list[ins.CoordinatorEvent]:
        """Return the requests since the last call."""
        return [self._asked.popleft() for _ in range(len(self._asked))]


def say_waiting(what: str) -> None:
    """Print on standard error what a script waits for, because a program may read its output."""
    sys.stderr.write(f"{what} ...\n")
    sys.stderr.flush()


#: function of the search and an ended trial
Callback = Callable[[Steering, FrozenTrial], object]


class SearchView:
    """Shows a search to its script: callbacks after each trial, a warning on the first failure, a progress line.

    Args:
        study: the search.
        callbacks: called on rank 0 after each trial.
        progress: True for a progress line; None: only in a terminal without mpirun, and in a notebook.
        place: file and line of the script, for the warning.
    """

    def __init__(
        self, study: Steering, callbacks: Sequence[Callback], *, progress: bool | None, place: tuple[str, int]
    ) -> None:
        self._study, self._callbacks, self._place = study, callbacks, place
        # A rank's output looks like a terminal, even if mpirun writes to a pipe.
        is_seen = "ipykernel" in sys.modules or (not is_rank() and terminal_width(sys.stdout) is not None)
        self._has_line = is_seen if progress is None else progress
        self._is_silent = progress is False
        #: None before the first event
        self._line: SearchBar | None = None
        #: first failure, until it is known that the search continues; None before it, empty afterwards
        self._failure: str | None = None
        #: True once a warning has told that a trial counts epochs from 0
        self._has_said_count = False

    def observe(self, event: ev.Event, ledger: Ledger) -> None:
        """Show an event."""
        if isinstance(event, _ENDS) and self._failure:
            warnings.warn_explicit(self._failure, SearchWarning, *self._place)
            self._failure = ""
        if isinstance(event, ev.EpochEnded) and event.counts_from_0 and not self._has_said_count:
            self._has_said_count = True
            said = counts_from_0_text(ledger.assignments[event.assignment].trial).capitalize()
            warnings.warn_explicit(f"{said}.", SearchWarning, *self._place)
        if isinstance(event, ev.TrialFailed) and self._failure is None:
            self._failure = f"Trial {event.trial} has failed, and the search continues: {event.reason}"
        if self._has_line:
            from nnlo_opt.app.reporting.watch import SearchBar

            self._line = self._line or SearchBar()
            self._line.show(ledger, event.time_s)
        if isinstance(event, ev.TrialCompleted | ev.TrialFailed | ev.TrialPruned):
            self._study._see(ledger)
            for callback in self._callbacks:
                with code_of_user():
                    callback(self._study, FrozenTrial.of(ledger.trials[event.trial], ledger))

    def warn(self, sentence: str) -> None:
        """Warn the caller of the search."""
        warnings.warn_explicit(sentence, SearchWarning, *self._place)

    def wait_for(self, what: str) -> None:
        """Show what the search waits for after its trials have ended."""
        if self._line is not None:
            self._line.wait_for(what)
        elif not self._is_silent:
            say_waiting(what)

    def close(self) -> None:
        """Finish the line, leaving it as it is."""
        if self._line is not None:
            self._line.close()
