"""Job that has joined a run which several jobs share, as its journal tells it."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from nnlo_opt.core.trials.events import JobJoined, JobLeft

#: least number of ranks that a job counts as: a single process plays two ranks
LEAST_RANKS = 2


@dataclass(slots=True, kw_only=True)
class JoinedJob:
    """Ranks, blocks and teams of a job, numbered on through all jobs in the order in which they joined.

    Do not set attributes from outside: only the ledger may change a job.
    """

    number: int
    host: str
    #: number of its processes; `ranks` has one more number for a single process
    n_ranks: int
    block_size: int
    n_masters: int
    #: ranks per worker
    n_processes: int
    #: numbers of its ranks; the first is that of its rank 0
    ranks: range
    #: numbers of its blocks, from 1 for the first job
    blocks: range
    #: numbers of its teams, from 0 for the first job
    teams: range
    joined_at_s: float
    #: number of the first assignment that it may have
    first_assignment: int
    #: time at which it left; None while it is here
    left_at_s: float | None = None
    #: why it left; empty if it did so by itself
    reason: str = ""
    #: True if it left because the coordinator expelled it
    expelled: bool = False

    @property
    def is_here(self) -> bool:
        """True until it leaves."""
        return self.left_at_s is None

    def had(self, assignment: int, team: int) -> bool:
        """Return True if this assignment to this team was made to it."""
        return team in self.teams and assignment >= self.first_assignment

    @classmethod
    def after(cls, last: "JoinedJob | None", event: JobJoined, n_assignments: int) -> "JoinedJob":
        """Return the job of this event, numbered on after the last one before it, if any, and after assignments."""
        rank, block, team = (last.ranks.stop, last.blocks.stop, last.teams.stop) if last else (0, 1, 0)
        return cls(
            number=event.job,
            host=event.host,
            n_ranks=event.n_ranks,
            block_size=event.block_size,
            n_masters=event.n_masters,
            n_processes=event.n_processes,
            ranks=range(rank, rank + max(event.n_ranks, LEAST_RANKS)),
            blocks=range(block, block + event.n_blocks),
            teams=range(team, team + event.n_teams),
            joined_at_s=event.time_s,
            first_assignment=n_assignments,
        )

    def leave(self, event: JobLeft) -> None:
        """Take in that it has left."""
        self.left_at_s, self.reason, self.expelled = event.time_s, event.reason, event.expelled


def with_team(jobs: Mapping[int, JoinedJob], team: int) -> JoinedJob | None:
    """Return the job of a team, of `jobs` in the order in which they joined; None if no job has it."""
    joined = [*jobs.values()]
    place = bisect_right(joined, team, key=lambda job: job.teams.start)
    return next((job for job in joined[max(0, place - 1) : place] if team in job.teams), None)
