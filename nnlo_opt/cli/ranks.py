"""Every rank's part of a command: its role from the topology, its server from its role, its share of the node."""

import logging
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnlo_opt.block.master import Master
from nnlo_opt.block.objective import ObjectiveRank
from nnlo_opt.block.ring import RingFollower
from nnlo_opt.block.server import RankServer
from nnlo_opt.block.submaster import SubMaster
from nnlo_opt.block.worker import Worker
from nnlo_opt.cli.ends import Ends
from nnlo_opt.cli.options import Options
from nnlo_opt.cli.watch import begin_watch, meet_node
from nnlo_opt.cli.workplace import Workplace
from nnlo_opt.clock import SystemClock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.mpi import Gate, GatedComm, World
from nnlo_opt.comm.run_messages import OpenRun
from nnlo_opt.comm.topology import Team, Topology
from nnlo_opt.comm.transport import Transport
from nnlo_opt.devices import NodeShare, cores, pack_cores, share_node, unpack_cores
from nnlo_opt.log import RankOutput
from nnlo_opt.models.builders import names_objective
from nnlo_opt.preemption import Preemption
from nnlo_opt.training.monitor import Monitor, make_monitor
from nnlo_opt.training.task import FoldTask, FoldTaskFactory
from nnlo_opt.training.timeline import Timeline, rank_label
from nnlo_opt.watchdog import Watchdog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a rank has from its first lines on."""

    output: RankOutput
    timeline: Timeline
    preemption: Preemption
    watchdog: Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a rank has to work with, and writes to."""

    n_threads: int
    output: RankOutput
    timeline: Timeline
    #: None: what the rank takes of its machine is not measured
    monitor: Monitor | None
    preemption: Preemption
    watchdog: Watchdog
    topology: Topology

    @classmethod
    def of(cls, world: World, topology: Topology, options: Options, own: Own) -> "Means":
        """Settle and take this rank's share of its node, before a framework is imported. Collective: every rank."""
        share = _share(world, topology, options)
        share.take()
        logger.info("this rank has %s", share.text())
        team = topology.teams[0] if world.size == 1 else topology.team_of_rank(world.rank)
        label = rank_label(world.rank, team, coordinates=world.rank == 0)
        own.timeline.name(label)
        meet_node(own.watchdog, world)
        monitor = make_monitor(SystemClock(), share.gpu) if options.monitor else None
        return cls(
            n_threads=share.n_threads,
            output=own.output,
            timeline=own.timeline,
            monitor=monitor,
            preemption=own.preemption,
            watchdog=own.watchdog,
            topology=topology,
        )


