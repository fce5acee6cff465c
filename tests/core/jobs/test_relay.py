"""The workplace of a job: what passes between its ranks and its files, and when its masters are busy."""

import threading
import time

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm import run_messages as run_msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.jobs.relay import Relay
from tests.helpers.manual_clock import ManualClock
from tests.helpers.steps import fold_finished


def run_fold(assignment):
    return msg.RunFold(assignment=assignment, trial=0, fold=0, attempt=1, point={})


class Ranks:
    """Job of two blocks, (1, 2) and (3, 4), and its relay."""

    def __init__(self):
        self.network, self.clock = LoopbackNetwork(5), ManualClock(100.0)
        self.n_asked = 0
        self.relay = Relay(self.network.end(0), Topology.plan(5, 2).teams, self.clock, self.ask)

    def ask(self):
        self.n_asked += 1

    def order(self, rank, *messages):
        for message in messages:
            self.relay.take(1, rank, message)
        self.relay.turn()

    def heard(self, rank):
        """Return what a rank has received."""
        self.relay.turn()
        end = self.network.end(rank)
        return [received.message for received in iter(end.poll, None)]

    def say(self, rank, *messages):
        """Send messages of a rank; return what is reported."""
        for message in messages:
            self.network.end(rank).send(0, message)
        self.relay.turn()
        return self.relay.reports()


@pytest.fixture
def ranks():
    return Ranks()


def test_a_master_is_busy_until_the_end_of_its_assignment_is_reported(ranks):
    relay = ranks.relay
    assert not relay.is_busy
    assert not relay.turn()
    relay.take(1, 3, run_fold(7))
    assert relay.is_busy
    assert relay.turn()
    assert ranks.heard(3) == [run_fold(7)]
    assert ranks.say(3, msg.FoldStarted(assignment=7)) == [(3, msg.FoldStarted(assignment=7))]
    ranks.network.end(3).send(0, fold_finished(7))
    relay.turn()
    assert relay.is_busy
    assert relay.reports() == [(3, fold_finished(7))]
    assert not relay.is_busy
    ranks.order(3, msg.FoldRecorded(assignment=7))
    assert not relay.is_busy
    assert ranks.heard(3) == [msg.FoldRecorded(assignment=7)]


@pytest.mark.parametrize(
    "end",
    [
        fold_finished(7),
        msg.FoldStopped(assignment=7),
        msg.FoldPaused(assignment=7, epoch=2),
        msg.FoldFailed(assignment=7, reason="x"),
    ],
    ids=lambda end: type(end).__name__,
)
def test_each_end_makes_a_master_idle(ranks, end):
    ranks.order(1, run_fold(7))
    ranks.order(3, run_fold(8))
    assert ranks.say(1, end) == [(1, end)]
    assert ranks.relay.is_busy
    assert ranks.say(3, end.replaced(assignment=8))
    assert not ranks.relay.is_busy


def test_a_job_lets_go_by_a_checkpoint_and_in_the_end_by_a_stop(ranks):
    ranks.order(1, run_fold(7))
    ranks.order(3, run_fold(8))
    assert ranks.say(3, fold_finished(8))
    ranks.relay.stop_at_s = 130.0
    for _ in range(3):
        ranks.relay.let_go()
    assert ranks.heard(1) == [run_fold(7), msg.PreemptFold(assignment=7)]
    ranks.clock.advance(31.0)
    for _ in range(3):
        ranks.relay.let_go()
    assert ranks.heard(1) == [msg.StopFold(assignment=7)]
    assert ranks.heard(3) == [run_fold(8)]
    assert ranks.say(1, msg.FoldStopped(assignment=7)) == [(1, msg.FoldStopped(assignment=7))]
    assert not ranks.relay.is_busy


def test_what_fails_while_its_job_lets_go_fails_for_another_job_or_not_at_all(ranks):
    ranks.order(1, run_fold(7))
    ranks.order(3, run_fold(8))
    failed = msg.FoldFailed(assignment=7, reason="killed by signal 15")
    assert ranks.say(3, failed.replaced(assignment=8)) == [(3, failed.replaced(assignment=8))]
    ranks.relay.let_go()
    assert ranks.say(1, failed) == [(1, msg.FoldStopped(assignment=7))]
    assert not ranks.relay.is_busy


def test_without_a_limit_a_fold_without_checkpoints_goes_on_to_its_result(ranks):
    ranks.order(1, run_fold(7))
    ranks.relay.let_go()
    ranks.clock.advance(1e6)
    ranks.relay.let_go()
    assert ranks.heard(1) == [run_fold(7), msg.PreemptFold(assignment=7)]
    assert ranks.say(1, fold_finished(7)) == [(1, fold_finished(7))]


def test_nothing_about_a_dropped_assignment_is_reported(ranks):
    """The job stays busy until its masters have ended them, and may then get the same numbers again."""
    ranks.order(1, run_fold(7))
    ranks.network.end(1).send(0, msg.FoldStarted(assignment=7))  # has come, and was not returned
    ranks.relay.turn()
    ranks.relay.drop()
    ranks.relay.let_go()
    assert ranks.relay.reports() == []
    assert ranks.heard(1) == [run_fold(7), msg.StopFold(assignment=7)]
    assert ranks.relay.is_busy
    assert ranks.say(1, msg.EpochReported(assignment=7, epoch=1, metrics={}), fold_finished(7)) == []
    assert not ranks.relay.is_busy
    ranks.order(1, run_fold(7))
    assert ranks.say(1, fold_finished(7)) == [(1, fold_finished(7))]


