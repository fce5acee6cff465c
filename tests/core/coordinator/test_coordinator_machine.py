"""A virtual world around `CoordinatorState`: its journal, its search, its masters, and everything that can go wrong."""

import itertools
import math
from collections import deque
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator import state as co
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.instructions import WAS_ENDED, Budget, FromMaster, LastEnd, SearchPlan
from nnlo_opt.core.coordinator.outcomes import losses_without_progress
from nnlo_opt.core.coordinator.policy import Policy
from nnlo_opt.core.search.base import History, Suggestion
from nnlo_opt.core.search.pruning import PruningPlan
from nnlo_opt.core.search.random import RandomSearch
from nnlo_opt.core.search.start_points import ENQUEUED, StartPointSearch
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.objectives import Objective, dominates
from nnlo_opt.core.trials.trial import AssignmentEnd, TrialState
from nnlo_opt.space import Integer, Space
from tests.helpers.effort import examples
from tests.helpers.steps import check, fold_finished

figures = st.floats(0, 1)
TWO = (Objective("a", "min"), Objective("b", "max"))
#: epochs of a whole training; with eta 2 there are rungs at 1 and 2
EPOCHS = 4
prunings = st.none() | st.builds(
    PruningPlan,
    name=st.sampled_from(["asha", "asha", "freeze-thaw", "hyperband", "median"]),
    eta=st.just(2),
    min_trials=st.integers(1, 2),
    max_epochs=st.just(EPOCHS),
    pauses=st.sampled_from([True, True, False]),
)
plans = st.builds(
    SearchPlan,
    num_iterations=st.integers(1, 7),
    n_fold=st.sampled_from([1, 2, 2, 3]),
    direction=st.sampled_from(["min", "max"]),
    target_objective=st.none() | st.none() | figures,
    objectives=st.sampled_from([(), (), TWO]),
    budget=st.builds(
        Budget,
        timeout_s=st.none() | st.none() | st.floats(1, 150),
        n_without_improvement=st.none() | st.none() | st.integers(1, 4),
        n_alike_failures=st.none() | st.integers(1, 3),
    ),
    pruning=prunings,
    fold_racing=st.booleans(),
    max_attempts=st.integers(1, 3),
).map(lambda plan: replace(plan, direction="min") if plan.objectives else plan)
walltimes = st.none() | st.none() | st.floats(3, 150)
#: of the world and of a block; with folds, some have blocks of several teams
sizes = st.sampled_from([(5, 4), (9, 4), (7, 6), (5, 2), (1, 1)]) | st.tuples(st.integers(1, 12), st.integers(1, 6))