def _share(world: World, topology: Topology, options: Options) -> NodeShare:
    packed = world.on_node(pack_cores(cores()))
    # Where a search chooses the update rule, it is not known yet: masters then count as ranks that do not train.
    every_rank = options.training.mode == "allreduce" or names_objective(options.model)
    trainers = {rank for team in topology.teams for rank in team.trainer_ranks(every_rank=every_rank)}
    masters = {rank for team in topology.teams for rank in (team.master_rank, *team.sub_master_ranks)}
    if world.size == 1:
        trainers = masters = {0}
    return share_node(
        world.rank, {rank: unpack_cores(own) for rank, own in packed.items()}, trainers, masters, options.gpus
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank stands: between the coordinator and its team."""

    #: leads to the coordinator
    orders: Transport
    #: mpi4py communicator of the team
    comm: Any
    #: its ends in the team
    ends: Ends

    @classmethod
    def of(cls, team: Team, orders: Transport, comm: Any) -> "Place":
        """Collective: every rank of `comm`, the communicator of the team."""
        return cls(orders=orders, comm=comm, ends=Ends.of(team, comm))


class _Roles:
    """Makes the roles of one rank."""

    def __init__(self, place: Place, options: Options, workplace: Workplace, means: Means, searches: bool) -> None:
        self._place = place
        self._options = options
        self._workplace = workplace
        self._means = means
        self._searches = searches

    def master(self, run: OpenRun) -> Master | None:
        directory, timeline = Path(run.directory), self._means.timeline
        self._means.output.open_log(directory)
        timeline.open(directory)
        begin_watch(self._means.watchdog, self._means.topology, directory)
        end = self._place.ends.master_end
        if end is None or run.settings["kind"] == "objective":
            return None
        master = Master(self._place.orders, end, directory, self._options.training, SystemClock(), timeline)
        # A search keeps the weights of every fold; a training also what it takes to train on.
        master.keeps_checkpoints = not self._searches
        team = self._place.ends.team
        master.ranks_per_worker, master.groups = team.ranks_per_worker, team.groups
        master.comparison = self._options.comparison
        return master

    def worker(self, run: OpenRun) -> Worker | None:
        ends, means = self._place.ends, self._means
        if run.settings["kind"] == "objective" or not ends.is_worker:
            return None
        world_rank = self._place.orders.rank
        worker = Worker(ends.worker_end, self._tasks(), world_rank, ends.partners(), means.timeline, means.monitor)
        if self._options.comparison.function is not None:
            worker.figure = self._judge
        return worker

    def _judge(self, fold: dict[str, Any]) -> Any:
        # Its module is loaded when it is wanted: on worker 1 alone.
        figure = self._workplace.figure
        assert figure is not None
        return figure.function(fold)

    def follower(self, run: OpenRun) -> RingFollower | SubMaster | None:
        ends, world_rank, timeline = self._place.ends, self._place.orders.rank, self._means.timeline
        if run.settings["kind"] == "objective":
            return None
        if ends.above is not None:
            return SubMaster(ends.above, ends.worker_end, ends.team, self._options.training, world_rank, timeline)
        if ends.ring is None or not ends.is_follower:
            return None
        return RingFollower(ends.worker_end, ends.leader_end, self._tasks(), world_rank, ends.ring, timeline)

    def _tasks(self) -> "_LateTasks":
        return _LateTasks(self._workplace, searches=self._searches)

    def objective(self, run: OpenRun) -> ObjectiveRank | None:
        if run.settings["kind"] != "objective":
            return None
        place = self._place
        # A team of one has two ends, master and worker; an objective needs one, with nobody else.
        block = LoopbackNetwork(1).end(0) if place.comm.Get_size() == 1 else place.ends.worker_end

        def make_comm(gate: Gate) -> GatedComm:
            return GatedComm(place.comm, gate)

        objective = self._workplace.definition.objective
        rank = ObjectiveRank(place.orders, block, objective, make_comm, SystemClock())
        rank.comparison = self._options.comparison
        return rank


class _LateTasks:
    """The tasks of a rank, made when the first is wanted: a master that never trains reads no data."""

    def __init__(self, workplace: Workplace, *, searches: bool) -> None:
        self._workplace = workplace
        self._searches = searches
        self._tasks: FoldTaskFactory | None = None

    def open(self, start: msg.StartFold) -> FoldTask:
        if self._tasks is None:
            self._workplace.prepare()
            self._tasks = self._workplace.tasks()
        # The pieces of a training that was continued are trials to the journal, and one training to its batches.
        return self._tasks.open(start if self._searches else replace(start, trial=0))

    def close(self) -> None:
        if self._tasks is not None:
            self._tasks.close()


def make_server(place: Place, options: Options, means: Means, *, searches: bool) -> RankServer:
    """The server of a rank that is not only the coordinator; one of another rank is watched from now on."""
    if means.watchdog.world_rank:
        means.watchdog.start()
    workplace = Workplace(options, means.n_threads, searches)
    roles = _Roles(place, options, workplace, means, searches)
    server = RankServer(place.orders, place.ends.transports, workplace, roles, means.timeline)
    server.preemption = means.preemption
    return server


def story_of(world_rank: int, error: BaseException) -> str:
    """What to tell when this rank fails by a bug of ours: the traceback, and the messages that led to it."""
    lines = [f"rank {world_rank} failed; please report this:", *traceback.format_exception(error)]
    return "\n".join(line.rstrip() for line in lines)
