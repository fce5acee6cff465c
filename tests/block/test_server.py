"""A rank's two transports keep no order between them: it waits for the run to open, and for its team at the end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnlo_opt.block.master import Master
from nnlo_opt.block.objective import ObjectiveRank
from nnlo_opt.block.ring import RingFollower
from nnlo_opt.block.server import RankServer
from nnlo_opt.block.worker import Worker
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.run_messages import OpenRun, Shutdown
from nnlo_opt.config import TrainingOptions
from nnlo_opt.data.folds import single_fold
from nnlo_opt.testing.loopback_team import linear_tasks
from nnlo_opt.testing.memory_source import linear_source
from nnlo_opt.training.task import FoldTask, TaskFactory


class NothingToDo:
    def prepare(self) -> None: ...

    def inspect(self, space_data: dict[str, Any] | None) -> dict[str, Any]:
        return {}

    def export(self, point: dict[str, Any], weights_directory: Path, path: Path) -> Path:
        return path


class NoModel:
    def open(self, start: msg.StartFold) -> FoldTask:
        raise ValueError("there is no model here")

    def close(self) -> None: ...


class WorkerOnly:
    def __init__(self, network: LoopbackNetwork, tasks: TaskFactory) -> None:
        self._network = network
        self._tasks = tasks

    def master(self, run: OpenRun) -> Master | None:
        return None

    def worker(self, run: OpenRun) -> Worker | None:
        return Worker(self._network.end(1), self._tasks, world_rank=2)

    def follower(self, run: OpenRun) -> RingFollower | None:
        return None

    def objective(self, run: OpenRun) -> ObjectiveRank | None:
        return None


class FollowerOnly(WorkerOnly):
    def worker(self, run: OpenRun) -> Worker | None:
        return None

    def follower(self, run: OpenRun) -> RingFollower | None:
        return RingFollower(self._network.end(1), 0, self._tasks, 2, NoOthers())


class NoOthers:
    def sum_in_place(self, vector: np.ndarray) -> None: ...


def test_a_message_of_the_master_that_overtakes_the_opening_of_the_run_is_taken_in_after_it() -> None:
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    server = RankServer(world.end(1), [team.end(1)], NothingToDo(), WorkerOnly(team, NoModel()))
    master, coordinator = team.end(0), world.end(0)

    master.send(1, msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=1))
    while server.step():
        pass
    assert master.poll() is None, "nothing may be answered before the run is open"

    coordinator.send(1, OpenRun(directory="run", settings={"kind": "model"}))
    while server.step():
        pass
    answer = master.poll()
    assert answer is not None
    assert isinstance(answer.message, msg.WorkerFailed)
    assert "there is no model here" in answer.message.reason


@pytest.mark.parametrize("roles", [WorkerOnly, FollowerOnly])
def test_the_order_to_leave_waits_for_the_team_to_end_its_assignment(roles: type[WorkerOnly]) -> None:
    """Whoever is on the way to a step with this rank must still meet it there."""
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    tasks = linear_tasks(linear_source(8), [single_fold(6, 2)], TrainingOptions(batch=2))()
    server = RankServer(world.end(1), [team.end(1)], NothingToDo(), roles(team, tasks))
    leader, coordinator = team.end(0), world.end(0)
    coordinator.send(1, OpenRun(directory="run", settings={"kind": "model"}))
    leader.send(1, msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=1))
    while server.step():
        pass
    coordinator.send(1, Shutdown(exit_code=3))
    leader.send(1, msg.Validate(assignment=0), np.zeros(5, np.float32))
    leader.send(1, msg.EndFold(assignment=0))
    assert server.serve() == 3
    answers = [type(received.message) for received in iter(leader.poll, None)]
    assert answers == [msg.WorkerReady, msg.Validated]


def test_a_rank_without_an_assignment_leaves_at_once() -> None:
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    server = RankServer(world.end(1), [team.end(1)], NothingToDo(), WorkerOnly(team, NoModel()))
    world.end(0).send(1, OpenRun(directory="run", settings={"kind": "model"}))
    world.end(0).send(1, Shutdown(exit_code=0))
    assert server.serve() == 0
