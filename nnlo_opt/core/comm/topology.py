"""Topology: the roles of all ranks, for any world size. Pure functions.

World rank 0 coordinates; all other ranks form contiguous blocks. With k folds a block of at least 2k ranks is cut into
k sub-blocks that train the folds at the same time. A *team* trains one fold: it is a sub-block, or a whole block that
is not cut. The first rank of a team is its master; all other ranks are its workers. A team of one rank is a master and
a worker in one process.

With M masters a team is a tree. Its first rank is the top master, followed by M-1 *groups*, each a sub-master and the
workers that it leads, as equal in size as possible. Ranks of a group are consecutive, and so mostly on one node.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise, product
from typing import TypedDict, Unpack

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.spelling import spelled


def count_workers(n_ranks: int, *, every_rank: bool = False, ranks_per_worker: int = 1) -> int:
    """Return the number of workers in a team of `n_ranks` without sub-masters.

    `every_rank`: the master trains, too, as in allreduce.

    A team of one rank has one worker, in the master's process.
    """
    if n_ranks == 1:
        return 1
    return n_ranks if every_rank else (n_ranks - 1) // ranks_per_worker


class Group(Frozen):
    """A sub-master and the workers that it leads."""

    #: number of the group from 1; the top master treats the group as the worker of this number
    number: int
    #: position of the sub-master in its team; the ranks of its workers follow
    head: int
    #: numbers of its workers among all workers of the team, from 1
    workers: range
    #: number of ranks, sub-master included
    n_ranks: int


def plan_groups(n_ranks: int, n_masters: int, ranks_per_worker: int = 1) -> tuple[Group, ...]:
    """Return the groups of a team of `n_ranks` with `n_masters` masters, the top master included.

    Returns () for one master, and if a sub-master would have no worker, which the caller must refuse.
    """
    n_groups = n_masters - 1
    n_workers = (n_ranks - n_masters) // ranks_per_worker
    if n_groups < 1 or n_workers < n_groups or (n_ranks - n_masters) % ranks_per_worker:
        return ()
    groups: list[Group] = []
    head = 1
    for number, workers in enumerate(_cut_evenly(range(1, n_workers + 1), n_groups), start=1):
        groups.append(Group(number=number, head=head, workers=workers, n_ranks=1 + len(workers) * ranks_per_worker))
        head += groups[-1].n_ranks
    return tuple(groups)


class TeamOptions(TypedDict, total=False):
    """Options common to all teams of a world, named like the fields of `Team`."""

    n_masters: int
    ranks_per_worker: int
    every_rank_trains: bool


class Team(Frozen):
    """Ranks that train one fold: a block or a sub-block."""

    #: position in `Topology.teams`
    index: int
    #: number of its block, from 1
    block: int
    #: world ranks, ascending and contiguous; the first is the master
    world_ranks: tuple[int, ...]
    #: requested number of masters, the top master and sub-masters; see `groups`
    n_masters: int = 1
    ranks_per_worker: int = 1
    #: True if the master trains, too, as in allreduce
    every_rank_trains: bool = False

    @property
    def master_rank(self) -> int:
        """World rank of the master, or of the top master."""
        return self.world_ranks[0]

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups below the top master, as `plan_groups` returns them; () if the master leads the workers itself."""
        return plan_groups(len(self.world_ranks), self.n_masters, self.ranks_per_worker)

    def group_of(self, position: int) -> Group | None:
        """Return the group of the rank at `position` of the team, or None if the rank is in no group."""
        return next((g for g in self.groups if g.head <= position < g.head + g.n_ranks), None)

    def worker_of(self, position: int) -> int:
        """Return the number of the worker of the rank at `position` (not the first); -1 for a sub-master."""
        group = self.group_of(position)
        if group is None:
            return 1 + (position - 1) // self.ranks_per_worker
        return -1 if position == group.head else group.workers[(position - group.head - 1) // self.ranks_per_worker]

    @property
    def sub_master_ranks(self) -> tuple[int, ...]:
        """World ranks of the sub-masters."""
        return tuple(self.world_ranks[group.head] for group in self.groups)

    @property
    def n_workers(self) -> int:
        """Number of workers in all groups; without groups, as in `count_workers`."""
        if self.groups:
            return self.groups[-1].workers[-1]
        n_ranks = len(self.world_ranks)
        return count_workers(n_ranks, every_rank=self.every_rank_trains, ranks_per_worker=self.ranks_per_worker)

    @property
    def n_children(self) -> tuple[int, ...]:
        """Number of workers or sub-masters below each master, the top master first."""
        if self.groups:
            return (len(self.groups), *(len(group.workers) for group in self.groups))
        return (count_workers(len(self.world_ranks), ranks_per_worker=self.ranks_per_worker),)

    @property
    def first_trainer_rank(self) -> int:
        """World rank of worker 1."""
        return self._ranks_of_workers[0]

    @property
    def trainer_ranks(self) -> tuple[int, ...]:
        """World ranks that need a framework."""
        return self.world_ranks if self.every_rank_trains else self._ranks_of_workers

    @property
    def _ranks_of_workers(self) -> tuple[int, ...]:
        masters = {self.master_rank, *self.sub_master_ranks}
        return tuple(rank for rank in self.world_ranks if rank not in masters) or self.world_ranks


def reformed(team: Team, alive: Sequence[int], least_children: int = 1) -> Team | None:
    """Return the team that the remaining ranks form; None if there are too few.

    The lowest rank leads. The number of masters is kept if every sub-master still has a worker, and reduced otherwise.
    The number of ranks per worker is reduced only if there would be too few workers. Ranks left over do not train.

    Args:
        team: the team before ranks died.
        alive: world ranks that are left, ascending.
        least_children: fewest workers per master that the update rule needs.
    """
    for per_worker, n_masters in product(range(team.ranks_per_worker, 0, -1), range(team.n_masters, 0, -1)):
        n_whole = max(0, len(alive) - n_masters) // per_worker * per_worker
        if not n_whole and not (len(alive) == per_worker == n_masters == 1):
            continue
        ranks = tuple(alive[: n_masters + n_whole])
        smaller = team.replaced(world_ranks=ranks, n_masters=n_masters, ranks_per_worker=per_worker)
        if (n_masters == 1 or smaller.groups) and min(smaller.n_children) >= least_children:
            return smaller
    return None


class Topology(Frozen):
    """Roles of all ranks of a world: the coordinator and the teams of its blocks.

    Of a run that several jobs share, it has all ranks of all jobs; rank 0 of each job only coordinates.
    """

    world_size: int
    #: teams in the order of their ranks; teams of one block are consecutive
    teams: tuple[Team, ...]
    #: remark for the log if the blocks are not equal in size, else empty
    remark: str

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return self.teams[-1].block if self.teams else 0

    def with_job(self, part: "Topology") -> "Topology":
        """Return this topology followed by that of another job, whose ranks, blocks and teams are numbered on."""
        ranks, blocks, teams = self.world_size, self.n_blocks, len(self.teams)
        moved = tuple(
            team.replaced(
                index=teams + team.index,
                block=blocks + team.block,
                world_ranks=tuple(ranks + rank for rank in team.world_ranks),
            )
            for team in part.teams
        )
        return self.replaced(world_size=ranks + max(part.world_size, 2), teams=(*self.teams, *moved))

    def teams_of(self, block: int) -> tuple[Team, ...]:
        """Return the teams of block `block`."""
        first = bisect_left(self.teams, block, key=lambda team: team.block)
        return self.teams[first : bisect_right(self.teams, block, lo=first, key=lambda team: team.block)]

    def team_of_rank(self, world_rank: int) -> Team | None:
        """Return the team of `world_rank`, or None for a rank that only coordinates."""
        return next((team for team in self.teams if world_rank in team.world_ranks), None)

    @classmethod
    def plan(cls, world_size: int, block_size: int, n_fold: int = 1, **of_teams: Unpack[TeamOptions]) -> "Topology":
        """Plan a world of `world_size` ranks in blocks of `block_size` for trials of `n_fold` folds.

        `of_teams` are fields of every `Team`. Raises ConfigurationError for a `block_size` below 1.
        """
        if block_size < 1:
            raise ConfigurationError(
                f"`{spelled('block_size')}` must be at least 1, the number of ranks that train one trial. Received: "
                f"{block_size}."
            )
        if world_size == 1:
            return cls(
                world_size=1,
                # The single process plays two ranks, connected by a loopback transport.
                teams=(Team(index=0, block=1, world_ranks=(1,)),),
                remark="One rank: it coordinates and trains, one trial after another.",
            )
        blocks, remark = _cut_blocks(world_size, block_size)
        return cls(world_size=world_size, teams=_teams(blocks, n_fold, of_teams), remark=remark)


#: topology of a run that waits for jobs
NO_TEAMS = Topology(world_size=0, teams=(), remark="")


def plan_single_block(world_size: int, n_fold: int = 1, **of_teams: Unpack[TeamOptions]) -> Topology:
    """Plan a world of one block without a rank that only coordinates, as in `TrainingDriver`.

    `n_fold` folds are trained at the same time if there are two ranks for each; `of_teams` are fields of every `Team`.
    """
    return Topology(world_size=world_size, teams=_teams([range(world_size)], n_fold, of_teams), remark="")


def _teams(blocks: Sequence[range], n_fold: int, of_teams: TeamOptions) -> tuple[Team, ...]:
    """Return the teams of blocks of these world ranks; a large enough block is cut into `n_fold` teams."""
    parts = [
        (number, part)
        for number, ranks in enumerate(blocks, start=1)
        for part in _cut_evenly(ranks, n_fold if len(ranks) >= 2 * n_fold else 1)
    ]
    return tuple(
        Team(index=i, block=block, world_ranks=tuple(ranks), **of_teams) for i, (block, ranks) in enumerate(parts)
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
    return blocks, f"The last block has {n_left} instead of {block_size} ranks, because no more are left."


def _cut_evenly(ranks: range, n_parts: int) -> list[range]:
    edges = [ranks.start + len(ranks) * i // n_parts for i in range(n_parts + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def rank_label(world_rank: int, team: Team | None, *, coordinates: bool) -> str:
    """Return the label of a rank, for example "rank 3 (worker 1 of block 1)".

    `coordinates`: the rank is the coordinator, possibly besides another role. Ranks of one worker are labelled worker
    1.1, 1.2, etc. …
    """
    roles = ["coordinator"] if coordinates else []
    if team is None:
        return f"rank {world_rank} (coordinator)"
    position = team.world_ranks.index(world_rank) if world_rank in team.world_ranks else 0
    group, n_processes = team.group_of(position), team.ranks_per_worker
    if position == 0:
        roles.append("top master" if team.groups else "master")
    if group is not None and position == group.head:
        roles.append(f"sub-master {group.number}")
    elif position or len(team.world_ranks) == 1:
        first, head = (1, 0) if group is None else (group.workers[0], group.head)
        worker, part = divmod(max(1, position) - head - 1, n_processes)
        roles.append(f"worker {first + worker}" + f".{part + 1}" * (n_processes > 1))
    return f"rank {world_rank} ({', '.join(roles)} of block {team.block})"
