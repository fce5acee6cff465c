import json

import pytest

from nnlo_opt.app.reporting.results import block_utilization, summarise
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.told_runs import Story


def test_a_run_that_has_just_begun_has_figures_of_nothing():
    summary = summarise(Story(direction="max", figure_of_merit="value").ledger)
    assert summary == {
        "complete": False,
        "reason": "",
        "direction": "max",
        "figure_of_merit": "value",
        "n_trials": dict.fromkeys(("pending", "running", "complete", "failed", "pruned", "paused", "preempted"), 0),
        "best": None,
        "best_expected": None,
        "wall_s": 0.0,
        "n_starts": 1,
        "journal_cut_bytes": 0,
        "lost": {"ranks": [], "blocks": [], "n_ranks": 0},
        "block_utilization": None,
        "coordinator_cpu_s": 0.0,
        "suggest_s": {"median": None, "max": None},
        "dispatch_gap_s": {"median": None, "max": None},
    }


def test_even_an_empty_journal_has_a_summary():
    summary = summarise(Ledger())
    assert summary["n_starts"] == 0
    assert summary["block_utilization"] is None
    json.dumps(summary, allow_nan=False)


def test_a_summary_tells_the_best_trial_its_times_and_its_end():
    story = Story(direction="min", figure_of_merit="1 - val_acc")
    for trial, (figure, suggest_s, waited_s) in enumerate([(0.5, 0.1, None), (0.25, 0.9, 0.002), (0.75, 0.2, 0.004)]):
        story.suggest(10.0 * trial, suggest_s, n=trial)
        number = story.assign(10.0 * trial, trial)
        story.begin(10.0 * trial + 1, number, waited_s)
        story.finish(10.0 * trial + 9, number, figure)
        story.complete(10.0 * trial + 9, trial, figure, std=0.125)
    story.apply(ev.RunCompleted(time_s=30.0, reason="all 3 trials are done", coordinator_cpu_s=0.5))
    summary = summarise(story.ledger)
    assert summary["complete"] is True
    assert summary["reason"] == "all 3 trials are done"
    assert summary["n_trials"]["complete"] == 3
    best = {"trial": 1, "figure_of_merit": 0.25, "figure_of_merit_std": 0.125, "parameters": {"n": 1}, "metrics": {}}
    assert summary["best"] == best
    assert summary["suggest_s"] == {"median": 0.2, "max": 0.9}
    assert summary["dispatch_gap_s"] == {"median": pytest.approx(0.003), "max": 0.004}
    assert summary["wall_s"] == 30.0
    assert summary["coordinator_cpu_s"] == 0.5
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_blocks_busy_from_the_first_assignment_to_the_last_end_are_fully_used():
    story = Story(n_blocks=2)
    for block in (1, 2):
        story.trial(5.0, 25.0, block=block)
    # What came before and after the trials is not the blocks' time.
    story.apply(ev.RunCompleted(time_s=99.0, reason="done"))
    assert block_utilization(story.ledger) == 1.0


def test_a_block_that_never_had_a_trial_counts_as_idle():
    story = Story(n_blocks=4)
    story.trial(0.0, 8.0, block=3)
    assert block_utilization(story.ledger) == 0.25


def test_a_gap_between_two_trials_of_a_block_is_idle_time():
    story = Story(n_blocks=1)
    story.trial(0.0, 3.0)
    story.trial(4.0, 10.0)
    assert block_utilization(story.ledger) == pytest.approx(0.9)


def test_folds_that_run_at_the_same_time_on_one_block_count_once():
    story = Story(n_blocks=1)
    story.suggest(0.0, n=0)
    first, second = story.assign(0.0, 0, fold=0, team=0), story.assign(0.0, 0, fold=1, team=1)
    story.finish(4.0, first)
    story.finish(6.0, second)
    story.trial(8.0, 10.0)
    assert block_utilization(story.ledger) == pytest.approx(0.8)


def test_trials_under_way_count_until_the_last_thing_heard():
    story = Story(n_blocks=2)
    for trial in range(2):
        story.suggest(0.0, n=trial)
        story.assign(0.0, trial, block=trial + 1)
    story.finish(4.0, 0)
    story.begin(8.0, 1)
    assert block_utilization(story.ledger) == pytest.approx((4.0 + 8.0) / 16.0)


def test_the_time_between_two_starts_is_nobodys():
    story = Story(n_blocks=2)
    story.trial(0.0, 10.0)
    cut = story.assign(0.0, story.suggest(0.0, n=1), block=2)
    # Killed after 10 s and started again an hour later with one block, which closes what was under way.
    story.start(3600.0, n_blocks=1)
    story.lose(3600.0, cut)
    story.finish(3605.0, story.assign(3601.0, 1))
    story.assign(3606.0, story.suggest(3605.0, n=2))
    story.apply(ev.AssignmentFailed(time_s=3611.0, assignment=3, reason="no memory"))
    # First start: both blocks busy for 10 s; second: its one block busy for 9 of 10 s.
    assert block_utilization(story.ledger) == pytest.approx((20.0 + 9.0) / (20.0 + 10.0))
    assert summarise(story.ledger)["wall_s"] == pytest.approx(10.0 + 11.0)
    assert summarise(story.ledger)["n_starts"] == 2


def test_a_start_that_assigned_nothing_counts_for_nothing():
    story = Story(n_blocks=1)
    story.start(100.0, n_blocks=2)
    story.start(200.0, n_blocks=1)
    story.trial(200.0, 205.0)
    story.start(300.0, n_blocks=2)
    assert block_utilization(story.ledger) == 1.0


def test_an_assignment_lost_before_anything_was_heard_of_it_takes_no_time():
    story = Story(n_blocks=1)
    story.suggest(5.0, n=0)
    cut = story.assign(5.0, 0)
    story.start(500.0, n_blocks=1)
    story.lose(500.0, cut)
    assert block_utilization(story.ledger) is None
    story.finish(510.0, story.assign(500.0, 0))
    assert block_utilization(story.ledger) == 1.0


@pytest.mark.parametrize(("direction", "trial"), [("min", 0), ("max", 1)])
def test_the_best_follows_the_direction_of_the_run(direction, trial):
    story = Story(direction=direction)
    for figure in (0.0, 1.0):
        story.complete(1.0, story.trial(0.0, 1.0, figure), figure)
    assert summarise(story.ledger)["best"]["trial"] == trial


def test_ranks_and_blocks_that_are_lost_are_those_of_the_last_start():
    story = Story(n_blocks=2)
    for ranks, block, left in (([2], 1, 1), ([1], 1, 0), ([4], 2, 1)):
        story.apply(ev.RanksLost(time_s=1.0, ranks=ranks, block=block, team=block - 1, n_alive=left, n_ranks=left))
    assert summarise(story.ledger)["lost"] == {"ranks": [1, 2, 4], "blocks": [1], "n_ranks": 3}
    story.start(10.0)
    assert summarise(story.ledger)["lost"] == {"ranks": [], "blocks": [], "n_ranks": 3}
