import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.coordinator import Coordinator, CoordinatorSetup
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.pruning import PruningPlan
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.space import Integer, Space
from tests.helpers.manual_clock import ManualClock
from tests.helpers.steps import fold_finished


def coordinator_of(tmp_path, n_blocks, block_size, **plan):
    """A coordinator that has begun, and the network of its ranks."""
    topology, search = Topology.plan(1 + n_blocks * block_size, block_size), InlineSearch()
    network = LoopbackNetwork(topology.world_size)
    search.start("random", Space([Integer(1, 99, name="n")]), 0, {})
    setup = CoordinatorSetup(
        state=CoordinatorState(SearchPlan(num_iterations=20, **plan), topology, Ledger()),
        journal=Journal(tmp_path / "journal.jsonl"),
        ranks=network.end(0),
        search=search,
        clock=ManualClock(),
    )
    started = ev.RunStarted(time_s=0.0, unix_s=0.0, n_ranks=topology.world_size, n_blocks=n_blocks, identity={})
    setup.journal.append([started])
    coordinator = Coordinator(setup)
    coordinator.begin()
    return coordinator, network, setup.journal


def test_a_bug_is_told_with_the_messages_that_led_to_it_and_what_came_before_stands(tmp_path):
    coordinator, network, _ = coordinator_of(tmp_path, n_blocks=1, block_size=2)
    assert coordinator.step(), "the first suggestion"
    master = network.end(1)
    master.send(0, msg.FoldStarted(assignment=0))
    master.send(0, msg.FoldRecorded(assignment=0))
    with pytest.raises(ProtocolError, match="A master does not send FoldRecorded") as raised:
        coordinator.step()
    first, second = raised.value.__notes__
    assert first.startswith("took in from rank 1: FoldStarted(")
    assert second.startswith("took in from rank 1: FoldRecorded(")
    assert isinstance(Journal(tmp_path / "journal.jsonl").events[-1], ev.FoldBegan)


def test_a_message_of_a_rank_that_is_in_no_team_is_a_bug(tmp_path):
    coordinator, network, _ = coordinator_of(tmp_path, n_blocks=1, block_size=2)
    network.end(0).send(0, msg.FoldStarted(assignment=0))
    with pytest.raises(ProtocolError, match="Rank 0 is in no team"):
        coordinator.step()


def test_the_search_is_told_after_how_many_epochs_a_paused_trial_had_its_value(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(InlineSearch, "record", lambda self, trials: told.extend(trials))
    pruning = PruningPlan(name="asha", max_epochs=9)
    coordinator, network, _ = coordinator_of(tmp_path, 1, 2, direction="max", pruning=pruning)
    coordinator.step()
    master = network.end(1)
    master.send(0, msg.EpochReported(assignment=0, epoch=1, metrics={}, figure_of_merit=0.25, waits=True))
    master.send(0, msg.FoldPaused(assignment=0, epoch=1))
    coordinator.step()
    (paused,) = (record for record in told if record["state"] == "pruned")
    assert (paused["value"], paused["curve"]) == (-0.25, [(1, -0.25)])


def test_all_that_has_come_is_written_at_once_and_before_anything_is_sent(tmp_path):
    n_blocks = 5
    coordinator, network, journal = coordinator_of(tmp_path, n_blocks, block_size=1)
    while coordinator.step():
        pass
    masters = [network.end(rank) for rank in range(1, 1 + n_blocks)]
    for number, master in enumerate(masters):
        assert isinstance(master.poll().message, msg.RunFold)
        master.send(0, fold_finished(number))
    written: list[tuple[list[str], bool, bool]] = []

    def append(events, *, durable=True):
        sent = any(master.poll() is not None for master in masters)
        written.append(([type(event).__name__ for event in events], durable, sent))

    journal.append = append
    coordinator.step()
    (names, durable, sent), *_ = written
    assert len(written) == 1
    assert names.count("AssignmentFinished") == names.count("TrialCompleted") == n_blocks
    assert durable
    assert not sent
    told = [type(master.poll().message) for master in masters]
    assert told == [msg.FoldRecorded] * n_blocks
