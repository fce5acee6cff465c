import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.app.reporting.table import ranked
from nnlo_opt.core.base.errors import JournalError, ProtocolError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import read_events
from nnlo_opt.core.trials.kept_weights import kept_trials
from nnlo_opt.core.trials.ledger import Ledger, mean_and_std
from nnlo_opt.core.trials.trial import AssignmentEnd, Loss, Trial, TrialState
from tests.helpers import stories
from tests.helpers.effort import examples
from tests.helpers.stories import lines_of

STARTED = ev.RunStarted(time_s=0.0, unix_s=1000.0, n_ranks=5, n_blocks=2, identity={"seed": 3}, settings={"a": 1})


def suggested(trial, time_s=1.0):
    return ev.TrialSuggested(time_s=time_s, trial=trial, point={"n": trial}, suggest_s=0.5, suggest_cpu_s=0.4)


def assigned(assignment, trial, fold=0, attempt=1, time_s=2.0):
    return stories.assigned(assignment, trial, time_s, fold=fold, attempt=attempt)


def finished(assignment, figure=0.5, time_s=3.0):
    return stories.finished(assignment, figure, time_s, metrics={"loss": 1.0}, n_epochs=2, train_s=0.5)


def failed(assignment, time_s=3.0):
    return ev.AssignmentFailed(time_s=time_s, assignment=assignment, reason="no memory")


def lost(assignment, time_s=3.0):
    return ev.AssignmentLost(time_s=time_s, assignment=assignment)


def preempted(assignment, time_s=3.0):
    return ev.AssignmentPreempted(time_s=time_s, assignment=assignment, reason="the walltime is over")


def stopped(assignment, time_s=3.0):
    return ev.AssignmentStopped(time_s=time_s, assignment=assignment)


def completed(trial, figure=0.5, time_s=4.0):
    return stories.completed(trial, figure, time_s, std=0.25)


def trial_failed(trial, time_s=4.0):
    return ev.TrialFailed(time_s=time_s, trial=trial, reason="fold 0: no memory")


def ledger_of(*events):
    return Ledger(events)


def replayed(events):
    """The ledger of these events after they went through the file format."""
    return Ledger(read_events(b"".join(lines_of(events)), "journal")[0])


#: any event about few trials and assignments, possible at that moment or not
numbers, times = st.integers(-1, 3), st.floats(0, 100)
any_event = st.one_of(
    st.builds(ev.RunStarted, time_s=times, unix_s=times, n_ranks=numbers, n_blocks=numbers, identity=st.just({"s": 1})),
    st.builds(suggested, numbers, times),
    st.builds(suggested, numbers, times),
    st.builds(assigned, numbers, numbers, st.integers(0, 1), st.just(1), times),
    st.builds(assigned, numbers, numbers, st.integers(0, 1), st.just(1), times),
    st.builds(ev.FoldBegan, time_s=times, assignment=numbers, epoch=numbers, waited_s=st.none() | times),
    st.builds(ev.EpochEnded, time_s=times, assignment=numbers, epoch=numbers, metrics=st.just({"loss": 1.0})),
    st.builds(finished, numbers, times, times),
    st.builds(failed, numbers, times),
    st.builds(stopped, numbers, times),
    st.builds(lost, numbers, times),
    st.builds(completed, numbers, times, times),
    st.builds(trial_failed, numbers, times),
    st.builds(ev.RunCompleted, time_s=times, reason=st.just("done"), coordinator_cpu_s=times),
)


@given(st.lists(any_event, max_size=40))
@settings(deadline=None, max_examples=examples(300))
def test_a_contradiction_changes_nothing_and_replay_of_the_journal_equals_the_live_ledger(events):
    ledger, accepted = Ledger(), []
    for event in events:
        before = copy.deepcopy(vars(ledger))
        try:
            ledger.apply(event)
        except ProtocolError:
            assert vars(ledger) == before
        else:
            accepted.append(event)
    assert vars(replayed(accepted)) == vars(ledger)
    for trial in ledger.trials:
        assert [a for a in ledger.assignments if a.trial == trial.number] == trial.assignments
        assert (trial.figure_of_merit is not None) == (trial.state is TrialState.COMPLETE)
        assert (trial.ended_at_s is not None) == trial.state.ended
        assert len({a.fold for a in trial.running}) == len(trial.running)
    states = [trial.state for trial in ledger.trials]
    assert ledger.n_by_state() == {state.value: states.count(state) for state in TrialState}
    assert sorted(ledger.under_way) == [n for n, state in enumerate(states) if state is TrialState.RUNNING]
    complete = [trial for trial in ledger.trials if trial.figure_of_merit is not None]
    assert ledger.best("min") is min(complete, key=lambda trial: trial.figure_of_merit, default=None)
    assert ledger.best("max") is max(complete, key=lambda trial: trial.figure_of_merit, default=None)
    assert ledger.n_ended == sum(trial.state.ended for trial in ledger.trials)


