"""The coordinator's decisions: pure, synchronous, no I/O.

`CoordinatorState.handle` takes one event (a message from a master, a suggestion of the search) and returns
instructions for the shell to carry out in order. It is the only mutator. What is written ahead comes first: an
`Append` precedes every `Send` it justifies.
"""

import logging
import math
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from heapq import heapify, heappop, heappush

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Team, Topology
from nnlo_opt.coordinator.attempts import LastEnd, hopeless_fold
from nnlo_opt.coordinator.budget import Durations, Progress, by_end
from nnlo_opt.coordinator.instructions import (
    Append,
    Ask,
    Begin,
    CoordinatorEvent,
    Finish,
    FromMaster,
    GiveUp,
    Instruction,
    Preempt,
    RanksDied,
    SearchPlan,
    Send,
    Suggested,
    Tell,
    Tick,
)
from nnlo_opt.coordinator.policy import Policy
from nnlo_opt.coordinator.records import completion, event_of, recorded_late, told
from nnlo_opt.coordinator.roster import Roster, TeamState
from nnlo_opt.coordinator.stock import Stock
from nnlo_opt.errors import ProtocolError
from nnlo_opt.search.pruning import Verdict
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import Assignment, AssignmentEnd, Trial, TrialState, UnrecordedFold

logger = logging.getLogger(__name__)


class Phase(Enum):
    """Where the run stands."""

    OPENING = auto()
    SEARCHING = auto()
    #: no new trial begins; running ones end
    DRAINING = auto()
    OVER = auto()


#: which events each phase takes; `_drain` and `_settle` lead to the next one
_ACCEPTED: dict[Phase, frozenset[type]] = {
    Phase.OPENING: frozenset({Begin, Preempt}),
    Phase.SEARCHING: frozenset({Suggested, FromMaster, RanksDied, Tick, Preempt}),
    Phase.DRAINING: frozenset({Suggested, FromMaster, RanksDied, Tick, Preempt}),
    Phase.OVER: frozenset({Suggested, FromMaster, RanksDied, Tick, Preempt}),
}
#: parts of a grace: for folds to come to a checkpoint, and for those that did not to stop; the rest is for reports
PAUSE_PART, STOP_PART = 0.75, 0.15
#: part of the end of a walltime for folds to come to a checkpoint; as much again is for those that did not to stop
WALLTIME_PAUSE_PART = 0.25


