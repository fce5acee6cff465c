import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.update_rules.vectors import BLOCK, add_scaled, blocks, decay, scratch_for


@given(st.integers(0, 4 * BLOCK + 1))
def test_blocks_cover_a_vector_once(n):
    cut = [*blocks(n)]
    assert [i for block in cut for i in (block.start, block.stop)] == sorted(
        [0, *(edge for block in cut[:-1] for edge in (block.stop, block.stop)), n] if n else []
    )
    sizes = [block.stop - block.start for block in cut]
    assert all(0 < size <= len(scratch_for(n)) <= 1.5 * BLOCK for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= len(sizes)


def test_add_scaled_and_decay():
    n = BLOCK + 3
    target, vector = np.ones(n, np.float32), np.arange(n, dtype=np.float32)
    add_scaled(target, vector, 2.0, scratch_for(n))
    assert np.array_equal(target, 1 + 2 * vector)
    average = np.full(2, 4, np.float32)
    decay(average, 0.75, np.array([8, 0], np.float32))
    assert average.tolist() == [5.0, 3.0]
