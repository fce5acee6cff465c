"""A rank's two transports keep no order between them: it waits for the run to open, and for its team at the end."""

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.placement import Endpoints, Placement
from nnlo_opt.app.run.rank.roles import RankRoles
from nnlo_opt.app.run.rank.server import LOOK_S, RankServer
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.block.master.endpoints import WorkerEndpoints
from nnlo_opt.core.block.master.master import Master, MasterSetup
from nnlo_opt.core.block.task import FoldTask, TaskFactory
from nnlo_opt.core.block.worker.group import MemberSetup, WorkerGroupMember
from nnlo_opt.core.block.worker.worker import Memory, Worker, WorkerSetup
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.run_messages import Inspect, Inspected, OpenRun, Shutdown
from nnlo_opt.core.comm.topology import Team, plan_single_block, reformed
from nnlo_opt.core.comm.transport import Transport
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials import unrecorded
from nnlo_opt.engine.objective.rank import ObjectiveRank
from tests.helpers.loopback_team import linear_tasks
from tests.helpers.manual_clock import ManualClock
from tests.helpers.memory_source import linear_source


class NothingToDo:
    """Workload that these tests ask for nothing."""


class NoModel(TaskFactory):
    def open(self, start: msg.StartFold) -> FoldTask:
        raise ValueError("there is no model here")


def placed(orders: Transport, team: Team, end: Transport, world_rank: int) -> Placement:
    """The place of a rank at `end` of a team, in which nobody has MPI."""
    return Placement(
        orders=orders,
        team=team,
        world_rank=world_rank,
        alive=team.world_ranks,
        comm=None,
        training_comm=None,
        endpoints=Endpoints(team=team, master_end=None, worker_end=end),
    )


class WorkerOnly(RankRoles):
    """Makes no role but a worker."""

    def __init__(self, orders: Transport, network: LoopbackNetwork, tasks: TaskFactory) -> None:
        self.placement = placed(orders, plan_single_block(3).teams[0], network.end(1), 2)
        self._network = network
        self._tasks = tasks

    def open(self, run: OpenRun) -> None: ...

    def master(self, run: OpenRun) -> Master | None:
        return None

    def follower(self, run: OpenRun) -> WorkerGroupMember | None:
        return None

    def objective(self, run: OpenRun, before: ObjectiveRank | None) -> ObjectiveRank | None:
        return None

    def worker(self, run: OpenRun, memory: Memory | None) -> Worker | None:
        return Worker(WorkerSetup(block=self._network.end(1), tasks=self._tasks, world_rank=2, memory=memory))


class FollowerOnly(WorkerOnly):
    def worker(self, run: OpenRun, memory: Memory | None) -> Worker | None:
        return None

    def follower(self, run: OpenRun) -> WorkerGroupMember | None:
        return WorkerGroupMember(
            MemberSetup(block=self._network.end(1), leader=0, tasks=self._tasks, world_rank=2, together=NoOthers())
        )


class NoOthers:
    def sum_in_place(self, vector: np.ndarray) -> None: ...


def settle(server: RankServer) -> None:
    """Let the rank work until there is nothing to do."""
    while server.step():
        pass


def server_of(roles: RankRoles, workload: Any = None) -> RankServer:
    return RankServer(roles, workload or NothingToDo(), ProcessContext())


def test_a_message_of_the_master_that_overtakes_the_opening_of_the_run_is_taken_in_after_it() -> None:
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    server = server_of(WorkerOnly(world.end(1), team, NoModel()))
    master, coordinator = team.end(0), world.end(0)

    master.send(1, msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=1))
    settle(server)
    assert master.poll() is None, "nothing may be answered before the run is open"

    coordinator.send(1, OpenRun(directory="run"))
    settle(server)
    answer = master.poll()
    assert answer is not None
    assert isinstance(answer.message, msg.FoldFailed)
    assert "there is no model here" in answer.message.reason


@pytest.mark.parametrize("roles", [WorkerOnly, FollowerOnly])
def test_the_order_to_leave_waits_for_the_team_to_end_its_assignment(roles: type[WorkerOnly]) -> None:
    """Whoever is on the way to a step with this rank must still meet it there."""
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    tasks = linear_tasks(linear_source(8), [single_fold(6, 2)], TrainingOptions(batch=2))()
    server = server_of(roles(world.end(1), team, tasks))
    leader, coordinator = team.end(0), world.end(0)
    coordinator.send(1, OpenRun(directory="run"))
    leader.send(1, msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=1))
    settle(server)
    coordinator.send(1, Shutdown(exit_code=3))
    leader.send(1, msg.Validate(assignment=0), np.zeros(5, np.float32))
    leader.send(1, msg.EndFold(assignment=0))
    assert server.serve() == 3
    answers = [type(received.message) for received in iter(leader.poll, None)]
    assert answers == [msg.WorkerReady, msg.Validated]


