"""Closed forms of what happens when jobs join, follow, leave and vanish."""

import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.instructions import Begin, Budget, JobsChanged, SearchPlan, Tick
from nnlo_opt.core.coordinator.shared_state import SharedCoordinatorState, why_refused
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.pruning import PruningPlan
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import TrialState
from tests.helpers.steps import events_of, finish, from_master, of_type, step, stop, suggest
from tests.helpers.stories import SEARCH


def joined(job, n_ranks, block_size=2, n_teams=None, time_s=0.0):
    n_blocks = Topology.plan(n_ranks, block_size).n_blocks
    shape = {"n_ranks": n_ranks, "block_size": block_size, "n_blocks": n_blocks, "n_teams": n_teams or n_blocks}
    return ev.JobJoined(time_s=time_s, job=job, host=f"node{job}", **shape)


def lost(assignment, reason="its job has vanished", counts=True, time_s=1.0):
    return ev.AssignmentLost(time_s=time_s, assignment=assignment, reason=reason, counts=counts)


def left(job, time_s=1.0, **more):
    return ev.JobLeft(time_s=time_s, job=job, **more)


def changed(state, *recorded, present):
    return step(state, JobsChanged(recorded=recorded, present=frozenset(present)))


def term(number, time_s=0.0):
    return [SEARCH.replaced(time_s=time_s), ev.TermBegan(time_s=time_s, term=number, job=1)]


def opened(seen, **plan):
    """A coordinator that has read this journal and a new term's first lines, and the lines."""
    seen = [
        *seen,
        *term(1 + sum(isinstance(e, ev.TermBegan) for e in seen), max([e.time_s for e in seen], default=0.0)),
    ]
    return SharedCoordinatorState(SearchPlan(**{"num_iterations": 9} | plan), Ledger(seen)), seen


class Story:
    """A search on a job with two blocks (ranks 0 to 4) and on one with a block of 3 ranks (5 to 8), with trials.

    Its events are collected, for the next coordinator.
    """

    def __init__(self, n_trials=3, **plan):
        self.plan = plan
        self.state, self.seen = opened([], **plan)
        self.take(step(self.state, Begin()))
        self.change(joined(1, 5), joined(2, 4, 3), present={1, 2})
        for n in range(n_trials):
            self.take(suggest(self.state, n=n))

    def take(self, instructions):
        self.seen += events_of(instructions)
        return instructions

    def change(self, *recorded, present):
        self.seen += recorded
        return self.take(changed(self.state, *recorded, present=present))

    def succeed(self):
        """Another job coordinates, and nobody follows it yet."""
        self.state, self.seen = opened(self.seen, **self.plan)
        return self.take(step(self.state, Begin()))


def test_a_search_waits_for_jobs_and_gives_work_to_those_that_follow():
    state, _ = opened([])
    assert [type(i) for i in step(state, Begin())] == [ins.Ask]
    assert not of_type(suggest(state, n=0), ins.GiveUp)
    assert not changed(state, joined(1, 3), present=())
    assert (state.topology.n_blocks, state.membership.idle) == (1, [])
    done = changed(state, present={1})
    assigned = events_of(done, ev.FoldAssigned)[0]
    assert (assigned.block, assigned.team, assigned.n_ranks) == (1, 0, 2)
    (send,) = of_type(done, ins.Send)
    assert (send.rank, type(send.message)) == (1, msg.RunFold)


def test_jobs_of_unlike_size_have_trials_of_unlike_size():
    story = Story()
    sizes = {a.block: (a.team, a.n_ranks) for a in story.state.ledger.assignments}
    assert sizes == {1: (0, 2), 2: (1, 2), 3: (2, 3)}
    assert story.state.membership.teams[2].world_ranks == (6, 7, 8)
    assert story.state.suggestions.n_blocks == 3


def test_folds_are_trained_at_the_same_time_where_a_block_is_large_enough():
    state, _ = opened([], n_fold=2)
    step(state, Begin())
    changed(state, joined(1, 5, 4, n_teams=2), joined(2, 3), present={1, 2})
    suggest(state, n=0)
    suggest(state, n=1)
    assert [(a.trial, a.fold, a.block) for a in state.ledger.assignments] == [(0, 0, 1), (0, 1, 1), (1, 0, 2)]


def test_a_job_that_vanishes_takes_only_its_blocks_along():
    story = Story()
    done = story.change(lost(2), left(2, expelled=True), present={1})
    assert not events_of(done), "all blocks that are left have a trial"
    assert list(story.state.to_resume) == [2]
    assert story.state.suggestions.n_blocks == 2
    done = finish(story.state, 0, 0)
    again = events_of(done, ev.FoldAssigned)[0]
    assert (again.trial, again.attempt, again.block) == (2, 2, 1), "before anything new"


