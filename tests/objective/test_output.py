"""Lines of a script."""

import re

import pytest

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.objective.output import Output, Report


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