OPEN = [STARTED, suggested(0), assigned(0, 0)]
ENDED = [*OPEN, finished(0), completed(0)]


@pytest.mark.parametrize(
    ("known", "event", "match"),
    [
        ([], ev.Event(time_s=0.0), "no rule for Event"),
        ([STARTED], suggested(1), "Trial 1 was suggested where 0 is next"),
        ([STARTED, suggested(0)], suggested(0), "Trial 0 was suggested where 1 is next"),
        ([STARTED], assigned(0, 0), "Trial 0 is not known"),
        ([STARTED, suggested(0)], assigned(0, -1), "Trial -1 is not known"),
        ([STARTED, suggested(0)], assigned(1, 0), "Assignment 1 was made where 0 is next"),
        (OPEN, assigned(0, 0, fold=1), "Assignment 0 was made where 1 is next"),
        (OPEN, assigned(1, 0), "Fold 0 of trial 0 was assigned while it runs"),
        ([*OPEN, finished(0)], assigned(1, 0), "Fold 0 of trial 0 was assigned after its end"),
        (ENDED, assigned(1, 0, fold=1), "Fold 1 of trial 0 was assigned after its end"),
        (OPEN, finished(1), "Assignment 1 is not known"),
        (OPEN, finished(-1), "Assignment -1 is not known"),
        ([*OPEN, finished(0)], finished(0), "Assignment 0 has already finished"),
        ([*OPEN, failed(0)], finished(0), "Assignment 0 has already failed"),
        ([*OPEN, lost(0)], ev.EpochEnded(time_s=9.0, assignment=0, epoch=1, metrics={}), "has already lost"),
        ([*OPEN, stopped(0)], ev.FoldBegan(time_s=9.0, assignment=0), "has already stopped"),
        (ENDED, completed(0), "Trial 0 has already ended: complete"),
        (ENDED, trial_failed(0), "Trial 0 has already ended: complete"),
        ([*OPEN, failed(0), trial_failed(0)], completed(0), "Trial 0 has already ended: failed"),
        (OPEN, completed(7), "Trial 7 is not known"),
        (OPEN, completed(-1), "Trial -1 is not known"),
    ],
)
def test_a_contradiction_is_refused_by_name_and_changes_nothing(known, event, match):
    ledger = ledger_of(*known)
    with pytest.raises(ProtocolError, match=match):
        ledger.apply(event)
    assert vars(ledger) == vars(ledger_of(*known))


