import numpy as np
import pytest

from nnlo_opt.search.base import History, TrialState
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
        ((4, {"n": 4}, "complete"), "exactly when it is complete"),
        ((4, {"n": 4}, "failed", 1.0), "exactly when it is complete"),
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
