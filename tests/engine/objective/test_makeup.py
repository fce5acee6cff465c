"""What makes a function of a script the objective that it is; the functions stand in files, as those of users do."""

import textwrap
from types import FunctionType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.trials.identity import DIGEST
from nnlo_opt.engine.loading.modules import execute_file
from nnlo_opt.engine.objective.makeup import makeup_of
from tests.helpers import effort
from tests.helpers.launcher import python

#: everything that an objective may name
MODULE = """
import functools, time

LIMIT, RATE, IS_DEEP, NOTHING, NAME = 4, 0.5, True, None, "data"
calls, total, steps = 0, 0.0, 0
history, best, seen, counter = [], {}, set(), {"n": 0}

def twice(n):
    global steps
    steps += 1
    return 2 * n

@functools.cache
def slow(n):
    return n * RATE

class Net:
    width = 3
    def forward(self, n):
        return n + self.width

net = Net()

def objective(p, scale=2.0, found=[], *, power=1):
    global calls, total
    calls += 1
    total = total + p["x"]
    history.append(p)
    best["v"] = p
    seen.add(p["x"])
    counter["n"] += 1
    found.append(p)
    net.width += 1
    if IS_DEEP and NOTHING is None and NAME:
        return [scale * twice(x) for x in [p["x"]] if x < LIMIT][0] ** power + slow(p["x"]) + net.forward(1)
    return time.time()

line, other = (lambda p: twice(p["x"]) + LIMIT), (lambda p: p["x"] if p["x"] > 1 else LIMIT)
bound = functools.partial(objective, scale=3.0)

def main(limit):
    n = 0
    def inner(p):
        nonlocal n
        n += 1
        return twice(p["x"]) if n < limit else n
    return inner

closure = main(7)
"""
FORMS = ("objective", "line", "other", "bound", "closure", "slow", "net.forward")


@pytest.fixture
def module(tmp_path):
    """Executes a text as the file of a script, always at the same place."""

    def executed(text=MODULE):
        (tmp_path / "mine.py").write_text(text)
        return execute_file(tmp_path / "mine.py")

    return executed


def of(module, form):
    name, _, attribute = form.partition(".")
    value = getattr(module, name)
    return makeup_of(getattr(value, attribute) if attribute else value)


def changed(text, old, new):
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.mark.parametrize("form", FORMS)
def test_trials_leave_the_objective_as_it_was(module, form):
    mine = module()
    before, call = of(mine, form), mine.net.forward if "." in form else getattr(mine, form)
    for x in (0.5, 1.0, 2.0):
        call(x if form in ("slow", "net.forward") else {"x": x})
    assert of(mine, form) == before
    assert of(module(), form) == before, "the next start of the script"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * n", "3 * n"),
        ("n * RATE", "n / RATE"),
        ("n + self.width", "n - self.width"),
        ("x < LIMIT", "x <= LIMIT"),
        ("scale=2.0", "scale=2.5"),
        ("power=1", "power=2"),
    ],
)
def test_another_source_default_or_function_that_it_calls_is_another_objective(module, old, new):
    before = makeup_of(module().objective)
    after = makeup_of(module(changed(MODULE, old, new)).objective)
    assert after.parts != before.parts
    assert after.notes == before.notes


def test_a_default_that_the_script_computes_counts_by_its_value(module):
    text = changed(MODULE, "scale=2.0", "scale=RATE")
    before, after = (makeup_of(module(t).objective) for t in (text, changed(text, "4, 0.5", "4, 0.25")))
    assert before.parts != after.parts


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    history.append(p)\n", "    history.append(p)  # a remark\n\n"),
        ('best["v"]', "best[ 'v' ]"),
        ("def twice", "\n\ndef twice"),
        ("time.time()\n", "time.time()\n\ndef unused():\n    return 1\n"),
        ("0, 0.0, 0", "5, 2.5, 9"),
        ("[], {}, set()", "[1], {1: 2}, {3}"),
        ('{"n": 0}', '{"n": 7}'),
    ],
)
def test_what_does_not_count_is_no_difference(module, old, new):
    assert makeup_of(module(changed(MODULE, old, new)).objective) == makeup_of(module().objective)