class CoordinatorState:
    """Assigns folds of trials to teams, one trial a block at a time; asks the search ahead of the blocks."""

    def __init__(self, plan: SearchPlan, topology: Topology, ledger: Ledger) -> None:
        self.plan = plan
        self.topology = topology
        #: the teams as they stand
        self.roster = Roster(topology)
        #: all trials; changed only by the events this state makes
        self.ledger = ledger
        #: which trials are worth going on with; knows every event that the ledger knows
        self.policy = Policy(plan, ledger)
        self.phase = Phase.OPENING
        #: block -> number of the trial it trains; a block not in it is idle
        self.trial_of_block: dict[int, int] = {}
        #: the blocks that hold no trial, as a heap: work is given to the lowest number first
        self.idle_blocks = list(range(1, topology.n_blocks + 1))
        #: the blocks that hold no trial and can train none, as ranks of them have died
        self.out_blocks: set[int] = set()
        #: team -> ranks of it that have died and are not in the journal yet
        self.news_of_team: dict[int, set[int]] = {}
        #: team -> assignment under way; a team not in it is idle
        self.assignment_of_team: dict[int, Assignment] = {}
        #: trials begun in an earlier session and not ended, oldest first; they go before new suggestions
        self.to_resume: deque[int] = deque()
        #: suggestions not yet given to a block, with the time they took
        self.ready: deque[Suggested] = deque()
        #: how many of these are to be held
        self.stock = Stock(topology.n_blocks)
        #: block -> when the trial that it trains came to it; as `trial_of_block`
        self.since_s: dict[int, float] = {}
        #: whether the search owes an answer
        self.asked = False
        #: the search has no point left to suggest
        self.exhausted = False
        #: why no new trial begins; empty while searching
        self.drain_reason = ""
        #: the time of this start ends the search before it is over
        self.cut_short = False
        #: assignments under way were told to pause or stop, and no other begins
        self.preempting = False
        #: False: preempted teams that did not stop in time no longer count
        self.all_stopped = True
        #: while preempting: why
        self.preempted_because = ""
        #: while preempting: when what has not paused is told to stop (inf: it was), and when it no longer counts
        self.stop_at_s = self.give_up_at_s = math.inf
        #: team whose trial took too long -> when it was told to stop; until something else is heard of it than that it
        #: has, which a master can say while its workers are stuck
        self.suspects: dict[int, float] = {}
        #: what trials have lasted, and how long none was better: of the trials that have ended
        self.durations, self.progress = Durations(), Progress(plan.objectives, plan.direction)
        #: whether paused trials may be promoted: until the target is reached, or time or patience are spent
        self.promotes = True
        self._out: list[Instruction] = []
        self._events: list[ev.Event] = []
        self._now_s = 0.0

    # ------------------------------------------------------------ the one mutator

    def handle(self, event: CoordinatorEvent, now_s: float) -> list[Instruction]:
        """Take in `event` at `now_s` (seconds since the first start); ProtocolError for what the phase forbids."""
        if type(event) not in _ACCEPTED[self.phase]:
            raise ProtocolError(f"{type(event).__name__} may not come while the coordinator is {self.phase.name}.")
        self._out, self._events, self._now_s = [], [], now_s
        match event:
            case Begin():
                self._begin(event.last_end, {fold.assignment: fold for fold in event.finished})
            case Suggested():
                self._take_suggestion(event)
            case FromMaster(message=msg.TeamReformed() as reformed):
                self._take_reformed(event.team, reformed)
            case FromMaster():
                self._take_message(event.team, event.message)
            case RanksDied():
                self._take_deaths(event.ranks)
            case Preempt():
                stop_at_s = now_s + PAUSE_PART * event.grace_s
                self._preempt(event.reason, stop_at_s, stop_at_s + STOP_PART * event.grace_s)
        if self.phase not in (Phase.OPENING, Phase.OVER):
            self._check_time()
            self._fill_blocks()
            self._ask_ahead()
            self._settle()
        return self._instructions()

    def check(self) -> None:
        """Raise ProtocolError where an invariant does not hold; called after every step in tests."""
        running = {a.number for a in self.ledger.assignments if a.end is None}
        if running != {a.number for a in self.assignment_of_team.values()}:
            raise ProtocolError("Assignments under way in the ledger and on the teams differ.")
        for team_index, assignment in self.assignment_of_team.items():
            if self.trial_of_block.get(self.topology.teams[team_index].block) != assignment.trial:
                raise ProtocolError(f"Team {team_index} runs a trial its block does not hold.")
        if len(set(self.trial_of_block.values())) != len(self.trial_of_block):
            raise ProtocolError("Two blocks hold the same trial.")
        places = [*self.idle_blocks, *self.trial_of_block, *self.out_blocks]
        if sorted(places) != list(range(1, self.topology.n_blocks + 1)):
            raise ProtocolError("A block is neither idle, nor out, nor holds a trial, or is two of these.")
        if not all(self.roster.ready(block) for block in self.idle_blocks):
            raise ProtocolError("A block is idle that cannot train.")
        if any(self.roster.state(team) in (TeamState.LOST, TeamState.SPARE) for team in self.assignment_of_team):
            raise ProtocolError("A team has an assignment that cannot train.")
        for trial in self.ledger.trials:
            if trial.state is TrialState.PAUSED and (trial.number in self.trial_of_block.values() or trial.running):
                raise ProtocolError(f"Trial {trial.number} is paused on a block.")
        if self.ready and len(self.ledger.trials) + len(self.ready) > self.plan.num_iterations:
            raise ProtocolError("More suggestions are held than trials may begin.")

    # ------------------------------------------------------------ events

    def _begin(self, last_end: LastEnd, finished: dict[int, UnrecordedFold]) -> None:
        self.phase = Phase.SEARCHING
        fruitless = len(self.ledger.sessions) > 1 and not self.ledger.sessions[-2].n_lasting
        for assignment in [a for a in self.ledger.assignments if a.end is None]:
            kept, trial = finished.get(assignment.number), self.ledger.trials[assignment.trial]
            if kept is not None and kept.is_of(assignment, trial.point):
                self._record(recorded_late(kept, assignment, trial, self._now_s))
            else:
                reason, counts = last_end.loss_of(assignment, fruitless=fruitless)
                self._lose(assignment, reason, counts=counts)
        for trial in self.ledger.trials:
            # The end of a fold and what follows from it are one write, of which a crash may have kept the beginning.
            failed = next((a for a in trial.assignments if a.end is AssignmentEnd.FAILED), None)
            if not trial.state.ended and failed is not None:
                self._fail(trial, failed.fold, failed.reason)
                continue
            if self._is_given_up(trial):
                continue
            if not trial.state.ended and len(trial.folds) == self.plan.n_fold:
                self._complete(trial)
            if not trial.state.ended and self.policy.folds_to_run(trial):
                self.to_resume.append(trial.number)
            elif not trial.state.ended and trial.state is not TrialState.PAUSED:
                self._pause(trial)
            self._tell(trial)
        self.durations, self.progress = Durations(), Progress(self.plan.objectives, self.plan.direction)
        for trial in by_end(self.ledger):
            self._take_end(trial)
        if best := self.ledger.best(self.plan.direction):
            self._check_target(best)
        if self.preempting:
            self._drain_when_used_up()
            self._drain(self.preempted_because)

    def _lose(self, assignment: Assignment, reason: str, *, counts: bool) -> None:
        """An assignment has ended with ranks that ran it; `counts`: against `--max-attempts`."""
        self._record(ev.AssignmentLost(time_s=self._now_s, assignment=assignment.number, reason=reason, counts=counts))

    def _is_given_up(self, trial: Trial) -> bool:
        """Fail a trial that was tried often enough."""
        hopeless = None if trial.state.ended else hopeless_fold(trial, self.plan.max_attempts)
        if hopeless is not None:
            self._fail(trial, *hopeless)
        return hopeless is not None

    def _take_suggestion(self, suggestion: Suggested) -> None:
        if not self.asked:
            raise ProtocolError("A suggestion came that nobody asked for.")
        self.asked = False
        self.stock.take_suggestion(suggestion.wall_s)
        if suggestion.point is None:
            self.exhausted = True
        elif self.phase is Phase.SEARCHING:
            number = len(self.ledger.trials) + len(self.ready)
            self._out.append(Tell(trial=number, point=suggestion.point, state="pending"))
            self.ready.append(suggestion)

    def _take_message(self, team_index: int, message: msg.Message) -> None:
        number = getattr(message, "assignment", None)
        assignment = self.assignment_of_team.get(team_index)
        if assignment is None or assignment.number != number:
            logger.info("dropped a late %s about assignment %s", type(message).__name__, number)
            return
        if not isinstance(message, msg.FoldStopped):
            self.suspects.pop(team_index, None)
        trial = self.ledger.trials[assignment.trial]
        match message:
            case msg.EpochReported():
                self._take_report(team_index, assignment, message)
            case msg.FoldStopped() if self.preempting and not trial.state.ended:
                self._preempted(team_index)
            case msg.FoldFailed() if self.preempting and not trial.state.ended:
                # The signal may have ended a process of the user's: the next start will tell.
                logger.warning("trial %d failed while it was preempted: %s", trial.number, message.reason)
                self._preempted(team_index)
            case msg.FoldFinished() | msg.FoldPaused() | msg.FoldStopped() | msg.FoldFailed():
                self._end_assignment(team_index, assignment, message)
            case _:
                self._record(event_of(message, assignment, trial, self._now_s))
        if assignment.end is not None:
            self._go_on_with_block(self.topology.teams[team_index].block)

    # ------------------------------------------------------------ ranks that die

    def _take_deaths(self, ranks: frozenset[int]) -> None:
        """Wait for what is left of each team to come together, and do without a team of which nothing is."""
        for team_index, news in self.roster.died(ranks).items():
            self.news_of_team.setdefault(team_index, set()).update(news)
            if self.roster.state(team_index) is TeamState.LOST:
                self._take_losses(team_index, self.roster.team(team_index), goes_on=-1)
            self._place_block(self.topology.teams[team_index].block)

    def _take_reformed(self, team_index: int, message: msg.TeamReformed) -> None:
        """A team has come together again, without some of its ranks."""
        before = self.roster.team(team_index)
        news = self.roster.reformed(team_index, message.alive, message.world_ranks, message.n_masters)
        self.news_of_team.setdefault(team_index, set()).update(news)
        assignment = self.assignment_of_team.get(team_index)
        goes_on = message.goes_on
        # What its master has not taken yet is on its way, and will be.
        if assignment is not None and before.master_rank in message.world_ranks and assignment.number > message.taken:
            goes_on = assignment.number
        self._take_losses(team_index, before, goes_on)
        self._place_block(self.topology.teams[team_index].block)

    def _take_losses(self, team_index: int, before: Team, goes_on: int) -> None:
        """Write down which ranks of a team are lost, and with them its assignment, unless that one `goes_on`.

        `before`: the team as it trained when they died.
        """
        assignment = self.assignment_of_team.get(team_index)
        ranks = sorted(self.news_of_team.pop(team_index, ()))
        is_lost = assignment is not None and assignment.number != goes_on
        counts = assignment is not None and self._blames(assignment, ranks, before)
        n_alive, n_training = self.roster.n_left(before.block)
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
            del self.assignment_of_team[team_index]
            self.suspects.pop(team_index, None)
            self._lose(assignment, ev.died_text(ranks), counts=counts)
        self._is_given_up(self.ledger.trials[assignment.trial])

    def _blames(self, assignment: Assignment, ranks: Sequence[int], team: Team) -> bool:
        """Whether the trial may have killed `ranks` of the `team`: they did train it, and nothing else is known."""
        is_wanted = not (self.preempting or self.ledger.trials[assignment.trial].state.ended)
        return is_wanted and (not ranks or not set(ranks).isdisjoint(team.world_ranks))

    def _place_block(self, block: int) -> None:
        """Have the block go on with what is left of it; its trial goes elsewhere where that is too little."""
        if block in self.trial_of_block:
            is_busy = any(team.index in self.assignment_of_team for team in self.topology.teams_of(block))
            if is_busy or self.roster.has_hope(block):
                self._go_on_with_block(block)
                return
            trial = self.ledger.trials[self.trial_of_block[block]]
            if not trial.state.ended:
                self.to_resume.appendleft(trial.number)
            self._free(block)
        else:
            self.out_blocks.discard(block)
            if block in self.idle_blocks:
                self.idle_blocks.remove(block)
                heapify(self.idle_blocks)
            self._set_aside(block)

    def _take_report(self, team_index: int, assignment: Assignment, message: msg.EpochReported) -> None:
        trial = self.ledger.trials[assignment.trial]
        # Gone on from a checkpoint, a master asks again about its epoch, which the journal need not know.
        if message.epoch not in trial.reports.get(assignment.fold, ()) or message.epoch > assignment.epoch:
            self._record(event_of(message, assignment, trial, self._now_s))
        if not message.waits or trial.state.ended or self.preempting:
            return  # it was told to stop
        decision = self.policy.judge(trial.number, assignment.fold, message.epoch)
        if decision.n_rungs > trial.n_rungs:
            self._record(ev.TrialPromoted(time_s=self._now_s, trial=trial.number, n_rungs=decision.n_rungs))
            self._assign_folds(self.topology.teams[team_index].block)  # those that were paused at the rung
        match decision.verdict:
            case Verdict.GO_ON:
                self._send(team_index, msg.GoOn(assignment=assignment.number))
            case Verdict.PAUSE:
                self._send(team_index, msg.PauseFold(assignment=assignment.number))
            case Verdict.PRUNE:
                self._prune(trial, decision.reason)

    # ------------------------------------------------------------ trials

    def _end_assignment(self, team_index: int, assignment: Assignment, message: msg.Message) -> None:
        """Write down how an assignment has ended, and what follows from it for its trial."""
        trial = self.ledger.trials[assignment.trial]
        self._record(event_of(message, assignment, trial, self._now_s))
        del self.assignment_of_team[team_index]
        self._send(team_index, msg.FoldRecorded(assignment=assignment.number))
        if trial.state.ended:
            return
        if isinstance(message, msg.FoldFailed):
            self._fail(trial, assignment.fold, message.reason)
        elif len(trial.folds) == self.plan.n_fold:
            self._complete(trial)
            self._tell(trial)
            self._check_target(trial)
            self._take_end(trial)
        elif isinstance(message, msg.FoldFinished) and (reason := self.policy.why_hopeless(trial)):
            self._prune(trial, reason)

    def _complete(self, trial: Trial) -> None:
        self._record(completion(trial, self.plan, self._now_s))

    def _fail(self, trial: Trial, fold: int, reason: str) -> None:
        """Fail the trial."""
        which = f"fold {fold}: " if self.plan.n_fold > 1 else ""
        self._record(ev.TrialFailed(time_s=self._now_s, trial=trial.number, reason=which + reason))
        self._tell(trial)
        self._take_end(trial)
        self._stop_folds(trial)

    def _prune(self, trial: Trial, reason: str) -> None:
        """Give the trial up."""
        figure = self.policy.figure_so_far(trial.number)
        assert figure is not None, "a trial was judged before it had reported"
        self._record(ev.TrialPruned(time_s=self._now_s, trial=trial.number, figure_of_merit=figure, reason=reason))
        self._tell(trial)
        self._take_end(trial)
        self._stop_folds(trial)

    def _pause(self, trial: Trial) -> None:
        """Leave the trial at its rung."""
        figure = self.policy.figure_so_far(trial.number)
        assert figure is not None, "a trial waits at a rung before it had reported"
        self._record(ev.TrialPaused(time_s=self._now_s, trial=trial.number, figure_of_merit=figure))

    def _stop_folds(self, trial: Trial) -> None:
        """Stop what runs of an ended trial; the results are not needed."""
        for assignment in trial.running:
            self._send(assignment.team, msg.StopFold(assignment=assignment.number))

    def _check_target(self, trial: Trial) -> None:
        target, figure = self.plan.target_objective, trial.figure_of_merit
        if target is None or figure is None:
            return
        if figure > target if self.plan.direction == "max" else figure < target:
            self.promotes = False
            self._drain(f"the target of {target:g} is reached: trial {trial.number} has {figure:g}")

    def _take_end(self, trial: Trial) -> None:
        """Learn from a trial that has ended what the next one may cost, and whether the search still gets better."""
        self.durations.take(trial)
        self.progress.take(trial)
        most = self.plan.budget.n_without_improvement
        if most is not None and self.progress.n_without >= most:
            self.promotes = False
            self._drain(f"the last {self.progress.n_without} trials have not been better than those before")

    def _check_time(self) -> None:
        """Begin no trial that the time does not allow; when it is over, stop those under way."""
        budget = self.plan.budget
        self._drain_when_used_up()
        if budget.trial_timeout_s is not None:
            self._check_trials(budget.trial_timeout_s)
        if budget.is_over(self._now_s):
            assert budget.deadline_s is not None
            stop_at_s = budget.deadline_s - (1 - WALLTIME_PAUSE_PART) * budget.end_s
            give_up_at_s = budget.deadline_s - budget.end_s / 2 if budget.end_s else math.inf
            self._preempt("the walltime is over", stop_at_s, give_up_at_s)
        if self.preempting:
            self._end_preempted()
        elif budget.is_timed_out(self.ledger.sessions, self._now_s):
            self.promotes = False
            self._drain(f"its time of {budget.timeout_s:g} s is spent")
        elif self.phase is Phase.SEARCHING and budget.leaves_no_trial(self.durations.expected_s, self._now_s):
            self.cut_short = True
            self._drain("the walltime leaves no time for another trial")

    def _check_trials(self, timeout_s: float) -> None:
        """Fail trials of which a fold takes too long, and give up where the team does not come back from one."""
        for team_index, assignment in self.assignment_of_team.items():
            if not self.plan.budget.is_overdue(assignment.assigned_at_s, self._now_s):
                continue
            told_at_s = self.suspects.get(team_index)
            if told_at_s is None:
                self.suspects[team_index] = self._now_s
                trial = self.ledger.trials[assignment.trial]
                if not trial.state.ended:  # else this fold was told to stop, and does not
                    self._fail(trial, assignment.fold, f"it took longer than `--trial-timeout`, {timeout_s:g} s")
            elif self.plan.budget.is_overdue(told_at_s, self._now_s):
                self._out.append(
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
        nothing_left = self.phase is Phase.DRAINING and not (self.trial_of_block or self.to_resume)
        if self.preempting or self.phase is Phase.OVER or (nothing_left and self._next_promotion() is None):
            return
        self.preempting, self.preempted_because = True, reason
        self.stop_at_s, self.give_up_at_s = stop_at_s, give_up_at_s
        self._drain(reason)
        if self._now_s < stop_at_s:
            for team_index, assignment in self.assignment_of_team.items():
                self._send(team_index, msg.PreemptFold(assignment=assignment.number))

    def _end_preempted(self) -> None:
        """Stop what has come to no checkpoint in time, and do without those that do not stop either."""
        if self._now_s >= self.stop_at_s:
            self.stop_at_s = math.inf
            for team_index, assignment in self.assignment_of_team.items():
                self._send(team_index, msg.StopFold(assignment=assignment.number))
        elif self._now_s >= self.give_up_at_s and self.assignment_of_team:
            self.all_stopped = False
            for team_index in list(self.assignment_of_team):
                self._preempted(team_index)

    def _preempted(self, team_index: int) -> None:
        """An assignment has ended for want of time. Its master is not told that it is recorded: checkpoints stay."""
        assignment = self.assignment_of_team.pop(team_index)
        event = ev.AssignmentPreempted(time_s=self._now_s, assignment=assignment.number, reason=self.preempted_because)
        self._record(event)

    def _drain(self, reason: str) -> None:
        if self.phase is Phase.SEARCHING:
            self.phase = Phase.DRAINING
            self.drain_reason = reason
            self.ready.clear()

    # ------------------------------------------------------------ blocks

    def _go_on_with_block(self, block: int) -> None:
        """Give the teams of a block the folds that are left of its trial, or free it when they are through with it."""
        trial = self.ledger.trials[self.trial_of_block[block]]
        if not trial.state.ended and self.policy.folds_to_run(trial):
            if not self.preempting:
                self._assign_folds(block)
        elif not any(team.index in self.assignment_of_team for team in self.topology.teams_of(block)):
            if not trial.state.ended:
                self._pause(trial)
                self._tell(trial)
            self._free(block)

    def _free(self, block: int) -> None:
        """The block is through with its trial."""
        del self.trial_of_block[block]
        self.stock.take_trial(self._now_s - self.since_s.pop(block))
        self._set_aside(block)

    def _set_aside(self, block: int) -> None:
        if self.roster.ready(block):
            heappush(self.idle_blocks, block)
        else:
            self.out_blocks.add(block)

    def _fill_blocks(self) -> None:
        """Give the trials that wait to idle blocks."""
        while not self.preempting and self.idle_blocks and (number := self._next_trial()) is not None:
            block = heappop(self.idle_blocks)
            self.trial_of_block[block], self.since_s[block] = number, self._now_s
            self._assign_folds(block)

    def _next_trial(self) -> int | None:
        if self.to_resume:
            return self.to_resume.popleft()
        if (promoted := self._promoted()) is not None:
            return promoted
        if self.phase is not Phase.SEARCHING or not self.ready or len(self.ledger.trials) >= self.plan.num_iterations:
            return None
        suggestion = self.ready.popleft()
        number = len(self.ledger.trials)
        self._record(
            ev.TrialSuggested(
                time_s=self._now_s,
                trial=number,
                point=suggestion.point or {},
                suggest_s=suggestion.wall_s,
                suggest_cpu_s=suggestion.cpu_s,
            )
        )
        return number

    def _promoted(self) -> int | None:
        """A paused trial that goes on; one that its block is about to leave goes on there."""
        while (number := self._next_promotion()) is not None:
            trial = self.ledger.trials[number]
            self._record(ev.TrialPromoted(time_s=self._now_s, trial=number, n_rungs=trial.n_rungs + 1))
            if not trial.running:
                return number
            self._assign_folds(self.topology.teams[trial.running[0].team].block)
        return None

    def _next_promotion(self) -> int | None:
        """The paused trial that is worth going on with; when nothing else can run and none is complete, the best."""
        if self.promotes and (number := self.policy.promotion()) is not None:
            return number
        is_last = self.phase is Phase.DRAINING and not (self.cut_short or self.trial_of_block)
        return self.policy.last_resort() if is_last else None

    def _assign_folds(self, block: int) -> None:
        """Give every idle team of the block one of the folds still to be run."""
        trial = self.ledger.trials[self.trial_of_block[block]]
        under_way = {assignment.fold for assignment in trial.running}
        waiting = deque(fold for fold in self.policy.folds_to_run(trial) if fold not in under_way)
        for team in self.roster.ready(block):
            if waiting and team.index not in self.assignment_of_team:
                self._assign(team, trial, waiting.popleft())

    def _assign(self, team: Team, trial: Trial, fold: int) -> None:
        number, attempt = len(self.ledger.assignments), trial.n_attempts(fold) + 1
        self._record(
            ev.FoldAssigned(
                time_s=self._now_s,
                assignment=number,
                trial=trial.number,
                fold=fold,
                attempt=attempt,
                block=team.block,
                team=team.index,
                n_ranks=len(team.world_ranks),
            )
        )
        self.assignment_of_team[team.index] = self.ledger.assignments[number]
        self._send(
            team.index,
            msg.RunFold(
                assignment=number,
                trial=trial.number,
                fold=fold,
                attempt=attempt,
                point=trial.point,
                waits_for_word=self.policy.judges,
                pause_epochs=self.policy.pause_epochs(trial.number),
            ),
        )

    # ------------------------------------------------------------ the search

    def _ask_ahead(self) -> None:
        """Keep a suggestion for every idle block, and a stock, as far as the number of iterations allows."""
        if self.asked or self.exhausted or self.phase is not Phase.SEARCHING:
            return
        n_known = len(self.ledger.trials) + len(self.ready)
        if n_known < self.plan.num_iterations and len(self.ready) < len(self.idle_blocks) + self.stock.target:
            self.asked = True
            self._out.append(Ask(number=n_known))

    def _tell(self, trial: Trial) -> None:
        self._out.append(told(trial, self.plan))

    def _drain_when_used_up(self) -> None:
        """Begin no more trials than were asked for, or than the space has points."""
        if self.phase is Phase.SEARCHING and len(self.ledger.trials) >= self.plan.num_iterations:
            self._drain(f"all {self.plan.num_iterations} trials are done")
        if self.exhausted and not self.ready:
            n_points = len(self.ledger.trials)
            self._drain(f"the search space is used up: all its {n_points} points have been tried")

    def _settle(self) -> None:
        """Enter the next phase when nothing more can begin, or nothing more runs."""
        self._drain_when_used_up()
        is_left = bool(self.trial_of_block or self.to_resume)
        if self.roster.is_hopeless and not self.preempting and (is_left or self._has_more()):
            reason = (
                "No block is left that can train, as ranks of all of them have died: the search ends here, the same "
                "command with `--opt-restore` (or `nnlo-opt launch`) goes on."
            )
            self._out.append(GiveUp(reason=reason))
            return
        if self.phase is not Phase.DRAINING or self.assignment_of_team or (is_left and not self.preempting):
            return
        # What was told to end may have been all there was.
        is_left = is_left or (self.preempting and self._next_promotion() is not None)
        complete = not (self.cut_short or is_left or self.drain_reason == self.preempted_because)
        for trial in self.ledger.trials if complete else ():
            if trial.state is TrialState.PAUSED:
                self._prune(trial, self.policy.why_left(trial.number))
        self.phase = Phase.OVER
        reason = self.preempted_because if self.preempting and is_left else self.drain_reason
        self._out.append(Finish(reason=reason, complete=complete, all_stopped=self.all_stopped))

    def _has_more(self) -> bool:
        """Whether a trial would begin or go on, were there a block for it."""
        return self.phase is Phase.SEARCHING or (self.phase is Phase.DRAINING and self._next_promotion() is not None)

    # ------------------------------------------------------------ output

    def _record(self, event: ev.Event) -> None:
        self.ledger.apply(event)
        self.policy.take(event)
        self._events.append(event)

    def _send(self, team_index: int, message: msg.Message) -> None:
        self._out.append(Send(team=team_index, rank=self.roster.team(team_index).master_rank, message=message))

    def _instructions(self) -> list[Instruction]:
        """All events of this step in one write ahead of everything else."""
        if not self._events:
            return self._out
        durable = any(not isinstance(event, _NEWS) for event in self._events)
        return [Append(events=tuple(self._events), durable=durable), *self._out]


#: events that justify no message: losing them in a crash loses nothing, so nobody waits for the disk
_NEWS: tuple[type, ...] = (ev.FoldBegan, ev.EpochEnded)
