import pytest

from nnlo_opt.clock import ManualClock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.coordinator import Coordinator
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.coordinator.state import CoordinatorState
from nnlo_opt.errors import ProtocolError
from nnlo_opt.search.process import InlineSearch
from nnlo_opt.space import Integer, Space
from nnlo_opt.trials.journal import Journal
from nnlo_opt.trials.ledger import Ledger


@pytest.fixture
def network():
    return LoopbackNetwork(3)


@pytest.fixture
def coordinator(tmp_path, network):
    search = InlineSearch()
    search.start("random", Space([Integer(1, 9, name="n")]), 0, {})
    state = CoordinatorState(SearchPlan(num_iterations=4), Topology.plan(3, 2), Ledger())
    coordinator = Coordinator(state, Journal(tmp_path / "journal.jsonl"), network.end(0), search, ManualClock())
    coordinator.begin()
    return coordinator


def test_a_bug_is_told_with_the_messages_that_led_to_it(network, coordinator):
    assert coordinator.step(), "the first suggestion"
    master = network.end(1)
    master.send(0, msg.FoldStarted(assignment=0))
    master.send(0, msg.FoldRecorded(assignment=0))
    while_well = coordinator.step()
    assert while_well
    with pytest.raises(ProtocolError, match="FoldRecorded is no message a master sends") as raised:
        coordinator.step()
    first, second = raised.value.__notes__
    assert first.startswith("took in from rank 1: FoldStarted(")
    assert second.startswith("took in from rank 1: FoldRecorded(")


def test_a_message_of_a_rank_that_is_in_no_team_is_a_bug(network, coordinator):
    network.end(0).send(0, msg.FoldStarted(assignment=0))
    with pytest.raises(ProtocolError, match="Rank 0 is in no team"):
        coordinator.step()
