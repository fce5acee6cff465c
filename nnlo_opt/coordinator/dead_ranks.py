"""What becomes of assignments and blocks whose ranks have died; `roster` knows who is left."""

from collections.abc import Sequence

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Team
from nnlo_opt.coordinator.assigner import Assigner
from nnlo_opt.coordinator.blocks import Blocks
from nnlo_opt.coordinator.ending import Ending
from nnlo_opt.coordinator.outcomes import Outcomes
from nnlo_opt.coordinator.roster import Roster, TeamState
from nnlo_opt.coordinator.step import Step
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.trial import Assignment


class DeadRanks:
    """Takes in deaths, and how teams go on after them."""

    def __init__(
        self, step: Step, roster: Roster, blocks: Blocks, ending: Ending, outcomes: Outcomes, assigner: Assigner
    ) -> None:
        self._step = step
        self._roster = roster
        self._blocks = blocks
        self._ending = ending
        self._outcomes = outcomes
        self._assigner = assigner
        #: team -> ranks of it that have died and are not in the journal yet
        self._news: dict[int, set[int]] = {}

    def take_deaths(self, ranks: frozenset[int]) -> None:
        """Wait for what is left of each team to come together, and do without a team of which nothing is."""
        for team_index, news in self._roster.died(ranks).items():
            self._news.setdefault(team_index, set()).update(news)
            if self._roster.state(team_index) is TeamState.LOST:
                self._take_losses(team_index, self._roster.team(team_index), goes_on=-1)
            self._place_block(self._blocks.block_of(team_index))

    def take_reformed(self, team_index: int, message: msg.TeamReformed) -> None:
        """A team has come together again, without some of its ranks."""
        before = self._roster.team(team_index)
        news = self._roster.reformed(team_index, message.alive, message.world_ranks, message.n_masters)
        self._news.setdefault(team_index, set()).update(news)
        assignment = self._blocks.assignment_of_team.get(team_index)
        goes_on = message.goes_on
        # What its master has not taken yet is on its way, and will be.
        if assignment is not None and before.master_rank in message.world_ranks and assignment.number > message.taken:
            goes_on = assignment.number
        self._take_losses(team_index, before, goes_on)
        self._place_block(self._blocks.block_of(team_index))

    def _take_losses(self, team_index: int, before: Team, goes_on: int) -> None:
        """Write down which ranks of a team are lost, and with them its assignment, unless that one `goes_on`.

        `before`: the team as it trained when they died.
        """
        assignment = self._blocks.assignment_of_team.get(team_index)
        ranks = sorted(self._news.pop(team_index, ()))
        is_lost = assignment is not None and assignment.number != goes_on
        counts = assignment is not None and self._blames(assignment, ranks, before)
        n_alive, n_training = self._roster.n_left(before.block)
        lost = ev.RanksLost(
            time_s=self._step.now_s,
            ranks=ranks,
            block=before.block,
            team=team_index,
            n_alive=n_alive,
            n_ranks=n_training,
            assignment=-1 if assignment is None else assignment.number,
            counts=counts and not is_lost,
        )
        if ranks:
            self._step.record(lost)
        if assignment is None:
            return
        if is_lost:
            del self._blocks.assignment_of_team[team_index]
            self._blocks.suspects.pop(team_index, None)
            self._outcomes.lose(assignment, ev.died_text(ranks), counts=counts)
        self._outcomes.is_given_up(self._step.ledger.trials[assignment.trial])

    def _blames(self, assignment: Assignment, ranks: Sequence[int], team: Team) -> bool:
        """Whether the trial may have killed `ranks` of the `team`: they did train it, and nothing else is known."""
        is_wanted = not (self._ending.preempting or self._step.ledger.trials[assignment.trial].state.ended)
        return is_wanted and (not ranks or not set(ranks).isdisjoint(team.world_ranks))

    def _place_block(self, block: int) -> None:
        """Have the block go on with what is left of it; its trial goes elsewhere where that is too little."""
        if block not in self._blocks.trial_of_block:
            self._blocks.look_again(block)
        elif self._blocks.is_busy(block) or self._roster.has_hope(block):
            self._assigner.go_on_with(block)
        else:
            self._assigner.withdraw(block)