#: as a script writes a value -> as it is noted; an ellipsis for a digest, None if it is no part
VALUES = {
    "3": "3",
    "-2.5": "-2.5",
    "float('nan')": "nan",
    "True": "True",
    "None": "None",
    "1j": "1j",
    "(64, 32)": "(64, 32)",
    "frozenset({2, 1})": "{1, 2}",
    "range(3)": "range(0, 3)",
    "10 ** 5000": ...,
    "tuple(range(100))": ...,
    "'run-17'": ...,
    "b'x'": ...,
    "('a', 1)": ...,
    "__import__('pathlib').Path('data')": ...,
    "__import__('datetime').date(2026, 1, 1)": ...,
    "__import__('numpy').float64(0.5)": "0.5",
    "__import__('numpy').str_('secret')": ...,
    "__import__('decimal').Decimal('0.1')": "Decimal('0.1')",
    "[1, 2]": None,
    "{'v': 1}": None,
    "{1, 2}": None,
    "(1, [2])": None,
    "bytearray(b'x')": None,
    "__import__('numpy').zeros(2)": None,
    "__import__('numpy').array(2.0)": None,
    "object()": None,
    "__import__('random').Random(1)": None,
    "__import__('argparse').Namespace(lr=1)": None,
    "open": None,
}


@pytest.mark.parametrize(("value", "noted"), VALUES.items(), ids=VALUES)
def test_a_plain_value_is_noted_a_text_by_a_digest_and_no_value_decides(module, value, noted):
    text = "value = {}\ndef objective(p):\n    return value\n"
    makeup, plain = (makeup_of(module(text.format(v)).objective) for v in (value, "0"))
    assert makeup.parts == plain.parts
    found = makeup.notes.get("value")
    if noted is ...:
        assert found.startswith(DIGEST)
        assert "run" not in found
    else:
        assert found == noted


@pytest.mark.parametrize(
    "body",
    [
        "    global value\n    value += 1\n",
        "    global value\n    for value in (1, 2): pass\n",
        "    global value\n    import os as value\n",
        "    global value\n    if (0, 1)[p]: del value\n",
        "    def inner():\n        global value\n        value = 1\n    inner()\n",
        "    bump()\n",
    ],
)
def test_a_name_that_a_function_or_one_that_it_calls_binds_again_is_no_part(module, body):
    bump = "def bump():\n    global value\n    value = value + 1\n"
    reads = "def reads():\n    return value\n"
    made = makeup_of(module(f"value = 3\n{bump}{reads}def objective(p):\n    reads()\n{body}").objective)
    assert made.notes == {}


def test_a_name_that_is_only_declared_global_is_noted(module):
    assert makeup_of(module("value = 3\ndef objective(p):\n    global value\n    return value\n").objective).notes == {
        "value": "3"
    }


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ANY = st.recursive(LEAVES, lambda inner: st.tuples(inner, inner) | st.lists(inner) | st.dictionaries(LEAVES, inner))


def is_immutable(value):
    return all(map(is_immutable, value)) if isinstance(value, tuple) else not isinstance(value, list | dict)


def _reads():
    return VALUE


VALUE = 0


@given(value=ANY)
@settings(max_examples=effort.examples(300))
def test_no_value_of_a_name_decides_and_every_immutable_one_is_noted(value):
    function = FunctionType(_reads.__code__, {"VALUE": value, "__name__": __name__})
    makeup = makeup_of(function)
    assert makeup.parts == makeup_of(_reads).parts
    assert ("VALUE" in makeup.notes) == is_immutable(value)
    assert makeup == makeup_of(function)


# ---------------------------------------------------------------- lambdas

