"""Which block holds which trial, and which of its teams runs which assignment. Pure; it decides nothing.

A block holds a trial, or is idle, or is out: none of its teams can train, as ranks of them have died. A block that
holds a trial keeps it while any of its teams is at work on it.
"""

from heapq import heapify, heappop, heappush

from nnlo_opt.comm.topology import Team, Topology
from nnlo_opt.coordinator.roster import Roster, TeamState
from nnlo_opt.errors import ProtocolError
from nnlo_opt.trials.trial import Assignment


class Blocks:
    """The blocks and teams of a start of the run, by what they do."""

    def __init__(self, topology: Topology, roster: Roster) -> None:
        self._topology = topology
        self._roster = roster
        #: block -> number of the trial it holds
        self.trial_of_block: dict[int, int] = {}
        #: as `trial_of_block`: block -> when the trial came to it
        self._since_s: dict[int, float] = {}
        #: the blocks that hold no trial and may be given one, as a heap: the lowest number is given work first
        self.idle = list(range(1, topology.n_blocks + 1))
        #: the blocks that hold no trial and can train none
        self.out: set[int] = set()
        #: team -> assignment under way; a team not in it is idle
        self.assignment_of_team: dict[int, Assignment] = {}
        #: team whose trial took too long -> when it was told to stop; until something else is heard of it than that it
        #: has, which a master can say while its workers are stuck
        self.suspects: dict[int, float] = {}

    def block_of(self, team_index: int) -> int:
        """The block that a team is of."""
        return self._topology.teams[team_index].block

    def is_busy(self, block: int) -> bool:
        """Whether a team of the block has an assignment."""
        return any(team.index in self.assignment_of_team for team in self._topology.teams_of(block))

    def idle_teams(self, block: int) -> list[Team]:
        """The teams of a block that may be given a fold."""
        return [team for team in self._roster.ready(block) if team.index not in self.assignment_of_team]

    def give(self, trial: int, now_s: float) -> int:
        """Have the first idle block hold a trial; -> that block."""
        block = heappop(self.idle)
        self.trial_of_block[block], self._since_s[block] = trial, now_s
        return block

    def free(self, block: int, now_s: float) -> float:
        """Have a block hold its trial no longer; -> the seconds that it did."""
        del self.trial_of_block[block]
        self._set_aside(block)
        return now_s - self._since_s.pop(block)

    def look_again(self, block: int) -> None:
        """See whether a block without a trial can still train, or can again."""
        self.out.discard(block)
        if block in self.idle:
            self.idle.remove(block)
            heapify(self.idle)
        self._set_aside(block)

    def _set_aside(self, block: int) -> None:
        if self._roster.ready(block):
            heappush(self.idle, block)
        else:
            self.out.add(block)

    def check(self) -> None:
        """Raise ProtocolError where an invariant does not hold."""
        for team_index, assignment in self.assignment_of_team.items():
            if self.trial_of_block.get(self.block_of(team_index)) != assignment.trial:
                raise ProtocolError(f"Team {team_index} runs a trial its block does not hold.")
        if len(set(self.trial_of_block.values())) != len(self.trial_of_block):
            raise ProtocolError("Two blocks hold the same trial.")
        if sorted([*self.idle, *self.trial_of_block, *self.out]) != list(range(1, self._topology.n_blocks + 1)):
            raise ProtocolError("A block is neither idle, nor out, nor holds a trial, or is two of these.")
        if not all(self._roster.ready(block) for block in self.idle):
            raise ProtocolError("A block is idle that cannot train.")
        if any(self._roster.state(team) in (TeamState.LOST, TeamState.SPARE) for team in self.assignment_of_team):
            raise ProtocolError("A team has an assignment that cannot train.")
