"""Team in one process: a real master with real workers on loopback transports, one message at a time.

`app.run.rank.roles` makes the roles, as for the ranks of a job. A message moves only when the test says so, in the
order that it chooses, so every interleaving can be replayed. To drop a team is a crash of all its ranks; `regroup` is a
crash of some of its workers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import numpy as np

from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.placement import Endpoints, Placement
from nnlo_opt.app.run.rank.roles import RankRoles, RoleSetup
from nnlo_opt.app.run.workload.fold_tasks import Feeding, FoldTasks, model_seed
from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.block.task import FoldTask, TaskFactory
from nnlo_opt.core.block.worker.worker import Memory, Worker
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.messages import Message, StartFold
from nnlo_opt.core.comm.run_messages import OpenRun
from nnlo_opt.core.comm.topology import Topology, plan_single_block
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.data.folds import Fold
from nnlo_opt.core.data.source import DataSource
from nnlo_opt.core.models.adapter import Metrics, ModelAdapter
from nnlo_opt.core.models.layout import FloatVector
from nnlo_opt.core.training.options import TrainingOptions, model_parameters
from nnlo_opt.core.trials.checkpoint import fold_directory
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.core.trials.run_directory import RunRequest
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.manual_clock import ManualClock

Reported = TypeVar("Reported", bound=Message)
#: makes the model of a point, with options and a seed
Build = Callable[[dict[str, Any], TrainingOptions, int], ModelAdapter]

#: position of the master in its team, and its number on the transport of the team
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
    #: the user's figure of merit, a static method
    figure: ClassVar[Any] = None

    def __init__(
        self,
        orders: Transport,
        directory: Path,
        options: TrainingOptions,
        tasks: Callable[[], TaskFactory],
        n_workers: int | Topology,
        *,
        apart: bool = False,
        **roles: Any,
    ) -> None:
        """`orders` leads to the coordinator; `tasks` makes one factory for each rank that trains, in their order.

        `n_workers`: their number, or the plan of one team, whose sub-masters have workers of one rank each.
        `apart`: as if every rank had a process of its own, so that workers overlap.
        `roles`: further values of `RoleSetup`, `comparison`, and `is_one_training` of its workload.
        """
        self.clock = ManualClock()
        self._run = OpenRun(directory=str(directory))
        self._orders, self._options, self._tasks, self._apart = orders, options, tasks, apart
        self._given = roles
        self._is_one_training = self._given.pop("is_one_training", False)
        self._comparison = self._given.pop("comparison", Comparison())
        self._join(n_workers if isinstance(n_workers, Topology) else plan_single_block(1 + n_workers))
        master = self._roles(MASTER, self.endpoints_at(MASTER)).master(self._run)
        assert master is not None
        self.master = master
        #: everything handed over inside the team, in order
        self.deliveries: list[Delivery] = []
        self._script_rank()

    def endpoints_at(self, position: int) -> Endpoints:
        """Return the endpoints of the rank at `position` of the team."""
        group = self.plan.group_of(position)
        if group is not None:
            above = self._networks[0].end(group.number) if position == group.head else None
            end = self._networks[group.number].end(position - group.head)
            return Endpoints(team=self.plan, master_end=None, above=above, worker_end=end)
        end = self._networks[0].end(position)
        if self._apart and position == MASTER:
            end.n_processes = end.size
        return Endpoints(team=self.plan, master_end=end if position == MASTER else None, worker_end=end)

    def regroup(self, n_workers: int) -> int:
        """Let the last workers die until `n_workers` are left; messages under way are lost.

        Returns:
            The assignment that continues, -1 for none.
        """
        memories = [worker.abandon() for worker in self.workers]
        self._join(plan_single_block(1 + n_workers))
        goes_on = self.master.regroup(self.endpoints_at(MASTER).worker_end, self.plan)
        self._script_rank(memories)
        return goes_on

    def _join(self, topology: Topology) -> None:
        """Join the ranks of the first team by new networks."""
        self._topology, self.plan = topology, topology.teams[0]
        n_ends = 1 + len(self.plan.groups) if self.plan.groups else len(self.plan.world_ranks)
        #: between the master and its workers, or the top master and its sub-masters; then one for each group
        self._networks = [LoopbackNetwork(n_ends, shares=self.shares)]
        self._networks += [LoopbackNetwork(group.n_ranks) for group in self.plan.groups]

    def _roles(self, position: int, endpoints: Endpoints, tasks: TaskFactory | None = None) -> RankRoles:
        """Return the roles of the rank at `position`, which trains if it has `tasks`."""
        alone = Placement.of(self.plan, self._orders, None)
        placement = alone.replaced(world_rank=self.plan.world_ranks[position], endpoints=endpoints)
        opened = {} if tasks is None else {"open": tasks.open, "close": tasks.close}
        workload: Any = SimpleNamespace(
            judge=self.figure, callbacks=lambda task: None, searches=not self._is_one_training, **opened
        )
        run = RunRequest(root=Path(), name=None)
        setup = RoleSetup(
            topology=self._topology,
            options=Options(model="linear", training=self._options, run=run, comparison=self._comparison),
            workload=workload,
            context=ProcessContext(),
            clock=self.clock,
            **self._given,
        )
        return RankRoles(placement, setup)

    def _script_rank(self, memories: Iterable[Memory | None] = ()) -> None:
        """Make all roles but the master on the present networks; `memories` of the workers before."""
        remembered = iter(memories)
        #: of the ranks that train, in their order
        self.factories: list[TaskFactory] = []
        self.workers: list[Worker] = []
        #: ends at which a message may wait
        self._places = [
            Place(self._orders, lambda received: self.master.handle_order(received.message)),
            Place(self._networks[0].end(MASTER), self.master.handle),
        ]
        # Sub-masters come first, then the ranks of the workers in their order.
        for position in sorted(range(1, len(self.plan.world_ranks)), key=self.plan.worker_of):
            endpoints, group = self.endpoints_at(position), self.plan.group_of(position)
            number = 0 if group is None else group.number
            if endpoints.above is None:
                self.factories.append(self._tasks())
            roles = self._roles(position, endpoints, self.factories[-1] if self.factories else None)
            worker = roles.worker(self._run, next(remembered, None)) if endpoints.is_worker else None
            follower = roles.follower(self._run)
            if worker is not None:
                self.workers.append(worker)
                self._places.append(Place(endpoints.worker_end, partial(_hand, worker), worker, number))
            elif follower is not None:
                ends = [(end, number if end is endpoints.worker_end else 0) for end in endpoints.transports]
                self._places += [Place(end, follower.handle, group=of_end) for end, of_end in ends]

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


def _hand(worker: Worker, received: Received) -> None:
    """Hand a worker a message of its master, or an answer of a member of its group."""
    (worker.handle if received.source == MASTER else worker.handle_follower)(received)


#: faults of a point, by the parameter `fault`
FAULTS = ("build", "build out of memory", "gradient", "gradient out of memory", "infinite loss", "infinite gradient")
FAULTS += ("evaluate", "infinite validation loss")


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


@dataclass(kw_only=True)
class BuiltTasks:
    """Tasks with the models that `build` makes, as a workload opens them."""

    build: Build
    source: DataSource
    folds: list[Fold]
    options: TrainingOptions
    seed: int = 0
    feeding: Feeding = field(default_factory=Feeding)
    release: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._tasks = FoldTasks(source=self.source, folds=self.folds, seed=self.seed, feeding=self.feeding)

    def open(self, start: StartFold) -> FoldTask:
        self._tasks.close()
        options = self.options.with_point(start.point)
        adapter = self.build(model_parameters(start.point), options, model_seed(self.seed, start))
        return self._tasks.task(start, adapter, options)

    def close(self) -> None:
        self._tasks.close()
        self.release()


def tasks_from(build: Build, source: DataSource, folds: list[Fold], options: TrainingOptions) -> BuiltTasks:
    """A factory of tasks with the models that `build` makes, which need not be released."""
    return BuiltTasks(build=build, source=source, folds=folds, options=options)


def linear_tasks(source: DataSource, folds: list[Fold], options: TrainingOptions) -> Callable[[], BuiltTasks]:
    """A maker of factories of linear models; a point may hold `fault`, one of `FAULTS`, and `at`."""

    def build(parameters: dict[str, Any], options: TrainingOptions, seed: int) -> ModelAdapter:
        (n_features,) = source.info.feature_shape
        fault, at = str(parameters.get("fault") or ""), int(parameters.get("at", 0))
        return FaultyAdapter(n_features, seed, fault, at)

    return partial(tasks_from, build, source, folds, options)


def attempts_at(directory: Path, trial: int) -> list[tuple[int, int]]:
    """Term and number of the attempts at fold 0 of a trial that have a folder of their own, oldest first."""
    folders = fold_directory(directory, trial, 0).glob("attempt-*")
    return sorted((int(term), int(number)) for term, number in (path.name.split("-")[1:] for path in folders))


class LoneTeam(LoopbackTeam):
    """A team with the coordinator's end of its transport in the hands of the test."""

    #: term of its assignments; from 1 on, each has a folder of its own
    term = 0

    def __init__(
        self,
        directory: Path,
        options: TrainingOptions,
        tasks: Callable[[], TaskFactory],
        n_workers: int | Topology = 1,
        **how: Any,
    ) -> None:
        network = LoopbackNetwork(2)
        super().__init__(network.end(1), directory, options, tasks, n_workers, **how)
        self.directory = directory
        self._coordinator = network.end(0)
        #: all messages of the master to the coordinator
        self.reports: list[Message] = []
        self._n_assignments = 0

    def order(self, message: Message) -> None:
        """Send to the master as the coordinator."""
        self._coordinator.send(1, message)

    def run_fold(self, point: Mapping[str, Any] | None = None, trial: int = 0) -> int:
        """Order fold 0 of `trial` to be trained; the number of the assignment."""
        before = attempts_at(self.directory, trial) if self.term else []
        number = max([self._n_assignments, *(number + 1 for _, number in before)])
        self._n_assignments = number + 1
        shared = {"term": self.term, "before": before}
        self.order(msg.RunFold(assignment=number, trial=trial, fold=0, attempt=1, point=dict(point or {}), **shared))
        return number

    def step(self, rng: np.random.Generator | None = None) -> bool:
        """Do a step of the team, and collect the messages to the coordinator."""
        stepped = super().step(rng)
        while (received := self._coordinator.poll()) is not None:
            self.reports.append(received.message)
        return stepped

    def steps(self, n: int, rng: np.random.Generator | None = None) -> None:
        """Do so many steps, or as many as there are."""
        for _ in range(n):
            self.step(rng)

    def settle(self, rng: np.random.Generator | None = None) -> Message:
        """Step until no message is on its way; the last report."""
        while self.step(rng):
            pass
        return self.reports[-1]

    def reported(self, kind: type[Reported]) -> list[Reported]:
        """The reports of one kind."""
        return [report for report in self.reports if isinstance(report, kind)]
