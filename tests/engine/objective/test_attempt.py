"""One attempt at a trial: what reports and orders make of it, and what the next one keeps of it."""

import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.engine.objective.attempt import Attempt
from nnlo_opt.engine.objective.checkpoint import last_save
from tests.helpers.manual_clock import ManualClock


class Trial:
    """A trial, whose attempts have one folder."""

    def __init__(self, folder):
        self.folder, self.clock = SafePath(folder), ManualClock()

    def attempt(self, assignment=0):
        order = msg.RunFold(assignment=assignment, trial=3, fold=0, attempt=1, point={})
        return Attempt(order, last_save(self.folder), self.folder, Comparison(), self.clock)


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path)


STOPPED, PAUSED = msg.FoldStopped(assignment=0), msg.FoldPaused(assignment=0, epoch=2)


@pytest.mark.parametrize(
    ("heard", "is_saved", "end"),
    [
        ([], True, None),
        ([msg.GoOn], True, None),
        ([msg.StopFold], False, STOPPED),
        ([msg.PreemptFold], False, None),
        ([msg.PreemptFold], True, STOPPED),
        ([msg.PauseFold], True, PAUSED),
        ([msg.PauseFold, msg.PreemptFold], False, PAUSED),
        ([msg.PauseFold, msg.StopFold], True, STOPPED),
    ],
)
def test_orders_end_an_attempt_with_its_last_report(trial, heard, is_saved, end):
    attempt = trial.attempt()
    if is_saved:
        attempt.checkpoint.save(2, lambda folder: None)
    attempt.report(2, 0.5, {})
    attempt.heard.update(heard)
    assert (attempt.goes_on(), attempt.end) == (end is None, end)


def test_an_attempt_that_has_to_end_does_not_go_on_with_a_further_report(trial):
    attempt = trial.attempt()
    attempt.checkpoint.save(1, lambda folder: None)
    attempt.report(1, 0.5, {})
    attempt.heard.add(msg.PreemptFold)
    assert not attempt.goes_on()
    attempt.report(2, 0.5, {})  # which is not saved
    assert not attempt.reported.checkpointed
    assert not attempt.goes_on()
    assert attempt.end == STOPPED


def test_a_report_of_which_nothing_can_be_made_leaves_the_last_one(trial):
    attempt = trial.attempt()
    report = attempt.report(1, 0.5, {"loss": 2.0})
    with pytest.raises(TrialError):
        attempt.report(2, None, {})
    assert attempt.reported is report
    finished = attempt.finished(0.25)
    assert (finished.n_epochs, finished.metrics) == (1, {"loss": 2.0, "value": 0.25})


def test_an_attempt_goes_on_from_the_last_save_and_knows_nothing_else_of_the_one_before(trial):
    before = trial.attempt()
    trial.clock.advance(5.0)
    before.checkpoint.save(0, lambda folder: None)
    before.report(0, 0.5, {})
    before.heard.add(msg.StopFold)
    before.failure = msg.FoldFailed(assignment=0, reason="no")
    trial.clock.advance(100.0)
    after = trial.attempt(1)
    trial.clock.advance(2.0)
    assert (after.checkpoint.n_epochs, after.checkpoint.count.is_from_0) == (1, True)
    assert (after.reported, after.heard, after.end, after.failure) == (None, set(), None, None)
    assert (after.finished(1.0).n_epochs, after.finished(1.0).train_s) == (1, 7.0)
