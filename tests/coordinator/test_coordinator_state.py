import copy
from dataclasses import replace
from enum import Enum

import pytest

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator import instructions as ins
from nnlo_opt.coordinator import state as st
from nnlo_opt.coordinator.budget import Budget
from nnlo_opt.coordinator.ending import Phase
from nnlo_opt.coordinator.instructions import Begin, FromMaster, Preempt, RanksDied, SearchPlan, Send, Suggested, Tick
from nnlo_opt.errors import ProtocolError
from nnlo_opt.search.pruning import PruningPlan
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.objectives import Objective
from nnlo_opt.trials.trial import FoldResult, Loss, TrialState, UnrecordedFold

TWO_BLOCKS = Topology.plan(5, 2)
ONE_BLOCK = Topology.plan(3, 2)
TWO_TEAMS = Topology.plan(5, 4, n_fold=2)


def begin(topology=ONE_BLOCK, ledger=None, **plan):
    state = st.CoordinatorState(SearchPlan(**{"num_iterations": 3} | plan), topology, ledger or Ledger())
    return state, step(state, Begin())


def step(state, event, now_s=1.0):
    instructions = state.handle(event, now_s)
    state.check()
    return instructions


def suggest(state, **point):
    return step(state, Suggested(point=point or None))


def finish(state, team, assignment, figure=0.5, n_epochs=1):
    message = msg.FoldFinished(
        assignment=assignment, figure_of_merit=figure, metrics={"loss": figure}, n_epochs=n_epochs, train_s=2.0
    )
    return step(state, FromMaster(team=team, message=message))


def fail(state, team, assignment, reason="no memory"):
    return step(state, FromMaster(team=team, message=msg.FoldFailed(assignment=assignment, reason=reason)))


def events_of(instructions):
    return [event for i in instructions if isinstance(i, ins.Append) for event in i.events]


def sends_to(instructions, team):
    return [i.message for i in instructions if isinstance(i, Send) and i.team == team]


def of_type(instructions, kind):
    return [i for i in instructions if isinstance(i, kind)]


def restarted(instructions_so_far, topology=ONE_BLOCK, **plan):
    """A new state on the ledger that these instructions' events make."""
    ledger = Ledger()
    for event in events_of(instructions_so_far):
        ledger.apply(event)
    return begin(topology, ledger, **plan)


# ---------------------------------------------------------------- phases

LATE = FromMaster(team=0, message=msg.FoldStopped(assignment=0))
PREEMPT = Preempt(reason="preempted", grace_s=100.0)


def opening():
    return st.CoordinatorState(SearchPlan(num_iterations=2), ONE_BLOCK, Ledger())


def searching():
    return begin()[0]


def draining():
    state, _ = begin(num_iterations=1)
    suggest(state, n=1)
    return state


def over():
    state = draining()
    finish(state, 0, 0)
    return state


#: how to get into each phase, and where each event it takes leads (with no suggestion owed)
PHASES = {Phase.OPENING: opening, Phase.SEARCHING: searching, Phase.DRAINING: draining, Phase.OVER: over}
LEADS_TO = {
    (Phase.OPENING, Begin): Phase.SEARCHING,
    (Phase.OPENING, Preempt): Phase.OPENING,
    (Phase.SEARCHING, Preempt): Phase.OVER,
    (Phase.DRAINING, Preempt): Phase.DRAINING,
    (Phase.OVER, Preempt): Phase.OVER,
    (Phase.SEARCHING, Suggested): Phase.SEARCHING,
    (Phase.SEARCHING, FromMaster): Phase.SEARCHING,
    (Phase.SEARCHING, Tick): Phase.SEARCHING,
    (Phase.SEARCHING, RanksDied): Phase.SEARCHING,
    (Phase.DRAINING, RanksDied): Phase.DRAINING,
    (Phase.OVER, RanksDied): Phase.OVER,
    (Phase.DRAINING, Suggested): Phase.DRAINING,
    (Phase.DRAINING, FromMaster): Phase.DRAINING,
    (Phase.DRAINING, Tick): Phase.DRAINING,
    (Phase.OVER, Suggested): Phase.OVER,
    (Phase.OVER, FromMaster): Phase.OVER,
    (Phase.OVER, Tick): Phase.OVER,
}


def all_of(state):
    """The fields of the parts that it is made of, and of the ledger, by name; not those that are parts themselves."""
    own = {
        name: value
        for part in vars(state).values()
        if type(part).__module__.startswith("nnlo_opt.coordinator.") and hasattr(part, "__dict__")
        for name, value in vars(part).items()
        if isinstance(value, Enum) or not hasattr(value, "__dict__")
    }
    assert {"phase", "trial_of_block", "to_resume", "_news", "_events", "_stock"} <= own.keys()
    return copy.deepcopy(own | vars(state.ledger) | vars(state.policy.reports))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "event",
    [Begin(), Suggested(point={"n": 9}), LATE, Tick(), PREEMPT, RanksDied(ranks=frozenset({2}))],
    ids=lambda event: type(event).__name__,
)
def test_every_phase_takes_its_events_and_any_other_raises_and_changes_nothing(phase, event):
    state = PHASES[phase]()
    assert state.phase is phase
    state.stock.asked = isinstance(event, Suggested)
    before = all_of(state)
    if (phase, type(event)) in LEADS_TO:
        state.handle(event, 2.0)
        assert state.phase is LEADS_TO[phase, type(event)]
    else:
        with pytest.raises(ProtocolError, match=f"{type(event).__name__} may not come .* {phase.name}"):
            state.handle(event, 2.0)
        assert all_of(state) == before


def test_a_suggestion_nobody_asked_for_raises_and_changes_nothing():
    state = draining()
    assert not state.stock.asked
    before = all_of(state)
    with pytest.raises(ProtocolError, match="nobody asked for"):
        state.handle(Suggested(point={"n": 1}), 2.0)
    assert vars(state.ledger) == {name: before[name] for name in vars(state.ledger)}
    state.check()


def test_a_message_that_no_master_sends_raises_and_records_nothing():
    state = draining()
    before = copy.deepcopy(vars(state.ledger))
    with pytest.raises(ProtocolError, match="Fence is no message a master sends"):
        state.handle(FromMaster(team=0, message=msg.Fence(assignment=0)), 2.0)
    assert vars(state.ledger) == before
    state.check()


# ---------------------------------------------------------------- one trial


def test_a_fresh_search_asks_first_and_assigns_nothing():
    _, out = begin()
    assert out == [ins.Ask(number=0)]


