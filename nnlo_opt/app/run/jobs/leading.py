"""Coordinator of a run that several jobs share, in each term of this job."""

import threading
from collections.abc import Sequence

from nnlo_opt.app.run.jobs.shared_run import SharedRun
from nnlo_opt.app.run.start.begin import Asked, Beginning
from nnlo_opt.app.run.start.coordinate import RunningSearch
from nnlo_opt.app.run.start.driver import Driver
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.comm.topology import Team
from nnlo_opt.core.comm.transport import Transport
from nnlo_opt.core.jobs import lead as jobs
from nnlo_opt.core.jobs.star import Star
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger


class TermSearch(RunningSearch):
    """Coordinator at work in a term of this job.

    Args:
        star: transport to the ranks of all jobs.
    """

    def __init__(self, driver: Driver, directory: SharedRun, findings: Findings, asked: Asked, star: Star) -> None:
        self._star = star
        super().__init__(driver, directory, findings, asked.search, asked.plan)

    def _reach(self) -> Transport:
        return self._star

    def _look_for_preemption(self) -> None:
        """Do nothing: a job that has to end leaves, and the search goes on in others."""

    @property
    def free_teams(self) -> Sequence[Team]:
        return self._driver.topology.teams  # of this job, as its ranks are numbered in its own world

    def work(self) -> None:
        """Let the coordinator work until there is nothing to do."""
        while not self.coordinator.finished_because and self._step():
            pass


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
        self._star: Star | None = None
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
        return [self._beginning.started(run, self._findings, self._asked, time_s)]

    def step(self, lead: jobs.Lead, reports: list[jobs.Report]) -> None:
        if self.running is None or self._star is None:
            self._star = Star(lead)
            self.running = self._begin(lead, self._star)
        self._star.deliver(reports)
        self.running.work()
        self._star.flush()
        if self.is_concluded:
            lead.end()

    def _begin(self, lead: jobs.Lead, star: Star) -> TermSearch:
        assert self._asked is not None, "a term begins with `opening`"
        run = self._run
        run.lead(lead, self._turn)
        return TermSearch(self._driver, run, self._findings, self._asked, star)

    def close(self) -> None:
        """Stop coordinating; does nothing if this job does not."""
        if self.running is not None:
            self.running.close()
            self._driver.close()
        self.running = self._star = None
