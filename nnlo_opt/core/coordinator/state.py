"""Decisions of the coordinator: events in, instructions out, no I/O.

`CoordinatorState.handle` takes one event (a message from a master, a suggestion of the search) and returns
instructions for the shell to carry out in order. It is the only mutator. Every event is recorded before the messages
that it justifies: an `Append` precedes every `Send`.

Only the state has references to the parts, which do not know each other: `membership` has teams, blocks and
assignments; `suggestions` has points for future trials; `ending` has the phase of the run; `policy` judges trials.
`outcomes` converts what has happened to events, orders and reports.
"""

import logging
from collections import deque
from collections.abc import Sequence

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Team, Topology
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator.ending import Ending, Phase, grace_times, walltime_times
from nnlo_opt.core.coordinator.membership import Membership, TeamState
from nnlo_opt.core.coordinator.outcomes import (
    completion,
    event_of,
    fold_to_give_up,
    loss_of,
    order_of,
    recorded_late,
    report_of,
)
from nnlo_opt.core.coordinator.policy import Policy
from nnlo_opt.core.coordinator.suggestions import SuggestionBuffer
from nnlo_opt.core.search.base import Suggestion
from nnlo_opt.core.search.pruning import Pruner, Verdict
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Assignment, AssignmentEnd, Trial, TrialState, UnrecordedFold

logger = logging.getLogger(__name__)


