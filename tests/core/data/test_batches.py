import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.data.batches import Batch, BatchStream, Samples, WindowsInMemory, iterate
from nnlo_opt.core.data.order import Cut, Order
from nnlo_opt.core.data.ragged import Ragged

SIZES = st.tuples(st.integers(1, 30), st.integers(1, 40))


def make(n: int, batch_size: int, *, shuffle: bool = True, cut: Cut | None = None):
    x = np.arange(n, dtype=np.float32).reshape(n, 1)
    samples = Samples(x, np.arange(n), np.arange(n, dtype=np.float32) / 2)
    return BatchStream(WindowsInMemory(samples, Order(n, (1, 2), shuffle=shuffle, cut=cut)), batch_size)


CUTS = st.none() | st.builds(Cut, block=st.integers(1, 7), n_blocks=st.integers(1, 4))


def one_pass(stream: BatchStream) -> list[Batch]:
    batches = [stream.next()]
    while not batches[-1].end_of_pass:
        batches.append(stream.next())
    return batches


def order(stream: BatchStream) -> list[int]:
    return [int(label) for batch in one_pass(stream) for label in batch.y]


@settings(deadline=None)
@given(SIZES, st.booleans(), CUTS)
def test_a_pass_has_every_sample_once(sizes: tuple[int, int], shuffle: bool, cut: Cut | None) -> None:
    n, batch_size = sizes
    stream = make(n, batch_size, shuffle=shuffle, cut=cut)
    for number in range(3):
        assert stream.position == (number, 0)
        batches = one_pass(stream)
        assert sorted(int(label) for batch in batches for label in batch.y) == list(range(n))
        assert all(len(batch.x) == batch_size for batch in batches[:-1])
        assert len(batches) == -(-n // batch_size)
        for batch in batches:
            assert np.array_equal(batch.x[:, 0], batch.y)
            assert batch.weights is not None
            assert np.array_equal(batch.weights * 2, batch.y)


def test_the_order_is_that_of_the_windows_and_does_not_depend_on_the_size_of_a_batch() -> None:
    for cut in (None, Cut(block=3, n_blocks=2)):
        first, again = make(20, 3, cut=cut), make(20, 7, cut=cut)
        assert [order(first), order(first)] == [order(again), order(again)]
        assert order(make(20, 3, shuffle=False, cut=cut)) == list(range(20))


@settings(deadline=None)
@given(SIZES, st.integers(0, 30), st.integers(0, 30), st.booleans(), CUTS)
def test_seek_is_exact(sizes: tuple[int, int], n_before: int, n_after: int, shuffle: bool, cut: Cut | None) -> None:
    stream, other = make(*sizes, shuffle=shuffle, cut=cut), make(*sizes, shuffle=shuffle, cut=cut)
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
    with pytest.raises(ValueError, match=r"\[2, 3\] rows"):
        WindowsInMemory(Samples(np.zeros(3), np.zeros(2)), Order(3, (0,), shuffle=True))
    with pytest.raises(ValueError, match="4 samples are expected"):
        WindowsInMemory(Samples(np.zeros(3), np.zeros(3)), Order(4, (0,), shuffle=True))


def test_without_shuffling_and_in_one_window_batches_are_views() -> None:
    x = np.zeros((10, 2), np.float32)
    stream = BatchStream(WindowsInMemory(Samples(x, np.arange(10)), Order(10, (0,), shuffle=False)), 4)
    assert all(np.shares_memory(batch.x, x) for batch in one_pass(stream))


def test_batches_of_several_inputs_and_of_sequences() -> None:
    lengths = np.array([2, 0, 3, 1, 4])
    words = Ragged(np.repeat(np.arange(5, dtype=np.float32), lengths), lengths)
    tree = [np.arange(5, dtype=np.float32), [np.arange(10).reshape(5, 2), words]]
    for cut in (None, Cut(block=1, n_blocks=2)):
        order_of = Order(5, (3,), shuffle=True, cut=cut)
        stream = BatchStream(WindowsInMemory(Samples(tree, [np.arange(5)]), order_of), 3)
        for _ in range(4):
            batch = stream.next()
            (chosen,) = batch.y
            assert np.array_equal(batch.x[0], chosen)
            assert np.array_equal(batch.x[1][0][:, 0], 2 * chosen)
            got = batch.x[1][1]
            assert got.shape == (len(chosen), max(1, lengths[chosen].max()))
            for row, number in zip(got, chosen, strict=True):
                assert row.tolist() == [number] * lengths[number] + [0] * (len(row) - lengths[number])


@given(st.integers(0, 30), st.integers(1, 40))
def test_iterate_is_one_pass_in_order(n: int, batch_size: int) -> None:
    x = np.arange(n)
    pairs = list(iterate(x, x + 1, batch_size))
    assert [int(value) for a, _ in pairs for value in a] == list(range(n))
    assert all(np.array_equal(a + 1, b) and 0 < len(a) <= batch_size for a, b in pairs)
    with pytest.raises(ValueError, match="labels"):
        iterate(x, np.arange(n + 1), batch_size)