def test_a_suggestion_becomes_a_trial_that_is_written_before_it_is_sent_and_the_next_is_asked_for():
    state, _ = begin()
    out = step(state, Suggested(point={"n": 4}, wall_s=0.5, cpu_s=0.25), now_s=7.0)
    assert out == [
        ins.Append(
            events=(
                ev.TrialSuggested(time_s=7.0, trial=0, point={"n": 4}, suggest_s=0.5, suggest_cpu_s=0.25),
                ev.FoldAssigned(time_s=7.0, assignment=0, trial=0, fold=0, attempt=1, block=1, team=0, n_ranks=2),
            ),
            durable=True,
        ),
        ins.Tell(trial=0, point={"n": 4}, state="pending"),
        ins.Send(team=0, rank=1, message=msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={"n": 4})),
        ins.Ask(number=1),
    ]


def test_one_suggestion_is_held_ahead_and_no_more():
    state, _ = begin(num_iterations=5)
    suggest(state, n=0)
    out = suggest(state, n=1)
    assert [type(i) for i in out] == [ins.Tell]
    assert len(state.stock.ready) == 1
    out = finish(state, 0, 0)
    assert sends_to(out, 0) == [
        msg.FoldRecorded(assignment=0),
        msg.RunFold(assignment=1, trial=1, fold=0, attempt=1, point={"n": 1}),
    ]
    assert of_type(out, ins.Ask) == [ins.Ask(number=2)]


def test_news_of_a_training_is_written_without_waiting_for_the_disk():
    state = draining()
    out = step(state, FromMaster(team=0, message=msg.FoldStarted(assignment=0, epoch=2, waited_s=0.5)), 3.0)
    assert out == [ins.Append(events=(ev.FoldBegan(time_s=3.0, assignment=0, epoch=2, waited_s=0.5),), durable=False)]
    reported = msg.EpochReported(assignment=0, epoch=3, metrics={"loss": 1.0}, checkpointed=True)
    out = step(state, FromMaster(team=0, message=reported), 4.0)
    ended = ev.EpochEnded(time_s=4.0, assignment=0, epoch=3, metrics={"loss": 1.0}, checkpointed=True)
    assert out == [ins.Append(events=(ended,), durable=False)]


def test_the_end_of_the_last_trial_is_written_then_acknowledged_then_the_search_is_over():
    state = draining()
    out = finish(state, 0, 0, figure=0.25)
    assert isinstance(out[0], ins.Append)
    assert out[0].durable
    assert [type(event) for event in out[0].events] == [ev.AssignmentFinished, ev.TrialCompleted]
    assert out[1:] == [
        ins.Send(team=0, rank=1, message=msg.FoldRecorded(assignment=0)),
        ins.Tell(trial=0, point={"n": 1}, state="complete", value=0.25),
        ins.Finish(reason="all 1 trials are done"),
    ]
    assert state.phase is Phase.OVER


def test_a_failed_trial_counts_as_one_of_the_iterations_and_the_search_goes_on():
    state, _ = begin(num_iterations=2)
    suggest(state, n=0)
    suggest(state, n=1)
    failed = msg.FoldFailed(assignment=0, reason="NaN", traceback="Traceback", world_rank=2, host="node1")
    out = step(state, FromMaster(team=0, message=failed), 5.0)
    events = events_of(out)
    assert events[0] == ev.AssignmentFailed(
        time_s=5.0, assignment=0, reason="NaN", traceback="Traceback", world_rank=2, host="node1"
    )
    assert events[1] == ev.TrialFailed(time_s=5.0, trial=0, reason="NaN")
    assert of_type(out, ins.Tell) == [ins.Tell(trial=0, point={"n": 0}, state="failed")]
    assert sends_to(out, 0)[-1].trial == 1
    out = finish(state, 0, 1)
    assert of_type(out, ins.Finish) == [ins.Finish(reason="all 2 trials are done")]


def test_a_fold_that_stopped_by_itself_is_assigned_again_as_the_next_attempt():
    state = draining()
    out = step(state, FromMaster(team=0, message=msg.FoldStopped(assignment=0)))
    assert sends_to(out, 0) == [
        msg.FoldRecorded(assignment=0),
        msg.RunFold(assignment=1, trial=0, fold=0, attempt=2, point={"n": 1}),
    ]


def test_every_idle_block_gets_a_trial_and_a_failure_touches_no_other_block():
    state, _ = begin(TWO_BLOCKS, num_iterations=4)
    suggest(state, n=0)
    suggest(state, n=1)
    suggest(state, n=2)
    assert state.blocks.trial_of_block == {1: 0, 2: 1}
    fail(state, 1, 1)
    assert state.blocks.trial_of_block == {1: 0, 2: 2}
    assert state.ledger.trials[0].state == "running"


# ---------------------------------------------------------------- late messages


