import threading

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.data.batches import BatchStream, Samples, WindowsInMemory
from nnlo_opt.data.order import Cut, Order
from nnlo_opt.data.ragged import Ragged
from nnlo_opt.data.streaming import PIECE_BYTES, GatheredWindows, StreamedWindows, piece
from nnlo_opt.errors import TrialError


def windows(n, cut, *, streamed=False):
    """Of a column, sequences of different lengths, and weights."""
    sequences = Ragged(np.arange(n * (n + 1) // 2, dtype=np.float32), np.arange(1, n + 1))
    samples = Samples(
        [np.arange(n, dtype=np.float32)[:, None], sequences], np.arange(n), np.arange(n, dtype=np.float32)
    )
    order = Order(n, (1, 2, 3), shuffle=True, cut=cut)
    if not streamed:
        return WindowsInMemory(samples, order)
    return StreamedWindows(
        lambda numbers: Samples(
            [samples.x[0][numbers], sequences.take(numbers)], samples.y[numbers], samples.weights[numbers]
        ),
        order,
        n_ahead=1,
    )


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(1, 40),
    st.integers(1, 50),
    st.integers(1, 60),
    st.builds(Cut, block=st.integers(1, 5), n_blocks=st.integers(1, 4)),
    st.booleans(),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_what_is_gathered_ahead_comes_in_the_same_batches(n, batch, n_at_once, cut, streamed, jumps):
    plain = BatchStream(windows(n, cut), batch)
    ahead = BatchStream(GatheredWindows(windows(n, cut, streamed=streamed), n_at_once), batch)
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


def test_its_thread_ends_with_it_and_begins_anew():
    stream = BatchStream(GatheredWindows(windows(20, Cut(block=2, n_blocks=3), streamed=True), 4), 2)
    for _ in range(2):
        stream.next()
        assert "read-ahead" in [thread.name for thread in threading.enumerate()]
        stream.close()
        assert "read-ahead" not in [thread.name for thread in threading.enumerate()]


def test_what_cannot_be_read_fails_where_it_is_needed():
    def read(numbers):
        raise OSError("gone")

    order = Order(20, (1,), shuffle=True, cut=Cut(block=2, n_blocks=3))
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
