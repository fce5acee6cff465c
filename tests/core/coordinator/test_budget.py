import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.coordinator.ending import Progress, duration_s, expected_s
from nnlo_opt.core.coordinator.instructions import Budget, searched_s
from nnlo_opt.core.trials.ledger import Ledger, Session
from nnlo_opt.core.trials.objectives import Objective
from nnlo_opt.core.trials.trial import AssignmentEnd, Trial, TrialState
from tests.helpers.starts import assignment_of

TWO = (Objective("a"), Objective("b", "max"))


def session(start_s, last_s):
    return Session(2, 1, start_s, last_s)


def trial(number, figure=None, *, ended_at_s=None, ends=(AssignmentEnd.FINISHED,), objectives=None):
    return Trial(
        number=number,
        point={},
        state=TrialState.FAILED if figure is None else TrialState.COMPLETE,
        assignments=[assignment_of(assigned_at_s=10.0 * number, end=end) for end in ends],
        figure_of_merit=figure,
        ended_at_s=10.0 * number + 5.0 if ended_at_s is None else ended_at_s,
        objectives=objectives or {},
    )


# ---------------------------------------------------------------- time


def test_the_time_of_a_search_is_that_of_all_its_starts_without_the_pauses():
    assert searched_s([session(0.0, 4.0)], 30.0) == 30.0
    assert searched_s([session(0.0, 4.0), session(100.0, 107.0), session(500.0, 501.0)], 502.5) == 4.0 + 7.0 + 2.5


@pytest.mark.parametrize(
    ("expected_s", "now_s", "leaves_none"),
    [(None, 89.0, False), (None, 91.0, True), (20.0, 70.0, False), (20.0, 70.1, True), (0.0, 90.0, False)],
)
def test_a_trial_must_end_before_the_end_of_the_walltime_begins(expected_s, now_s, leaves_none):
    assert Budget(deadline_s=100.0, end_s=10.0).leaves_no_trial(expected_s, now_s) is leaves_none


def test_without_a_deadline_there_is_always_time():
    assert not Budget().leaves_no_trial(1e9, 1e9)
    assert not Budget().is_over(1e9)
    assert not Budget(n_without_improvement=3).has_time
    assert Budget(timeout_s=1.0).has_time
    assert Budget(deadline_s=1.0).has_time


def test_the_end_is_a_tenth_of_a_short_walltime_and_half_a_minute_of_a_long_one():
    ends = [Budget().of_start(walltime_s, 0.0).end_s for walltime_s in (60.0, 3600.0, 86400.0)]
    assert ends == [6.0, 30.0, 30.0]


# ---------------------------------------------------------------- how long trials last


def test_only_a_complete_trial_of_one_start_says_how_long_trials_last():
    assert duration_s(trial(1, 0.5, ended_at_s=17.0)) == 7.0
    assert duration_s(trial(1)) is None
    for interrupted in (AssignmentEnd.LOST, AssignmentEnd.PREEMPTED):
        assert duration_s(trial(1, 0.5, ends=(interrupted, AssignmentEnd.FINISHED))) is None


def test_what_a_trial_was_paused_for_is_not_what_it_lasted():
    # Two folds side by side from 10 to 16 and 14, paused to 50, the rest of one fold to 53, of the other from 60.
    pause, end = AssignmentEnd.PAUSED, AssignmentEnd.FINISHED
    spans = [(10.0, 16.0, pause), (10.0, 14.0, pause), (50.0, 53.0, end), (60.0, 61.0, end)]
    paused = trial(1, 0.5, ended_at_s=61.0)
    paused.assignments = [assignment_of(assigned_at_s=at, ended_at_s=until, end=how) for at, until, how in spans]
    assert duration_s(paused) == 6.0 + 3.0 + 1.0


def test_before_a_trial_is_complete_the_time_is_unknown():
    assert expected_s([]) is None


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=40))
def test_nine_of_ten_trials_have_lasted_no_longer(lasted):
    seconds = sorted(lasted)
    expected = expected_s(seconds)
    assert expected in seconds
    assert sum(s <= expected for s in seconds) >= 0.9 * len(seconds)
    assert sum(s < expected for s in seconds) < 0.9 * len(seconds)


# ---------------------------------------------------------------- improvement


def counts(trials, objectives=(), direction="min"):
    progress = Progress(objectives, direction)
    found = []
    for number, figure in enumerate(trials):
        several = None if figure is None or not objectives else dict(zip("ab", figure, strict=True))
        progress.take(trial(number, figure[0] if several else figure, objectives=several))
        found.append(progress.n_without)
    return found


def test_a_trial_improves_when_it_is_better_than_all_before_and_one_that_fails_never_does():
    assert counts([3.0, 3.0, 4.0, 2.0, None, 2.5]) == [0, 1, 2, 0, 1, 2]
    assert counts([3.0, 3.0, 4.0, 2.0, None, 2.5], direction="max") == [0, 1, 0, 1, 2, 3]
    assert counts([None, None, 1.0, None]) == [1, 2, 0, 1]


def test_a_pruned_trial_is_no_improvement_and_one_that_was_left_paused_says_nothing():
    progress = Progress((), "min")
    found = []
    for number, end in enumerate([AssignmentEnd.FINISHED, AssignmentEnd.STOPPED, AssignmentEnd.PAUSED]):
        ended = trial(number, 0.5 if end is AssignmentEnd.FINISHED else None, ends=(end,))
        ended.state = TrialState.COMPLETE if end is AssignmentEnd.FINISHED else TrialState.PRUNED
        progress.take(ended)
        found.append(progress.n_without)
    assert found == [0, 1, 1]


def test_of_several_objectives_a_trial_improves_when_it_enters_the_pareto_set():
    # (a, b), a minimised and b maximised: a new corner, a dominated one, an equal one, another corner.
    assert counts([(1.0, 1.0), (2.0, 1.0), (1.0, 1.0), (2.0, 2.0), (0.5, 0.5)], TWO) == [0, 1, 2, 0, 0]


def test_trials_come_in_the_order_in_which_they_ended():
    ledger = Ledger()
    ledger.trials = [trial(0, 0.5, ended_at_s=90.0), trial(1, 0.4, ended_at_s=20.0), trial(2, ended_at_s=50.0)]
    ledger.trials.append(Trial(number=3, point={}))
    assert [t.number for t in ledger.ended] == [1, 2, 0]
