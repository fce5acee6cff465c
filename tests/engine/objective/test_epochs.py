"""Numbers of epochs."""

import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.engine.objective.epochs import EpochCount


@pytest.mark.parametrize(
    ("first", "own", "numbers"),
    [(-1, [0, 1, 4], [1, 2, 5]), (-1, [1, 2], [1, 2]), (-1, [5, 6], [5, 6]), (0, [5, 6], [6, 7]), (1, [5], [5])],
)
def test_a_trial_that_begins_with_0_has_each_epoch_with_one_more_in_the_journal(first, own, numbers):
    count = EpochCount(first)
    assert [count.number(epoch) for epoch in own] == numbers
    assert count.is_from_0 == (numbers != own)


def test_a_trial_that_has_begun_with_another_epoch_has_no_epoch_0():
    count = EpochCount()
    count.number(2)
    with pytest.raises(TrialError, match="count its epochs from 1"):
        count.number(0)
    assert count.number(3) == 3
