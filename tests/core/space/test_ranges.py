import json
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.space.parameters import parameter_from_json
from nnlo_opt.core.space.values import LIKELY_WIDTH, position_of, quantile_of
from nnlo_opt.space import Integer, Real
from tests.helpers import random_spaces as some


@given(parameter=some.grids())
def test_values_of_a_grid_are_numbered_and_keep_their_quantiles(parameter):
    values = [parameter.value_at(index) for index in range(parameter.n_values)]
    assert (values[0], values[-1]) == (parameter.low, parameter.high)
    assert [parameter.index(value) for value in values] == list(range(parameter.n_values))
    assert len({parameter.key(value) for value in values}) == parameter.n_values
    for value in values:
        assert parameter.contains(value)
        assert type(value) is (int if isinstance(parameter, Integer) else float)
    if parameter.likely is None and parameter.prior == "uniform":
        assert [parameter.from_unit(parameter.to_unit(value)) for value in values] == values


@given(parameter=some.parameters, unit=st.floats(0, 1))
def test_whatever_is_drawn_is_contained_and_survives_json(parameter, unit):
    value = parameter.from_unit(unit)
    assert parameter.contains(value)
    assert 0 <= parameter.to_unit(value) <= 1
    assert parameter.key(json.loads(json.dumps(value))) == parameter.key(value)
    again = parameter_from_json(json.loads(json.dumps(parameter.to_json())))
    assert again == parameter
    assert str(again) == str(parameter)


@given(parameter=some.likely_reals(), unit=st.floats(0, 1))
def test_quantiles_around_a_likely_value_go_both_ways(parameter, unit):
    value = parameter.from_unit(unit)
    again = parameter.from_unit(parameter.to_unit(value))
    assert math.isclose(again, value, rel_tol=1e-6, abs_tol=1e-6 * (parameter.high - parameter.low))
    assert parameter.from_unit(0.0) == pytest.approx(parameter.low)
    assert parameter.from_unit(1.0) == pytest.approx(parameter.high)


def test_a_step_is_written_as_people_write_it():
    assert [Real(0, 1, step=0.1, name="x").value_at(i) for i in range(11)] == [i / 10 for i in range(11)]
    assert Real(0, 1, step=1 / 3, name="x").n_values == 4
    integer = Integer(16, 256, step=16, name="n")
    assert (integer.n_values, integer.value_at(1), integer.index(256)) == (16, 32, 15)
    assert integer.contains(48)
    assert not integer.contains(49)
    assert Real(0, 1, step=0.1, name="x").contains(0.1 * 3)
    assert not Real(0, 1, step=0.1, name="x").contains(0.35)


@pytest.mark.parametrize(("low", "high", "step"), [(1, 1024, None), (16, 256, 16), (1, 49, 16)])
def test_a_logarithmic_grid_gives_every_value_the_share_between_its_neighbours_middles(low, high, step):
    parameter = Integer(low, high, "log-uniform", name="n", step=step)
    n_drawn = 200_000
    values = np.array([parameter.from_unit((i + 0.5) / n_drawn) for i in range(n_drawn)])
    step = parameter.step or 1
    low, high = np.log(parameter.low - min(step, parameter.low) / 2), np.log(parameter.high + step / 2)
    for index in (0, 1, 3, parameter.n_values - 1):
        value = parameter.value_at(index)
        below = low if index == 0 else np.log(value - step / 2)
        assert np.mean(values == value) == pytest.approx((np.log(value + step / 2) - below) / (high - low), abs=1e-4)


@given(center=st.floats(0, 1), quantile=st.floats(0, 1))
def test_the_likely_prior_is_a_truncated_normal(center, quantile):
    normal = NormalDist(center, LIKELY_WIDTH)
    position = position_of(quantile, center)
    share = (normal.cdf(position) - normal.cdf(0)) / (normal.cdf(1) - normal.cdf(0))
    assert share == pytest.approx(quantile, abs=1e-9)
    assert quantile_of(position, center) == pytest.approx(quantile, abs=1e-9)


def test_two_draws_of_three_come_from_a_quarter_of_the_range_around_a_likely_middle():
    parameter = Real(1e-5, 1e-1, "log-uniform", name="x", likely=1e-3)
    drawn = np.array([parameter.from_unit((i + 0.5) / 1000) for i in range(1000)])
    assert np.mean(np.abs(np.log10(drawn) + 3) < 1) == pytest.approx(0.683 / 0.954, abs=0.01)
    assert parameter.to_unit(1e-3) == pytest.approx(0.5)
    assert np.median(drawn) == pytest.approx(1e-3, rel=0.02)