#: lambda -> digests of its code, the same in Python 3.11, 3.12 and 3.13
LAMBDAS = """
one, two = (lambda p: p["x"]), (lambda p: p["y"])
three, four = lambda p: 1.0, lambda p: 2.0
inner = lambda p: (lambda q: q)(p)
five = lambda p: f"{p!r:>{LIMIT}} {p=}" "x" f"{p:}" if p else [x for x in (1, 2) if x] or {"a", "b"}
six = max(1, 2, key=lambda p:
    p
), (lambda p:
    p * 2)
LIMIT = 3
"""
DIGESTS = {
    "one": "eeddc2ce",
    "two": "1b05d359",
    "three": "392654d3",
    "four": "fa3a23a3",
    "inner": "dc1d0903",
    "five": "c45d439d",
    "six": "044ae948",
}


def test_a_lambda_is_known_by_its_source_on_every_version_of_python(module):
    mine = module(LAMBDAS)
    found = {name: makeup_of(getattr(mine, name)).parts for name in ("one", "two", "three", "four", "inner", "five")}
    found["six"] = makeup_of(mine.six[1]).parts
    assert {name: parts["<lambda>"][:8] for name, parts in found.items()} == DIGESTS
    assert len({*DIGESTS.values()}) == len(DIGESTS), "those of one line are told apart"


def test_code_without_a_source_is_the_same_in_every_process(tmp_path):
    """A set and the code of a function within it have another text in each process."""
    program = """
        from nnlo_opt.engine.objective.makeup import makeup_of
        names = {}
        exec("f = lambda p: [(lambda q: q in {'a', 'b', 'c'})(x) for x in p]", names)
        print(makeup_of(names["f"]).parts)
    """
    first, second = (python(textwrap.dedent(program), cwd=tmp_path).expect(0).out for _ in range(2))
    assert first == second


def test_other_callables_are_their_functions(module):
    text = """
class Mine:
    def __init__(self, limit):
        self.limit = limit
    def __call__(self, p):
        return p["x"] * 2
    @staticmethod
    def of(p):
        return p
mine, number, built_in = Mine(3), 3, len
"""
    other = makeup_of(module(changed(text, "* 2", "* 3")).mine)
    made = makeup_of((first := module(text)).mine)
    assert made.parts != other.parts
    assert made == makeup_of(module(text).mine) != makeup_of(first.mine.of)
    assert makeup_of(len) == makeup_of(first.built_in)


DECORATED = """
import contextlib, functools

@contextlib.contextmanager
def quiet():
    yield

@quiet()
def helper(x):
    return x + LIMIT

@functools.lru_cache
@quiet()
def objective(p):
    return helper(p["x"])

LIMIT = 3
"""


def test_a_decorator_of_another_module_hides_no_function_and_is_no_part_itself(module):
    made = makeup_of(module(DECORATED).objective)
    assert made.notes == {"LIMIT": "3"}
    assert {*made.parts} == {"objective", "helper"}
    assert made.parts != makeup_of(module(changed(DECORATED, "x + LIMIT", "x * LIMIT")).objective).parts
    assert made.parts != makeup_of(module(changed(DECORATED, "return helper", "return 1 + helper")).objective).parts


def test_a_function_counts_that_is_defined_beside_the_objective_and_not_one_that_a_variable_holds(module):
    text = """
def first(x):
    return x
def main():
    held = first
    def beside(x):
        return x * 2
    def objective(p):
        return held(beside(p))
    return objective
"""
    made = makeup_of(module(text).main())
    assert {*made.parts} == {"objective", "beside"}
    for held in ("len", "lambda x: x + 1"):
        assert makeup_of(module(changed(text, "held = first", f"held = {held}")).main()) == made
    assert makeup_of(module(changed(text, "x * 2", "x * 3")).main()).parts != made.parts


def test_a_value_that_cannot_be_shown_is_no_part_and_no_error(module):
    text = """
class Mine(int):
    def __repr__(self):
        raise RuntimeError
value = Mine(3)
def objective(p):
    return value
"""
    assert makeup_of(module(text).objective).notes == {}


def test_functions_of_other_modules_are_no_part(module):
    text = "from json import dumps\nimport math\ndef objective(p):\n    return math.sqrt(len(dumps(p)))\n"
    assert [*makeup_of(module(text).objective).parts] == ["objective"]
