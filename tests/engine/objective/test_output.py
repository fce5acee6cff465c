"""Lines of a script."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.objective.output import MOST_READ, Lines, Output, Report
from tests.helpers.effort import examples


def test_lines_of_json_are_reports_and_the_last_one_without_an_epoch_is_the_result():
    output = Output((), (None, None))
    assert output.take('{"epoch": 1, "value": 0.5, "accuracy": 0.9, "note": "x", "checkpoint": true}') == Report(
        1, 0.5, {"accuracy": 0.9}, saves=True
    )
    assert output.result == {"value": 0.5, "accuracy": 0.9}
    others = ['{"value": 0.4}', '{"value": 0.3, "size": 2, "on": true}', '{"loss": 1}', "{", '["value"]', "value"]
    assert [output.take(line) for line in others] == [None] * 6
    assert output.take('{"epoch": 2, "value": 9}') == Report(2, 9, {})
    assert output.result == {"value": 0.3, "size": 2}


def test_several_objectives_go_by_their_names():
    output = Output(("loss", "size"), (None, None))
    assert output.take('{"epoch": 1, "loss": 0.5, "size": 3}') == Report(1, 0.5, {"size": 3})
    output.take('{"loss": 0.1, "size": 9}')
    assert output.result == {"loss": 0.1, "size": 9}


def test_patterns_find_values_in_other_lines():
    patterns = (r"epoch (?P<epoch>\d+) .* accuracy (?P<value>\S+)", r"best (?P<value>\S+)")
    output = Output((), patterns)
    assert output.take("epoch 3 of 5, accuracy 0.91") == Report(3, 0.91, {})
    assert output.take("epoch 4 of 5, accuracy bad") == Report(4, "bad", {})
    output.take("best 0.2")
    output.take("best 0.1")
    assert output.result == {"value": 0.1}


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (("(", None), "groups epoch, value"),
        (("(?P<value>x)", None), "without the group `(?P<epoch>"),
        ((None, "x"), "without the group `(?P<value>"),
    ],
)
def test_a_pattern_that_finds_no_value_is_refused(patterns, said):
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Output((), patterns)


#: what Hugging Face's Trainer prints
EVALUATED = "{'eval_loss': 0.51, 'eval_accuracy': 0.8, 'eval_runtime': 1.2, 'epoch': 1.0}"
EVALUATION = r"'eval_loss': (?P<value>[^,]+), 'eval_accuracy': (?P<accuracy>[^,]+).*'epoch': (?P<epoch>[^,}]+)"


@pytest.mark.parametrize(
    ("line", "pattern", "expected"),
    [
        (EVALUATED, EVALUATION, Report(1, 0.51, {"accuracy": 0.8})),
        (
            '{"level": "info", "data": {"epoch": 2, "loss": 0.5}}',
            r'"epoch": (?P<epoch>\d+), "loss": (?P<value>[\d.]+)',
            Report(2, 0.5),
        ),
        ('{"epoch": "2/9", "value": "0.5"}', r'"(?P<epoch>\d+)/.*"value": "(?P<value>[^"]+)', Report(2, 0.5)),
        ("{epoch 3: 0.25", r"epoch (?P<epoch>\d+): (?P<value>\S+)", Report(3, 0.25)),
        ("epoch 0 loss 0.5", r"epoch (?P<epoch>\d+) loss (?P<value>\S+)", Report(0, 0.5)),
        ("epoch 3.0 loss 0.5", r"epoch (?P<epoch>\S+) loss (?P<value>\S+)", Report(3, 0.5)),
        ("epoch 3 ", r"epoch (?P<epoch>\d+) (loss (?P<value>\S+))?", None),
    ],
)
def test_a_pattern_sees_every_line_that_is_no_report_of_json(line, pattern, expected):
    assert Output((), (pattern, None)).take(line) == expected


def test_a_report_of_json_is_no_line_for_a_pattern():
    output = Output((), (r".*(?P<epoch>9)(?P<value>9)", None))
    assert output.take('{"epoch": 1.0, "value": 0.5, "note": "99"}') == Report(1, 0.5)
    assert output.unfitted == {"--report-pattern"}


@pytest.mark.parametrize("digits", [301, 400, 5000])
def test_an_integer_that_no_float_holds_is_no_number(digits):
    number = "1" + "0" * (digits - 1)
    output = Output((), (r"epoch (?P<epoch>\d+) loss (?P<value>\S+) (?P<other>\d+)", None))
    assert output.take(f'{{"epoch": 1, "value": 0.5, "other": {number}}}') == Report(1, 0.5)
    assert output.take(f"epoch 2 loss 0.5 {number}") == Report(2, 0.5)
    for line in (f'{{"epoch": {number}, "value": 1}}', f'{{"value": -{number}}}'):
        assert output.take(line) is None
    assert output.result == {"value": 0.5}
    assert "`epoch` is not a number" in output.remark


def test_figures_that_are_not_finite_are_left_out_and_values_are_not():
    output = Output(("loss", "size"), (None, None))
    report = output.take('{"epoch": 1, "loss": NaN, "size": Infinity, "norm": NaN, "power": 1e999}')
    assert math.isnan(report.value)
    assert report.figures == {"size": math.inf}


@pytest.mark.parametrize("line", ["[" * 30_000, '{"a":' * 30_000, '{"value":' * 30_000 + "1" + "}" * 30_000])
def test_deep_brackets_are_no_report(line):
    output = Output((), (None, None))
    assert output.take(line) is None
    assert output.result is None


@pytest.mark.parametrize("name", ["accuracy", "eval_accuracy"])
def test_the_name_of_an_objective_may_be_that_of_a_metric(name):
    output = Output((name.replace("uracy", ""),), (r"epoch (?P<epoch>\d+) (?P<value>\S+)", rf"best (?P<{name}>\S+)"))
    assert output.take(f'{{"epoch": 1, "{name}": 0.5}}') == Report(1, 0.5)
    output.take("best 0.75")
    assert output.result == {name: 0.75}


def test_the_figure_of_merit_is_the_value_under_another_name():
    output = Output((), (None, None))
    assert output.take('{"epoch": 1, "figure_of_merit": 0.5}') == Report(1, 0.5)
    assert output.result == {"value": 0.5}
    assert output.take('{"epoch": 2, "figure_of_merit": 0.5, "value": 1}').figures == {"figure_of_merit": 0.5}


# ---------------------------------------------------------------- what a script writes, cut into lines


@given(text=st.text("ab \r\n", max_size=60), size=st.integers(1, 9))
@settings(max_examples=examples(200))
def test_lines_are_the_same_in_whatever_parts_they_come(text, size):
    data, lines = text.encode(), Lines()
    found = [line for i in range(0, len(data), size) for line in lines.take(data[i : i + size])]
    assert found + lines.take(b"") == [line for line in re.split("[\r\n]+", text) if line]


def test_of_a_line_without_an_end_only_the_beginning_is_kept():
    lines = Lines()
    for _ in range(50):
        assert lines.take(b"x" * 2**20) == []
    first, second = lines.take(b'\n{"value": 1}\n')
    assert len(first) == MOST_READ
    assert second == '{"value": 1}'
    assert lines.take(b"") == []


def test_a_pattern_sees_the_beginning_of_a_line_and_json_is_read_up_to_its_end():
    pattern = r"epoch (?P<epoch>\d+) (?P<value>\d+)"
    output = Output((), (pattern, None))
    assert output.take("x" * 2**16 + " epoch 1 1") is None
    assert output.take("x" * 2**15 + " epoch 1 1") == Report(1, 1)
    line = json.dumps({"outputs": [0.5] * 20_000, "epoch": 2, "value": 0.25})
    assert len(line) > 2**16
    assert output.take(line) == Report(2, 0.25)
