import json
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.space.parameters import Categorical, Integer, Real, parameter_from_json
from nnlo_opt.space.space import Space

priors = st.sampled_from(["uniform", "log-uniform"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
)


@st.composite
def reals(draw):
    prior = draw(priors)
    least = 1e-300 if prior == "log-uniform" else -1e300
    low, high = sorted(draw(st.floats(least, 1e300)) for _ in range(2))
    assume(low < high)
    return Real(low, high, prior, name="x")


@st.composite
def integers(draw):
    prior = draw(priors)
    low, high = sorted(draw(st.integers(1 if prior == "log-uniform" else -(2**53), 2**53)) for _ in range(2))
    assume(low < high)
    return Integer(low, high, prior, name="n")


categoricals = st.lists(scalars | st.lists(scalars, max_size=2), min_size=2, max_size=6, unique_by=json.dumps).map(
    lambda categories: Categorical(categories, name="c")
)


@given(parameter=reals() | integers() | categoricals, seed=st.integers(0, 1000), unit=st.floats(0, 1))
def test_samples_are_contained_and_survive_json(parameter, seed, unit):
    for value in (parameter.sample(np.random.default_rng(seed)), parameter.from_unit(unit)):
        assert parameter.contains(value)
        assert parameter.key(json.loads(json.dumps(value))) == parameter.key(value)
        assert 0 <= parameter.to_unit(value) <= 1
    assert parameter_from_json(json.loads(json.dumps(parameter.to_json()))) == parameter


@given(parameter=reals() | integers(), unit=st.floats(0, 1))
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
    rng = np.random.default_rng(0)
    assert type(Real(np.float32(0), np.int64(1), name="x").sample(rng)) is float
    assert type(Integer(np.int32(0), 9.0, name="n").sample(rng)) is int
    values = {type(Categorical(np.array([1, 2]), name="c").sample(rng)) for _ in range(5)}
    assert values == {int}


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
    ],
)
def test_what_is_refused_and_how(make, words):
    with pytest.raises(ConfigurationError) as error:
        make()
    message = str(error.value)
    assert words in message
    assert "Received: " in message
    assert "`p`" in message or "name" in words
    assert "\n" not in message


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
