"""A session on rank 0, and ranks 1 and 2, which serve it and answer when they are let; all in one process."""

from types import SimpleNamespace

import pytest

from nnlo_opt.app.run.start.serving_ranks import RankDiedError, ServingRanks
from nnlo_opt.core.base.errors import OutOfTimeError
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.messages import FoldStopped
from nnlo_opt.core.comm.run_messages import ExportModel, ModelExported, PreemptionHeard, Prepared, Shutdown
from nnlo_opt.engine.runtime.preemption import Preemption

ORDER = ExportModel(point={}, weights_path="w", path="m")
ANSWER = ModelExported(path="m.keras")


class Served:
    """Ranks 1 and 2: each sends its next answer for every step that it may work."""

    def __init__(self, *answers):
        self.network = LoopbackNetwork(3)
        self.ends = [self.network.end(rank) for rank in range(3)]
        self.answers = list(answers)
        self.preemption = Preemption()
        self.heard = []

    def step(self):
        for end in self.ends[1:]:
            while (received := end.poll()) is not None:
                self.heard.append((end.rank, received.message))
        if not self.answers:
            return False
        rank, message = self.answers.pop(0)
        self.ends[rank].send(0, message)
        return True

    def session(self):
        return ServingRanks(self.ends[0], self.preemption, grace_s=7.0, server=self)


def test_an_answer_is_waited_for_and_what_else_comes_is_dropped():
    served = Served((1, FoldStopped(assignment=3)), (2, FoldStopped(assignment=4)), (1, ANSWER))
    assert served.session().ask(1, ORDER, ModelExported) == ANSWER
    assert served.heard == [(1, ORDER)]


def test_a_preemption_that_another_rank_has_heard_is_heard_while_an_answer_is_waited_for():
    served = Served((2, PreemptionHeard()), (1, ANSWER))
    assert served.session().ask(1, ORDER, ModelExported) == ANSWER
    assert served.preemption.is_asked


def test_ranks_that_have_imported_what_they_need_are_known():
    session = (served := Served((2, Prepared()), (1, ANSWER))).session()
    assert session.ask(1, ORDER, ModelExported) == ANSWER
    assert session.prepared == {2}
    assert not served.answers


def test_dead_ranks_are_not_waited_for():
    served = Served()
    served.network.lost.add(2)
    with pytest.raises(RankDiedError, match="Rank 2 has died before it answered"):
        served.session().ask(2, ORDER, ModelExported)


def test_nothing_is_waited_for_longer_than_the_grace():
    served = Served()
    served.preemption.ask()
    served.preemption.allow(0.0)
    try:
        with pytest.raises(OutOfTimeError, match="the 7 s of `--grace` are over"):
            served.session().ask(1, ORDER, ModelExported)
    finally:
        served.preemption.end()


def test_ranks_of_this_process_work_until_there_is_nothing_to_do():
    served = Served((1, ANSWER))
    session = served.session()
    assert session.work()
    assert not session.work()


def test_all_other_ranks_are_told_to_leave():
    served = Served()
    served.session().release(3)
    served.step()
    assert served.heard == [(1, Shutdown(exit_code=3)), (2, Shutdown(exit_code=3))]


def test_after_deaths_a_session_stays_until_the_last_has_left():
    served = Served()
    served.network.lost.add(1)
    steps = []

    def step():
        steps.append(len(steps))
        if len(steps) == 3:
            served.network.lost.add(2)
        return False

    ServingRanks(served.ends[0], served.preemption, grace_s=7.0, server=SimpleNamespace(step=step)).release(0)
    assert len(steps) == 3
