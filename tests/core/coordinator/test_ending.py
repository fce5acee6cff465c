import math

import pytest

from nnlo_opt.core.coordinator.ending import Ending, Phase, grace_times, walltime_times
from nnlo_opt.core.coordinator.instructions import Budget, FinishRun, SearchPlan
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.starts import session
from tests.helpers.stories import completed, suggested


def searching(**plan):
    ending = Ending(SearchPlan(**{"num_iterations": 9} | plan))
    ending.begin()
    return ending


def ledger_with(*figures):
    """Trial i has ended with the i-th figure of merit, i seconds after the start."""
    events = [session()]
    for trial, figure in enumerate(figures):
        events += [suggested(trial, {"n": trial}, trial), completed(trial, figure, trial)]
    return Ledger(events)


def test_the_first_reason_to_begin_no_new_trial_is_the_one_that_is_told():
    ending = searching()
    ending.check_count(8, is_used_up=False)
    assert ending.phase is Phase.SEARCHING
    ending.check_count(9, is_used_up=True)
    assert (ending.phase, ending.reason) == (Phase.DRAINING, "all trials are done")
    ending.drain("another")
    assert ending.finish(is_left=False) == FinishRun(reason="all trials are done")
    assert ending.phase is Phase.OVER


def test_nothing_is_drained_that_has_not_begun():
    ending = Ending(SearchPlan(num_iterations=1))
    ending.check_count(1, is_used_up=False)
    assert (ending.phase, ending.reason) == (Phase.OPENING, "")


@pytest.mark.parametrize(("direction", "figures", "trial"), [("min", (0.5, 0.1), 1), ("max", (0.9, 0.5), 0)])
def test_the_target_is_reached_by_a_better_figure_also_in_an_earlier_start(direction, figures, trial):
    ledger = ledger_with(*figures)
    ending = searching(direction=direction, target_objective=figures[trial])
    ending.replay(ledger)
    assert ending.phase is Phase.SEARCHING, "as good is not better"
    ending = searching(direction=direction, target_objective=0.3 if direction == "min" else 0.7)
    ending.replay(ledger)
    assert ending.phase is Phase.DRAINING
    assert ending.reason.endswith(f"trial {trial} has {figures[trial]:g}")
    assert not ending.promotes


def test_a_trial_that_breaks_a_constraint_reaches_no_target():
    (trial,) = ledger_with(0.1).trials
    for feasible, phase in ((False, Phase.SEARCHING), (True, Phase.DRAINING)):
        trial.feasible = feasible
        ending = searching(target_objective=0.3)
        ending.check_target(trial)
        assert ending.phase is phase


def test_what_has_ended_is_counted_once_however_often_it_is_replayed():
    ledger = ledger_with(0.5, 0.6, 0.7)
    ending = searching(budget=Budget(n_without_improvement=3))
    ending.replay(ledger)
    ending.replay(ledger)
    assert ending.phase is Phase.SEARCHING
    ending.take(ledger_with(0.5, 0.6, 0.7, 0.8).trials[3])
    assert ending.reason == "no improvement in the last 3 trials"


def test_a_preemption_ends_a_start_unless_everything_had_ended_before():
    ending = searching()
    ending.preempt("no time", 5.0, 6.0)
    assert ending.finish(is_left=False) == FinishRun(reason="no time", complete=False)
    for is_left, finish in [(True, FinishRun(reason="no time", complete=False)), (False, FinishRun(reason="enough"))]:
        ending = searching()
        ending.drain("enough")
        ending.preempt("no time", 5.0, 6.0)
        assert ending.is_complete(is_left=is_left) == finish.complete
        assert ending.finish(is_left=is_left) == finish


def test_a_grace_and_the_end_of_a_walltime_leave_time_to_stop_and_to_report():
    assert grace_times(100.0, 20.0) == (115.0, 118.0)
    assert walltime_times(Budget(deadline_s=100.0, end_s=20.0)) == (85.0, 90.0)
    assert walltime_times(Budget(deadline_s=100.0)) == (100.0, math.inf)
