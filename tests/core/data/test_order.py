from dataclasses import replace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nnlo_opt.core.data.order import BLOCK_BYTES, WINDOW_BYTES, Cut, Order
from nnlo_opt.core.data.source import DataInfo

CUTS = st.builds(Cut, block=st.integers(1, 9), n_blocks=st.integers(1, 5))


def order_of_pass(order: Order, number: int) -> list[int]:
    found = []
    for window in range(order.n_windows):
        samples, rows = order.window(number, window)
        found.extend((samples if rows is None else samples[rows]).tolist())
    return found


@settings(deadline=None)
@given(st.integers(1, 60), CUTS, st.booleans(), st.integers(0, 5))
@example(25, Cut(block=4, n_blocks=2), True, 0)  # the last block, which is a short one, is in the first window
def test_a_pass_is_every_sample_once_in_windows_of_ascending_samples(
    n: int, cut: Cut, shuffle: bool, number: int
) -> None:
    order = Order(n, (1, 2), shuffle=shuffle, cut=cut)
    starts = order.starts(number)
    assert (len(starts), starts[0], starts[-1]) == (order.n_windows + 1, 0, n)
    for window in range(order.n_windows):
        samples, rows = order.window(number, window)
        assert np.all(np.diff(samples) > 0)
        assert len(samples) == starts[window + 1] - starts[window] <= cut.window
        assert (rows is None) is not shuffle
    found = order_of_pass(order, number)
    assert sorted(found) == list(range(n))
    assert shuffle or found == list(range(n))


@settings(deadline=None)
@given(st.integers(1, 60), CUTS, st.permutations(range(4)))
def test_the_order_of_a_pass_does_not_depend_on_what_was_asked_before(n: int, cut: Cut, passes: list[int]) -> None:
    order = Order(n, (7,), shuffle=True, cut=cut)
    for number in passes:
        assert order_of_pass(order, number) == order_of_pass(Order(n, (7,), shuffle=True, cut=cut), number)


def test_passes_windows_and_keys_have_orders_of_their_own() -> None:
    cut = Cut(block=10, n_blocks=3)
    order = Order(300, (1,), shuffle=True, cut=cut)
    orders = {tuple(order_of_pass(order, number)) for number in range(20)}
    orders.add(tuple(order_of_pass(Order(300, (2,), shuffle=True, cut=cut), 0)))
    assert len(orders) == 21
    rows = [tuple(order.window(0, window)[1]) for window in range(order.n_windows)]
    assert len(set(rows)) == len(rows)


def test_one_window_is_one_permutation() -> None:
    expected = np.random.default_rng((4, 5, 2)).permutation(50).tolist()
    assert order_of_pass(Order(50, (4, 5), shuffle=True), 2) == expected
    assert order_of_pass(Order(50, (4, 5), shuffle=True, cut=Cut(block=13, n_blocks=4)), 2) == expected


def test_a_window_of_data_sorted_by_class_holds_all_classes() -> None:
    order = Order(10_000, (0,), shuffle=True, cut=Cut(block=10, n_blocks=64))
    for window in range(order.n_windows - 1):
        classes = order.window(0, window)[0] // 1000
        assert len(np.unique(classes)) == 10


@given(st.integers(0, 1 << 30), st.integers(0, 1 << 20))
def test_cuts_are_as_large_as_they_should_be(sample_bytes: int, chunk_samples: int) -> None:
    info = replace(DataInfo.of("a", np.zeros(1), np.zeros(1)), sample_bytes=sample_bytes, chunk_samples=chunk_samples)
    cut = Cut.of(info)
    assert cut.block >= max(1, chunk_samples)
    assert cut.window * max(1, sample_bytes) <= max(WINDOW_BYTES, max(1, chunk_samples) * max(1, sample_bytes))
    if 0 < sample_bytes <= BLOCK_BYTES and chunk_samples <= 1:
        assert cut.n_blocks >= WINDOW_BYTES // BLOCK_BYTES // 2
