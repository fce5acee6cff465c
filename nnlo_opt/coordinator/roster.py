"""Who is there: the teams as they stand while ranks die. Pure: deaths and reports in, states out.

    READY    trains, or may be given something to train
    BROKEN   ranks of it have died, and those that are left have not said how they go on
    SPARE    too few ranks are left to train; they stay, idle
    LOST     no rank is left

A team only ever becomes smaller, and the lowest rank that is left leads it, so a rank that no longer leads is dead.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum, auto

from nnlo_opt.comm.topology import Team, Topology
from nnlo_opt.errors import ProtocolError


class TeamState(Enum):
    """How a team stands; see the top of the module."""

    READY = auto()
    BROKEN = auto()
    SPARE = auto()
    LOST = auto()


#: states of a team that trains, or may when it has come together
_HOPEFUL = (TeamState.READY, TeamState.BROKEN)


class Roster:
    """The teams of a start of the run."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        #: by index of the team, as it trains, or last did
        self._teams: list[Team] = list(topology.teams)
        #: by index of the team
        self._states = [TeamState.READY] * len(topology.teams)
        #: by index of the team: its ranks that are not known to be dead
        self._alive: list[set[int]] = [set(team.world_ranks) for team in topology.teams]
        #: world rank -> index of its team, as planned
        self._team_of = {rank: team.index for team in topology.teams for rank in team.world_ranks}
        #: teams in which something may train, now or when they have come together
        self._n_hopeful = len(topology.teams)

    def team(self, index: int) -> Team:
        """The team as it trains."""
        return self._teams[index]

    def state(self, index: int) -> TeamState:
        """How the team stands."""
        return self._states[index]

    def ready(self, block: int) -> list[Team]:
        """The teams of a block that may be given something to train."""
        teams = (self._teams[team.index] for team in self._topology.teams_of(block))
        return [team for team in teams if self._states[team.index] is TeamState.READY]

    def has_hope(self, block: int) -> bool:
        """Whether anything of the block trains, or may when it has come together."""
        states = (self._states[team.index] for team in self._topology.teams_of(block))
        return any(state in _HOPEFUL for state in states)

    @property
    def is_hopeless(self) -> bool:
        """Whether no team is left that trains, or may."""
        return not self._n_hopeful

    def n_left(self, block: int) -> tuple[int, int]:
        """How many ranks of the block are not known to be dead, and how many of them train."""
        teams = [team.index for team in self._topology.teams_of(block)]
        training = [i for i in teams if self._states[i] in _HOPEFUL]
        n_training = sum(len(self._alive[i] & set(self._teams[i].world_ranks)) for i in training)
        return sum(len(self._alive[i]) for i in teams), n_training

    def died(self, ranks: Collection[int]) -> dict[int, set[int]]:
        """Take in who is dead, known or not; -> team -> ranks of it that are news. A team of none is LOST then."""
        news: dict[int, set[int]] = {}
        for rank in ranks:
            index = self._team_of.get(rank)
            if index is not None and rank in self._alive[index]:
                self._alive[index].remove(rank)
                news.setdefault(index, set()).add(rank)
        for index in news:
            self._enter(index, TeamState.BROKEN if self._alive[index] else TeamState.LOST)
        return news

    def reformed(self, index: int, alive: Sequence[int], world_ranks: Sequence[int], n_masters: int) -> set[int]:
        """A team has come together; -> ranks of it whose death is news. Where more have died since, it is still BROKEN.

        `alive`: its ranks that are left; `world_ranks`: those that train, as `messages.TeamReformed`.
        """
        if self._states[index] is TeamState.LOST:
            return set()  # it said so before the last of it died
        if not set(world_ranks) <= set(alive) <= set(self._topology.teams[index].world_ranks):
            raise ProtocolError(f"Team {index} cannot have become {alive}, of which {world_ranks} train.")
        news = self._alive[index] - set(alive)
        self._alive[index] -= news
        if not set(alive) <= self._alive[index]:
            return news
        if world_ranks:
            self._teams[index] = replace(self._teams[index], world_ranks=tuple(world_ranks), n_masters=n_masters)
        self._enter(index, TeamState.READY if world_ranks else TeamState.SPARE)
        return news

    def _enter(self, index: int, state: TeamState) -> None:
        self._n_hopeful += (state in _HOPEFUL) - (self._states[index] in _HOPEFUL)
        self._states[index] = state
