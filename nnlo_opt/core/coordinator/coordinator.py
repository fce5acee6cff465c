"""Shell of the coordinator: passes messages to `CoordinatorState` and carries out its instructions."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import ConfigurationError, NnloError, ProtocolError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.run_messages import PreemptionHeard, Prepared, SharedFilesChanged
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.membership import Membership
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.base import TrialRecord
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.trials.events import Event, RunCompleted, RunPreempted
from nnlo_opt.core.trials.journal import JournalWriter
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import UnrecordedFold

#: seconds between two checks of time limits while no message arrives
TICK_S = 0.5
#: most messages handled before their consequences are written to the journal: one write costs the same for all of them
#: as for one
MOST_AT_ONCE = 256


class Search(Protocol):
    """The coordinator's interface of a search; values are minimised."""

    def record(self, trials: Sequence[TrialRecord]) -> None: ...

    def enqueue(self, point: Point) -> None: ...

    def request_suggestion(self, request: int) -> None: ...

    def poll(self) -> Any: ...


class Observer(Protocol):
    """Called with every event after it was applied to the ledger."""

    def observe(self, event: Event, ledger: Ledger) -> None: ...


class CoordinatorSetup(Frozen):
    """Parts around the coordinator of one start of the run."""

    #: state machine that decides
    state: CoordinatorState
    journal: JournalWriter
    #: transport of rank 0 to all ranks
    ranks: Transport
    search: Search
    clock: Clock
    #: called with each event after the ledger has applied it
    observers: Sequence[Observer] = ()
    #: called when a rank reports that it has been preempted
    on_preemption: Callable[[], None] = lambda: None
    #: called when a trial has changed shared files
    on_shared: Callable[[SharedFilesChanged], None] = lambda changed: None
    #: returns the users' requests since its last call; all consequences of earlier ones have been written
    requests: Callable[[], Sequence[ins.CoordinatorEvent]] = tuple
    #: in a run that several jobs share: returns what has become of them since its last call; None if nothing has
    jobs: Callable[[], ins.JobsChanged | None] = lambda: None
    #: sends a job away, see `instructions.Expel`; `jobs` tells it at once
    expel: Callable[[int, str], None] = lambda job, reason: None
    #: called with an enqueued point that the search refuses, and the reason
    on_declined: Callable[[Point, str], None] = lambda point, why: None


