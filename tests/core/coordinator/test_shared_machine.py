"""Jobs that join, follow, leave and vanish while one of them coordinates, and another one after it: any order of it.

The coordinator's side of journal and logs is as in `core.jobs.lead`, line by line; `core.jobs` has a model of its own.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.instructions import Budget
from nnlo_opt.core.coordinator.outcomes import losses_without_progress
from nnlo_opt.core.coordinator.shared_state import SharedCoordinatorState, teams_of
from nnlo_opt.core.jobs.roster import Roster
from nnlo_opt.core.search.base import History, Suggestion
from nnlo_opt.core.search.random import RandomSearch
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.space import Integer, Space
from tests.core.coordinator.test_coordinator_machine import EPOCHS, VirtualMaster, figures, plans
from tests.helpers.effort import examples
from tests.helpers.steps import check, fold_finished

picks = st.integers(0, 99)
shapes = st.sampled_from([(1, 1), (3, 2), (5, 2), (5, 4), (4, 1), (8, 6)])
rarely = st.integers(0, 5).map(lambda n: n == 0)


class VirtualJob:
    """A job with its masters, and its log: what it says is there at once, and is read later, line by line."""

    def __init__(self, number, shape, n_fold, checkpoints):
        n_ranks, block_size = shape
        self.joined = ev.JobJoined(
            time_s=0.0, job=number, host="node", n_ranks=n_ranks, n_teams=1, block_size=block_size
        )
        part = teams_of(self.joined, n_fold)
        self.joined = self.joined.replaced(n_teams=len(part.teams), n_blocks=part.n_blocks)
        self.number = number
        self.masters = [VirtualMaster(checkpoints, team.world_ranks) for team in part.teams]
        #: lines, and how many of them this coordinator has read
        self.log, self.n_read = [self.joined], 0
        #: term that it follows, and that of the last line that was read
        self.term = self.term_read = 0
        #: (team, rank, message) of this term
        self.orders = []
        self.lives, self.leaves = True, False

    @property
    def is_busy(self):
        return any(master.current is not None for master in self.masters)

    def say(self):
        """Write what the masters have sent."""
        for team, master in enumerate(self.masters):
            while master.under_way:
                self.log.append((team, master.under_way.popleft()))

    def let_go(self):
        for master in self.masters:
            if master.is_broken:
                master.come_together(goes_on=False, least=1)
            if master.current is not None:
                master.checkpoints[master.fold] = master.epoch
                master.under_way.append(msg.FoldStopped(assignment=master.current.assignment))
                master.current = None
        self.say()

    def die(self):
        self.lives = False
        self.orders = []
        for master in self.masters:
            master.current = None


class SharedMachine(RuleBasedStateMachine):
    """Any order of what jobs do, of what the coordinator reads, and of coordinators."""

    @initialize(plan=plans, n_points=st.integers(4, 12), seed=st.integers(0, 5), timeout_s=st.none() | st.just(40))
    def start(self, plan, n_points, seed, timeout_s):
        self.plan = replace(plan, budget=Budget(trial_timeout_s=timeout_s), target_objective=None)
        self.space, self.seed = Space([Integer(1, n_points, name="n")]), seed
        self.disk, self.jobs, self.checkpoints = [], {}, {}
        self.now_s, self.term = 0.0, 0
        self.crash_after = None
        self.succeed()

    # ------------------------------------------------------------ the coordinator

    def succeed(self, n_read=0):
        """Another job coordinates. It has read some lines before it begins."""
        if self.term:
            self.check_the_journal()
        self.term += 1
        self.ledger, self.finished_because = Ledger(self.disk), None
        identity = {"objectives": [str(objective) for objective in self.plan.objectives]}
        for event in (
            ev.RunStarted(time_s=self.tick(), unix_s=self.now_s, n_ranks=1, n_blocks=1, identity=identity),
            ev.TermBegan(time_s=self.now_s, term=self.term, job=1),
        ):
            self.disk.append(event)
            self.ledger.apply(event)
        self.roster, self.present = Roster(self.disk), set()
        self.state = SharedCoordinatorState(self.plan, self.ledger)
        self.algorithm, self.history, self.owed = RandomSearch(self.space, self.seed), History(self.space), None
        self.has_asked = False
        for job in self.jobs.values():
            job.n_read = job.term_read = 0
        for job in [*self.jobs.values()]:
            for _ in range(n_read):
                if job.n_read < len(job.log) and not isinstance(job.log[job.n_read], tuple):
                    self.read(job)
        self.feed(ins.Begin())

    def tick(self):
        self.now_s += 1.0
        return self.now_s

    def feed(self, event):
        """Let the coordinator handle `event` and carry out what it says, or die while it writes."""
        instructions = self.state.handle(event, self.tick())
        check(self.state)
        appends = [i for i in instructions if isinstance(i, ins.Append)]
        assert instructions[: len(appends)] == appends, "something was done before it was written"
        events = [event for append in appends for event in append.events]
        if self.crash_after is not None and self.state.phase is not Phase.OPENING:
            n_written, self.crash_after = self.crash_after, None
            self.ledger = None
            self.write(*events[:n_written])
            self.succeed()
            return
        self.write(*events)
        expelled = [instruction.job for instruction in instructions if isinstance(instruction, ins.Expel)]
        for instruction in instructions:
            self.carry_out(instruction)
        for number in expelled:
            self.expel(number, counts=False)

    def write(self, *events):
        self.disk += events
        for event in events:
            if isinstance(event, ev.AssignmentLost) and event.reason != "its job has vanished":
                assert event.assignment not in self.in_training(), "what is trained was called lost"
            if isinstance(event, ev.AssignmentStopped) and self.ledger is not None:
                trial = self.ledger.trials[self.ledger.assignments[event.assignment].trial]
                assert trial.state.ended, "what is wanted was stopped for good"
            self.roster.apply(event)

    def in_training(self):
        """Assignment -> fold that a living job trains, and of which a report would count."""
        masters = [(job, m) for job in self.living for m in job.masters if m.current is not None]
        return {
            m.current.assignment: m.fold
            for job, m in masters
            if self.roster.holds(job.number, job.term, m.current.assignment)
        }

    def carry_out(self, instruction):
        match instruction:
            case ins.Send():
                job = next(job for job in self.ledger.jobs_here if instruction.team in job.teams)
                assert job.number in self.present, "an order to a job that is away"
                order = instruction.team - job.teams.start, instruction.rank - job.ranks.start, instruction.message
                self.jobs[job.number].orders.append(order)
            case ins.Tell():
                told = (instruction.trial, instruction.point, instruction.state, instruction.value)
                self.history.record(*told, curve=instruction.curve, progress=instruction.progress)
            case ins.Ask():
                assert self.owed is None, "asked twice"
                self.owed = instruction.number
            case ins.FinishRun():
                assert instruction.complete
                self.finished_because = instruction.reason
            case ins.GiveUp():
                raise AssertionError("gave up, although jobs may join")

    def read(self, job):
        """Take in the next line of a log."""
        line = job.log[job.n_read]
        job.n_read += 1
        number, news, report = job.number, [], None
        if number in self.roster.left:
            return
        match line:
            case ev.JobJoined():
                news = [] if number in self.roster.here else [line.replaced(time_s=self.tick())]
            case ("follows", term):
                job.term_read = term
                news = self.lost(number, "its job let it go", before=term)
                self.present = self.present | {number} if term == self.term else self.present - {number}
            case ("left",):
                news = [*self.lost(number, "its job let it go"), ev.JobLeft(time_s=self.tick(), job=number)]
                self.present -= {number}
            case (team, message):
                report = team, message
        self.write(*news)
        if news or self.present != self.state._present:
            self.feed(ins.JobsChanged(recorded=tuple(news), present=frozenset(self.present)))
        if report is not None:
            self.hear(job, *report)

    def lost(self, job, reason, before=None, *, counts=False):
        numbers = self.roster.of(job, before)
        return [ev.AssignmentLost(time_s=self.now_s, assignment=n, reason=reason, counts=counts) for n in numbers]

    def hear(self, job, team, message):
        known = self.ledger.jobs[job.number]
        if isinstance(message, msg.TeamReformed):
            alive, ranks = ([known.ranks.start + rank for rank in of] for of in (message.alive, message.world_ranks))
            message = message.replaced(alive=alive, world_ranks=ranks)
        elif not self.roster.holds(job.number, job.term_read, message.assignment):
            return
        self.feed(ins.FromMaster(team=known.teams.start + team, message=message))

    def expel(self, number, *, counts):
        self.present -= {number}
        gone = ev.JobLeft(time_s=self.tick(), job=number, reason="gone", expelled=True)
        news = [*self.lost(number, "its job has vanished", counts=counts), gone]
        self.write(*news)
        self.feed(ins.JobsChanged(recorded=tuple(news), present=frozenset(self.present)))
        self.jobs[number].die()

    @property
    def is_over(self):
        return self.finished_because is not None

    def pick(self, jobs, pick):
        jobs = list(jobs)
        return jobs[pick % len(jobs)]

    @property
    def living(self):
        return [job for job in self.jobs.values() if job.lives]

    @property
    def unread(self):
        return [job for job in self.jobs.values() if job.n_read < len(job.log) and job.number not in self.roster.left]

    # ------------------------------------------------------------ what may happen to the coordinator

    @precondition(lambda self: self.owed is not None and not self.is_over)
    @rule(pick=st.none() | picks)
    def the_search_answers(self, pick=None):
        self.owed = None
        point, waiting = self.algorithm.suggest(self.history), [*self.history.waiting]
        if waiting and pick is not None:
            point = self.history.points[waiting[pick % len(waiting)]]
        trial = None if point is None else self.history.waiting_trial(point)
        self.feed(Suggestion(point=point, trial=trial, wall_s=0.1))

    @precondition(lambda self: self.unread and not self.is_over)
    @rule(pick=picks, n=st.integers(1, 4), n_written=st.sampled_from([None] * 9 + [0, 1, 2]))
    def the_coordinator_reads(self, pick, n=1, n_written=None):
        job, term = self.pick(self.unread, pick), self.term
        self.crash_after = n_written
        while n and job.n_read < len(job.log) and not self.is_over and self.term == term:
            self.read(job)
            n -= 1
        self.crash_after = None

    @rule(n_read=st.integers(0, 9), happens=rarely)
    def the_coordinator_is_succeeded(self, n_read, happens):
        if happens and not self.is_over:
            self.succeed(n_read)

    @precondition(lambda self: any(job in self.roster.here for job in self.jobs) and not self.is_over)
    @rule(pick=picks, wrongly=rarely)
    def the_coordinator_expels_a_silent_job(self, pick, wrongly=False):
        jobs = [job for job in self.jobs.values() if job.number in self.roster.here and job not in self.unread]
        if jobs and ((job := self.pick(jobs, pick)) and (wrongly or not job.lives)):
            self.expel(job.number, counts=True)

    @rule(seconds=st.sampled_from([0, 0, 1, 30]))
    def time_passes(self, seconds):
        self.now_s += seconds
        if self.plan.budget.has_time and not self.is_over:
            self.feed(ins.Tick())

    @precondition(lambda self: self.ledger.trials and not self.is_over)
    @rule(pick=picks, happens=rarely)
    def a_user_stops_a_trial(self, pick, happens):
        if happens:
            self.feed(ins.StopTrial(trial=pick % len(self.ledger.trials), reason="by hand"))

    # ------------------------------------------------------------ what jobs do

    @precondition(lambda self: len(self.living) < 4)
    @rule(shape=shapes)
    def a_job_joins(self, shape):
        number = len(self.jobs) + 1
        self.jobs[number] = VirtualJob(number, shape, self.plan.n_fold, self.checkpoints)

    @precondition(lambda self: any(job.term < self.term or job.leaves for job in self.living))
    @rule(pick=picks)
    def a_job_follows_or_leaves(self, pick):
        """It lets go of everything, and says so later."""
        job = self.pick([job for job in self.living if job.term < self.term or job.leaves], pick)
        if job.is_busy or any(master.is_broken for master in job.masters):
            job.let_go()
        elif job.leaves:
            job.log.append(("left",))
            job.die()
        else:
            job.log.append(("follows", self.term))
            job.term, job.orders = self.term, []

    @precondition(lambda self: any(job.orders for job in self.living))
    @rule(pick=picks)
    def a_job_obeys(self, pick):
        job = self.pick([job for job in self.living if job.orders], pick)
        orders, job.orders = job.orders, []
        if job.leaves or job.term != self.term:
            return  # the first ones are not read any more, the others are of a term that the job does not know yet
        for team, rank, message in orders:
            job.masters[team].send(rank, message)
        job.say()

    @precondition(lambda self: self.living)
    @rule(pick=picks, how=st.sampled_from(["leaves", "vanishes"]), happens=rarely)
    def a_job_ends(self, pick, how, happens):
        if happens:
            job = self.pick(self.living, pick)
            if how == "leaves":
                job.leaves = True
            else:
                job.die()

    def speaking(self):
        masters = [(job, master) for job in self.living for master in job.masters]
        return [(j, m) for j, m in masters if m.current and not m.is_broken and (not m.waits or m.told_to_stop)]

    @precondition(lambda self: self.speaking())
    @rule(pick=picks, figure=figures, outcome=st.sampled_from(["report"] * 4 + ["finish", "finish", "fail", "killed"]))
    def a_master_speaks(self, pick, figure, outcome):
        job, master = self.pick(self.speaking(), pick)
        number = master.current.assignment
        if master.told_to_stop:
            master.end(msg.FoldStopped(assignment=number))
        elif outcome == "report" and master.epoch < EPOCHS and not master.waits:
            master.report(figure)
        elif outcome == "fail":
            master.end(msg.FoldFailed(assignment=number, reason="no memory"))
        elif outcome == "killed":
            master.end(msg.FoldFailed(assignment=number, reason="killed", by_chance=True))
        else:
            objectives = {"a": figure, "b": round(figure, 1)} if self.plan.objectives else {}
            master.end(fold_finished(number, figure, n_epochs=master.epoch, objectives=objectives))
        job.say()

    @precondition(lambda self: self.living)
    @rule(pick=picks, goes_on=st.booleans(), happens=rarely)
    def a_rank_dies_and_the_others_come_together(self, pick, goes_on, happens):
        large = [(job, m) for job in self.living for m in job.masters if len(m.alive) > 1]
        if happens and large:
            job, master = self.pick(large, pick)
            master.lose(master.alive[pick % len(master.alive)])
            master.come_together(goes_on, least=1)
            job.say()

    # ------------------------------------------------------------ what happens without disturbance

    @rule(n=st.integers(1, 25), pick=picks, figure=figures)
    def all_goes_on(self, n, pick, figure):
        for turn in range(pick, pick + n):
            if not self.is_over and self.living:
                self.go_on(turn, (figure + 0.37 * turn) % 1.0, "report" if turn % 4 else "finish")

    def go_on(self, turn, figure, outcome):
        """Whoever can do something does it."""
        if self.owed is not None:
            self.the_search_answers()
        elif self.unread:
            self.the_coordinator_reads(turn)
        elif any(job.term < self.term or job.leaves for job in self.living):
            self.a_job_follows_or_leaves(turn)
        elif any(job.orders for job in self.living):
            self.a_job_obeys(turn)
        elif self.speaking():
            self.a_master_speaks(turn, figure, outcome)

    # ------------------------------------------------------------ what must always hold

    def check_the_journal(self):
        if self.ledger is not None:
            assert vars(Ledger(self.disk)) == vars(self.ledger), "the journal tells another story than the ledger"

    @invariant()
    def no_fold_is_on_two_teams_that_may_report(self):
        in_training = [*self.in_training().values()]
        assert len(set(in_training)) == len(in_training)
        held = [(held.trial, held.fold) for held in self.roster.held.values()]
        assert len(set(held)) == len(held)

    @invariant()
    def the_state_and_the_journal_agree_on_who_is_here_and_works(self):
        assert {job.number for job in self.ledger.jobs_here} == self.roster.here
        assert {a.number for a in self.ledger.assignments if a.end is None} == self.roster.held.keys()
        assert self.state.suggestions.n_blocks == self.ledger.n_blocks
        for job in self.ledger.jobs.values():
            is_away = self.state.membership.away.issuperset(job.teams)
            assert is_away or job.number in self.present

    @invariant()
    def what_is_lost_counts_where_its_job_vanished_or_its_ranks_died(self):
        for event in self.disk:
            if isinstance(event, ev.AssignmentLost) and not event.of_script and event.counts:
                assert event.reason == "its job has vanished" or event.reason.endswith("died")
        dead = [rank for event in self.disk if isinstance(event, ev.RanksLost) for rank in event.ranks]
        assert len(set(dead)) == len(dead), "a death was written down twice"

    @invariant()
    def a_trial_is_given_up_after_so_many_losses_and_not_before(self):
        for trial in self.ledger.trials:
            tried = max(len(losses_without_progress(trial, fold)) for fold in range(self.plan.n_fold))
            assert tried < self.plan.max_attempts or trial.state.ended
            assert tried == self.plan.max_attempts or "--max-attempts" not in trial.reason

    @invariant()
    def no_block_is_idle_while_a_trial_waits(self):
        if self.state.membership.idle and not self.is_over:
            assert not self.state.to_resume

    def teardown(self):
        """Whatever has happened, the search completes as long as a job is there."""
        if not hasattr(self, "state"):
            return
        for turn in range(3000):
            if self.is_over:
                break
            dead = [j for j in self.jobs.values() if not j.lives and j.number in self.roster.here]
            if not self.living:
                self.a_job_joins((3, 2))
            elif dead and not self.unread:
                self.expel(dead[0].number, counts=False)
            else:
                self.go_on(turn, 0.5, "finish")
            self.no_fold_is_on_two_teams_that_may_report()
        assert self.is_over, "the search does not end"
        self.check_the_journal()
        assert all(trial.state.ended for trial in self.ledger.trials), "a trial was lost"
        assert not self.roster.held


TestSharedCoordinator = SharedMachine.TestCase
TestSharedCoordinator.settings = settings(max_examples=examples(80), stateful_step_count=60, deadline=None)
