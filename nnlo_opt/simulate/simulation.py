"""Simulated search: the real coordinator, its journal, its search algorithm with virtual blocks in virtual time."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.coordinator import Coordinator, CoordinatorSetup
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.coordinator.state import CoordinatorState
from nnlo_opt.errors import ProtocolError
from nnlo_opt.search.base import TrialRecord
from nnlo_opt.simulate.blocks import VirtualRanks
from nnlo_opt.simulate.clock import FREE, Agenda, Cost, VirtualClock
from nnlo_opt.simulate.result import SimulationResult, result_of
from nnlo_opt.simulate.workload import METRIC, Workload
from nnlo_opt.trials.events import RunStarted
from nnlo_opt.trials.journal import Journal
from nnlo_opt.trials.ledger import Ledger


class InnerSearch(Protocol):
    """Search of this process that has been started; it answers before a request returns (`InlineSearch`)."""

    def record(self, trials: Sequence[TrialRecord]) -> None: ...

    def request_suggestion(self, request: int) -> None: ...

    def poll(self) -> Any: ...


class TimedSearch:
    """Computes suggestions at once; delivers each when the virtual search process would have it ready.

    That process works beside the coordinator, on one request after another. Records of trials take time only if the
    cost of suggestions is measured, in CPU seconds.

    Args:
        inner: the search itself.
        cost: virtual seconds of a suggestion.
        clock: virtual time.
        agenda: receives the deliveries to come.
    """

    def __init__(self, inner: InnerSearch, cost: Cost, clock: VirtualClock, agenda: Agenda) -> None:
        self._inner = inner
        self._cost = cost
        self._clock = clock
        self._agenda = agenda
        #: time at which the virtual process becomes idle
        self._busy_until_s = 0.0
        #: suggestions that the coordinator has not taken, in order
        self._arrived: deque[Any] = deque()

    @property
    def has_news(self) -> bool:
        """True if a suggestion waits for the coordinator."""
        return bool(self._arrived)

    def record(self, trials: Sequence[TrialRecord]) -> None:
        took_s = self._timed(partial(self._inner.record, trials))
        self._work(took_s if self._cost.seconds is None else 0.0)

    def request_suggestion(self, request: int) -> None:
        took_s = self._timed(partial(self._inner.request_suggestion, request))
        cost_s = took_s if self._cost.seconds is None else self._cost.seconds
        self._work(cost_s)
        suggestion = replace(self._inner.poll(), wall_s=cost_s, cpu_s=cost_s)
        self._agenda.add(self._busy_until_s, partial(self._arrived.append, suggestion))

    def poll(self) -> Any:
        return self._arrived.popleft() if self._arrived else None

    def _timed(self, action: Callable[[], None]) -> float:
        """Return the CPU seconds of `action`, which the coordinator's clock leaves out."""
        with self._clock.standing():
            began_s = time.process_time()
            action()
            return time.process_time() - began_s

    def _work(self, seconds: float) -> None:
        self._busy_until_s = max(self._busy_until_s, self._clock.now_s) + seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """Search to simulate, with the virtual cost of its parts."""

    search: SearchPlan
    topology: Topology
    workload: Workload
    #: virtual time of a suggestion, during which the coordinator still answers blocks
    suggestion_cost: Cost = FREE
    #: virtual time of one step of the coordinator, its write to the journal included
    coordinator_cost: Cost = FREE


class Simulation:
    """Search under way in virtual time.

    Args:
        plan: search to simulate.
        search: started with the space of the objective.
        journal: empty.
    """

    def __init__(self, plan: SimulationPlan, search: InnerSearch, journal: Journal) -> None:
        self.plan = plan
        self.clock = VirtualClock()
        self._agenda = Agenda(self.clock)
        self.ledger = Ledger()
        self._ranks = VirtualRanks(plan.topology, plan.workload, self.clock, self._agenda)
        self._search = TimedSearch(search, plan.suggestion_cost, self.clock, self._agenda)
        started = RunStarted(
            time_s=0.0,
            unix_s=0.0,
            n_ranks=plan.topology.world_size,
            n_blocks=plan.topology.n_blocks,
            identity={"direction": plan.search.direction, "figure_of_merit": METRIC, "simulated": True},
        )
        self.ledger.apply(started)
        journal.append([started])
        state = CoordinatorState(plan.search, plan.topology, self.ledger)
        self._coordinator = Coordinator(
            CoordinatorSetup(state=state, journal=journal, ranks=self._ranks, search=self._search, clock=self.clock)
        )

    def run(self) -> SimulationResult:
        """Simulate to the end of the search; return its figures."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        self._coordinator.begin()
        while not self._coordinator.finished_because:
            self._agenda.do_due()
            if not self._step() and not self._agenda.jump():
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
        cost_s = self.plan.coordinator_cost.seconds
        if cost_s is None:
            with self.clock.running():
                return self._coordinator.step()
        if self._ranks.has_news or self._search.has_news:
            self.clock.advance_to(self.clock.now_s + cost_s)
        return self._coordinator.step()


def simulate(plan: SimulationPlan, search: InnerSearch, journal: Journal) -> SimulationResult:
    """Simulate a search to its end; the arguments are the same as for `Simulation`."""
    return Simulation(plan, search, journal).run()
