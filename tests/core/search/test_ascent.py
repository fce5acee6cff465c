import numpy as np
import pytest
from scipy.optimize import minimize

from nnlo_opt.core.search.ascent import Ascents

CURVES = np.array([1.0, 10.0, 100.0, 1000.0])


def bowl(centre):
    """A bowl a thousand times as steep along one coordinate as along another; its top may lie outside the cube."""
    return lambda _, x: (-(CURVES * (x - centre) ** 2).sum(axis=1), -2.0 * CURVES * (x - centre))


def valley(_, x):
    """Rosenbrock's function, whose maximum lies at the end of a curved valley."""
    a, b = 4.0 * x[:, 0] - 2.0, 4.0 * x[:, 1] - 2.0
    by_b = 200.0 * (b - a * a)
    by_a = -2.0 * (1.0 - a) - 2.0 * a * by_b
    return -((1.0 - a) ** 2 + 100.0 * (b - a * a) ** 2), -4.0 * np.column_stack([by_a, by_b])


def from_anywhere(function, n, d, n_steps, is_free=None):
    starts = np.random.default_rng(0).random((n, d))
    ascents = Ascents(function, starts, np.ones((n, d), dtype=bool) if is_free is None else is_free)
    before = ascents.values
    ascents.run(n_steps)
    assert (ascents.values >= before).all()
    assert (ascents.points >= 0.0).all()
    assert (ascents.points <= 1.0).all()
    return starts, ascents


def test_the_top_is_reached_from_anywhere():
    _, ascents = from_anywhere(bowl(np.array([0.3, 0.8, 0.5, 0.1])), 20, 4, 60)
    assert np.abs(ascents.points - [0.3, 0.8, 0.5, 0.1]).max() < 1e-4


def test_a_top_outside_is_approached_within_the_bounds():
    _, ascents = from_anywhere(bowl(np.array([-0.5, 0.8, 1.7, 0.1])), 20, 4, 60)
    assert np.abs(ascents.points - [0.0, 0.8, 1.0, 0.1]).max() < 1e-4
    assert (ascents.points[:, [0, 2]] == [0.0, 1.0]).all()


def test_a_curved_valley_is_followed_as_far_as_by_scipy():
    starts, ascents = from_anywhere(valley, 12, 2, 60)
    theirs = [
        minimize(
            lambda x: tuple(-each[0] for each in valley(None, x[None])), start, jac=True, method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * 2, options={"maxiter": 60},
        ).fun
        for start in starts
    ]  # fmt: skip
    assert np.median(-ascents.values) <= max(10.0 * np.median(theirs), 1e-8)


def test_an_ascent_keeps_the_coordinates_that_it_may_not_change():
    is_free = np.random.default_rng(1).random((20, 4)) < 0.5
    is_free[0] = False
    starts, ascents = from_anywhere(bowl(np.full(4, 0.5)), 20, 4, 60, is_free)
    assert (ascents.points[~is_free] == starts[~is_free]).all()
    assert np.abs(ascents.points[is_free] - 0.5).max() < 1e-4


@pytest.mark.parametrize("rows", [[0], [3, 5], list(range(8))], ids=len)
def test_an_ascent_does_not_depend_on_those_beside_it(rows):
    _, together = from_anywhere(valley, 8, 2, 25)
    starts = np.random.default_rng(0).random((8, 2))[rows]
    some = Ascents(valley, starts, np.ones(starts.shape, dtype=bool))
    some.run(25)
    np.testing.assert_allclose(some.points, together.points[rows], rtol=1e-6)


def test_steps_are_as_many_as_asked_for_and_an_ascent_on_level_ground_ends():
    asked = []

    def level(rows, x):
        asked.append(len(rows))
        return np.zeros(len(x)), np.zeros_like(x)

    from_anywhere(level, 3, 2, 100)
    assert asked == [3]
    calls = []
    from_anywhere(lambda rows, x: (calls.append(1), bowl(np.full(4, 0.5))(rows, x))[1], 1, 4, 1)
    assert 2 <= len(calls) <= 1 + 10
