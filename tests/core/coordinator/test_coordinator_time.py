"""Budgets of time and progress, preemption, and trials that take too long."""

from dataclasses import replace

import pytest

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.instructions import Begin, Budget, Send, Tick
from nnlo_opt.core.search.base import Suggestion
from nnlo_opt.core.search.pruning import PruningPlan
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import TrialState
from tests.helpers.starts import PREEMPT, TWO_BLOCKS, TWO_TEAMS, begin, not_begun, over, restarted, session, with_budget
from tests.helpers.steps import events_of, fail, finish, from_master, of_type, sends_to, step, stop, suggest, unchanged

# ---------------------------------------------------------------- budgets


def test_a_tick_changes_nothing_while_there_is_time():
    state, _ = with_budget(timeout_s=100.0, deadline_s=100.0, end_s=10.0)
    suggest(state, n=1)
    with unchanged(state):
        assert step(state, Tick(), 5.0) == []


def test_a_timeout_ends_the_search_when_what_runs_has_ended():
    state, _ = with_budget(timeout_s=10.0)
    suggest(state, n=1)
    assert step(state, Tick(), 9.9) == []
    step(state, Tick(), 10.0)
    assert state.phase is Phase.DRAINING
    out = finish(state, 0, 0)
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="`--timeout` of 10 s is reached")]
    assert not of_type(out, Send)[1:]  # the trial is recorded, and no other begins


def test_a_search_whose_time_is_spent_continues_with_more_time():
    state, out = with_budget(timeout_s=10.0)
    out += suggest(state, n=1)
    step(state, Tick(), 10.0)
    out += finish(state, 0, 0)
    for timeout_s, phase in ((10.0, Phase.OVER), (20.0, Phase.SEARCHING)):
        # Ten seconds of the first start are spent, or one by its last event.
        ledger = Ledger([session(), *events_of(out), session(50.0)])
        ledger.sessions[0].last_at_s = 10.0
        again = not_begun(ledger=ledger, num_iterations=9, budget=Budget(timeout_s=timeout_s))
        step(again, Begin(), 50.0)
        assert again.phase is phase


def test_no_trial_begins_that_would_not_end_before_the_walltime():
    state, _ = with_budget(deadline_s=100.0, end_s=10.0)
    suggest(state, 0.0, n=1)
    suggest(state, 0.0, n=2)
    out = finish(state, 0, 0, now_s=40.0)  # trials last 40 s: another may begin, up to 50 s
    assert [type(m) for m in sends_to(out, 0)] == [msg.FoldRecorded, msg.RunFold]
    suggest(state, 41.0, n=3)
    assert step(state, Tick(), 50.0) == []
    step(state, Tick(), 50.1)
    assert state.phase is Phase.DRAINING
    assert state.ending.promotes
    out = finish(state, 0, 1, now_s=80.0)
    (end,) = of_type(out, ins.FinishRun)
    assert end == ins.FinishRun(reason="the walltime leaves no time for another trial", complete=False)


def test_what_still_runs_near_the_end_of_the_walltime_stops_and_keeps_its_checkpoints():
    state, begun = with_budget(deadline_s=100.0, end_s=10.0)
    begun += suggest(state, 0.0, n=1)
    assert step(state, Tick(), 89.9) == []
    out = step(state, Tick(), 90.0)
    assert sends_to(out, 0) == [msg.PreemptFold(assignment=0)]
    assert step(state, Tick(), 90.5) == []  # once
    assert sends_to(step(state, Tick(), 92.5), 0) == [msg.StopFold(assignment=0)]  # no checkpoint by then
    out = stop(state, 0, 0, 93.0)
    assert events_of(out) == [ev.AssignmentPreempted(time_s=93.0, assignment=0, reason="the walltime is over")]
    assert not of_type(out, Send)  # its master is not told that it may remove the checkpoints
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="the walltime is over", complete=False)]
    assert state.ledger.trials[0].state is TrialState.PREEMPTED
    # The next start goes on with it, before anything new.
    again, out = restarted([*begun, *out], num_iterations=9)
    assert [(m.trial, m.attempt) for m in sends_to(out, 0)] == [(0, 2)]
    assert again.ledger.trials[0].state is TrialState.RUNNING


