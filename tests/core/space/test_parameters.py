import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.space.parameters import Categorical, Constant, Integer, Ordinal, Real, parameter_from_json
from nnlo_opt.core.space.space import Space
from tests.helpers import random_spaces as some
from tests.helpers.refusals import check_refused


@given(parameter=some.reals() | some.integers(), unit=st.floats(0, 1))
def test_quantiles_go_both_ways(parameter, unit):
    value = parameter.from_unit(unit)
    again = parameter.from_unit(parameter.to_unit(value))
    assert again == value or math.isclose(again, value, rel_tol=1e-9, abs_tol=1e-9 * (parameter.high - parameter.low))
    assert parameter.low == pytest.approx(parameter.from_unit(0.0), rel=1e-9)
    assert parameter.high == pytest.approx(parameter.from_unit(1.0), rel=1e-9)


def test_a_logarithmic_range_of_neighbouring_floats_has_quantiles():
    parameter = Real(1e-300, math.nextafter(1e-300, 1), "log-uniform", name="x")
    assert [parameter.to_unit(value) for value in (parameter.low, parameter.high)] == [0.0, 1.0]


@given(low=st.integers(-50, 50), size=st.integers(2, 60))
def test_every_integer_has_the_same_share(low, size):
    parameter = Integer(low, low + size - 1, name="n")
    values = [parameter.from_unit((i + 0.5) / (10 * size)) for i in range(10 * size)]
    assert all(values.count(value) == 10 for value in range(low, low + size))


@given(low=st.integers(1, 50), size=st.integers(2, 60))
def test_small_log_integers_go_both_ways(low, size):
    parameter = Integer(low, low + size - 1, "log-uniform", name="n")
    assert all(parameter.from_unit(parameter.to_unit(value)) == value for value in range(low, low + size))


def test_log_uniform_gives_every_decade_the_same_weight():
    parameter = Real(1e-4, 1.0, "log-uniform", name="x")
    assert [parameter.from_unit(unit) for unit in (0.25, 0.5, 0.75)] == pytest.approx([1e-3, 1e-2, 1e-1])


def test_values_are_plain():
    assert type(Real(np.float32(0), np.int64(1), name="x").from_unit(0.3)) is float
    assert type(Integer(np.int32(0), 9.0, name="n").from_unit(0.3)) is int
    assert [type(Categorical(np.array([1, 2]), name="c").from_unit(unit)) for unit in (0.3, 0.6)] == [int, int]


def test_numpy_scalars_are_contained():
    assert Real(0, 1, name="x").contains(np.float64(0.5))
    assert Integer(0, 5, name="n").contains(np.int64(3))
    assert Integer(0, 5, name="n").key(np.int64(3)) == Integer(0, 5, name="n").key(3.0) == 3
    assert Categorical([1, 2], name="c").key(np.int64(2)) == 1


def test_categories_of_different_types_differ():
    parameter = Categorical([1, 1.0, True, "1", None, [1], [1.0]], name="c")
    assert [parameter.key(value) for value in (1, 1.0, True, "1", None, [1], (1.0,))] == list(range(7))
    assert parameter.n_values == 7


def test_category_that_is_a_list_is_fresh_each_time():
    parameter = Categorical([(1, [2, 3]), (4,)], name="c")
    value = parameter.value_at(0)
    assert value == [1, [2, 3]]
    value[1].clear()
    assert parameter.value_at(0) == [1, [2, 3]]


def test_an_ordinal_keeps_its_order_in_its_quantiles():
    parameter = Ordinal([16, 32, 64, 128], name="batch")
    assert [parameter.to_unit(value) for value in (16, 32, 64, 128)] == [0.125, 0.375, 0.625, 0.875]
    assert [parameter.from_unit(unit) for unit in (0, 0.3, 0.6, 1)] == [16, 32, 64, 128]
    assert parameter.n_values == 4


def test_a_likely_category_and_its_neighbours_come_more_often():
    parameter = Ordinal([1, 2, 4, 8, 16], name="n", likely=8)
    drawn = [parameter.from_unit((i + 0.5) / 1000) for i in range(1000)]
    shares = [drawn.count(value) for value in (1, 2, 4, 8, 16)]
    assert sum(shares) == 1000
    assert shares[3] == max(shares) > 300
    assert 0 < shares[0] < shares[1] < shares[2] < shares[3] > shares[4]
    assert all(parameter.from_unit(parameter.to_unit(value)) == value for value in (1, 2, 4, 8, 16))


def test_a_constant_has_one_value_of_any_type():
    parameter = Constant([1, [2, "a"]], name="c")
    assert parameter.n_values == 1
    parameter.from_unit(0.7).clear()
    assert parameter.from_unit(0.0) == parameter.value == [1, [2, "a"]]
    assert parameter.contains((1, (2, "a")))
    assert not Constant(1, name="c").contains(True)


@pytest.mark.parametrize("value", [True, "3", None, 2.5, 6, -1, math.nan, math.inf, [3], object()])
def test_integer_contains_integers_of_its_range_only(value):
    assert not Integer(0, 5, name="n").contains(value)
    with pytest.raises(ValueError, match="`n`"):
        Integer(0, 5, name="n").key(value)


