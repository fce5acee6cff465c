"""A job of a search: it joins, follows the greatest term, and takes the next one when the coordinator is gone.

`step` is called by rank 0 again and again, after `pause_s` seconds. The process may be stopped between any two
operations on files, for any time, and continue: whatever it does then is in files that nobody counts any more.
"""

from collections.abc import Callable
from typing import Protocol

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.codec import from_json
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.jobs.files import SharedFiles, journal_name, log_name, orders_name
from nnlo_opt.core.jobs.lead import Lead, Search
from nnlo_opt.core.jobs.lines import (
    JOB_LINES,
    ORDERS,
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
    Resigned,
    encoded,
)
from nnlo_opt.core.jobs.liveness import DEFAULT_TIMING, Timing, Watch
from nnlo_opt.core.jobs.pace import Pace
from nnlo_opt.core.jobs.roster import Roster
from nnlo_opt.core.jobs.succession import Candidate, Copy, newest_journal
from nnlo_opt.core.jobs.terms import Terms


class Workplace(Protocol):
    """The teams of a job."""

    @property
    def is_busy(self) -> bool:
        """True while a team works on an assignment, or has a message that `reports` has not returned."""

    def admit(self, first_rank: int, first_team: int) -> None:
        """Note the numbers of the first rank and the first team of this job; called before any order."""

    def take(self, term: int, rank: int, message: Message) -> None:
        """Pass an order of a term to a rank."""

    def reports(self) -> list[tuple[int, Message]]:
        """Return what ranks have sent since the last call."""

    def let_go(self) -> None:
        """End all assignments soon, by a result or a checkpoint; called again and again until it is not busy."""

    def drop(self) -> None:
        """Abandon all assignments: nothing about them counts, and nothing of them may be reported."""


