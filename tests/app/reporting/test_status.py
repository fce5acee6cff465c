import json
from pathlib import Path

import pytest

from nnlo_opt.app.reporting import status_lines as text
from nnlo_opt.app.reporting.status import Progress, status_of
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_state import RunState
from tests.helpers.stories import SEARCH, TRAINING, UNDER_WAY, begun, completed, failed, finished, reported, trial


def status(*events, at_s=20.0, at_work=True):
    return status_of(Ledger(events), Path("run"), 100.0 + at_s, at_work=at_work)


def test_a_search_under_way():
    seen = status(*UNDER_WAY)
    assert (seen.state, seen.kind, seen.elapsed_s) == (RunState.RUNNING, "random search of net", 20.0)
    assert seen.progress == Progress(unit="trial", n_done=1, n_all=4, end_s=15.0 + 15.0 / 1.4 * 2.6)
    assert seen.left_s == seen.progress.end_s - 20.0
    assert seen.best["trial"] == 0
    assert (seen.n_blocks, seen.n_blocks_busy) == (2, 1)
    (fold,) = seen.running
    assert [fold[name] for name in ("trial", "block", "epoch", "n_epochs", "figure_of_merit")] == [1, 2, 2, 5, 0.75]
    assert fold["running_s"] == 10.0
    assert [(ended["trial"], ended["state"], ended["ago_s"]) for ended in seen.ended] == [(0, "complete", 19.0)]


def test_the_end_is_expected_by_the_trials_of_this_start_and_comes_nearer_between_two_ends():
    again = SEARCH.replaced(time_s=100.0, unix_s=200.0)
    late = [event.replaced(time_s=event.time_s + 118.0) for event in trial(1)]  # ends at 120 s
    assert status(SEARCH, *trial(0), again, *late, at_s=120.0).left_s == 40.0
    assert status(SEARCH, *trial(0), again, *late, at_s=130.0).left_s == 30.0
    assert status(SEARCH, *trial(0), again, at_s=130.0).left_s is None


def test_the_end_is_expected_by_the_epochs_of_trials_under_way_as_well():
    hundred = SEARCH.replaced(n_blocks=100, settings={"plan": {"num_iterations": 100}})
    together = [event for n in range(100) for event in begun(n, block=n, time_s=0.0)]
    epochs = [reported(n, 4, 0.5, 40.0) for n in range(100)]
    assert status(hundred, *together, *epochs, at_s=40.0).left_s == pytest.approx(10.0)
    done = [finished(0, 0.5, 50.0, n_epochs=5, train_s=50.0), completed(0, 0.5, 50.0)]
    assert status(hundred, *together, *epochs, *done, at_s=50.0).left_s < 15.0
    resumed = [hundred.replaced(time_s=100.0, unix_s=200.0), *begun(0, time_s=100.0, epoch=4)]
    assert status(*resumed, reported(0, 5, 0.5, 110.0), at_s=110.0).left_s == pytest.approx(10.0 / 0.2 * 99.0)


def test_the_clock_of_a_watcher_that_is_behind_changes_nothing():
    assert status(*UNDER_WAY, at_s=-50.0).elapsed_s == 15.0


@pytest.mark.parametrize(
    ("events", "at_work", "state", "words"),
    [
        ([], True, "waiting", "waiting for the first line"),
        ([], False, "waiting", "waiting for the first line"),
        (UNDER_WAY, True, "running", "running for 0:00:20"),
        (UNDER_WAY, False, "dead", "dead after 0:00:15: no process is at work on it"),
        ([*UNDER_WAY, ev.RunPreempted(time_s=16.0, reason="SIGUSR1")], True, "interrupted", "(SIGUSR1) after 0:00:16"),
        ([SEARCH, ev.RunCompleted(time_s=9.0, reason="done")], False, "finished", "finished (done) after 0:00:09"),
    ],
    ids=str,
)
def test_the_state_of_a_run(events, at_work, state, words):
    seen = status(*events, at_work=at_work)
    assert seen.state == state
    assert seen.state.is_over == (state in ("dead", "interrupted", "finished"))
    assert words in text.state_text(seen)
    assert json.loads(json.dumps(seen.to_json()))["state"] == state


def test_a_training_is_counted_in_epochs_of_all_its_folds():
    two_folds = TRAINING.replaced(identity={**TRAINING.identity, "n_fold": 2})
    seen = status(two_folds, *begun(0, epoch=1), reported(0, 2, 0.5, 14.0), reported(0, 3, 0.25, 18.0))
    assert seen.progress == Progress(unit="epoch", n_done=3, n_all=10, end_s=18.0 + 7 * 4.0)
    assert seen.progress.share == 0.3
    assert seen.curve == (0.5, 0.25)
    assert seen.kind == "training of net"


