"""Which trial an idle block is given, and which of its folds an idle team."""

from collections import deque

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Team
from nnlo_opt.coordinator.blocks import Blocks
from nnlo_opt.coordinator.ending import Ending, Phase
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.coordinator.outcomes import Outcomes
from nnlo_opt.coordinator.step import Step
from nnlo_opt.coordinator.stock import Stock
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.trial import Trial


class Assigner:
    """Gives out what waits: trials to be resumed, then paused ones that are promoted, then new suggestions."""

    def __init__(
        self, plan: SearchPlan, step: Step, blocks: Blocks, stock: Stock, ending: Ending, outcomes: Outcomes
    ) -> None:
        self._plan = plan
        self._step = step
        self._blocks = blocks
        self._stock = stock
        self._ending = ending
        self._outcomes = outcomes
        #: trials begun and not ended that no block holds, first those to go first; paused ones are not among them
        self.to_resume: deque[int] = deque()

    # ------------------------------------------------------------ what is left

    @property
    def has_trial(self) -> bool:
        """Whether a block holds a trial, or one waits to be resumed."""
        return bool(self._blocks.trial_of_block or self.to_resume)

    @property
    def has_more(self) -> bool:
        """Whether a trial would begin or be promoted, were there a block for it."""
        phase = self._ending.phase
        return phase is Phase.SEARCHING or (phase is Phase.DRAINING and self.next_promotion() is not None)

    def next_promotion(self) -> int | None:
        """The paused trial that is worth going on with; when nothing else can run and none is complete, the best."""
        policy = self._step.policy
        if self._ending.promotes and (number := policy.promotion()) is not None:
            return number
        is_last = self._ending.phase is Phase.DRAINING and not (self._ending.cut_short or self._blocks.trial_of_block)
        return policy.last_resort() if is_last else None

    # ------------------------------------------------------------ blocks

    def fill_blocks(self) -> None:
        """Give the trials that wait to idle blocks."""
        while not self._ending.preempting and self._blocks.idle and (number := self._next_trial()) is not None:
            self.assign_folds(self._blocks.give(number, self._step.now_s))

    def go_on_with(self, block: int) -> None:
        """Give the teams of a block the folds that are left of its trial, or free it when they are through with it."""
        trial = self._step.ledger.trials[self._blocks.trial_of_block[block]]
        if not trial.state.ended and self._step.policy.folds_to_run(trial):
            if not self._ending.preempting:
                self.assign_folds(block)
        elif not self._blocks.is_busy(block):
            if not trial.state.ended:
                self._outcomes.pause(trial)
                self._step.tell(trial)
            self._free(block)

    def withdraw(self, block: int) -> None:
        """Have the trial of a block, none of whose teams can train it, go to the next one that is free."""
        trial = self._step.ledger.trials[self._blocks.trial_of_block[block]]
        if not trial.state.ended:
            self.to_resume.appendleft(trial.number)
        self._free(block)

    def _free(self, block: int) -> None:
        self._stock.take_trial(self._blocks.free(block, self._step.now_s))

    # ------------------------------------------------------------ trials

    def _next_trial(self) -> int | None:
        if self.to_resume:
            return self.to_resume.popleft()
        if (promoted := self._promoted()) is not None:
            return promoted
        number, ready = len(self._step.ledger.trials), self._stock.ready
        if self._ending.phase is not Phase.SEARCHING or not ready or number >= self._plan.num_iterations:
            return None
        suggestion = ready.popleft()
        self._step.record(
            ev.TrialSuggested(
                time_s=self._step.now_s,
                trial=number,
                point=suggestion.point or {},
                suggest_s=suggestion.wall_s,
                suggest_cpu_s=suggestion.cpu_s,
            )
        )
        return number

    def _promoted(self) -> int | None:
        """A paused trial that goes on; one that its block is about to leave goes on there."""
        while (number := self.next_promotion()) is not None:
            trial = self._step.ledger.trials[number]
            self._step.record(ev.TrialPromoted(time_s=self._step.now_s, trial=number, n_rungs=trial.n_rungs + 1))
            if not trial.running:
                return number
            self.assign_folds(self._blocks.block_of(trial.running[0].team))
        return None

    # ------------------------------------------------------------ folds

    def assign_folds(self, block: int) -> None:
        """Give every idle team of the block one of the folds still to be run."""
        trial = self._step.ledger.trials[self._blocks.trial_of_block[block]]
        under_way = {assignment.fold for assignment in trial.running}
        waiting = [fold for fold in self._step.policy.folds_to_run(trial) if fold not in under_way]
        for team, fold in zip(self._blocks.idle_teams(block), waiting, strict=False):
            self._assign(team, trial, fold)

    def _assign(self, team: Team, trial: Trial, fold: int) -> None:
        step = self._step
        number, attempt = len(step.ledger.assignments), trial.n_attempts(fold) + 1
        step.record(
            ev.FoldAssigned(
                time_s=step.now_s,
                assignment=number,
                trial=trial.number,
                fold=fold,
                attempt=attempt,
                block=team.block,
                team=team.index,
                n_ranks=len(team.world_ranks),
            )
        )
        self._blocks.assignment_of_team[team.index] = step.ledger.assignments[number]
        step.send(
            team.index,
            msg.RunFold(
                assignment=number,
                trial=trial.number,
                fold=fold,
                attempt=attempt,
                point=trial.point,
                waits_for_word=step.policy.judges,
                pause_epochs=step.policy.pause_epochs(trial.number),
            ),
        )
