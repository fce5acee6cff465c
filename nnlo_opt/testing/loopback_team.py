"""Team in one process: a real master with real workers on loopback transports, one message at a time.

A message moves only when the test says so, in the order that it chooses, so every interleaving can be replayed. To drop
a team is a crash of all its ranks; `regroup` is a crash of some of its workers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nnlo_opt.block.master.endpoints import WorkerEndpoints
from nnlo_opt.block.master.master import Master, MasterSetup
from nnlo_opt.block.master.submaster import SubMaster, SubMasterSetup
from nnlo_opt.block.task import FoldTaskFactory, TaskFactory, TaskSetup
from nnlo_opt.block.worker.worker import Memory, Worker, WorkerSetup
from nnlo_opt.clock import ManualClock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.messages import Message
from nnlo_opt.comm.topology import Team, plan_single_block
from nnlo_opt.comm.transport import Received, Transport
from nnlo_opt.data.folds import Fold
from nnlo_opt.data.source import DataSource
from nnlo_opt.errors import TrialError
from nnlo_opt.models.adapter import EpochCallbacks, Metrics, ModelAdapter
from nnlo_opt.models.layout import FloatVector
from nnlo_opt.testing.linear_model import LinearAdapter
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.objectives import Comparison

Reported = TypeVar("Reported", bound=Message)

#: number of the master on the transport of the team
MASTER = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that was handed to the master (end 0) or a worker, with a copy of its payload."""

    source: int
    dest: int
    message: Message
    payload: np.ndarray | None
    #: number of the group in which it was handed over, with its sub-master at end 0; 0: between master and workers
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Settings that few teams want."""

    #: as if every rank had a process of its own, so that workers overlap
    apart: bool = False
    #: ranks of a worker, which stand side by side
    ranks_per_worker: int = 1
    #: as `MasterSetup` has them
    comparison: Comparison = Comparison()  # noqa: RUF009  (frozen)
    writes_checkpoints: bool = True
    keeps_checkpoints: bool = False
    #: callbacks and figure of merit of worker 1
    callbacks: EpochCallbacks | None = None
    figure: Callable[[dict[str, Any]], Any] | None = None


PLAIN = Extras()


@dataclass(frozen=True, slots=True)
class Place:
    """An end, the function that takes its messages, and the worker that may have to train first."""

    end: Transport
    take: Callable[[Received], None]
    worker: Worker | None = None
    group: int = 0


class LoopbackTeam:
    """A master and `n_workers` workers, or a tree of masters."""

    #: whether its ends can share memory
    shares = False

    def __init__(
        self,
        orders: Transport,
        directory: Path,
        options: TrainingOptions,
        tasks: Callable[[], TaskFactory],
        n_workers: int | Team,
        extras: Extras = PLAIN,
    ) -> None:
        """`orders` leads to the coordinator; `tasks` makes one factory for each worker.

        `n_workers`: their number, or the plan of a team with sub-masters and workers of one rank each.
        """
        self.clock = ManualClock()
        self._orders = orders
        self._options, self._tasks, self._extras = options, tasks, extras
        self.plan = n_workers if isinstance(n_workers, Team) else plan_single_block(1 + n_workers).teams[0]
        #: between the master and its workers, or the top master and its sub-masters
        self._network = LoopbackNetwork(1 + self.plan.n_children()[0], shares=self.shares)
        setup = MasterSetup(
            orders=orders,
            endpoints=WorkerEndpoints(self._master_end(), extras.ranks_per_worker, self.plan.groups),
            directory=directory,
            options=options,
            clock=self.clock,
            comparison=extras.comparison,
            writes_checkpoints=extras.writes_checkpoints,
            keeps_checkpoints=extras.keeps_checkpoints,
            calls_back=extras.callbacks is not None,
        )
        self.master = Master(setup)
        self.workers: list[Worker] = []
        #: everything handed over inside the team, in order
        self.deliveries: list[Delivery] = []
        self._seat()

    def _master_end(self) -> Transport:
        end = self._network.end(MASTER)
        end.n_processes = end.size if self._extras.apart else 1
        return end

    def regroup(self, n_workers: int) -> int:
        """Let the last workers die until `n_workers` are left; messages under way are lost.

        Returns:
            The assignment that continues, -1 for none.
        """
        memories = [worker.abandon() for worker in self.workers]
        self.plan = plan_single_block(1 + n_workers).teams[0]
        self._network = LoopbackNetwork(1 + self.plan.n_children()[0], shares=self.shares)
        goes_on = self.master.regroup(self._master_end(), self.plan)
        self._seat(memories)
        return goes_on

    def _seat(self, memories: Sequence[Memory | None] = ()) -> None:
        """Make all roles but the master on the present network; `memories` of the workers before."""
        options = self._options
        self.factories = [self._tasks() for _ in range(self.plan.n_workers())]
        self.sub_masters: list[SubMaster] = []
        #: ends at which a message may wait
        self._places = [Place(self._orders, self._take_order), Place(self._network.end(MASTER), self.master.handle)]
        ends = [] if self.plan.groups else [(0, self._network.end(i)) for i in range(1, self._network.size)]
        for group in self.plan.groups:
            network, above = LoopbackNetwork(group.n_ranks), self._network.end(group.number)
            below = network.end(MASTER)
            sub_master = SubMaster(
                SubMasterSetup(above=above, below=below, team=self.plan, options=options, world_rank=200 + group.number)
            )
            self.sub_masters.append(sub_master)
            self._places.append(Place(above, sub_master.handle))
            self._places.append(Place(below, sub_master.handle, group=group.number))
            ends += [(group.number, network.end(i)) for i in range(1, group.n_ranks)]
        self.workers = []
        for i, ((number, own), factory) in enumerate(zip(ends, self.factories, strict=True), 1):
            setup = WorkerSetup(
                block=own,
                tasks=factory,
                world_rank=100 + i,
                callbacks=self._extras.callbacks if i == 1 else None,
                figure=self._extras.figure if i == 1 else None,
                memory=memories[i - 1] if i <= len(memories) else None,
            )
            worker = Worker(setup)
            self.workers.append(worker)
            self._places.append(Place(own, worker.handle, worker, number))

    def step(self, rng: np.random.Generator | None = None) -> bool:
        """Hand over the first message or have the first batch trained (`rng`: any); return False if there is none."""
        n_ends = len(self._places)
        order = range(n_ends + len(self.workers)) if rng is None else rng.permutation(n_ends + len(self.workers))
        return any(self._deliver(i) if i < n_ends else self._work(self.workers[i - n_ends]) for i in order)

    def _deliver(self, i: int) -> bool:
        """Hand over a message at the end `i`, unless it waits for a batch; return False if there is none."""
        place = self._places[i]
        end, worker = place.end, place.worker
        received = None if worker is not None and worker.works_first else end.poll()
        if received is None:
            return False
        if end is not self._orders:
            payload = None if received.payload is None else received.payload.copy()
            self.deliveries.append(Delivery(received.source, end.rank, received.message, payload, place.group))
        self.clock.advance(1.0)
        place.take(received)
        return True

    def _work(self, worker: Worker) -> bool:
        """Let a worker train a batch; return False if it has none to train."""
        if not worker.can_work:
            return False
        worker.work()
        return True

    def delivered(self, kind: type[Message], dest: int | None = None) -> list[Delivery]:
        """Return the messages of one kind that were handed over, to one end or to any."""
        return [d for d in self.deliveries if isinstance(d.message, kind) and dest in (None, d.dest)]

    def _take_order(self, received: Received) -> None:
        self.master.handle_order(received.message)


#: faults of a point, by the parameter `fault`
FAULTS = (
    "build",
    "build out of memory",
    "gradient",
    "gradient out of memory",
    "infinite loss",
    "infinite gradient",
    "evaluate",
    "infinite validation loss",
)


class FaultyAdapter(LinearAdapter):
    """A linear model that fails in one of the ways of `FAULTS` at its batch number `at`, counted from 0."""

    def __init__(self, n_features: int, seed: int, fault: str, at: int) -> None:
        super().__init__(n_features, seed)
        self._fault = fault
        self._at = at
        if fault == "build":
            raise TrialError("there is no such layer")
        if fault == "build out of memory":
            raise MemoryError

    def gradient(self, x: Any, y: Any, out: FloatVector, sample_weight: Any = None) -> Metrics:
        with np.errstate(all="ignore"):
            metrics = super().gradient(x, y, out, sample_weight)
        if self._n_batches != self._at + 1:
            return metrics
        match self._fault:
            case "gradient":
                raise ZeroDivisionError("in the gradient")
            case "gradient out of memory":
                raise MemoryError("4 GB wanted")
            case "infinite loss":
                return Metrics(metrics.n_samples, {"loss": float("inf")})
            case "infinite gradient":
                out[0] = np.inf
        return metrics

    def evaluate(self, x: Any, y: Any, sample_weight: Any = None) -> Metrics:
        with np.errstate(all="ignore"):
            metrics = super().evaluate(x, y, sample_weight)
        if self._fault == "evaluate":
            raise RuntimeError("in the evaluation")
        if self._fault == "infinite validation loss":
            return Metrics(metrics.n_samples, {"loss": float("nan")})
        return metrics


def tasks_from(
    build: Callable[[dict[str, Any], TrainingOptions, int], ModelAdapter],
    source: DataSource,
    folds: list[Fold],
    options: TrainingOptions,
    seed: int = 0,
) -> FoldTaskFactory:
    """A factory of tasks with the models that `build` makes, which need not be released."""
    return FoldTaskFactory(
        TaskSetup(build=build, release=lambda: None, source=source, folds=folds, options=options, seed=seed)
    )


def linear_tasks(
    source: DataSource, folds: list[Fold], options: TrainingOptions, seed: int = 0
) -> Callable[[], FoldTaskFactory]:
    """A maker of factories of linear models; a point may hold `fault`, one of `FAULTS`, and `at`."""

    def build(parameters: dict[str, Any], options: TrainingOptions, seed: int) -> ModelAdapter:
        (n_features,) = source.info.feature_shape
        fault, at = str(parameters.get("fault") or ""), int(parameters.get("at", 0))
        return FaultyAdapter(n_features, seed, fault, at)

    def make() -> FoldTaskFactory:
        return tasks_from(build, source, folds, options, seed)

    return make


class LoneTeam(LoopbackTeam):
    """A team with the coordinator's end of its transport in the hands of the test."""

    def __init__(
        self,
        directory: Path,
        options: TrainingOptions,
        tasks: Callable[[], TaskFactory],
        n_workers: int | Team = 1,
        extras: Extras = PLAIN,
    ) -> None:
        network = LoopbackNetwork(2)
        super().__init__(network.end(1), directory, options, tasks, n_workers, extras)
        self.directory = directory
        self.n_workers = self.plan.n_workers()
        self._coordinator = network.end(0)
        #: all messages of the master to the coordinator
        self.reports: list[Message] = []
        self._n_assignments = 0

    def order(self, message: Message) -> None:
        """Send to the master as the coordinator."""
        self._coordinator.send(1, message)

    def run_fold(self, point: Mapping[str, Any] | None = None, trial: int = 0) -> int:
        """Order fold 0 of `trial` to be trained; the number of the assignment."""
        number = self._n_assignments
        self._n_assignments += 1
        self.order(msg.RunFold(assignment=number, trial=trial, fold=0, attempt=1, point=dict(point or {})))
        return number

    def step(self, rng: np.random.Generator | None = None) -> bool:
        """Do a step of the team, and collect the messages to the coordinator."""
        stepped = super().step(rng)
        while (received := self._coordinator.poll()) is not None:
            self.reports.append(received.message)
        return stepped

    def settle(self, rng: np.random.Generator | None = None) -> Message:
        """Step until no message is on its way; the last report."""
        while self.step(rng):
            pass
        return self.reports[-1]

    def reported(self, kind: type[Reported]) -> list[Reported]:
        """The reports of one kind."""
        return [report for report in self.reports if isinstance(report, kind)]
