import functools

import pytest

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.objective.signature import objective_of

GIVEN = ({"x": 1}, "the comm", "the report")


def parameters_first(parameters, comm, report):
    return parameters, comm, report


class Callable:
    def __call__(self, point, *, report):
        return point, report


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda parameters, comm, report: (parameters, comm, report), GIVEN),
        (lambda report, parameters: (parameters, report), (GIVEN[0], GIVEN[2])),
        (lambda parameters, *, comm: (parameters, comm), GIVEN[:2]),
        (lambda x: x, GIVEN[0]),
        (lambda x, /: x, GIVEN[0]),
        (lambda x, report: (x, report), (GIVEN[0], GIVEN[2])),
        (lambda x, scale=2: (x, scale), (GIVEN[0], 2)),
        (lambda parameters, comm=None: (parameters, comm), GIVEN[:2]),
        (lambda p, c, r: (p, c, r), GIVEN),
        (lambda comm: comm, GIVEN[1]),
        (lambda parameters, **rest: (parameters, rest), (GIVEN[0], {})),
        (len, 1),
        (dict, GIVEN[0]),
        (functools.partial(parameters_first, comm=3, report=4), GIVEN),
        (Callable(), (GIVEN[0], GIVEN[2])),
    ],
    ids=[str(number) for number in range(15)],
)
def test_an_objective_gets_what_its_signature_names(function, got):
    assert objective_of(function, "here")(*GIVEN) == got


async def coroutine(parameters):
    return 1


@pytest.mark.parametrize(
    "function",
    [
        lambda: 1,
        lambda x, y: 1,
        lambda x, y, z, u: 1,
        lambda parameters, other: 1,
        lambda *, x: 1,
        lambda *args: 1,
        lambda **parameters: 1,
        coroutine,
        3,
    ],
    ids=[str(number) for number in range(9)],
)
def test_any_other_signature_is_refused_in_one_sentence(function):
    with pytest.raises(ConfigurationError) as refusal:
        objective_of(function, "space.py")
    assert "An objective must" in str(refusal.value)
    assert "Received: " in str(refusal.value)
    assert "in space.py" in str(refusal.value)
    assert "\n" not in str(refusal.value)
