import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.instructions import (
    Begin,
    Drain,
    Enqueue,
    FromMaster,
    Preempt,
    RanksDied,
    StopTrial,
    Tick,
)
from nnlo_opt.core.search.base import Suggestion
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.objectives import Objective
from tests.helpers.starts import LATE, PHASES, PREEMPT, TWO_BLOCKS, TWO_TEAMS, begin, draining, restarted, with_trials
from tests.helpers.steps import check, events_of, fail, finish, from_master, of_type, sends_to, step, suggest, unchanged

# ---------------------------------------------------------------- phases

#: the events that a phase takes, and the phase to which some of them lead (with no suggestion owed)
TO_OPEN = {Begin, Preempt, Enqueue}
ONCE_OPEN = {Suggestion, FromMaster, RanksDied, Tick, Preempt, Enqueue, StopTrial, Drain}
LEADS_TO = {
    (Phase.OPENING, Begin): Phase.SEARCHING,
    (Phase.SEARCHING, Preempt): Phase.OVER,
    (Phase.SEARCHING, Drain): Phase.OVER,
}
REQUESTS = [Enqueue(point={"n": 9}), StopTrial(trial=0, reason="by hand"), Drain(reason="by hand")]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "event",
    [Begin(), Suggestion(point={"n": 9}), LATE, Tick(), PREEMPT, RanksDied(ranks=frozenset({2})), *REQUESTS],
    ids=lambda event: type(event).__name__,
)
def test_every_phase_takes_its_events_and_any_other_raises_and_changes_nothing(phase, event):
    state = PHASES[phase]()
    assert state.phase is phase
    state.suggestions.asked = isinstance(event, Suggestion)
    if type(event) in (TO_OPEN if phase is Phase.OPENING else ONCE_OPEN):
        state.handle(event, 2.0)
        assert state.phase is LEADS_TO.get((phase, type(event)), phase)
        return
    sentence = f"{type(event).__name__} may not come .* {phase.name}"
    with unchanged(state, apart_from=()), pytest.raises(ProtocolError, match=sentence):
        state.handle(event, 2.0)


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (Suggestion(point={"n": 1}), "nobody asked for"),
        (FromMaster(team=0, message=msg.Fence(assignment=0)), "A master does not send Fence"),
    ],
)
def test_an_unasked_suggestion_or_a_foreign_message_raises_and_changes_nothing(event, sentence):
    state = draining()
    assert not state.suggestions.asked
    with unchanged(state), pytest.raises(ProtocolError, match=sentence):
        state.handle(event, 2.0)


# ---------------------------------------------------------------- one trial


def test_a_fresh_search_asks_first_and_assigns_nothing():
    _, out = begin()
    assert out == [ins.Ask(number=0)]


def test_a_suggested_trial_is_written_before_it_is_sent_and_the_next_is_asked_for():
    state, _ = begin()
    out = step(state, Suggestion(point={"n": 4}, wall_s=0.5, cpu_s=0.25), now_s=7.0)
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
    state = with_trials(1, num_iterations=5)
    out = suggest(state, n=1)
    assert [type(i) for i in out] == [ins.Tell]
    assert len(state.suggestions.ready) == 1
    out = finish(state, 0, 0)
    order = msg.RunFold(assignment=1, trial=1, fold=0, attempt=1, point={"n": 1})
    assert sends_to(out, 0) == [msg.FoldRecorded(assignment=0), order]
    assert of_type(out, ins.Ask) == [ins.Ask(number=2)]


def test_news_of_a_training_is_written_without_waiting_for_the_disk():
    state = draining()
    out = from_master(state, 0, msg.FoldStarted(assignment=0, epoch=2, waited_s=0.5), 3.0)
    assert out == [ins.Append(events=(ev.FoldBegan(time_s=3.0, assignment=0, epoch=2, waited_s=0.5),), durable=False)]
    reported = msg.EpochReported(assignment=0, epoch=3, metrics={"loss": 1.0}, checkpointed=True)
    out = from_master(state, 0, reported, 4.0)
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
        ins.FinishRun(reason="all trials are done"),
    ]
    assert state.phase is Phase.OVER


