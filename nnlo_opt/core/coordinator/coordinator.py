"""Shell of the coordinator: hands messages to `CoordinatorState`, carries out its instructions."""

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
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import UnrecordedFold

#: seconds between two looks at the limits of time while no message comes
TICK_S = 0.5
#: most messages taken in before their consequences are written to the journal: one write to the disk costs as much for
#: all of them as for one
MOST_AT_ONCE = 256


class Search(Protocol):
    """Search as the coordinator uses it; it minimises."""

    def record(self, trials: Sequence[TrialRecord]) -> None: ...

    def enqueue(self, point: Point) -> None: ...

    def request_suggestion(self, request: int) -> None: ...

    def poll(self) -> Any: ...


class Observer(Protocol):
    """Sees every event after it was applied to the ledger."""

    def observe(self, event: Event, ledger: Ledger) -> None: ...


class CoordinatorSetup(Frozen):
    """Parts around the coordinator of one start of the run."""

    #: its decisions
    state: CoordinatorState
    journal: Journal
    #: transport of rank 0 to all ranks
    ranks: Transport
    search: Search
    clock: Clock
    #: see each event after the ledger
    observers: Sequence[Observer] = ()
    #: called when a rank reports that it has been preempted
    on_preemption: Callable[[], None] = lambda: None
    #: called with what a trial has changed that all trials share
    on_shared: Callable[[SharedFilesChanged], None] = lambda changed: None
    #: returns the requests of users that have come since its last call; all consequences of earlier ones are written
    requests: Callable[[], Sequence[ins.CoordinatorEvent]] = tuple
    #: called with a point that was enqueued and that the search will not suggest, and with a sentence that says why
    on_declined: Callable[[Point, str], None] = lambda point, why: None


class Coordinator:
    """World rank 0 while trials run; `step` never waits.

    Args:
        setup: the parts around it.
    """

    def __init__(self, setup: CoordinatorSetup) -> None:
        self._setup = setup
        self._state, self._clock = setup.state, setup.clock
        #: seconds since the first start of the run at second 0 of the monotonic clock: the other one may be set anew
        self._zero_s = self._clock.unix_s() - self._state.ledger.first_start_unix_s - self._clock.monotonic_s()
        #: number of ranks that are known to be dead
        self._n_lost = 0
        #: reason for which the search is over; empty while it is not
        self.finished_because = ""
        #: True if the search was over then, False if only the time of this start was
        self.is_complete = False
        #: True if every team had stopped by then; a team that had not can be asked for nothing
        self.all_stopped = True
        #: time of the next look at the limits of time, in monotonic seconds
        self._tick_at_s = self._clock.monotonic_s()
        #: the last messages taken in, each with its rank, as notes for the error if the coordinator fails
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
        """Give out the first assignments.

        Args:
            last_end: known causes of the end of the previous start.
            finished: folds of earlier starts whose results are not in the journal.
        """
        begin, requests = ins.Begin(last_end=last_end, finished=tuple(finished)), self._setup.requests()
        # The first suggestions are points that are in the inbox already.
        points = [request for request in requests if isinstance(request, ins.Enqueue)]
        others = [request for request in requests if not isinstance(request, ins.Enqueue)]
        self._carry_out([todo for event in (*points, begin, *others) for todo in self._decide(event)])

    def preempt(self, reason: str, grace_s: float) -> None:
        """Have this start end within `grace_s` seconds; a second call changes nothing."""
        if not self._state.ending.preempting:
            self._carry_out(self._decide(ins.Preempt(reason=reason, grace_s=grace_s)))

    def step(self) -> bool:
        """Take in what has come; return True if anything had.

        All decisions come first, then one write to the journal, then the instructions are carried out.
        """
        todo: list[ins.Instruction] = []
        if len(self._setup.ranks.lost) > self._n_lost:
            self._n_lost = len(self._setup.ranks.lost)
            todo += self._decide(ins.RanksDied(ranks=frozenset(self._setup.ranks.lost)))
        if requests := self._setup.requests():
            # At once: a point that is enqueued comes before what the search suggests next.
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
        """Record that trial `number` is expected to be the best by all that is known, or none for -1."""
        if (event := self._state.ledger.named(number, self.now_s)) is not None:
            self._state.ledger.apply(event)
            self._write([event], durable=True)

    def complete(self, test: Mapping[str, float] | None = None) -> None:
        """Record that the search is over, with the metrics of its best model on test data, or this start of it."""
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

    def _decide(self, event: ins.CoordinatorEvent) -> list[ins.Instruction]:
        return self._state.handle(event, self.now_s)

    def _write_ahead(self, todo: Sequence[ins.Instruction]) -> None:
        appends = [instruction for instruction in todo if isinstance(instruction, ins.Append)]
        if appends:
            events = [event for append in appends for event in append.events]
            self._write(events, durable=any(append.durable for append in appends))

    def _carry_out(self, todo: Sequence[ins.Instruction]) -> None:
        """Write all events, which justify the other instructions; carry these out in order."""
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
                f"`{self._setup.journal.path}` cannot be written ({error.strerror or error}). The search stops here, "
                f"nothing is lost. Make the run directory writable again, then add `{spelled('opt_restore', True)}` "
                "to resume."
            ) from error
        for observer in self._setup.observers:
            for event in events:
                observer.observe(event, self._state.ledger)
