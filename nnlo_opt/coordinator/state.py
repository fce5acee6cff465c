"""The coordinator's decisions: pure, synchronous, no I/O.

`CoordinatorState.handle` takes one event (a message from a master, a suggestion of the search) and returns
instructions for the shell to carry out in order. It is the only mutator. What is written ahead comes first: an
`Append` precedes every `Send` it justifies.

Here stands what each event leads to. What it takes is made of parts, each of which knows its own things alone: `blocks`
and `stock` hold what there is, `ending` knows when to stop; `outcomes`, `assigner` and `dead_ranks` act on trials,
blocks, and what ranks leave behind. All of them write to the `step` under way.
"""

import logging
import math

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.assigner import Assigner
from nnlo_opt.coordinator.attempts import LastEnd
from nnlo_opt.coordinator.blocks import Blocks
from nnlo_opt.coordinator.dead_ranks import DeadRanks
from nnlo_opt.coordinator.ending import Ending, Phase, grace_times, walltime_times
from nnlo_opt.coordinator.instructions import (
    Ask,
    Begin,
    CoordinatorEvent,
    FromMaster,
    GiveUp,
    Instruction,
    Preempt,
    RanksDied,
    SearchPlan,
    Suggested,
    Tell,
    Tick,
)
from nnlo_opt.coordinator.outcomes import Outcomes
from nnlo_opt.coordinator.records import event_of, recorded_late
from nnlo_opt.coordinator.roster import Roster
from nnlo_opt.coordinator.step import Step
from nnlo_opt.coordinator.stock import Stock
from nnlo_opt.errors import ProtocolError
from nnlo_opt.search.pruning import Verdict
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import Assignment, AssignmentEnd, TrialState, UnrecordedFold

logger = logging.getLogger(__name__)

#: which events each phase takes; `Ending.drain` and `_settle` lead to the next one
_ACCEPTED: dict[Phase, frozenset[type]] = {
    Phase.OPENING: frozenset({Begin, Preempt}),
    Phase.SEARCHING: frozenset({Suggested, FromMaster, RanksDied, Tick, Preempt}),
    Phase.DRAINING: frozenset({Suggested, FromMaster, RanksDied, Tick, Preempt}),
    Phase.OVER: frozenset({Suggested, FromMaster, RanksDied, Tick, Preempt}),
}


