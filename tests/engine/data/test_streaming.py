import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.data.batches import BatchStream, Samples, WindowsInMemory
from nnlo_opt.core.data.order import Cut, Order
from nnlo_opt.core.data.ragged import Ragged, take
from nnlo_opt.engine.data.streaming import (
    PIECE_BYTES,
    GatheredWindows,
    ReadAhead,
    StreamedWindows,
    piece,
    read_in_order,
)
from tests.helpers.effort import examples


class Reader:
    """Reads as soon as it may; remembers what was read, and can be made to fail."""

    def __init__(self):
        self.read = []
        self.fails = {}
        self.changed = threading.Condition()

    def __call__(self, number):
        with self.changed:
            self.read.append(number)
            self.changed.notify_all()
        if number in self.fails:
            raise self.fails[number]
        return f"window {number}"

    def wait_for(self, n):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.read) >= n, timeout=30)


def names_of_threads():
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("n_ahead", [0, 1, 2, 5])
def test_results_come_in_order_and_no_more_than_asked_for_are_read_ahead(n_ahead):
    reader = Reader()
    ahead = ReadAhead(reader, n_ahead)
    for number in range(6):
        assert ahead.get(number) == f"window {number}"
        reader.wait_for(number + 1 + n_ahead)
        assert reader.read == [*range(number + 1 + n_ahead)]
    ahead.close()
    assert "read-ahead" not in names_of_threads()


def test_another_place_than_foreseen_is_read_at_once_and_what_was_read_for_nothing_is_let_go():
    reader = Reader()
    ahead = ReadAhead(reader, 2)
    ahead.get(0)
    reader.wait_for(3)
    assert ahead.get(57) == "window 57"
    assert ahead.get(58) == "window 58"
    assert ahead.get(1) == "window 1"  # anew
    assert reader.read.count(1) == 2
    ahead.close()


@pytest.mark.parametrize("n_ahead", [0, 1, 2])
def test_a_failure_is_raised_where_the_window_is_needed_and_tried_again_when_asked_again(n_ahead):
    reader = Reader()
    ahead = ReadAhead(reader, n_ahead)
    reader.fails[1] = OSError("gone")
    assert ahead.get(0) == "window 0"
    with pytest.raises(TrialError, match="OSError: gone") as caught:
        ahead.get(1)
    assert isinstance(caught.value.__cause__, OSError)
    assert 2 not in reader.read
    reader.fails.clear()
    assert ahead.get(1) == "window 1"
    reader.fails[2] = TrialError("as it is")
    reader.fails[3] = MemoryError()
    reader.fails[4] = SystemExit(3)
    ahead.close()
    with pytest.raises(TrialError, match="as it is"):
        ahead.get(2)
    with pytest.raises(MemoryError):
        ahead.get(3)
    with pytest.raises(TrialError, match="SystemExit"):
        ahead.get(4)
    ahead.close()


def test_after_a_failure_the_window_behind_it_can_be_read():
    reader, found = Reader(), []
    ahead = ReadAhead(reader, 2)
    reader.fails[1] = OSError("gone")
    ahead.get(0)
    with pytest.raises(TrialError):
        ahead.get(1)
    asking = threading.Thread(target=lambda: found.append(ahead.get(2)), daemon=True)
    asking.start()
    asking.join(20.0)
    assert found == ["window 2"]
    ahead.close()


def test_an_unread_failure_does_not_keep_another_place_from_being_read():
    reader = Reader()
    ahead = ReadAhead(reader, 2)
    reader.fails[1] = OSError("gone")
    ahead.get(0)
    reader.wait_for(2)
    assert ahead.get(7) == "window 7"
    ahead.close()


# ---------------------------------------------------------------- windows


def order_of(n, cut, *, shuffle=True):
    return Order(n, (1, 2, 3), shuffle=shuffle, cut=cut)


