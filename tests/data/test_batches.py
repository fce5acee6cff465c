import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.data.batches import Batch, BatchStream, iterate

SIZES = st.tuples(st.integers(1, 30), st.integers(1, 40))


def make(n: int, batch_size: int, *, key: tuple[int, ...] = (1, 2), shuffle: bool = True) -> BatchStream:
    x = np.arange(n, dtype=np.float32).reshape(n, 1)
    return BatchStream(x, np.arange(n), batch_size, rng_key=key, shuffle=shuffle)


def one_pass(stream: BatchStream) -> list[Batch]:
    batches = [stream.next()]
    while not batches[-1].end_of_pass:
        batches.append(stream.next())
    return batches


def order(stream: BatchStream) -> list[int]:
    return [int(label) for batch in one_pass(stream) for label in batch.y]


@given(SIZES, st.booleans())
def test_a_pass_has_every_sample_once(sizes: tuple[int, int], shuffle: bool) -> None:
    n, batch_size = sizes
    stream = make(n, batch_size, shuffle=shuffle)
    for number in range(3):
        assert stream.position == (number, 0)
        batches = one_pass(stream)
        assert sorted(int(label) for batch in batches for label in batch.y) == list(range(n))
        assert all(len(batch.x) == batch_size for batch in batches[:-1])
        assert len(batches) == -(-n // batch_size)
        for batch in batches:
            assert np.array_equal(batch.x[:, 0], batch.y)


def test_order_depends_on_key_and_pass_alone() -> None:
    first, again = make(20, 3), make(20, 7)
    orders = [order(first), order(first)]
    assert orders == [order(again), order(again)]
    assert orders[0] != orders[1]
    assert orders[0] != order(make(20, 3, key=(1, 3)))
    assert order(make(20, 3, shuffle=False)) == list(range(20))


@given(SIZES, st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_seek_is_exact(sizes: tuple[int, int], n_before: int, n_after: int, shuffle: bool) -> None:
    stream, other = make(*sizes, shuffle=shuffle), make(*sizes, shuffle=shuffle)
    for _ in range(n_before):
        stream.next()
    position = stream.position
    then = [stream.next() for _ in range(n_after)]
    other.next()
    other.seek(*position)
    assert other.position == position
    for batch in then:
        same = other.next()
        assert np.array_equal(batch.x, same.x)
        assert np.array_equal(batch.y, same.y)
        assert batch.end_of_pass == same.end_of_pass
    assert other.position == stream.position


@pytest.mark.parametrize("position", [(-1, 0), (0, -1), (0, 5)])
def test_positions_that_cannot_be(position: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="position"):
        make(5, 2).seek(*position)


def test_streams_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        make(0, 2)
    with pytest.raises(ValueError, match="batch size 0"):
        make(2, 0)
    with pytest.raises(ValueError, match="3 samples, 2 labels"):
        BatchStream(np.zeros(3), np.zeros(2), 1, rng_key=(0,), shuffle=True)


@given(st.integers(0, 30), st.integers(1, 40))
def test_iterate_is_one_pass_in_order(n: int, batch_size: int) -> None:
    x = np.arange(n)
    pairs = list(iterate(x, x + 1, batch_size))
    assert [int(value) for a, _ in pairs for value in a] == list(range(n))
    assert all(np.array_equal(a + 1, b) and 0 < len(a) <= batch_size for a, b in pairs)
    with pytest.raises(ValueError, match="labels"):
        iterate(x, np.arange(n + 1), batch_size)