def test_a_failed_trial_counts_as_an_iteration_and_the_search_continues():
    state = with_trials(2, num_iterations=2)
    known = {"assignment": 0, "reason": "NaN", "traceback": "Traceback", "world_rank": 2, "host": "node1"}
    out = from_master(state, 0, msg.FoldFailed(**known), 5.0)
    failed = ev.TrialFailed(time_s=5.0, trial=0, reason="NaN")
    assert events_of(out)[:2] == [ev.AssignmentFailed(time_s=5.0, **known), failed]
    assert of_type(out, ins.Tell) == [ins.Tell(trial=0, point={"n": 0}, state="failed")]
    assert sends_to(out, 0)[-1].trial == 1
    out = finish(state, 0, 1)
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="all trials are done")]


def test_a_fold_that_stopped_by_itself_is_assigned_again_as_the_next_attempt():
    out = from_master(draining(), 0, msg.FoldStopped(assignment=0))
    order = msg.RunFold(assignment=1, trial=0, fold=0, attempt=2, point={"n": 1})
    assert sends_to(out, 0) == [msg.FoldRecorded(assignment=0), order]


def test_where_jobs_share_the_run_an_order_names_its_term_and_the_attempts_before_it():
    state = draining()
    state.ledger.apply(ev.TermBegan(time_s=1.0, term=4, job=2))
    out = from_master(state, 0, msg.FoldStopped(assignment=0))
    order = msg.RunFold(assignment=1, trial=0, fold=0, attempt=2, point={"n": 1}, term=4, before=[(0, 0)])
    assert sends_to(out, 0)[1:] == [order]
    assert state.ledger.assignments[1].identity == (4, 1)


def test_every_idle_block_gets_a_trial_and_a_failure_touches_no_other_block():
    state = with_trials(3, TWO_BLOCKS, num_iterations=4)
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
    state = with_trials(2, num_iterations=3)
    assert sends_to(finish(state, 0, 0), 0)[-1].assignment == 1
    with unchanged(state):
        assert from_master(state, 0, message.replaced(assignment=assignment)) == []


def test_a_message_about_the_assignment_of_another_team_changes_nothing():
    state = with_trials(2, TWO_BLOCKS)
    assert events_of(fail(state, 1, 0)) == []
    assert state.ledger.trials[0].state == "running"


def test_a_result_or_a_suggestion_after_the_end_is_dropped():
    state = with_trials(1, num_iterations=9, target_objective=1.0)
    assert state.suggestions.asked
    finish(state, 0, 0, figure=0.5)
    assert state.phase is Phase.OVER
    assert fail(state, 0, 0) == []
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


def two_folds(num_iterations=2):
    """A trial with a fold on each team of the only block, and a suggestion more if another trial may follow."""
    state, _ = begin(TWO_TEAMS, num_iterations=num_iterations, n_fold=2)
    out = suggest(state, n=0)
    if num_iterations > 1:
        suggest(state, n=1)
    return state, out


def test_folds_run_at_once_on_the_teams_of_a_block_and_an_idle_team_waits():
    state, out = two_folds()
    assert [m.fold for m in sends_to(out, 0) + sends_to(out, 1)] == [0, 1]
    out = finish(state, 1, 1)
    assert sends_to(out, 1) == [msg.FoldRecorded(assignment=1)]
    out = finish(state, 0, 0)
    assert [m.trial for m in (sends_to(out, 0)[-1], sends_to(out, 1)[-1])] == [1, 1]


def test_a_failed_fold_stops_the_other_folds_and_their_results_are_not_needed():
    state, _ = two_folds()
    out = fail(state, 0, 0)
    assert [e.reason for e in events_of(out, ev.TrialFailed)] == ["fold 0: no memory"]
    assert sends_to(out, 1) == [msg.StopFold(assignment=1)]
    assert state.membership.trial_of_block == {1: 0}  # the block is not free before its other team is
    # The other fold had finished before the order to stop could reach it.
    out = finish(state, 1, 1)
    assert isinstance(events_of(out)[0], ev.AssignmentStopped)
    assert state.ledger.trials[0].state == "failed"
    assert state.ledger.trials[0].figure_of_merit is None
    assert state.membership.trial_of_block == {1: 1}