def test_a_message_about_an_assignment_that_has_ended_is_not_reported(ranks):
    ranks.order(1, run_fold(7))
    failed = msg.FoldFailed(assignment=7, reason="x", world_rank=2)
    assert ranks.say(1, failed) == [(1, failed)]
    assert ranks.say(2, failed) == []


def test_messages_about_the_job_itself_go_no_further(ranks):
    changed = run_msg.SharedFilesChanged(trial=2, names=["a"])
    assert ranks.say(2, run_msg.Prepared(), run_msg.PreemptionHeard(), changed) == [(2, changed)]
    assert ranks.n_asked == 1


@pytest.mark.parametrize(
    ("rank", "order"),
    [
        (1, run_msg.Shutdown(exit_code=3)),
        (1, run_msg.ExportModel(point={}, weights_path="x", path="/etc/passwd")),
        (1, msg.StartFold(assignment=1, trial=0, fold=0, point={}, worker=1, n_workers=1)),
        (0, run_fold(7)),
        (5, run_fold(7)),
    ],
)
def test_only_orders_of_a_search_to_ranks_of_teams_are_accepted(ranks, rank, order):
    with pytest.raises(ProtocolError, match="does not accept"):
        ranks.relay.take(1, rank, order)
    assert not ranks.relay.is_busy
    assert not ranks.relay.turn()


def test_a_master_at_work_gets_no_further_fold(ranks):
    """It would end its rank with a traceback."""
    ranks.order(1, run_fold(7))
    with pytest.raises(ProtocolError, match="which is at work"):
        ranks.relay.take(1, 1, run_fold(8))
    assert ranks.heard(1) == [run_fold(7)]


def test_a_job_that_joins_anew_has_other_numbers(ranks):
    assert ranks.relay.numbers is None
    ranks.relay.admit(0, 0)
    ranks.relay.admit(7, 3)
    assert ranks.relay.numbers == (7, 3)


def test_a_vector_does_not_leave_the_job(ranks):
    ranks.network.end(1).send(0, msg.FoldStarted(assignment=7), np.zeros(3, np.float32))
    with pytest.raises(ProtocolError, match="vector"):
        ranks.relay.turn()


# ---------------------------------------------------------------- dead ranks


def reformed(alive, world_ranks, taken=-1, goes_on=-1):
    return msg.TeamReformed(alive=alive, world_ranks=world_ranks, n_masters=1, taken=taken, goes_on=goes_on)


@pytest.mark.parametrize(
    ("message", "is_busy"),
    [
        (reformed([3], [3], taken=8, goes_on=8), True),
        (reformed([3], [3], taken=6), True),  # the order is still on its way to the master
        (reformed([3], [3], taken=8), False),
        (reformed([4], [4]), False),
    ],
)
def test_a_team_that_has_reformed_is_busy_if_its_assignment_goes_on(ranks, message, is_busy):
    ranks.order(3, run_fold(8))
    assert ranks.say(message.alive[0], message) == [(message.alive[0], message)]
    assert ranks.relay.is_busy == is_busy


def test_an_order_to_a_dead_master_makes_nobody_busy(ranks):
    assert ranks.say(4, reformed([4], [4]))
    ranks.order(3, run_fold(8))
    assert not ranks.relay.is_busy
    ranks.order(4, run_fold(9))
    assert ranks.heard(4) == [run_fold(9)]


def test_a_team_without_ranks_is_reported_once_after_its_last_messages(ranks):
    ranks.order(1, run_fold(7))
    ranks.order(3, run_fold(8))
    ranks.network.end(3).send(0, msg.FoldStarted(assignment=8))
    for rank in (3, 4):
        ranks.network.lose(rank)
    assert ranks.say(1) == [(3, msg.FoldStarted(assignment=8)), (3, reformed([], []))]
    assert ranks.say(1, fold_finished(7)) == [(1, fold_finished(7))]
    assert not ranks.relay.is_busy


def test_a_job_that_joins_anew_reports_its_dead_again(ranks):
    """Its new number has all ranks, as the coordinator sees it; what a repeated message says about numbers is old."""
    lost = reformed([3], [3], taken=9, goes_on=9)
    ranks.order(3, run_fold(9))
    assert ranks.say(3, lost, fold_finished(9))
    ranks.order(3, run_fold(5))
    ranks.relay.drop()
    assert ranks.relay.reports() == [(3, lost)]
    assert ranks.relay.is_busy
    assert ranks.say(3, fold_finished(5)) == []
    assert not ranks.relay.is_busy


# ---------------------------------------------------------------- threads


def test_two_threads_lose_and_double_nothing(ranks):
    n_folds, told = 40, []
    until_s = time.monotonic() + 60.0

    def work():
        for number in range(n_folds):
            ranks.relay.take(1, 1, run_fold(number))
            while ranks.relay.is_busy and time.monotonic() < until_s:
                told.extend(ranks.relay.reports())

    thread = threading.Thread(target=work)
    thread.start()
    end = ranks.network.end(1)
    while thread.is_alive():
        time.sleep(1e-5)
        ranks.relay.turn()
        if (received := end.poll()) is not None:
            number = received.message.assignment
            end.send(0, msg.FoldStarted(assignment=number))
            end.send(0, fold_finished(number))
    thread.join()
    assert [(type(m), m.assignment) for _, m in told] == [
        (kind, number) for number in range(n_folds) for kind in (msg.FoldStarted, msg.FoldFinished)
    ]
