import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import CheckpointError, ConfigurationError
from nnlo_opt.core.update_rules.easgd import (
    ELASTIC_FORCE,
    ElasticMomentum,
    adopt,
    exchange,
    exchange_round,
    moving_rate,
)
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.core.update_rules.vectors import BLOCK

alphas = st.floats(0.01, 1.0)
seeds = st.integers(0, 2**32 - 1)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ulps(n, *vectors):
    """`n` units in the last place of the largest element."""
    return n * np.finfo(np.float32).eps * max(np.abs(vector).max() for vector in vectors)


def meet(central, local, alpha):
    """One exchange of one worker, both halves."""
    exchange(central, local, alpha, answer := np.empty_like(local))
    adopt(local, answer)


# ---------------------------------------------------------------- the exchange


@given(alphas, seeds, st.sampled_from([1e-3, 1.0, 1e3]))
def test_an_exchange_conserves_local_plus_central(alpha, seed, scale):
    central, local = normal((seed, 0), 50), normal((seed, 1), 50) * np.float32(scale)
    before = central.astype(float) + local
    bound = ulps(4, central, local)
    for _ in range(3):
        meet(central, local, alpha)
    assert np.abs(central.astype(float) + local - before).max() <= 3 * bound


@given(alphas, seeds)
def test_an_exchange_is_its_formula_and_keeps_what_the_worker_did_meanwhile(alpha, seed):
    central, local, meanwhile = normal((seed, 0), 20), normal((seed, 1), 20), normal((seed, 2), 20)
    difference = alpha * (local.astype(float) - central)
    expected = central + difference, local - difference + meanwhile
    pushed = local.copy()
    local += meanwhile
    exchange(central, pushed, alpha, out=pushed)
    adopt(local, pushed)
    np.testing.assert_allclose(central, expected[0], atol=1e-5)
    np.testing.assert_allclose(local, expected[1], atol=1e-5)


def test_a_worker_at_the_centre_does_not_move_it():
    central = normal(0, BLOCK + 3)
    start, local = central.copy(), central.copy()
    for _ in range(6):
        meet(central, local, 0.45)
    assert np.array_equal(central, start)
    assert np.array_equal(local, start)


def test_alpha_of_one_swaps_local_and_central():
    central, local = np.array([1, -2], np.float32), np.array([3, 5], np.float32)
    meet(central, local, 1.0)
    assert (central.tolist(), local.tolist()) == ([3, 5], [1, -2])


@pytest.mark.parametrize("n_exchanges", [1, 2, 7, 40])
def test_one_worker_on_a_quadratic_is_its_linear_recurrence(n_exchanges):
    curvature, eta, alpha, k = 2.0, 0.1, 0.3, 3
    local_steps = np.diag([(1 - eta * curvature) ** k, 1])
    elastic = np.array([[1 - alpha, alpha], [alpha, 1 - alpha]])
    expected = np.linalg.matrix_power(elastic @ local_steps, n_exchanges) @ [1.0, -0.5]

    local, central = np.array([1.0], np.float32), np.array([-0.5], np.float32)
    optimizer = make_optimizer("sgd", 1, eta)
    for _ in range(n_exchanges):
        for _ in range(k):
            optimizer.apply(local, curvature * local)
        meet(central, local, alpha)
    np.testing.assert_allclose([local[0], central[0]], expected, rtol=1e-4)


@given(st.integers(1, 6), seeds)
def test_a_round_is_the_equation_of_the_paper(n_workers, seed):
    central, local = normal((seed, 0), 30), normal((seed, 1), n_workers, 30)
    beta = ELASTIC_FORCE
    alpha = moving_rate(beta, n_workers)
    expected_local = local - alpha * (local.astype(float) - central)
    expected_central = (1 - beta) * central.astype(float) + beta * local.mean(axis=0, dtype=float)
    answers = [vector.copy() for vector in local]
    exchange_round(central, answers, alpha)
    for vector, answer in zip(local, answers, strict=True):
        adopt(vector, answer)
    np.testing.assert_allclose(central, expected_central, atol=1e-5)
    np.testing.assert_allclose(local, expected_local, atol=1e-5)