def test_a_training_that_is_given_more_epochs_is_counted_by_these():
    again = TRAINING.replaced(time_s=9.0, unix_s=109.0, identity={**TRAINING.identity, "training": {"epochs": 8}})
    seen = status(TRAINING, *trial(0), again, *begun(1, epoch=5), reported(1, 6, 0.5, 14.0))
    assert seen.progress == Progress(unit="epoch", n_done=6, n_all=8, end_s=14.0 + 2 * 4.0)
    assert (seen.running[0]["epoch"], seen.running[0]["n_epochs"]) == (6, 8)


def test_more_epochs_than_the_journal_promises_are_no_share():
    (fold,) = status(SEARCH, *begun(0), reported(0, 9, 0.5, 15.0)).running
    assert fold["n_epochs"] is None


def test_the_curve_is_of_the_best_in_the_order_of_ends_and_follows_the_direction():
    trials = [*trial(0, 0.5), *trial(1, 0.75), *trial(2, 0.25)]
    assert status(SEARCH, *trials).curve == (0.5, 0.5, 0.25)
    maximised = SEARCH.replaced(identity={"direction": "max"})
    assert status(maximised, *trials).curve == (0.5, 0.75, 0.75)


def test_failures_are_grouped_by_their_reasons():
    seen = status(SEARCH, *failed(0, "b"), *failed(1, "a\nb"), *failed(2, "b"))
    assert [(failure["reason"], failure["trials"]) for failure in seen.failures] == [("b", [0, 2]), ("a\nb", [1])]
    assert text.status_lines(seen)[-2:] == ["Failed: 2 trials, first 0: b", "Failed: trial 1: a b"]


def test_lost_ranks_are_in_a_sentence():
    lost = ev.RanksLost(time_s=3.0, ranks=[3], block=1, team=0, n_alive=1, n_ranks=1)
    assert text.status_lines(status(SEARCH, lost))[-1] == "Died: rank 3 of block 1 (the block continues with 1 rank)."


def test_a_status_on_a_few_lines():
    assert text.status_lines(status(*UNDER_WAY)) == [
        "`run`, random search of net: running for 0:00:20.",
        "Done: 1/4 trials, about 0:00:23 left (1 running, 1 complete; 1 of 2 blocks busy, 18% of the time).",
        "Best: 0.5 (trial 0), at x=0.",
        "Trial 1 on block 2: epoch 2/5, figure of merit 0.75, for 0:00:10.",
    ]
    many = [event for number in range(9) for event in begun(number)]
    assert text.status_lines(status(SEARCH, *many))[-1] == "… and 4 more."


# ---------------------------------------------------------------- text


def test_a_bar_is_full_when_all_is_done_and_not_before():
    assert (text.bar(0.0, 4), text.bar(0.99, 4), text.bar(1.0, 4)) == ("────", "━━━─", "━━━━")
    assert text.bar(0.5, 4, ascii_only=True) == "==.."
    assert text.with_bar(0.5, "text", 10) == "━━─── text"
    assert text.with_bar(0.5, "text", 9) == "text"
    assert text.with_bar(0.5, "text", 3) == "tex"


def test_a_curve_has_a_character_for_each_value_or_for_the_last_of_some():
    assert text.curve_text([1.0, 0.5, 0.0], 9) == "█▅▁"
    assert text.curve_text(list(range(8)), 4, ascii_only=True) == "_-*#"
    assert text.curve_text([1.0, 0.1, 0.01], 9) == "█▅▁"
    assert text.curve_text([0.01, 0.1, 1.0], 9) == "▁▂█"
    assert text.curve_text([2.0] * 3, 9) == "▁▁▁"
    assert text.curve_text([], 9) == text.curve_text([1.0], 0) == ""


def test_columns_are_aligned_and_the_last_one_is_free():
    assert text.aligned([["trial", "state"], ["7", "failed"], ["12", ""]]) == ["trial  state", "    7  failed", "   12"]


def test_progress_without_an_end_in_sight():
    assert text.progress_text(Progress(unit="trial", n_done=3, n_all=None), None) == "3 trials"


def test_the_line_at_the_bottom_fits():
    ledger = Ledger(UNDER_WAY)
    assert text.bottom_line(ledger, 3.0, 70) == "━━━━────────────── 1/4 trials, about 0:00:40 left | best 0.5 (trial 0)"
    assert all(len(text.bottom_line(ledger, 3.0, n)) <= n for n in range(100))
    assert text.bottom_line(Ledger([SEARCH]), 3.0, 20, ascii_only=True) == "......... 0/4 trials"
    assert text.best_text(status(SEARCH)) == "no complete trial yet"
