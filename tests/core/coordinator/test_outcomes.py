"""Which lost attempts count, told by hand; `test_coordinator_machine` has all orders of things."""

import math

import pytest

from nnlo_opt.core.coordinator.instructions import LastEnd, SearchPlan
from nnlo_opt.core.coordinator.outcomes import curve_of, fold_to_give_up, loss_of, losses_without_progress, report_of
from nnlo_opt.core.trials.trial import AssignmentEnd, FoldResult, Loss, Trial, TrialState
from tests.helpers.starts import assignment_of

LOST, PREEMPTED, PAUSED = AssignmentEnd.LOST, AssignmentEnd.PREEMPTED, AssignmentEnd.PAUSED


DIED = "rank 3 on n1: its process died"


def attempt(end=LOST, epoch=0, counts=True, fold=0, team=0, outlived=()):
    """`outlived`: epochs at which ranks died and it went on."""
    at = [*outlived, epoch] if counts and end is LOST else outlived
    return assignment_of(
        fold=fold,
        team=team,
        epoch=epoch,
        end=end,
        reason=DIED if end is LOST else "",
        losses=[Loss(at_epoch, DIED) for at_epoch in at],
    )


def trial(*attempts, **more):
    return Trial(number=0, point={}, assignments=list(attempts), **more)


def test_a_curve_is_the_mean_as_far_as_all_folds_have_come():
    known = trial(reports={0: {1: 0.5, 2: 0.25}, 1: {1: 1.0}})
    assert curve_of(known, 2) == ((1, 0.75),)
    assert curve_of(known, 3) == ()


@pytest.mark.parametrize(("feasible", "state"), [(True, "complete"), (False, "failed")])
def test_the_search_is_told_the_outcomes_that_are_known(feasible, state):
    ended = {"state": TrialState.COMPLETE, "figure_of_merit": 0.5, "feasible": feasible}
    told = report_of(trial(outcomes={"size": 3.0, "memory": math.nan}, **ended), SearchPlan(num_iterations=1))
    assert (told.state, told.value, told.outcomes) == (state, 0.5, {"size": 3.0})
    assert report_of(trial(), SearchPlan(num_iterations=1)).outcomes == {}


@pytest.mark.parametrize(
    ("attempts", "n"),
    [
        ([], 0),
        ([attempt()], 1),
        ([attempt(), attempt(counts=False), attempt(PREEMPTED), attempt(PAUSED), attempt()], 2),
        # Each got an epoch further: none of them is stuck.
        ([attempt(epoch=1), attempt(epoch=2), attempt(epoch=3)], 1),
        # It dies in epoch 5, wherever it begins: of three attempts the last two were in vain.
        ([attempt(epoch=4), attempt(epoch=4), attempt(epoch=4)], 3),
        # An epoch that was not in a checkpoint was trained again, and that is no progress.
        ([attempt(epoch=4), attempt(epoch=2), attempt(epoch=4)], 3),
        ([attempt(), attempt(), attempt(epoch=1, end=None)], 0),
        # Ranks that an assignment outlives count as one that is lost with them does.
        ([attempt(end=None, outlived=[0, 0])], 2),
        ([attempt(outlived=[0, 0])], 3),
        ([attempt(), attempt(end=None, outlived=[0])], 2),
        # A death in each epoch, and every epoch is trained.
        ([attempt(end=None, epoch=3, outlived=[0, 1, 2])], 0),
        ([attempt(end=None, epoch=3, outlived=[0, 1, 2, 3])], 1),
        ([attempt(end=None, epoch=3, outlived=[2, 3, 3])], 2),
        # It goes on from epoch 1, and dies before it is where it was.
        ([attempt(epoch=4), attempt(end=None, epoch=2, outlived=[1, 2])], 3),
    ],
)
def test_losses_count_in_a_row_without_progress(attempts, n):
    assert len(losses_without_progress(trial(*attempts), 0)) == n


def test_a_fold_that_is_lost_too_often_fails_its_trial_with_the_last_reason():
    twice = [attempt(fold=1), attempt(fold=1)]
    assert fold_to_give_up(trial(*twice), 3) is None
    assert fold_to_give_up(trial(attempt(fold=0), *twice), 3) is None, "of another fold"
    fold, reason = fold_to_give_up(trial(*twice, attempt(fold=1)), 3)
    assert fold == 1
    assert reason == f"ranks that trained it were lost 3 times in a row (`--max-attempts`); the last time: {DIED}"
    assert "lost once" in fold_to_give_up(trial(attempt()), 1)[1]
    done = FoldResult(figure_of_merit=1.0, metrics={}, n_epochs=1, train_s=1.0)
    assert fold_to_give_up(trial(*twice, attempt(fold=1), folds={1: done}), 3) is None


def test_a_script_that_is_lost_too_often_fails_its_trial_with_the_last_reason():
    killed = attempt(end=None)
    killed.losses += [Loss(0, DIED), Loss(0, "it was killed", of_script=True)]
    reason = "its script was lost 2 times in a row (`--max-attempts`); the last time: it was killed"
    assert fold_to_give_up(trial(killed), 2) == (0, reason)


@pytest.mark.parametrize("fruitless", [True, False])
def test_what_is_known_of_the_end_decides_what_counts(fruitless):
    known = LastEnd(died={2: "rank 5 on n2: its process died"})
    assert loss_of(known, attempt(team=2), fruitless=fruitless) == ("rank 5 on n2: its process died", True)
    assert loss_of(known, attempt(team=1), fruitless=fruitless) == ("the run was ended", False)
    assert loss_of(LastEnd(), attempt(), fruitless=fruitless) == ("the run was ended", False)
    assert loss_of(LastEnd(unexplained=True), attempt(), fruitless=fruitless)[1] == fruitless
