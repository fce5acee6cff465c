"""Keeps track of the ranks, trials and assignments of teams and blocks.

A team has one of these states:

    READY    trains, or may be assigned a fold
    BROKEN   ranks have died; the remaining ones have not yet reported how they continue
    SPARE    too few ranks are left to train; they stay idle
    LOST     no rank is left

A team only ever becomes smaller. The lowest rank that is left leads it, so a rank that no longer leads is dead.

In a run that several jobs share, teams join with their job and are lost with it. Teams whose job does not follow the
coordinator are *away*, whatever their state: they get nothing, and their blocks are out unless they still have a trial.

A block has a trial, or is idle, or is out: none of its teams can train, because ranks have died. A block keeps its
trial while any of its teams works on it. Nothing is decided here.
"""

from collections.abc import Collection, Sequence
from enum import Enum, auto
from heapq import heapify, heappop, heappush

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.topology import Team, Topology
from nnlo_opt.core.trials.trial import Assignment


class TeamState(Enum):
    """State of a team; see the module's docstring."""

    READY = auto()
    BROKEN = auto()
    SPARE = auto()
    LOST = auto()


#: states of a team that trains, or may train after it has reformed
_MAY_TRAIN = (TeamState.READY, TeamState.BROKEN)


class Membership:
    """Tracks which teams can train, which block holds which trial, which team runs which assignment."""

    def __init__(self, topology: Topology) -> None:
        #: blocks and teams as planned, those of jobs that have left included
        self.topology = topology
        #: team index -> team as it trains, or last did
        self.teams: list[Team] = list(topology.teams)
        #: by team index
        self.states = [TeamState.READY] * len(topology.teams)
        #: teams that are away
        self.away: set[int] = set()
        #: team index -> ranks not known to be dead
        self._alive: list[set[int]] = [set(team.world_ranks) for team in topology.teams]
        #: world rank -> index of its team, as planned
        self.team_of = {rank: team.index for team in topology.teams for rank in team.world_ranks}
        #: number of teams that train, or may after reforming; those that are away included
        self.n_may_train = len(topology.teams)
        #: team -> dead ranks that are not in the journal yet
        self._unrecorded: dict[int, set[int]] = {}
        #: block -> number of the trial it holds
        self.trial_of_block: dict[int, int] = {}
        #: same keys as `trial_of_block`: block -> time at which the trial came to it
        self._since_s: dict[int, float] = {}
        #: heap of the blocks without a trial that may get one, lowest number first
        self.idle = list(range(1, topology.n_blocks + 1))
        #: blocks without a trial that cannot train
        self.out: set[int] = set()
        #: team -> current assignment; teams not in it are idle
        self.assignment_of_team: dict[int, Assignment] = {}
        #: team whose trial took too long -> time at which it was told to stop. A team stays here until it sends another
        #: message than that it has stopped, because a master can report that while its workers hang
        self.suspects: dict[int, float] = {}

    # ------------------------------------------------------------ teams

    def ready(self, block: int) -> list[Team]:
        """Return the teams of a block that can train now."""
        teams = (self.teams[team.index] for team in self.topology.teams_of(block))
        return [team for team in teams if self._is_ready(team)]

    def _is_ready(self, team: Team) -> bool:
        return self.states[team.index] is TeamState.READY and team.index not in self.away

    @property
    def responsive(self) -> list[Team]:
        """Teams that can train now, and whose trial has not taken too long."""
        return [team for team in self.teams if self._is_ready(team) and team.index not in self.suspects]

    def may_train(self, block: int) -> bool:
        """Return True if a team of the block trains, or may train after it has reformed; False if they are away."""
        teams = [team.index for team in self.topology.teams_of(block)]
        return any(self.states[i] in _MAY_TRAIN and i not in self.away for i in teams)

    def n_left(self, block: int) -> tuple[int, int]:
        """Return the numbers of ranks of the block that are not known to be dead, and of those that train."""
        teams = [team.index for team in self.topology.teams_of(block)]
        training = [i for i in teams if self.states[i] in _MAY_TRAIN]
        n_training = sum(len(self._alive[i] & set(self.teams[i].world_ranks)) for i in training)
        return sum(len(self._alive[i]) for i in teams), n_training

    # ------------------------------------------------------------ deaths

    def died(self, ranks: Collection[int]) -> list[int]:
        """Record dead ranks, including known ones; return the teams that have newly lost ranks.

        A team without any rank left becomes LOST, others BROKEN.
        """
        affected: dict[int, None] = {}
        for rank in ranks:
            index = self.team_of.get(rank)
            if index is not None and rank in self._alive[index]:
                self._bury(index, {rank})
                affected[index] = None
        for index in affected:
            self._enter(index, TeamState.BROKEN if self._alive[index] else TeamState.LOST)
        return list(affected)

    def reformed(self, index: int, alive: Sequence[int], world_ranks: Sequence[int], n_masters: int) -> None:
        """Record that a team has reformed; it stays BROKEN if more ranks have died since.

        Args:
            index: the team.
            alive: its ranks that are left.
            world_ranks: its ranks that train, as in `messages.TeamReformed`; none if the team is SPARE or LOST.
            n_masters: number of masters among them.

        Raises:
            ProtocolError: a rank would have joined the team.
        """
        if self.states[index] is TeamState.LOST:
            return  # the report left before the last rank died
        if not set(world_ranks) <= set(alive) <= set(self.topology.teams[index].world_ranks):
            raise ProtocolError(f"Team {index} cannot have become {alive}, of which {world_ranks} train.")
        self._bury(index, self._alive[index] - set(alive))
        if not set(alive) <= self._alive[index]:
            return
        if world_ranks:
            self.teams[index] = self.teams[index].replaced(world_ranks=tuple(world_ranks), n_masters=n_masters)
        left = TeamState.SPARE if alive else TeamState.LOST
        self._enter(index, TeamState.READY if world_ranks else left)

    def take_unrecorded(self, index: int) -> list[int]:
        """Return the dead ranks of a team that are not in the journal yet, in order, once."""
        return sorted(self._unrecorded.pop(index, ()))

    def _bury(self, index: int, ranks: set[int]) -> None:
        self._alive[index] -= ranks
        self._unrecorded.setdefault(index, set()).update(ranks)

    def _enter(self, index: int, state: TeamState) -> None:
        self.n_may_train += (state in _MAY_TRAIN) - (self.states[index] in _MAY_TRAIN)
        self.states[index] = state

    # ------------------------------------------------------------ jobs

    def join(self, part: Topology) -> None:
        """Add the teams of a job, which are away."""
        self.topology = self.topology.with_job(part)
        for team in self.topology.teams[len(self.teams) :]:
            self.teams.append(team)
            self.states.append(TeamState.READY)
            self.away.add(team.index)
            self._alive.append(set(team.world_ranks))
            self.team_of |= dict.fromkeys(team.world_ranks, team.index)
            self.n_may_train += 1
            self.out.add(team.block)

    def leave(self, teams: range) -> None:
        """Lose the teams of a job that has left; none of them has an assignment."""
        for index in teams:
            self._alive[index].clear()
            self._enter(index, TeamState.LOST)
            self._unrecorded.pop(index, None)
            self.suspects.pop(index, None)

    def hold(self, assignment: Assignment) -> None:
        """Take over an assignment that another coordinator has made, to a team that is away."""
        block = self.block_of(assignment.team)
        self.out.discard(block)
        self.trial_of_block[block], self._since_s[block] = assignment.trial, assignment.assigned_at_s
        self.assignment_of_team[assignment.team] = assignment

    def has(self, assignment: Assignment) -> bool:
        """Return True if its team has this assignment."""
        return self.assignment_of_team.get(assignment.team) is assignment

    def drop(self, assignment: Assignment) -> None:
        """Take an assignment from its team, if it has it."""
        if self.has(assignment):
            del self.assignment_of_team[assignment.team]
            self.suspects.pop(assignment.team, None)

    # ------------------------------------------------------------ blocks

    def block_of(self, team_index: int) -> int:
        """Return the block of a team."""
        return self.topology.teams[team_index].block

    def is_busy(self, block: int) -> bool:
        """Return True if a team of the block has an assignment."""
        return any(team.index in self.assignment_of_team for team in self.topology.teams_of(block))

    def idle_teams(self, block: int) -> list[Team]:
        """Return the teams of a block that may be given a fold."""
        return [team for team in self.ready(block) if team.index not in self.assignment_of_team]

    def place(self, trial: int, now_s: float) -> int:
        """Give a trial to the first idle block; return the block."""
        block = heappop(self.idle)
        self.trial_of_block[block], self._since_s[block] = trial, now_s
        return block

    def release(self, block: int, now_s: float) -> float:
        """Take the trial from a block; return for how many seconds the block had it."""
        del self.trial_of_block[block]
        self._set_aside(block)
        return now_s - self._since_s.pop(block)

    def update_free(self, block: int) -> None:
        """Move a block without a trial to `idle` or `out`, after its teams have changed."""
        self.out.discard(block)
        if block in self.idle:
            self.idle.remove(block)
            heapify(self.idle)
        self._set_aside(block)

    def _set_aside(self, block: int) -> None:
        if self.ready(block):
            heappush(self.idle, block)
        else:
            self.out.add(block)
