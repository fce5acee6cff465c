"""Every rank's part of a command: its role from the topology, its server from its role, its share of the node."""

import logging
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnlo_opt.block.master import Master
from nnlo_opt.block.ring import RingFollower
from nnlo_opt.block.submaster import SubMaster
from nnlo_opt.block.task import FoldTask, FoldTaskFactory
from nnlo_opt.block.worker import Worker
from nnlo_opt.clock import SystemClock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.mpi.gated import Gate, GatedComm
from nnlo_opt.comm.mpi.ulfm import Watch, losing_ranks, shrink
from nnlo_opt.comm.mpi.world import World
from nnlo_opt.comm.run_messages import OpenRun
from nnlo_opt.comm.topology import Team, Topology, rank_label, reformed
from nnlo_opt.comm.transport import RanksLost, Transport
from nnlo_opt.models.builders import names_objective
from nnlo_opt.objective.rank import ObjectiveRank
from nnlo_opt.run.endpoints import Ends
from nnlo_opt.run.options import Options
from nnlo_opt.run.server import RankServer, Regrouped
from nnlo_opt.run.watch import begin_watch, meet_node
from nnlo_opt.run.workload import Workplace
from nnlo_opt.runtime.devices import NodeShare, cores, pack_cores, share_node, unpack_cores
from nnlo_opt.runtime.log import RankOutput
from nnlo_opt.runtime.monitor import Monitor, make_monitor
from nnlo_opt.runtime.preemption import Preemption
from nnlo_opt.runtime.timeline import Timeline
from nnlo_opt.runtime.watchdog import Watchdog

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
    #: whether there is a second core, for what can be done beside the training
    has_spare_core: bool
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
            has_spare_core=share.has_spare_core,
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
    #: the team as it was planned
    team: Team
    #: its world ranks that live, as far as is known
    alive: tuple[int, ...]
    #: mpi4py communicator of those, in this order; and of those of them that train, which has what objectives send
    comm: Any
    training_comm: Any
    #: its ends in the team; None for a rank that does not train, as it makes no whole worker with others
    ends: Ends | None
    #: made of these communicators
    made: tuple[Any, ...] = ()

    @classmethod
    def of(cls, team: Team, orders: Transport, comm: Any) -> "Place":
        """Collective: every rank of `comm`, the communicator of the team."""
        ends = Ends.of(team, comm)
        return cls(
            orders=orders,
            team=team,
            alive=team.world_ranks,
            comm=comm,
            training_comm=comm,
            ends=ends,
            made=ends.comms,
        )

    @property
    def transports(self) -> list[Transport]:
        """Where messages of the team come, or that ranks of it have died."""
        return [Watch(self.comm)] if self.ends is None else self.ends.transports

    @property
    def leads(self) -> bool:
        """Whether this rank is the lowest of the team that lives."""
        return bool(self.comm.Get_rank() == 0)

    def regrouped(self, least_children: int, calls: list[Any]) -> "Place":
        """Among the ranks that are left. Collective: all of these; they come here as what they wait in is given up.

        `least_children`: as `topology.reformed`; `calls`: communicators of the call of an objective under way.
        """
        comm, alive, made = self.comm, self.alive, [*self.made, *calls]
        while True:
            comm, positions = shrink(comm, made)
            alive, made = tuple(alive[position] for position in positions), []
            team = reformed(self.team, alive, least_children)
            try:
                with losing_ranks():
                    trains = team is not None and comm.Get_rank() < len(team.world_ranks)
                    part = comm.Split(0 if trains else 1, comm.Get_rank())
                    made.append(part)
                    ends = Ends.of(team, part, made) if team is not None and trains else None
            except RanksLost:
                continue  # another one has died: what was made of this one is given up too
            return replace(self, alive=alive, comm=comm, training_comm=part, ends=ends, made=tuple(made))


class _Roles:
    """Makes the roles of one rank."""

    def __init__(self, place: Place, options: Options, workplace: Workplace, means: Means, searches: bool) -> None:
        self._place = place
        self._options = options
        self._workplace = workplace
        self._means = means
        self._searches = searches
        #: what opened the run; None before
        self._run: OpenRun | None = None
        #: communicator of the call of an objective under way, or of the last one; None before there was one
        self._call: GatedComm | None = None

    def open(self, run: OpenRun) -> None:
        """The run is open: write to its directory."""
        self._run = run
        self._means.output.open_log(Path(run.directory))
        self._means.timeline.open(Path(run.directory))
        begin_watch(self._means.watchdog, self._means.topology, Path(run.directory))

    def regroup(self) -> Regrouped:
        assert self._run is not None
        calls = [] if self._call is None else self._call.communicators
        self._place = place = self._place.regrouped(int(self._run.settings["least_children"]), calls)
        self._call = None
        team = None if place.ends is None else place.ends.team
        logger.warning("of world ranks %s are left %s", place.team.world_ranks, place.alive)
        return Regrouped(ends=place.transports, alive=place.alive, team=team, leads=place.leads)

    def master(self, run: OpenRun) -> Master | None:
        directory, timeline = Path(run.directory), self._means.timeline
        ends = self._place.ends
        end = None if ends is None else ends.master_end
        if ends is None or end is None or run.settings["kind"] == "objective":
            return None
        master = Master(self._place.orders, end, directory, self._options.training, SystemClock(), timeline)
        # A search keeps the weights of every fold; a training also what it takes to train on.
        master.keeps_checkpoints = not self._searches
        team = ends.team
        master.ranks_per_worker, master.groups = team.ranks_per_worker, team.groups
        master.comparison = self._options.comparison
        return master

    def worker(self, run: OpenRun) -> Worker | None:
        ends, means = self._place.ends, self._means
        if run.settings["kind"] == "objective" or ends is None or not ends.is_worker:
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
        if run.settings["kind"] == "objective" or ends is None:
            return None
        if ends.above is not None:
            return SubMaster(ends.above, ends.worker_end, ends.team, self._options.training, world_rank, timeline)
        if ends.ring is None or not ends.is_follower:
            return None
        return RingFollower(ends.worker_end, ends.leader_end, self._tasks(), world_rank, ends.ring, timeline)

    def _tasks(self) -> "_LateTasks":
        return _LateTasks(self._workplace, searches=self._searches)

    def objective(self, run: OpenRun) -> ObjectiveRank | None:
        place = self._place
        if run.settings["kind"] != "objective" or place.ends is None:
            return None
        # A team of one has two ends, master and worker; an objective needs one, with nobody else.
        block = LoopbackNetwork(1).end(0) if place.training_comm.Get_size() == 1 else place.ends.worker_end

        def make_comm(gate: Gate) -> GatedComm:
            with losing_ranks():
                self._call = GatedComm(place.training_comm, gate)
            return self._call

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
    workplace = Workplace(options, means.n_threads, searches, gathers_ahead=means.has_spare_core)
    roles = _Roles(place, options, workplace, means, searches)
    server = RankServer(place.orders, place.transports, workplace, roles, means.timeline)
    server.preemption = means.preemption
    return server


def story_of(world_rank: int, error: BaseException) -> str:
    """What to tell when this rank fails by a bug of ours: the traceback, and the messages that led to it."""
    lines = [f"rank {world_rank} failed; please report this:", *traceback.format_exception(error)]
    return "\n".join(line.rstrip() for line in lines)
