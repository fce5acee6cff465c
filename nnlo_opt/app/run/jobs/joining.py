"""A start that shares its run with other jobs: the main thread of world rank 0, and the thread of its job.

The job's thread reads and writes the files of all jobs, and coordinates the search if this job leads. The main thread
does everything of MPI: it passes messages between the ranks of this job and the queues of `Relay`. So a slow file
system delays no rank, and a rank that trains in this process delays no file.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from nnlo_opt.app.reporting.words import counted
from nnlo_opt.app.run.jobs.leading import LeadingSearch, TermSearch
from nnlo_opt.app.run.jobs.shared_run import SharedRun
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.start.begin import JobPlace
from nnlo_opt.app.run.start.driver import Driver
from nnlo_opt.app.run.start.end import Ending
from nnlo_opt.app.run.start.identity import check_same
from nnlo_opt.app.run.start.inquiry import Inquiry
from nnlo_opt.app.run.start.one_start import Start
from nnlo_opt.app.run.start.script_folders import folders_of
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_PREEMPTED, NOTHING_BEGUN, NnloError, OutOfTimeError
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.run_messages import Renumbered
from nnlo_opt.core.comm.transport import wait_until
from nnlo_opt.core.coordinator.ending import grace_times, walltime_times
from nnlo_opt.core.coordinator.instructions import Budget
from nnlo_opt.core.jobs.accepted import checked_order
from nnlo_opt.core.jobs.job import Job
from nnlo_opt.core.jobs.lines import Ordered
from nnlo_opt.core.jobs.liveness import DEFAULT_TIMING, Timing
from nnlo_opt.core.jobs.pace import SLOW_S
from nnlo_opt.core.jobs.relay import Relay
from nnlo_opt.core.trials.identity import StartSettings
from nnlo_opt.core.trials.run_directory import RunDirectory
from nnlo_opt.engine.runtime.process import code_of_user
from nnlo_opt.engine.search.custom import custom_name
from nnlo_opt.engine.search.registry import AUTO

#: most seconds of waiting for the job's thread once this start has to end
CLOSE_S = 5.0
#: fields of a plan and of a budget that a resume may change -> their options
_OF_SEARCH = {
    "hyper_opt": "hyper_opt",
    "num_iterations": "num_iterations",
    "target_objective": "target_objective",
    "max_attempts": "max_attempts",
    "timeout_s": "timeout",
    "n_without_improvement": "stop_after_no_improvement",
    "n_alike_failures": "max_failures",
    "trial_timeout_s": "trial_timeout",
}


class JobThread(threading.Thread):
    """Thread of a job: all of its files, and the coordinator if the job leads.

    Args:
        make_job: creates the job; called in this thread.
        search: the coordinator of this job's terms.
        turn: held while the job works.
        look: called before each step; lets the job leave before time is over, although user code may be running.
        ended: called at the end, in this thread.
    """

    def __init__(
        self,
        make_job: Callable[[], Job],
        search: LeadingSearch,
        turn: threading.RLock,
        look: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(name="job", daemon=True)
        self._make_job, self._search, self._turn = make_job, search, turn
        self._look, self._ended = look, ended
        self._job: Job | None = None
        self._leaves = self._leaves_at_once = False
        self._woken = threading.Event()
        self.error: BaseException | None = None

    def leave(self, *, at_once: bool = False) -> None:
        """Let the job leave the search; `at_once`: even if its teams still work, as this process is about to end."""
        self._leaves, self._leaves_at_once = True, self._leaves_at_once or at_once
        self.wake()

    def wake(self) -> None:
        """Let the job work now, instead of after its pause."""
        self._woken.set()

    @property
    def number(self) -> int:
        """Number of the job; 0 before it has joined."""
        return 0 if self._job is None else self._job.number

    @property
    def expelled_because(self) -> str:
        """Why the coordinator has sent this job away for good; empty if it has not."""
        return "" if self._job is None else self._job.expelled_because

    @property
    def refused_because(self) -> str:
        """Why this job may not obey an order, and so has left; empty if it has obeyed all of them."""
        return "" if self._job is None else self._job.refused_because

    @property
    def is_complete(self) -> bool | None:
        """True if the search is complete, False if it was stopped; None as long as it goes on without this job."""
        return None if self._job is None or self._job.end is None else self._job.end.is_complete

    def run(self) -> None:
        """Let the job work until it has left, or has failed."""
        try:
            with self._turn:
                self._job = job = self._make_job()
            while self._step(job):
                self._woken.wait(job.pause_s)
                self._woken.clear()
        except BaseException as error:
            self.error = error
        finally:
            with self._turn:
                self._search.close()
            self._ended()

    def _step(self, job: Job) -> bool:
        self._look()
        with self._turn:
            if self._leaves:
                job.leave(at_once=self._leaves_at_once)
            goes_on = job.step()
            if job.lead is None:
                self._search.close()
            return goes_on


class JoiningStart(Start):
    """One start of a run that other jobs share, on world rank 0."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._relay = Relay(driver.ranks.transport, driver.topology.teams, driver.clock, driver.context.preemption.ask)
        #: walltime of this job; its times are Unix times
        self._budget = Budget().of_start(driver.options.walltime_s, driver.began_unix_s)
        #: monotonic time after which teams that still work are abandoned; None before this job has to leave
        self._abandons_at_s: float | None = None
        #: numbers of this job's first rank and first team that its ranks know; None before the run is open on them
        self._numbers: tuple[int, int] | None = None
        #: monotonic time of the next attempt to open the run
        self._opens_at_s = 0.0
        self._code: int | None = None
        #: True as long as the main thread passes messages on, or is in a call of user code
        self._is_at_work = True

    def _see_through(self) -> tuple[Path, int]:
        driver, turn = self._driver, threading.RLock()
        findings = Inquiry(driver).findings()
        driver.close()  # only the job that leads needs the process of the search
        self._findings = findings
        self._run = run = SharedRun(driver.options.run)
        self._refuse_another()
        self._search = LeadingSearch(driver, self._beginning, findings, run, turn)
        make_job = partial(
            Job,
            run.files,
            driver.clock,
            self._relay,
            self._search,
            timing=Timing.with_limit(driver.options.join_s or DEFAULT_TIMING.limit_s),
            host=run.host,
            accept=self._order_of(findings),
            n_ranks=driver.topology.world_size,
            n_teams=len(driver.topology.teams),
            n_blocks=driver.topology.n_blocks,
            block_size=driver.options.block_size,
            n_masters=driver.options.n_masters,
            n_processes=driver.options.n_processes,
        )
        self._thread = JobThread(make_job, self._search, turn, self._look_for_end, self._end_if_stuck)
        self._thread.start()
        try:
            while self._thread.is_alive():
                wait_until(self._turn, transport=driver.ranks.transport)
            self._is_at_work = False
            if isinstance(self._thread.error, OSError):
                raise NnloError(
                    f"The files of `{run.shown}/jobs` must remain readable and writable. Received: "
                    f"{self._thread.error}. The search goes on in other jobs; the same command joins it again."
                ) from None
            if self._thread.error is not None:
                raise self._thread.error
        except BaseException:
            self._is_at_work = False
            self._leave_at_once()
            raise
        if not self._relay.is_busy:
            driver.ranks.have_stopped()
        return run.path, self._code_of_end()

    def _order_of(self, findings: Findings) -> Callable[[Ordered, int], Message]:
        """Return the function that takes the message from an order of a term, if this job may obey it."""
        driver, space = self._driver, self._driver.space_of(findings)
        assert space is not None, "jobs share searches only"
        n_fold, n_ranks = driver.options.plan.n_fold, driver.topology.world_size
        return partial(checked_order, space=space, n_fold=n_fold, n_ranks=n_ranks)

    def _code_of_end(self) -> int:
        if self._code is not None:
            return self._code
        if self._numbers is None:
            self._refuse_another()  # which this job did not see when it came
        if why := self._thread.expelled_because:
            raise NnloError(f"The coordinator of `{self._run.shown}` has sent this job away: {why}")
        if why := self._thread.refused_because:
            # Not a wrong request: a job that is started again gets other orders, under another number.
            raise NnloError(
                "A job obeys only orders about folds of its own search, from jobs of its own version. Received in "
                f"`{self._run.shown}/jobs`: {why} The search goes on without this job; give all jobs the same version, "
                "let nobody else write there, and join again by the same command."
            )
        if self._relay.is_busy:
            raise OutOfTimeError("there is no time left to wait for busy ranks: the job ends at once.")
        shown, is_complete = self._run.shown, self._thread.is_complete
        if is_complete is None:
            self._driver.say(f"Job {self._thread.number} has left; `{shown}` goes on in other jobs, or when one joins.")
        else:
            self._driver.say(f"The search of `{shown}` {'is complete' if is_complete else 'was stopped'}.")
        return EXIT_OK if is_complete else EXIT_PREEMPTED

    # ------------------------------------------------------------ while the job is there

    def _turn(self) -> bool:
        """Let ranks and the job's thread hear of each other; return True if there was anything to do."""
        PULSE.ticks += 1
        self._look_for_end()
        numbers = self._relay.numbers
        if numbers is not None and self._numbers is not None and numbers != self._numbers:
            self._renumber(*numbers)
        if numbers is not None and self._numbers is None and not self._open(*numbers):
            return False
        running = self._search.running
        if running is not None and running.coordinator.finished_because and not self._search.is_concluded:
            self._conclude(running)
            return True
        if self._relay.turn():
            if self._relay.has_arrived:
                self._thread.wake()
            return True
        if not self._thread.is_alive():
            return True
        with code_of_user():
            return self._driver.ranks.work()

    def work_within_call(self) -> bool:
        """Pass messages on during a call of user code."""
        if self._relay.turn() and self._relay.has_arrived:
            self._thread.wake()
        return self._thread.error is None

    def _look_for_end(self) -> None:
        """Leave before time is over; either thread may call this."""
        now_s, left_s = time.monotonic(), self._driver.context.preemption.left_s
        if self._abandons_at_s is None:
            unix_s = self._driver.clock.unix_s()
            if left_s is not None:
                stop_at_s, abandon_at_s = grace_times(now_s, left_s)
            elif self._budget.is_over(unix_s):
                stop_at_s, abandon_at_s = (now_s + time_s - unix_s for time_s in walltime_times(self._budget))
            else:
                return
            self._relay.stop_at_s, self._abandons_at_s = stop_at_s, abandon_at_s
            self._thread.leave()
        elif now_s >= self._abandons_at_s:
            self._thread.leave(at_once=True)

    def _end_if_stuck(self) -> None:
        """Make sure that this process ends, once its job has, although a call of user code may never return."""
        timer = threading.Timer(CLOSE_S, self._end_call)
        timer.daemon = True
        timer.start()

    def _end_call(self) -> None:
        time.sleep(1.0)  # if this process was stopped, the main thread may come first now
        if self._is_at_work:
            why = self._thread.expelled_because or self._thread.error or "its time is over"
            line = f"Job {self._thread.number} ends in the middle of a trial: {str(why).rstrip('.')}."
            self._driver.say(line, sys.stderr)
            failed = self._thread.expelled_because or self._thread.error
            os._exit(EXIT_FAILURE if failed else EXIT_PREEMPTED)

    def _open(self, first_rank: int, first_team: int) -> bool:
        """Have the ranks of this job write to the run, under their numbers among those of all jobs.

        Return False as long as the journal cannot be seen, as this job may be none of that search.
        """
        driver, now_s = self._driver, time.monotonic()
        if now_s < self._opens_at_s:
            return False
        self._opens_at_s = now_s + SLOW_S
        seen = self._refuse_another()
        if not seen.ledger.leader:
            return False
        scripts = folders_of(driver.options, seen, driver.say)
        self._beginning.directory = seen
        place = JobPlace(first_rank, first_team, f"job {self._thread.number} on {self._run.host}")
        self._beginning.open_on_ranks(seen, self._findings, scripts, place=place)
        self._numbers = first_rank, first_team
        leader = seen.ledger.leader
        if leader != self._thread.number:
            driver.say(
                f"Job {self._thread.number} brings {counted(driver.topology.n_blocks, 'block')} to the search of "
                f"`{seen.shown}`, which job {leader} coordinates."
            )
            if differing := _differing(driver.options, seen.ledger.settings):
                driver.say(f"The search has the options of job {leader}: {', '.join(differing)}.")
        return True

    def _renumber(self, first_rank: int, first_team: int) -> None:
        """Have the ranks of this job, which has joined anew, name each other by its new numbers."""
        self._numbers = first_rank, first_team
        self._driver.context.first.set(first_rank, first_team)
        self._driver.ranks.tell_all(Renumbered(first_rank=first_rank, first_team=first_team))
        self._driver.say(f"This job was silent for too long: it goes on as job {self._thread.number}.")

    def _refuse_another(self) -> RunDirectory:
        """Return the run as it can be seen; ConfigurationError if it is another one than this command asks for."""
        options = self._driver.options
        seen = RunDirectory(self._run.path, self._run.shown)
        seen.ledger = self._run.known()
        if seen.ledger.sessions:
            identity = self._beginning.identity(self._findings, seen.ledger)
            check_same(seen.ledger.identity, identity, str(seen.shown), options.run)
        return seen

    def _conclude(self, running: TermSearch) -> None:
        """Do everything that comes after the last trial of the search, as this job leads."""
        self._driver.ranks.have_stopped()
        try:
            self._code = Ending(self._driver, running).end()
        except Exception:
            if self._search.running is not running:
                self._code = None
                return  # another job has taken over while this one slept, and does this
            raise
        self._running = running
        self._search.is_concluded = True

    def _leave_at_once(self) -> None:
        """Say that this job has left, so that others need not wait until it counts as gone."""
        self._thread.leave(at_once=True)
        self._thread.join(CLOSE_S)

    def _last_words(self) -> str:
        self._driver.console.hide_bottom()
        if self._beginning.directory is None:
            return NOTHING_BEGUN
        self._leave_at_once()
        return (
            f"Job {self._thread.number} has left `{self._run.shown}`, which goes on in other jobs, or when one joins; "
            "the same command joins it again."
        )


def _differing(options: Options, settings: StartSettings) -> list[str]:
    """Return in words which options of the search are others than those of the job that coordinates."""
    own, known = asdict(options.plan), dict(settings.plan.plain)
    own, known = own | own["budget"], known | known.get("budget", {})
    own["hyper_opt"], known["hyper_opt"] = custom_name(options.search.algorithm), settings.hyper_opt
    return [
        f"`{spelled(option)}` is {known[name]}, not {own[name]}"
        for name, option in _OF_SEARCH.items()
        if name in known and known[name] != own[name] and own[name] != AUTO
    ]
