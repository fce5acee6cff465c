"""What every callback says to its trial, and what it refuses."""

import pytest

from nnlo_opt import RunningTrial, TrialError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.engine.objective.checkpoint import TrialCheckpoint, last_save
from nnlo_opt.engine.objective.signature import takes
from nnlo_opt.integrations.reporter import TrialReporter

REPORTED = []


def reporter_in(folder):
    checkpoint = TrialCheckpoint(_directory=SafePath(folder), _last=last_save(SafePath(folder)))

    def report(epoch, value, **figures):
        REPORTED.append((epoch, value, figures))
        return epoch < 2

    return TrialReporter(RunningTrial(number=0, parameters={}, checkpoint=checkpoint, _run=folder, _report=report), "a")


def write(folder):
    (folder / "state").touch()


def test_an_epoch_is_saved_and_reported_with_its_finite_numbers(tmp_path):
    REPORTED.clear()
    reporter = reporter_in(tmp_path)
    assert (reporter.epoch, reporter.value, reporter.figures) == (0, None, {})
    figures = {"a": 0.5, "b": 2, "epoch": 1.0, "bad": float("nan"), "text": "x", "several": [1, 2]}
    assert reporter._end_epoch(1, figures, write)
    assert not reporter._end_epoch(2, {"a": 0.25}, write)
    assert REPORTED == [(1, 0.5, {"a": 0.5, "b": 2.0}), (2, 0.25, {"a": 0.25})]
    again = reporter_in(tmp_path)
    assert (again.epoch, again.value, again.figures) == (2, 0.25, {"a": 0.25})


@pytest.mark.parametrize(
    ("epoch", "figures", "sentence"),
    [
        (1, {"a": 1.0}, "has saved epoch 1 must continue with the next one; received: epoch 1; "),
        (2, {"b": 1.0, "c": 2.0}, "received: `a`, while epoch 2 has b, c; name one of these"),
        (2, {"a": float("inf")}, "received: `a`, while epoch 2 has no figures"),
    ],
)
def test_an_epoch_out_of_its_turn_or_without_the_monitored_figure_is_refused(tmp_path, epoch, figures, sentence):
    reporter = reporter_in(tmp_path)
    reporter._end_epoch(1, {"a": 0.5}, write)
    with pytest.raises(TrialError, match=sentence):
        reporter._end_epoch(epoch, figures, write)
    assert reporter_in(tmp_path).value == 0.5


def test_an_objective_with_a_callback_saves_and_can_be_paused():
    assert takes(lambda trial: TrialCallback(trial, "loss"), "checkpoint")  # noqa: F821
    assert not takes(lambda trial: TrialCallback(trial, "loss"), "comm")  # noqa: F821
    assert not takes(lambda trial: trial.report(1, 0.5), "checkpoint")