def test_a_rank_without_an_assignment_leaves_at_once() -> None:
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    server = server_of(WorkerOnly(world.end(1), team, NoModel()))
    world.end(0).send(1, OpenRun(directory="run"))
    world.end(0).send(1, Shutdown(exit_code=0))
    assert server.serve() == 0


def test_a_worker_that_needs_no_message_looks_for_one_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    options = TrainingOptions(batch=2, mode="allreduce")
    tasks = linear_tasks(linear_source(80), [single_fold(60, 20)], options)()
    server = server_of(WorkerOnly(world.end(1), team, tasks))
    master = team.end(0)
    ticks = count()
    monkeypatch.setattr("nnlo_opt.core.block.worker.worker.time.perf_counter", lambda: next(ticks) * LOOK_S / 5)

    def answers() -> list[Any]:
        return [received.message for received in iter(master.poll, None)]

    world.end(0).send(1, OpenRun(directory="run"))
    master.send(1, msg.StartFold(assignment=4, trial=0, fold=0, point={}, worker=1, n_workers=1))
    master.send(1, msg.Train(assignment=4, version=0, adopt="weights"), np.zeros(5, np.float32))
    for _ in range(4):  # the last trains: there was no other message
        assert server.step()
    master.send(1, msg.Fence(assignment=4))
    assert server.step()
    ready, reached = answers()
    assert isinstance(ready, msg.WorkerReady)
    assert isinstance(reached, msg.FenceReached)
    assert reached.n_samples == 5 * 2, "the batches before it looked"


# ---------------------------------------------------------------- ranks that die


class Survivors(WorkerOnly):
    """Roles of a team whose ranks die: the second of three ranks leads when the first is dead."""

    def __init__(self, orders: LoopbackNetwork, directory: Path) -> None:
        self._orders = orders
        self._directory = directory
        self.networks = [LoopbackNetwork(3)]
        options = TrainingOptions(batch=2)
        tasks = linear_tasks(linear_source(8), [single_fold(6, 2)], options)()
        super().__init__(orders.end(2, vital=[0]), self.networks[0], tasks)
        end = self.networks[0].end(1, vital=[0, 2])
        self.placement = placed(self.placement.orders, self.placement.team, end, 2)

    def regroup(self, run: OpenRun) -> None:
        team = reformed(plan_single_block(4).teams[0], (2, 3))
        assert team is not None
        self._network = LoopbackNetwork(2)
        self.networks.append(self._network)
        self.placement = placed(self.placement.orders, team, self._network.end(0, vital=[1]), 2)

    def master(self, run: OpenRun) -> Master | None:
        if len(self.networks) == 1:
            return None
        options = TrainingOptions(batch=2)
        return Master(
            MasterSetup(
                orders=self._orders.end(2),
                endpoints=WorkerEndpoints(self.networks[-1].end(0)),
                directory=self._directory,
                options=options,
                clock=ManualClock(),
            )
        )

    def worker(self, run: OpenRun, memory: Memory | None) -> Worker | None:
        return super().worker(run, memory) if len(self.networks) == 1 else None


def serving(tmp_path: Path) -> tuple[LoopbackNetwork, Survivors, RankServer]:
    world = LoopbackNetwork(4)
    roles = Survivors(world, tmp_path)
    server = server_of(roles)
    world.end(0).send(2, OpenRun(directory=str(tmp_path)))
    settle(server)
    return world, roles, server


def test_the_lowest_rank_that_is_left_becomes_the_master_and_says_so(tmp_path: Path) -> None:
    world, roles, server = serving(tmp_path)
    coordinator = world.end(0)
    roles.networks[0].end(0).send(1, msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=1))
    settle(server)
    roles.networks[0].lose(0)
    assert server.step()
    told = coordinator.poll()
    assert told is not None
    assert told.message == msg.TeamReformed(alive=[2, 3], world_ranks=[2, 3], n_masters=1, taken=-1, goes_on=-1)
    coordinator.send(2, msg.RunFold(assignment=1, trial=0, fold=0, attempt=2, point={}))
    settle(server)
    start = roles.networks[1].end(1).poll()
    assert start is not None
    assert isinstance(start.message, msg.StartFold)
    coordinator.send(2, Shutdown(exit_code=0))
    assert server.serve() == 0