def test_a_round_at_the_centre_does_not_move_it():
    central = normal(0, 40)
    start = central.copy()
    for _ in range(6):
        exchange_round(central, [start.copy(), start.copy()], 0.45)
    assert np.array_equal(central, start)


def test_a_round_of_one_is_an_exchange_and_order_decides_the_bits():
    local = normal(1, 3, 2 * BLOCK + 5)
    one, alone = normal(0, 2 * BLOCK + 5), normal(0, 2 * BLOCK + 5)
    exchange(one, local[0], 0.3, answer := np.empty_like(one))
    exchange_round(alone, answers := [local[0].copy()], 0.3)
    assert np.array_equal(one, alone)
    assert np.array_equal(answer, answers[0])
    rounds = [normal(0, 2 * BLOCK + 5) for _ in range(2)]
    for central in rounds:
        exchange_round(central, [vector.copy() for vector in local], 0.3)
    assert np.array_equal(*rounds)


def test_local_weights_are_only_read_and_may_be_the_answer():
    local = normal(0, BLOCK + 7)
    local.flags.writeable = False
    first, second = normal(1, BLOCK + 7), normal(1, BLOCK + 7)
    exchange(first, local, 0.2, answer := np.empty_like(local))
    pushed = local.copy()
    exchange(second, pushed, 0.2, out=pushed)
    assert np.array_equal(first, second)
    assert np.array_equal(answer, pushed)


def test_other_vectors_are_refused():
    central = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"\(3,\).*\(4,\)"):
        exchange(central, np.zeros(4, np.float32), 0.5, np.empty(3, np.float32))
    with pytest.raises(ValueError, match="float64"):
        exchange_round(central, [np.zeros(3, np.float32), np.zeros(3)], 0.5)


def test_what_is_not_finite_shows_without_a_warning():
    central, local = np.zeros(2, np.float32), np.array([np.inf, 1], np.float32)
    meet(central, local, 0.5)
    meet(central, local, 0.5)
    assert not np.isfinite(central[0])
    assert np.isfinite(central[1])


# ---------------------------------------------------------------- alpha


def test_moving_rate_is_the_force_shared_by_the_workers():
    assert moving_rate(0.9, 1) == 0.9
    assert moving_rate(0.9, 3) == pytest.approx(0.3)
    assert moving_rate(np.float32(0.5), 2) == 0.25
    assert moving_rate(2, 2) == 1.0


@pytest.mark.parametrize("force", [0, -0.1, 2.1, float("nan"), float("inf"), "0.9", True, None])
def test_a_force_out_of_range_is_refused(force):
    with pytest.raises(ConfigurationError, match=r"`--elastic-force` .* 2\. Received: .* Leave it out for 0.9"):
        moving_rate(force, 2)


# ---------------------------------------------------------------- local steps with momentum


def quadratic(point):
    return np.array([2.0, 0.5], np.float32) * point - 1


def descend(rule, weights, n_steps):
    point = np.empty_like(weights)
    for _ in range(n_steps):
        rule.apply(weights, quadratic(rule.look_ahead(weights, point)))
    return weights


def test_without_momentum_it_is_sgd():
    weights, expected = normal(0, 100), normal(0, 100)
    rule, sgd = ElasticMomentum(100, 0.05), make_optimizer("sgd", 100, 0.05)
    assert rule.look_ahead(weights, np.empty(100, np.float32)) is weights
    for seed in range(5):
        rule.apply(weights, normal(seed, 100))
        sgd.apply(expected, normal(seed, 100))
    assert np.array_equal(weights, expected)


def test_momentum_is_the_recurrence_of_the_paper():
    eta, delta = 0.1, 0.9
    x, v = 1.0, 0.0
    weights = np.array([1.0, 1.0], np.float32)
    rule = ElasticMomentum(2, eta, delta)
    for _ in range(25):
        v = delta * v - eta * (2.0 * (x + delta * v) - 1)
        x += v
        descend(rule, weights, 1)
        assert weights[0] == pytest.approx(x, rel=1e-4, abs=1e-5)


