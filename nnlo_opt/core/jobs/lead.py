"""The coordinator's view of jobs: it reads their logs, records who comes and goes, and orders.

Everything that decides is in the journal before anybody hears of it. A job gets orders once it follows this term: then
it works on nothing, and whatever it has reported about assignments of earlier terms has been read. Assignments that it
still holds then are lost. The same holds for a job that leaves, or that is expelled because its log has not grown.
"""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.messages import AssignmentMessage, Message
from nnlo_opt.core.jobs.accepted import checked_report
from nnlo_opt.core.jobs.files import MOST_JOURNAL_BYTES, SharedFiles, journal_name, log_name, orders_name, term_name
from nnlo_opt.core.jobs.lines import (
    JOB_LINES,
    Admitted,
    Beat,
    Expelled,
    Follows,
    JobLine,
    Joined,
    Left,
    LogReader,
    LogWriter,
    Order,
    Ordered,
    Reported,
)
from nnlo_opt.core.jobs.liveness import Timing, Watch
from nnlo_opt.core.jobs.pace import Pace
from nnlo_opt.core.jobs.roster import Roster
from nnlo_opt.core.jobs.succession import Copy, begin
from nnlo_opt.core.trials import events as ev

logger = logging.getLogger(__name__)


#: why an assignment was lost, and whether that counts against its trial
Cause = tuple[str, bool]
#: with a job that left without a word, and with one that let go or left
VANISHED: Cause = ("its job has vanished", True)
LET_GO: Cause = ("its job let it go", False)


@dataclass(frozen=True, slots=True)
class Report:
    """Message of a job that counts."""

    job: int
    rank: int
    message: Message


class Search(Protocol):
    """What coordinates the search while this job leads; a base class, for the last two methods."""

    def opening(self, events: list[ev.Event], time_s: float) -> list[ev.Event]:
        """Return the events of a start of the run, after `events`; the first is a `RunStarted`."""

    def asks_for_more(self, is_complete: bool) -> bool:
        """Return True if this job goes on with a search that was over when it came, complete or stopped."""

    def step(self, lead: "Lead", reports: list[Report]) -> None:
        """Record the consequences of `lead.take_news()` and of `reports`, all before this returns; then send orders."""

    def refuses(self, job: ev.JobJoined) -> str:
        """Return why a job that wants to join cannot work for this search; empty if it can."""
        return ""

    def cause_of(self, job: int, team: int) -> Cause | None:
        """Return why a team of a job that is gone has lost what it worked on; None if nothing is known of it."""
        return None


@dataclass(slots=True)
class _Observed:
    """Log of a job, as far as it was read."""

    reader: LogReader[JobLine]
    watch: Watch
    pace: Pace
    #: lines that were read and not taken in
    waiting: deque[JobLine] = field(default_factory=deque)
    #: term that the job follows at this point of its log
    term: int = 0


