"""One simulated search: the real coordinator, ledger, journal and search algorithm around virtual blocks."""

import time
from dataclasses import dataclass

from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.coordinator import Coordinator, CoordinatorSetup
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.coordinator.state import CoordinatorState
from nnlo_opt.errors import ProtocolError
from nnlo_opt.simulate.blocks import METRIC, VirtualRanks, Workload
from nnlo_opt.simulate.clock import FREE, Agenda, Cost, VirtualClock
from nnlo_opt.simulate.result import SimulationResult, result_of
from nnlo_opt.simulate.search import InnerSearch, TimedSearch
from nnlo_opt.trials.events import RunStarted
from nnlo_opt.trials.journal import Journal
from nnlo_opt.trials.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """What is simulated."""

    search: SearchPlan
    topology: Topology
    workload: Workload
    #: of a suggestion, beside the coordinator: it does not keep it from answering blocks
    suggestion_cost: Cost = FREE
    #: of taking in what has come, and all that follows from it, the one write to the journal too
    coordinator_cost: Cost = FREE


class Simulation:
    """A search under way in virtual time."""

    def __init__(self, plan: SimulationPlan, search: InnerSearch, journal: Journal) -> None:
        """`search` has been started with the objective's space; `journal` is empty."""
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
        """Simulate to the end."""
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
    """Simulate a search; `search` has been started with the objective's space, `journal` is empty."""
    return Simulation(plan, search, journal).run()