class Coordinator:
    """World rank 0 while trials run; `step` never waits.

    Args:
        setup: parts around it.
    """

    def __init__(self, setup: CoordinatorSetup) -> None:
        self._setup = setup
        self._state, self._clock = setup.state, setup.clock
        #: seconds since the first start of the run at second 0 of the monotonic clock; the Unix clock may be reset
        self._zero_s = self._clock.unix_s() - self._state.ledger.first_start_unix_s - self._clock.monotonic_s()
        #: number of ranks that are known to be dead
        self._n_lost = 0
        #: why the search has ended; empty while it runs
        self.finished_because = ""
        #: True if the search is complete, False if only this start has ended
        self.is_complete = False
        #: True if every team had stopped by then; others do not respond
        self.all_stopped = True
        #: monotonic time of the next check of time limits
        self._tick_at_s = self._clock.monotonic_s()
        #: the last (rank, message) handled, for the error report if the coordinator fails
        self._story: deque[tuple[int, Message]] = deque(maxlen=40)

    @property
    def now_s(self) -> float:
        """Seconds since the first start of the run."""
        return self._zero_s + self._clock.monotonic_s()

    @property
    def membership(self) -> Membership:
        """Teams, blocks, assignments of this start."""
        return self._state.membership

    def begin(self, last_end: ins.LastEnd = ins.WAS_ENDED, finished: Sequence[UnrecordedFold] = ()) -> None:
        """Send the first assignments.

        Args:
            last_end: known causes of the end of the previous start.
            finished: folds of earlier starts whose results are not in the journal.
        """
        begin, requests = ins.Begin(last_end=last_end, finished=tuple(finished)), self._setup.requests()
        # Points already in the inbox are suggested first.
        points = [request for request in requests if isinstance(request, ins.Enqueue)]
        others = [request for request in requests if not isinstance(request, ins.Enqueue)]
        self._carry_out([*self._take_jobs(), *(i for event in (*points, begin, *others) for i in self._decide(event))])

    def preempt(self, reason: str, grace_s: float) -> None:
        """End this start within `grace_s` seconds; a second call is ignored."""
        if not self._state.ending.preempting:
            self._carry_out(self._decide(ins.Preempt(reason=reason, grace_s=grace_s)))

    def step(self) -> bool:
        """Handle what has arrived; return True if there was anything. Never waits.

        First all decisions are made, then written to the journal at once, then carried out.
        """
        todo = self._take_jobs()
        if len(self._setup.ranks.lost) > self._n_lost:
            self._n_lost = len(self._setup.ranks.lost)
            todo += self._decide(ins.RanksDied(ranks=frozenset(self._setup.ranks.lost)))
        if requests := self._setup.requests():
            # Immediately: an enqueued point precedes the next suggestion of the search.
            self._carry_out([*todo, *(one for request in requests for one in self._decide(request))])
            todo = []
        n_taken = 0
        while n_taken < MOST_AT_ONCE and self._state.phase is not Phase.OVER and (received := self._setup.ranks.poll()):
            n_taken += 1
            self._story.append((received.source, received.message))
            try:
                todo += self._take(received)
            except Exception as error:
                self._write_ahead(todo)  # the decisions before it stand
                for source, message in () if isinstance(error, ConfigurationError) else self._story:
                    error.add_note(f"took in from rank {source}: {str(message)[:300]}")
                raise
        suggestion = self._setup.search.poll() if self._state.suggestions.asked else None
        if suggestion is not None:
            for point, why in suggestion.declined:
                self._setup.on_declined(point, why)
            todo += self._decide(suggestion)
        if self._clock.monotonic_s() >= self._tick_at_s:
            self._tick_at_s = self._clock.monotonic_s() + TICK_S
            if self._state.plan.budget.has_time or self._state.ending.preempting:
                todo += self._decide(ins.Tick())
        self._carry_out(todo)
        return bool(n_taken) or suggestion is not None

    def expect(self, number: int) -> None:
        """Record that trial `number` is the best expected one; -1 for none."""
        if (event := self._state.ledger.named(number, self.now_s)) is not None:
            self._state.ledger.apply(event)
            self._write([event], durable=True)

    def complete(self, test: Mapping[str, float] | None = None) -> None:
        """Record the end of the search, with the best model's metrics on test data, or of this start."""
        kind = RunCompleted if self.is_complete else RunPreempted
        event = kind(time_s=self.now_s, reason=self.finished_because, coordinator_cpu_s=round(time.process_time(), 3))
        if isinstance(event, RunCompleted) and test:
            event = event.replaced(test=test)
        self._state.ledger.apply(event)
        self._write([event], durable=True)

    def _take(self, received: Received) -> list[ins.Instruction]:
        if isinstance(received.message, PreemptionHeard):
            self._setup.on_preemption()
        if isinstance(received.message, SharedFilesChanged):
            self._setup.on_shared(received.message)
        if isinstance(received.message, PreemptionHeard | Prepared | SharedFilesChanged):
            return []
        team = self._state.membership.team_of.get(received.source)
        if team is None:
            raise ProtocolError(f"Rank {received.source} is in no team. Received: {received.message}.")
        return self._decide(ins.FromMaster(team=team, message=received.message))

    def _take_jobs(self) -> list[ins.Instruction]:
        """Handle what has become of jobs, before anything else: it is in the journal already."""
        if (changed := self._setup.jobs()) is None:
            return []
        todo = self._decide(changed)
        self._show(changed.recorded)
        return todo

    def _decide(self, event: ins.CoordinatorEvent) -> list[ins.Instruction]:
        return self._state.handle(event, self.now_s)

    def _write_ahead(self, todo: Sequence[ins.Instruction]) -> None:
        appends = [instruction for instruction in todo if isinstance(instruction, ins.Append)]
        if appends:
            events = [event for append in appends for event in append.events]
            self._write(events, durable=any(append.durable for append in appends))

    def _carry_out(self, todo: Sequence[ins.Instruction]) -> None:
        """Write all events first, because they justify the other instructions; then carry these out in order."""
        self._write_ahead(todo)
        for instruction in todo:
            match instruction:
                case ins.Send():
                    self._setup.ranks.send(instruction.rank, instruction.message)
                case ins.Tell():
                    self._setup.search.record([self._record_of(instruction)])
                case ins.Propose():
                    self._setup.search.enqueue(instruction.point)
                case ins.Ask():
                    self._setup.search.request_suggestion(instruction.number)
                case ins.GiveUp():
                    raise NnloError(instruction.reason)
                case ins.FinishRun():
                    self.finished_because, self.is_complete = instruction.reason, instruction.complete
                    self.all_stopped = instruction.all_stopped
                case ins.Expel():
                    self._setup.expel(instruction.job, instruction.reason)
        if any(isinstance(instruction, ins.Expel) for instruction in todo):
            self._carry_out(self._take_jobs())

    def _record_of(self, tell: ins.Tell) -> TrialRecord:
        sign = -1.0 if self._state.plan.direction == "max" else 1.0
        value = None if tell.value is None else sign * tell.value
        record = TrialRecord(trial=tell.trial, point=tell.point, state=tell.state, value=value, std=tell.std)
        if tell.curve:
            record["curve"] = [(epoch, sign * figure) for epoch, figure in tell.curve]
        if tell.progress is not None:
            record["progress"] = tell.progress
        if tell.losses is not None:
            record["losses"] = list(tell.losses)
        if tell.outcomes:
            record["outcomes"] = dict(tell.outcomes)
        return record

    def _write(self, events: Sequence[Event], *, durable: bool) -> None:
        try:
            self._setup.journal.append(events, durable=durable)
        except OSError as error:
            raise NnloError(
                f"`{self._setup.journal.path}` cannot be written ({error.strerror or error}). The search stops here; "
                f"nothing is lost. Make the run directory writable again, then add `{spelled('opt_restore', True)}` "
                "to resume."
            ) from error
        self._show(events)

    def _show(self, events: Sequence[Event]) -> None:
        for observer in self._setup.observers:
            for event in events:
                observer.observe(event, self._state.ledger)