class Lead:
    """Term of this job as coordinator; `begin` comes first.

    Args:
        files: shared files.
        clock: this machine's clock.
        timing: times of jobs.
        term: the term.
        job: number of this job.
        copy: journal of the term before.
        search: what coordinates.
        silent: jobs that count as gone already, and how they have been watched.
    """

    def __init__(
        self,
        files: SharedFiles,
        clock: Clock,
        timing: Timing,
        term: int,
        job: int,
        copy: Copy,
        search: Search,
        silent: Mapping[int, Watch] = MappingProxyType({}),
    ) -> None:
        self._files, self._clock, self._timing, self._search = files, clock, timing, search
        self.term, self.job = term, job
        events = copy.content.events
        first_unix_s = next((e.unix_s - e.time_s for e in events if isinstance(e, ev.RunStarted)), clock.unix_s())
        last_s = max((event.time_s for event in events), default=0.0)
        #: seconds of the run at second 0 of the monotonic clock; times never go back, whatever the clocks say
        self._zero_s = max(clock.unix_s() - first_unix_s, last_s) - clock.monotonic_s()
        self._copy, self._silent = copy, dict(silent)
        self._logs: dict[int, _Observed] = {}
        self._orders: dict[int, LogWriter] = {}
        #: jobs that follow this term, and so get orders
        self.present: set[int] = set()
        #: events of the start with which this term has begun
        self.opening: list[ev.Event] = []
        #: events that this object has recorded by itself since `take_news`
        self._news: list[ev.Event] = []
        #: True once the search is over, and once a later term is known to exist
        self.is_sealed = self.is_overtaken = False

    def begin(self) -> bool:
        """Begin the term; False if a later one does not allow it any more."""
        now_s = self.now_s
        began = ev.TermBegan(time_s=now_s, term=self.term, job=self.job)
        events = begin(self._files, self._copy, began, self._search.opening(self._copy.content.events, now_s))
        if events is None:
            return False
        self.opening = events[len(self._copy.content.events) :]
        self._journal = self._files.journal(journal_name(self.term))
        #: who works on what
        self.roster = Roster(events)
        for gone in [job.number for job in self.roster.jobs.values() if job.expelled]:
            self._order(gone, Expelled())
        return True

    @property
    def now_s(self) -> float:
        """Seconds since the first start of the run."""
        return self._zero_s + self._clock.monotonic_s()

    def step(self) -> list[Report]:
        """Read the logs that are due; return the reports that count.

        Their consequences must be recorded before the next call.
        """
        self._files.publish(journal_name(self.term))
        while self._files.read(log_name(number := len(self._logs) + 1)) is not None:
            reader = LogReader(self._files, log_name(number), JOB_LINES)
            self._logs[number] = _Observed(reader, self._silent.pop(number, Watch(self._timing)), Pace(self._timing))
        now_s = self._clock.monotonic_s()
        due = [job for job, log in self._logs.items() if log.waiting or not log.pace.left_s(now_s)]
        left = self.roster.left
        return [report for job in due if job not in left for report in self._read(job)]

    def record(self, *events: ev.Event, durable: bool = True) -> None:
        """Write events to the journal, as `Journal.append`. OSError: it cannot be written."""
        self._journal.append(events, durable=durable)
        for event in events:
            self.roster.apply(event)

    def take_news(self) -> list[ev.Event]:
        """Return the events that `step` and `expel` have recorded since the last call, in order.

        They come before all that the search records from now on.
        """
        news, self._news = self._news, []
        return news

    def expel(self, job: int, reason: str, *, counts: bool) -> None:
        """End all that a job works on, and tell it why; it may not return.

        Args:
            job: number of the job; without effect if it is not here.
            reason: cause, for people.
            counts: True if the loss counts against its trials.
        """
        if job in self.roster.here:
            self._expel(job, (reason, counts), Expelled(reason=reason))

    def send(self, job: int, *orders: Ordered) -> None:
        """Send messages at once to ranks of a job that is present; what they depend on has been recorded."""
        if job not in self.present:
            raise ProtocolError(f"Job {job} does not follow term {self.term}.")
        self._order(job, *orders)

    def end(self) -> bool:
        """Close the search, whose end is recorded; False if a later term decides, so that nothing may depend on it.

        The file of the next term seals the journal: a term that begins later copies the recorded end.
        """
        self.is_sealed = self._files.create(term_name(self.term + 1), b"%d\n" % self.job)
        self.is_overtaken = not self.is_sealed
        return self.is_sealed

    def close(self) -> int:
        """Write no more; return the length of the journal."""
        self._journal.close()
        return len(self._files.read(journal_name(self.term), most=MOST_JOURNAL_BYTES) or b"")

    def _order(self, job: int, *orders: Order) -> None:
        if job not in self._orders:
            self._orders[job] = LogWriter(self._files, orders_name(job, self.term))
        self._orders[job].append(*orders)

    def _read(self, job: int) -> list[Report]:
        log, now_s = self._logs[job], self._clock.monotonic_s()
        lines = log.reader.new()
        log.waiting += lines
        log.watch.look(log.reader.n_lines, now_s)
        log.pace.look(now_s, found=not all(isinstance(line, Beat) for line in lines))
        reports: list[Report] = []
        # What a job has reported is recorded before anything that it holds is called lost.
        while log.waiting and not (reports and isinstance(log.waiting[0], Follows | Left)):
            self._take(job, log, log.waiting.popleft(), reports)
        if log.watch.is_silent and not log.waiting and not reports and job in self.roster.here:
            self._expel(job, VANISHED, Expelled())
        return reports

    def _meet(self, job: int, line: Joined) -> None:
        """Let a job join, once, unless the search refuses it."""
        if job in self.roster.jobs:
            return
        joined = ev.JobJoined(
            time_s=self.now_s,
            job=job,
            host=line.host,
            n_ranks=line.n_ranks,
            n_teams=line.n_teams,
            n_blocks=line.n_blocks,
            block_size=line.block_size,
            n_masters=line.n_masters,
            n_processes=line.n_processes,
        )
        if why := self._search.refuses(joined):
            logger.warning("refused job %d of %s: %s", job, line.host, why)
            self._order(job, Expelled(reason=why))
        else:
            self._note(joined)

    def _take(self, job: int, log: _Observed, line: JobLine, reports: list[Report]) -> None:
        match line:
            case Joined():
                self._meet(job, line)
            case _ if job not in self.roster.here:
                pass
            case Reported():
                self._hear(job, log.term, line, reports)
            case Follows():
                log.term = line.term
                self._note(*self._lost(job, LET_GO, line.term))
                if line.term == self.term:
                    self.present.add(job)
                    own = self.roster.jobs[job]
                    self._order(job, Admitted(first_rank=own.ranks.start, first_team=own.teams.start))
                else:
                    self.present.discard(job)
            case Left():
                # MPI ends the whole job if a rank has died: the goodbye excuses no trial that kills its ranks.
                self.present.discard(job)
                self._note(*self._gone(job, LET_GO), ev.JobLeft(time_s=self.now_s, job=job))

    def _hear(self, job: int, term: int, line: Reported, reports: list[Report]) -> None:
        try:
            message = checked_report(line)
        except ProtocolError as error:
            logger.warning("ignored a line of job %d: %s", job, error)
            return
        if not isinstance(message, AssignmentMessage) or self.roster.holds(job, term, message.assignment):
            reports.append(Report(job, line.rank, message))

    def _expel(self, job: int, cause: Cause, order: Expelled) -> None:
        why = order.reason or "it was silent for too long"
        left = ev.JobLeft(time_s=self.now_s, job=job, reason=why, expelled=True)
        self.present.discard(job)
        self._note(*(self._lost(job, cause) if order.reason else self._gone(job, cause)), left)
        self._order(job, order)

    def _note(self, *events: ev.Event) -> None:
        """Record events, and tell the search."""
        if events:
            self.record(*events)
            self._news += events

    def _gone(self, job: int, cause: Cause) -> list[ev.Event]:
        """Return the losses of a job that is gone, because of `cause` where the search knows none."""
        teams = {n: self.roster.held[n].team for n in self.roster.of(job)}
        return [self._loss(n, self._search.cause_of(job, team) or cause) for n, team in teams.items()]

    def _lost(self, job: int, cause: Cause, before: int | None = None) -> list[ev.Event]:
        return [self._loss(n, cause) for n in self.roster.of(job, before)]

    def _loss(self, assignment: int, cause: Cause) -> ev.Event:
        return ev.AssignmentLost(time_s=self.now_s, assignment=assignment, reason=cause[0], counts=cause[1])