def samples_of(n):
    """A column, sequences of different lengths, labels and weights."""
    numbers = np.arange(n, dtype=np.float32)
    sequences = Ragged(np.arange(n * (n + 1) // 2, dtype=np.float32), np.arange(1, n + 1))
    return Samples([numbers[:, None], sequences], np.arange(n), numbers)


def streamed(order, n_ahead=1):
    samples = samples_of(order.n_samples)

    def read(numbers):
        assert np.all(np.diff(numbers) > 0)
        return Samples(*take(samples.tree(), numbers))

    return StreamedWindows(read, order, n_ahead)


@settings(deadline=None, max_examples=examples(110))
@given(
    n=st.integers(1, 40),
    batch=st.integers(1, 50),
    cut=st.builds(Cut, block=st.integers(1, 5), n_blocks=st.integers(1, 4)),
    n_ahead=st.none() | st.integers(0, 3),
    n_at_once=st.none() | st.integers(1, 60),
    shuffle=st.booleans(),
    jumps=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_what_is_read_or_gathered_ahead_comes_in_the_same_batches(*, n, batch, cut, n_ahead, n_at_once, shuffle, jumps):
    order = order_of(n, cut, shuffle=shuffle)
    plain = BatchStream(WindowsInMemory(samples_of(n), order), batch)
    windows = WindowsInMemory(samples_of(n), order) if n_ahead is None else streamed(order, n_ahead)
    ahead = BatchStream(windows if n_at_once is None else GatheredWindows(windows, n_at_once), batch)
    try:
        for n_batches in jumps:
            for _ in range(n_batches):
                expected, got = plain.next(), ahead.next()
                # Sequences are as long as the longest of the batch, not of all that were gathered with it.
                for array, other in zip((*expected.x, expected.y), (*got.x, got.y), strict=True):
                    assert np.array_equal(array, other)
                assert np.array_equal(expected.weights, got.weights)
                assert (expected.end_of_pass, plain.position) == (got.end_of_pass, ahead.position)
            position = plain.position
            plain.next(), ahead.next()
            plain.seek(*position), ahead.seek(*position)
    finally:
        ahead.close()


def test_a_batch_that_could_not_be_read_is_the_next_one_when_asked_again():
    stream = BatchStream(streamed(order_of(30, Cut(block=2, n_blocks=2))), 7)
    first = stream.next()
    position = stream.position
    stream._windows._ahead._read, good = lambda number: 1 / 0, stream._windows._ahead._read
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


# ---------------------------------------------------------------- gathering


def test_its_thread_ends_with_it_and_begins_again():
    stream = BatchStream(GatheredWindows(streamed(order_of(20, Cut(block=2, n_blocks=3))), 4), 2)
    for _ in range(2):
        stream.next()
        assert "read-ahead" in names_of_threads()
        stream.close()
        stream.close()
        assert "read-ahead" not in names_of_threads()


def test_its_thread_ends_before_the_process_does():
    # torch in a thread of an interpreter that has ended aborts the process: a preempted training exited with 134.
    program = """
import threading, time
from nnlo_opt.engine.data.streaming import ReadAhead

second = threading.Event()

def read(number):
    print(number, flush=True)
    if number == 1:
        second.set()
        time.sleep(0.1)
    print("read", flush=True)

ReadAhead(read, n_ahead=3).get(0)
second.wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["0", "read", "1", "read"], "")


def test_what_cannot_be_read_fails_where_it_is_needed():
    def read(numbers):
        raise OSError("gone")

    order = order_of(20, Cut(block=2, n_blocks=3))
    stream = BatchStream(GatheredWindows(StreamedWindows(read, order, n_ahead=1), 4), 2)
    for _ in range(2):
        with pytest.raises(TrialError, match="OSError: gone"):
            stream.next()
        assert stream.position == (0, 0)
    stream.close()


@pytest.mark.parametrize(
    ("batch", "sample_bytes", "batches"), [(100, 3176, 13), (1, PIECE_BYTES, 1), (7, PIECE_BYTES, 1), (10, 0, 419430)]
)
def test_a_piece_is_some_megabytes_of_whole_batches(batch, sample_bytes, batches):
    assert piece(batch, sample_bytes) == batch * batches
