import math

import pytest

from nnlo_opt.core.search.racing import race, student_t_tail


@pytest.mark.parametrize(
    ("n_degrees", "t"), [(1, 6.313752), (2, 2.919986), (3, 2.353363), (4, 2.131847), (9, 1.833113), (30, 1.697261)]
)
def test_the_tail_is_that_of_the_tables(n_degrees, t):
    assert student_t_tail(t, n_degrees) == pytest.approx(0.05, abs=1e-6)
    assert student_t_tail(-t, n_degrees) == pytest.approx(0.95, abs=1e-6)
    assert student_t_tail(0.0, n_degrees) == 0.5


def test_differences_are_taken_on_the_same_folds():
    """Differences 1 and 1.1: mean 1.05, standard error 0.05, t = 21 with one degree: p = atan(1/21) / pi."""
    best = {0: 10.0, 1: 20.0, 2: 30.0}
    assert race({0: 11.0, 1: 21.1}, best, 3) == pytest.approx(math.atan(1 / 21) / math.pi)
    # By their means alone nothing could be said: the folds differ by far more than the trials.


@pytest.mark.parametrize(
    ("figures", "chance"),
    [({0: 9.0}, 1.0), ({0: 2.0, 1: 2.0, 2: 2.0}, 1.0), ({0: 0.5, 1: 0.6}, 1.0), ({0: 1.0, 1: 1.0}, 1.0), ({}, 1.0)],
)
def test_it_says_nothing_of_one_fold_of_all_folds_or_of_a_better_trial(figures, chance):
    assert race(figures, {0: 1.0, 1: 1.0, 2: 1.0}, 3) == chance


def test_the_same_loss_on_every_fold_is_certain():
    assert race({0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0, 2: 1.0}, 3) == 0.0


def test_figures_may_be_maximised():
    best = {0: 1.0, 1: 1.0, 2: 1.0}
    assert race({0: 0.5, 1: 0.6}, best, 3, maximise=True) < 0.05
    assert race({0: 1.5, 1: 1.6}, best, 3, maximise=True) == 1.0
