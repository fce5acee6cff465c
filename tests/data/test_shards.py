import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.data.folds import shard
from nnlo_opt.errors import ConfigurationError


@given(st.integers(1, 20), st.integers(0, 100))
def test_shards_are_all_samples_in_nearly_equal_parts(n_workers: int, surplus: int) -> None:
    indices = np.arange(n_workers + surplus) * 3
    shards = [shard(indices, n_workers, worker) for worker in range(n_workers)]
    assert np.array_equal(np.concatenate(shards), indices)
    sizes = [len(part) for part in shards]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_fewer_samples_than_workers() -> None:
    with pytest.raises(ConfigurationError, match="2 samples for 3 workers"):
        shard(np.arange(2), 3, 0)


@pytest.mark.parametrize("worker", [-1, 3])
def test_a_worker_that_is_not_there(worker: int) -> None:
    with pytest.raises(ValueError, match="worker"):
        shard(np.arange(9), 3, worker)
