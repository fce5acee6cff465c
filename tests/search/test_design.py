import numpy as np
import pytest

from nnlo_opt.search.design import latin_hypercube


@pytest.mark.parametrize(("n_points", "n_parameters"), [(1, 1), (1, 3), (2, 1), (10, 6)])
def test_every_range_of_every_parameter_has_one_point(n_points, n_parameters):
    units = latin_hypercube(n_points, n_parameters, 3)
    assert units.shape == (n_points, n_parameters)
    assert np.all((units >= 0) & (units <= 1))
    ranges = np.sort(np.floor(units * n_points), axis=0)
    np.testing.assert_array_equal(ranges, np.arange(n_points)[:, None].repeat(n_parameters, axis=1))


def test_seeds():
    np.testing.assert_array_equal(latin_hypercube(5, 2, 1), latin_hypercube(5, 2, 1))
    assert not np.array_equal(latin_hypercube(5, 2, 1), latin_hypercube(5, 2, 2))


def test_points_are_apart():
    units = latin_hypercube(10, 2, 0)
    distances = np.sqrt(((units[:, None] - units[None]) ** 2).sum(-1))[np.triu_indices(10, 1)]
    assert distances.min() > 0.15
