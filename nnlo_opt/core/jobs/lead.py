"""The coordinator's view of jobs: it reads their logs, records who comes and goes, and orders.

Everything that decides is in the journal before anybody hears of it. A job gets orders once it follows this term: then
it works on nothing, and whatever it has reported about assignments of earlier terms has been read. Assignments that it
still holds then are lost. The same holds for a job that leaves, or that is expelled because its log has not grown.
"""

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.messages import AssignmentMessage, Message
from nnlo_opt.core.jobs.accepted import checked_report
from nnlo_opt.core.jobs.files import MOST_JOURNAL_BYTES, SharedFiles, journal_name, log_name, orders_name, term_name
from nnlo_opt.core.jobs.lines import (
    JOB_LINES,
    Expelled,
    Follows,
    JobLine,
    Joined,
    Left,
    LogReader,
    LogWriter,
    Ordered,
    Reported,
)
from nnlo_opt.core.jobs.liveness import Timing, Watch
from nnlo_opt.core.jobs.roster import Roster
from nnlo_opt.core.jobs.succession import Copy, begin
from nnlo_opt.core.trials import events as ev

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """Message of a job that counts."""

    job: int
    rank: int
    message: Message


class Search(Protocol):
    """What coordinates the search while this job leads."""

    def opening(self, events: list[ev.Event], time_s: float) -> list[ev.Event]:
        """Return the events of a start of the run, after `events`; the first is a `RunStarted`."""

    def step(self, lead: "Lead", reports: list[Report]) -> None:
        """Record the consequences of `reports`, all before this returns; then send orders."""


@dataclass(slots=True)
class _Observed:
    """Log of a job, as far as it was read."""

    reader: LogReader[JobLine]
    watch: Watch
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
    """

    def __init__(
        self, files: SharedFiles, clock: Clock, timing: Timing, term: int, job: int, copy: Copy, search: Search
    ) -> None:
        self._files, self._clock, self._timing, self._search = files, clock, timing, search
        self.term, self.job = term, job
        events = copy.content.events
        first_unix_s = next((e.unix_s - e.time_s for e in events if isinstance(e, ev.RunStarted)), clock.unix_s())
        last_s = max((event.time_s for event in events), default=0.0)
        #: seconds of the run at second 0 of the monotonic clock; times never go back, whatever the clocks say
        self._zero_s = max(clock.unix_s() - first_unix_s, last_s) - clock.monotonic_s()
        self._copy = copy
        self._logs: dict[int, _Observed] = {}
        self._orders: dict[int, LogWriter] = {}
        #: jobs that follow this term, and so get orders
        self.present: set[int] = set()
        #: True once the search is over, and once a later term is known to exist
        self.is_sealed = self.is_overtaken = False

    def begin(self) -> bool:
        """Begin the term; False if a later one does not allow it any more."""
        began = ev.TermBegan(time_s=self.now_s, term=self.term, job=self.job)
        events = begin(self._files, self._copy, began, self._search.opening(self._copy.content.events, self.now_s))
        if events is None:
            return False
        self._journal = self._files.journal(journal_name(self.term))
        #: who works on what
        self.roster = Roster(events)
        for gone in sorted(self.roster.expelled):
            self._order(gone, Expelled())
        return True

    @property
    def now_s(self) -> float:
        """Seconds since the first start of the run."""
        return self._zero_s + self._clock.monotonic_s()

    def step(self) -> list[Report]:
        """Read all logs; return the reports that count. Their consequences must be recorded before the next call."""
        self._files.publish(journal_name(self.term))
        while self._files.read(log_name(number := len(self._logs) + 1)) is not None:
            reader = LogReader(self._files, log_name(number), JOB_LINES)
            self._logs[number] = _Observed(reader, Watch(self._timing))
        return [report for job in self._logs if job not in self.roster.left for report in self._read(job)]

    def record(self, *events: ev.Event) -> None:
        """Write events to the journal. OSError: it cannot be written."""
        self._journal.append(events)
        for event in events:
            self.roster.apply(event)

    def send(self, job: int, message: Message, rank: int = 0) -> None:
        """Send a message to a rank of a job that is present; what it depends on has been recorded."""
        if job not in self.present:
            raise ProtocolError(f"Job {job} does not follow term {self.term}.")
        self._order(job, Ordered(rank=rank, message=message.to_json()))

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

    def _order(self, job: int, *orders: Ordered | Expelled) -> None:
        if job not in self._orders:
            self._orders[job] = LogWriter(self._files, orders_name(job, self.term))
        self._orders[job].append(*orders)

    def _read(self, job: int) -> list[Report]:
        log, now_s = self._logs[job], self._clock.monotonic_s()
        log.waiting += log.reader.new()
        log.watch.look(log.reader.n_lines, now_s)
        reports: list[Report] = []
        # What a job has reported is recorded before anything that it holds is called lost.
        while log.waiting and not (reports and isinstance(log.waiting[0], Follows | Left)):
            self._take(job, log, log.waiting.popleft(), reports)
        if log.watch.is_silent and not log.waiting and not reports and job in self.roster.here:
            self._expel(job)
        return reports

    def _take(self, job: int, log: _Observed, line: JobLine, reports: list[Report]) -> None:
        match line:
            case Joined() if job not in self.roster.here:
                self.record(
                    ev.JobJoined(time_s=self.now_s, job=job, host=line.host, n_ranks=line.n_ranks, n_teams=line.n_teams)
                )
            case Reported():
                self._hear(job, log.term, line, reports)
            case Follows():
                log.term = line.term
                self._let_go(job, line.term)
                if line.term == self.term:
                    self.present.add(job)
                else:
                    self.present.discard(job)
            case Left():
                self._let_go(job)
                self.present.discard(job)
                self.record(ev.JobLeft(time_s=self.now_s, job=job))

    def _hear(self, job: int, term: int, line: Reported, reports: list[Report]) -> None:
        try:
            message = checked_report(line)
        except ProtocolError as error:
            logger.warning("ignored a line of job %d: %s", job, error)
            return
        if not isinstance(message, AssignmentMessage) or self.roster.holds(job, term, message.assignment):
            reports.append(Report(job, line.rank, message))

    def _let_go(self, job: int, before: int | None = None) -> None:
        if lost := self._lost(job, "its job let it go", before):
            self.record(*lost)

    def _expel(self, job: int) -> None:
        lost = self._lost(job, "its job has vanished", counts=True)
        left = ev.JobLeft(time_s=self.now_s, job=job, reason="it was silent for too long", expelled=True)
        self.present.discard(job)
        self.record(*lost, left)
        self._order(job, Expelled())

    def _lost(self, job: int, reason: str, before: int | None = None, *, counts: bool = False) -> list[ev.Event]:
        numbers = self.roster.of(job, before)
        return [ev.AssignmentLost(time_s=self.now_s, assignment=n, reason=reason, counts=counts) for n in numbers]