def test_a_complete_search_is_complete_however_little_time_there_is():
    state, out = begin(num_iterations=1)
    out += suggest(state, n=1) + finish(state, 0, 0)
    budget = Budget(deadline_s=0.1, timeout_s=0.1)
    _, out = begin(ledger=Ledger([session(), *events_of(out)]), num_iterations=1, budget=budget)
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="all trials are done")]


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
    assert state.ending.reason == "no improvement in the last 2 trials"


def test_a_search_whose_trials_all_fail_for_the_same_reason_stops_and_can_be_resumed():
    state, out = with_budget(n_alike_failures=2)
    for number in range(2):
        out += suggest(state, n=number) + fail(state, 0, number, f"n = {number} is bad")
    reason = "2 trials failed for the same reason, and none succeeded (`--max-failures`)"
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason=reason)]
    again, out = begin(ledger=state.ledger, num_iterations=9, budget=state.plan.budget)
    out += suggest(again, n=2) + fail(again, 0, 2, "n = 2 is bad")
    assert not of_type(out, ins.FinishRun), "this start has as many failures again"
    suggest(again, n=3)
    finish(again, 0, 3)
    for number in range(4, 8):
        suggest(again, n=number)
        fail(again, 0, number, "bad")
    assert again.phase is Phase.SEARCHING


@pytest.mark.parametrize("reasons", [("bad", "worse", "bad"), ("bad", "bad")])
def test_running_trials_may_succeed_when_earlier_trials_have_failed(reasons):
    """On two blocks: the trial of the first is under way all the time."""
    state, _ = begin(TWO_BLOCKS, Ledger([session()]), num_iterations=9, budget=Budget(n_alike_failures=2))
    suggest(state, n=0)
    for number, reason in enumerate(reasons, 1):
        suggest(state, n=number)
        fail(state, 1, number, reason)
    suggest(state, n=7)
    holds = len(set(reasons)) == 1
    assert (len(state.ledger.trials) == 1 + len(reasons)) == holds
    from_master(state, 0, msg.EpochReported(assignment=0, epoch=1, metrics={}, figure_of_merit=0.5))
    assert len(state.ledger.trials) == 2 + len(reasons), "a trial that trains is a sign of success"
    finish(state, 0, 0)
    assert state.phase is Phase.SEARCHING


def test_a_restored_search_counts_the_trials_of_before():
    state, out = begin(num_iterations=9)
    for number, figure in enumerate([0.5, 0.6, 0.7]):
        out += suggest(state, n=number) + finish(state, 0, number, figure)
    for most, phase in ((2, Phase.OVER), (3, Phase.SEARCHING)):
        again, _ = restarted(out, num_iterations=9, budget=Budget(n_without_improvement=most))
        assert again.phase is phase


# ---------------------------------------------------------------- paused trials and budgets

ASHA = PruningPlan(name="asha", eta=2, max_epochs=2)


def with_two_paused(**budget):
    """Two trials of figures 0.5 and 0.6 that came to the rung of epoch 1, of which the first is promoted and runs."""
    state, out = begin(ledger=Ledger([session()]), pruning=ASHA, budget=Budget(**budget))
    for trial, figure in enumerate([0.5, 0.6]):
        out += suggest(state, n=trial)
        reported = report(state, trial, figure)
        assert sends_to(reported, 0) == [msg.PauseFold(assignment=trial)]
        out += reported + from_master(state, 0, msg.FoldPaused(assignment=trial, epoch=1))
    assert [trial.state for trial in state.ledger.trials] == ["running", "paused"]
    assert of_type(out, Send)[-1].message.trial == 0
    return state, out


def report(state, assignment, figure, now_s=1.0, epoch=1, **more):
    what = {"epoch": epoch, "metrics": {}, "figure_of_merit": figure, "checkpointed": True, "waits": True, **more}
    return from_master(state, 0, msg.EpochReported(assignment=assignment, **what), now_s)


