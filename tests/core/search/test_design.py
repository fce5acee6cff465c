import numpy as np
import pytest

from nnlo_opt.core.search.design import design_size, latin_hypercube
from nnlo_opt.space import Categorical, Integer, Real, Space


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


def test_the_size_grows_with_the_parameters_of_many_values_between_its_ends():
    def size(n_many, n_trials=None):
        few = [Categorical(list(range(30)), name="kind"), Integer(1, 16, name="few")]
        return design_size(Space([*few, *(Real(0.0, 1.0, name=f"x{i}") for i in range(n_many))]), n_trials)

    assert [size(n) for n in (0, 3, 4, 6, 7, 20)] == [10, 10, 12, 18, 20, 20]
    assert design_size(Space([Integer(1, 17, name=f"x{i}") for i in range(5)])) == 15
    assert [size(6, n_trials) for n_trials in (1, 7, 20, 35, 36, 100)] == [3, 3, 10, 17, 18, 18]
    assert design_size(None, 100) == 10
