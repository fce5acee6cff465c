import itertools

import numpy as np
import pytest

from nnlo_opt.ancestors.manager.generated import GeneratedStream, Pool, as_samples, count_batches, dealt
from nnlo_opt.core.base.errors import ConfigurationError, TrialError


def batches(sizes=(3, 3, 2)):
    start = 0
    for size in sizes:
        rows = np.arange(start, start + size)
        yield [rows[:, None]], [rows % 2]
        start += size


def rows_of(batch):
    return batch.x[:, 0].astype(int).tolist()


# ---------------------------------------------------------------- batches


def test_lists_of_one_array_are_that_array_and_features_become_float32():
    samples = as_samples(([np.arange(4, dtype=np.int64)[:, None]], [np.array([0, 1, 1, 0])]))
    assert (samples.x.dtype, samples.x.shape) == (np.float32, (4, 1))
    assert (samples.y.dtype.kind, samples.weights) == ("i", None)


def test_several_inputs_outputs_and_sample_weights():
    x, y = np.ones((2, 3)), np.zeros((2, 1))
    samples = as_samples(((x, [x, x]), (y, y), np.ones(2)))
    assert [type(part) for part in samples.x] == [np.ndarray, list]
    assert len(samples.y) == 2
    assert samples.weights.dtype == np.float32


def test_a_generator_may_use_its_arrays_again():
    x = np.zeros((2, 1), np.float32)
    samples = as_samples((x, x))
    x[:] = 7
    assert not samples.x.any()


@pytest.mark.parametrize(
    ("item", "received"),
    [
        (np.ones((2, 2)), "a ndarray"),
        ((np.ones((2, 2)),), "1 values"),
        ((np.ones((2, 2)), np.ones(3)), "2, 3 rows"),
        (({"a": np.ones(2)}, np.ones(2)), "a dict"),
        ((np.array(["a", "b"]), np.ones(2)), "an array of <U1"),
    ],
)
def test_anything_else_is_refused(item, received):
    with pytest.raises(TrialError, match=received):
        as_samples(item)


def test_an_endless_generator_is_an_error_that_says_so():
    def endless():
        while True:
            yield from batches()

    with pytest.raises(ConfigurationError, match=r"must return after one epoch.*more than 50 batches"):
        count_batches(endless, 50)
    stream = GeneratedStream(endless, n_expected=8)
    with pytest.raises(TrialError, match="must return after one epoch"):
        _ = [stream.next() for _ in range(10)]


def test_empty_batches_count_nothing():
    assert count_batches(lambda: batches((2, 0, 1)), 10) == [2, 1]


# ---------------------------------------------------------------- the stream


def test_a_pass_ends_with_the_generator_and_the_next_begins():
    stream = GeneratedStream(batches, 8)
    seen = [stream.next() for _ in range(4)]
    assert [rows_of(batch) for batch in seen] == [[0, 1, 2], [3, 4, 5], [6, 7], [0, 1, 2]]
    assert [batch.end_of_pass for batch in seen] == [False, False, True, False]
    assert stream.position == (1, 1)


def test_going_back_to_a_position_is_exact():
    stream = GeneratedStream(batches, 8)
    stream.next()
    position = stream.position
    after = [rows_of(stream.next()) for _ in range(3)]
    stream.seek(*position)
    assert [rows_of(stream.next()) for _ in range(3)] == after


def test_looking_at_the_next_batch_leaves_it_the_next():
    stream = GeneratedStream(batches, 8)
    assert len(stream.peek()) == 3
    assert rows_of(stream.next()) == [0, 1, 2]


def test_a_pass_without_batches_is_an_error():
    with pytest.raises(TrialError, match="none in pass 1"):
        GeneratedStream(lambda: iter(()), 1).next()


# ---------------------------------------------------------------- dealing


def test_all_units_are_dealt_out_once():
    for by_files, n in itertools.product((True, False), (2, 3)):
        pool = Pool(files=tuple("abcdefg"), sizes=tuple(range(1, 8)), by_files=by_files)
        parts = [pool.deal(n, {i}) for i in range(n)]
        assert sorted(size for part in parts for size in part.sizes) == list(range(1, 8))
        if by_files:
            assert sorted(name for part in parts for name in part.files) == list("abcdefg")


def test_deals_follow_each_other_as_the_pool_says():
    pool = Pool(files=(), sizes=tuple(range(20)), by_files=False)
    mine = pool.deal(3, {0, 2}).deal(2, {1})
    assert tuple(dealt(range(20), mine.deals)) == mine.sizes
    assert mine.deals == ((True, False, True), (False, True))


def test_a_pool_that_was_not_counted_is_dealt_by_turns():
    pool = Pool(files=("a",), sizes=None, by_files=False)
    assert not pool.is_empty
    assert [*dealt("abcdef", pool.deal(2, {1}).deals)] == ["b", "d", "f"]