class CoordinatorState:
    """Assigns folds of trials to teams, one trial a block at a time; asks the search ahead of the blocks."""

    def __init__(self, plan: SearchPlan, topology: Topology, ledger: Ledger) -> None:
        self.plan = plan
        self.topology = topology
        #: all trials; changed only by the events this state makes
        self.ledger = ledger
        #: the teams as they stand
        self.roster = Roster(topology)
        #: what blocks and teams do
        self.blocks = Blocks(topology, self.roster)
        #: suggestions not yet given to a block
        self.stock = Stock(topology.n_blocks)
        #: the phase, and what leads to the next one
        self.ending = Ending(plan)
        #: what is being decided; `handle` begins it anew
        self._step = Step(plan, ledger, self.roster)
        self._outcomes = Outcomes(plan, self._step, self.ending)
        #: what idle blocks are given, and the trials that wait for one
        self.assigner = Assigner(plan, self._step, self.blocks, self.stock, self.ending, self._outcomes)
        self._dead_ranks = DeadRanks(self._step, self.roster, self.blocks, self.ending, self._outcomes, self.assigner)
        #: which trials are worth going on with
        self.policy = self._step.policy

    @property
    def phase(self) -> Phase:
        """Where the run stands."""
        return self.ending.phase

    # ------------------------------------------------------------ the one mutator

    def handle(self, event: CoordinatorEvent, now_s: float) -> list[Instruction]:
        """Take in `event` at `now_s` (seconds since the first start); ProtocolError for what the phase forbids."""
        if type(event) not in _ACCEPTED[self.phase]:
            raise ProtocolError(f"{type(event).__name__} may not come while the coordinator is {self.phase.name}.")
        self._step.begin(now_s)
        match event:
            case Begin():
                self._begin(event.last_end, {fold.assignment: fold for fold in event.finished})
            case Suggested():
                self._take_suggestion(event)
            case FromMaster(message=msg.TeamReformed() as reformed):
                self._dead_ranks.take_reformed(event.team, reformed)
            case FromMaster():
                self._take_message(event.team, event.message)
            case RanksDied():
                self._dead_ranks.take_deaths(event.ranks)
            case Preempt():
                self._preempt(event.reason, *grace_times(now_s, event.grace_s))
        if self.phase not in (Phase.OPENING, Phase.OVER):
            self._check_time()
            self.assigner.fill_blocks()
            self._ask_ahead()
            self._settle()
        if self.phase is not Phase.SEARCHING:
            self.stock.ready.clear()
        return self._step.result()

    def check(self) -> None:
        """Raise ProtocolError where an invariant does not hold; called after every step in tests."""
        running = {a.number for a in self.ledger.assignments if a.end is None}
        if running != {a.number for a in self.blocks.assignment_of_team.values()}:
            raise ProtocolError("Assignments under way in the ledger and on the teams differ.")
        self.blocks.check()
        held = self.blocks.trial_of_block.values()
        for trial in self.ledger.trials:
            if trial.state is TrialState.PAUSED and (trial.number in held or trial.running):
                raise ProtocolError(f"Trial {trial.number} is paused on a block.")
        if self.stock.ready and len(self.ledger.trials) + len(self.stock.ready) > self.plan.num_iterations:
            raise ProtocolError("More suggestions are held than trials may begin.")

    # ------------------------------------------------------------ the first event

    def _begin(self, last_end: LastEnd, finished: dict[int, UnrecordedFold]) -> None:
        """Go on from where the ledger says that earlier starts have come to."""
        self.ending.begin()
        self._end_left_open(last_end, finished)
        for trial in self.ledger.trials:
            # The end of a fold and what follows from it are one write, of which a crash may have kept the beginning.
            failed = next((a for a in trial.assignments if a.end is AssignmentEnd.FAILED), None)
            if not trial.state.ended and failed is not None:
                self._outcomes.fail(trial, failed.fold, failed.reason)
                continue
            if self._outcomes.is_given_up(trial):
                continue
            if not trial.state.ended and len(trial.folds) == self.plan.n_fold:
                self._outcomes.write_complete(trial)
            if not trial.state.ended and self.policy.folds_to_run(trial):
                self.assigner.to_resume.append(trial.number)
            elif not trial.state.ended and trial.state is not TrialState.PAUSED:
                self._outcomes.pause(trial)
            self._step.tell(trial)
        self.ending.replay(self.ledger)
        if self.ending.preempting:
            self._check_count()
            self.ending.drain(self.ending.preempted_because)

    def _end_left_open(self, last_end: LastEnd, finished: dict[int, UnrecordedFold]) -> None:
        """End the assignments that an earlier start has left open: some had finished, the others are lost."""
        fruitless = len(self.ledger.sessions) > 1 and not self.ledger.sessions[-2].n_lasting
        for assignment in [a for a in self.ledger.assignments if a.end is None]:
            kept, trial = finished.get(assignment.number), self.ledger.trials[assignment.trial]
            if kept is not None and kept.is_of(assignment, trial.point):
                self._step.record(recorded_late(kept, assignment, trial, self._step.now_s))
            else:
                reason, counts = last_end.loss_of(assignment, fruitless=fruitless)
                self._outcomes.lose(assignment, reason, counts=counts)

    # ------------------------------------------------------------ the search

    def _take_suggestion(self, suggestion: Suggested) -> None:
        number = len(self.ledger.trials) + len(self.stock.ready)
        self.stock.take_suggestion(suggestion)
        if suggestion.point is not None and self.phase is Phase.SEARCHING:
            self._step.instruct(Tell(trial=number, point=suggestion.point, state="pending"))

    def _ask_ahead(self) -> None:
        """Keep a suggestion for every idle block, and a stock, as far as the number of iterations allows."""
        n_known = len(self.ledger.trials) + len(self.stock.ready)
        may_ask = self.phase is Phase.SEARCHING and n_known < self.plan.num_iterations
        if may_ask and self.stock.is_short(len(self.blocks.idle)):
            self.stock.asked = True
            self._step.instruct(Ask(number=n_known))

    # ------------------------------------------------------------ masters

    def _take_message(self, team_index: int, message: msg.Message) -> None:
        number = getattr(message, "assignment", None)
        assignment = self.blocks.assignment_of_team.get(team_index)
        if assignment is None or assignment.number != number:
            logger.info("dropped a late %s about assignment %s", type(message).__name__, number)
            return
        if not isinstance(message, msg.FoldStopped):
            self.blocks.suspects.pop(team_index, None)
        trial, preempting = self.ledger.trials[assignment.trial], self.ending.preempting
        match message:
            case msg.EpochReported():
                self._take_report(team_index, assignment, message)
            case msg.FoldStopped() if preempting and not trial.state.ended:
                self._end_preempted(team_index)
            case msg.FoldFailed() if preempting and not trial.state.ended:
                # The signal may have ended a process of the user's: the next start will tell.
                logger.warning("trial %d failed while it was preempted: %s", trial.number, message.reason)
                self._end_preempted(team_index)
            case msg.FoldFinished() | msg.FoldPaused() | msg.FoldStopped() | msg.FoldFailed():
                self._end_assignment(team_index, assignment, message)
            case _:
                self._step.record(event_of(message, assignment, trial, self._step.now_s))
        if assignment.end is not None:
            self.assigner.go_on_with(self.blocks.block_of(team_index))

    def _take_report(self, team_index: int, assignment: Assignment, message: msg.EpochReported) -> None:
        step, trial = self._step, self.ledger.trials[assignment.trial]
        # Gone on from a checkpoint, a master asks again about its epoch, which the journal need not know.
        if message.epoch not in trial.reports.get(assignment.fold, ()) or message.epoch > assignment.epoch:
            step.record(event_of(message, assignment, trial, step.now_s))
        if not message.waits or trial.state.ended or self.ending.preempting:
            return  # it was told to stop
        decision = self.policy.judge(trial.number, assignment.fold, message.epoch)
        if decision.n_rungs > trial.n_rungs:
            step.record(ev.TrialPromoted(time_s=step.now_s, trial=trial.number, n_rungs=decision.n_rungs))
            self.assigner.assign_folds(self.blocks.block_of(team_index))  # those that were paused at the rung
        match decision.verdict:
            case Verdict.GO_ON:
                step.send(team_index, msg.GoOn(assignment=assignment.number))
            case Verdict.PAUSE:
                step.send(team_index, msg.PauseFold(assignment=assignment.number))
            case Verdict.PRUNE:
                self._outcomes.prune(trial, decision.reason)

    def _end_assignment(self, team_index: int, assignment: Assignment, message: msg.Message) -> None:
        """Write down how an assignment has ended, and what follows from it for its trial."""
        trial = self.ledger.trials[assignment.trial]
        self._step.record(event_of(message, assignment, trial, self._step.now_s))
        del self.blocks.assignment_of_team[team_index]
        self._step.send(team_index, msg.FoldRecorded(assignment=assignment.number))
        if trial.state.ended:
            return
        if isinstance(message, msg.FoldFailed):
            self._outcomes.fail(trial, assignment.fold, message.reason)
        elif len(trial.folds) == self.plan.n_fold:
            self._outcomes.complete(trial)
        elif isinstance(message, msg.FoldFinished) and (reason := self.policy.why_hopeless(trial)):
            self._outcomes.prune(trial, reason)

    # ------------------------------------------------------------ time

    def _check_time(self) -> None:
        """Begin no trial that the time does not allow; when it is over, stop those under way."""
        budget, now_s = self.plan.budget, self._step.now_s
        self._check_count()
        if budget.trial_timeout_s is not None:
            self._check_trials(budget.trial_timeout_s)
        if budget.is_over(now_s):
            self._preempt("the walltime is over", *walltime_times(budget))
        if self.ending.preempting:
            self._hurry()
        else:
            self.ending.check_time(self.ledger.sessions, now_s)

    def _check_count(self) -> None:
        self.ending.check_count(len(self.ledger.trials), is_used_up=self.stock.is_used_up)

    def _check_trials(self, timeout_s: float) -> None:
        """Fail trials of which a fold takes too long, and give up where the team does not come back from one."""
        budget, now_s = self.plan.budget, self._step.now_s
        for team_index, assignment in self.blocks.assignment_of_team.items():
            if not budget.is_overdue(assignment.assigned_at_s, now_s):
                continue
            told_at_s = self.blocks.suspects.get(team_index)
            if told_at_s is None:
                self.blocks.suspects[team_index] = now_s
                trial = self.ledger.trials[assignment.trial]
                if not trial.state.ended:  # else this fold was told to stop, and does not
                    reason = f"it took longer than `--trial-timeout`, {timeout_s:g} s"
                    self._outcomes.fail(trial, assignment.fold, reason)
            elif budget.is_overdue(told_at_s, now_s):
                self._step.instruct(
                    GiveUp(
                        reason=f"Block {assignment.block} is stuck in code of the model: a trial of it took longer "
                        f"than `--trial-timeout`, {timeout_s:g} s, and it has not come back for as long again. The "
                        "trial is recorded as failed, and nobody can free a rank from outside: the search ends here, "
                        "the same command with `--opt-restore` (or `nnlo-opt launch`) goes on without it."
                    )
                )
                return

    def _preempt(self, reason: str, stop_at_s: float, give_up_at_s: float) -> None:
        """Have everything come to a checkpoint until `stop_at_s`; the next start goes on from there."""
        nothing_left = self.phase is Phase.DRAINING and not self.assigner.has_trial
        if self.ending.preempting or self.phase is Phase.OVER:
            return
        if nothing_left and self.assigner.next_promotion() is None:
            return
        self.ending.preempt(reason, stop_at_s, give_up_at_s)
        if self._step.now_s < stop_at_s:
            for team_index, assignment in self.blocks.assignment_of_team.items():
                self._step.send(team_index, msg.PreemptFold(assignment=assignment.number))

    def _hurry(self) -> None:
        """Stop what has come to no checkpoint in time, and do without those that do not stop either."""
        ending, under_way = self.ending, self.blocks.assignment_of_team
        if self._step.now_s >= ending.stop_at_s:
            ending.stop_at_s = math.inf
            for team_index, assignment in under_way.items():
                self._step.send(team_index, msg.StopFold(assignment=assignment.number))
        elif self._step.now_s >= ending.give_up_at_s and under_way:
            ending.all_stopped = False
            for team_index in list(under_way):
                self._end_preempted(team_index)

    def _end_preempted(self, team_index: int) -> None:
        """An assignment has ended for want of time. Its master is not told that it is recorded: checkpoints stay."""
        number, now_s = self.blocks.assignment_of_team.pop(team_index).number, self._step.now_s
        reason = self.ending.preempted_because
        self._step.record(ev.AssignmentPreempted(time_s=now_s, assignment=number, reason=reason))

    # ------------------------------------------------------------ the end

    def _settle(self) -> None:
        """Enter the next phase when nothing more can begin, or nothing more runs."""
        self._check_count()
        ending, is_left = self.ending, self.assigner.has_trial
        if self.roster.is_hopeless and not ending.preempting and (is_left or self.assigner.has_more):
            reason = (
                "No block is left that can train, as ranks of all of them have died: the search ends here, the same "
                "command with `--opt-restore` (or `nnlo-opt launch`) goes on."
            )
            self._step.instruct(GiveUp(reason=reason))
            return
        is_busy = bool(self.blocks.assignment_of_team)
        if self.phase is not Phase.DRAINING or is_busy or (is_left and not ending.preempting):
            return
        # What was told to end may have been all there was.
        is_left = is_left or (ending.preempting and self.assigner.next_promotion() is not None)
        if ending.is_complete(is_left=is_left):
            for trial in self.ledger.trials:
                if trial.state is TrialState.PAUSED:
                    self._outcomes.prune(trial, self.policy.why_left(trial.number))
        self._step.instruct(ending.finish(is_left=is_left))
