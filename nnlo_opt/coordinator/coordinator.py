"""The coordinator's shell: carries messages to `CoordinatorState` and carries out its instructions."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nnlo_opt.clock import Clock
from nnlo_opt.comm.messages import Message
from nnlo_opt.comm.run_messages import PreemptionHeard
from nnlo_opt.comm.transport import Received, Transport
from nnlo_opt.coordinator import instructions as ins
from nnlo_opt.coordinator.ending import Phase
from nnlo_opt.coordinator.instructions import WAS_ENDED, LastEnd
from nnlo_opt.coordinator.membership import Membership
from nnlo_opt.coordinator.state import CoordinatorState
from nnlo_opt.errors import NnloError, ProtocolError
from nnlo_opt.search.base import TrialRecord
from nnlo_opt.trials.events import Event, RunCompleted, RunPreempted
from nnlo_opt.trials.journal import Journal
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import UnrecordedFold

logger = logging.getLogger(__name__)

#: seconds between two looks at a budget of time while nothing comes
TICK_S = 0.5
#: messages taken in before what follows from them is written to the journal, at most: a write to the disk costs as much
#: for all of them as for one
MOST_AT_ONCE = 256


def _pass() -> None: ...


class Search(Protocol):
    """The search as the coordinator sees it; it minimises."""

    def record(self, trials: Sequence[TrialRecord]) -> None: ...

    def request_suggestion(self, request: int) -> None: ...

    def poll(self) -> Any: ...


class Observer(Protocol):
    """Someone who is told of every event after the ledger knows it."""

    def observe(self, event: Event, ledger: Ledger) -> None: ...


class Coordinator:
    """World rank 0 while trials run. `step` never waits."""

    def __init__(
        self,
        state: CoordinatorState,
        journal: Journal,
        ranks: Transport,
        search: Search,
        clock: Clock,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._state = state
        self._journal = journal
        self._ranks = ranks
        self._search = search
        self._clock = clock
        self._observers = observers
        #: team index by world rank of its master
        self._team_of = {rank: team.index for team in state.topology.teams for rank in team.world_ranks}
        #: ranks that are known to be dead
        self._n_lost = 0
        #: called when a rank has heard of a preemption
        self.heard_preemption: Callable[[], None] = _pass
        #: why the search is over; empty while it is not
        self.finished_because = ""
        #: whether the search was over then, and not only the time of this start
        self.is_complete = False
        #: whether every team has stopped by then; one that has not is not to be asked for anything
        self.all_stopped = True
        #: when a budget of time is looked at next; monotonic seconds
        self._tick_at_s = clock.monotonic_s()
        #: the last messages taken in, with the rank each is from: the story told when we fail
        self._story: deque[tuple[int, Message]] = deque(maxlen=40)

    @property
    def now_s(self) -> float:
        """Seconds since the first start of the run."""
        return self._clock.unix_s() - self._state.ledger.first_start_unix_s

    @property
    def suspects(self) -> frozenset[int]:
        """Teams that may be stuck in code of the user."""
        return frozenset(self._state.membership.suspects)

    @property
    def membership(self) -> Membership:
        """Teams, blocks, assignments of this start."""
        return self._state.membership

    def begin(self, last_end: LastEnd = WAS_ENDED, finished: Sequence[UnrecordedFold] = ()) -> None:
        """Give out the first assignments; `last_end`: how the start before this one has ended.

        `finished` are folds of earlier starts that the journal does not know of.
        """
        self._carry_out(self._decide(ins.Begin(last_end=last_end, finished=tuple(finished))))

    def preempt(self, reason: str, grace_s: float) -> None:
        """Have this start end within `grace_s` seconds; when it is already to do so, nothing changes."""
        if not self._state.ending.preempting:
            self._carry_out(self._decide(ins.Preempt(reason=reason, grace_s=grace_s)))

    def step(self) -> bool:
        """Take in what has come, if anything; -> whether something had.

        All of it is decided on first, then written down at once, then carried out.
        """
        todo: list[ins.Instruction] = []
        if len(self._ranks.lost) > self._n_lost:
            self._n_lost = len(self._ranks.lost)
            todo += self._decide(ins.RanksDied(ranks=frozenset(self._ranks.lost)))
        n_taken = 0
        while n_taken < MOST_AT_ONCE and not self._is_over and (received := self._ranks.poll()) is not None:
            n_taken += 1
            self._story.append((received.source, received.message))
            try:
                todo += self._take(received)
            except Exception as error:
                self._write_ahead(todo)  # what came before stands
                for source, message in self._story:
                    error.add_note(f"took in from rank {source}: {str(message)[:300]}")
                raise
        suggestion = self._search.poll() if self._state.suggestions.asked else None
        if suggestion is not None:
            todo += self._decide(
                ins.Suggested(point=suggestion.point, wall_s=suggestion.wall_s, cpu_s=suggestion.cpu_s)
            )
        if self._clock.monotonic_s() >= self._tick_at_s:
            self._tick_at_s = self._clock.monotonic_s() + TICK_S
            if self._state.plan.budget.has_time or self._state.ending.preempting:
                todo += self._decide(ins.Tick())
        self._carry_out(todo)
        return bool(n_taken) or suggestion is not None

    def complete(self) -> None:
        """Write down that the search is over, or this start of it."""
        kind = RunCompleted if self.is_complete else RunPreempted
        event = kind(time_s=self.now_s, reason=self.finished_because, coordinator_cpu_s=round(time.process_time(), 3))
        self._state.ledger.apply(event)
        self._write([event], durable=True)

    def _take(self, received: Received) -> list[ins.Instruction]:
        if isinstance(received.message, PreemptionHeard):
            self.heard_preemption()
            return []
        team = self._team_of.get(received.source)
        if team is None:
            raise ProtocolError(f"Rank {received.source} is in no team. Received: {received.message}.")
        return self._decide(ins.FromMaster(team=team, message=received.message))

    def _decide(self, event: ins.CoordinatorEvent) -> list[ins.Instruction]:
        return self._state.handle(event, self.now_s)

    @property
    def _is_over(self) -> bool:
        return self._state.phase is Phase.OVER

    def _write_ahead(self, todo: Sequence[ins.Instruction]) -> None:
        appends = [instruction for instruction in todo if isinstance(instruction, ins.Append)]
        if appends:
            events = [event for append in appends for event in append.events]
            self._write(events, durable=any(append.durable for append in appends))

    def _carry_out(self, todo: Sequence[ins.Instruction]) -> None:
        """Write down all events, which justify the rest, and do the rest in order."""
        self._write_ahead(todo)
        for instruction in todo:
            match instruction:
                case ins.Send():
                    self._ranks.send(instruction.rank, instruction.message)
                case ins.Tell():
                    self._search.record([self._told(instruction)])
                case ins.Ask():
                    self._search.request_suggestion(instruction.number)
                case ins.GiveUp():
                    raise NnloError(instruction.reason)
                case ins.Finish():
                    self.finished_because, self.is_complete = instruction.reason, instruction.complete
                    self.all_stopped = instruction.all_stopped

    def _told(self, tell: ins.Tell) -> TrialRecord:
        value = tell.value
        if value is not None and self._state.plan.direction == "max":
            value = -value
        told: TrialRecord = {
            "trial": tell.trial,
            "point": tell.point,
            "state": tell.state,
            "value": value,
            "std": tell.std,
        }
        if tell.losses is not None:
            told["losses"] = list(tell.losses)
        return told

    def _write(self, events: Sequence[Event], *, durable: bool) -> None:
        try:
            self._journal.append(events, durable=durable)
        except OSError as error:
            raise NnloError(
                f"`{self._journal.path}` cannot be written ({error.strerror or error}): the search stops here, nothing "
                "that it holds is lost; make the run directory writable again and go on with `--opt-restore`."
            ) from error
        for observer in self._observers:
            for event in events:
                observer.observe(event, self._state.ledger)
