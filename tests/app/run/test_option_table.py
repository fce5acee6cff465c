import pytest

from nnlo_opt.app.run.options.making import optimization_options, training_options
from nnlo_opt.app.run.options.table import BY_NAME, OPTIMIZATION_OPTIONS, TRAINING_OPTIONS, read
from nnlo_opt.cli import tool
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.objectives import Objective
from tests.helpers.refusals import check_refused


def test_every_option_stands_in_the_table_once():
    for options in (OPTIMIZATION_OPTIONS, TRAINING_OPTIONS):
        names = [option.name for option in options]
        assert len(names) == len(set(names))
    assert [name for name, option in BY_NAME.items() if not option.help or not option.group] == []


def test_every_option_with_a_value_has_an_example():
    options = [*BY_NAME.values(), *(option for command in tool.COMMANDS.values() for option in command.options)]
    assert not [option.name for option in options if option.metavar and not option.example]


@pytest.mark.parametrize("name", [name for name, option in BY_NAME.items() if option.metavar])
def test_every_example_is_a_value_that_the_option_takes(name):
    option = BY_NAME[name]
    assert option.read([option.example] if option.kind.action == "append" else option.example) is not None


def test_a_training_option_has_the_default_of_its_field():
    defaults = TrainingOptions().to_json()
    for name in defaults.keys() - {"shuffle"}:
        assert BY_NAME[name].default == defaults[name]


#: (name, value in Python, the same as text)
BOTH_WAYS = [
    ("batch", 64, "64"),
    ("learning_rate", 0.001, "1e-3"),
    ("walltime", 5405, "1:30:05"),
    ("optimizer_params", {"momentum": 0.9}, "{'momentum': 0.9}"),
    ("class_weights", {0: 1.0, 1: 5.0}, "{0: 1, 1: 5}"),
    ("start_point", {"x": 1, "how": "relu"}, ["x=1,how=relu"]),
    ("start_point", [{"x": 1}, {"x": 2}], ["x=1", "x=2"]),
    ("warm_start", "runs/one", ["runs/one"]),
    ("fix", {"n": 8}, ["n=8"]),
    ("objective", "val_loss:min", ["val_loss:min"]),
    ("target_objective", -1, "-1"),
]


@pytest.mark.parametrize(("name", "value", "text"), BOTH_WAYS)
def test_a_value_in_python_is_what_its_text_is(name, value, text):
    option = BY_NAME[name]
    assert option.read(value) == option.read(text)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("batch", 1.5, "`--batch` must be a whole number of samples, at least 1. Received: 1.5."),
        ("batch", True, "`--batch` must be a whole number of samples"),
        ("learning_rate", float("nan"), "`--learning-rate` must be a finite number above 0. Received: nan."),
        ("synchronous", "yes", "`--synchronous` must be True or False. Received: yes."),
        ("synchronous", 1, "`--synchronous` must be True or False. Received: 1."),
        ("hyper_opt", "annealing", "`--hyper-opt` must be one of auto, bayesian, "),
        ("pruner", "asah", "Received: asah. Did you mean `asha`?"),
        ("model", 3, "`--model` must be text. Received: 3."),
        ("optimizer_params", [1], "`--optimizer-params` must be a dictionary"),
        ("start_point", [3], "`--start-point` must be written as name=value,name=value"),
        ("objective", [3], "`--objective` must be a metric and its direction"),
        ("warm_start", 3, "`--warm-start` must be a run, a study or a table, or several in a list. Received: 3."),
    ],
)
def test_a_wrong_value_in_python_is_refused_by_the_rule_of_the_option(name, value, rule):
    check_refused(rule, BY_NAME[name].read, value)


def test_none_stands_for_the_default():
    values = read({"batch": None, "seed": 3}, OPTIMIZATION_OPTIONS)
    assert (values.batch, values.seed, values.overlap, values.fix) == (100, 3, None, {})


def test_options_of_both_commands_are_made_of_values_in_python_too():
    options = optimization_options({"model": "m.py", "n_fold": 5, "objective": ["val_acc:max"], "log_file": "a.log"})
    assert (options.plan.n_fold, options.plan.direction) == (5, "max")
    assert options.comparison.objectives == (Objective("val_acc", "max"),)
    assert training_options({"model": "m.py", "restore": ""}).run.restore
