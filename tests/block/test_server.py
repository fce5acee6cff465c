"""A rank's two transports keep no order between them: what the team sends early has to wait for the run to open."""

from pathlib import Path
from typing import Any

from nnlo_opt.block.master import Master
from nnlo_opt.block.objective import ObjectiveRank
from nnlo_opt.block.ring import RingFollower
from nnlo_opt.block.server import RankServer
from nnlo_opt.block.worker import Worker
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.training.task import FoldTask


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
    def __init__(self, network: LoopbackNetwork) -> None:
        self._network = network

    def master(self, run: msg.OpenRun) -> Master | None:
        return None

    def worker(self, run: msg.OpenRun) -> Worker | None:
        return Worker(self._network.end(1), NoModel(), world_rank=2)

    def follower(self, run: msg.OpenRun) -> RingFollower | None:
        return None

    def objective(self, run: msg.OpenRun) -> ObjectiveRank | None:
        return None


def test_a_message_of_the_master_that_overtakes_the_opening_of_the_run_is_taken_in_after_it() -> None:
    world, team = LoopbackNetwork(2), LoopbackNetwork(2)
    server = RankServer(world.end(1), [team.end(1)], NothingToDo(), WorkerOnly(team))
    master, coordinator = team.end(0), world.end(0)

    master.send(1, msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=1))
    while server.step():
        pass
    assert master.poll() is None, "nothing may be answered before the run is open"

    coordinator.send(1, msg.OpenRun(directory="run", settings={"kind": "model"}))
    while server.step():
        pass
    answer = master.poll()
    assert answer is not None
    assert isinstance(answer.message, msg.WorkerFailed)
    assert "there is no model here" in answer.message.reason
