"""Creates the roles of a rank from its placement."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.placement import Placement
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.clock import Clock, SystemClock
from nnlo_opt.core.base.errors import NnloError
from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.safe_path import private_directory
from nnlo_opt.core.block.master.endpoints import WorkerEndpoints
from nnlo_opt.core.block.master.master import Master, MasterSetup
from nnlo_opt.core.block.master.submaster import SubMaster, SubMasterSetup
from nnlo_opt.core.block.task import FoldTask
from nnlo_opt.core.block.worker.group import MemberSetup, WorkerGroupMember
from nnlo_opt.core.block.worker.worker import Memory, Worker, WorkerSetup
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.run_messages import OpenRun, Renumbered
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.models.adapter import EpochCallbacks
from nnlo_opt.engine.objective.rank import BlockComm, ObjectiveRank, ObjectiveSetup

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.gated import Gate, GatedComm

logger = logging.getLogger(__name__)


class RoleSetup(Frozen):
    """Everything needed to create the roles of one rank."""

    topology: Topology
    options: Options
    workload: ModuleWorkload
    context: ProcessContext
    clock: Clock = SystemClock()
    #: False: do not write checkpoints
    writes_checkpoints: bool = True
    #: returns the user's callbacks for a training on worker 1; None: those of the model module
    make_callbacks: Callable[[FoldTask], EpochCallbacks | None] | None = None
    #: on rank 0, lets the coordinator work during a call of the objective; never raises, returns False if the
    #: coordinator has failed. None on other ranks
    coordinate: Callable[[], bool] | None = None
    #: error message if another rank of the team dies; None: the team regroups
    ends_with_a_death: str | None = None


class RankRoles:
    """Creates the roles of one rank when the run opens, and again each time its team regroups."""

    def __init__(self, placement: Placement, setup: RoleSetup) -> None:
        #: placement of this rank, replaced when ranks of its team die
        self.placement = placement
        self._setup = setup
        #: communicator of the running or last call of an objective; None before the first
        self._call: GatedComm | None = None

    def open(self, run: OpenRun) -> None:
        """From now on write to the run directory."""
        if run.is_temporary:
            make_directory(Path(run.directory).parents[1])
            private_directory(Path(run.directory).parent)  # rank 0 may have created it only on another node
        self._setup.workload.open_run(run)
        numbers = run.first_rank, run.first_team, run.job
        self._setup.context.open(Path(run.directory), self._setup.topology, *numbers)

    def renumber(self, numbers: Renumbered) -> None:
        """From now on name ranks and teams in notes of deaths by these numbers."""
        self._setup.context.first.set(numbers.first_rank, numbers.first_team)

    def regroup(self, run: OpenRun) -> None:
        """Place this rank among the remaining ones. Collective: every remaining rank; waits for all of them."""
        if self._setup.ends_with_a_death is not None:
            raise NnloError(self._setup.ends_with_a_death)
        calls = [] if self._call is None else self._call.communicators
        self.placement, self._call = self.placement.regrouped(run.least_children, calls), None
        logger.warning("of world ranks %s are left %s", self.placement.team.world_ranks, self.placement.alive)

    def master(self, run: OpenRun) -> Master | None:
        """Return the master of the team; None if it is on another rank."""
        setup, endpoints = self._setup, self.placement.endpoints
        end = None if endpoints is None else endpoints.master_end
        if endpoints is None or end is None or run.is_objective:
            return None
        master = MasterSetup(
            orders=self.placement.orders,
            endpoints=WorkerEndpoints.of(end, endpoints.team),
            directory=Path(run.directory),
            options=setup.options.training,
            clock=setup.clock,
            timeline=setup.context.timeline,
            comparison=setup.options.comparison,
            writes_checkpoints=setup.writes_checkpoints,
            # A search keeps the weights of every fold; a training also what it needs to continue.
            keeps_checkpoints=not setup.workload.searches,
        )
        return Master(master)

    def worker(self, run: OpenRun, memory: Memory | None) -> Worker | None:
        """Return the worker of this rank, or the first rank of a worker group.

        `memory`: memory of the previous worker, if ranks of the team have died.
        """
        setup, endpoints = self._setup, self.placement.endpoints
        if run.is_objective or endpoints is None or not endpoints.is_worker:
            return None
        world_rank, context = self.placement.world_rank, setup.context
        worker = WorkerSetup(
            block=endpoints.worker_end,
            tasks=setup.workload,
            world_rank=world_rank,
            partners=endpoints.partners(),
            timeline=context.timeline,
            monitor=context.monitor,
            make_callbacks=setup.make_callbacks or setup.workload.callbacks,
            figure=None if setup.options.comparison.function is None else setup.workload.judge,
            memory=memory,
        )
        return Worker(worker)

    def follower(self, run: OpenRun) -> WorkerGroupMember | SubMaster | None:
        """Return the sub-master on this rank, or the member of a worker group (not its first rank)."""
        endpoints, world_rank = self.placement.endpoints, self.placement.world_rank
        timeline = self._setup.context.timeline
        if run.is_objective or endpoints is None:
            return None
        if endpoints.above is not None:
            sub_master = SubMasterSetup(
                above=endpoints.above,
                below=endpoints.worker_end,
                team=endpoints.team,
                options=self._setup.options.training,
                world_rank=world_rank,
                timeline=timeline,
            )
            return SubMaster(sub_master)
        if endpoints.ring is None or endpoints.is_worker or endpoints.master_end is not None:
            return None
        member = MemberSetup(
            block=endpoints.worker_end,
            leader=endpoints.leader_end,
            tasks=self._setup.workload,
            world_rank=world_rank,
            together=endpoints.ring,
            timeline=timeline,
        )
        return WorkerGroupMember(member)

    def objective(self, run: OpenRun, before: ObjectiveRank | None) -> ObjectiveRank | None:
        """Return the `ObjectiveRank` of this rank; `before`: the previous one, if the team has regrouped."""
        placement = self.placement
        if not run.is_objective or placement.endpoints is None:
            return None
        self._setup.workload.read()  # now, to keep it out of the first trial's time
        # A team of one has two endpoints, master and worker; an objective needs a single one.
        is_alone = placement.training_comm is None or placement.training_comm.Get_size() == 1
        block = LoopbackNetwork(1).end(0) if is_alone else placement.endpoints.worker_end
        setup = ObjectiveSetup(
            orders=placement.orders,
            block=block,
            programs=self._setup.workload,
            run=run,
            make_comm=self._make_comm,
            clock=self._setup.clock,
            coordinate=self._setup.coordinate,
            comparison=self._setup.options.comparison,
            before=before,
        )
        return ObjectiveRank(setup)

    def _make_comm(self, gate: "Gate") -> BlockComm | None:
        """Create the communicator for a call of the objective; None without MPI. Collective: every rank of the team."""
        comm = self.placement.training_comm
        if comm is None:
            return None
        from nnlo_opt.engine.comm.mpi.gated import GatedComm
        from nnlo_opt.engine.comm.mpi.ulfm import losing_ranks

        with losing_ranks():
            self._call = GatedComm(comm, gate)
        return self._call
