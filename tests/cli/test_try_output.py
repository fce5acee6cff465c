"""`--try-output`: what a search would read in the output of a script."""

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.commands.process import HelpRequested
from tests.helpers.refusals import check_refused

#: output of Hugging Face's Trainer
TRAINER = """{'loss': 0.6931, 'learning_rate': 5e-05, 'epoch': 0.5}
{'eval_loss': 0.51, 'eval_accuracy': 0.8, 'epoch': 1.0}
{"level": "info", "data": {"loss": 1}}
{'eval_loss': 0.41, 'eval_accuracy': 0.85, 'epoch': 2.0}
{'train_runtime': 9.1, 'train_loss': 0.5, 'epoch': 2.0}
"""
EVALUATION = (
    "--report-pattern",
    r"'eval_loss': (?P<value>[^,]+), 'eval_accuracy': (?P<accuracy>[^,]+).*'epoch': (?P<epoch>[^,}]+)",
)


@pytest.fixture
def tried(tmp_path):
    """Tries options on output: the exit code and the text."""

    def run(text, *options):
        (tmp_path / "log").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(HelpRequested) as said:
            driver_options("OptimizationDriver", ["--try-output", str(tmp_path / "log"), *options])
        return said.value.code, str(said.value)

    return run


def test_reports_and_the_value_of_a_trial_are_shown(tried):
    code, text = tried(TRAINER, *EVALUATION)
    assert code == 0
    rows = [line.split()[:4] for line in text.splitlines()[2:4]]
    assert rows == [["1", "0.51", "accuracy", "0.8000"], ["2", "0.41", "accuracy", "0.8500"]]
    assert "2 reports, 0 results. A trial would have figure_of_merit 0.4100, of the last report" in text
    assert "acc 0.8500" in tried(TRAINER, *EVALUATION, "--objective", "accuracy:max")[1]


@pytest.mark.parametrize(
    ("output", "options", "said"),
    [
        (TRAINER, (), "must print its value as a line"),
        ("", (), "must print its value as a line"),
        ("loss: 0.5,", ("--result-pattern", r"loss: (?P<value>\S+)"), "received: '0.5,', which is text"),
        ('{"value": NaN}', (), "must return a finite number as `value`; received: nan"),
        ('{"epoch": 1.5, "value": 1}', (), "whole numbers from 1; received: 1.5"),
        ('{"value": 1}', ("--report-pattern", r"(?P<epoch>x)(?P<value>y)"), "`--report-pattern` matches no line"),
        ('{"value": "1"}', (), "is not a report: its `value` is not a number"),
        ('{"value": 1, "figure_of_merit": 1}', (), "both `value` and `figure_of_merit`"),
        ('{"value": 1}', ("--objective", "a:min", "--objective", "b:max"), "must return a dict with `a`"),
    ],
)
def test_what_would_fail_a_trial_has_code_1_and_the_last_lines(tried, output, options, said):
    code, text = tried(output, *options)
    assert code == 1
    assert said in text
    assert not output or text.rstrip().endswith(output.splitlines()[-1])


def test_what_a_search_leaves_out_or_renumbers_is_said(tried):
    text = "epoch 0: 0.5\nepoch 1: 0.25\nepoch 1: 0.25\nbest: 0.125\n"
    options = ("--report-pattern", r"epoch (?P<epoch>\d+): (?P<value>\S+)", "--result-pattern", r"best: (?P<value>\S+)")
    code, said = tried(text, *options)
    assert code == 0
    assert "2 reports, 1 result. 1 report of an epoch that had already been reported: ignored." in said
    assert "Epochs begin with 0: a search shows each with 1 more." in said
    assert "figure_of_merit 0.1250, of the result." in said


def test_of_many_reports_the_first_and_the_last_are_shown(tried):
    lines = [f'{{"epoch": {epoch}, "value": {epoch}}}' for epoch in range(1, 101)]
    _, text = tried("\n".join(lines))
    shown = [line.split()[0] for line in text.splitlines() if 'value":' in line]
    assert shown == [*map(str, range(1, 11)), *map(str, range(91, 101))]
    assert "[80 more]" in text


def test_strange_output_is_read(tried):
    text = b"\x00\xff\x1b[31m" + b"[" * 30_000 + b"\n" + b"x" * 10**7 + b'\n{"value": 0.5}'
    code, said = tried(text)
    assert code == 0
    assert "figure_of_merit 0.5000" in said
    assert "\x1b" not in said


def test_a_wrong_request_is_refused(tmp_path):
    argv = ["--try-output", str(tmp_path / "missing")]
    check_refused("No such file", driver_options, "OptimizationDriver", argv)
    check_refused("Is a directory", driver_options, "OptimizationDriver", ["--try-output", str(tmp_path)])
    check_refused("regular expression", driver_options, "OptimizationDriver", [*argv, "--result-pattern", "("])