@pytest.mark.parametrize("assignment", [-1, 0, 7])
@pytest.mark.parametrize(
    "message",
    [
        msg.FoldStarted(assignment=0),
        msg.EpochReported(assignment=0, epoch=1, metrics={}),
        msg.FoldFinished(assignment=0, figure_of_merit=0.0, metrics={}, n_epochs=1, train_s=0.0),
        msg.FoldStopped(assignment=0),
        msg.FoldFailed(assignment=0, reason="late"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_late_message_changes_nothing(message, assignment):
    state, _ = begin(num_iterations=3)
    suggest(state, n=0)
    suggest(state, n=1)
    assert sends_to(finish(state, 0, 0), 0)[-1].assignment == 1
    before = all_of(state)
    assert step(state, FromMaster(team=0, message=replace(message, assignment=assignment))) == []
    assert vars(state.ledger) == {name: before[name] for name in vars(state.ledger)}


def test_a_message_about_the_assignment_of_another_team_changes_nothing():
    state, _ = begin(TWO_BLOCKS)
    suggest(state, n=0)
    suggest(state, n=1)
    out = step(state, FromMaster(team=1, message=msg.FoldFailed(assignment=0, reason="not mine")))
    assert events_of(out) == []
    assert state.ledger.trials[0].state == "running"


def test_a_result_or_a_suggestion_after_the_end_is_dropped():
    state, _ = begin(num_iterations=9, target_objective=1.0)
    suggest(state, n=0)
    assert state.stock.asked
    finish(state, 0, 0, figure=0.5)
    assert state.phase is Phase.OVER
    assert step(state, FromMaster(team=0, message=msg.FoldFailed(assignment=0, reason="late"))) == []
    assert suggest(state, n=1) == []
    assert len(state.ledger.trials) == 1


# ---------------------------------------------------------------- folds


def test_folds_run_one_after_another_on_a_team_and_their_mean_is_the_figure():
    state, _ = begin(num_iterations=1, n_fold=2)
    out = suggest(state, n=0)
    assert [m.fold for m in sends_to(out, 0)] == [0]
    out = finish(state, 0, 0, figure=1.0)
    assert [type(event) for event in events_of(out)] == [ev.AssignmentFinished, ev.FoldAssigned]
    assert sends_to(out, 0)[-1].fold == 1
    out = finish(state, 0, 1, figure=3.0)
    assert events_of(out)[-1] == ev.TrialCompleted(time_s=1.0, trial=0, figure_of_merit=2.0, figure_of_merit_std=1.0)


def test_folds_run_at_the_same_time_on_the_teams_of_a_block_and_an_idle_team_waits_for_the_other():
    state, _ = begin(TWO_TEAMS, num_iterations=2, n_fold=2)
    out = suggest(state, n=0)
    assert [m.fold for m in sends_to(out, 0) + sends_to(out, 1)] == [0, 1]
    suggest(state, n=1)
    out = finish(state, 1, 1)
    assert sends_to(out, 1) == [msg.FoldRecorded(assignment=1)]
    out = finish(state, 0, 0)
    assert [m.trial for m in (sends_to(out, 0)[-1], sends_to(out, 1)[-1])] == [1, 1]


def test_a_failed_fold_stops_the_other_folds_and_their_results_are_not_needed():
    state, _ = begin(TWO_TEAMS, num_iterations=2, n_fold=2)
    suggest(state, n=0)
    suggest(state, n=1)
    out = fail(state, 0, 0)
    assert [e.reason for e in events_of(out) if isinstance(e, ev.TrialFailed)] == ["fold 0: no memory"]
    assert sends_to(out, 1) == [msg.StopFold(assignment=1)]
    assert state.blocks.trial_of_block == {1: 0}  # the block is not free before its other team is
    # The other fold had finished before the order to stop could reach it.
    out = finish(state, 1, 1)
    assert isinstance(events_of(out)[0], ev.AssignmentStopped)
    assert state.ledger.trials[0].state == "failed"
    assert state.ledger.trials[0].figure_of_merit is None
    assert state.blocks.trial_of_block == {1: 1}


def test_two_folds_that_fail_make_one_failed_trial():
    state, _ = begin(TWO_TEAMS, num_iterations=1, n_fold=2)
    suggest(state, n=0)
    first, second = fail(state, 0, 0, "first"), fail(state, 1, 1, "second")
    assert sum(isinstance(event, ev.TrialFailed) for event in events_of(first + second)) == 1
    assert state.ledger.trials[0].reason == "fold 0: first"
    assert of_type(second, ins.Finish)


# ---------------------------------------------------------------- ends


def test_a_target_is_reached_only_by_a_better_figure_and_running_trials_end():
    state, _ = begin(TWO_BLOCKS, num_iterations=9, target_objective=0.5)
    suggest(state, n=0)
    suggest(state, n=1)
    suggest(state, n=2)
    finish(state, 0, 0, figure=0.5)
    assert state.phase is Phase.SEARCHING
    suggest(state, n=3)
    out = finish(state, 1, 1, figure=0.25)
    assert not state.stock.ready
    assert state.phase is Phase.DRAINING
    assert not of_type(out, ins.Finish)
    assert sends_to(out, 1) == [msg.FoldRecorded(assignment=1)]
    out = finish(state, 0, 2, figure=0.9)
    assert of_type(out, ins.Finish) == [ins.Finish(reason="the target of 0.5 is reached: trial 1 has 0.25")]
    assert len(state.ledger.trials) == 3


def test_a_target_from_below_where_the_direction_is_up():
    state, _ = begin(num_iterations=9, target_objective=0.5, direction="max")
    suggest(state, n=0)
    suggest(state, n=1)
    finish(state, 0, 0, figure=0.25)
    assert state.phase is Phase.SEARCHING
    finish(state, 0, 1, figure=0.75)
    assert state.phase is Phase.OVER


def test_a_space_that_is_used_up_ends_the_search_when_its_last_trial_has_ended():
    state, _ = begin(num_iterations=9)
    suggest(state, n=0)
    suggest(state, n=1)
    finish(state, 0, 0)
    suggest(state)
    assert state.phase is Phase.DRAINING
    out = finish(state, 0, 1)
    assert of_type(out, ins.Finish) == [
        ins.Finish(reason="the search space is used up: all its 2 points have been tried")
    ]


def test_a_space_that_is_used_up_while_a_suggestion_is_held_still_tries_it():
    state, _ = begin(num_iterations=9)
    suggest(state, n=0)
    state.stock.asked = True  # as with a search that is asked further ahead
    suggest(state, n=1)
    state.stock.asked = True
    assert not of_type(suggest(state), ins.Finish)
    out = finish(state, 0, 0)
    assert sends_to(out, 0)[-1].trial == 1
    assert of_type(finish(state, 0, 1), ins.Finish)


def test_no_more_is_suggested_than_trials_may_begin():
    state, _ = begin(TWO_BLOCKS, num_iterations=2)
    suggest(state, n=0)
    out = suggest(state, n=1)
    assert not of_type(out, ins.Ask)
    assert state.phase is Phase.DRAINING


# ---------------------------------------------------------------- restarts


def test_a_restart_loses_the_assignments_under_way_and_gives_their_trials_first():
    state, out = begin(TWO_BLOCKS, num_iterations=3)
    so_far = out + suggest(state, n=0) + suggest(state, n=1) + finish(state, 0, 0, figure=0.25)
    state, out = restarted(so_far, TWO_BLOCKS)
    assert [type(event) for event in events_of(out)] == [ev.AssignmentLost, ev.FoldAssigned]
    assert of_type(out, ins.Tell) == [
        ins.Tell(trial=0, point={"n": 0}, state="complete", value=0.25),
        ins.Tell(trial=1, point={"n": 1}, state="pending"),
    ]
    assert sends_to(out, 0) == [msg.RunFold(assignment=2, trial=1, fold=0, attempt=2, point={"n": 1})]
    assert of_type(out, ins.Ask) == [ins.Ask(number=2)]


def test_a_restart_completes_a_trial_whose_last_fold_was_written_without_its_end():
    state, out = begin(num_iterations=1)
    events = events_of(out + suggest(state, n=0) + finish(state, 0, 0, figure=0.25))
    assert isinstance(events[-1], ev.TrialCompleted)
    state, out = restarted([ins.Append(events=tuple(events[:-1]))], num_iterations=1)
    assert events_of(out) == [ev.TrialCompleted(time_s=1.0, trial=0, figure_of_merit=0.25, figure_of_merit_std=0.0)]
    assert of_type(out, ins.Finish)


def test_a_restart_fails_a_trial_whose_failure_was_written_by_half():
    state, out = begin(num_iterations=1)
    events = events_of(out + suggest(state, n=0) + fail(state, 0, 0))
    assert isinstance(events[-1], ev.TrialFailed)
    state, out = restarted([ins.Append(events=tuple(events[:-1]))], num_iterations=1)
    assert events_of(out) == [ev.TrialFailed(time_s=1.0, trial=0, reason="no memory")]
    assert sends_to(out, 0) == []
    assert of_type(out, ins.Finish)


def test_a_restart_runs_only_the_folds_that_are_not_finished_on_whatever_blocks_there_are():
    state, out = begin(TWO_TEAMS, num_iterations=1, n_fold=2)
    so_far = out + suggest(state, n=0) + finish(state, 1, 1, figure=3.0)
    state, out = restarted(so_far, ONE_BLOCK, num_iterations=1, n_fold=2)
    assert sends_to(out, 0) == [msg.RunFold(assignment=2, trial=0, fold=0, attempt=2, point={"n": 0})]
    finish(state, 0, 2, figure=1.0)
    assert state.ledger.trials[0].figure_of_merit == 2.0


def test_a_restart_of_a_finished_search_has_nothing_to_do_unless_it_is_longer():
    state, out = begin(num_iterations=1)
    so_far = out + suggest(state, n=0) + finish(state, 0, 0)
    _, out = restarted(so_far, num_iterations=1)
    assert [type(i) for i in out] == [ins.Tell, ins.Finish]
    _, out = restarted(so_far, num_iterations=2)
    assert of_type(out, ins.Ask) == [ins.Ask(number=1)]


def test_a_restart_that_has_reached_the_target_ends_the_running_trials_and_begins_no_other():
    state, out = begin(TWO_BLOCKS, num_iterations=9)
    so_far = out + suggest(state, n=0) + suggest(state, n=1) + finish(state, 0, 0, figure=0.25)
    state, out = restarted(so_far, TWO_BLOCKS, num_iterations=9, target_objective=0.5)
    assert not of_type(out, ins.Ask)
    assert sends_to(out, 0)[0].trial == 1
    out = finish(state, 0, 2)
    assert "target of 0.5" in of_type(out, ins.Finish)[0].reason


# ---------------------------------------------------------------- check


def test_check_finds_what_must_never_be():
    state, _ = begin(TWO_BLOCKS, num_iterations=3)
    suggest(state, n=0)
    suggest(state, n=1)
    broken = copy.deepcopy(state)
    del broken.blocks.assignment_of_team[0]
    with pytest.raises(ProtocolError, match="differ"):
        broken.check()
    broken = copy.deepcopy(state)
    broken.blocks.trial_of_block[1] = 7
    with pytest.raises(ProtocolError, match="does not hold"):
        broken.check()
    broken = copy.deepcopy(state)
    broken.stock.ready.extend([Suggested(point={"n": 2})] * 2)
    with pytest.raises(ProtocolError, match="More suggestions"):
        broken.check()
    broken = copy.deepcopy(state)
    broken.blocks.trial_of_block = {1: 0, 2: 0}
    broken.blocks.assignment_of_team.clear()
    for assignment in broken.ledger.assignments:
        assignment.end = "lost"
    with pytest.raises(ProtocolError, match="Two blocks hold the same trial"):
        broken.check()


# ---------------------------------------------------------------- several objectives


TWO_OBJECTIVES = (Objective("val_loss"), Objective("val_acc", "max"))


def finish_with(state, team, assignment, val_loss, val_acc):
    message = msg.FoldFinished(
        assignment=assignment,
        figure_of_merit=val_loss,
        metrics={},
        n_epochs=1,
        train_s=1.0,
        objectives={"val_loss": val_loss, "val_acc": val_acc},
    )
    return step(state, FromMaster(team=team, message=message))


def test_several_objectives_are_averaged_over_the_folds_and_told_as_losses():
    state, _ = begin(TWO_TEAMS, objectives=TWO_OBJECTIVES, n_fold=2)
    suggest(state, n=1)
    finish_with(state, 0, 0, 1.0, 0.5)
    out = finish_with(state, 1, 1, 3.0, 0.75)
    (ended,) = [event for event in events_of(out) if isinstance(event, ev.TrialCompleted)]
    assert (ended.figure_of_merit, ended.figure_of_merit_std) == (2.0, 1.0)
    assert ended.objectives == {"val_loss": 2.0, "val_acc": 0.625}
    assert ended.objectives_std == {"val_loss": 1.0, "val_acc": 0.125}
    told = of_type(out, ins.Tell)[0]
    assert (told.value, told.losses) == (2.0, (2.0, -0.625))


def test_one_objective_is_told_as_a_value_alone():
    state, _ = begin()
    suggest(state, n=1)
    out = finish(state, 0, 0)
    assert of_type(out, ins.Tell)[0].losses is None
    assert events_of(out)[-1].objectives == {}


# ---------------------------------------------------------------- budgets


def session(ledger, time_s=0.0):
    ledger.apply(ev.RunStarted(time_s=time_s, unix_s=time_s, n_ranks=3, n_blocks=1, identity={}))
    return ledger


def with_budget(num_iterations=9, ledger=None, topology=ONE_BLOCK, **budget):
    return begin(topology, session(ledger or Ledger()), num_iterations=num_iterations, budget=Budget(**budget))


def test_a_tick_changes_nothing_while_there_is_time():
    state, _ = with_budget(timeout_s=100.0, deadline_s=100.0, end_s=10.0)
    suggest(state, n=1)
    before = all_of(state)
    assert step(state, Tick(), 5.0) == []
    after = all_of(state)
    assert {name for name in before if before[name] != after[name]} <= {"now_s", "_instructions", "_events"}


def test_a_timeout_ends_the_search_when_what_runs_has_ended():
    state, _ = with_budget(timeout_s=10.0)
    suggest(state, n=1)
    assert step(state, Tick(), 9.9) == []
    step(state, Tick(), 10.0)
    assert state.phase is Phase.DRAINING
    out = finish(state, 0, 0)
    assert of_type(out, ins.Finish) == [ins.Finish(reason="its time of 10 s is spent")]
    assert not of_type(out, Send)[1:]  # the trial is recorded, and no other begins


def test_a_search_whose_time_is_spent_goes_on_with_more_of_it():
    state, out = with_budget(timeout_s=10.0)
    out += suggest(state, n=1)
    step(state, Tick(), 10.0)
    out += finish(state, 0, 0)
    for timeout_s, phase in ((10.0, Phase.OVER), (20.0, Phase.SEARCHING)):
        ledger = session(Ledger())
        for event in events_of(out):
            ledger.apply(event)
        session(ledger, 50.0)  # ten seconds of the first start are spent, or one by its last event
        ledger.sessions[0].last_at_s = 10.0
        again = st.CoordinatorState(SearchPlan(num_iterations=9, budget=Budget(timeout_s=timeout_s)), ONE_BLOCK, ledger)
        step(again, Begin(), 50.0)
        assert again.phase is phase


def test_no_trial_begins_that_would_not_end_before_the_walltime():
    state, _ = with_budget(deadline_s=100.0, end_s=10.0)
    step(state, Suggested(point={"n": 1}), 0.0)
    step(state, Suggested(point={"n": 2}), 0.0)
    message = msg.FoldFinished(assignment=0, figure_of_merit=1.0, metrics={}, n_epochs=1, train_s=1.0)
    out = step(state, FromMaster(team=0, message=message), 40.0)  # trials last 40 s: another may begin, up to 50 s
    assert [type(m) for m in sends_to(out, 0)] == [msg.FoldRecorded, msg.RunFold]
    step(state, Suggested(point={"n": 3}), 41.0)
    assert step(state, Tick(), 50.0) == []
    step(state, Tick(), 50.1)
    assert state.phase is Phase.DRAINING
    out = step(state, FromMaster(team=0, message=replace(message, assignment=1)), 80.0)
    assert of_type(out, ins.Finish) == [
        ins.Finish(reason="the walltime leaves no time for another trial", complete=False)
    ]


def test_what_still_runs_near_the_end_of_the_walltime_stops_and_keeps_its_checkpoints():
    state, begun = with_budget(deadline_s=100.0, end_s=10.0)
    begun += step(state, Suggested(point={"n": 1}), 0.0)
    out = step(state, Tick(), 90.0)
    assert sends_to(out, 0) == [msg.PreemptFold(assignment=0)]
    assert step(state, Tick(), 90.5) == []  # once
    assert sends_to(step(state, Tick(), 92.5), 0) == [msg.StopFold(assignment=0)]  # no checkpoint by then
    out = step(state, LATE, 93.0)
    assert events_of(out) == [ev.AssignmentPreempted(time_s=93.0, assignment=0, reason="the walltime is over")]
    assert not of_type(out, Send)  # its master is not told that it may remove the checkpoints
    assert of_type(out, ins.Finish) == [ins.Finish(reason="the walltime is over", complete=False)]
    assert state.ledger.trials[0].state is TrialState.PREEMPTED
    # The next start goes on with it, before anything new.
    again, out = restarted([*begun, *out], num_iterations=9)
    assert [(m.trial, m.attempt) for m in sends_to(out, 0)] == [(0, 2)]
    assert again.ledger.trials[0].state is TrialState.RUNNING


def test_a_trial_that_ends_at_the_last_moment_is_complete():
    state, _ = with_budget(deadline_s=100.0, end_s=10.0, num_iterations=1)
    step(state, Suggested(point={"n": 1}), 0.0)
    step(state, Tick(), 90.0)
    out = finish(state, 0, 0)
    assert state.ledger.trials[0].state is TrialState.COMPLETE
    assert of_type(out, ins.Finish)


def test_a_complete_search_is_complete_however_little_time_there_is():
    state, out = begin(ledger=session(Ledger()), num_iterations=1)
    out += suggest(state, n=1)
    out += finish(state, 0, 0)
    ledger = session(Ledger())
    for event in events_of(out):
        ledger.apply(event)
    _, out = with_budget(num_iterations=1, ledger=ledger, deadline_s=0.1, end_s=0.0, timeout_s=0.1)
    assert of_type(out, ins.Finish) == [ins.Finish(reason="all 1 trials are done")]


def test_the_search_stops_after_so_many_trials_without_improvement():
    state, _ = with_budget(n_without_improvement=2)
    for number, figure in enumerate([0.5, 0.6, 0.4, 0.4, 0.5]):
        suggest(state, n=number)
        assert state.phase is Phase.SEARCHING
        if number == 1:
            fail(state, 0, number)
        else:
            finish(state, 0, number, figure)
    assert state.phase is not Phase.SEARCHING
    assert state.ending.reason == "the last 2 trials have not been better than those before"


def test_a_restored_search_counts_the_trials_of_before():
    state, out = begin(num_iterations=9)
    for number, figure in enumerate([0.5, 0.6, 0.7]):
        out += suggest(state, n=number)
        out += finish(state, 0, number, figure)
    for most, phase in ((2, Phase.OVER), (3, Phase.SEARCHING)):
        again, _ = restarted(out, num_iterations=9, budget=Budget(n_without_improvement=most))
        assert again.phase is phase


# ---------------------------------------------------------------- folds that race


def test_a_trial_whose_first_folds_are_hopeless_is_pruned_and_its_block_takes_the_next():
    plan = SearchPlan(num_iterations=3, n_fold=3, fold_racing=True)
    state = st.CoordinatorState(plan, ONE_BLOCK, Ledger())
    state.handle(Begin(), 1.0)
    out = []
    for trial, figures in enumerate([(0.1, 0.2, 0.3), (0.5, 0.601)]):
        out = state.handle(Suggested(point={"n": trial}), 2.0)
        for figure in figures:
            (assignment,) = state.blocks.assignment_of_team.values()
            assert assignment.trial == trial
            finished = msg.FoldFinished(
                assignment=assignment.number, figure_of_merit=figure, metrics={}, n_epochs=1, train_s=1.0
            )
            out = state.handle(FromMaster(team=0, message=finished), 3.0)
            state.check()
    trial = state.ledger.trials[1]
    assert trial.state == "pruned"
    assert trial.figure_so_far == pytest.approx(0.5505)
    assert "after 2 of 3 folds its mean 0.5505 is worse than the 0.15 of trial 0" in trial.reason
    told = next(i for i in out if isinstance(i, ins.Tell) and i.trial == 1)
    assert (told.state, told.value) == ("pruned", trial.figure_so_far)
    assert not state.blocks.trial_of_block


# ---------------------------------------------------------------- paused trials and budgets

ASHA = PruningPlan(name="asha", eta=2, max_epochs=2)


def with_two_paused(**budget):
    """Two trials of figures 0.5 and 0.6 that came to the rung of epoch 1, of which the first is promoted and runs."""
    plan = {"num_iterations": 3, "pruning": ASHA, "budget": Budget(**budget)}
    state, out = begin(ONE_BLOCK, session(Ledger()), **plan)
    for trial, figure in enumerate([0.5, 0.6]):
        out += suggest(state, n=trial)
        out += pause(state, trial, figure)
    assert [trial.state for trial in state.ledger.trials] == ["running", "paused"]
    assert of_type(out, Send)[-1].message.trial == 0
    return state, out


def pause(state, assignment, figure):
    reported = msg.EpochReported(
        assignment=assignment, epoch=1, metrics={}, figure_of_merit=figure, checkpointed=True, waits=True
    )
    out = step(state, FromMaster(team=0, message=reported))
    assert sends_to(out, 0) == [msg.PauseFold(assignment=assignment)]
    return out + step(state, FromMaster(team=0, message=msg.FoldPaused(assignment=assignment, epoch=1)))


def test_the_end_of_the_walltime_leaves_paused_trials_paused_and_the_next_start_goes_on_with_them():
    state, out = with_two_paused(deadline_s=100.0, end_s=10.0)
    stopping = step(state, Tick(), 90.0)
    assert sends_to(stopping, 0) == [msg.PreemptFold(assignment=2)]
    ended = step(state, FromMaster(team=0, message=msg.FoldStopped(assignment=2)), 91.0)
    assert of_type(ended, ins.Finish) == [ins.Finish(reason="the walltime is over", complete=False)]
    assert state.ledger.n_by_state() | {"preempted": 1, "paused": 1} == state.ledger.n_by_state()
    again, out = restarted([*out, *stopping, *ended], num_iterations=2, pruning=ASHA)
    assert [(m.trial, m.attempt) for m in sends_to(out, 0)] == [(0, 2)]
    assert again.ledger.trials[1].state is TrialState.PAUSED
    finish(again, 0, 3, 0.4)
    assert again.phase is Phase.OVER
    assert again.ledger.trials[1].reason.startswith("never promoted")


def test_a_master_that_asks_when_the_time_is_over_is_not_answered_but_stopped():
    state, _ = begin(ONE_BLOCK, session(Ledger()), pruning=ASHA, budget=Budget(deadline_s=100.0, end_s=10.0))
    suggest(state, n=0)
    assert sends_to(step(state, Tick(), 90.0), 0) == [msg.PreemptFold(assignment=0)]
    reported = msg.EpochReported(assignment=0, epoch=1, metrics={}, figure_of_merit=0.5, checkpointed=True, waits=True)
    assert not of_type(step(state, FromMaster(team=0, message=reported), 90.5), Send)
    step(state, LATE, 91.0)
    assert state.phase is Phase.OVER
    assert state.ledger.trials[0].state is TrialState.PAUSED  # it stands at its rung


def test_when_the_time_of_the_search_is_spent_no_paused_trial_is_promoted():
    state, _ = with_two_paused(timeout_s=50.0)
    step(state, Tick(), 60.0)
    assert not state.ending.promotes
    out = finish(state, 0, 2)
    assert [trial.state for trial in state.ledger.trials] == ["complete", "pruned"]
    assert of_type(out, ins.Finish) == [ins.Finish(reason="its time of 50 s is spent")]


def test_when_patience_is_spent_without_a_result_the_best_paused_trial_goes_on_as_the_last():
    state, _ = with_two_paused(n_without_improvement=1)
    fail(state, 0, 2)
    assert not state.ending.promotes
    assert [trial.state for trial in state.ledger.trials] == ["failed", "running"]
    out = finish(state, 0, 3)
    assert state.ledger.trials[1].state is TrialState.COMPLETE
    assert of_type(out, ins.Finish)[0].complete


# ---------------------------------------------------------------- preemption


def preempted(topology=TWO_BLOCKS, **plan):
    """Two trials under way when the signal comes, at 10 s."""
    state, begun = begin(topology, **plan)
    begun += suggest(state, n=1)
    begun += suggest(state, n=2)
    return state, begun, step(state, PREEMPT, 10.0)


def test_a_preemption_pauses_what_runs_and_ends_when_all_have_paused():
    state, begun, out = preempted(num_iterations=9)
    assert [sends_to(out, team) for team in (0, 1)] == [
        [msg.PreemptFold(assignment=0)],
        [msg.PreemptFold(assignment=1)],
    ]
    assert step(state, PREEMPT, 11.0) == []  # a second signal
    out += step(state, LATE, 12.0)
    assert not of_type(out, ins.Finish)
    out += step(state, FromMaster(team=1, message=msg.FoldStopped(assignment=1)), 13.0)
    assert of_type(out, ins.Finish) == [ins.Finish(reason="preempted", complete=False)]
    assert not [m for team in (0, 1) for m in sends_to(out, team) if isinstance(m, msg.FoldRecorded | msg.RunFold)]
    assert {t.state for t in state.ledger.trials} == {TrialState.PREEMPTED}
    _, out = restarted([*begun, *out], TWO_BLOCKS, num_iterations=9)
    assert [m.trial for team in (0, 1) for m in sends_to(out, team)] == [0, 1]


def test_a_preempted_fold_that_comes_to_no_checkpoint_is_stopped_and_then_does_not_count_any_more():
    state, _, _ = preempted(num_iterations=9)
    assert step(state, Tick(), 84.9) == []
    out = step(state, Tick(), 85.0)
    assert [sends_to(out, team) for team in (0, 1)] == [[msg.StopFold(assignment=0)], [msg.StopFold(assignment=1)]]
    step(state, LATE, 90.0)
    assert step(state, Tick(), 99.9) == []
    out = step(state, Tick(), 100.0)
    assert events_of(out) == [ev.AssignmentPreempted(time_s=100.0, assignment=1, reason="preempted")]
    assert of_type(out, ins.Finish) == [ins.Finish(reason="preempted", complete=False, all_stopped=False)]
    assert finish(state, 1, 1) == []  # it is not listened to any more


def test_what_ends_while_it_is_preempted_counts_and_what_fails_then_is_tried_again():
    state, _, _ = preempted(num_iterations=9)
    assert [type(e) for e in events_of(finish(state, 0, 0))] == [ev.AssignmentFinished, ev.TrialCompleted]
    out = fail(state, 1, 1, "killed by signal 10")
    assert [type(e) for e in events_of(out)] == [ev.AssignmentPreempted]
    assert [t.state for t in state.ledger.trials] == [TrialState.COMPLETE, TrialState.PREEMPTED]


def test_a_search_whose_last_trials_end_while_it_is_preempted_is_complete():
    state, _, _ = preempted(num_iterations=2)
    finish(state, 0, 0)
    (end,) = of_type(finish(state, 1, 1), ins.Finish)
    assert end == ins.Finish(reason="all 2 trials are done")


def test_a_preemption_before_the_beginning_begins_nothing_and_resumes_nothing():
    state = opening()
    assert step(state, PREEMPT) == []
    out = step(state, Begin())
    assert out == [ins.Finish(reason="preempted", complete=False)]
    _, begun, _ = preempted(num_iterations=2)
    ledger = Ledger()
    for event in events_of(begun):
        ledger.apply(event)
    state = st.CoordinatorState(SearchPlan(num_iterations=2), TWO_BLOCKS, ledger)
    state.handle(PREEMPT, 1.0)
    out = step(state, Begin())
    assert not of_type(out, Send)
    assert of_type(out, ins.Finish) == [ins.Finish(reason="preempted", complete=False)]


def test_a_preemption_when_nothing_is_left_changes_nothing():
    state = over()
    assert step(state, PREEMPT) == []
    assert not state.ending.preempting


def test_a_walltime_gives_up_on_what_does_not_stop():
    state, _ = with_budget(deadline_s=100.0, end_s=10.0)
    step(state, Suggested(point={"n": 1}), 0.0)
    step(state, Tick(), 90.0)
    step(state, Tick(), 93.0)
    assert step(state, Tick(), 94.9) == []
    assert of_type(step(state, Tick(), 95.0), ins.Finish) == [
        ins.Finish(reason="the walltime is over", complete=False, all_stopped=False)
    ]


# ---------------------------------------------------------------- trials that take too long

LIMITED = {"budget": Budget(trial_timeout_s=10.0)}


def limited(topology):
    """A trial on each block, assigned at 1 s, and a suggestion more where there is one block."""
    state, _ = begin(topology, num_iterations=4, **LIMITED)
    suggest(state, x=0)
    suggest(state, x=1)
    return state


def test_a_trial_that_takes_too_long_fails_and_its_team_is_stopped():
    state = limited(TWO_BLOCKS)
    assert step(state, Tick(), 11.0) == []
    out = step(state, Tick(), 11.1)
    failed = [event for event in events_of(out) if isinstance(event, ev.TrialFailed)]
    assert [(event.trial, event.reason) for event in failed] == [
        (trial, "it took longer than `--trial-timeout`, 10 s") for trial in (0, 1)
    ]
    assert sends_to(out, 0) == [msg.StopFold(assignment=0)]
    assert sends_to(out, 1) == [msg.StopFold(assignment=1)]
    assert step(state, Tick(), 11.6) == []  # said once


def test_a_team_that_comes_back_gets_the_next_trial_and_its_own_time():
    state = limited(ONE_BLOCK)
    step(state, Tick(), 11.1)
    out = step(state, FromMaster(team=0, message=msg.FoldStopped(assignment=0)), 11.2)
    assert [order.trial for order in sends_to(out, 0) if isinstance(order, msg.RunFold)] == [1]
    step(state, FromMaster(team=0, message=msg.FoldStarted(assignment=1, waited_s=None)), 15.0)
    assert not state.blocks.suspects
    out = step(state, Tick(), 21.3)
    # It was heard of in between: its trial is too long, it is not stuck.
    assert of_type(out, ins.GiveUp) == []
    assert [event.trial for event in events_of(out) if isinstance(event, ev.TrialFailed)] == [1]


@pytest.mark.parametrize("answers", [False, True], ids=["a silent team", "a master whose workers are silent"])
def test_a_team_that_does_not_come_back_ends_the_start_and_the_next_trial_is_not_blamed(answers):
    state = limited(ONE_BLOCK)
    done = step(state, Tick(), 11.1)
    if answers:
        done += step(state, FromMaster(team=0, message=msg.FoldStopped(assignment=0)), 11.2)
    assert of_type(step(state, Tick(), 21.0), ins.GiveUp) == []
    (given_up,) = of_type(step(state, Tick(), 21.3), ins.GiveUp)
    assert "Block 1 is stuck" in given_up.reason
    assert "--opt-restore" in given_up.reason
    states = [trial.state for trial in state.ledger.trials]
    assert states == [TrialState.FAILED, TrialState.RUNNING][: len(states)]
    assert len(states) == 1 + answers


def test_a_result_that_comes_before_the_stop_order_is_too_late_and_shows_that_the_team_is_well():
    state = limited(ONE_BLOCK)
    step(state, Tick(), 11.1)
    finish(state, 0, 0)
    assert not state.blocks.suspects
    assert state.ledger.trials[0].state is TrialState.FAILED


def test_the_other_folds_of_a_trial_that_takes_too_long_are_stopped_too():
    state, _ = begin(TWO_TEAMS, n_fold=2, **LIMITED)
    suggest(state, x=0)
    step(state, FromMaster(team=0, message=msg.FoldStarted(assignment=0, waited_s=None)), 2.0)
    out = step(state, Tick(), 11.1)
    assert [event.reason for event in events_of(out) if isinstance(event, ev.TrialFailed)] == [
        "fold 0: it took longer than `--trial-timeout`, 10 s"
    ]
    assert sends_to(out, 0) == [msg.StopFold(assignment=0)]
    assert sends_to(out, 1) == [msg.StopFold(assignment=1)]


def test_without_a_limit_a_trial_takes_as_long_as_it_takes():
    state, _ = begin(num_iterations=2)
    suggest(state, x=0)
    assert step(state, Tick(), 1e9) == []


# ---------------------------------------------------------------- ranks that die


def died(state, *ranks):
    return step(state, RanksDied(ranks=frozenset(ranks)))


def reformed(state, team, alive, taken, goes_on=-1, trains=True):
    message = msg.TeamReformed(
        alive=alive, world_ranks=alive if trains else [], n_masters=1, taken=taken, goes_on=goes_on
    )
    return step(state, FromMaster(team=team, message=message))


def training(topology, **plan):
    """A search with a trial on every block."""
    started = ev.RunStarted(
        time_s=0.0, unix_s=0.0, n_ranks=topology.world_size, n_blocks=topology.n_blocks, identity={}
    )
    ledger = Ledger()
    ledger.apply(started)
    state, first = begin(topology, ledger, num_iterations=9, **plan)
    seen = [started, *events_of(first)]
    for n in range(topology.n_blocks):
        seen += events_of(suggest(state, n=n))
    return state, seen


THREE_RANKS = Topology.plan(7, 3)


def test_a_fold_goes_on_with_the_ranks_that_are_left():
    state, _ = training(THREE_RANKS)
    assert not events_of(died(state, 2))
    done = reformed(state, 0, [1, 3], taken=0, goes_on=0)
    (lost,) = events_of(done)
    assert lost == ev.RanksLost(time_s=1.0, ranks=[2], block=1, team=0, n_alive=2, n_ranks=2, assignment=0, counts=True)
    assert state.blocks.assignment_of_team[0].number == 0
    assert state.ledger.assignments[0].losses == [Loss(0, "rank 2 died")]
    assert state.ledger.sessions[-1].lost_ranks == {1: [2]}
    assert state.ledger.sessions[-1].lost_blocks == []


def test_a_trial_whose_ranks_die_one_after_another_is_given_up_before_they_are_used_up():
    state, _ = training(Topology.plan(9, 8), max_attempts=3)
    epoch = msg.EpochReported(assignment=0, epoch=1, metrics={}, figure_of_merit=0.5, checkpointed=True)
    alive = [*range(1, 9)]
    for dies, is_progress in ((8, False), (7, True), (6, False)):
        if is_progress:
            step(state, FromMaster(team=0, message=epoch))
        died(state, dies)
        alive.remove(dies)
        done = reformed(state, 0, [*alive], taken=0, goes_on=0)
        assert events_of(done)[0].counts
        assert [type(e) for e in events_of(done)] == [ev.RanksLost]
    died(state, 5)
    done = reformed(state, 0, [1, 2, 3, 4], taken=0, goes_on=0)
    _, failed = events_of(done)
    assert failed.reason == "ranks that trained it were lost 3 times in a row (`--max-attempts`), at last: rank 5 died"
    assert sends_to(done, 0) == [msg.StopFold(assignment=0)]
    # What dies until it has stopped is nobody's fault any more, and then the block goes on with something else.
    died(state, 4)
    (lost,) = events_of(reformed(state, 0, [1, 2, 3], taken=0, goes_on=0))
    assert not lost.counts
    suggest(state, n=5)
    done = step(state, FromMaster(team=0, message=msg.FoldStopped(assignment=0)))
    assert [type(e) for e in events_of(done)] == [ev.AssignmentStopped, ev.TrialSuggested, ev.FoldAssigned]


def test_a_rank_that_did_not_train_the_trial_was_not_killed_by_it():
    state, _ = training(THREE_RANKS, max_attempts=2)
    died(state, 2)
    spare = msg.TeamReformed(alive=[1, 3], world_ranks=[1], n_masters=1, taken=0, goes_on=0)
    step(state, FromMaster(team=0, message=spare))
    died(state, 3)
    (lost,) = events_of(reformed(state, 0, [1], taken=0, goes_on=0))
    assert (lost.ranks, lost.counts) == ([3], False)
    assert state.ledger.trials[0].state is TrialState.RUNNING


def test_a_fold_that_does_not_go_on_is_assigned_again_to_what_is_left_of_the_block():
    state, _ = training(THREE_RANKS)
    done = reformed(state, 0, [2, 3], taken=-1)  # the master has died, and the coordinator has not seen it yet
    lost, ended, again = events_of(done)
    assert (lost.ranks, ended.assignment, ended.reason) == ([1], 0, "rank 1 died")
    assert (again.trial, again.fold, again.attempt, again.block, again.n_ranks) == (0, 0, 2, 1, 2)
    assert [type(m) for m in sends_to(done, 0)] == [msg.RunFold]
    assert state.roster.team(0).master_rank == 2


def test_an_order_that_is_on_its_way_to_a_master_that_lives_is_not_lost():
    state, _ = training(THREE_RANKS)
    died(state, 2)
    done = reformed(state, 0, [1, 3], taken=-1)
    assert [type(e) for e in events_of(done)] == [ev.RanksLost]
    assert state.blocks.assignment_of_team[0].number == 0


def test_the_trial_of_a_block_that_is_lost_goes_to_another():
    state, _ = training(THREE_RANKS)
    done = died(state, 1, 2, 3)
    assert [type(e) for e in events_of(done)] == [ev.RanksLost, ev.AssignmentLost]
    assert state.blocks.out == {1}
    done = finish(state, 1, 1)
    again = next(e for e in events_of(done) if isinstance(e, ev.FoldAssigned))
    assert (again.trial, again.attempt, again.block) == (0, 2, 2), "before anything new"


def test_a_block_too_small_to_train_is_spare():
    state, _ = training(THREE_RANKS)
    died(state, 1)
    done = reformed(state, 0, [2, 3], taken=-1, trains=False)
    lost = events_of(done)[0]
    assert (lost.n_alive, lost.n_ranks) == (2, 0)
    assert state.ledger.sessions[-1].lost_blocks == [1]
    assert state.blocks.out == {1}
    assert list(state.assigner.to_resume) == [0]


def test_the_search_gives_up_when_no_block_is_left():
    state, _ = training(THREE_RANKS)
    assert not of_type(died(state, 1, 2, 3), ins.GiveUp)
    (give_up,) = of_type(died(state, 1, 2, 3, 4, 5, 6), ins.GiveUp)
    assert "--opt-restore" in give_up.reason


def test_a_team_that_is_broken_is_given_nothing():
    state, _ = training(THREE_RANKS)
    died(state, 2)
    done = finish(state, 0, 0)  # sent before its master heard of the death
    assert state.ledger.trials[0].state is TrialState.COMPLETE
    assert not [m for m in sends_to(done, 0) if isinstance(m, msg.RunFold)]
    suggest(state, n=7)
    assert state.blocks.out == {1}
    done = reformed(state, 0, [1, 3], taken=0)
    assert [type(m) for m in sends_to(done, 0)] == [msg.RunFold]


def test_a_late_message_of_a_dead_master_is_dropped():
    state, _ = training(THREE_RANKS)
    reformed(state, 0, [2, 3], taken=-1)
    assert not events_of(finish(state, 0, 0))


def test_folds_that_finished_when_nobody_could_write_it_down_are_not_trained_again():
    _, seen = training(THREE_RANKS)
    ledger = Ledger()
    for event in seen:
        ledger.apply(event)
    result = FoldResult(figure_of_merit=0.2, metrics={"loss": 0.2}, n_epochs=3, train_s=1.0)
    kept = UnrecordedFold(assignment=0, trial=0, fold=0, attempt=1, point={"n": 0}, result=result, reason="done")
    of_another_run = replace(kept, assignment=1, trial=1, point={"n": 77})
    state = st.CoordinatorState(SearchPlan(num_iterations=9), THREE_RANKS, ledger)
    done = step(state, Begin(finished=(kept, of_another_run)))
    finished, lost, completed, again = events_of(done)[:4]
    assert (finished.assignment, finished.figure_of_merit, finished.reason) == (0, 0.2, "done")
    assert (lost.assignment, lost.reason) == (1, "the run was ended")
    assert (completed.trial, completed.figure_of_merit) == (0, 0.2)
    assert (again.trial, again.attempt) == (1, 2)