def test_there_is_a_rule_for_every_type_of_event():
    story = [
        *OPEN,
        ev.FoldBegan(time_s=2.0, assignment=0),
        ev.EpochEnded(time_s=2.0, assignment=0, epoch=1, metrics={}),
        ev.RanksLost(time_s=2.0, ranks=[2], block=1, team=0, n_alive=2, n_ranks=2, assignment=0, counts=True),
        ev.RanksLost(time_s=2.0, ranks=[1, 3], block=1, team=0, n_alive=0, n_ranks=0, assignment=0),
        ev.RanksLost(time_s=2.0, ranks=[5], block=2, team=1, n_alive=1, n_ranks=1),
        ev.AssignmentLost(time_s=2.0, assignment=0, reason="it crashed", counts=True),
        assigned(1, 0, attempt=2),
        stopped(1),
        assigned(2, 0, attempt=3),
        finished(2),
        completed(0),
        ev.BestExpected(time_s=4.0, trial=0),
        suggested(1),
        assigned(3, 1),
        failed(3),
        trial_failed(1),
        suggested(2),
        assigned(4, 2),
        ev.EpochEnded(time_s=3.0, assignment=4, epoch=1, metrics={}, figure_of_merit=0.4),
        ev.AssignmentPaused(time_s=3.0, assignment=4, epoch=1),
        ev.TrialPaused(time_s=3.0, trial=2, figure_of_merit=0.4),
        ev.TrialPromoted(time_s=4.0, trial=2, n_rungs=1),
        assigned(5, 2),
        ev.EpochEnded(time_s=5.0, assignment=5, epoch=1, metrics={}, figure_of_merit=0.9),
        ev.EpochEnded(time_s=5.0, assignment=5, epoch=2, metrics={}, figure_of_merit=0.3),
        stopped(5),
        ev.TrialPruned(time_s=6.0, trial=2, figure_of_merit=0.3, reason="hopeless"),
        suggested(3),
        assigned(6, 3),
        preempted(6),
        ev.TermBegan(time_s=7.0, term=1, job=1),
        ev.JobJoined(time_s=7.0, job=2, host="node-1", n_ranks=3, n_teams=1),
        ev.JobLeft(time_s=8.0, job=2, expelled=True),
        ev.RunPreempted(time_s=9.0, reason="the walltime is over"),
        ev.RunCompleted(time_s=9.0, reason="done"),
    ]
    assert {type(event) for event in story} == set(ev.Event.__subclasses__())
    ledger = ledger_of(*story)
    assert [trial.state for trial in ledger.trials] == ["complete", "failed", "pruned", "preempted"]
    ends = ["lost", "stopped", "finished", "failed", "paused", "stopped", "preempted"]
    assert [a.end for a in ledger.assignments] == ends
    states = [trial.state.value for trial in ledger.trials]
    assert ledger.n_by_state() == {state.value: states.count(state.value) for state in TrialState}
    pruned = ledger.trials[2]
    assert (pruned.figure_so_far, pruned.figure_of_merit, pruned.reason) == (0.3, None, "hopeless")
    assert pruned.reports == {0: {1: 0.4, 2: 0.3}}  # what was reported first stays
    assert (pruned.n_rungs, pruned.n_attempts(0)) == (1, 1)
    assert ledger.trials[1].reason == "fold 0: no memory"
    assert [a.losses for a in ledger.assignments if a.losses] == [[Loss(1, "rank 2 died"), Loss(1, "it crashed")]]
    assert ledger.sessions[-1].lost_ranks == {1: [2, 1, 3], 2: [5]}
    assert ledger.sessions[-1].lost_blocks == [1]


def test_a_trial_runs_from_its_first_assignment_and_waits_again_when_all_its_ranks_are_lost():
    ledger = ledger_of(STARTED, suggested(0))
    trial = ledger.trials[0]
    assert trial == Trial(number=0, point={"n": 0}, state=TrialState.PENDING)
    ledger.apply(assigned(0, 0, fold=0))
    ledger.apply(assigned(1, 0, fold=1))
    assert trial.state is TrialState.RUNNING
    assert [a.number for a in trial.running] == [0, 1]
    ledger.apply(lost(0))
    assert trial.state is TrialState.RUNNING
    ledger.apply(lost(1))
    assert trial.state is TrialState.PENDING
    assert trial.running == []
    ledger.apply(assigned(2, 0, fold=1, attempt=2))
    assert trial.state is TrialState.RUNNING
    assert trial.n_attempts(0) == 1
    assert trial.n_attempts(1) == 2


def test_a_finished_fold_is_kept_with_all_it_measured():
    ledger = ledger_of(*OPEN, ev.FoldBegan(time_s=2.5, assignment=0, epoch=1, waited_s=0.01))
    ledger.apply(ev.EpochEnded(time_s=2.75, assignment=0, epoch=2, metrics={"loss": 1.0}))
    assignment = ledger.assignments[0]
    assert (assignment.assigned_at_s, assignment.started_at_s, assignment.epoch) == (2.0, 2.5, 2)
    assert assignment.first_epoch == 1  # the epochs of before cost this attempt nothing
    assert assignment.waited_s == 0.01
    assert assignment.end is None
    ledger.apply(finished(0, figure=0.125))
    assert (assignment.end, assignment.ended_at_s) == (AssignmentEnd.FINISHED, 3.0)
    fold = ledger.trials[0].folds[0]
    assert (fold.figure_of_merit, fold.metrics, fold.n_epochs, fold.train_s) == (0.125, {"loss": 1.0}, 2, 0.5)
    ledger.apply(completed(0, figure=0.125))
    trial = ledger.trials[0]
    assert (trial.figure_of_merit, trial.figure_of_merit_std, trial.ended_at_s) == (0.125, 0.25, 4.0)


def test_the_best_trial_is_the_lowest_or_the_highest_and_the_first_among_equals():
    assert Ledger().best("min") is None
    figures = [0.5, 0.25, 0.75, 0.25, 0.75, 0.0]
    events = [STARTED]
    for number, figure in enumerate(figures):
        events += [suggested(number), assigned(number, number), finished(number, figure)]
    for number, figure in enumerate(figures[:-1]):
        events.append(completed(number, figure))
    ledger = ledger_of(*events, trial_failed(5))
    assert ledger.best("min").number == 1
    assert ledger.best("max").number == 2


