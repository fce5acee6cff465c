"""Every rank's part of a command: its role from the topology, its server from its role."""

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnlo_opt.block.master import Master
from nnlo_opt.block.objective import ObjectiveRank
from nnlo_opt.block.server import RankServer
from nnlo_opt.block.worker import Worker
from nnlo_opt.cli.options import Options
from nnlo_opt.cli.workplace import Workplace
from nnlo_opt.clock import SystemClock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.mpi import Gate, GatedComm, MpiTransport
from nnlo_opt.comm.topology import Team
from nnlo_opt.comm.transport import Transport
from nnlo_opt.log import RankOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank stands: its ends of the transports, and its team's communicator."""

    team: Team
    #: leads to the coordinator
    orders: Transport
    #: mpi4py communicator of the team
    comm: Any
    #: this rank's end as the team's master; None for a worker
    master_end: Transport | None
    #: this rank's end as a worker; None for a master with workers of their own ranks
    worker_end: Transport | None

    @classmethod
    def of(cls, team: Team, orders: Transport, comm: Any) -> "Place":
        """Collective: every rank of `comm`, the communicator of the team."""
        if comm.Get_size() == 1:
            network = LoopbackNetwork(2)
            return cls(team=team, orders=orders, comm=comm, master_end=network.end(0), worker_end=network.end(1))
        end = MpiTransport(comm.Dup())
        is_master = end.rank == 0
        return cls(
            team=team,
            orders=orders,
            comm=comm,
            master_end=end if is_master else None,
            worker_end=None if is_master else end,
        )


class _Roles:
    """Makes the roles of one rank."""

    def __init__(
        self, place: Place, options: Options, workplace: Workplace, output: RankOutput, searches: bool
    ) -> None:
        self._place = place
        self._options = options
        self._workplace = workplace
        self._output = output
        self._searches = searches

    def master(self, run: msg.OpenRun) -> Master | None:
        self._output.open_log(Path(run.directory))
        end = self._place.master_end
        if end is None or run.settings["kind"] == "objective":
            return None
        directory = Path(run.directory)
        master = Master(self._place.orders, end, directory, self._options.training, SystemClock())
        # A search keeps the weights of every fold; a training also what it takes to train on.
        master.keeps_checkpoints = not self._searches
        return master

    def worker(self, run: msg.OpenRun) -> Worker | None:
        end = self._place.worker_end
        if end is None or run.settings["kind"] == "objective":
            return None
        return Worker(end, self._workplace.tasks(), self._place.orders.rank)

    def objective(self, run: msg.OpenRun) -> ObjectiveRank | None:
        if run.settings["kind"] != "objective":
            return None
        place = self._place
        # A team of one has two ends, master and worker; an objective needs one, with nobody else.
        block = LoopbackNetwork(1).end(0) if place.comm.Get_size() == 1 else place.master_end or place.worker_end
        assert block is not None

        def make_comm(gate: Gate) -> GatedComm:
            return GatedComm(place.comm, gate)

        return ObjectiveRank(place.orders, block, self._workplace.definition.objective, make_comm, SystemClock())


def make_server(place: Place, options: Options, n_threads: int, output: RankOutput, *, searches: bool) -> RankServer:
    """The server of a rank that is not only the coordinator."""
    workplace = Workplace(options, n_threads, searches)
    return RankServer(
        place.orders, place.master_end, place.worker_end, workplace, _Roles(place, options, workplace, output, searches)
    )


def story_of(world_rank: int, error: BaseException) -> str:
    """What to tell when this rank fails by a bug of ours: the traceback, and the messages that led to it."""
    lines = [f"rank {world_rank} failed; please report this:", *traceback.format_exception(error)]
    return "\n".join(line.rstrip() for line in lines)