@pytest.mark.parametrize("value", [0, object(), {}, math.nan, "A"])
def test_categorical_contains_its_categories_only(value):
    assert not Categorical(["a", False], name="c").contains(value)
    with pytest.raises(ValueError, match="`c`"):
        Categorical(["a", False], name="c").key(value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Space([Real(0, 1)]), "Every parameter must have a name"),
        (lambda: Space([Integer(0, 1, name=None)]), "Every parameter must have a name"),
        (lambda: Space([Categorical(["a", "b"])]), "Every parameter must have a name"),
        (lambda: Real(1, 0, name="p"), "must be less than `high`"),
        (lambda: Real(1, 1, name="p"), "must be less than `high`"),
        (lambda: Integer(3, 3, name="p"), "must be less than `high`"),
        (lambda: Real(0, math.nan, name="p"), "must be a finite number"),
        (lambda: Real(-math.inf, 0, name="p"), "must be a finite number"),
        (lambda: Real(0, 10**400, name="p"), "must be a finite number"),
        (lambda: Real("0", 1, name="p"), "must be a finite number"),
        (lambda: Real(False, True, name="p"), "must be a finite number"),
        (lambda: Real(-1.7e308, 1.7e308, name="p"), "must be a finite number"),
        (lambda: Integer(0.5, 3, name="p"), "must be an integer"),
        (lambda: Integer(0, 2**54, name="p"), "within -2"),
        (lambda: Real(0, 1, "log-uniform", name="p"), "must be more than 0"),
        (lambda: Integer(0, 9, "log-uniform", name="p"), "must be more than 0"),
        (lambda: Real(0, 1, "normal", name="p"), '"uniform" or "log-uniform"'),
        (lambda: Categorical([], name="p"), "at least 2 categories"),
        (lambda: Categorical([[1]], name="p"), "at least 2 categories"),
        (lambda: Categorical(["a", "b", "a"], name="p"), "must be different"),
        (lambda: Categorical([[1], (1,)], name="p"), "must be different"),
        (lambda: Categorical("abc", name="p"), "must be a list"),
        (lambda: Categorical(3, name="p"), "must be a list"),
        (lambda: Categorical([math.nan, 1], name="p"), "A category must be"),
        (lambda: Categorical([print, 1], name="p"), "A category must be"),
        (lambda: Real(0, 1, name="p", step=0.3), "must be a whole number of steps above `low`"),
        (lambda: Real(0, 1, name="p", step=0), "whole number of steps"),
        (lambda: Real(0, 1, name="p", step=-0.5), "whole number of steps"),
        (lambda: Real(0, 1, name="p", step=2), "whole number of steps"),
        (lambda: Real(0, 1, name="p", step=1e-300), "whole number of steps"),
        (lambda: Real(0, 1, name="p", step="0.1"), "`step` of Real `p` must be a finite number"),
        (lambda: Integer(0, 10, name="p", step=2.5), "`step` of Integer `p` must be an integer"),
        (lambda: Integer(0, 10, name="p", step=3), "whole number of steps"),
        (lambda: Real(0, 1, name="p", likely=2), "must be one of its values"),
        (lambda: Real(0, 1, name="p", likely="a"), "`likely` value of Real `p` must be a finite number"),
        (lambda: Integer(0, 10, name="p", step=2, likely=3), "must be one of its values"),
        (lambda: Integer(0, 10, name="p", likely=2.5), "must be an integer"),
        (lambda: Real(0, 1, name="p", condition="optimizer is sgd"), "must be a When"),
        (lambda: Ordinal([16], name="p"), "at least 2 categories"),
        (lambda: Ordinal([16, 32, 16], name="p"), "must be different"),
        (lambda: Ordinal([16, 32], name="p", likely=64), "`likely` value of Ordinal `p` must be one of"),
        (lambda: Ordinal("abc", name="p"), "must be a list"),
        (lambda: Space([Ordinal([1, 2])]), "must have a name"),
        (lambda: Constant(print, name="p"), "A category must be"),
        (lambda: Space([Constant(1)]), "must have a name"),
        (lambda: Categorical([1, 2], name="p", condition=("a", 1)), "must be a When"),
        (lambda: Constant(1, name="p", condition=3), "must be a When"),
    ],
)
def test_what_is_refused_and_how(make, words):
    sentence = check_refused(words, make)
    assert "Received: " in sentence
    assert "`p`" in sentence or "name" in words


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Real(1, 5, log=True), 'Write it as `prior="log-uniform"`'),
        (lambda: Integer(5, 1), "`low` must be less than `high` in Integer(5, 1)."),
        (lambda: Categorical("abc"), "The categories of a parameter must be a list"),
    ],
)
def test_what_is_refused_before_it_has_a_name_is_named_by_its_content(make, words):
    check_refused(words, make)


@pytest.mark.parametrize("data", [{}, {"kind": "real", "name": "x"}, {"kind": "set", "name": "x"}, None, 3])
def test_json_that_is_no_parameter(data):
    with pytest.raises(ConfigurationError):
        parameter_from_json(data)


def test_parameters_are_values():
    assert Real(0, 1, name="x") == Real(0.0, 1.0, "uniform", name="x")
    assert len({Categorical([[1], 2], name="c"), Categorical(((1,), 2), name="c")}) == 1
    assert str(Real(1e-3, 1, "log-uniform", name="x")) == 'Real(0.001, 1.0, "log-uniform")'
    with pytest.raises(ValueError, match="continuous"):
        Real(0, 1, name="x").value_at(0)