class VirtualMaster:
    """A team's master: it runs one assignment at a time, and what it says takes its time.

    Ranks of the team may die. Until the others have come together, orders to a master that lives lie there.
    """

    def __init__(self, checkpoints, ranks):
        #: world ranks that live; the lowest at the last coming together leads
        self.alive, self.leader = list(ranks), ranks[0]
        self.is_broken = False
        #: orders not yet taken in, while the team is broken
        self.inbox = deque()
        #: the last assignment that the leader has had
        self.taken = -1
        self.current = None
        self.told_to_stop = self.has_started = self.waits = False
        #: sent and not yet received by the coordinator
        self.under_way = deque()
        self.epoch = 0
        #: (trial, fold) -> epoch of the last checkpoint; on disk
        self.checkpoints = checkpoints
        #: assignment -> whose checkpoints go when the journal has its end
        self.unrecorded = {}

    @property
    def fold(self):
        return self.current.trial, self.current.fold

    def lose(self, rank):
        self.alive.remove(rank)
        self.is_broken = True
        if rank == self.leader:
            self.inbox.clear()

    def come_together(self, goes_on, least):
        """`goes_on`: so does the assignment, where its master lives; `least`: ranks that can train."""
        self.is_broken = False
        if self.leader != self.alive[0]:
            self.leader, self.taken, self.current, self.unrecorded = self.alive[0], -1, None, {}
        elif not goes_on or len(self.alive) < least:
            self.current = None
        ranks = {"alive": [*self.alive], "world_ranks": [*self.alive] if len(self.alive) >= least else []}
        goes_on = -1 if self.current is None else self.current.assignment
        self.under_way.append(msg.TeamReformed(**ranks, n_masters=1, taken=self.taken, goes_on=goes_on))
        while self.inbox:
            self.order(self.inbox.popleft())

    def send(self, rank, message):
        """What is sent to a rank that does not lead any more is sent to a dead one."""
        if rank == self.leader and rank in self.alive:
            self.inbox.append(message) if self.is_broken else self.order(message)

    def order(self, message):
        match message:
            case msg.RunFold():
                self.taken = message.assignment
                assert self.current is None, "two assignments on one team"
                self.current, self.told_to_stop, self.has_started, self.waits = message, False, False, False
                self.epoch = self.checkpoints.get(self.fold, 0)
            case msg.PreemptFold() | msg.StopFold():
                # One that comes too late is about an assignment that has ended.
                self.told_to_stop |= self.is_current(message)
            case msg.GoOn() | msg.PauseFold() if self.is_current(message):
                assert self.waits, "a word that nobody waits for"
                self.waits = False
                if isinstance(message, msg.PauseFold):
                    assert self.checkpoints[self.fold] == self.epoch, "paused without a checkpoint"
                    self.under_way.append(msg.FoldPaused(assignment=message.assignment, epoch=self.epoch))
                    self.current = None
            case msg.FoldRecorded():
                self.checkpoints.pop(self.unrecorded.pop(message.assignment, None), None)

    def is_current(self, message):
        return self.current is not None and self.current.assignment == message.assignment

    def report(self, figure):
        """Say that the workers are ready, and ask about the epoch gone on from; or train another epoch."""
        number, asks = self.current.assignment, self.current.waits_for_decision
        if not self.has_started:
            self.has_started = True
            self.under_way.append(msg.FoldStarted(assignment=number, epoch=self.epoch))
            if not (asks and self.epoch):
                return
        else:
            self.epoch += 1
            if self.epoch in self.current.pause_epochs or figure < 0.3:
                self.checkpoints[self.fold] = self.epoch
        self.waits = asks and self.epoch < EPOCHS
        known = {"epoch": self.epoch, "metrics": {}, "figure_of_merit": figure, "waits": self.waits}
        self.under_way.append(msg.EpochReported(assignment=number, **known))

    def end(self, message):
        self.unrecorded[message.assignment] = self.fold
        self.under_way.append(message)
        self.current = None


