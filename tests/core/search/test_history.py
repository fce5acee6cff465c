import numpy as np
import pytest

from nnlo_opt.core.search.base import History, TrialState
from nnlo_opt.space import Integer, Space

SPACE = Space([Integer(0, 999, name="n")])


@pytest.fixture
def history():
    return History(SPACE)


def test_columns_follow_the_trials(history):
    for trial in (0, 1, 5):
        history.record(trial, {"n": trial}, "pending")
    history.record(5, {"n": 5}, "complete", 0.5)
    history.record(0, {"n": 0}, "failed")
    assert history.n_suggested == 3
    assert history.trials.tolist() == [0, 1, 5]
    assert history.points == [{"n": 0}, {"n": 1}, {"n": 5}]
    assert history.states == [TrialState.FAILED, TrialState.PENDING, TrialState.COMPLETE]
    np.testing.assert_array_equal(history.values, [np.nan, np.nan, 0.5])


def test_it_grows(history):
    for trial in range(500):
        history.record(trial, {"n": trial}, "complete", float(trial))
    assert history.values.tolist() == list(range(500))


def test_duplicates_are_known_in_every_state(history):
    history.record(0, {"n": 7}, "pending")
    history.record(1, {"n": 7}, "complete", 1.0)
    history.record(2, {"n": 8}, "failed")
    assert history.n_distinct == 2
    assert history.contains({"n": 7.0})
    assert history.contains({"n": 8})
    assert not history.contains({"n": 9})


def test_columns_cannot_be_written(history):
    history.record(0, {"n": 1}, "complete", 1.0)
    with pytest.raises(ValueError, match="read-only"):
        history.values[0] = 2.0


def test_an_infeasible_trial_has_failed_with_its_value(history):
    history.adopt({"point": {"n": 9}, "value": 0.5, "feasible": False})
    for _ in range(2):
        history.record(0, {"n": 1}, "failed", 1.0, std=0.5)
    with pytest.raises(ValueError, match="stay as it is"):
        history.record(0, {"n": 1}, "failed", 2.0)
    assert history.states == [TrialState.FAILED] * 2
    assert (history.values.tolist(), history.stds[1]) == ([0.5, 1.0], 0.5)
    assert list(history.measured) == []


def test_saying_the_same_again_changes_nothing(history):
    for _ in range(2):
        history.record(0, {"n": 1}, "pending")
    for _ in range(2):
        history.record(0, {"n": 1}, "complete", 1.0)
    assert history.n_suggested == 1


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ((2, {"n": 3}, "pending"), "order of their numbers"),
        ((3, {"n": 4}, "pending"), "keep its point"),
        ((3, {"n": 3}, "pending"), "stay as it is"),
        ((3, {"n": 3}, "failed"), "stay as it is"),
        ((3, {"n": 3}, "complete", 2.0), "stay as it is"),
        ((4, {"n": 4}, "complete"), "must have a value if"),
        ((4, {"n": 4}, "pending", 1.0), "must have a value if"),
        ((4, {"n": 4}, "complete", float("nan")), "must be finite"),
        ((4, {"n": 4}, "complete", float("inf")), "must be finite"),
        ((4, {"n": 4000}, "pending"), "`n`"),
        ((4, {"n": 4}, "running"), "TrialState"),
    ],
)
def test_what_is_refused_changes_nothing(history, record, words):
    history.record(3, {"n": 3}, "complete", 1.0)
    with pytest.raises(ValueError, match=words):
        history.record(*record)
    assert history.trials.tolist() == [3]
    assert history.states == [TrialState.COMPLETE]
    assert history.values.tolist() == [1.0]
    assert history.n_distinct == 1


def test_a_pruned_trial_has_a_value_and_may_be_told_again(history):
    history.record(0, {"n": 1}, "pending")
    for value in (0.5, 0.5, 0.4):
        history.record(0, {"n": 1}, "pruned", value)
    assert history.states == [TrialState.PRUNED]
    assert history.values.tolist() == [0.4]
    with pytest.raises(ValueError, match="stay as it is"):
        history.record(0, {"n": 1}, "pending")
    with pytest.raises(ValueError, match="must have a value"):
        history.record(0, {"n": 1}, "pruned")
    history.record(0, {"n": 1}, "complete", 0.3)
    with pytest.raises(ValueError, match="stay as it is"):
        history.record(0, {"n": 1}, "pruned", 0.2)
    assert history.values.tolist() == [0.3]


def test_algorithms_see_pruned_trials_as_complete_but_never_as_the_best():
    history = History(SPACE)
    history.adopt({"point": {"n": 90}, "value": 4.0, "std": 0.5})
    for trial, (state, value) in enumerate([("pruned", 1.0), ("complete", 2.0), ("pruned", 3.0), ("failed", None)]):
        history.record(trial, {"n": trial}, state, value)
    history.record(4, {"n": 4}, "pending")
    settled = history.settled()
    assert list(settled.states) == ["complete", "complete", "complete", "complete", "failed", "pending"]
    np.testing.assert_array_equal(settled.values, [4.0, 2.0, 2.0, 3.0, np.nan, np.nan])
    np.testing.assert_array_equal(settled.stds, history.stds)
    assert (settled.n_adopted, settled.n_suggested, settled.contains({"n": 2})) == (1, 5, True)
    assert list(history.states)[1] == "pruned"


def test_pruned_trials_alone_keep_their_values_and_without_any_the_history_is_itself():
    history = History(SPACE)
    history.record(0, {"n": 0}, "pending")
    assert history.settled() is history
    history.record(0, {"n": 0}, "pruned", 1.0)
    assert list(history.settled().values) == [1.0]


def test_values_at_rungs_are_mapped_to_the_ends_of_trials_that_continued():
    history = History(SPACE)
    curves = [[(1, 9.0), (3, 5.0), (9, 4.0)], [(1, 8.0), (3, 6.0)], [(1, 11.0)], [(1, 7.5), (3, 6.5)]]
    for trial, curve in enumerate(curves):
        state = "complete" if trial == 0 else "pruned"
        history.record(trial, {"n": trial}, state, 3.5 if trial == 0 else curve[-1][1], curve=curve)
    # At epoch 3 the trial that went on was the best, so that all values have the same 1.5 to gain. At epoch 1 the best
    # had 7.5 and the median of those that went on 8, which became 3.5 and 4.5: a distance counts twice.
    settled = history.settled()
    assert settled.values.tolist() == [3.5, 4.5, 3.5 + 2.0 * (11.0 - 7.5), 5.0]
    assert [(m.row, round(m.share, 2)) for m in settled.measured] == [
        (0, 0.3), (0, 0.6), (0, 1.0), (1, 0.3), (1, 0.6), (2, 0.3), (3, 0.3), (3, 0.6),
    ]  # fmt: skip
    assert {m.value for m in settled.measured if m.share == pytest.approx(0.6, abs=0.03)} == {3.5, 4.5, 5.0}


def test_many_numbers_of_epochs_are_compared_at_a_few():
    history = History(SPACE)
    for trial in range(60):
        curve = [(epoch, 100.0 - epoch) for epoch in range(1, trial + 2)]
        history.record(trial, {"n": trial}, "pruned" if trial < 59 else "complete", curve[-1][1], curve=curve)
    settled = history.settled()
    assert len({measured.share for measured in settled.measured}) <= 7
    assert settled.values.max() < 60
