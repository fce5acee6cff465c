import pytest

from nnlo_opt.core.coordinator.suggestions import N_LATEST, SHORTAGE, SuggestionBuffer
from nnlo_opt.core.search.base import Suggestion


def answer(held: SuggestionBuffer, suggestion_s: float, *, is_last: bool = False) -> None:
    held.ask()
    held.add(Suggestion(point=None if is_last else {"n": 1}, wall_s=suggestion_s))


def buffer(n_blocks: int, suggestion_s: float, trial_s: float) -> SuggestionBuffer:
    result = SuggestionBuffer(n_blocks)
    answer(result, suggestion_s)
    result.add_trial(trial_s)
    return result


def test_one_is_held_while_nothing_is_known():
    learning = SuggestionBuffer(100)
    assert learning.target == 1
    answer(learning, 1.0)
    assert learning.target == 1


@pytest.mark.parametrize(
    ("suggestion_s", "target"), [(0.0, 1), (0.0125, 1), (0.0625, 3), (0.125, 5), (0.2, 14), (0.25, 20), (9.0, 20)]
)
def test_the_buffer_is_empty_for_few_of_the_blocks_that_come(suggestion_s, target):
    held = buffer(20, suggestion_s, trial_s=5.0)
    assert held.target == target
    rho = 20 * suggestion_s / 5.0
    if 0 < target < 20:
        assert rho**target <= SHORTAGE
        assert target == 1 or rho ** (target - 1) > SHORTAGE


def test_only_the_latest_count():
    held = buffer(20, 9.0, trial_s=5.0)
    for _ in range(N_LATEST):
        answer(held, 0.001)
    assert held.target == 1


def test_trials_that_take_no_time_are_no_division_by_zero():
    assert buffer(3, 0.0, 0.0).target == 3


def test_one_is_asked_for_at_a_time_until_every_idle_block_has_one_and_the_target_is_held():
    held = SuggestionBuffer(3)
    n_idle, n_asked = 2, 0
    while held.is_short(n_idle):
        held.ask()
        assert not held.is_short(n_idle)
        answer(held, 9.0)
        n_asked += 1
    assert n_asked == len(held.ready) == n_idle + 1


def test_nothing_is_asked_for_when_the_space_is_used_up_and_what_is_held_is_still_given_out():
    held = SuggestionBuffer(3)
    answer(held, 1.0)
    answer(held, 1.0, is_last=True)
    assert not held.is_short(3)
    assert not held.is_used_up
    assert held.ready.popleft().point == {"n": 1}
    assert held.is_used_up
