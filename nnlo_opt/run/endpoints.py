"""Where a rank stands in its team: its ends of the transports, and what it is there."""

from dataclasses import dataclass
from typing import Any

from nnlo_opt.block.local_training import Groups
from nnlo_opt.block.ring import Ring
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.topology import Team
from nnlo_opt.comm.transport import Collective, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends of one rank. In a team with sub-masters the masters have one transport, and every group its own."""

    team: Team
    #: its end among the ranks that it trains with; the master's own where workers have their own ranks
    worker_end: Transport
    #: this rank's end as the team's master; None for any other
    master_end: Transport | None
    #: this rank's end as a sub-master, among the masters; None for any other
    above: Transport | None = None
    #: sums over the ranks of the team; None in a team of one, and with sub-masters
    together: Collective | None = None
    #: sums over the ranks of this rank's worker; None where a worker is one rank
    ring: Collective | None = None
    #: what was made of the team's communicator, to be freed
    comms: tuple[Any, ...] = ()

    @classmethod
    def of(cls, team: Team, comm: Any, made: list[Any] | None = None) -> "Ends":
        """Collective: every rank of `comm`, the communicator of the team; None: a rank alone, without MPI.

        Communicators are added to `made` as they are made: it has them also where a rank dies meanwhile.
        """
        made = [] if made is None else made
        if comm is None or comm.Get_size() == 1:
            network = LoopbackNetwork(2, shares=True)
            return cls(team=team, master_end=network.end(0), worker_end=network.end(1))
        from nnlo_opt.comm.mpi.transport import MpiCollective, MpiTransport

        rank, group = comm.Get_rank(), team.group_of(comm.Get_rank())
        above = together = None
        if team.groups:
            is_master = rank == 0 or (group is not None and rank == group.head)
            # What workers have of the first, and the top master of the second, is never used.
            colors = 0 if is_master else 1, 0 if group is None else group.number
            comms = [_made(comm.Split(color, rank), made) for color in colors]
            end = MpiTransport(comms[0] if rank == 0 else comms[1])
            above = MpiTransport(comms[0]) if is_master and rank else None
        else:
            comms = [_made(comm.Dup(), made) for _ in range(2)]
            end, together = MpiTransport(comms[0]), MpiCollective(comms[1])
        ring = None
        if team.ranks_per_worker > 1:
            # Behind a master each so many ranks are a worker; a master is in a group of its own: -(-0 // n) == 0.
            ranks = comms[1] if team.groups else comms[0]
            ring = MpiCollective(_made(ranks.Split(-(-ranks.Get_rank() // team.ranks_per_worker), rank), made))
        return cls(
            team=team,
            master_end=end if rank == 0 else None,
            above=above,
            worker_end=end,
            together=together,
            ring=ring,
            comms=tuple(made),
        )

    @property
    def transports(self) -> list[Transport]:
        """The different ones of this rank's ends."""
        ends = (self.master_end, self.above, self.worker_end)
        return list({id(end): end for end in ends if end is not None}.values())

    @property
    def leader_end(self) -> int:
        """End of the first rank of this rank's worker."""
        n_processes = self.team.ranks_per_worker
        return 1 + (self.worker_end.rank - 1) // n_processes * n_processes

    @property
    def is_worker(self) -> bool:
        """Whether a worker of the master is here: also the master's own, of allreduce or of a team of one."""
        if self.above is not None or (self.master_end is not None and self.team.groups):
            return False
        return self.ring is None or (self.master_end is None and self.worker_end.rank == self.leader_end)

    @property
    def is_follower(self) -> bool:
        """Whether it is another rank of a worker than the first."""
        is_behind = self.master_end is None and self.above is None
        return self.ring is not None and is_behind and self.worker_end.rank != self.leader_end

    def partners(self) -> Groups:
        """With whom the worker that is here computes gradients."""
        n_processes = self.team.ranks_per_worker
        return Groups(self.together, None if self.ring is None else Ring(self.worker_end, self.ring, n_processes))


def _made(comm: Any, made: list[Any]) -> Any:
    made.append(comm)
    return comm
