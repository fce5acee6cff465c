"""Which rank plays which role. Pure, and total: every world size has a plan.

World rank 0 coordinates and the others form contiguous blocks. With k folds a block of at least 2k ranks is cut
into k sub-blocks that train the folds at the same time. A *team* is what trains one fold: a sub-block, or the
whole block where it was not cut. The first rank of a team is its master; the others are its workers. A team of one
rank is a master and a worker in one process.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from nnlo_opt.errors import ConfigurationError


def count_workers(n_ranks: int, *, every_rank: bool = False, ranks_per_worker: int = 1) -> int:
    """Workers of a team of `n_ranks`; `every_rank`: the master trains too, as in allreduce.

    A team of one rank has one worker, in the master's own process.
    """
    if n_ranks == 1:
        return 1
    return n_ranks if every_rank else (n_ranks - 1) // ranks_per_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The ranks that train one fold: a block, or a sub-block of it."""

    #: position in `Topology.teams`
    index: int
    #: number of the block it belongs to, from 1
    block: int
    #: world ranks, ascending and contiguous; the first is the master's
    world_ranks: tuple[int, ...]

    @property
    def master_rank(self) -> int:
        """World rank of the master."""
        return self.world_ranks[0]

    def n_workers(self, *, every_rank: bool = False, ranks_per_worker: int = 1) -> int:
        """Number of workers, as `count_workers`."""
        return count_workers(len(self.world_ranks), every_rank=every_rank, ranks_per_worker=ranks_per_worker)

    @property
    def first_trainer_rank(self) -> int:
        """World rank of worker 1."""
        return self.world_ranks[min(1, len(self.world_ranks) - 1)]

    def trainer_ranks(self, *, every_rank: bool) -> tuple[int, ...]:
        """World ranks that need a framework; `every_rank`: the master trains too, as in allreduce."""
        return self.world_ranks if every_rank else self.world_ranks[1:] or self.world_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The plan of a world: the coordinator and the teams of its blocks."""

    world_size: int
    #: teams in rank order; those of one block are neighbours
    teams: tuple[Team, ...]
    #: one sentence for the log where the world does not divide into equal blocks, else empty
    remark: str

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return self.teams[-1].block

    def teams_of(self, block: int) -> tuple[Team, ...]:
        """The teams of block `block`."""
        first = bisect_left(self.teams, block, key=lambda team: team.block)
        return self.teams[first : bisect_right(self.teams, block, lo=first, key=lambda team: team.block)]

    def team_of_rank(self, world_rank: int) -> Team | None:
        """The team that `world_rank` trains in; None for a rank that only coordinates."""
        return next((team for team in self.teams if world_rank in team.world_ranks), None)

    @classmethod
    def plan(cls, world_size: int, block_size: int, n_fold: int = 1) -> "Topology":
        """Plan a world of `world_size` ranks in blocks of `block_size` for trials of `n_fold` folds."""
        if block_size < 1:
            raise ConfigurationError(
                f"`--block-size` must be at least 1, the number of ranks that train one trial. Received: {block_size}."
            )
        if world_size == 1:
            return cls(
                world_size=1,
                # The one process plays two ranks, joined by a loopback transport.
                teams=(Team(index=0, block=1, world_ranks=(1,)),),
                remark="One rank: it coordinates and trains, one trial after another.",
            )
        blocks, remark = _cut_blocks(world_size, block_size)
        teams: list[Team] = []
        for number, ranks in enumerate(blocks, start=1):
            parts = _cut_evenly(ranks, n_fold) if n_fold > 1 and len(ranks) >= 2 * n_fold else [ranks]
            for part in parts:
                teams.append(Team(index=len(teams), block=number, world_ranks=tuple(part)))
        return cls(world_size=world_size, teams=tuple(teams), remark=remark)


def plan_single_block(world_size: int) -> Topology:
    """Plan a world that is one block, without a coordinator of its own rank: `TrainingDriver`."""
    return Topology(
        world_size=world_size,
        teams=(Team(index=0, block=1, world_ranks=tuple(range(world_size))),),
        remark="",
    )


def _cut_blocks(world_size: int, block_size: int) -> tuple[list[range], str]:
    blocks = [range(first, first + block_size) for first in range(1, world_size - block_size + 1, block_size)]
    first_left = blocks[-1].stop if blocks else 1
    n_left = world_size - first_left
    if n_left == 0:
        return blocks, ""
    if n_left == 1 and blocks:
        blocks[-1] = range(blocks[-1].start, world_size)
        return blocks, f"1 rank is left over and joins the last block, which has {len(blocks[-1])} ranks."
    blocks.append(range(first_left, world_size))
    return blocks, f"{n_left} rank{'s' * (n_left > 1)} left over: the last block has {n_left} instead of {block_size}."


def _cut_evenly(ranks: range, n_parts: int) -> list[range]:
    edges = [ranks.start + len(ranks) * i // n_parts for i in range(n_parts + 1)]
    return [range(a, b) for a, b in pairwise(edges)]
