import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.trees import n_samples, shapes_of
from nnlo_opt.core.data.ragged import Ragged, concatenate, padded, take

LENGTHS = st.lists(st.integers(0, 5), max_size=12)


def make(lengths: list[int]) -> Ragged:
    """Step s of sample i is (i + 1, s + 1)."""
    steps = [(i + 1, s + 1) for i, length in enumerate(lengths) for s in range(length)]
    return Ragged(np.array(steps, np.float32).reshape(-1, 2), np.array(lengths, np.int64))


def lists(ragged: Ragged) -> list[list]:
    ends = np.cumsum(ragged.lengths)
    return [ragged.steps[end - n : end].tolist() for n, end in zip(ragged.lengths, ends, strict=True)]


@given(LENGTHS, st.data())
def test_samples_are_taken_as_from_a_list(lengths: list[int], data: st.DataObject) -> None:
    ragged, expected = make(lengths), lists(make(lengths))
    assert (len(ragged), ragged.shape) == (len(lengths), (len(lengths), None, 2))
    start, stop = (data.draw(st.integers(0, len(lengths) + 2)) for _ in range(2))
    assert lists(ragged[start:stop]) == expected[start:stop]
    if lengths:
        rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9))
        assert lists(ragged[np.array(rows, np.int64)]) == [expected[row] for row in rows]


@given(LENGTHS)
def test_filled_up_with_0_to_the_longest_and_back(lengths: list[int]) -> None:
    ragged = make(lengths)
    array = ragged.padded()
    assert array.shape == (len(lengths), max([1, *lengths]), 2)
    assert np.count_nonzero(array) == 2 * sum(lengths)
    assert lists(Ragged.of(array, ragged.lengths)) == lists(ragged)


@given(LENGTHS, LENGTHS)
def test_one_after_another(first: list[int], second: list[int]) -> None:
    both = concatenate([[make(first), np.zeros(len(first))], [make(second), np.ones(len(second))]])
    assert lists(both[0]) == lists(make(first)) + lists(make(second))
    assert both[1].sum() == len(second)


def test_trees_with_both_kinds() -> None:
    tree = [np.arange(3), [make([1, 0, 2])]]
    assert n_samples(tree) == 3
    assert shapes_of(tree) == [(), [(None, 2)]]
    taken = take(tree, np.array([2, 0]))
    assert taken[0].tolist() == [2, 0]
    assert padded(taken)[1][0].shape == (2, 2, 2)
    assert np.shares_memory(take(tree, slice(1, 3))[1][0].steps, tree[1][0].steps)
    assert concatenate([tree]) is tree


def test_lengths_that_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="3 steps are expected"):
        Ragged(np.zeros(2), np.array([1, 2]))