class CoordinatorMachine(RuleBasedStateMachine):
    """Any order of suggestions, reports, ends, losses and crashes."""

    @initialize(plan=plans, size=sizes, n_points=st.integers(2, 12), seed=st.integers(0, 5), walltime_s=walltimes)
    def start(self, plan, size, n_points, seed, walltime_s):
        self.plan, self.walltime_s = plan, walltime_s
        self.space = Space([Integer(1, n_points, name="n")])
        self.seed = seed
        #: points that a user wants, from now on
        self.inbox = []
        #: what is on disk; the first `n_durable` events survive any crash
        self.disk, self.n_durable = [], 0
        self.now_s = 0.0
        self.gave_up = False
        #: events of the next step that reach the disk before the crash; None: no crash
        self.crash_after = None
        self.size = size
        self.checkpoints = {}
        self.open()

    def open(self, last_end=WAS_ENDED):
        """A new process reads the journal and begins."""
        self.ledger = Ledger(self.disk)
        #: trials that may be given up now: more attempts at them were lost than may be
        self.last_end = last_end
        topology = Topology.plan(*self.size, self.plan.n_fold)
        end_s = None if self.walltime_s is None else self.now_s + self.walltime_s
        self.plan = replace(self.plan, budget=replace(self.plan.budget, deadline_s=end_s, end_s=2.0))
        self.state = co.CoordinatorState(self.plan, topology, self.ledger)
        self.masters = [VirtualMaster(self.checkpoints, team.world_ranks) for team in topology.teams]
        #: ranks that have died, and how many of them the coordinator knows of
        self.dead, self.n_seen = set(), 0
        self.algorithm = StartPointSearch(RandomSearch(self.space, self.seed), {ENQUEUED: (points := [])})
        self.proposed = points
        self.history = History(self.space)
        self.owed = None
        self.gave_up = False
        self.finished_because = self.is_complete = None
        identity = {"objectives": [str(objective) for objective in self.plan.objectives]}
        started = ev.RunStarted(
            time_s=self.tick(), unix_s=self.now_s, n_ranks=self.size[0], n_blocks=topology.n_blocks, identity=identity
        )
        self.ledger.apply(started)
        self.disk.append(started)
        self.n_durable = len(self.disk)
        for point in self.inbox:
            for instruction in self.state.handle(ins.Enqueue(point=point), self.now_s):
                self.carry_out(instruction)
        self.feed(ins.Begin(last_end=last_end))

    def tick(self):
        self.now_s += 1.0
        return self.now_s

    def feed(self, event):
        """Let the coordinator handle `event` and carry out what it says, or crash while doing so."""
        instructions = self.state.handle(event, self.tick())
        check(self.state)
        appends = [i for i in instructions if isinstance(i, ins.Append)]
        assert instructions[: len(appends)] == appends, "something was done before it was written"
        assert len(appends) <= 1
        if self.crash_after is not None:
            n_written, self.crash_after = self.crash_after, None
            for append in appends:
                self.disk.extend(append.events[:n_written])
            self.open()
            return
        for instruction in instructions:
            self.carry_out(instruction)
        if self.gave_up:
            self.open()
        assert (self.state.phase is Phase.OVER) == (self.finished_because is not None)

    def carry_out(self, instruction):
        match instruction:
            case ins.Append():
                self.disk.extend(instruction.events)
                if instruction.durable:
                    self.n_durable = len(self.disk)
            case ins.Send():
                number = instruction.message.assignment
                assert self.n_durable > self.index_of(number, ev.FoldAssigned), "sent before it was on disk"
                if isinstance(instruction.message, msg.FoldRecorded):
                    assert self.ledger.assignments[number].end is not None
                leader = self.state.membership.teams[instruction.team].master_rank
                self.masters[instruction.team].send(leader, instruction.message)
            case ins.Tell():
                # The real history refuses a trial out of order, told twice in two ways, or moved to another point.
                curve = instruction.curve
                told = (instruction.trial, instruction.point, instruction.state, instruction.value)
                self.history.record(*told, curve=curve, progress=instruction.progress)
                assert all(one < other for (one, _), (other, _) in itertools.pairwise(curve))
                assert (instruction.losses is None) == (instruction.state != "complete" or not self.plan.objectives)
            case ins.Propose():
                self.proposed.append(instruction.point)
            case ins.Ask():
                assert self.owed is None, "asked twice"
                assert instruction.number == self.history.n_suggested < self.plan.num_iterations
                self.owed = instruction.number
            case ins.FinishRun():
                assert self.finished_because is None, "finished twice"
                self.finished_because, self.is_complete = instruction.reason, instruction.complete
            case ins.GiveUp():
                assert self.dead, "gave up while all ranks lived"
                self.gave_up = True

    def index_of(self, assignment, kind):
        return next(i for i, e in enumerate(self.disk) if isinstance(e, kind) and e.assignment == assignment)

    # ------------------------------------------------------------ what may happen

    @precondition(lambda self: self.owed is not None)
    @rule(n_written=st.sampled_from([None] * 9 + [0, 1, 2]), pick=st.none() | st.integers(0, 99))
    def the_search_answers(self, n_written=None, pick=None):
        """As with a message, the coordinator may die in this step. The search may want a paused trial to go on."""
        self.crash_after = n_written
        self.owed = None
        point, waiting = self.algorithm.suggest(self.history), [*self.history.waiting]
        if waiting and pick is not None:
            point = self.history.points[waiting[pick % len(waiting)]]
        trial = None if point is None else self.history.waiting_trial(point)
        self.feed(Suggestion(point=point, trial=trial, wall_s=0.1))

    @staticmethod
    def can_speak(master):
        return not master.is_broken and master.current is not None and (not master.waits or master.told_to_stop)

    @precondition(lambda self: any(self.can_speak(m) and m.epoch < EPOCHS and not m.waits for m in self.masters))
    @rule(pick=st.integers(0, 99), figure=figures)
    def a_master_reports(self, pick, figure):
        masters = [m for m in self.masters if self.can_speak(m) and m.epoch < EPOCHS and not m.waits]
        masters[pick % len(masters)].report(figure)

    @precondition(lambda self: any(self.can_speak(m) for m in self.masters))
    @rule(
        pick=st.integers(0, 99), figure=figures, outcome=st.sampled_from(["finish", "finish", "fail", "killed", "stop"])
    )
    def a_master_ends_its_assignment(self, pick, figure, outcome):
        masters = [master for master in self.masters if self.can_speak(master)]
        master = masters[pick % len(masters)]
        number = master.current.assignment
        if outcome == "fail":
            master.end(msg.FoldFailed(assignment=number, reason="no memory"))
        elif outcome == "killed":
            master.end(msg.FoldFailed(assignment=number, reason="killed", by_chance=True))
        elif (outcome == "stop" or master.waits) and master.told_to_stop:
            master.end(msg.FoldStopped(assignment=number))
        else:
            objectives = {"a": figure, "b": round(figure, 1)} if self.plan.objectives else {}
            master.end(fold_finished(number, figure, n_epochs=master.epoch, objectives=objectives))

    @rule(seconds=st.sampled_from([0, 0, 1, 10]))
    def time_passes(self, seconds):
        self.now_s += seconds
        if self.plan.budget.has_time or self.state.ending.preempting:
            self.feed(ins.Tick())

    @precondition(lambda self: any(m.under_way for m in self.masters))
    @rule(pick=st.integers(0, 99), n_written=st.sampled_from([None] * 9 + [0, 1, 2]))
    def a_message_arrives(self, pick, n_written=None):
        """`n_written`: the coordinator dies when so many events of this step are on disk."""
        self.crash_after = n_written
        teams = [i for i, master in enumerate(self.masters) if master.under_way]
        team = teams[pick % len(teams)]
        self.feed(FromMaster(team=team, message=self.masters[team].under_way.popleft()))

    @precondition(lambda self: any(m.alive for m in self.masters))
    @rule(pick=st.integers(0, 99), happens=st.integers(0, 2).map(lambda n: n == 0))
    def a_rank_dies(self, pick, happens):
        """Nobody knows it yet."""
        if happens and self.finished_because is None:
            ranks = sorted(rank for master in self.masters for rank in master.alive)
            rank = ranks[pick % len(ranks)]
            next(master for master in self.masters if rank in master.alive).lose(rank)
            self.dead.add(rank)

    @precondition(lambda self: len(self.dead) > self.n_seen)
    @rule()
    def the_coordinator_sees_who_is_dead(self):
        self.n_seen = len(self.dead)
        self.feed(ins.RanksDied(ranks=frozenset(self.dead)))

    @precondition(lambda self: any(m.is_broken and m.alive for m in self.masters))
    @rule(pick=st.integers(0, 99), goes_on=st.booleans(), least=st.sampled_from([1, 1, 2]))
    def a_team_comes_together(self, pick, goes_on, least):
        masters = [master for master in self.masters if master.is_broken and master.alive]
        masters[pick % len(masters)].come_together(goes_on, least)

    @precondition(lambda self: any(a.end is not None for a in self.ledger.assignments))
    @rule(pick=st.integers(0, 99), team=st.integers(0, 99), figure=figures, fails=st.booleans())
    def a_late_message_arrives(self, pick, team, figure, fails):
        ended = [a.number for a in self.ledger.assignments if a.end is not None]
        number = ended[pick % len(ended)]
        message = msg.FoldFailed(assignment=number, reason="late") if fails else fold_finished(number, figure)
        n_events = len(self.disk)
        self.feed(FromMaster(team=team % len(self.masters), message=message))
        # The time may have come to give up on others.
        written = [event for event in self.disk[n_events:] if not isinstance(event, ev.AssignmentPreempted)]
        assert not written, "a late message was written down"

    @rule(
        n_lost=st.integers(0, 5),
        size=st.none() | sizes,
        more=st.integers(0, 2),
        n_written=st.sampled_from([None, None, 0, 1, 2]),
        died=st.none() | st.just("nobody knows") | st.integers(0, 11),
        happens=st.integers(0, 3).map(lambda n: n == 0),
    )
    def the_run_is_ended_and_restarted(self, n_lost, size, more, n_written, died, happens):
        """Events that nobody waited for may be lost; the next start may have other ranks and ask for more trials.

        `died`: the team of which a rank did, as far as that is known; None: somebody has ended the job.
        """
        if not happens:  # or no run would last long
            return
        self.check_the_journal()
        n_kept = max(self.n_durable, len(self.disk) - n_lost)
        del self.disk[n_kept:]
        self.write_the_end()
        self.size = size or self.size
        self.plan = replace(self.plan, num_iterations=self.plan.num_iterations + more)
        self.crash_after = n_written
        teams = [died % len(self.masters)] if isinstance(died, int) else []
        self.open(LastEnd(died=dict.fromkeys(teams, "rank 7 died"), unexplained=died == "nobody knows"))

    def write_the_end(self):
        if self.finished_because is not None:
            kind = ev.RunCompleted if self.is_complete else ev.RunPreempted
            self.disk.append(kind(time_s=self.tick(), reason=self.finished_because))

    @rule(n=st.integers(1, 12), happens=st.integers(0, 2).map(lambda n: n == 0))
    def a_user_enqueues_a_point(self, n, happens):
        point = {"n": n}
        if happens and self.space.contains(point) and point not in self.inbox:
            self.inbox.append(point)
            self.feed(ins.Enqueue(point=point))

    @precondition(lambda self: self.ledger.trials)
    @rule(pick=st.integers(0, 99), n_written=st.sampled_from([None] * 3 + [0, 1]))
    def a_user_stops_a_trial(self, pick, n_written=None):
        trial = self.ledger.trials[pick % len(self.ledger.trials)]
        had_ended, self.crash_after = trial.state, n_written
        self.feed(ins.StopTrial(trial=trial.number, reason="by hand"))
        if n_written is None and self.finished_because is None:
            assert trial.state.ended
            assert not had_ended.ended or trial.state is had_ended

    @rule(happens=st.integers(0, 3).map(lambda n: n == 0))
    def a_user_stops_the_search(self, happens):
        if happens:
            self.feed(ins.Drain(reason="by hand"))
            assert self.state.phase is not Phase.SEARCHING

    @rule(grace_s=st.sampled_from([0.0, 8.0, 1e9]), happens=st.integers(0, 3).map(lambda n: n == 0))
    def the_batch_system_preempts(self, grace_s, happens):
        if happens:
            self.feed(ins.Preempt(reason="the walltime of others", grace_s=grace_s))

    # ------------------------------------------------------------ what must always hold

    def check_the_journal(self):
        ledger = Ledger(self.disk)
        assert vars(ledger) == vars(self.ledger), "the journal tells another story than the ledger"

    @invariant()
    def no_two_trials_share_a_point_and_none_ends_twice(self):
        points = [trial.point["n"] for trial in self.ledger.trials]
        assert len(set(points)) == len(points)
        ends = [e.trial for e in self.disk if isinstance(e, ev.TrialCompleted | ev.TrialFailed | ev.TrialPruned)]
        assert len(set(ends)) == len(ends)
        assert len(self.ledger.trials) <= self.plan.num_iterations

    @invariant()
    def no_team_and_no_fold_has_two_assignments(self):
        running = [a for a in self.ledger.assignments if a.end is None]
        assert len({a.team for a in running}) == len(running)
        assert len({(a.trial, a.fold) for a in running}) == len(running)

    @invariant()
    def a_complete_trial_has_the_mean_of_all_its_folds(self):
        for trial in self.ledger.trials:
            if trial.figure_of_merit is not None:
                values = [trial.folds[fold].figure_of_merit for fold in range(self.plan.n_fold)]
                assert math.isclose(trial.figure_of_merit, math.fsum(values) / self.plan.n_fold)
                finished = [a.fold for a in trial.assignments if a.end is AssignmentEnd.FINISHED]
                assert sorted(finished) == list(range(self.plan.n_fold))

    @invariant()
    def the_search_knows_what_the_ledger_knows(self):
        for trial in self.ledger.trials:
            so_far = "pending" if trial.figure_so_far is None else "pruned"
            assert self.history.states[trial.number] == (trial.state.value if trial.state.ended else so_far)
            if trial.state not in (TrialState.COMPLETE, TrialState.FAILED) and trial.figure_so_far is not None:
                assert self.history.values[trial.number] == trial.figure_so_far
            assert self.history.points[trial.number] == trial.point
        assert self.history.n_suggested <= max(self.plan.num_iterations, len(self.ledger.trials))

    @invariant()
    def a_trial_that_failed_is_stopped_and_gets_no_more_results(self):
        for team, assignment in self.state.membership.assignment_of_team.items():
            if self.ledger.trials[assignment.trial].state.ended and not self.masters[team].is_broken:
                assert self.masters[team].told_to_stop or self.masters[team].current is None
        if self.disk and isinstance(self.disk[-1], ev.AssignmentFinished):
            trial = self.ledger.trials[self.ledger.assignments[self.disk[-1].assignment].trial]
            assert not trial.state.ended, "a result was written for a trial that had ended"

    @invariant()
    def a_trial_is_tried_so_often_and_given_up_for_no_other_losses(self):
        for trial in self.ledger.trials:
            tried = max(len(losses_without_progress(trial, fold)) for fold in range(self.plan.n_fold))
            assert tried <= self.plan.max_attempts
            if trial.state is TrialState.FAILED and "--max-attempts" in trial.reason:
                assert tried == self.plan.max_attempts
            elif not trial.state.ended:
                assert tried < self.plan.max_attempts
        losses = [loss for assignment in self.ledger.assignments for loss in assignment.losses]
        written = [event for event in self.disk if isinstance(event, ev.AssignmentLost | ev.RanksLost) and event.counts]
        assert len(losses) == len(written), "each is written down once"

    @invariant()
    def what_was_lost_counts_where_a_rank_of_the_team_died_or_nothing_was_achieved(self):
        starts = [i for i, event in enumerate(self.disk) if isinstance(event, ev.RunStarted)]
        before = self.disk[starts[-2] : starts[-1]] if len(starts) > 1 else []
        fruitful = any(ev.lasts(event) for event in before)
        ended: set[int] = set()
        for i, event in enumerate(self.disk):
            if isinstance(event, ev.TrialCompleted | ev.TrialFailed | ev.TrialPruned):
                ended.add(event.trial)
            if i <= starts[-1] or not isinstance(event, ev.RanksLost | ev.AssignmentLost) or event.assignment < 0:
                continue
            lost = self.ledger.assignments[event.assignment]
            if isinstance(event, ev.AssignmentLost) and event.of_script:
                assert event.counts == (lost.trial not in ended)
                continue
            if self.index_of(lost.number, ev.FoldAssigned) < starts[-1]:
                assert event.counts == (lost.team in self.last_end.died or (self.last_end.unexplained and not fruitful))
                continue
            # With ranks of this start, in place. What is lost with the whole assignment counts there.
            after = self.disk[i + 1 : i + 2] if isinstance(event, ev.RanksLost) else []
            counts_there = any(isinstance(e, ev.AssignmentLost) and e.assignment == lost.number for e in after)
            assert event.counts == (not counts_there and lost.trial not in ended) or self.state.ending.preempting

    def has_reached_the_target(self):
        best, target = self.ledger.best(self.plan.direction), self.plan.target_objective
        if best is None or target is None:
            return False
        return best.figure_of_merit > target if self.plan.direction == "max" else best.figure_of_merit < target

    @invariant()
    def no_trial_begins_once_the_target_is_reached(self):
        assert not (self.has_reached_the_target() and self.state.phase is Phase.SEARCHING)

    @invariant()
    def something_is_under_way_until_the_search_is_over(self):
        if self.finished_because is None and not self.dead:
            assert self.owed is not None or self.state.membership.assignment_of_team
        for team, assignment in self.state.membership.assignment_of_team.items():
            master = self.masters[team]
            if master.is_broken or any(isinstance(m, msg.TeamReformed) for m in master.under_way):
                continue
            known = {m.assignment for m in [*master.under_way, master.current] if m is not None}
            assert assignment.number in known, "an assignment that no master knows"

    @invariant()
    def the_time_ends_what_runs_and_begins_nothing(self):
        budget = self.plan.budget
        if self.finished_because is not None and not self.is_complete:
            assert not any(event.reason.startswith("not promoted") for event in self.prunings_of_this_start())
        if self.state.ending.preempting:
            at_work = [self.masters[team] for team in self.state.membership.assignment_of_team]
            assert all(master.told_to_stop or not master.current or master.is_broken for master in at_work)
        begun = [e for e in self.disk if isinstance(e, ev.TrialSuggested)]
        if begun and budget.deadline_s is not None:
            assert begun[-1].time_s <= budget.deadline_s - budget.end_s

    def prunings_of_this_start(self):
        start = max(i for i, event in enumerate(self.disk) if isinstance(event, ev.RunStarted))
        return [event for event in self.disk[start:] if isinstance(event, ev.TrialPruned)]

    @invariant()
    def the_pareto_set_is_that_of_the_complete_trials(self):
        losses = {t.number: (t.objectives["a"], -t.objectives["b"]) for t in self.ledger.trials if t.objectives}
        beaten = {n for n, a in losses.items() for b in losses.values() if dominates(b, a)}
        assert set(self.ledger.pareto.trials) == losses.keys() - beaten

    @invariant()
    def no_block_is_idle_while_a_trial_waits(self):
        if self.state.ending.preempting:
            return
        if len(self.state.membership.trial_of_block) + len(self.state.membership.out) < self.state.topology.n_blocks:
            assert not self.state.to_resume
            # If all that ended have failed alike, the trials under way first show whether another one has a chance.
            waits = self.state.membership.assignment_of_team and self.state.ending.only_fails(self.ledger.trials)
            assert not self.state.suggestions.ready or waits
            if self.state.ending.promotes and self.finished_because is None:
                assert self.state.policy.promotion(alone=self.state.phase is not Phase.SEARCHING) is None

    @invariant()
    def what_was_decided_is_what_a_restored_run_would_decide(self):
        kept = {"_standings": None}  # what was asked for so far, to be found faster
        assert vars(Policy(self.plan, self.ledger).reports) | kept == vars(self.state.policy.reports) | kept

    @invariant()
    def a_paused_trial_keeps_its_checkpoints_and_its_attempt(self):
        for trial in self.ledger.trials:
            if trial.state is TrialState.PAUSED:
                assert not [*self.state.policy.folds_to_run(trial)], "a fold of a paused trial could run"
                for fold in set(range(self.plan.n_fold)) - trial.folds.keys():
                    assert self.checkpoints[trial.number, fold] >= 1
        for of_fold in self.assignments_by_fold():
            lost = 0
            for assignment in of_fold:
                assert assignment.attempt == lost + 1
                lost += assignment.end in (AssignmentEnd.LOST, AssignmentEnd.PREEMPTED)

    def assignments_by_fold(self):
        folds = range(self.plan.n_fold)
        return [[a for a in trial.assignments if a.fold == fold] for trial in self.ledger.trials for fold in folds]

    @invariant()
    def an_assignment_goes_on_where_the_one_before_it_was_paused(self):
        for of_fold in self.assignments_by_fold():
            for before, after in itertools.pairwise(of_fold):
                if before.end is AssignmentEnd.PAUSED and after.started_at_s is not None:
                    assert after.epoch >= before.epoch >= 1

    # ------------------------------------------------------------ the end

    def teardown(self):
        """Whatever has happened, the search comes to its end and says why."""
        if not hasattr(self, "state"):
            return
        for turn in range(2000):
            if self.finished_because is not None:
                if self.is_complete:
                    break
                assert "walltime" in self.finished_because or self.finished_because == "by hand"
                self.check_the_journal()
                self.write_the_end()
                self.walltime_s = None
                self.open()
            elif self.owed is not None:
                self.the_search_answers()
            elif any(m.under_way for m in self.masters):
                self.a_message_arrives(turn)
            elif len(self.dead) > self.n_seen:
                self.the_coordinator_sees_who_is_dead()
            elif any(m.is_broken and m.alive for m in self.masters):
                self.a_team_comes_together(turn, turn % 2 == 0, 1)
            else:
                self.a_master_ends_its_assignment(turn, 0.5, "finish")
            self.no_two_trials_share_a_point_and_none_ends_twice()
        self.check_the_journal()
        trials = self.ledger.trials
        assert all(trial.state.ended for trial in trials), "a trial was lost"
        assert all(a.end is not None for a in self.ledger.assignments)
        reason = self.finished_because
        assert reason is not None
        if reason.startswith("all "):
            assert len(trials) == self.plan.num_iterations
        elif reason.startswith("the search has no new point"):
            assert len(trials) == self.space.n_points < self.plan.num_iterations
        elif reason.startswith("`--timeout` of"):
            assert self.now_s >= self.plan.budget.timeout_s
        elif reason.startswith("no improvement in the last"):
            assert len(trials) >= self.plan.budget.n_without_improvement
        elif reason.endswith("(`--max-failures`)"):
            assert len(trials) >= self.plan.budget.n_alike_failures
            assert {trial.state for trial in trials} == {TrialState.FAILED}
        else:
            assert reason.startswith("the target of")
            assert self.has_reached_the_target()


TestCoordinator = CoordinatorMachine.TestCase
TestCoordinator.settings = settings(max_examples=examples(120), stateful_step_count=60, deadline=None)


def test_a_loss_of_the_last_start_is_not_one_of_this_start():
    """The invariant told them apart by their text, which is the same if a rank died in each start."""
    plan = SearchPlan(num_iterations=2, n_fold=1, direction="min", target_objective=None, max_attempts=1)
    machine = CoordinatorMachine()
    machine.start(plan=plan, size=(5, 4), n_points=2, seed=0, walltime_s=None)
    machine.the_search_answers()
    machine.a_user_stops_a_trial(pick=0)
    machine.the_run_is_ended_and_restarted(n_lost=0, size=None, more=0, n_written=None, died=0, happens=True)
    machine.a_rank_dies(pick=0, happens=True)
    machine.what_was_lost_counts_where_a_rank_of_the_team_died_or_nothing_was_achieved()
    assert [(event.reason, event.counts) for event in machine.disk if isinstance(event, ev.AssignmentLost)] == [
        ("rank 7 died", True)
    ]
    machine.teardown()
