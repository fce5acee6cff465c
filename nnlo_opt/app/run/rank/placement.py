"""Placement of a rank in its team: transports and communicators."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.block.worker.group import WorkerGroup
from nnlo_opt.core.block.worker.training import Partners
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.topology import Team, reformed
from nnlo_opt.core.comm.transport import Collective, RanksLost, Transport

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import Communicator


class Endpoints(Frozen):
    """Endpoints of one rank in its team; replaced when the team regroups.

    In a team with sub-masters the masters have one transport, and every group has its own.
    """

    team: Team
    #: endpoint among the ranks that this rank trains with; the master's own if workers are groups of ranks
    worker_end: Transport
    #: endpoint of the team's master; None on other ranks
    master_end: Transport | None
    #: endpoint of a sub-master among the masters; None on other ranks
    above: Transport | None = None
    #: sums over the ranks of the team; None in a team of one, and with sub-masters
    together: Collective | None = None
    #: sums over the ranks of this rank's worker group; None if a worker is one rank
    ring: Collective | None = None

    @classmethod
    def of(cls, team: Team, comm: "Communicator | None", made: "list[Communicator]") -> "Endpoints":
        """Create the endpoints of this rank. Collective: every rank of `comm`.

        Args:
            comm: communicator of the team; None for a single rank without MPI.
            made: list to which each new communicator is added at once, so that it is complete even if a rank dies.
        """
        if comm is None or comm.Get_size() == 1:
            network = LoopbackNetwork(2, shares=True)
            return cls(team=team, master_end=network.end(0), worker_end=network.end(1))
        from nnlo_opt.engine.comm.mpi.transport import MpiCollective, MpiTransport

        rank, group = comm.Get_rank(), team.group_of(comm.Get_rank())
        above = together = None
        if team.groups:
            is_master = rank == 0 or (group is not None and rank == group.head)
            # A worker never uses its first communicator, the top master never its second.
            colors = 0 if is_master else 1, 0 if group is None else group.number
            comms = [_made(comm.Split(color, rank), made) for color in colors]
            end = MpiTransport(comms[0] if rank == 0 else comms[1])
            above = MpiTransport(comms[0]) if is_master and rank else None
        else:
            comms = [_made(comm.Dup(), made) for _ in range(2)]
            end, together = MpiTransport(comms[0]), MpiCollective(comms[1])
        ring = None
        if team.ranks_per_worker > 1:
            # After the master, every n ranks are a worker; the master gets group 0: -(-0 // n) == 0.
            ranks = comms[1] if team.groups else comms[0]
            ring = MpiCollective(_made(ranks.Split(-(-ranks.Get_rank() // team.ranks_per_worker), rank), made))
        return cls(
            team=team, master_end=end if rank == 0 else None, above=above, worker_end=end, together=together, ring=ring
        )

    @property
    def transports(self) -> list[Transport]:
        """Transports of this rank, without duplicates."""
        ends = (self.master_end, self.above, self.worker_end)
        return list({id(end): end for end in ends if end is not None}.values())

    @property
    def leader_end(self) -> int:
        """Number of the endpoint of the first rank of this rank's worker group."""
        n_processes = self.team.ranks_per_worker
        return 1 + (self.worker_end.rank - 1) // n_processes * n_processes

    @property
    def is_worker(self) -> bool:
        """True if this rank is a worker; in allreduce and in a team of one, so is the master."""
        if self.above is not None or (self.master_end is not None and self.team.groups):
            return False
        return self.ring is None or (self.master_end is None and self.worker_end.rank == self.leader_end)

    def partners(self) -> Partners:
        """Return the ranks that compute gradients together with this rank's worker."""
        if self.ring is None:
            return Partners(self.together)
        return Partners(self.together, WorkerGroup(self.worker_end, self.ring, self.team.ranks_per_worker))


def _made(comm: "Communicator", made: "list[Communicator]") -> "Communicator":
    made.append(comm)
    return comm


class Placement(Frozen):
    """Placement of one rank: its transports, team and communicators; replaced when ranks die."""

    #: transport to the coordinator
    orders: Transport
    #: the team as planned
    team: Team
    world_rank: int
    #: world ranks of the team that are alive, as far as known
    alive: tuple[int, ...]
    #: communicator of the living ranks, in this order; None for a single rank without MPI
    comm: "Communicator | None"
    #: communicator of those that train, used by objectives
    training_comm: "Communicator | None"
    #: endpoints in the team; None for a leftover rank, which does not train because its worker is incomplete
    endpoints: Endpoints | None
    #: communicators created from these, to be freed
    made: "tuple[Communicator, ...]" = ()

    @classmethod
    def of(cls, team: Team, orders: Transport, comm: "Communicator | None") -> "Placement":
        """Place this rank in `team`. Collective: every rank of `comm`, the communicator of the team."""
        made: list[Communicator] = []
        endpoints = Endpoints.of(team, comm, made)
        return cls(
            orders=orders,
            team=team,
            world_rank=team.world_ranks[0 if comm is None else comm.Get_rank()],
            alive=team.world_ranks,
            comm=comm,
            training_comm=comm,
            endpoints=endpoints,
            made=tuple(made),
        )

    @property
    def transports(self) -> list[Transport]:
        """Transports that receive messages of the team, or the news of a death in it."""
        if self.endpoints is not None:
            return self.endpoints.transports
        from nnlo_opt.engine.comm.mpi.ulfm import Watch

        assert self.comm is not None
        return [Watch(self.comm)]

    @property
    def new_team(self) -> Team | None:
        """The team of the living ranks that train; None on a rank that does not."""
        return None if self.endpoints is None else self.endpoints.team

    @property
    def leads(self) -> bool:
        """True if this rank is the lowest living one of the team."""
        return self.world_rank == self.alive[0]

    def regrouped(self, least_children: int, calls: "Sequence[Communicator]") -> "Placement":
        """Return the placement among the remaining ranks.

        Collective: every remaining rank; each gets here because the operation it waits in is revoked.

        Args:
            least_children: see `topology.reformed`.
            calls: communicators of the running call of an objective.
        """
        from nnlo_opt.engine.comm.mpi.ulfm import losing_ranks, shrink

        assert self.comm is not None
        comm, alive, made = self.comm, self.alive, [*self.made, *calls]
        while True:
            comm, positions = shrink(comm, made)
            alive, made = tuple(alive[position] for position in positions), []
            team = reformed(self.team, alive, least_children)
            try:
                with losing_ranks():
                    trains = team is not None and comm.Get_rank() < len(team.world_ranks)
                    part = _made(comm.Split(0 if trains else 1, comm.Get_rank()), made)
                    endpoints = Endpoints.of(team, part, made) if team is not None and trains else None
            except RanksLost:
                continue  # another rank has died, and what was made from this communicator is revoked
            return self.replaced(alive=alive, comm=comm, training_comm=part, endpoints=endpoints, made=tuple(made))