def test_a_trial_that_has_saved_nothing_is_not_paused_and_that_is_said_once(caplog):
    state, _ = begin(ledger=Ledger([session()]), pruning=replace(ASHA, max_epochs=4))
    suggest(state, n=0)
    for epoch in (1, 2):
        assert sends_to(report(state, 0, 0.5, epoch=epoch, can_pause=False), 0) == [msg.GoOn(assignment=0)]
    assert caplog.messages == ["trial 0 has saved no checkpoint, and continues past its rung"]


def test_a_promotion_is_on_the_disk_before_the_master_is_told_though_news_needs_no_sync():
    state, _ = begin(ledger=Ledger([session()]), pruning=ASHA)
    suggest(state, n=0)
    report(state, 0, 0.5)
    from_master(state, 0, msg.FoldPaused(assignment=0, epoch=1))
    suggest(state, n=1)
    written, *others = report(state, 1, 0.4)
    assert [type(event).__name__ for event in written.events] == ["EpochEnded", "TrialPromoted"]
    assert written.durable
    assert sends_to(others, 0) == [msg.GoOn(assignment=1)]


def test_paused_trials_stay_paused_at_the_end_of_the_walltime_and_continue_later():
    state, out = with_two_paused(deadline_s=100.0, end_s=10.0)
    stopping = step(state, Tick(), 90.0)
    assert sends_to(stopping, 0) == [msg.PreemptFold(assignment=2)]
    ended = stop(state, 0, 2, 91.0)
    assert of_type(ended, ins.FinishRun) == [ins.FinishRun(reason="the walltime is over", complete=False)]
    assert state.ledger.n_by_state() | {"preempted": 1, "paused": 1} == state.ledger.n_by_state()
    again, out = restarted([*out, *stopping, *ended], num_iterations=2, pruning=ASHA)
    assert [(m.trial, m.attempt) for m in sends_to(out, 0)] == [(0, 2)]
    assert again.ledger.trials[1].state is TrialState.PAUSED
    finish(again, 0, 3, 0.4)
    assert again.phase is Phase.OVER
    assert again.ledger.trials[1].reason.startswith("not promoted")


def test_a_master_that_asks_when_the_time_is_over_is_not_answered_but_stopped():
    state, _ = with_budget(deadline_s=100.0, end_s=10.0, pruning=ASHA)
    suggest(state, n=0)
    assert sends_to(step(state, Tick(), 90.0), 0) == [msg.PreemptFold(assignment=0)]
    assert not of_type(report(state, 0, 0.5, 90.5), Send)
    stop(state, 0, 0, 91.0)
    assert state.phase is Phase.OVER
    assert state.ledger.trials[0].state is TrialState.PAUSED  # it stands at its rung


def test_when_the_time_of_the_search_is_spent_no_paused_trial_is_promoted():
    state, _ = with_two_paused(timeout_s=50.0)
    step(state, Tick(), 60.0)
    assert not state.ending.promotes
    out = finish(state, 0, 2)
    assert [trial.state for trial in state.ledger.trials] == ["complete", "pruned"]
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="`--timeout` of 50 s is reached")]


def test_when_patience_is_spent_the_best_paused_trial_is_the_last_to_continue():
    state, _ = with_two_paused(n_without_improvement=1)
    fail(state, 0, 2)
    assert not state.ending.promotes
    assert [trial.state for trial in state.ledger.trials] == ["failed", "running"]
    out = finish(state, 0, 3)
    assert state.ledger.trials[1].state is TrialState.COMPLETE
    assert of_type(out, ins.FinishRun)[0].complete


# ---------------------------------------------------------------- preemption


def preempted(num_iterations=9):
    """Two trials under way when the signal comes, at 10 s."""
    state, begun = begin(TWO_BLOCKS, num_iterations=num_iterations)
    begun += suggest(state, n=1) + suggest(state, n=2)
    return state, begun, step(state, PREEMPT, 10.0)


def test_a_preemption_pauses_what_runs_and_ends_when_all_have_paused():
    state, begun, out = preempted()
    assert [sends_to(out, team) for team in (0, 1)] == [[msg.PreemptFold(assignment=n)] for n in (0, 1)]
    assert step(state, PREEMPT, 11.0) == []  # a second signal
    out += stop(state, 0, 0, 12.0)
    assert not of_type(out, ins.FinishRun)
    out += stop(state, 1, 1, 13.0)
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="preempted", complete=False)]
    assert not [m for team in (0, 1) for m in sends_to(out, team) if isinstance(m, msg.FoldRecorded | msg.RunFold)]
    assert {t.state for t in state.ledger.trials} == {TrialState.PREEMPTED}
    _, out = restarted([*begun, *out], TWO_BLOCKS, num_iterations=9)
    assert [m.trial for team in (0, 1) for m in sends_to(out, team)] == [0, 1]