def test_two_folds_that_fail_make_one_failed_trial():
    state, _ = two_folds(num_iterations=1)
    first, second = fail(state, 0, 0, "first"), fail(state, 1, 1, "second")
    assert len(events_of(first + second, ev.TrialFailed)) == 1
    assert state.ledger.trials[0].reason == "fold 0: first"
    assert of_type(second, ins.FinishRun)


# ---------------------------------------------------------------- ends


def test_a_target_is_reached_only_by_a_better_figure_and_running_trials_end():
    state = with_trials(3, TWO_BLOCKS, num_iterations=9, target_objective=0.5)
    finish(state, 0, 0, figure=0.5)
    assert state.phase is Phase.SEARCHING
    suggest(state, n=3)
    out = finish(state, 1, 1, figure=0.25)
    assert not state.suggestions.ready
    assert state.phase is Phase.DRAINING
    assert not of_type(out, ins.FinishRun)
    assert sends_to(out, 1) == [msg.FoldRecorded(assignment=1)]
    out = finish(state, 0, 2, figure=0.9)
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="the target of 0.5 is reached: trial 1 has 0.25")]
    assert len(state.ledger.trials) == 3


def test_a_space_that_is_used_up_ends_the_search_when_its_last_trial_has_ended():
    state = with_trials(2, num_iterations=9)
    finish(state, 0, 0)
    suggest(state)
    assert state.phase is Phase.DRAINING
    out = finish(state, 0, 1)
    (end,) = of_type(out, ins.FinishRun)
    assert end == ins.FinishRun(reason="the search has no new point: all its 2 points have been tried")


def test_a_space_that_is_used_up_while_a_suggestion_is_held_still_tries_it():
    state = with_trials(1, num_iterations=9)
    state.suggestions.asked = True  # as with a search that is asked further ahead
    suggest(state, n=1)
    state.suggestions.asked = True
    assert not of_type(suggest(state), ins.FinishRun)
    out = finish(state, 0, 0)
    assert sends_to(out, 0)[-1].trial == 1
    assert of_type(finish(state, 0, 1), ins.FinishRun)


# ---------------------------------------------------------------- requests of users


def test_a_point_of_a_user_is_proposed_and_asked_for_though_the_search_had_none_left():
    state = with_trials(1, num_iterations=9)
    suggest(state)
    assert state.suggestions.exhausted
    state.ending.phase = Phase.SEARCHING  # as with a suggestion held that is not begun yet
    out = step(state, Enqueue(point={"n": 7}))
    assert [type(instruction) for instruction in out] == [ins.Propose, ins.Ask]


@pytest.mark.parametrize(("reports", "kind"), [((), ev.TrialFailed), ((0.5, 0.25), ev.TrialPruned)])
def test_a_trial_stopped_by_a_user_is_pruned_or_failed_and_its_block_takes_the_next(reports, kind):
    state = with_trials(2, num_iterations=9)
    for epoch, figure in enumerate(reports, 1):
        report = {"epoch": epoch, "metrics": {}, "figure_of_merit": figure}
        from_master(state, 0, msg.EpochReported(assignment=0, **report))
    out = step(state, StopTrial(trial=0, reason="by hand"))
    (end,) = events_of(out)
    assert (type(end), end.reason) == (kind, "by hand")
    assert state.ledger.trials[0].figure_so_far == (reports[-1] if reports else None)
    assert sends_to(out, 0) == [msg.StopFold(assignment=0)]
    assert not step(state, StopTrial(trial=0, reason="again"))
    assert not step(state, StopTrial(trial=7, reason="there is none"))
    out = finish(state, 0, 0)
    assert events_of(out, ev.AssignmentStopped)
    assert sends_to(out, 0)[-1].trial == 1


def test_a_trial_that_waits_for_a_block_after_a_restart_can_be_stopped():
    before, out = begin(TWO_BLOCKS)
    out += suggest(before, n=0) + suggest(before, n=1)
    state, _ = restarted(out, num_iterations=9)
    assert list(state.to_resume) == [1]
    step(state, StopTrial(trial=1, reason="by hand"))
    assert not state.to_resume
    assert state.ledger.trials[1].state == "failed"