class CoordinatorState:
    """Assigns folds of trials to teams, one trial per block at a time; requests suggestions ahead of need.

    Args:
        plan: goal of the search.
        topology: blocks and teams of this start of the run.
        ledger: trials of earlier starts. From now on only this state may change it.
        pruner: as for `Policy`.
    """

    #: True if jobs may join, so that teams come and go
    is_shared = False

    def __init__(self, plan: ins.SearchPlan, topology: Topology, ledger: Ledger, pruner: Pruner | None = None) -> None:
        self.plan = plan
        self.topology = topology
        #: all trials. Do not set from outside: changed only by the events of `_record`
        self.ledger = ledger
        #: teams, blocks, assignments
        self.membership = Membership(topology)
        #: suggestions not yet used
        self.suggestions = SuggestionBuffer(topology.n_blocks)
        #: the phase, and the reasons to enter the next one
        self.ending = Ending(plan)
        #: verdicts about trials; has processed the same events as the ledger
        self.policy = Policy(plan, ledger, pruner)
        #: trials that could not be paused at their rung
        self._unpaused = set[int]()
        #: trials begun but not ended, without a block, in the order in which they resume; without paused trials
        self.to_resume: deque[int] = deque()
        #: time of the current decision, in seconds since the first start; its events and instructions so far
        self._now_s = 0.0
        self._events: list[ev.Event] = []
        self._instructions: list[ins.Instruction] = []

    @property
    def phase(self) -> Phase:
        """Phase of the run."""
        return self.ending.phase

    # ------------------------------------------------------------ the one mutator

    def handle(self, event: ins.CoordinatorEvent, now_s: float) -> list[ins.Instruction]:
        """Handle `event`; return the instructions to carry out, in order.

        Args:
            event: event allowed in the phase of the run.
            now_s: seconds since the first start of the run.

        Raises:
            ProtocolError: the phase forbids the event, or the event contradicts the ledger.
        """
        allowed = ins.TO_OPEN if self.phase is Phase.OPENING else ins.ONCE_OPEN
        if type(event) not in allowed and not (self.is_shared and isinstance(event, ins.JobsChanged)):
            raise ProtocolError(f"{type(event).__name__} may not come while the coordinator is {self.phase.name}.")
        self._now_s, self._events, self._instructions = now_s, [], []
        self._take(event)
        if self.phase not in (Phase.OPENING, Phase.OVER):
            self._check_time()
            self._fill_blocks()
            self._ask_ahead()
            self._settle()
        if self.phase is not Phase.SEARCHING:
            self.suggestions.ready.clear()
        if not self._events:
            return self._instructions
        durable = any(not isinstance(made, ev.NEWS) for made in self._events)
        return [ins.Append(events=tuple(self._events), durable=durable), *self._instructions]

    def _take(self, event: ins.CoordinatorEvent) -> None:
        match event:
            case ins.Begin():
                self._begin(event.last_end, {fold.assignment: fold for fold in event.finished})
            case Suggestion():
                self._take_suggestion(event)
            case ins.FromMaster(message=msg.TeamReformed() as reformed):
                self._take_reformed(event.team, reformed)
            case ins.FromMaster():
                self._take_message(event.team, event.message)
            case ins.RanksDied():
                self._take_deaths(event.ranks)
            case ins.Preempt():
                self._preempt(event.reason, *grace_times(self._now_s, event.grace_s))
            case ins.Enqueue():
                self.suggestions.reopen()
                self._instructions.append(ins.Propose(point=event.point))
            case ins.StopTrial() if self.phase is not Phase.OVER:
                self._stop(event.trial, event.reason)
            case ins.Drain():
                self.ending.stop(event.reason)

    # ------------------------------------------------------------ the decision under way

    def _record(self, event: ev.Event) -> None:
        """Record an event, and apply it to ledger and policy. ProtocolError if it contradicts the ledger."""
        self.ledger.apply(event)
        self.policy.take(event)
        self._events.append(event)

    def _send(self, team_index: int, message: msg.Message) -> None:
        """Send a message to the master of a team, whichever rank that is now, unless the team is away."""
        if team_index not in self.membership.away:
            rank = self.membership.teams[team_index].master_rank
            self._instructions.append(ins.Send(team=team_index, rank=rank, message=message))

    # ------------------------------------------------------------ the first event

    def _begin(self, last_end: ins.LastEnd, finished: dict[int, UnrecordedFold]) -> None:
        """Continue from the ledger of the earlier starts."""
        self.ending.begin()
        self._end_left_open(last_end, finished)
        for trial in self.ledger.trials:
            # The end of a fold and its consequences are one write, of which a crash may have kept only the beginning.
            failed = next((a for a in trial.assignments if a.end is AssignmentEnd.FAILED), None)
            if not trial.state.ended and failed is not None:
                self._fail(trial, failed.fold, failed.reason)
                continue
            if self._gives_up(trial):
                continue
            if not trial.state.ended and len(trial.folds) == self.plan.n_fold:
                self._record(completion(trial, self.plan, self._now_s))
            waits = not (trial.state.ended or trial.running)
            if waits and self.policy.folds_to_run(trial):
                self.to_resume.append(trial.number)
            elif waits and trial.state is not TrialState.PAUSED:
                self._pause(trial)
            self._instructions.append(report_of(trial, self.plan))
        self.ending.replay(self.ledger)
        if self.ending.preempting:
            self._check_count()
            self.ending.drain(self.ending.preempted_because)

    def _end_left_open(self, last_end: ins.LastEnd, finished: dict[int, UnrecordedFold]) -> None:
        """End the assignments left open by an earlier start: some had finished, the others are lost."""
        fruitless = len(self.ledger.sessions) > 1 and not self.ledger.sessions[-2].n_lasting
        for assignment in [a for a in self.ledger.assignments if a.end is None and not self.membership.has(a)]:
            kept, trial = finished.get(assignment.number), self.ledger.trials[assignment.trial]
            if kept is not None and kept.is_of(assignment, trial.point):
                self._record(recorded_late(kept, assignment, trial, self._now_s))
            else:
                self._lose(assignment, *loss_of(last_end, assignment, fruitless=fruitless))

    # ------------------------------------------------------------ the search

    def _take_suggestion(self, suggestion: Suggestion) -> None:
        number = len(self.ledger.trials) + self.suggestions.n_new
        self.suggestions.add(suggestion)
        if (named := self.ledger.named(suggestion.expected, self._now_s)) is not None:
            self._record(named)
        if suggestion.trial is not None:
            self._instructions.append(report_of(self.ledger.trials[suggestion.trial], self.plan, taken=True))
        elif suggestion.point is not None and self.phase is Phase.SEARCHING:
            self._instructions.append(ins.Tell(trial=number, point=suggestion.point, state="pending"))

    def _ask_ahead(self) -> None:
        """Request suggestions for every idle block and some in reserve, up to the number of trials."""
        n_known = len(self.ledger.trials) + self.suggestions.n_new
        may_ask = self.phase is Phase.SEARCHING and self.plan.allows(n_known)
        if may_ask and self.suggestions.is_short(len(self.membership.idle)):
            self.suggestions.ask()
            self._instructions.append(ins.Ask(number=n_known))

    # ------------------------------------------------------------ masters

    def _take_message(self, team_index: int, message: msg.Message) -> None:
        number = getattr(message, "assignment", None)
        assignment = self.membership.assignment_of_team.get(team_index)
        if assignment is None or assignment.number != number:
            logger.info("dropped a late %s about assignment %s", type(message).__name__, number)
            return
        if not isinstance(message, msg.FoldStopped):
            self.membership.suspects.pop(team_index, None)
        trial, preempting = self.ledger.trials[assignment.trial], self.ending.preempting
        match message:
            case msg.EpochReported():
                self._take_report(team_index, assignment, message)
            case msg.FoldStopped() if (preempting or self.is_shared) and not trial.state.ended:
                self._end_preempted(team_index)
            case msg.FoldFailed() if preempting and not trial.state.ended:
                # The signal may have killed a process of the user: the next start will show whether the trial fails.
                logger.warning("trial %d failed while it was preempted: %s", trial.number, message.reason)
                self._end_preempted(team_index)
            case msg.FoldFinished() | msg.FoldPaused() | msg.FoldStopped() | msg.FoldFailed():
                self._end_assignment(team_index, assignment, message)
            case _:
                self._record(event_of(message, assignment, trial, self._now_s))
        if assignment.end is not None:
            self._place_block(self.membership.block_of(team_index))

    def _take_report(self, team_index: int, assignment: Assignment, message: msg.EpochReported) -> None:
        trial = self.ledger.trials[assignment.trial]
        # After a resume from a checkpoint, a master reports an epoch again that the journal already has.
        if message.epoch not in trial.reports.get(assignment.fold, ()) or message.epoch > assignment.epoch:
            self._record(event_of(message, assignment, trial, self._now_s))
        if not message.waits or trial.state.ended or self.ending.preempting:
            return  # the master has been told to stop
        decision = self.policy.judge(trial.number, assignment.fold, message.epoch)
        if decision.n_rungs > trial.n_rungs:
            self._record(ev.TrialPromoted(time_s=self._now_s, trial=trial.number, n_rungs=decision.n_rungs))
            self._assign_folds(self.membership.block_of(team_index))  # the folds paused at the rung
        verdict = decision.verdict
        if verdict is Verdict.PAUSE and not message.can_pause:
            verdict = Verdict.GO_ON
            if trial.number not in self._unpaused:
                self._unpaused.add(trial.number)
                logger.warning("trial %d has saved no checkpoint, and continues past its rung", trial.number)
        match verdict:
            case Verdict.GO_ON:
                self._send(team_index, msg.GoOn(assignment=assignment.number))
            case Verdict.PAUSE:
                self._send(team_index, msg.PauseFold(assignment=assignment.number))
            case Verdict.PRUNE:
                self._prune(trial, decision.reason)

    def _end_assignment(self, team_index: int, assignment: Assignment, message: msg.Message) -> None:
        """Record the end of an assignment, and the consequences for its trial."""
        trial = self.ledger.trials[assignment.trial]
        self._record(event_of(message, assignment, trial, self._now_s))
        del self.membership.assignment_of_team[team_index]
        self._send(team_index, msg.FoldRecorded(assignment=assignment.number))
        if trial.state.ended:
            return
        if assignment.end is AssignmentEnd.LOST:
            self._gives_up(trial)
        elif isinstance(message, msg.FoldFailed):
            self._fail(trial, assignment.fold, message.reason)
        elif len(trial.folds) == self.plan.n_fold:
            self._record(completion(trial, self.plan, self._now_s))
            self._instructions.append(report_of(trial, self.plan))
            self.ending.check_target(trial)
            self.ending.take(trial)
        elif isinstance(message, msg.FoldFinished) and (reason := self.policy.why_worse(trial)):
            self._prune(trial, reason)

    # ------------------------------------------------------------ outcomes of trials

    def _fail(self, trial: Trial, fold: int, reason: str) -> None:
        """Fail a trial because of one of its folds."""
        which = f"fold {fold}: " if self.plan.n_fold > 1 else ""
        self._end(trial, ev.TrialFailed(time_s=self._now_s, trial=trial.number, reason=which + reason))

    def _prune(self, trial: Trial, reason: str) -> None:
        figure = self.policy.reports.figure_so_far(trial.number)
        assert figure is not None, "a trial was judged before it had reported"
        self._end(trial, ev.TrialPruned(time_s=self._now_s, trial=trial.number, figure_of_merit=figure, reason=reason))

    def _end(self, trial: Trial, event: ev.Event) -> None:
        """End a trial without a result, and stop its running folds."""
        self._record(event)
        self._instructions.append(report_of(trial, self.plan))
        self.ending.take(trial)
        for assignment in trial.running:
            self._send(assignment.team, msg.StopFold(assignment=assignment.number))

    def _stop(self, number: int, reason: str) -> None:
        """End a trial at a user's request: pruned if it has a figure of merit, else failed."""
        if not 0 <= number < len(self.ledger.trials) or (trial := self.ledger.trials[number]).state.ended:
            return
        if number in self.to_resume:
            self.to_resume.remove(number)
        if self.policy.reports.figure_so_far(number) is not None:
            self._prune(trial, reason)
        else:
            self._end(trial, ev.TrialFailed(time_s=self._now_s, trial=number, reason=reason))

    def _pause(self, trial: Trial) -> None:
        """Pause a trial at its rung."""
        figure = self.policy.reports.figure_so_far(trial.number)
        assert figure is not None, "a trial waits at a rung before it had reported"
        self._record(ev.TrialPaused(time_s=self._now_s, trial=trial.number, figure_of_merit=figure))

    def _lose(self, assignment: Assignment, reason: str, counts: bool) -> None:
        """Record that an assignment was lost with its ranks; `counts`: against `--max-attempts`."""
        lost = ev.AssignmentLost(time_s=self._now_s, assignment=assignment.number, reason=reason, counts=counts)
        self._record(lost)

    def _gives_up(self, trial: Trial) -> bool:
        """Fail a trial if attempts at one of its folds were lost too often; return True if so."""
        found = None if trial.state.ended else fold_to_give_up(trial, self.plan.max_attempts)
        if found is not None:
            self._fail(trial, *found)
        return found is not None

    # ------------------------------------------------------------ dead ranks

    def _take_deaths(self, ranks: frozenset[int]) -> None:
        """Wait for the rest of each team to reform; give up a team without ranks."""
        for team_index in self.membership.died(ranks):
            if self.membership.states[team_index] is TeamState.LOST:
                self._take_losses(team_index, self.membership.teams[team_index], continued=-1)
            self._place_block(self.membership.block_of(team_index))

    def _take_reformed(self, team_index: int, message: msg.TeamReformed) -> None:
        """Handle that a team has reformed without some of its ranks."""
        before = self.membership.teams[team_index]
        self.membership.reformed(team_index, message.alive, message.world_ranks, message.n_masters)
        assignment = self.membership.assignment_of_team.get(team_index)
        continued = message.goes_on
        # An order that a live master has not received yet is in transit; a team that is away may speak of another one.
        is_away, leads = team_index in self.membership.away, before.master_rank in message.world_ranks
        if assignment is not None and (is_away or (leads and assignment.number > message.taken)):
            continued = assignment.number
        self._take_losses(team_index, before, continued, message.how)
        self._place_block(self.membership.block_of(team_index))

    def _take_losses(self, team_index: int, before: Team, continued: int, how: str = "") -> None:
        """Record the ranks that a team has lost, and the loss of its assignment unless the team continues it.

        Args:
            team_index: the team.
            before: the team as it trained when the ranks died.
            continued: number of the assignment that the team continues; -1 for none.
            how: as in `TeamReformed`.
        """
        assignment = self.membership.assignment_of_team.get(team_index)
        ranks = self.membership.take_unrecorded(team_index)
        is_lost = assignment is not None and assignment.number != continued
        counts = assignment is not None and self._blames(assignment, ranks, before)
        n_alive, n_training = self.membership.n_left(before.block)
        lost = ev.RanksLost(
            time_s=self._now_s,
            ranks=ranks,
            block=before.block,
            team=team_index,
            n_alive=n_alive,
            n_ranks=n_training,
            assignment=-1 if assignment is None else assignment.number,
            counts=counts and not is_lost,
        )
        if ranks:
            self._record(lost)
        if assignment is None:
            return
        if is_lost:
            del self.membership.assignment_of_team[team_index]
            self.membership.suspects.pop(team_index, None)
            self._lose(assignment, how or ev.died_text(ranks), counts)
        self._gives_up(self.ledger.trials[assignment.trial])

    def _blames(self, assignment: Assignment, ranks: Sequence[int], team: Team) -> bool:
        """Return True if the trial may have killed `ranks` of `team`: some trained it, and no other cause is known."""
        is_wanted = not (self.ending.preempting or self.ledger.trials[assignment.trial].state.ended)
        return is_wanted and (not ranks or not set(ranks).isdisjoint(team.world_ranks))

    def _place_block(self, block: int) -> None:
        """Continue a block with its remaining teams, or move its trial to another block if none can train."""
        if block not in self.membership.trial_of_block:
            self.membership.update_free(block)
            return
        trial = self.ledger.trials[self.membership.trial_of_block[block]]
        stays = self.membership.is_busy(block) or self.membership.may_train(block)
        if stays or trial.state.ended or not self.policy.folds_to_run(trial):
            self._continue_block(block)
        else:
            self.to_resume.appendleft(trial.number)
            self._release(block)

    # ------------------------------------------------------------ assignment

    @property
    def _has_trial(self) -> bool:
        """True if a block holds a trial, or a trial waits to be resumed."""
        return bool(self.membership.trial_of_block or self.to_resume)

    @property
    def _has_more(self) -> bool:
        """True if a trial would begin or be promoted if a block were free."""
        return self.phase is Phase.SEARCHING or (self.phase is Phase.DRAINING and self._next_promotion() is not None)

    def _next_promotion(self) -> int | None:
        """Return the paused trial to promote; if no other can run and none is complete, the best one."""
        alone = self.phase is not Phase.SEARCHING
        if self.ending.promotes and (number := self.policy.promotion(alone=alone)) is not None:
            return number
        is_last = self.phase is Phase.DRAINING and not (self.ending.cut_short or self.membership.trial_of_block)
        return self.policy.last_resort() if is_last else None

    def _fill_blocks(self) -> None:
        """Give waiting trials to idle blocks: trials to resume, then promoted ones, then new suggestions."""
        while not self.ending.preempting and self.membership.idle and (number := self._next_trial()) is not None:
            self._assign_folds(self.membership.place(number, self._now_s))

    def _next_trial(self) -> int | None:
        if self.to_resume:
            return self.to_resume.popleft()
        if (promoted := self._promoted()) is not None:
            return promoted
        number, ready = len(self.ledger.trials), self.suggestions.ready
        if self.phase is not Phase.SEARCHING or not ready or not self.plan.allows(number):
            return None
        if self.ending.only_fails(self.ledger.trials):
            return None  # the running trials will show whether one succeeds
        suggestion = ready.popleft()
        if suggestion.trial is not None:
            goes_on = self.ledger.trials[suggestion.trial].state is TrialState.PAUSED  # else another one was faster
            return self._promote(suggestion.trial) if goes_on else self._next_trial()
        suggested = ev.TrialSuggested(
            time_s=self._now_s,
            trial=number,
            point=suggestion.point or {},
            suggest_s=suggestion.wall_s,
            suggest_cpu_s=suggestion.cpu_s,
            origin=suggestion.origin,
        )
        self._record(suggested)
        return number

    def _promote(self, number: int) -> int:
        trial = self.ledger.trials[number]
        self._record(ev.TrialPromoted(time_s=self._now_s, trial=number, n_rungs=self.policy.rungs_behind(trial)))
        self._instructions.append(report_of(trial, self.plan, taken=True))
        return number

    def _promoted(self) -> int | None:
        """Return a paused trial to resume on an idle block; one that its block is about to leave resumes there."""
        while (number := self._next_promotion()) is not None:
            trial = self.ledger.trials[self._promote(number)]
            if not trial.running:
                return number
            self._assign_folds(self.membership.block_of(trial.running[0].team))
        return None

    def _continue_block(self, block: int) -> None:
        """Give the teams of a block the remaining folds of its trial, or release it when no fold is left."""
        trial = self.ledger.trials[self.membership.trial_of_block[block]]
        if not trial.state.ended and self.policy.folds_to_run(trial):
            if not self.ending.preempting:
                self._assign_folds(block)
        elif not self.membership.is_busy(block):
            if not trial.state.ended:
                self._pause(trial)
                self._instructions.append(report_of(trial, self.plan))
            self._release(block)

    def _release(self, block: int) -> None:
        self.suggestions.add_trial(self.membership.release(block, self._now_s))

    def _assign_folds(self, block: int) -> None:
        """Give each idle team of the block one of the folds still to be run."""
        trial = self.ledger.trials[self.membership.trial_of_block[block]]
        under_way = {assignment.fold for assignment in trial.running}
        waiting = [fold for fold in self.policy.folds_to_run(trial) if fold not in under_way]
        for team, fold in zip(self.membership.idle_teams(block), waiting, strict=False):
            self._assign(team, trial, fold)

    def _assign(self, team: Team, trial: Trial, fold: int) -> None:
        number, attempt = len(self.ledger.assignments), trial.n_attempts(fold) + 1
        assigned = ev.FoldAssigned(
            time_s=self._now_s,
            assignment=number,
            trial=trial.number,
            fold=fold,
            attempt=attempt,
            block=team.block,
            team=team.index,
            n_ranks=len(team.world_ranks),
        )
        self._record(assigned)
        self.membership.assignment_of_team[team.index] = assignment = self.ledger.assignments[number]
        pause_epochs, waits = self.policy.pause_epochs(trial.number), self.plan.pruning is not None
        self._send(team.index, order_of(assignment, trial, pause_epochs, waits=waits))

    # ------------------------------------------------------------ time

    def _check_time(self) -> None:
        """Begin no trial that time does not allow; when time is up, stop the running trials."""
        budget = self.plan.budget
        self._check_count()
        if budget.trial_timeout_s is not None:
            self._check_trials(budget.trial_timeout_s)
        if budget.is_over(self._now_s):
            self._preempt("the walltime is over", *walltime_times(budget))
        if self.ending.preempting:
            self._hurry()
        else:
            self.ending.check_time(self.ledger.sessions, self._now_s)

    def _check_count(self) -> None:
        is_used_up, n_adopted = self.suggestions.is_used_up, len(self.ledger.adopted)
        self.ending.check_count(len(self.ledger.trials), is_used_up=is_used_up, n_adopted=n_adopted)
        if not self._has_trial:
            self.ending.check_failures(self.ledger.trials)

    def _check_trials(self, timeout_s: float) -> None:
        """Fail trials whose folds take too long; give up if a team does not stop, either."""
        budget, now_s, suspects = self.plan.budget, self._now_s, self.membership.suspects
        limit = f"`{spelled('trial_timeout')}`, {timeout_s:g} s"
        for team_index, assignment in self.membership.assignment_of_team.items():
            if not budget.is_overdue(assignment.assigned_at_s, now_s):
                continue
            ordered_at_s = suspects.get(team_index)
            if ordered_at_s is None:
                suspects[team_index] = now_s
                trial = self.ledger.trials[assignment.trial]
                if not trial.state.ended:  # otherwise the team has already been told to stop this fold
                    self._fail(trial, assignment.fold, f"it took longer than {limit}")
            elif budget.is_overdue(ordered_at_s, now_s):
                what = f"its trial took longer than {limit}, and has not stopped for as long again."
                self._take_stuck(assignment, f"Block {assignment.block} is stuck in the model's code: {what}")

    def _take_stuck(self, assignment: Assignment, what: str) -> None:
        """Give up, because the team of an assignment does not stop."""
        end = "The trial has failed. The search ends here, because a rank cannot be freed from outside"
        self._give_up(f"{what} {end}", " without this trial")

    def _give_up(self, why: str, without: str = "") -> None:
        how = f"add `{spelled('opt_restore', True)}` to resume it{without} (`nnlo-opt launch` does so by itself)."
        self._instructions.append(ins.GiveUp(reason=f"{why}; {how}"))

    def _preempt(self, reason: str, stop_at_s: float, abandon_at_s: float) -> None:
        """Tell every assignment to write a checkpoint before `stop_at_s`, from which the next start resumes."""
        is_over = self.ending.preempting or self.phase is Phase.OVER
        if is_over or (self.phase is Phase.DRAINING and not (self._has_trial or self._has_more)):
            return
        self.ending.preempt(reason, stop_at_s, abandon_at_s)
        if self._now_s < stop_at_s:
            for team_index, assignment in self.membership.assignment_of_team.items():
                self._send(team_index, msg.PreemptFold(assignment=assignment.number))

    def _hurry(self) -> None:
        """Stop assignments without a checkpoint in time; abandon teams that do not stop, either."""
        under_way = self.membership.assignment_of_team
        if self.ending.stops(self._now_s):
            for team_index, assignment in under_way.items():
                self._send(team_index, msg.StopFold(assignment=assignment.number))
        if under_way and self.ending.abandons(self._now_s):
            for team_index in list(under_way):
                self._end_preempted(team_index)

    def _end_preempted(self, team_index: int) -> None:
        """End an assignment for lack of time. Its master gets no FoldRecorded, so it keeps its checkpoints."""
        number = self.membership.assignment_of_team.pop(team_index).number
        reason = self.ending.preempted_because or "its job let it go"
        self._record(ev.AssignmentPreempted(time_s=self._now_s, assignment=number, reason=reason))

    # ------------------------------------------------------------ the end

    def _settle(self) -> None:
        """Enter the next phase when nothing more can begin, or nothing is running."""
        self._check_count()
        ending, is_left = self.ending, self._has_trial
        if not (self.membership.n_may_train or ending.preempting or self.is_shared) and (is_left or self._has_more):
            self._give_up("No block can train any more, because ranks of every block have died. The search ends here")
            return
        is_busy = bool(self.membership.assignment_of_team)
        if self.phase is not Phase.DRAINING or is_busy or (is_left and not ending.preempting):
            return
        # The preempted assignments may have been the last ones.
        is_left = is_left or (ending.preempting and self._next_promotion() is not None)
        if ending.is_complete(is_left=is_left):
            for trial in self.ledger.trials:
                if trial.state is TrialState.PAUSED:
                    self._prune(trial, self.policy.why_left(trial.number))
        self._instructions.append(ending.finish(is_left=is_left))
