"""A run that several jobs share, in a folder, made by the code of jobs with a coordinator of few trials."""

import os
import time

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.job import Job
from nnlo_opt.core.jobs.lines import Ordered
from nnlo_opt.core.jobs.liveness import Timing
from nnlo_opt.core.trials import events as ev
from tests.helpers.manual_clock import ManualClock
from tests.helpers.many_jobs import FewTrials
from tests.helpers.recorded import TRIALS, started
from tests.helpers.steps import fold_finished

#: seconds that a fold takes
WORK_S = 4.0


class Team:
    """The only team of a job."""

    def __init__(self, clock):
        self._clock, self._reports, self._work = clock, [], None

    @property
    def is_busy(self):
        return self._work is not None or bool(self._reports)

    def admit(self, first_rank, first_team):
        pass

    def take(self, term, rank, message):
        self._work = message, self._clock.now_s + WORK_S
        self._reports.append((0, msg.FoldStarted(assignment=message.assignment)))

    def reports(self):
        if self._work is not None and self._clock.now_s >= self._work[1]:
            order, self._work = self._work[0], None
            self._reports.append((0, fold_finished(order.assignment, 0.5 / (1 + order.trial))))
        reports, self._reports = self._reports, []
        return reports

    def let_go(self):
        if self._work is not None:
            self._reports.append((0, msg.FoldStopped(assignment=self._work[0].assignment)))
            self._work = None

    def drop(self):
        self._work, self._reports = None, []


class Coordinator(FewTrials):
    """Coordinator of a search with points and numbered blocks."""

    def __init__(self, clock):
        super().__init__(len(TRIALS))
        self._clock = clock

    def opening(self, events, time_s):
        opening = super().opening(events, time_s)
        start = started(n_fold=1).replaced(time_s=time_s, unix_s=self._clock.unix_s(), settings=SETTINGS)
        return [start, *(_with_point(event) for event in opening[1:])]

    def step(self, lead, reports):
        began = [report for report in reports if isinstance(report.message, msg.FoldStarted)]
        numbers = [report.message.assignment for report in began]
        lead.record(*(ev.FoldBegan(time_s=lead.now_s, assignment=number) for number in numbers))
        super().step(lead, [report for report in reports if report not in began])

    def _assign(self, lead, job, trial):
        number, team = self._attempts.total(), lead.roster.jobs[job].teams[0]
        self._attempts[trial] += 1
        what = {"assignment": number, "trial": trial, "fold": 0, "attempt": self._attempts[trial]}
        lead.record(ev.FoldAssigned(time_s=lead.now_s, block=1 + team, team=team, n_ranks=2, **what))
        order = msg.RunFold(point=TRIALS[trial][0], term=lead.term, **what)
        lead._order(job, Ordered(rank=0, message=order.to_json()))


SETTINGS = {"plan": {"num_iterations": len(TRIALS)}, "hyper_opt": "random", "command_line": ["OptimizationDriver"]}


def _with_point(event):
    return event.replaced(point=TRIALS[event.trial][0]) if isinstance(event, ev.TrialSuggested) else event


class SharedRun:
    """Jobs of one run, in turns; job J is on the machine node-J.

    Args:
        run: run directory.
    """

    def __init__(self, run):
        self.run = run
        self.clock = ManualClock(time.time() - 100.0)
        #: number -> job that takes turns
        self.jobs = {}
        self._n_jobs = 0

    def join(self):
        """Start a job."""
        self._n_jobs += 1
        files, search = FolderFiles(self.run), Coordinator(self.clock)
        timing, about = Timing(beat_s=2.0, limit_s=6.0, settle_s=1.0), {"n_ranks": 2, "n_teams": 1}
        job = Job(files, self.clock, Team(self.clock), search, timing=timing, host=f"node-{self._n_jobs}", **about)
        self.jobs[job.number] = job

    def turns(self, n):
        """Let each job take turns, one a second."""
        for _ in range(n):
            for job in [*self.jobs.values()]:
                job.step()
            self.clock.advance(1.0)
        return self


def shared_run(run, *, ends=False):
    """Make a run in which job 1 led and has left, job 2 leads, job 3 has vanished, and job 4 has come last.

    `ends`: the search is complete, an hour ago.
    """
    shared = SharedRun(run)
    shared.join()
    shared.turns(3)
    shared.join()
    shared.join()
    shared.turns(3)
    del shared.jobs[3]
    shared.turns(8)
    shared.jobs[1].leave()
    shared.turns(4)
    shared.join()
    shared.turns(60 if ends else 3)
    for log in run.glob("jobs/*.log") if ends else ():
        os.utime(log, times=(time.time() - 3600.0,) * 2)
    return run