def test_a_search_that_a_user_stops_ends_after_its_trials_and_is_not_complete():
    state = with_trials(2, num_iterations=9)
    assert not of_type(step(state, Drain(reason="by hand")), ins.FinishRun)
    out = finish(state, 0, 0)
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="by hand", complete=False)]
    assert len(state.ledger.trials) == 1


# ---------------------------------------------------------------- scripts that are killed


def killed(state, team, assignment):
    return from_master(state, team, msg.FoldFailed(assignment=assignment, reason="by SIGKILL", by_chance=True))


def test_a_fold_that_failed_by_chance_is_tried_again_until_its_attempts_are_used_up():
    state, out = begin(num_iterations=1, max_attempts=2)
    out += suggest(state, n=0)
    lost, again = events_of(done := killed(state, 0, 0))
    assert lost == ev.AssignmentLost(time_s=1.0, assignment=0, reason="by SIGKILL", counts=True, of_script=True)
    assert (again.assignment, again.attempt) == (1, 2)
    assert sends_to(done, 0)[0] == msg.FoldRecorded(assignment=0)
    _, failed = events_of(killed(state, 0, 1), ev.AssignmentLost | ev.TrialFailed)
    reason = "its script was lost 2 times in a row (`--max-attempts`); the last time: by SIGKILL"
    assert failed == ev.TrialFailed(time_s=1.0, trial=0, reason=reason)


def test_a_restart_counts_the_attempts_that_were_lost_by_chance():
    state, out = begin(num_iterations=1, max_attempts=2)
    out += suggest(state, n=0) + killed(state, 0, 0)
    state, out = restarted(out, num_iterations=1, max_attempts=2)
    assert isinstance(events_of(killed(state, 0, state.ledger.assignments[-1].number))[1], ev.TrialFailed)


def test_what_is_killed_once_its_trial_has_ended_counts_for_nothing():
    state, _ = begin(num_iterations=2)
    suggest(state, n=0)
    step(state, ins.StopTrial(trial=0, reason="by hand"))
    (lost,) = events_of(killed(state, 0, 0), ev.AssignmentLost)
    assert not lost.counts
    assert state.ledger.trials[0].reason == "by hand"


# ---------------------------------------------------------------- restarts


def one_of_two(**plan):
    """Two trials on two blocks, of which the first is complete: all that was decided so far."""
    state, out = begin(TWO_BLOCKS, **plan)
    return out + suggest(state, n=0) + suggest(state, n=1) + finish(state, 0, 0, figure=0.25)


def test_a_restart_loses_the_assignments_under_way_and_gives_their_trials_first():
    _, out = restarted(one_of_two(), TWO_BLOCKS)
    assert [type(event) for event in events_of(out)] == [ev.AssignmentLost, ev.FoldAssigned]
    assert of_type(out, ins.Tell) == [
        ins.Tell(trial=0, point={"n": 0}, state="complete", value=0.25),
        ins.Tell(trial=1, point={"n": 1}, state="pending"),
    ]
    assert sends_to(out, 0) == [msg.RunFold(assignment=2, trial=1, fold=0, attempt=2, point={"n": 1})]
    assert of_type(out, ins.Ask) == [ins.Ask(number=2)]


@pytest.mark.parametrize("end", [finish, fail])
def test_a_restart_ends_a_trial_whose_end_was_written_by_half(end):
    state, out = begin(num_iterations=1)
    *events, last = events_of(out + suggest(state, n=0) + end(state, 0, 0))
    assert isinstance(last, ev.TrialCompleted if end is finish else ev.TrialFailed)
    _, out = restarted([ins.Append(events=tuple(events))], num_iterations=1)
    assert events_of(out) == [last]
    assert sends_to(out, 0) == []
    assert of_type(out, ins.FinishRun)


def test_a_restart_runs_only_the_folds_that_are_not_finished_on_whatever_blocks_there_are():
    state, out = begin(TWO_TEAMS, num_iterations=1, n_fold=2)
    so_far = out + suggest(state, n=0) + finish(state, 1, 1, figure=3.0)
    state, out = restarted(so_far, num_iterations=1, n_fold=2)
    assert sends_to(out, 0) == [msg.RunFold(assignment=2, trial=0, fold=0, attempt=2, point={"n": 0})]
    finish(state, 0, 2, figure=1.0)
    assert state.ledger.trials[0].figure_of_merit == 2.0


