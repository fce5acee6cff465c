import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.search.targets import above_best, penalty, relative_noise, span, standardise, warp

values = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30).map(np.array)


@given(values=values)
def test_warped_values_are_small_and_keep_their_order(values):
    warped = warp(values)
    assert np.all(np.isfinite(warped))
    assert warped.min() == 0.0
    assert warped.max() < 100
    assert np.all(np.diff(warped[np.argsort(values, kind="stable")]) >= 0)
    assert penalty(warped) >= max(1.0, warped.max())


def test_warp_is_linear_near_the_best_and_logarithmic_far_away():
    warped = warp(np.array([5.0, 6.0, 6.0, 5.001, 5.0 + 1e6]))
    np.testing.assert_allclose(warped, np.log1p([0.0, 1.0, 1.0, 0.001, 1e6]))


def test_warp_of_equal_values_is_zero():
    for value in (0.0, -3.0, 1e308):
        assert warp(np.full(4, value)).tolist() == [0.0] * 4


def test_one_different_value_is_seen():
    assert warp(np.array([1.0, 1.0, 1.0, 1.0, 2.0]))[-1] > 1.0
    assert warp(np.array([2.0, 2.0, 2.0, 1.0])).tolist()[-1] == 0.0


@given(values=values, seed=st.integers(0, 1000))
def test_relative_noise_is_around_one_and_bounded(values, seed):
    stds = np.random.default_rng(seed).lognormal(size=len(values)) * max(1e-300, float(np.abs(values).max()) / 100)
    stds[::3] = np.nan
    noise = relative_noise(values, stds)
    assert np.all((noise >= 0.1) & (noise <= 10.0))
    assert np.all(noise[::3] == 1.0)


def test_relative_noise_follows_the_variances_and_not_their_level():
    values, stds = 2.0 + np.array([0.0, 1e-9, 2e-9]), np.array([1e-12, 1.0, 2.0])
    noise = relative_noise(values, stds * 1e-9)
    assert noise[0] < noise[1] < noise[2]
    np.testing.assert_allclose(noise, relative_noise(values, stds * 1e-3))


def test_standardised_values():
    np.testing.assert_allclose(standardise(np.array([1.0, 3.0])), [-1.0, 1.0])
    assert standardise(np.full(3, 7.0)).tolist() == [0.0] * 3


def test_values_that_are_not_compressed_keep_their_proportions():
    values = np.array([3.0, 5.0, 5.0, 3.5, 23.0])
    np.testing.assert_allclose(above_best(values), [0.0, 1.0, 1.0, 0.25, 10.0])
    assert span(values) == 10.0
    assert span(np.full(4, 7.0)) == 0.0


def test_an_error_counts_the_same_at_every_value_that_is_not_compressed():
    values, stds = np.array([0.0, 1.0, 100.0]), np.array([1.0, 2.0, 2.0])
    of_warped, of_others = relative_noise(values, stds), relative_noise(values, stds, is_warped=False)
    assert of_warped[2] < of_warped[1]
    assert of_others[0] < of_others[1] == of_others[2]
