"""Coordinator of a run that several jobs share, in each term of this job."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from nnlo_opt.app.run.jobs.shared_run import SharedRun
from nnlo_opt.app.run.start.begin import Asked, Beginning
from nnlo_opt.app.run.start.coordinate import RunningSearch, last_end
from nnlo_opt.app.run.start.driver import Driver
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.comm.topology import Team
from nnlo_opt.core.comm.transport import Transport
from nnlo_opt.core.coordinator.instructions import JobsChanged, LastEnd, SearchPlan
from nnlo_opt.core.coordinator.shared_state import SharedCoordinatorState, why_refused
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.jobs import lead as jobs
from nnlo_opt.core.jobs.star import Star
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials import unrecorded
from nnlo_opt.core.trials.deaths import first_by_team, read_notes
from nnlo_opt.core.trials.ledger import Ledger

#: why a team has lost its work if a rank of another team of its job has died, and whether that counts against a trial
ANOTHER_DIED: jobs.Cause = ("a rank of another block of its job has died", False)


@dataclass(frozen=True, slots=True)
class TermClock:
    """Clock by which a term's coordinator has the same time of the run as its `Lead`.

    This machine's clock may be behind that of the coordinator before, and times of the journal must not go back.
    """

    clock: Clock
    lead: jobs.Lead
    ledger: Ledger

    def monotonic_s(self) -> float:
        """Return seconds of this machine's monotonic clock."""
        return self.clock.monotonic_s()

    def unix_s(self) -> float:
        """Return the Unix time that the time of the run stands for."""
        return self.ledger.first_start_unix_s + self.lead.now_s


class TermSearch(RunningSearch):
    """Coordinator at work in a term of this job.

    Args:
        lead: the term.
        alone: how the last start ended, if it shared the run with no other job; else None.
    """

    def __init__(
        self,
        driver: Driver,
        directory: SharedRun,
        findings: Findings,
        asked: Asked,
        lead: jobs.Lead,
        alone: LastEnd | None,
    ) -> None:
        self._lead, self._star, self._alone = lead, Star(lead), alone
        #: jobs that followed this term at the last call of `_jobs_changed`
        self._present: frozenset[int] = frozenset()
        super().__init__(driver, directory, findings, asked.search, asked.plan)

    def _state(self, plan: SearchPlan) -> CoordinatorState:
        every_rank_trains = self._driver.options.training.rule.averages_every_batch
        ledger, pruner = self.directory.ledger, self._driver.pruner
        return SharedCoordinatorState(plan, ledger, pruner, every_rank_trains=every_rank_trains)

    def _reach(self) -> Transport:
        return self._star

    def _clock(self) -> Clock:
        return TermClock(self._driver.clock, self._lead, self.directory.ledger)

    def _look_for_preemption(self) -> None:
        """Do nothing: a job that has to end leaves, and the search goes on in others."""

    def _begin(self) -> None:
        if self._alone is None:
            self.coordinator.begin()
        else:
            self.coordinator.begin(self._alone, unrecorded.read(self.directory.path))
            unrecorded.forget(self.directory.path)

    def _expel(self, job: int, why: str) -> None:
        self._lead.expel(job, why, counts=False)

    def _jobs_changed(self) -> JobsChanged | None:
        news, present = self._lead.take_news(), frozenset(self._lead.present)
        if not news and present == self._present:
            return None
        self._present = present
        return JobsChanged(recorded=tuple(news), present=present)

    @property
    def free_teams(self) -> Sequence[Team]:
        return self._driver.topology.teams  # of this job, as its ranks are numbered in its own world

    def take(self, reports: list[jobs.Report]) -> None:
        """Take in what jobs have done, until there is nothing more to decide."""
        if self.coordinator.finished_because:
            return
        self._star.deliver(reports)
        while not self.coordinator.finished_because and self._step():
            pass
        self._star.flush()

    def close(self) -> None:
        """Release the run, and let the mirrors of this term end: the next one has its own."""
        for mirror in self.mirrors:
            mirror.ask()
        super().close()


class LeadingSearch(jobs.Search):
    """Coordinates the search in each term of this job; called by the job's thread.

    Args:
        driver: driver of the start.
        beginning: checks what the command asks for.
        findings: facts about model and data.
        run: the run.
        turn: lock of the job's thread.
    """

    def __init__(
        self, driver: Driver, beginning: Beginning, findings: Findings, run: SharedRun, turn: threading.RLock
    ) -> None:
        self._driver, self._beginning, self._findings, self._run = driver, beginning, findings, run
        self._turn = turn
        self._asked: Asked | None = None
        #: for a term before which nobody shared the run, how its last start ended
        self._alone: LastEnd | None = None
        #: coordinator of this job's term; None if it does not lead
        self.running: TermSearch | None = None
        #: True once everything is done that comes after the last trial
        self.is_concluded = False

    def asks_for_more(self, is_complete: bool) -> bool:
        request = self._driver.options.run
        return not is_complete or request.n_done(self._run.known()) < request.n_asked

    def opening(self, events: list[ev.Event], time_s: float) -> list[ev.Event]:
        run, driver = self._run, self._driver
        run.ledger = Ledger(events)
        driver.load_space()  # starts the process of the search
        self._asked = self._beginning.prepare(run, self._findings)
        # Notes of that start go before any job can write one: its teams had the numbers that the first job has now.
        self._alone = None if any(isinstance(event, ev.TermBegan) for event in events) else last_end(run.path)
        return [self._beginning.started(run, self._findings, self._asked, time_s)]

    def refuses(self, job: ev.JobJoined) -> str:
        options = self._driver.options
        return why_refused(job, options.plan.n_fold, every_rank_trains=options.training.rule.averages_every_batch)

    def cause_of(self, job: int, team: int) -> jobs.Cause | None:
        died = first_by_team(read_notes(self._run.path))
        if team in died:
            return died[team], True
        return ANOTHER_DIED if died.keys() & set(self._run.ledger.jobs[job].teams) else None

    def step(self, lead: jobs.Lead, reports: list[jobs.Report]) -> None:
        if self.running is None:
            self.running = self._begin(lead)
        self.running.take(reports)
        if self.is_concluded:
            lead.end()

    def _begin(self, lead: jobs.Lead) -> TermSearch:
        assert self._asked is not None, "a term begins with `opening`"
        run = self._run
        run.lead(lead, self._turn)
        for event in lead.opening:
            run.ledger.apply(event)
            if isinstance(event, ev.RunStarted):
                run.describe(event, self._driver.say)
        return TermSearch(self._driver, run, self._findings, self._asked, lead, self._alone)

    def close(self) -> None:
        """Stop coordinating; does nothing if this job does not."""
        if self.running is not None:
            self._driver.console.hide_bottom()
            self.running.close()
            self._driver.close()
        self.running = None
