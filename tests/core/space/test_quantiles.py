"""Rows of quantiles are those of the points that `Space.from_unit` makes; on grids to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.space.quantiles import Quantiles, snapped_row
from nnlo_opt.space import Categorical, Constant, Integer, Ordinal, Real, Space, When
from tests.helpers.effort import examples
from tests.helpers.random_spaces import parameters, spaces

units = st.floats(0.0, 1.0)


def tolerance(parameter):
    """Return 1e-12, and more only where logarithms of huge numbers in a narrow range are subtracted."""
    if parameter.prior != "log-uniform":
        return 1e-12
    low, high = np.log([parameter.low, parameter.high])
    return min(1e-12 + 32 * np.finfo(float).eps * max(abs(low), abs(high)) / (high - low), 1e-9)


def compare(space, rows):
    """Compare with the points made one after another; quantiles of numbers between 1e300 and the next one are lost."""
    quantiles, points = Quantiles(space), [space.from_unit(row) for row in rows]
    expected = np.array([snapped_row(space, point) for point in points])
    for _ in range(2):  # the second time from what was kept
        snapped = quantiles.snapped(np.array(rows))
        for found, wanted, parameter in zip(snapped.T, expected.T, space.parameters, strict=True):
            if parameter.n_values is not None:
                np.testing.assert_array_equal(found, wanted)
            elif parameter.high - parameter.low > 1e-3 * abs(parameter.high):
                np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance(parameter))
            else:
                np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_rows_are_those_of_the_points(data):
    space = data.draw(spaces())
    rows = data.draw(st.lists(st.lists(units, min_size=len(space.names), max_size=len(space.names)), min_size=1))
    compare(space, rows)


@settings(max_examples=examples(300), deadline=None)
@given(parameters, st.lists(units, min_size=1))
def test_rows_of_one_parameter_of_any_kind_are_those_of_the_points(parameter, column):
    compare(Space([parameter]), [[unit] for unit in column])


@pytest.mark.parametrize(
    "parameter",
    [
        Real(1e-7, 1e3, "log-uniform", name="p"),
        Real(-3.0, 0.1, name="p"),
        Real(0.0, 1.0, likely=0.2, name="p"),
        Real(0.01, 2.0, "log-uniform", step=0.01, name="p"),
        Integer(1, 10**6, "log-uniform", name="p"),
        Integer(1, 512, "log-uniform", likely=64, name="p"),
        Integer(-5, 300, step=5, name="p"),
        Ordinal([1, 2, 4, 8], likely=4, name="p"),
        Categorical(["a", 1, True, None], name="p"),
        Constant("a", "p"),
    ],
    ids=str,
)
def test_thousands_of_quantiles_of_a_usual_parameter_are_those_of_its_values(parameter):
    rows = np.random.default_rng(0).random((3000, 1))
    rows[:4, 0] = 0.0, 1.0, 0.5, np.nextafter(1.0, 0.0)
    compare(Space([parameter]), rows.tolist())


@given(st.data())
def test_values_of_a_finite_parameter_are_all_its_values(data):
    space = data.draw(spaces(finite=True))
    for row, parameter in enumerate(space.parameters):
        expected = [parameter.to_unit(parameter.value_at(index)) for index in range(parameter.n_values)]
        assert Quantiles(space).values(row).tolist() == expected


def test_a_parameter_under_an_absent_one_is_absent():
    space = Space(
        [
            Real(0, 1, name="third", condition=When("second", 2)),
            Integer(1, 2, name="second", condition=When("first", "b", "c")),
            Categorical(["a", "b", "c"], name="first"),
        ]
    )
    snapped = Quantiles(space).snapped(np.array([[0.3, 0.9, 0.1], [0.3, 0.9, 0.5], [0.3, 0.1, 0.9]]))
    np.testing.assert_allclose(snapped, [[np.nan, np.nan, 1 / 6], [0.3, 0.75, 0.5], [np.nan, 0.25, 5 / 6]], rtol=1e-12)
