import pytest

from nnlo_opt.coordinator.stock import N_LATEST, SHORTAGE, Stock


def stock(n_blocks: int, suggestion_s: float, trial_s: float) -> Stock:
    result = Stock(n_blocks)
    result.take_suggestion(suggestion_s)
    result.take_trial(trial_s)
    return result


def test_one_is_held_while_nothing_is_known():
    learning = Stock(100)
    assert learning.target == 1
    learning.take_suggestion(1.0)
    assert learning.target == 1


@pytest.mark.parametrize(
    ("suggestion_s", "target"),
    [(0.0, 1), (0.0125, 1), (0.0625, 3), (0.125, 5), (0.2, 14), (0.25, 20), (9.0, 20)],
)
def test_the_stock_is_empty_for_few_of_the_blocks_that_come(suggestion_s, target):
    held = stock(20, suggestion_s, trial_s=5.0)
    assert held.target == target
    rho = 20 * suggestion_s / 5.0
    if 0 < target < 20:
        assert rho**target <= SHORTAGE
        assert target == 1 or rho ** (target - 1) > SHORTAGE


def test_only_the_latest_count():
    held = stock(20, 9.0, trial_s=5.0)
    for _ in range(N_LATEST):
        held.take_suggestion(0.001)
    assert held.target == 1


def test_trials_that_take_no_time_are_no_division_by_zero():
    assert stock(3, 0.0, 0.0).target == 3
