"""Decisions between a paused trial and a new one."""

import numpy as np
import pytest

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.bayesian import BayesianSearch
from nnlo_opt.core.search.start_points import START_POINT, StartPointSearch
from nnlo_opt.space import Real, Space

SPACE = Space([Real(0, 1, name="x"), Real(0, 1, name="y")])
N_EPOCHS = 27


def new_history():
    history = History(SPACE)
    history.max_epochs = N_EPOCHS
    return history


def value(point, epoch):
    """A curve that falls to the end (x - 0.3)^2 + (y - 0.7)^2, the sooner the smaller y is."""
    end = (point["x"] - 0.3) ** 2 + (point["y"] - 0.7) ** 2
    return float(end + np.exp(-epoch * (0.2 + 0.2 * (1 - point["y"]))))


def record(history, trial, point, epoch, **progress):
    """Record a trial that waits after `epoch` epochs, or has come to its end."""
    waits, curve = epoch < N_EPOCHS, [(e, value(point, e)) for e in range(1, epoch + 1)]
    known = {"waits": waits, "n_rungs": 0, "n_epochs": epoch, "train_s": float(epoch), "start_s": 0.5} | progress
    state = "pruned" if waits else "complete"
    history.record(trial, point, state, curve[-1][1], curve=curve, progress=known)


def history_of(epochs, points=None, **progress):
    """A history of trials with so many epochs, at random points by default."""
    history, rng = new_history(), np.random.default_rng(1)
    for trial, epoch in enumerate(epochs):
        point = points[trial] if points else SPACE.draw(rng)
        history.record(trial, point, "pending")
        record(history, trial, point, epoch, **progress.get(f"t{trial}", {}))
    return history


def decided(history):
    """The number of the trial that goes on; None for a new one."""
    return history.waiting_trial(BayesianSearch(SPACE, 0, 4).suggest(history.settled()))


SPREAD = [27, 27, 3, 27, 3, 3, 22, 3, 3, 3, 3, 8]


def test_the_trial_with_the_best_end_is_resumed():
    points = [SPACE.draw(np.random.default_rng(seed)) for seed in range(len(SPREAD))]
    points[6] = {"x": 0.3, "y": 0.68}
    assert decided(history_of(SPREAD, points)) == 6


@pytest.mark.parametrize("cost", ["train_s", "start_s"])
def test_long_epochs_and_long_starts_are_dear(cost):
    points = [SPACE.draw(np.random.default_rng(seed)) for seed in range(len(SPREAD))]
    points[6] = {"x": 0.3, "y": 0.68}
    assert decided(history_of(SPREAD, points, t6={cost: 1e9})) != 6


def test_a_new_trial_begins_if_none_is_promising():
    good, bad = [{"x": 0.3 + 0.03 * i, "y": 0.5} for i in range(6)], [{"x": 1.0, "y": 0.1 * i} for i in range(6)]
    assert decided(history_of([27] * 6 + [3] * 6, good + bad)) is None


def test_a_trial_is_not_taken_twice():
    points = [SPACE.draw(np.random.default_rng(seed)) for seed in range(len(SPREAD))]
    points[6] = {"x": 0.3, "y": 0.68}
    history = history_of(SPREAD, points)
    record(history, 6, points[6], 8, waits=False, n_rungs=2)
    assert decided(history) != 6


@pytest.mark.parametrize("n_promoted", [0, 1, 2])
def test_promotions_count_among_the_random_streams(n_promoted):
    history = history_of([3] * 4, t0={"n_rungs": n_promoted})
    assert history.n_promoted == n_promoted
    drawn = BayesianSearch(SPACE, 0, 4)._rng(history).random()
    assert drawn == np.random.default_rng((0, 4, n_promoted)).random()


@pytest.mark.parametrize("n_known", range(11, 30, 6))
def test_a_decision_is_a_function_of_the_history(n_known):
    """A search that saw every step, and one that is told how things stand, decide alike."""
    seen, search = new_history(), BayesianSearch(SPACE, 3, 4)
    epochs: dict[int, int] = {}
    for _ in range(n_known):
        point = search.suggest(seen.settled())
        trial = seen.waiting_trial(point)
        if trial is None:
            trial = len(epochs)
            seen.record(trial, point, "pending")
        epochs[trial] = min(3 * epochs.get(trial, 1), N_EPOCHS)
        record(seen, trial, point, epochs[trial], n_rungs=epochs[trial] // 9)
    told = new_history()
    for trial, point in enumerate(seen.points):
        record(told, trial, point, epochs[trial], n_rungs=epochs[trial] // 9)
    assert BayesianSearch(SPACE, 3, 4).suggest(told.settled()) == search.suggest(seen.settled())
    assert len(epochs) < n_known, "no trial ever went on"


def test_paused_trials_are_resumed_between_start_points():
    points = [SPACE.draw(np.random.default_rng(seed)) for seed in range(len(SPREAD))]
    points[6] = {"x": 0.3, "y": 0.68}
    history, first = history_of(SPREAD, points), {"x": 0.5, "y": 0.5}
    search = StartPointSearch(BayesianSearch(SPACE, 0, 4), {START_POINT: [first]})
    assert search.suggest(history.settled()) == points[6]
    record(history, 6, points[6], N_EPOCHS)
    assert search.suggest(history.settled()) == first


def test_the_algorithm_is_asked_once_for_a_decision():
    asked = []

    class Asked(BayesianSearch):
        def suggest(self, history):
            asked.append(history.n_suggested)
            return super().suggest(history)

    good, bad = [{"x": 0.3 + 0.03 * i, "y": 0.5} for i in range(6)], [{"x": 1.0, "y": 0.1 * i} for i in range(6)]
    history = history_of([27] * 6 + [3] * 6, good + bad)
    assert history.waiting_trial(StartPointSearch(Asked(SPACE, 0, 4), {}).suggest(history.settled())) is None
    assert asked == [12]
