import json

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.space.constraint import fingerprint
from nnlo_opt.engine.loading.spaces import load_constraint, load_space
from nnlo_opt.space import Categorical, Integer, Real, Space
from tests.helpers.refusals import check_refused

OURS = "import numpy as np\nfrom nnlo_opt.space import Categorical, Constant, Integer, Real, Space, When\n"
SQUARE = OURS + "ranges = [Real(0, 1, name='x'), Real(0, 1, name='y')]\n"
GRID = OURS + "ranges = [Integer(1, 4, name='x'), Integer(1, 4, name='y')]\n"


def test_only_feasible_points_are_drawn_and_enumerated(write):
    space = load_space(write(GRID + "def feasible(parameters):\n    return parameters['x'] * parameters['y'] <= 4\n"))
    assert space.n_points == 16
    points = list(space.iter_points())
    assert len(points) == 8
    assert all(point["x"] * point["y"] <= 4 for point in points)
    rng = np.random.default_rng(0)
    assert {space.key(space.sample(rng)) for _ in range(300)} == {space.key(point) for point in points}
    assert not space.is_feasible({"x": 2, "y": 3})
    assert space.contains({"x": 2, "y": 3})


def test_the_middle_is_feasible_and_known_without_the_function(write):
    space = load_space(write(SQUARE + "def feasible(p):\n    return p['x'] + p['y'] < 0.2\n"))
    middle = space.middle()
    assert middle["x"] + middle["y"] < 0.2
    plain = Space.from_json(json.loads(json.dumps(space.to_json())))
    assert plain.constraint == space.constraint
    assert plain.middle() == middle
    plain.middle().clear()
    assert plain.middle() == middle
    with pytest.raises(ValueError, match="after the module of the search space was executed"):
        plain.is_feasible(middle)
    wide = load_space(write(SQUARE + "def feasible(p):\n    return p['x'] + p['y'] < 1.5\n"))
    assert wide.middle() == {"x": 0.5, "y": 0.5}


def test_it_sees_fixed_values_and_no_inactive_parameter_and_cannot_change_a_point(write):
    path = write(
        OURS + "ranges = [Integer(1, 4, name='n'), Categorical(['a', 'b'], name='c'),\n"
        "          Constant([1], name='l', condition=When('c', 'b'))]\n"
        "def feasible(parameters):\n"
        "    assert ('l' in parameters) == (parameters['c'] == 'b')\n"
        "    parameters.get('l', []).clear()\n"
        "    return parameters.pop('n') == 3\n"
    )
    assert list(load_space(path).iter_points()) == [{"n": 3, "c": "a"}, {"n": 3, "c": "b", "l": [1]}]
    assert list(load_space(path, {"c": "b"}).iter_points()) == [{"n": 3, "c": "b", "l": [1]}]
    with pytest.raises(ConfigurationError, match=r"my_space\.py must accept some points.*all 2 points were refused"):
        load_space(path, {"n": "2"})


def test_numpys_bool_will_do(write):
    space = load_space(write(SQUARE + "def feasible(p):\n    return np.all(np.array([p['x']]) < 0.5)\n"))
    assert space.sample(np.random.default_rng(0))["x"] < 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GRID + "def feasible(p):\n    return False\n", "all 16 points were refused. Loosen it"),
        (SQUARE + "def feasible(p):\n    return False\n", "0 of 10,000 points drawn were accepted"),
        (SQUARE + "def feasible(p):\n    return p['x'] < 1e-6\n", "of 10,000 points drawn were accepted"),
        (
            SQUARE + "def feasible(p):\n    return 1 / 0\n",
            "line 5, must return True or False for every point. "
            "Received: ZeroDivisionError: division by zero at {'x': 0.5, 'y': 0.5}",
        ),
        (SQUARE + "def feasible(p):\n    return p['z'] < 1\n", "Received: KeyError: 'z' at {'x': 0.5"),
        (SQUARE + "def feasible(p):\n    p['x'] < 1\n", "Received: None at {'x': 0.5, 'y': 0.5}. Return a comparison"),
        (SQUARE + "def feasible(p):\n    return p['x']\n", "Received: 0.5 at"),
        (SQUARE + "def feasible(p):\n    return np.array([True, False])\n", "Received: [True, False] at"),
        (SQUARE + "def feasible(x, y):\n    return True\n", "must be a function of one argument"),
        (SQUARE + "def feasible():\n    return True\n", "must be a function of one argument"),
        (SQUARE + "feasible = True\n", "must be a function of one argument, the parameters. Received: True"),
        (SQUARE + "class feasible:\n    pass\n", "must be a function of one argument"),
    ],
)
def test_constraints_that_cannot_be_used_are_told_in_a_sentence(write, text, words):
    assert "`feasible` of my_space.py" in check_refused(words, load_space, write(text))


