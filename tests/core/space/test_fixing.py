import json

import pytest

from nnlo_opt.core.space.fixing import fix
from nnlo_opt.space import Categorical, Constant, Integer, Ordinal, Real, Space, When
from tests.helpers.refusals import check_refused

SPACE = Space(
    [
        Integer(1, 8, name="n"),
        Real(1e-4, 1.0, "log-uniform", name="rate"),
        Categorical(["sgd", "adam", "1", 1, True, None, [1, 2]], name="c"),
        Real(0, 1, step=0.25, name="sgd_only", condition=When("c", "sgd")),
        Ordinal([1, 2], name="below", condition=When("sgd_only", 0.5, 1.0)),
        Integer(1, 2, name="both", condition=When("c", "sgd", "adam")),
    ]
)


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("n", "3", 3),
        ("n", "3.0", 3),
        ("rate", "1", 1.0),
        ("rate", "1e-3", 1e-3),
        ("c", "sgd", "sgd"),
        ("c", "'sgd'", "sgd"),
        ("c", "1", 1),
        ("c", "'1'", "1"),
        ("c", "True", True),
        ("c", "true", True),
        ("c", "None", None),
        ("c", "null", None),
        ("c", "[1, 2]", [1, 2]),
        ("c", "(1, 2)", [1, 2]),
        ("sgd_only", "0.50", 0.5),
    ],
)
def test_values_are_read_as_they_are_written(name, written, value):
    space = fix(SPACE, {name: written})
    found = space[name]
    assert isinstance(found, Constant)
    assert json.dumps(found.value) == json.dumps(value)
    assert Space.from_json(json.loads(json.dumps(space.to_json()))) == space


def test_a_fixed_parameter_is_in_every_point_and_the_identity_tells():
    space = fix(SPACE, {"n": "3", "c": "adam"})
    assert space.middle() == {"n": 3, "rate": pytest.approx(0.01), "c": "adam", "both": 2}
    assert SPACE.difference(space) == "parameter `n` was Integer(1, 8) and is now Constant(3)"


def test_what_can_no_longer_be_active_leaves_the_space():
    assert fix(SPACE, {"c": "adam"}).names == ("n", "rate", "c", "both")
    assert fix(SPACE, {"c": "null"}).names == ("n", "rate", "c")
    assert fix(SPACE, {"c": "sgd"}).names == SPACE.names
    assert fix(SPACE, {"sgd_only": "0.25"}).names == ("n", "rate", "c", "sgd_only", "both")
    assert str(fix(SPACE, {"c": "sgd"})["both"].condition) == "c is 'sgd'"


def test_everything_fixed_is_one_point():
    space = fix(SPACE, {"n": "3", "c": "sgd", "rate": "0.1", "sgd_only": "1", "below": "2", "both": "1"})
    assert list(space.iter_points()) == [{"n": 3, "rate": 0.1, "c": "sgd", "sgd_only": 1.0, "below": 2, "both": 1}]


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"m": "3"}, "must name a parameter of the search space. Received: 'm'"),
        ({"rat": "3"}, "Did you mean `rate`?"),
        ({"n": "9"}, "`--fix n=` must give a value that the parameter can have, in Integer(1, 8). Received: '9'"),
        ({"n": "three"}, "Received: 'three'"),
        ({"n": "[" * 300}, "must give a value"),
        ({"rate": "nan"}, "must give a value"),
        ({"c": "sdg"}, "in Categorical("),
        ({"sgd_only": "0.3"}, "step=0.25"),
        ({"c": "adam", "sgd_only": "0.5"}, "`--fix sgd_only=0.5` must fix a parameter that is used"),
        ({"c": "adam", "below": "1"}, "`--fix below=1` must fix a parameter that is used"),
    ],
)
def test_what_cannot_be_fixed_is_told(fixed, words):
    check_refused(words, fix, SPACE, fixed)