def test_a_rank_of_another_team_may_die_without_consequence(tmp_path: Path) -> None:
    world, roles, server = serving(tmp_path)
    world.lose(3)
    assert not server.step()
    assert len(roles.networks) == 1


def test_without_a_coordinator_a_rank_keeps_what_is_finished_and_leaves(tmp_path: Path) -> None:
    world, roles, server = serving(tmp_path)
    roles.networks[0].lose(0)
    server.step()  # it leads now
    coordinator, worker = world.end(0), roles.networks[1].end(1)
    coordinator.send(2, msg.RunFold(assignment=4, trial=2, fold=0, attempt=3, point={"x": 1.5}))
    server.step()
    finished = msg.FoldFinished(assignment=4, figure_of_merit=0.5, metrics={}, n_epochs=1, train_s=2.0)
    assert server._master is not None
    order = msg.RunFold(assignment=4, trial=2, fold=0, attempt=3, point={"x": 1.5})
    server._master.results.add(order, finished)
    world.lose(0)
    assert server.serve() == 1
    (kept,) = unrecorded.read(tmp_path)
    assert (kept.trial, kept.attempt, kept.point, kept.result.figure_of_merit) == (2, 3, {"x": 1.5}, 0.5)
    assert worker.poll() is not None, "what was sent had been sent"


class StillAWorker(WorkerOnly):
    """Roles of the second of three ranks when the third dies."""

    def __init__(self, orders: Transport, network: LoopbackNetwork, tasks: TaskFactory) -> None:
        super().__init__(orders, network, tasks)
        self.placement = placed(orders, self.placement.team, network.end(1, vital=[0, 2]), 1)

    def regroup(self, run: OpenRun) -> None:
        self._network = LoopbackNetwork(2)
        team = reformed(plan_single_block(3).teams[0], (0, 1))
        assert team is not None
        self.placement = placed(self.placement.orders, team, self._network.end(1), 1)


def test_a_worker_that_survives_keeps_its_own_weights() -> None:
    world, before = LoopbackNetwork(2), LoopbackNetwork(3)
    options = TrainingOptions(batch=2, mode="easgd", sync_every=1, optimizer="sgd", learning_rate=1e-6)
    roles = StillAWorker(world.end(1), before, linear_tasks(linear_source(8), [single_fold(6, 2)], options)())
    server = server_of(roles)
    world.end(0).send(1, OpenRun(directory="run"))

    def pushed(network: LoopbackNetwork, n_workers: int, value: float) -> np.ndarray:
        """What the worker pushes first when it is given weights of this value."""
        master = network.end(0)
        master.send(1, msg.StartFold(assignment=7, trial=0, fold=0, point={}, worker=1, n_workers=n_workers))
        master.send(1, msg.Train(assignment=7, version=0, adopt="weights"), np.full(5, value, np.float32))
        settle(server)
        (payload,) = [
            received.payload.copy()
            for received in iter(master.poll, None)
            if isinstance(received.message, msg.PushUpdate) and received.payload is not None
        ]
        return payload

    assert pushed(before, 2, 3.0) == pytest.approx(3.0, abs=1e-3)
    before.lose(2)
    assert server.step()
    assert pushed(roles._network, 1, 9.0) == pytest.approx(3.0, abs=1e-3)


class Unprepared(NothingToDo):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def follow(self, **followed: Any) -> None: ...

    def prepare(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigurationError("The model needs the package torch."), "The model needs the package torch."),
        (ImportError("libcuda.so"), "Model or data could not be read: ImportError: libcuda.so"),
    ],
)
def test_a_model_whose_framework_is_missing_is_told_by_the_rank_that_reports(error: Exception, told: str) -> None:
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    server, coordinator = server_of(WorkerOnly(world.end(1), team, NoModel()), Unprepared(error)), world.end(0)
    for report in (False, True):
        coordinator.send(1, Inspect(report=report))
        assert server.step()
    answer = coordinator.poll()
    assert answer is not None
    assert isinstance(answer.message, Inspected)
    assert answer.message.error.partition(" (`")[0] == told  # a foreign error has its place behind it
    assert answer.message.findings == {}
    assert coordinator.poll() is None