def test_of_a_training_the_last_complete_trial_counts():
    first = [suggested(0), assigned(0, 0), finished(0, 0.3), completed(0, 0.3)]
    more = [suggested(1), assigned(1, 1), finished(1, 0.4), completed(1, 0.4), suggested(2), assigned(2, 2)]
    ledger = ledger_of(STARTED.replaced(identity={"search_space": None}), *first, *more)
    assert (ledger.best().number, ledger.result.number) == (1, 2)
    assert ledger_of(STARTED, *first, *more).best().number == 0


def test_of_equals_the_best_is_the_one_suggested_first_even_where_it_ended_last():
    events = [STARTED]
    for number in range(2):
        events += [suggested(number), assigned(number, number), finished(number, 0.5)]
    ledger = ledger_of(*events, completed(1, 0.5), completed(0, 0.5))
    assert ledger.best("min").number == ledger.best("max").number == 0


def test_a_figure_of_zero_is_a_figure():
    ledger = ledger_of(*OPEN, finished(0, 0.0), completed(0, 0.0))
    assert ledger.best("min").number == 0
    assert ledger.best("max").number == 0


def test_sessions_keep_the_first_identity_and_the_last_settings():
    again = ev.RunStarted(time_s=50.0, unix_s=1050.0, n_ranks=3, n_blocks=1, identity={"seed": 9}, settings={"b": 2})
    done = ev.RunCompleted(time_s=60.0, reason="all 1 trials are done", coordinator_cpu_s=0.5)
    ledger = ledger_of(STARTED, suggested(0, time_s=7.0))
    assert not ledger.complete
    ledger.apply(done)
    assert ledger.complete
    assert ledger.completed_because == "all 1 trials are done"
    ledger.apply(again)
    assert not ledger.complete
    ledger.apply(done)
    assert ledger.identity.plain == {"seed": 3}
    assert ledger.settings.plain == {"b": 2}
    assert ledger.first_start_unix_s == 1000.0
    assert [s.n_blocks for s in ledger.sessions] == [2, 1]
    assert [(s.started_at_s, s.last_at_s) for s in ledger.sessions] == [(0.0, 60.0), (50.0, 60.0)]
    assert ledger.coordinator_cpu_s == 1.0
    assert ledger.suggest_s == [0.5]


def test_mean_and_population_standard_deviation():
    assert mean_and_std([0.25]) == (0.25, 0.0)
    assert mean_and_std([1.0, 3.0]) == (2.0, 1.0)
    assert mean_and_std([0.1] * 10) == (0.1, 0.0)


# ---------------------------------------------------------------- preempted


def test_a_preempted_trial_has_not_ended_and_is_assigned_again():
    ledger = ledger_of(*OPEN, preempted(0))
    assert ledger.trials[0].state is TrialState.PREEMPTED
    assert not ledger.trials[0].state.ended
    assert ledger.assignments[0].end is AssignmentEnd.PREEMPTED
    ledger.apply(assigned(1, 0, attempt=2))
    assert ledger.trials[0].state is TrialState.RUNNING


def test_a_trial_is_preempted_when_its_other_folds_finish_at_the_last_moment():
    ledger = ledger_of(*OPEN, assigned(1, 0, fold=1), preempted(0), finished(1))
    assert ledger.trials[0].state is TrialState.RUNNING
    ledger.apply(ev.RunPreempted(time_s=9.0, reason="the walltime is over", coordinator_cpu_s=2.0))
    assert ledger.trials[0].state is TrialState.PREEMPTED
    assert (ledger.n_by_state()["running"], ledger.n_by_state()["preempted"]) == (0, 1)
    assert (ledger.complete, ledger.preempted_because, ledger.coordinator_cpu_s) == (False, "the walltime is over", 2.0)
    ledger.apply(STARTED)
    assert ledger.preempted_because == ""


# ---------------------------------------------------------------- several objectives

SEVERAL = STARTED.replaced(identity={"objectives": ["val_acc:max", "n_weights:min"]})


def complete_trial(trial, acc, size):
    return [suggested(trial), stories.completed(trial, acc, objectives={"val_acc": acc, "n_weights": size})]


def test_the_pareto_set_comes_back_with_the_journal():
    events = [SEVERAL]
    for trial, (acc, size) in enumerate([(0.9, 100.0), (0.8, 10.0), (0.8, 50.0), (0.95, 100.0), (0.5, 1.0)]):
        events += complete_trial(trial, acc, size)
    ledger = replayed(events)
    assert ledger.pareto.trials == [3, 1, 4]
    assert ledger.trials[1].objectives == {"val_acc": 0.8, "n_weights": 10.0}


