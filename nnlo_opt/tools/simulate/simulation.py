"""Simulated search: the real coordinator, journal and search algorithm with virtual blocks in virtual time.

A `Workload` defines the results of an assignment. A `VirtualMaster`, which trains nothing, sends them one after
another. `VirtualRanks` is the coordinator's endpoint of the transport to all masters. `TimedSearch` delays the
suggestions of a search by their virtual cost.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.coordinator.coordinator import Coordinator, CoordinatorSetup, Search
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.base import TrialRecord
from nnlo_opt.core.search.pruning import Pruner
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.trials.events import RunStarted
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.tools.simulate.clock import FREE, Cost, VirtualClock
from nnlo_opt.tools.simulate.result import SimulationResult, result_of
from nnlo_opt.tools.simulate.workload import METRIC, Workload

# ---------------------------------------------------------------- virtual blocks


class VirtualRanks(Transport):
    """Coordinator's endpoint of a transport whose other endpoints are virtual masters.

    Args:
        topology: teams, one master each.
        workload: results of assignments.
        clock: virtual time; future messages are scheduled there.
    """

    def __init__(self, topology: Topology, workload: Workload, clock: VirtualClock) -> None:
        self.rank = 0
        self.size = self.n_processes = topology.world_size
        self._clock = clock
        #: messages from the masters that the coordinator has not received, in order
        self._inbox: deque[Received] = deque()
        #: (trial, fold) -> epochs in its checkpoint
        done: dict[tuple[int, int], int] = {}
        self._masters = {
            team.master_rank: VirtualMaster(team.master_rank, workload, clock, self._inbox, done)
            for team in topology.teams
        }

    @property
    def has_news(self) -> bool:
        """True if a message waits for the coordinator."""
        return bool(self._inbox)

    @property
    def busy_s(self) -> float:
        """Seconds that all teams together have spent on ended assignments."""
        return math.fsum(master.busy_s for master in self._masters.values())

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        # The master handles it as an action of the clock, so that its work does not count as the coordinator's time.
        self._clock.schedule(self._clock.now_s, partial(self._masters[dest].handle_order, message))

    def poll(self) -> Received | None:
        return self._inbox.popleft() if self._inbox else None


class VirtualMaster:
    """Master of a virtual team; runs one assignment after another."""

    def __init__(
        self,
        rank: int,
        workload: Workload,
        clock: VirtualClock,
        inbox: deque[Received],
        done: dict[tuple[int, int], int],
    ) -> None:
        self._rank = rank
        #: (trial, fold) -> epochs in its checkpoint; of all masters
        self._done = done
        self._workload = workload
        self._clock = clock
        #: messages to the coordinator
        self._inbox = inbox
        #: current order; None when idle
        self._order: msg.RunFold | None = None
        #: remaining messages about it, each with the delay in seconds
        self._reports: Iterator[tuple[float, Message]] = iter(())
        #: time at which the last assignment ended; None before the first one
        self._idle_since_s: float | None = None
        #: time of the last order to run a fold
        self._busy_since_s = 0.0
        #: seconds spent on ended assignments
        self.busy_s = 0.0

    def handle_order(self, message: Message) -> None:
        """Handle one message from the coordinator."""
        match message:
            case msg.RunFold():
                self._run(message)
            case msg.StopFold() if self._is_of(message):
                self._end(msg.FoldStopped(assignment=message.assignment))
            case msg.PauseFold() if self._is_of(message):
                assert self._order is not None
                epoch = self._done[self._order.trial, self._order.fold]
                self._end(msg.FoldPaused(assignment=message.assignment, epoch=epoch))
            case msg.GoOn() if self._is_of(message):
                self._schedule_next()
            case msg.GoOn() | msg.PauseFold() | msg.StopFold() | msg.PreemptFold() | msg.FoldRecorded():
                pass  # for an ended assignment; a simulation is not preempted
            case _:
                raise ProtocolError(f"A master does not accept {type(message).__name__} from the coordinator.")

    def send(self, message: Message) -> None:
        """Send a message that is due now, and schedule the next one."""
        if not self._is_of(message):
            return  # the assignment was stopped
        if isinstance(message, msg.FoldFinished | msg.FoldFailed):
            self._end(message)
            return
        self._inbox.append(Received(self._rank, message, None))
        if isinstance(message, msg.EpochReported):
            assert self._order is not None
            self._done[self._order.trial, self._order.fold] = message.epoch
        if not getattr(message, "waits", False):
            self._schedule_next()

    def _is_of(self, message: Message) -> bool:
        """Return True if a message concerns the current assignment."""
        return self._order is not None and getattr(message, "assignment", None) == self._order.assignment

    def _run(self, order: msg.RunFold) -> None:
        if self._order is not None:
            raise ProtocolError(f"Assignment {order.assignment} came while {self._order.assignment} is under way.")
        self._busy_since_s = self._clock.now_s
        waited_s = None if self._idle_since_s is None else self._busy_since_s - self._idle_since_s
        n_done = self._done.get((order.trial, order.fold), 0)
        self._order, self._reports = order, self._workload.reports(order, waited_s, n_done)
        self._schedule_next()

    def _schedule_next(self) -> None:
        seconds, message = next(self._reports)
        # Nothing is sent if another assignment is running by then.
        self._clock.schedule(self._clock.now_s + seconds, partial(self.send, message))

    def _end(self, message: Message) -> None:
        self._order, self._idle_since_s = None, self._clock.now_s
        self.busy_s += self._idle_since_s - self._busy_since_s
        self._inbox.append(Received(self._rank, message, None))


# ---------------------------------------------------------------- a search in virtual time


class TimedSearch:
    """Computes suggestions immediately, and delivers each when the virtual search process would finish it.

    That process runs in parallel to the coordinator and handles one request after another. Recording trials takes time
    only if the cost of suggestions is measured, in CPU seconds.

    Args:
        inner: actual search, which answers synchronously (`InlineSearch`).
        cost: virtual seconds of a suggestion.
        clock: virtual time; future deliveries are scheduled there.
    """

    def __init__(self, inner: Search, cost: Cost, clock: VirtualClock) -> None:
        self._inner = inner
        self._cost = cost
        self._clock = clock
        #: time at which the virtual process becomes idle
        self._busy_until_s = 0.0
        #: suggestions that the coordinator has not received, in order
        self._arrived: deque[Any] = deque()

    @property
    def has_news(self) -> bool:
        """True if a suggestion waits for the coordinator."""
        return bool(self._arrived)

    def record(self, trials: Sequence[TrialRecord]) -> None:
        self._work(partial(self._inner.record, trials), 0.0)

    def enqueue(self, point: Point) -> None:
        self._inner.enqueue(point)

    def request_suggestion(self, request: int) -> None:
        cost_s = self._work(partial(self._inner.request_suggestion, request), self._cost or 0.0)
        suggestion = self._inner.poll().replaced(wall_s=cost_s, cpu_s=cost_s)
        self._clock.schedule(self._busy_until_s, partial(self._arrived.append, suggestion))

    def poll(self) -> Any:
        return self._arrived.popleft() if self._arrived else None

    def _work(self, action: Callable[[], None], seconds: float) -> float:
        """Run `action`, which costs `seconds`, or its CPU seconds if costs are measured; return the cost."""
        with self._clock.let(run=False):  # the coordinator does not wait for this
            began_s = time.process_time()
            action()
            took_s = time.process_time() - began_s
        seconds = took_s if self._cost is None else seconds
        self._busy_until_s = max(self._busy_until_s, self._clock.now_s) + seconds
        return seconds


# ---------------------------------------------------------------- the simulation


class SimulationPlan(Frozen):
    """Search to simulate, and the virtual costs of its parts."""

    search: SearchPlan
    topology: Topology
    workload: Workload
    #: custom pruner; None for the one in `search`
    pruner: Pruner | None = None
    #: virtual time of a suggestion; the coordinator keeps answering blocks meanwhile
    suggestion_cost: Cost = FREE
    #: virtual time of one step of the coordinator, including its write to the journal
    coordinator_cost: Cost = FREE


class Simulation:
    """Running search in virtual time.

    Args:
        plan: search to simulate.
        search: search started with the objective's space.
        journal: empty journal.
    """

    def __init__(self, plan: SimulationPlan, search: Search, journal: Journal) -> None:
        self.plan = plan
        self.clock = VirtualClock()
        self.ledger = Ledger()
        self._ranks = VirtualRanks(plan.topology, plan.workload, self.clock)
        self._search = TimedSearch(search, plan.suggestion_cost, self.clock)
        started = RunStarted(
            time_s=0.0,
            unix_s=0.0,
            n_ranks=plan.topology.world_size,
            n_blocks=plan.topology.n_blocks,
            identity={"direction": plan.search.direction, "figure_of_merit": METRIC, "simulated": True},
        )
        self.ledger.apply(started)
        journal.append([started])
        state = CoordinatorState(plan.search, plan.topology, self.ledger, plan.pruner)
        self._coordinator = Coordinator(
            CoordinatorSetup(state=state, journal=journal, ranks=self._ranks, search=self._search, clock=self.clock)
        )

    def run(self) -> SimulationResult:
        """Simulate to the end of the search; return the result."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        self._coordinator.begin()
        while not self._coordinator.finished_because:
            self.clock.do_due()
            if not self._step() and not self.clock.jump():
                raise ProtocolError("Nothing is on its way and the search is not over: coordinator and blocks wait.")
        self._coordinator.complete()
        return result_of(
            self.ledger,
            self.plan.workload.objective.optimum,
            team_busy_s=self._ranks.busy_s / len(self.plan.topology.teams),
            wall_s=time.perf_counter() - began_s,
            cpu_s=time.process_time() - began_cpu_s,
        )

    def _step(self) -> bool:
        cost_s = self.plan.coordinator_cost
        if cost_s is None:
            with self.clock.let(run=True):
                return self._coordinator.step()
        if self._ranks.has_news or self._search.has_news:
            self.clock.advance_to(self.clock.now_s + cost_s)
        return self._coordinator.step()