def test_a_trial_that_makes_job_after_job_vanish_is_given_up():
    story = Story(n_trials=1, max_attempts=2)
    (again,) = events_of(story.change(lost(0), left(1, expelled=True), present={2}), ev.FoldAssigned)
    assert (again.trial, again.block) == (0, 3)
    (failed,) = events_of(story.change(lost(1), left(2, expelled=True), present=()), ev.TrialFailed)
    assert failed.reason.endswith("2 times in a row (`--max-attempts`); the last time: its job has vanished")
    assert story.state.phase is Phase.SEARCHING, "it waits for jobs"


def test_a_job_that_leaves_counts_against_no_trial():
    story = Story(n_trials=1, max_attempts=1)
    done = story.change(lost(0, "its job let it go", counts=False), left(1), present={2})
    assert [type(e) for e in events_of(done)] == [ev.FoldAssigned]


def test_what_jobs_hold_stays_theirs_when_another_one_coordinates():
    story = Story()
    done = story.succeed()
    assert not events_of(done, ev.AssignmentLost)
    assert sorted(story.state.membership.assignment_of_team) == [0, 1, 2]
    assert not story.state.to_resume
    # What was reported counts, and what it leads to is given to nobody who does not follow.
    done = story.take(finish(story.state, 1, 1))
    assert [type(e) for e in events_of(done)] == [ev.AssignmentFinished, ev.TrialCompleted]
    assert not of_type(done, ins.Send)
    assert story.state.membership.idle == []
    # The rest was lost when its job follows, and goes on there.
    done = story.change(lost(0, "its job let it go", counts=False), present={1})
    assert [(e.trial, e.block) for e in events_of(done, ev.FoldAssigned)] == [(0, 1)]
    assert story.state.membership.assignment_of_team[2].trial == 2, "job 2 is still away"


def test_a_trial_that_its_job_let_go_while_it_was_away_goes_elsewhere():
    story = Story()
    story.succeed()
    story.take(stop(story.state, 2, 2))
    preempted = story.seen[-1]
    assert (type(preempted), preempted.reason) == (ev.AssignmentPreempted, "its job let it go")
    done = story.change(lost(0, counts=False), lost(1, counts=False), present={1})
    assert {e.trial for e in events_of(done, ev.FoldAssigned)} == {0, 1}
    (again,) = events_of(finish(story.state, 0, 3), ev.FoldAssigned)
    assert (again.trial, again.block) == (2, 1)


def test_a_job_that_stops_what_is_wanted_is_about_to_leave_and_gets_nothing_more():
    story = Story(n_trials=2)
    done = story.take(stop(story.state, 0, 0))
    (again,) = events_of(done, ev.FoldAssigned)
    assert (again.trial, again.block) == (0, 3), "of the other job"
    assert story.state.membership.idle == []
    story.take(finish(story.state, 1, 1))
    assert not of_type(suggest(story.state, n=7), ins.Send)


def test_what_was_lost_before_a_term_begins_is_placed_when_it_begins():
    story = Story()
    story.state, story.seen = opened(story.seen)
    story.change(lost(2), left(2, expelled=True), joined(3, 3), present={1, 3})
    # Job 1 follows: it works on nothing.
    story.change(lost(0, counts=False), lost(1, counts=False), present={1, 3})
    done = step(story.state, Begin())
    assert [(e.trial, e.block) for e in events_of(done, ev.FoldAssigned)] == [(0, 1), (1, 2), (2, 4)]


def test_a_fold_of_a_start_before_jobs_could_join_is_held_by_nobody():
    start = [SEARCH, ev.TrialSuggested(time_s=0.0, trial=0, point={"n": 0})]
    assigned = ev.FoldAssigned(time_s=0.0, assignment=0, trial=0, fold=0, attempt=1, block=1, team=0, n_ranks=2)
    # The first coordinator died when a job, whose team has the same number, had joined.
    state, _ = opened([*start, assigned, *term(1), joined(1, 3)])
    (ended,) = events_of(step(state, Begin()))
    assert (ended.assignment, ended.reason) == (0, "the run was ended")
    assert list(state.to_resume) == [0]


def test_a_paused_trial_goes_on_in_another_job():
    pruning = PruningPlan(name="asha", eta=2, min_trials=1, max_epochs=4)
    story = Story(n_trials=2, pruning=pruning)
    for number in (0, 1):
        report = {"epoch": 1, "metrics": {}, "figure_of_merit": float(number), "waits": True}
        story.take(from_master(story.state, number, msg.EpochReported(assignment=number, **report)))
    story.take(from_master(story.state, 1, msg.FoldPaused(assignment=1, epoch=1)))
    assert story.state.ledger.trials[1].state is TrialState.PAUSED
    story.take(finish(story.state, 0, 0, n_epochs=4))
    done = story.change(left(1), present={2})
    assert story.state.ledger.trials[1].state is TrialState.PAUSED
    assert not events_of(done, ev.FoldAssigned)