def test_a_preempted_fold_without_a_checkpoint_is_stopped_and_not_counted():
    state, _, _ = preempted()
    assert step(state, Tick(), 84.9) == []
    out = step(state, Tick(), 85.0)
    assert [sends_to(out, team) for team in (0, 1)] == [[msg.StopFold(assignment=n)] for n in (0, 1)]
    stop(state, 0, 0, 90.0)
    assert step(state, Tick(), 99.9) == []
    out = step(state, Tick(), 100.0)
    assert events_of(out) == [ev.AssignmentPreempted(time_s=100.0, assignment=1, reason="preempted")]
    assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="preempted", complete=False, all_stopped=False)]
    assert finish(state, 1, 1) == []  # it is not listened to any more


def test_what_ends_while_it_is_preempted_counts_and_what_fails_then_is_tried_again():
    state, _, _ = preempted()
    assert [type(e) for e in events_of(finish(state, 0, 0))] == [ev.AssignmentFinished, ev.TrialCompleted]
    out = fail(state, 1, 1, "killed by signal 10")
    assert [type(e) for e in events_of(out)] == [ev.AssignmentPreempted]
    assert [t.state for t in state.ledger.trials] == [TrialState.COMPLETE, TrialState.PREEMPTED]


def test_a_search_whose_last_trials_end_while_it_is_preempted_is_complete():
    state, _, _ = preempted(num_iterations=2)
    finish(state, 0, 0)
    (end,) = of_type(finish(state, 1, 1), ins.FinishRun)
    assert end == ins.FinishRun(reason="all trials are done")


def test_a_preemption_before_the_beginning_begins_nothing_and_resumes_nothing():
    _, begun, _ = preempted(num_iterations=2)
    for ledger in (Ledger(), Ledger(events_of(begun))):
        state = not_begun(TWO_BLOCKS, ledger, num_iterations=2)
        assert state.handle(PREEMPT, 1.0) == []
        out = step(state, Begin())
        assert not of_type(out, Send)
        assert of_type(out, ins.FinishRun) == [ins.FinishRun(reason="preempted", complete=False)]


def test_a_preemption_when_nothing_is_left_changes_nothing():
    state = over()
    assert step(state, PREEMPT) == []
    assert not state.ending.preempting


def test_a_walltime_gives_up_on_what_does_not_stop():
    state, _ = with_budget(deadline_s=100.0, end_s=10.0)
    suggest(state, 0.0, n=1)
    step(state, Tick(), 90.0)
    step(state, Tick(), 93.0)
    assert step(state, Tick(), 94.9) == []
    (end,) = of_type(step(state, Tick(), 95.0), ins.FinishRun)
    assert end == ins.FinishRun(reason="the walltime is over", complete=False, all_stopped=False)


# ---------------------------------------------------------------- trials that take too long


def limited(**start):
    """A trial on each block, assigned at 1 s, and a suggestion more if there is one block."""
    state, _ = begin(num_iterations=4, budget=Budget(trial_timeout_s=10.0), **start)
    suggest(state, x=0)
    suggest(state, x=1)
    return state


def test_a_trial_that_takes_too_long_fails_and_its_team_is_stopped():
    state = limited(topology=TWO_BLOCKS)
    assert step(state, Tick(), 11.0) == []
    out = step(state, Tick(), 11.1)
    assert [(event.trial, event.reason) for event in events_of(out, ev.TrialFailed)] == [
        (trial, "it took longer than `--trial-timeout`, 10 s") for trial in (0, 1)
    ]
    assert [sends_to(out, team) for team in (0, 1)] == [[msg.StopFold(assignment=n)] for n in (0, 1)]
    assert step(state, Tick(), 11.6) == []  # said once


