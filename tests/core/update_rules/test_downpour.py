import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.update_rules.downpour import SummingWorker, combine
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.core.update_rules.vectors import BLOCK
from tests.helpers.linear_model import LinearAdapter

N_FEATURES = 5


def samples(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, N_FEATURES)).astype(np.float32), rng.normal(size=n).astype(np.float32)


def gradient_at(weights, x, y):
    model = LinearAdapter(N_FEATURES)
    model.write_weights(weights)
    model.gradient(x, y, out := np.empty(model.n_weights, np.float32))
    return out


def worker(n_weights):
    """Return a worker's half with local steps of SGD."""
    half = SummingWorker(n_weights, make_optimizer("sgd", n_weights))
    half.weights[:] = 0
    return half


def pushed(half, *batches):
    """Return the update of a period with `batches`, (n_samples, gradient) each."""
    for n_samples, gradient in batches:
        half.gradient[:] = gradient
        half.step(n_samples)
    return half.finish()


def combined(*updates):
    combine(updates, out := np.empty_like(updates[0][1]))
    return out


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_averaged_updates_are_the_gradient_of_the_union(sizes, seed):
    weights = np.random.default_rng(seed).normal(size=N_FEATURES + 1).astype(np.float32)
    parts = [samples(n, (seed, i)) for i, n in enumerate(sizes)]
    average = combined(*((len(x), gradient_at(weights, x, y)) for x, y in parts))
    union = gradient_at(weights, *(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    np.testing.assert_allclose(average, union, rtol=1e-4, atol=1e-4)


def test_average_of_one_is_itself_and_repeats_exactly():
    vectors = np.random.default_rng(0).normal(size=(3, 2 * BLOCK + 5)).astype(np.float32)
    assert np.array_equal(combined((7, vectors[0])), vectors[0])
    updates = [(n, vector) for n, vector in zip((3, 5, 11), vectors, strict=True)]
    assert np.array_equal(combined(*updates), combined(*updates))
    np.testing.assert_allclose(combined(*updates), np.average(vectors, axis=0, weights=(3, 5, 11)), atol=1e-6)


def test_nothing_to_average_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        combine([], np.empty(3, np.float32))


def test_a_period_of_one_batch_pushes_exactly_its_gradient():
    gradient = np.random.default_rng(0).normal(size=100).astype(np.float32)
    assert np.array_equal(pushed(worker(100), (37, gradient)), gradient)


def test_unequal_batches_count_by_samples():
    half = worker(1)
    for _ in range(2):  # a period leaves nothing behind
        assert pushed(half, (10, 1.0), (30, 2.0), (20, -1.0))[0] == pytest.approx(3 * (10 * 1 + 30 * 2 - 20) / 60)
    assert pushed(half, (7, 0.5))[0] == 0.5


def test_a_period_needs_a_batch_and_a_batch_a_sample():
    half = worker(2)
    with pytest.raises(ValueError, match="at least one batch"):
        half.finish()
    with pytest.raises(ValueError, match="at least one sample"):
        pushed(half, (0, 0.0))