def test_a_restart_of_a_finished_search_has_nothing_to_do_unless_it_is_longer():
    state, out = begin(num_iterations=1)
    so_far = out + suggest(state, n=0) + finish(state, 0, 0)
    _, out = restarted(so_far, num_iterations=1)
    assert [type(i) for i in out] == [ins.Tell, ins.FinishRun]
    _, out = restarted(so_far, num_iterations=2)
    assert of_type(out, ins.Ask) == [ins.Ask(number=1)]


def test_a_restart_after_the_target_ends_running_trials_and_begins_none():
    state, out = restarted(one_of_two(num_iterations=9), TWO_BLOCKS, num_iterations=9, target_objective=0.5)
    assert not of_type(out, ins.Ask)
    assert sends_to(out, 0)[0].trial == 1
    out = finish(state, 0, 2)
    assert "target of 0.5" in of_type(out, ins.FinishRun)[0].reason


# ---------------------------------------------------------------- check


@pytest.mark.parametrize(
    ("breaks", "sentence"),
    [
        (lambda state: state.membership.assignment_of_team.pop(0), "differ"),
        (lambda state: state.membership.trial_of_block.update({1: 7}), "does not hold"),
        (lambda state: state.membership.place(0, 1.0), "two blocks hold the same trial"),
        (lambda state: state.membership.out.add(1), "is not one of"),
        (lambda state: state.membership.died([3, 4]), "idle that cannot train"),
        (lambda state: state.membership.died([1, 2]), "a team runs that cannot train"),
        (lambda state: state.suggestions.ready.extend([Suggestion(point={"n": 2})] * 3), "more suggestions"),
    ],
)
def test_the_check_of_these_tests_finds_what_must_never_be(breaks, sentence):
    state = with_trials(1, TWO_BLOCKS)
    breaks(state)
    with pytest.raises(AssertionError, match=sentence):
        check(state)


# ---------------------------------------------------------------- several objectives


def test_several_objectives_are_averaged_over_the_folds_and_told_as_losses():
    state, _ = begin(TWO_TEAMS, objectives=(Objective("val_loss"), Objective("val_acc", "max")), n_fold=2)
    suggest(state, n=1)
    for number, (val_loss, val_acc) in enumerate([(1.0, 0.5), (3.0, 0.75)]):
        out = finish(state, number, number, val_loss, objectives={"val_loss": val_loss, "val_acc": val_acc})
    (ended,) = events_of(out, ev.TrialCompleted)
    assert (ended.figure_of_merit, ended.figure_of_merit_std) == (2.0, 1.0)
    assert ended.objectives == {"val_loss": 2.0, "val_acc": 0.625}
    assert ended.objectives_std == {"val_loss": 1.0, "val_acc": 0.125}
    told = of_type(out, ins.Tell)[0]
    assert (told.value, told.losses) == (2.0, (2.0, -0.625))


# ---------------------------------------------------------------- folds that race


@pytest.mark.parametrize(("direction", "sign"), [("min", 1), ("max", -1)])
def test_a_trial_whose_first_folds_are_hopeless_is_pruned_and_its_block_takes_the_next(direction, sign):
    state, _ = begin(n_fold=3, fold_racing=True, direction=direction)
    for trial, figures in enumerate([(0.1, 0.2, 0.3), (0.5, 0.601)]):
        suggest(state, n=trial)
        for figure in figures:
            (assignment,) = state.membership.assignment_of_team.values()
            assert assignment.trial == trial
            out = finish(state, 0, assignment.number, sign * figure)
    trial = state.ledger.trials[1]
    assert trial.state == "pruned"
    assert trial.figure_so_far == pytest.approx(sign * 0.5505)
    worse = f"after 2 of 3 folds its mean {sign * 0.5505} is worse than the {sign * 0.15} of trial 0"
    assert worse in trial.reason
    told = next(i for i in of_type(out, ins.Tell) if i.trial == 1)
    assert (told.state, told.value) == ("pruned", trial.figure_so_far)
    assert not state.membership.trial_of_block
