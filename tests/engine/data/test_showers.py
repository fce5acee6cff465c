"""Simulated showers follow their formulas, and the figures tell alike showers from others."""

import numpy as np
import pytest

from nnlo_opt.engine.data.sets.showers import (
    ENERGIES,
    distance,
    expected_total,
    moments,
    physics_figure,
    simulate,
    totals,
)
from tests.helpers.refusals import check_refused

SHOWERS = simulate(400, 13, seed=0)


def test_a_seed_decides_all_showers():
    assert np.array_equal(simulate(5, 9, seed=3).x, simulate(5, 9, seed=3).x)
    assert not np.array_equal(simulate(5, 9, seed=3).x, simulate(5, 9, seed=4).x)


def test_showers_have_the_layout_of_nnlo():
    sets = SHOWERS.datasets()
    assert [*sets] == ["X", "y/a", "y/b", "y/c"]
    assert sets["X"].shape == (400, 13, 13, 13, 1)
    assert sets["X"].dtype == sets["y/b"].dtype == np.float32
    assert (sets["y/a"] == 1).all()
    assert np.allclose(sets["y/c"], SHOWERS.x.sum(axis=(1, 2, 3, 4)), rtol=1e-4)
    assert ENERGIES[0] <= SHOWERS.y.min() < 0.2
    assert 4.9 < SHOWERS.y.max() <= ENERGIES[1]
    assert SHOWERS.x[SHOWERS.x > 0].min() >= 1e-4


def test_the_sum_of_the_cells_is_the_response_within_the_resolution():
    ratio = totals(SHOWERS.x) / expected_total(SHOWERS.y)
    assert 0.95 < ratio.mean() < 1.0, "a little leaks out"
    assert ratio.std() < 0.05


def test_the_maximum_deepens_with_the_logarithm_of_the_energy():
    low, high = (SHOWERS.x[chosen] for chosen in (SHOWERS.y < 0.5, SHOWERS.y > 4))
    cells_a_length = 13 / 25
    # The mean of the gamma distribution is 1 / b = 2 radiation lengths behind its maximum.
    expected = (np.log(100 * 4.5 / 0.008) - 0.5 + 2) * cells_a_length - 0.5
    assert moments(high)["z1"] == pytest.approx(expected, abs=0.5)
    assert moments(high)["z1"] > moments(low)["z1"] + 0.5


def test_showers_are_centred_and_narrow():
    found = moments(SHOWERS.x)
    assert found["x1"] == pytest.approx(6, abs=0.1)
    assert found["y1"] == pytest.approx(6, abs=0.1)
    assert found["x2"] < found["z2"]


def test_sizes_beyond_the_calorimeter_are_refused():
    check_refused("between 9 and 25. Received: 8", simulate, 1, 8, seed=0)


def test_showers_of_another_seed_are_near_and_noise_is_far():
    other = simulate(400, 13, seed=1)
    near = physics_figure(other.x[np.argsort(other.y)], SHOWERS.x[np.argsort(SHOWERS.y)], np.sort(SHOWERS.y))
    assert max(near.values()) < 0.15
    noise = np.random.default_rng(0).random(SHOWERS.x.shape) * 0.01
    assert min(physics_figure(noise, SHOWERS.x, SHOWERS.y).values()) > 0.8


def test_showers_of_other_energies_are_one_range():
    first, second = SHOWERS.x[:100], SHOWERS.x[100:200]
    assert physics_figure(first, second, np.full(100, 7.0)) == pytest.approx(distance(first, second))


def test_nothing_has_an_error_of_one():
    assert distance(SHOWERS.x, SHOWERS.x) == {"moments": 0.0, "profiles": 0.0}
    assert distance(np.zeros_like(SHOWERS.x), SHOWERS.x) == {"moments": 1.0, "profiles": 1.0}
