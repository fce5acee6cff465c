import ast
import functools
from pathlib import Path

import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.space.conditions import When
from nnlo_opt.engine.objective.checkpoint import TrialCheckpoint
from nnlo_opt.engine.objective.rank import RunningTrial
from nnlo_opt.engine.objective.signature import objective_of, takes, text_takes
from tests.helpers.refusals import refusal

POINT, COMM = {"x": 1, "n": 2}, "the comm"


def report(epoch, value):
    return value < 3


def parameters_first(parameters, comm, report):
    return parameters, comm, report


class Callable:
    def __call__(self, point, *, comm):
        return point, comm


def called(function, names=()):
    checkpoint = TrialCheckpoint(_directory=SafePath(Path()))
    given = {"number": 7, "parameters": dict(POINT), "comm": COMM, "checkpoint": checkpoint}
    trial = RunningTrial(**given, _run=Path(), _report=report)
    return objective_of(function, "here", names)(trial)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda parameters, comm, report: (parameters, comm, report(1, 2)), (POINT, COMM, True)),
        (lambda report, parameters: (parameters, report(1, 5)), (POINT, False)),
        (lambda parameters, *, comm: (parameters, comm), (POINT, COMM)),
        (lambda p: p, POINT),
        (lambda p, /: p, POINT),
        (lambda p, report: (p, report(1, 2)), (POINT, True)),
        (lambda p, scale=2: (p, scale), (POINT, 2)),
        (lambda parameters, comm=None: (parameters, comm), (POINT, COMM)),
        (lambda p, c, r: (p, c, r(1, 2)), (POINT, COMM, True)),
        (lambda comm: comm, COMM),
        (lambda parameters, **rest: (parameters, rest), (POINT, {})),
        (len, 2),
        (dict, POINT),
        (functools.partial(parameters_first, comm=3, report=report), (POINT, COMM, report)),
        (Callable(), (POINT, COMM)),
        (lambda trial: (trial.number, trial.parameters, trial.comm), (7, POINT, COMM)),
        (lambda trial, parameters: trial.parameters is parameters, True),
    ],
    ids=[str(number) for number in range(17)],
)
def test_an_objective_gets_what_its_signature_names(function, got):
    names = ["x", "n"]
    value = called(function, names)
    if isinstance(function, functools.partial):
        assert value[:2] == got[:2]
        assert value[2](1, 2)
    else:
        assert value == got


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda n, x: (x, n), (1, 2)),
        (lambda x, /, *, n: (x, n), (1, 2)),
        (lambda x, n=5, scale=3: (x, n, scale), (1, 2, 3)),
        (lambda x, n, trial: (x, n, trial.number), (1, 2, 7)),
        (lambda x, trial: x + trial.parameters["n"], 3),
        (lambda x, n, comm: (x, n, comm), (1, 2, COMM)),
        (lambda **parameters: parameters, POINT),
        (lambda x, **rest: (x, rest), (1, {"n": 2})),
        (lambda x, trial, **rest: (x, trial.number, rest), (1, 7, {"n": 2})),
        (lambda trial, **rest: (trial.number, rest), (7, POINT)),
    ],
    ids=[str(number) for number in range(10)],
)
def test_an_objective_may_name_the_parameters_of_its_space(function, got):
    assert called(function, ["x", "n"]) == got


def test_a_parameter_that_the_trial_does_not_have_keeps_its_default():
    assert called(lambda x, n, depth=9: (x, n, depth), ["x", "n", "depth"]) == (1, 2, 9)


def test_an_argument_that_some_trials_do_not_have_needs_a_default():
    conditions = {"C": str(When("model", "svm"))}
    words = "`C` exists only if model is 'svm'. Write `C=None`"
    refusal(objective_of, lambda model, C: 1, "here", ["model", "C"], conditions, says=["An argument", words])
    assert objective_of(lambda model, C=None: 1, "here", ["model", "C"], conditions)
    assert objective_of(lambda model, **rest: 1, "here", ["model", "C"], conditions)


def test_a_trial_tells_what_its_last_report_has_answered():
    def objective(trial):
        before = trial.should_prune()
        return before, trial.report(1, 2), trial.should_prune(), trial.report(2, 4), trial.should_prune()

    assert called(objective) == (False, True, False, False, True)


def test_a_habit_of_optuna_is_answered():
    with pytest.raises(AttributeError, match=r'take `trial.parameters\["name"\]`'):
        called(lambda trial: trial.suggest_float("x", 0, 1))


async def coroutine(parameters):
    return 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: 1, "must take `parameters`"),
        (lambda p, q: 1, "must take `parameters`"),
        (lambda p, q, r, s: 1, "must take `parameters`"),
        (lambda parameters, other: 1, "for the parameters lr, n_units."),
        (lambda lr, n_unit: 1, "Did you mean `n_units`?"),
        (lambda lr: 1, "must take all of them. Received: <lambda>(lr) in space.py, without `n_units`"),
        (lambda *, p: 1, "must take `parameters`"),
        (lambda *args: 1, "must take `parameters`"),
        (coroutine, "a coroutine"),
        (3, "Received: 3"),
    ],
    ids=[str(number) for number in range(10)],
)
def test_any_other_signature_is_refused_in_one_sentence(function, words):
    refusal(objective_of, function, "space.py", ["lr", "n_units"], says=["An objective ", words, "in space.py"])


def test_a_name_with_two_meanings_is_refused_if_the_objective_names_it():
    with pytest.raises(ConfigurationError, match="must have one meaning"):
        objective_of(lambda trial: 1, "here", ["trial"])
    assert objective_of(lambda parameters: 1, "here", ["trial"])


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("parameters", {"parameters"}),
        ("parameters, report, checkpoint", {"parameters", "report", "checkpoint"}),
        ("p, c, r", {"parameters", "comm", "report"}),
        ("trial", {"report", "checkpoint"}),
        ("x, *, comm", {"comm"}),
    ],
)
def test_text_and_function_take_the_same(text, taken):
    code = f"def objective({text}):\n    return lambda a, b: trial.report and (lambda: trial.checkpoint.save)\n"
    defined = {}
    exec(code, defined)
    for what in ("parameters", "comm", "report", "checkpoint", "fold"):
        by_text = text_takes(ast.parse(code).body[0], what)
        assert takes(defined["objective"], what) == by_text == (what in taken)
