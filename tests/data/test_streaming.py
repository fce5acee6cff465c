import threading

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.data.batches import BatchStream, Samples, WindowsInMemory
from nnlo_opt.data.order import Cut, Order
from nnlo_opt.data.streaming import ReadAhead, StreamedWindows, read_in_order
from nnlo_opt.errors import TrialError


def following(key):
    return (key[0], key[1] + 1)


class Reader:
    """Reads as soon as it may; remembers what was read, and can be made to fail."""

    def __init__(self):
        self.read = []
        self.fails = {}
        self.changed = threading.Condition()

    def __call__(self, key):
        with self.changed:
            self.read.append(key)
            self.changed.notify_all()
        if key in self.fails:
            raise self.fails[key]
        return f"window {key}"

    def wait_for(self, n):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.read) >= n, timeout=30)


def names_of_threads():
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("n_ahead", [0, 1, 2, 5])
def test_results_come_in_order_and_no_more_than_asked_for_are_read_ahead(n_ahead):
    reader = Reader()
    ahead = ReadAhead(reader, following, n_ahead)
    for number in range(6):
        assert ahead.get((0, number)) == f"window {(0, number)}"
        reader.wait_for(number + 1 + n_ahead)
        assert reader.read == [(0, i) for i in range(number + 1 + n_ahead)]
    ahead.close()
    assert "read-ahead" not in names_of_threads()


def test_another_place_than_foreseen_is_read_at_once_and_what_was_read_for_nothing_is_let_go():
    reader = Reader()
    ahead = ReadAhead(reader, following, 2)
    ahead.get((0, 0))
    reader.wait_for(3)
    assert ahead.get((5, 7)) == "window (5, 7)"
    assert ahead.get((5, 8)) == "window (5, 8)"
    assert ahead.get((0, 1)) == "window (0, 1)"  # anew
    assert reader.read.count((0, 1)) == 2
    ahead.close()


@pytest.mark.parametrize("n_ahead", [0, 1, 2])
def test_a_failure_is_raised_where_the_window_is_needed_and_tried_again_when_asked_again(n_ahead):
    reader = Reader()
    ahead = ReadAhead(reader, following, n_ahead)
    reader.fails[0, 1] = OSError("gone")
    assert ahead.get((0, 0)) == "window (0, 0)"
    with pytest.raises(TrialError, match="OSError: gone") as caught:
        ahead.get((0, 1))
    assert isinstance(caught.value.__cause__, OSError)
    assert (0, 2) not in reader.read
    reader.fails.clear()
    assert ahead.get((0, 1)) == "window (0, 1)"
    reader.fails[0, 2] = TrialError("as it is")
    reader.fails[0, 3] = MemoryError()
    ahead.close()
    with pytest.raises(TrialError, match="as it is"):
        ahead.get((0, 2))
    with pytest.raises(MemoryError):
        ahead.get((0, 3))
    ahead.close()


def test_code_that_exits_in_the_thread_fails_the_window_and_not_the_thread():
    reader = Reader()
    reader.fails[0, 0] = SystemExit(3)
    ahead = ReadAhead(reader, following, 1)
    with pytest.raises(TrialError, match="SystemExit"):
        ahead.get((0, 0))
    ahead.close()


def test_after_closing_it_begins_anew():
    reader = Reader()
    ahead = ReadAhead(reader, following, 1)
    for _ in range(3):
        assert ahead.get((0, 0)) == "window (0, 0)"
        ahead.close()
        ahead.close()
        assert "read-ahead" not in names_of_threads()


def streams(n, batch_size, cut, n_ahead, shuffle=True):
    """One stream from memory and one that reads, of the same samples."""
    x, y = np.arange(n, dtype=np.float32)[:, None], np.arange(n)
    order = Order(n, (1, 2, 3), shuffle=shuffle, cut=cut)

    def read(numbers):
        assert np.all(np.diff(numbers) > 0)
        return Samples([x[numbers]], y[numbers])

    return (
        BatchStream(WindowsInMemory(Samples([x], y), order), batch_size),
        BatchStream(StreamedWindows(read, order.twin(), n_ahead), batch_size),
    )


@settings(deadline=None, max_examples=examples(50))
@given(
    st.integers(1, 40),
    st.integers(1, 50),
    st.builds(Cut, block=st.integers(1, 5), n_blocks=st.integers(1, 4)),
    st.integers(0, 3),
    st.booleans(),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_what_is_read_and_what_is_held_come_in_the_same_batches(n, batch_size, cut, n_ahead, shuffle, jumps):
    held, read = streams(n, batch_size, cut, n_ahead, shuffle)
    try:
        for n_batches in jumps:
            for _ in range(n_batches):
                expected, got = held.next(), read.next()
                assert np.array_equal(expected.x[0], got.x[0])
                assert np.array_equal(expected.y, got.y)
                assert (expected.end_of_pass, held.position) == (got.end_of_pass, read.position)
            position = held.position
            held.next(), read.next()
            held.seek(*position), read.seek(*position)
    finally:
        read.close()


def test_a_batch_that_could_not_be_read_is_the_next_one_when_asked_again():
    _, stream = streams(30, 7, Cut(block=2, n_blocks=2), 1)
    first = stream.next()
    position = stream.position
    stream._windows._ahead._read, good = lambda key: 1 / 0, stream._windows._ahead._read
    stream.close()
    with pytest.raises(TrialError, match="ZeroDivisionError"):
        stream.next()
    assert stream.position == position
    stream._windows._ahead._read = good
    assert not set(stream.next().y) & set(first.y)
    stream.close()


@pytest.mark.parametrize("n_ahead", [0, 1, 2])
def test_reading_in_order_is_every_sample_once(n_ahead):
    def read(numbers):
        return Samples(numbers, numbers)

    parts = [samples.x.tolist() for samples in read_in_order(read, 10, 4, n_ahead)]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(read_in_order(read, 0, 4, n_ahead)) == []
    given_up = read_in_order(read, 10, 4, n_ahead)
    next(given_up)
    given_up.close()
    assert "read-ahead" not in names_of_threads()