def test_the_look_ahead_follows_kerass_nesterov():
    # Keras keeps x + delta v where the paper keeps x.
    theirs = np.array([1.0, -1.0], np.float32)
    weights = theirs.copy()
    nesterov = make_optimizer("sgd", 2, 0.1, {"momentum": 0.8, "nesterov": True})
    rule = ElasticMomentum(2, 0.1, 0.8)
    for _ in range(20):
        nesterov.apply(theirs, quadratic(theirs))
        descend(rule, weights, 1)
        np.testing.assert_allclose(rule.look_ahead(weights, np.empty(2, np.float32)), theirs, rtol=1e-4, atol=1e-5)


@given(seeds)
def test_an_exchange_leaves_the_velocity(seed):
    weights, central = normal((seed, 0), 2), normal((seed, 1), 2)
    rule = ElasticMomentum(2, 0.1, 0.9)
    descend(rule, weights, 3)
    ahead = rule.look_ahead(weights, np.empty(2, np.float32)) - weights
    meet(central, weights, 0.5)
    np.testing.assert_allclose(rule.look_ahead(weights, np.empty(2, np.float32)) - weights, ahead, atol=1e-5)


def test_a_long_vector_is_its_parts():
    n, part = 2 * BLOCK + 7, slice(BLOCK - 3, BLOCK + 3)
    long, short = ElasticMomentum(n, 0.1, 0.9), ElasticMomentum(6, 0.1, 0.9)
    weights = normal(0, n)
    expected = weights[part].copy()
    for seed in range(3):
        long.apply(weights, normal(seed, n))
        short.apply(expected, normal(seed, n)[part])
    assert np.array_equal(weights[part], expected)
    ahead = long.look_ahead(weights, np.empty(n, np.float32))
    assert np.array_equal(ahead[part], short.look_ahead(expected, np.empty(6, np.float32)))


def test_state_continues_exactly():
    straight = descend(ElasticMomentum(2, 0.1, 0.9), np.ones(2, np.float32), 10)
    first = ElasticMomentum(2, 0.1, 0.9)
    weights = descend(first, np.ones(2, np.float32), 4)
    kept = {key: np.array(value) for key, value in first.state().items()}
    second = ElasticMomentum(2, 0.7, 0.9)
    second.load_state(kept)
    assert np.array_equal(descend(second, weights, 6), straight)
    with pytest.raises(CheckpointError, match="`elastic_momentum` for 2 weights"):
        ElasticMomentum(2, 0.1).load_state(kept)


def test_nothing_is_allocated():
    n = 4 * BLOCK
    central, local, answer = normal(0, n), normal(1, n), np.empty(n, np.float32)
    pushed = [normal(2, n), normal(3, n)]
    rule = ElasticMomentum(n, 0.1, 0.9)
    velocity = rule.state()["velocity"]
    tracemalloc.start()
    try:
        exchange(central, local, 0.3, answer)
        adopt(local, answer)
        exchange_round(central, pushed, 0.3)
        rule.apply(local, rule.look_ahead(central, answer))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BLOCK
    assert rule.state()["velocity"] is velocity


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0.0, 0.5), "`--elastic-lr` must be a finite number above 0. Received: 0.0"),
        ((float("inf"), 0.5), "`--elastic-lr`.* Received: inf"),
        ((True, 0.5), "`--elastic-lr`.* Received: True"),
        ((0.1, 1.0), "`--elastic-momentum` must be a number of at least 0 and below 1. Received: 1.0"),
        ((0.1, -0.5), "`--elastic-momentum`.* Received: -0.5"),
        ((0.1, "0.9"), "`--elastic-momentum`.* Received: '0.9'"),
        ((0.1, float("nan")), "`--elastic-momentum`.* Received: nan"),
    ],
)
def test_wrong_requests(arguments, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        ElasticMomentum(3, *arguments)
