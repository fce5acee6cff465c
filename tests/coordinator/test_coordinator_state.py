import copy

import pytest
from state_steps import (
    LATE,
    ONE_BLOCK,
    PREEMPT,
    TWO_BLOCKS,
    TWO_TEAMS,
    all_of,
    begin,
    draining,
    events_of,
    fail,
    finish,
    of_type,
    opening,
    over,
    restarted,
    searching,
    sends_to,
    step,
    suggest,
)

from nnlo_opt.comm import messages as msg
from nnlo_opt.coordinator import instructions as ins
from nnlo_opt.coordinator import state as st
from nnlo_opt.coordinator.ending import Phase
from nnlo_opt.coordinator.instructions import Begin, FromMaster, Preempt, RanksDied, SearchPlan, Suggested, Tick
from nnlo_opt.errors import ProtocolError
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.objectives import Objective

# ---------------------------------------------------------------- phases

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


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "event",
    [Begin(), Suggested(point={"n": 9}), LATE, Tick(), PREEMPT, RanksDied(ranks=frozenset({2}))],
    ids=lambda event: type(event).__name__,
)
def test_every_phase_takes_its_events_and_any_other_raises_and_changes_nothing(phase, event):
    state = PHASES[phase]()
    assert state.phase is phase
    state.suggestions.asked = isinstance(event, Suggested)
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
    assert not state.suggestions.asked
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
    assert len(state.suggestions.ready) == 1
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
        ins.Finish(reason="all trials are done"),
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
    assert of_type(out, ins.Finish) == [ins.Finish(reason="all trials are done")]


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
    assert state.membership.trial_of_block == {1: 0, 2: 1}
    fail(state, 1, 1)
    assert state.membership.trial_of_block == {1: 0, 2: 2}
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
    assert step(state, FromMaster(team=0, message=message.replaced(assignment=assignment))) == []
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
    assert state.suggestions.asked
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
    assert state.membership.trial_of_block == {1: 0}  # the block is not free before its other team is
    # The other fold had finished before the order to stop could reach it.
    out = finish(state, 1, 1)
    assert isinstance(events_of(out)[0], ev.AssignmentStopped)
    assert state.ledger.trials[0].state == "failed"
    assert state.ledger.trials[0].figure_of_merit is None
    assert state.membership.trial_of_block == {1: 1}


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
    assert not state.suggestions.ready
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
    state.suggestions.asked = True  # as with a search that is asked further ahead
    suggest(state, n=1)
    state.suggestions.asked = True
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
    del broken.membership.assignment_of_team[0]
    with pytest.raises(ProtocolError, match="differ"):
        broken.check()
    broken = copy.deepcopy(state)
    broken.membership.trial_of_block[1] = 7
    with pytest.raises(ProtocolError, match="does not hold"):
        broken.check()
    broken = copy.deepcopy(state)
    broken.suggestions.ready.extend([Suggested(point={"n": 2})] * 2)
    with pytest.raises(ProtocolError, match="More suggestions"):
        broken.check()
    broken = copy.deepcopy(state)
    broken.membership.trial_of_block = {1: 0, 2: 0}
    broken.membership.assignment_of_team.clear()
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


# ---------------------------------------------------------------- folds that race


def test_a_trial_whose_first_folds_are_hopeless_is_pruned_and_its_block_takes_the_next():
    plan = SearchPlan(num_iterations=3, n_fold=3, fold_racing=True)
    state = st.CoordinatorState(plan, ONE_BLOCK, Ledger())
    state.handle(Begin(), 1.0)
    out = []
    for trial, figures in enumerate([(0.1, 0.2, 0.3), (0.5, 0.601)]):
        out = state.handle(Suggested(point={"n": trial}), 2.0)
        for figure in figures:
            (assignment,) = state.membership.assignment_of_team.values()
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
    assert not state.membership.trial_of_block
