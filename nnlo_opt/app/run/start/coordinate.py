"""Second part of a start: the coordinator's loop until the search is over."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nnlo_opt.app.reporting.follow import Reporter
from nnlo_opt.app.reporting.status_lines import bottom_line
from nnlo_opt.app.run.start.driver import Driver
from nnlo_opt.app.run.start.inbox import Inbox
from nnlo_opt.app.run.start.script_folders import changed_text
from nnlo_opt.app.run.start.serving_ranks import ASKED, PREEMPTED
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.comm.topology import Team
from nnlo_opt.core.comm.transport import Transport, wait_until
from nnlo_opt.core.coordinator.coordinator import Coordinator, CoordinatorSetup, Search
from nnlo_opt.core.coordinator.instructions import JobsChanged, LastEnd, SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.trials import unrecorded
from nnlo_opt.core.trials.deaths import first_by_team, read_notes, remove_notes
from nnlo_opt.core.trials.events import AssignmentFailed, Event, TrialFailed
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunDirectory
from nnlo_opt.engine.runtime.process import code_of_user

#: seconds for running trials to end after a failure ends the search
LONG_S = 1e7
#: reason for the end of a search that the user has interrupted
INTERRUPTED = "interrupted"


class RunningSearch:
    """Open run with a working coordinator; creating it sends the first assignments.

    Args:
        driver: driver of the start.
        directory: directory of the run.
        findings: facts about model and data.
        search: suggests the points.
        plan: plan of the search.
    """

    def __init__(
        self, driver: Driver, directory: RunDirectory, findings: Findings, search: Search, plan: SearchPlan
    ) -> None:
        self.directory, self.findings = directory, findings
        self._driver = driver
        self._host, self._ranks = driver.host, driver.ranks
        self._preemption, self._timeline = driver.context.preemption, driver.context.timeline
        self._asked_because = PREEMPTED if driver.context.exit_code_file is None else ASKED
        #: error of the coordinator during a call of user code; raised after that call
        self._raised: Exception | None = None
        #: description of the failed trial that ends the search; empty without one
        self._failure = ""
        #: traceback of the last failure; empty if it was not an exception in user code
        self._traceback = ""
        options, say = driver.options, driver.say
        state = self._state(plan)
        self._inbox = inbox = Inbox(directory.path, driver.space_of(findings), directory.ledger, options.grace_s, say)
        self.coordinator = coordinator = Coordinator(
            CoordinatorSetup(
                state=state,
                journal=directory.journal,
                ranks=self._reach(),
                search=search,
                clock=self._clock(),
                observers=[*self._host.listeners(partial(driver.lines, state)), inbox, self],
                on_preemption=self._preemption.ask,
                on_shared=lambda changed: say(changed_text(changed)),
                requests=lambda: [*inbox(), *self._host.requests()],
                on_declined=inbox.decline,
                jobs=self._jobs_changed,
                expel=self._expel,
            )
        )
        self._begin()
        ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
        driver.console.show_bottom(lambda n: bottom_line(state.ledger, coordinator.now_s, n, ascii_only=ascii_only))
        #: None if the run is temporary
        self.reporter: Reporter | None = None
        if not options.run.is_temporary:
            inbox.start()
            self.reporter = Reporter(directory.path)
        #: mirrors for other tools
        term, start = directory.ledger.term, driver.context.mirrors.start
        self.mirrors = [start(directory.path, tool, term) for tool in options.mirror]

    def _state(self, plan: SearchPlan) -> CoordinatorState:
        """Return the state machine that decides."""
        return CoordinatorState(plan, self._driver.topology, self.directory.ledger, self._driver.pruner)

    def _reach(self) -> Transport:
        """Return the transport to all ranks."""
        return self._ranks.transport

    def _clock(self) -> Clock:
        """Return the clock that the journal's times are read from."""
        return self._driver.clock

    def _jobs_changed(self) -> JobsChanged | None:
        """Return None: no other job shares the run."""
        return None

    def _expel(self, job: int, why: str) -> None:
        """Do nothing: no other job shares the run."""

    def _begin(self) -> None:
        """Send the first assignments."""
        self._look_for_preemption()
        self.coordinator.begin(last_end(self.directory.path), unrecorded.read(self.directory.path))
        unrecorded.forget(self.directory.path)

    def _look_for_preemption(self) -> None:
        """End this start if it has been preempted."""
        if (left_s := self._preemption.left_s) is not None:
            self.coordinator.preempt(self._asked_because, left_s)

    def coordinate(self) -> None:
        """Run until the search is over; TrialError if it has ended with a failure."""
        while not self.coordinator.finished_because:
            # Restart the wait after every message: its answer may come at once.
            wait_until(self.turn, transport=self._ranks.transport)
        if self._failure:
            self._ranks.have_stopped()
            raise self._failed()

    def turn(self) -> bool:
        """Let the coordinator work, or else the rank of this process; return True if there was anything to do."""
        if self._raised is not None:
            raise self._raised
        if self._host.is_interrupted():
            self.coordinator.preempt(INTERRUPTED, 0.0)
        try:
            # The rank of this process works only while the coordinator has nothing to do.
            with code_of_user():
                return self._step() or self._ranks.work()
        except KeyboardInterrupt:
            if not self._host.takes_interrupt():
                raise
            return True

    def work_within_call(self) -> bool:
        """Let the coordinator work during a call of user code, without raising its errors there.

        Return False if it has failed.
        """
        try:
            self._step()
        except Exception as error:
            self._raised = self._raised or error
        return self._raised is None

    def observe(self, event: Event, ledger: Ledger) -> None:
        """Record a failure that ends the search; raise TrialError at once if no other rank can be working."""
        if isinstance(event, AssignmentFailed):
            self._traceback = event.traceback
        if not isinstance(event, TrialFailed) or self._failure or self._host.catches(ledger, self._traceback):
            return
        self._failure = f"trial {event.trial} has failed: {event.reason}"
        if self._ranks.can_leave_work:
            raise self._failed()

    def _failed(self) -> TrialError:
        """Return the error for the failed trial that ends the search."""
        error = TrialError(self._failure)
        if self._traceback and self._traceback not in self._failure:
            error.add_note(self._traceback)
        return error

    def _step(self) -> bool:
        """Let the coordinator work; return True if there was anything to do or the search is over."""
        PULSE.ticks += 1
        self._look_for_preemption()
        if self._failure:
            self.coordinator.preempt(self._failure, LONG_S)  # also ends running trials
        if self.coordinator.finished_because:
            return True
        since = self._timeline.now()
        if stepped := self.coordinator.step():
            self._timeline.add("step", since, track="coordinator", category="coordinator")
            self._timeline.flush()
        return stepped

    @property
    def free_teams(self) -> Sequence[Team]:
        """Teams that can save the best model, once all trials have ended."""
        return self.coordinator.membership.responsive or self._driver.topology.teams[:1]

    def close(self) -> None:
        """Release the run directory."""
        self._inbox.close()
        if self.reporter is not None:
            self._host.leave(self.reporter, self.directory)
        self.directory.close()


def last_end(run: Path) -> LastEnd:
    """Return how the last start ended, and remove its notes before this one begins."""
    deaths = read_notes(run)
    is_unexplained = bool(deaths) and all(death.world_rank is None for death in deaths)
    remove_notes(run)
    return LastEnd(died=first_by_team(deaths), unexplained=is_unexplained)