@pytest.mark.parametrize(
    "text",
    [
        "space = Space([Real(0, 1, name='x')], constraint=lambda parameters: parameters['x'] > 0.5)\n",
        "def objective(x):\n    return x\nobjective.parameter_range = [Real(0, 1, name='x')]\n"
        "objective.feasible = lambda parameters: parameters['x'] > 0.5\n",
    ],
    ids=["of the space", "of the objective"],
)
def test_a_module_may_have_its_constraint_in_other_places(write, text):
    path = write("from nnlo_opt.space import Real, Space\n" + text)
    space = load_space(path)
    assert load_constraint(path) == space.constraint
    assert space.constraint.source == path
    assert [space.is_feasible({"x": x}) for x in (0.25, 0.75)] == [False, True]
    fixed = load_space(path, {"x": "0.75"})
    assert fixed.constraint == space.constraint
    check_refused("must accept some points", load_space, path, {"x": "0.25"})


def test_drawing_ends_where_a_constraint_comes_to_refuse_everything():
    accepts = [True]
    space = Space([Real(0, 1, name="x")], lambda parameters: accepts[0])
    accepts[0] = False
    with pytest.raises(ConfigurationError, match=r"`constraint` must accept some points.*all of 100,000 points"):
        space.sample(np.random.default_rng(0))


# ---------------------------------------------------------------- identity

FUNCTION = """
LIMIT, UNUSED = 4, 5
def helper(n): return n * 2
def feasible(parameters):
    return helper(parameters["x"]) < LIMIT
"""


def difference(write, now):
    was = load_space(write(GRID + FUNCTION))
    return was.difference(load_space(write(GRID + now)))


@pytest.mark.parametrize(
    "now",
    [
        FUNCTION,
        FUNCTION.replace("UNUSED = 4, 5", "UNUSED = 4, 6"),
        FUNCTION.replace("return helper", "# a remark\n    return helper"),
        FUNCTION.replace('["x"]', "[ 'x' ]"),
    ],
    ids=["the same", "a value it does not name", "a comment", "layout"],
)
def test_what_does_not_change_the_constraint_is_no_difference(write, now):
    assert difference(write, now) is None


@pytest.mark.parametrize(
    "now",
    [
        FUNCTION.replace("< LIMIT", "<= LIMIT"),
        FUNCTION.replace("LIMIT, UNUSED = 4", "LIMIT, UNUSED = 6"),
        FUNCTION.replace("n * 2", "n * 3"),
    ],
    ids=["the function", "a limit it names", "a function it calls"],
)
def test_another_constraint_is_told(write, now):
    phrase = difference(write, now)
    assert phrase.startswith("the constraint was `feasible` ")
    assert "and is now `feasible` " in phrase


def test_a_constraint_that_comes_or_goes_is_told(write):
    without, with_one = load_space(write(GRID)), load_space(write(GRID + FUNCTION))
    assert without.difference(with_one).startswith("the constraint was none and is now `feasible`")
    assert with_one.difference(without).endswith("and is now none")


def test_fingerprints_follow_functions_that_call_each_other():
    assert fingerprint(_even) == fingerprint(_even) != fingerprint(_odd)


def _even(n):
    return n == 0 or _odd(n - 1)


def _odd(n):
    return n != 0 and _even(n - 1)


def test_a_constraint_is_loaded_by_itself(write):
    path = write(GRID + FUNCTION)
    constraint = load_constraint(path)
    assert constraint == load_space(path).constraint
    assert constraint.accepts({"x": 1, "y": 1})
    check_refused("must be a function", load_constraint, write(GRID))


@pytest.mark.parametrize(
    "data",
    [3, {}, {"sha256": "0"}, {"sha256": 1, "source": "s", "example": {}}, {"sha256": "0", "source": "s", "example": 3}],
)
def test_json_that_is_no_constraint(data):
    space = Space([Integer(1, 2, name="n"), Categorical(["a", "b"], name="c")])
    check_refused("to_json", Space.from_json, space.to_json() | {"constraint": data})