def test_what_waited_at_a_rung_and_was_lost_is_paused_there():
    pruning = PruningPlan(name="asha", eta=2, min_trials=1, max_epochs=4)
    story = Story(n_trials=1, pruning=pruning)
    report = {"epoch": 1, "metrics": {}, "figure_of_merit": 0.5, "waits": True}
    (send,) = of_type(from_master(story.state, 0, msg.EpochReported(assignment=0, **report)), ins.Send)
    assert isinstance(send.message, msg.PauseFold)
    done = story.change(lost(0), left(1, expelled=True), present={2})
    assert isinstance(events_of(done)[0], ev.TrialPaused)


def test_a_block_that_does_not_stop_expels_its_job():
    story = Story(budget=Budget(trial_timeout_s=10.0))
    failed = story.take(step(story.state, Tick(), 20.0))
    assert len(events_of(failed, ev.TrialFailed)) == 3
    for team in (0, 2):
        story.take(stop(story.state, team, team, 21.0))
    done = story.take(step(story.state, Tick(), 40.0))
    (expel,) = of_type(done, ins.Expel)
    assert expel.job == 1
    assert expel.reason.startswith("Block 2 is stuck in the model's code: its trial took longer than `--trial-timeout`")
    assert not of_type(step(story.state, Tick(), 40.5), ins.Expel), "once"
    story.change(lost(1, expel.reason, counts=False), left(1, reason=expel.reason, expelled=True), present={2})
    assert story.state.membership.suspects.keys() <= {2}


def test_a_job_that_reports_what_cannot_be_is_expelled():
    story = Story()
    done = from_master(story.state, 2, msg.TeamReformed(alive=[1], world_ranks=[1], n_masters=1, taken=-1, goes_on=-1))
    (expel,) = of_type(done, ins.Expel)
    assert (expel.job, expel.reason.startswith("It reported what no team may report. Team 2 cannot")) == (2, True)
    done = from_master(story.state, 2, msg.FoldRecorded(assignment=2))
    assert not of_type(done, ins.Expel), "once"
    story.change(lost(2, expel.reason, counts=False), left(2, reason=expel.reason, expelled=True), present={1})
    assert list(story.state.to_resume) == [2]


def test_a_team_that_has_reformed_is_known_to_the_next_coordinator():
    story = Story()
    reformed = msg.TeamReformed(alive=[6, 8], world_ranks=[6, 8], n_masters=1, taken=2, goes_on=2)
    (death,) = events_of(story.take(from_master(story.state, 2, reformed)))
    assert (death.ranks, death.counts) == ([7], True)
    story.succeed()
    # Its log is read again. What it said then is about the fold that it trained then.
    before = msg.TeamReformed(alive=[6, 8], world_ranks=[6, 8], n_masters=1, taken=1, goes_on=-1)
    assert not events_of(from_master(story.state, 2, before))
    assert story.state.membership.assignment_of_team[2].number == 2
    done = story.change(lost(2, counts=False), present={2})
    assert [(e.trial, e.n_ranks) for e in events_of(done, ev.FoldAssigned)] == [(2, 2)]


def test_ranks_that_die_while_their_job_is_away_are_written_down_once():
    story = Story()
    story.succeed()
    reformed = msg.TeamReformed(alive=[7, 8], world_ranks=[7, 8], n_masters=1, taken=-1, goes_on=-1)
    (death,) = events_of(story.take(from_master(story.state, 2, reformed)))
    assert (death.ranks, death.assignment) == ([6], 2)
    assert not events_of(from_master(story.state, 2, reformed))
    assert story.state.membership.ready(3) == []


def test_the_search_ends_when_all_jobs_but_one_have_left():
    story = Story(n_trials=3, num_iterations=3)
    story.change(lost(2, counts=False), left(2), present={1})
    story.take(finish(story.state, 0, 0))
    story.take(finish(story.state, 1, 1))
    (last,) = [a for a in story.state.ledger.assignments if a.end is None]
    (end,) = of_type(finish(story.state, last.team, last.number), ins.FinishRun)
    assert end.complete


def test_jobs_join_only_a_run_that_is_shared():
    state = CoordinatorState(SearchPlan(num_iterations=1), Topology.plan(3, 2), Ledger())
    with pytest.raises(ProtocolError, match="JobsChanged may not come"):
        state.handle(JobsChanged(recorded=(joined(1, 3),), present=frozenset()), 0.0)


def test_a_job_of_another_shape_than_it_says_is_refused():
    assert not why_refused(joined(1, 5), 1)
    assert not why_refused(joined(1, 1), 3)
    why = why_refused(joined(1, 5, 4, n_teams=1), 2)
    assert why.startswith("A job of 5 ranks must have 2 teams in 1 blocks for this search. Received: 1 in 1;")