class Job:
    """This job.

    Args:
        files: shared files.
        clock: this machine's clock.
        workplace: the teams of this job.
        search: what coordinates if this job leads.
        timing: times of jobs.
        host: name of the machine.
        accept: returns the message of an order of a term; ProtocolError if this job may not obey it.
        shape: how its ranks form teams, as in `Joined`; by default one rank is one team.
    """

    def __init__(
        self,
        files: SharedFiles,
        clock: Clock,
        workplace: Workplace,
        search: Search,
        *,
        timing: Timing = DEFAULT_TIMING,
        host: str = "",
        accept: Callable[[Ordered, int], Message] = lambda order, term: from_json(order.message),
        **shape: int,
    ) -> None:
        self._files, self._clock, self._workplace, self._search = files, clock, workplace, search
        self._timing, self._accept = timing, accept
        self._host, self._shape = host, {"n_ranks": 1, "n_teams": 1, **shape}
        self._terms = Terms(files)
        #: number of this job
        self.number = 0
        self._candidate: Candidate | None = None
        #: this job's term as coordinator; None if it does not coordinate
        self.lead: Lead | None = None
        #: True if the job is to leave
        self._leaving = self._leaving_at_once = False
        self.is_over = False
        #: how the search has ended, if this job has left because of that
        self.end: Roster | None = None
        #: term whose end does not concern this job, as it has come later and asks for more; 0 for none
        self._past = 0
        #: the owner of the term before this job's own, if that job counts as gone
        self._silent: dict[int, Watch] = {}
        #: why this job had to end and may not return; empty if it may
        self.expelled_because = ""
        #: why this job may not obey an order, and so has to leave; empty if it has obeyed all of them
        self.refused_because = ""
        self._pace = Pace(timing)
        #: True if this step has written or read a message
        self._has_message = False
        self._join()
        roster = self._sealed(newest_journal(files, self._terms.greatest))
        if roster is not None and search.asks_for_more(roster.is_complete):
            self._past = roster.term

    def step(self) -> bool:
        """Do what is to be done now; return False once the job has left.

        After an exception, such as an OSError, the job counts as one that was killed: call `step` no more.
        """
        if not self.is_over:
            self._has_message = False
            self._beat()
            self._look()
            if self._leaving:
                self._resign()
            self._coordinate()
            self._report()
            self._obey()
            self._succeed()
            self._pace.look(self._clock.monotonic_s(), found=self._has_message)
        return not self.is_over

    @property
    def pause_s(self) -> float:
        """Seconds until the next `step` is due."""
        return self._pace.left_s(self._clock.monotonic_s())

    def leave(self, *, at_once: bool = False) -> None:
        """Leave as soon as no team works; a coordinator hands over before.

        `at_once`: even if a team works, as this process is about to end.
        """
        self._leaving, self._leaving_at_once = True, self._leaving_at_once or at_once

    # ------------------------------------------------------------ coming, and being alive

    def _join(self) -> None:
        """Create the log of this job, under the next free number."""
        self.number += 1
        while self._files.read(log_name(self.number)) is not None:
            self.number += 1
        line = Joined(host=self._host, unix_s=self._clock.unix_s(), **self._shape)
        while not self._files.create(log_name(self.number), encoded(log_name(self.number), 0, line)):
            self.number += 1
        self._log = LogWriter(self._files, log_name(self.number), 1)
        self._said_at_s = self._clock.monotonic_s()
        #: term that this job follows; 0 for none yet
        self._following = 0
        self._orders: LogReader[Order] | None = None
        #: how long an order has been there that cannot be read
        self._orders_watch = Watch(self._timing)
        self._terms.look()
        self._meet_owner()

    def _say(self, *lines: JobLine) -> None:
        self._log.append(*lines)
        self._said_at_s = self._clock.monotonic_s()

    def _beat(self) -> None:
        if self._clock.monotonic_s() - self._said_at_s >= self._timing.beat_s:
            self._say(Beat(unix_s=self._clock.unix_s()))

    # ------------------------------------------------------------ the greatest term and its owner

    def _look(self) -> None:
        """Look for later terms; a later one ends this job's own."""
        before = self._terms.greatest
        if self.lead is not None and self.lead.is_overtaken:
            self._terms.pass_over(self.lead.term + 1)
        self._terms.look()
        if self._terms.greatest > before:
            self._meet_owner()
        if self._candidate is not None and self._terms.greatest > self._candidate.term:
            self._candidate = None
        if self.lead is not None and self._terms.greatest > self.lead.term:
            self.lead.close()
            self.lead = None

    def _resign(self) -> None:
        """Hand over at once, so that the search goes on while the teams of this job end their work."""
        if self._candidate is not None:
            self._say(Resigned(term=self._candidate.term))
        if self.lead is not None:
            self._say(Resigned(term=self.lead.term, journal_bytes=self.lead.close()))
        self._candidate = self.lead = None

    def _meet_owner(self) -> None:
        """Watch the owner of the greatest term, from now on."""
        self._owner_log: LogReader[JobLine] | None = None
        self._owner_watch = Watch(self._timing)
        #: True if the owner has left, and how it has resigned before
        self._has_owner_left = False
        self._owner_resigned: Resigned | None = None

    def _is_owner_gone(self) -> bool:
        now_s = self._clock.monotonic_s()
        if self._owner_log is None and (owner := self._terms.owner(self._terms.greatest)) is not None:
            self._owner_log = LogReader(self._files, log_name(owner), JOB_LINES)
        lines = [] if self._owner_log is None else self._owner_log.new()
        self._owner_watch.look(0 if self._owner_log is None else self._owner_log.n_lines, now_s)
        for line in lines:
            if isinstance(line, Left):
                self._has_owner_left = True
            if isinstance(line, Resigned) and line.term == self._terms.greatest:
                self._owner_resigned = line
        return self._has_owner_left or self._owner_resigned is not None or self._owner_watch.is_silent

    # ------------------------------------------------------------ coordinating

    def _succeed(self) -> None:
        """Take the next term if there is no coordinator; leave if the search is complete."""
        if self.lead or self._candidate or self._leaving or self.is_over:
            return
        if self._terms.greatest and not self._is_owner_gone():
            return
        self._leave_if_sealed(newest_journal(self._files, self._terms.greatest))
        if self._leaving:
            return
        resigned = self._owner_resigned
        owner = self._terms.owner(self._terms.greatest)
        self._silent = {owner: self._owner_watch} if owner is not None and self._owner_watch.is_silent else {}
        if self._terms.take(self.number):
            now_s = self._clock.monotonic_s()
            self._candidate = Candidate(self._files, self._timing, self._terms.greatest, now_s, resigned)
        self._meet_owner()

    def _leave_if_sealed(self, copy: Copy | None) -> None:
        """Leave if the search is over."""
        roster = self._sealed(copy)
        if roster is not None and roster.term > self._past:
            self._files.publish(journal_name(roster.term))
            self.end = roster
            self.leave()

    def _sealed(self, copy: Copy | None) -> Roster | None:
        """Return the roster of a journal that is at its end and sealed by its owner as in `Lead.end`, else None."""
        roster = Roster(copy.content.events if copy is not None and copy.term else ())
        return roster if roster.is_over and self._terms.owner(roster.term + 1) == roster.leader else None

    def _coordinate(self) -> None:
        if self._candidate is not None:
            copy = self._candidate.journal(self._clock.monotonic_s())
            self._leave_if_sealed(copy)
            if copy is None or self._leaving:
                return
            term, self._candidate = self._candidate.term, None
            places = self._files, self._clock, self._timing, term, self.number
            lead = Lead(*places, copy, self._search, self._silent)
            if not lead.begin():
                self._terms.pass_over(term + 1)
                self._meet_owner()
                return
            self.lead = lead
            self._look()
        if self.lead is not None:
            reports = self.lead.step()
            self._has_message |= bool(reports)
            self._search.step(self.lead, reports)
            if self.lead.is_sealed:
                self.end = self.lead.roster
                self.leave()

    # ------------------------------------------------------------ working

    def _report(self) -> None:
        if reports := self._workplace.reports():
            self._has_message = True
            self._say(*(Reported(rank=rank, message=message.to_json()) for rank, message in reports))

    def _obey(self) -> None:
        """Follow the greatest term and its orders."""
        greatest = self._terms.greatest
        if self._leaving or self._following < greatest:
            if self._workplace.is_busy and not self._leaving_at_once:
                self._workplace.let_go()
            elif self._leaving:
                self._say(Left())
                self.is_over = True
            else:
                self._say(Follows(term=greatest))
                self._following = greatest
                self._orders = LogReader(self._files, orders_name(self.number, greatest), ORDERS)
        elif self._orders is not None:
            for order in self._orders.new():
                self._has_message = True
                try:
                    self._take(order)
                except ProtocolError as error:
                    # Anyone who can write to the file may have said this. The coordinator believes that it was obeyed.
                    self.refused_because = str(error)
                    self.leave()
                    break
            self._miss_no_order()

    def _miss_no_order(self) -> None:
        """Leave if an order stays unreadable while its coordinator lives on, and waits for what it has asked for."""
        orders = self._orders
        if orders is None or not orders.is_stuck:
            self._orders_watch = Watch(self._timing)
            return
        self._orders_watch.look(orders.n_lines, self._clock.monotonic_s())
        # A coordinator that died while it wrote has been silent for as long, and will be succeeded.
        if self._orders_watch.is_silent and self._owner_watch.silent_s < self._timing.limit_s / 2:
            name = orders_name(self.number, self._following)
            self.refused_because = (
                f"line {orders.n_lines + 1} of {name} has been damaged or unknown for {self._timing.limit_s:g} s."
            )
            self.leave()

    def _take(self, order: Order) -> None:
        match order:
            case Ordered():
                self._workplace.take(self._following, order.rank, self._accept(order, self._following))
            case Admitted():
                self._workplace.admit(order.first_rank, order.first_team)
            case Expelled():
                self._workplace.drop()
                self.expelled_because = order.reason
                if order.reason:
                    self._resign()
                    self._say(Left())  # for commands: nobody is at work here any more
                    self.is_over = True
                else:
                    self._join()