def test_a_team_that_comes_back_gets_the_next_trial_and_its_own_time():
    state = limited()
    step(state, Tick(), 11.1)
    out = stop(state, 0, 0, 11.2)
    assert [order.trial for order in sends_to(out, 0) if isinstance(order, msg.RunFold)] == [1]
    from_master(state, 0, msg.FoldStarted(assignment=1), 15.0)
    assert not state.membership.suspects
    out = step(state, Tick(), 21.3)
    # It was heard of in between: its trial is too long, it is not stuck.
    assert of_type(out, ins.GiveUp) == []
    assert [event.trial for event in events_of(out, ev.TrialFailed)] == [1]


@pytest.mark.parametrize("answers", [False, True], ids=["a silent team", "a master whose workers are silent"])
def test_a_team_that_does_not_come_back_ends_the_start_and_the_next_trial_is_not_blamed(answers):
    state = limited()
    step(state, Tick(), 11.1)
    if answers:
        stop(state, 0, 0, 11.2)
    assert of_type(step(state, Tick(), 21.0), ins.GiveUp) == []
    (given_up,) = of_type(step(state, Tick(), 21.3), ins.GiveUp)
    assert "Block 1 is stuck" in given_up.reason
    assert "--opt-restore" in given_up.reason
    states = [trial.state for trial in state.ledger.trials]
    assert states == [TrialState.FAILED, TrialState.RUNNING][: 1 + answers]


def test_a_result_that_comes_before_the_stop_order_is_too_late_and_shows_that_the_team_is_well():
    state = limited()
    step(state, Tick(), 11.1)
    finish(state, 0, 0)
    assert not state.membership.suspects
    assert state.ledger.trials[0].state is TrialState.FAILED


def test_the_other_folds_of_a_trial_that_takes_too_long_are_stopped_too():
    state = limited(topology=TWO_TEAMS, n_fold=2)
    from_master(state, 0, msg.FoldStarted(assignment=0), 2.0)
    out = step(state, Tick(), 11.1)
    (failed,) = events_of(out, ev.TrialFailed)
    assert failed.reason == "fold 0: it took longer than `--trial-timeout`, 10 s"
    assert [sends_to(out, team) for team in (0, 1)] == [[msg.StopFold(assignment=n)] for n in (0, 1)]


def test_without_a_limit_a_trial_takes_as_long_as_it_takes():
    state, _ = begin(num_iterations=2)
    suggest(state, x=0)
    assert step(state, Tick(), 1e9) == []


# ---------------------------------------------------------------- paused trials that go on


def with_one_paused(epoch):
    """A search of freeze-thaw with rungs at 2, 3, 5, …, whose first trial stopped after so many epochs."""
    state, out = begin(ledger=Ledger([session()]), pruning=PruningPlan(name="freeze-thaw", min_epochs=2, max_epochs=27))
    out += suggest(state, n=0)
    for done in range(1, epoch + 1):
        out += report(state, 0, 0.5, epoch=done)
    return state, out + from_master(state, 0, msg.FoldPaused(assignment=0, epoch=epoch))


def test_a_paused_trial_is_resumed_once():
    state, out = with_one_paused(2)
    assert of_type(out, ins.Tell)[-1].progress["waits"]
    goes_on = Suggestion(point={"n": 0}, trial=0)
    out = step(state, goes_on)
    assert [event.n_rungs for event in events_of(out, ev.TrialPromoted)] == [1]
    assert [order.trial for order in sends_to(out, 0)] == [0]
    assert [tell.progress["waits"] for tell in of_type(out, ins.Tell)] == [False, False]
    assert [ask.number for ask in of_type(out, ins.Ask)] == [1]
    step(state, goes_on)
    out = finish(state, 0, 1, 0.5)
    assert not events_of(out, ev.TrialPromoted) + sends_to(out, 0)[1:]
    assert [ask.number for ask in of_type(out, ins.Ask)] == [1]


def test_a_trial_that_stopped_late_passes_the_rungs_behind_it():
    state, _ = with_one_paused(6)
    out = step(state, Suggestion(point={"n": 0}, trial=0))
    assert [event.n_rungs for event in events_of(out, ev.TrialPromoted)] == [3]
    assert [order.trial for order in sends_to(out, 0)] == [0]
