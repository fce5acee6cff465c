"""A rank whose trials the caller computes; the test is the coordinator, and the caller."""

import pytest

from nnlo_opt.core.base.errors import MisuseError, TrialError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.space.parameters import Real
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.engine.objective.asked import AskedRank
from tests.helpers.manual_clock import ManualClock


class Bench:
    """An asked rank and its coordinator."""

    def __init__(self, folder):
        network = LoopbackNetwork(2)
        self.coordinator, self.clock = network.end(0), ManualClock()
        self.rank = AskedRank(network.end(1), folder, Comparison(), self.clock)

    def order(self, *messages):
        """Whether there is a new trial once the rank has been sent these messages."""
        for message in messages:
            self.coordinator.send(1, message)
        return self.rank.take_in()

    def begin(self, assignment=0):
        assert self.order(msg.RunFold(assignment=assignment, trial=4, fold=0, attempt=1, point={"x": 0.5}))
        assert self.heard() == [msg.FoldStarted(assignment=assignment)]

    def heard(self):
        messages = []
        while (received := self.coordinator.poll()) is not None:
            messages.append(received.message)
        return messages


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_trial_is_handed_out_reported_and_ended(bench):
    bench.begin()
    trial = bench.rank.trial(Space({"x": Real(0, 1)}), 7, lambda epoch, value, **figures: True)
    assert (trial.number, trial.parameters, trial.fold.seed) == (4, {"x": 0.5}, 7)
    reported = bench.rank.report(1, 0.5, {"loss": 2.0})
    assert bench.heard() == [reported]
    bench.clock.advance(3.0)
    bench.rank.end(0.25, None)
    (finished,) = bench.heard()
    assert (finished.figure_of_merit, finished.n_epochs, finished.train_s) == (0.25, 1, 3.0)
    assert finished.metrics == {"loss": 2.0, "value": 0.25}


def test_a_stop_is_for_the_attempt_that_it_names_and_leaves_it_without_a_result(bench):
    bench.begin(0)
    assert not bench.order(msg.StopFold(assignment=1))
    assert not bench.rank.is_stopped
    assert not bench.order(msg.StopFold(assignment=0))
    assert bench.rank.is_stopped
    bench.rank.end(0.25, None)
    assert bench.heard() == [msg.FoldStopped(assignment=0)]
    bench.begin(1)
    assert not bench.rank.is_stopped


def test_a_preemption_is_answered_at_once_unless_the_trial_has_ended(bench):
    bench.begin()
    bench.order(msg.PreemptFold(assignment=0))
    assert bench.heard() == [msg.FoldStopped(assignment=0)]
    bench.rank.end(None, "no")
    assert bench.heard() == [msg.FoldFailed(assignment=0, reason="no")]
    bench.order(msg.PreemptFold(assignment=0), msg.StopFold(assignment=0), msg.FoldRecorded(assignment=0))
    assert bench.heard() == []


def test_a_value_that_is_not_finite_fails_the_trial_and_one_that_is_no_number_leaves_it(bench):
    bench.begin()
    with pytest.raises(MisuseError):
        bench.rank.end("bad", None)
    with pytest.raises(TrialError):
        bench.rank.report(1, float("nan"), {})
    assert bench.heard() == []
    bench.rank.end(float("nan"), None)
    (failed,) = bench.heard()
    assert "finite number" in failed.reason


def test_a_trial_goes_on_from_its_last_save(bench):
    bench.begin()
    trial = bench.rank.trial(Space({"x": Real(0, 1)}), 7, lambda epoch, value, **figures: True)
    bench.clock.advance(2.0)
    trial.checkpoint.save(3, lambda folder: None)
    assert bench.rank.report(3, 0.5, {}).checkpointed
    assert not bench.rank.report(4, 0.5, {}).checkpointed
    bench.rank.end(None, ValueError("no"))
    bench.heard()
    bench.order(msg.RunFold(assignment=1, trial=4, fold=0, attempt=2, point={"x": 0.5}))
    assert bench.heard() == [msg.FoldStarted(assignment=1, epoch=3)]
    bench.rank.end(0.25, None)
    (finished,) = bench.heard()
    assert (finished.n_epochs, finished.train_s) == (3, 2.0)


@pytest.mark.parametrize("is_needed", [True, False], ids=["complete", "failed"])
def test_saves_of_a_trial_that_failed_are_removed_once_its_end_is_recorded(bench, tmp_path, is_needed):
    bench.begin()
    trial = bench.rank.trial(Space({"x": Real(0, 1)}), 7, lambda epoch, value, **figures: True)
    trial.checkpoint.save(1, lambda folder: (folder / "state").touch())
    bench.rank.end(0.25, None if is_needed else "no")
    assert [*tmp_path.rglob("state")], "the end may be lost with the coordinator"
    bench.order(msg.FoldRecorded(assignment=0))
    assert bool([*tmp_path.rglob("state")]) is is_needed
