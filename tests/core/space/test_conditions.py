import json
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.space import Categorical, Constant, Integer, Ordinal, Real, Space, When
from tests.helpers import random_spaces as some
from tests.helpers.effort import examples
from tests.helpers.refusals import check_refused

SPACE = Space(
    [
        Real(0.0, 0.9, name="momentum", condition=When("optimizer", "sgd")),
        Categorical(["sgd", "adam"], name="optimizer"),
        Integer(1, 3, name="n_layers"),
        Integer(8, 16, name="width_2", condition=When("n_layers", 2, 3)),
        Integer(8, 16, name="width_3", condition=When("n_layers", 3)),
    ]
)


def test_points_have_what_their_values_call_for_in_the_order_of_the_space():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        point = SPACE.sample(rng)
        assert ("momentum" in point) == (point["optimizer"] == "sgd")
        assert ("width_2" in point) == (point["n_layers"] >= 2)
        assert ("width_3" in point) == (point["n_layers"] == 3)
        assert list(point) == [name for name in SPACE.names if name in point]
        seen.add(tuple(point))
    assert len(seen) == 6


@given(space=some.spaces(), seed=st.integers(0, 100))
@settings(deadline=None)
def test_points_go_every_way_and_back(space, seed):
    point = space.sample(np.random.default_rng(seed))
    assert space.contains(point)
    key = space.key(point)
    assert [part is None for part in key] == [name not in point for name in space.names]
    assert space.key(json.loads(json.dumps(point))) == key
    again = Space.from_json(json.loads(json.dumps(space.to_json())))
    assert again == space
    assert space.difference(again) is None
    assert again.key(point) == key
    # Quantiles of what is not in a point have no influence.
    units = [unit if name in point else 0.123 for name, unit in zip(space.names, space.to_unit(point), strict=True)]
    back = space.from_unit(units)
    assert back.keys() == point.keys()
    for parameter in space.parameters:
        if parameter.name in point and parameter.n_values is None:
            assert back[parameter.name] == pytest.approx(point[parameter.name], rel=1e-6, abs=1e-6)


@given(space=some.spaces(finite=True))
@settings(deadline=None, max_examples=examples(60))
def test_points_of_a_finite_space_are_counted_and_numbered_exactly(space):
    if space.n_points > 3000:
        return
    points = list(space.iter_points())
    assert points == [space.point_at(index) for index in range(space.n_points)]
    assert all(space.contains(point) for point in points)
    assert len({space.key(point) for point in points}) == len(points) == space.n_points
    # The other way: all combinations of values, of which those that only differ in absent parameters are one.
    units = [[p.to_unit(p.value_at(index)) for index in range(p.n_values)] for p in space.parameters]
    if math.prod(map(len, units)) < 20_000:
        assert {space.key(space.from_unit(quantiles)) for quantiles in product(*units)} == set(map(space.key, points))


def test_a_huge_parent_is_counted_without_being_walked():
    space = Space([Integer(-(2**53), 2**53, name="n"), Integer(1, 10, name="m", condition=When("n", 7, -5))])
    assert space.n_points == 2**54 + 1 + 2 * 9
    at = {space.key(space.point_at(2**53 - 5 + i)): space.point_at(2**53 - 5 + i) for i in range(12)}
    assert len(at) == 12
    assert [point["n"] for point in at.values()] == [-5] * 10 + [-4, -3]
    assert space.point_at(space.n_points - 1) == {"n": 2**53}


def test_a_continuous_parameter_under_a_condition_makes_a_space_endless():
    assert SPACE.n_points is None
    with pytest.raises(ValueError, match="continuous"):
        SPACE.point_at(0)
    with pytest.raises(ValueError, match="continuous"):
        SPACE.iter_points()


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"optimizer": "adam", "n_layers": 1, "momentum": 0.5}, "`momentum` only if optimizer is 'sgd'"),
        ({"optimizer": "sgd", "n_layers": 1}, "must have a value for parameter `momentum`"),
        ({"optimizer": "adam", "n_layers": 2}, "must have a value for parameter `width_2`"),
        ({"optimizer": "adam", "n_layers": 2, "width_2": 7}, "`width_2` must be in Integer"),
        ({"n_layers": 1, "momentum": 0.5}, "`optimizer`"),
    ],
)
def test_points_that_are_none_are_told(point, words):
    assert not SPACE.contains(point)
    with pytest.raises(ValueError) as error:
        SPACE.key(point)
    assert words in str(error.value)


def test_values_of_a_condition_are_told_apart_by_their_types():
    space = Space([Categorical([1, True, "1"], name="c"), Constant(0, name="x", condition=When("c", True))])
    assert [("x" in point) for point in space.iter_points()] == [False, True, False]
    lists = Space([Categorical([[1, 2], [3]], name="c"), Constant(0, name="x", condition=When("c", (1, 2)))])
    assert [("x" in point) for point in lists.iter_points()] == [True, False]


REAL = Real(0, 1, name="x")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: When("a"), "must name a parameter and at least one of its values"),
        (lambda: When(REAL, 1), "must name a parameter"),
        (lambda: When("a", print), "A category must be"),
        (
            lambda: Space([Categorical(["sgd", "adam"], name="optimizer"), _under("optimiser", "sgd")]),
            "must name a parameter of the same search space. Received: `optimiser`. Did you mean `optimizer`?",
        ),
        (lambda: Space([_under("far", 1)]), "Received: `far`. Its parameters: y."),
        (
            lambda: Space([Categorical(["sgd", "adam"], name="c"), _under("c", "sdg")]),
            "must name values that `c` can have, in Categorical(['sgd', 'adam']). Received: 'sdg'",
        ),
        (lambda: Space([Integer(1, 3, name="n"), _under("n", 4)]), "in Integer(1, 3). Received: 4"),
        (lambda: Space([Integer(2, 6, step=2, name="n"), _under("n", 3)]), "Received: 3"),
        (lambda: Space([Ordinal([1, 2], name="n"), _under("n", True)]), "Received: True"),
        (lambda: Space([Constant(1, name="n"), _under("n", 2)]), "in Constant(1). Received: 2"),
        (lambda: Space([REAL, _under("x", 0.5)]), "must be on a parameter of finitely many values. Received: `x`"),
        (lambda: Space([_under("y", 1)]), "form a cycle. Received: `y` under `y`"),
        (
            lambda: Space([_under("b", 1, "a"), _under("c", 1, "b"), _under("a", 1, "c")]),
            "form a cycle. Received: `a` under `b` under `c` under `a`",
        ),
    ],
)
def test_conditions_that_cannot_be_are_refused(make, words):
    check_refused(words, make)


def _under(parent, value, name="y"):
    return Integer(1, 3, name=name, condition=When(parent, value))


@pytest.mark.parametrize(
    ("now", "phrase"),
    [
        (Integer(0, 1, name="x"), "parameter `x` was Integer(0, 1) when c is 'a' and is now Integer(0, 1)"),
        (Integer(0, 1, name="x", condition=When("c", "a", "b")), "and is now Integer(0, 1) when c is 'a' or 'b'"),
        (Integer(0, 1, name="x", likely=1, condition=When("c", "a")), "is now Integer(0, 1, likely=1) when c is 'a'"),
        (Ordinal([0, 1], name="x", condition=When("c", "a")), "is now Ordinal([0, 1]) when c is 'a'"),
    ],
)
def test_difference_sees_conditions(now, phrase):
    parent = Categorical(["a", "b"], name="c")
    was = Space([parent, Integer(0, 1, name="x", condition=When("c", "a"))])
    assert was.difference(was) is None
    assert phrase in was.difference(Space([parent, now]))