def test_among_the_best_of_the_first_objective_that_of_the_pareto_set_is_the_best():
    events = [SEVERAL, *complete_trial(0, 0.9, 100.0), *complete_trial(1, 0.9, 50.0), *complete_trial(2, 0.1, 1.0)]
    ledger = ledger_of(*events)
    assert ledger.best("max").number == 1
    assert 1 in ledger.pareto


def test_one_objective_makes_no_pareto_set():
    ledger = ledger_of(STARTED.replaced(identity={"objectives": ["1 - val_acc:min"]}), suggested(0), completed(0))
    assert (ledger.objectives, len(ledger.pareto)) == ((), 0)


def test_a_trial_without_its_objectives_is_a_bug_and_changes_nothing():
    ledger = ledger_of(SEVERAL, suggested(0))
    with pytest.raises(ProtocolError, match="2 objectives"):
        ledger.apply(completed(0))
    assert ledger.trials[0].state is TrialState.PENDING


@pytest.mark.parametrize("wrong", ["0.5", 2**60])
def test_a_journal_whose_events_contradict_each_other_is_refused_with_a_remedy(wrong):
    """An event applied while a search runs raises an error of ours instead."""
    space = {"parameters": [{"kind": "real", "name": "rate"}, {"kind": "integer", "name": "n"}]}
    start = STARTED.replaced(identity={"search_space": space})
    sound = ev.TrialSuggested(time_s=1.0, trial=0, point={"rate": 1, "n": 2, "of an older version": "0.5"})
    assert Ledger([start, sound]).trials
    name = "rate" if isinstance(wrong, str) else "n"
    for event in (sound.replaced(point={name: wrong}), sound.replaced(trial=3)):
        with pytest.raises(ProtocolError):
            Ledger([start]).apply(event)
        with pytest.raises(JournalError, match=r"must be consistent.*Received: Trial . .*`nnlo-opt repair RUN`"):
            Ledger([start, event])


# ---------------------------------------------------------------- outcome constraints


def measured_trial(trial, figure, sizes, **objectives):
    """A trial with a fold for each size."""
    events = [suggested(trial)]
    for fold, size in enumerate(sizes):
        number = 2 * trial + fold
        end = stories.finished(number, figure, 3.0, metrics={"size": size}, n_epochs=1, train_s=0.5)
        events += [assigned(number, trial, fold), end]
    return [*events, stories.completed(trial, figure, time_s=4.0, objectives=objectives)]


def test_only_a_trial_whose_mean_keeps_the_constraints_is_the_best_or_in_the_pareto_set():
    bounds = {"constraints": ["size<5"], "objectives": ["loss:min", "acc:max"]}
    events = [STARTED.replaced(identity=bounds)]
    for trial, (loss, sizes) in enumerate([(0.1, (6, 6)), (0.2, (1, 9)), (0.4, (1, 8)), (0.3, (6, 3)), (0.0, (1,))]):
        events += measured_trial(trial, loss, sizes, loss=loss, acc=0.5)
    events += [suggested(5), trial_failed(5)]
    del events[-4]  # the fold of trial 4 has ended in no way
    ledger = replayed(events)
    assert [trial.feasible for trial in ledger.trials] == [False, False, True, True, False, None]
    assert [trial.standing for trial in ledger.trials[3:]] == ["complete", "infeasible", "failed"]
    assert [trial.finite_outcomes.get("size") for trial in ledger.trials] == [6.0, 5.0, 4.5, 4.5, None, None]
    assert (ledger.best().number, ledger.pareto.trials) == (3, [3])
    assert kept_trials(ledger, 2) == {2, 3}
    assert [trial.number for trial in ranked(ledger)] == [3, 2, 4, 0, 1, 5]


def test_the_best_expected_trial_is_the_last_one_that_was_named_and_must_be_complete():
    ledger = ledger_of(STARTED, suggested(0), assigned(0, 0), finished(0), completed(0), suggested(1))
    assert ledger.named(-1, 9.0) is None
    named = ledger.named(0, 9.0)
    ledger.apply(named)
    assert ledger.best_expected is ledger.trials[0]
    assert ledger.named(0, 9.0) is None
    for wrong in (1, 2):
        with pytest.raises(ProtocolError):
            ledger.apply(ev.BestExpected(time_s=9.0, trial=wrong))
    ledger.apply(ledger.named(-1, 10.0))
    assert ledger.best_expected is None
