from functools import reduce

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.space import Categorical, Integer, Real, Space
from tests.helpers.refusals import check_refused

FINITE = Space([Integer(1, 3, name="n"), Categorical(["a", [1, 2], None], name="c"), Categorical([True, 1], name="b")])
MIXED = Space([Real(1e-4, 1, "log-uniform", name="train.learning_rate"), Integer(0, 9, name="n_units")])


def test_names_and_their_halves():
    assert MIXED.names == ("train.learning_rate", "n_units")
    assert MIXED.train_names == ("train.learning_rate",)
    assert MIXED.model_names == ("n_units",)


def test_points_do_not_share_lists():
    points = [point for point in FINITE.iter_points() if point["c"] == [1, 2]]
    points[0]["c"].clear()
    assert points[1]["c"] == [1, 2]


def test_keys_are_equal_for_equal_points_only():
    space = Space([Integer(0, 3, name="n"), Categorical([True, 1], name="b")])
    assert space.key({"n": 1, "b": True}) == space.key({"b": True, "n": 1.0})
    assert space.key({"n": 1, "b": True}) != space.key({"n": 1, "b": 1})
    with pytest.raises(ValueError, match="`n`"):
        space.key({"n": 4, "b": True})


def test_contains_wants_exactly_its_names():
    assert MIXED.contains({"train.learning_rate": 0.1, "n_units": 3})
    assert not MIXED.contains({"n_units": 3})
    assert not MIXED.contains({"train.learning_rate": 0.1, "n_units": 3, "more": 1})
    assert not MIXED.contains({"train.learning_rate": 2.0, "n_units": 3})


def test_middle():
    assert MIXED.middle()["train.learning_rate"] == pytest.approx(0.01)
    assert MIXED.middle()["n_units"] == 5


def test_quantiles_lead_back_to_the_point_and_are_in_the_middle_for_a_missing_value():
    space = Space([*MIXED.parameters, Categorical(["a", None, 3], name="c")])
    rng = np.random.default_rng(0)
    for point in (space.sample(rng) for _ in range(50)):
        again = space.from_unit(space.to_unit(point))
        assert again == point | {"train.learning_rate": pytest.approx(point["train.learning_rate"], rel=1e-12)}
    assert space.to_unit({"c": 3}) == [0.5, 0.5, pytest.approx(5 / 6)]


@pytest.mark.parametrize(
    "data", [None, [], {}, {"parameters": 3}, {"parameters": []}, {"parameters": [{"kind": "real"}]}]
)
def test_json_that_is_no_space(data):
    with pytest.raises(ConfigurationError):
        Space.from_json(data)


@pytest.mark.parametrize("depth", [30, 400, 900])
@pytest.mark.parametrize("inside", [[], {}])
def test_categories_inside_each_other_are_refused_before_python_cannot_follow_them(depth, inside):
    nested = reduce(lambda value, _: [value], range(depth), inside)
    with pytest.raises(ConfigurationError, match=r"levels|to_json"):
        Space.from_json({"parameters": [{"kind": "categorical", "name": "c", "categories": [1, nested]}]})
    assert not Categorical([1, 2], name="c").contains(nested)


def test_empty_and_repeated():
    check_refused("at least one parameter", Space, [])
    check_refused("`x` more than once", Space, [Real(0, 1, name="x"), Integer(0, 1, name="x")])


X, N, LOG_N = Real(0, 1, name="x"), Integer(1, 3, name="n"), Integer(1, 3, "log-uniform", name="n")


@pytest.mark.parametrize(
    ("now", "phrase"),
    [
        ([N], "parameter `x` was Real(0.0, 1.0) and is now missing"),
        ([Real(0, 2, name="x"), N], "parameter `x` was Real(0.0, 1.0) and is now Real(0.0, 2.0)"),
        ([X, Categorical([1, 2, 3], name="n")], "parameter `n` was Integer(1, 3) and is now Categorical([1, 2, 3])"),
        ([X, LOG_N], 'parameter `n` was Integer(1, 3) and is now Integer(1, 3, "log-uniform")'),
        ([N, X, Categorical(["a", "b"], name="c")], "parameter `c` is new: Categorical(['a', 'b'])"),
        ([N, X], None),
    ],
)
def test_difference_names_the_first_parameter(now, phrase):
    assert Space([X, N]).difference(Space(now)) == phrase


def test_difference_sees_the_type_of_a_category():
    was = Space([Categorical([1, 2], name="c")])
    assert was.difference(Space([Categorical([True, 2], name="c")])) is not None


def test_spaces_are_values():
    assert Space(list(FINITE.parameters)) == FINITE
    assert hash(Space(list(FINITE.parameters))) == hash(FINITE)
    assert FINITE.n_points == 18
