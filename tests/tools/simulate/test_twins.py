"""Virtual blocks against real masters: the same orders must be answered by the same messages.

The real ones are a master and a worker on loopback transports, which train a linear model.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.run_messages import Shutdown
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.journal import Journal, read_events
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.space import Categorical, Integer, Space
from nnlo_opt.tools.simulate.clock import VirtualClock
from nnlo_opt.tools.simulate.simulation import Simulation, SimulationPlan, VirtualRanks
from nnlo_opt.tools.simulate.workload import SimulatedObjective, Workload, lognormal
from tests.helpers.loopback_run import Shape, System
from tests.helpers.loopback_team import LoneTeam, linear_tasks
from tests.helpers.memory_source import linear_source

SOURCE = linear_source(24)
N_EPOCHS = 3
OPTIONS = TrainingOptions(epochs=N_EPOCHS, batch=6, optimizer="sgd", learning_rate=0.01, synchronous=True)
SPACE = Space([Categorical(["", "gradient"], name="fault"), Integer(0, 8, name="at"), Integer(0, 99, name="other")])


class WorkloadLikeTheModel(Workload):
    """A workload whose points fail as those of `linear_tasks` do: at batch number `at`, if the training gets there."""

    #: of a worker
    batches_per_epoch: int

    def fails_after(self, order, rng):
        epoch = order.point["at"] // self.batches_per_epoch
        return (epoch + 0.5) / N_EPOCHS if order.point["fault"] and epoch < N_EPOCHS else None


def workload(batches_per_epoch):
    return WorkloadLikeTheModel(
        objective=SimulatedObjective(name="like the model", function=lambda point: [3.0, 2.0, 1.0], space=SPACE),
        durations=lognormal(10.0, 0.5),
        startup_s=1.0,
        batches_per_epoch=batches_per_epoch,
    )


# ---------------------------------------------------------------- one master, order by order


class RealMaster(LoneTeam):
    def __init__(self, directory):
        super().__init__(directory, OPTIONS, linear_tasks(SOURCE, [single_fold(18, 6)], OPTIONS))


class SimulatedMaster:
    def __init__(self, directory):
        self._clock = VirtualClock()
        self._ranks = VirtualRanks(Topology.plan(2, 1), workload(3), self._clock)
        self.reports = []

    def order(self, message):
        self._ranks.send(1, message)

    def step(self):
        self._clock.do_due()
        n_before = len(self.reports)
        while (received := self._ranks.poll()) is not None:
            assert received.source == 1
            self.reports.append(received.message)
        return len(self.reports) > n_before or self._clock.jump()


@pytest.fixture(params=[RealMaster, SimulatedMaster], ids=["real", "virtual"])
def master(request, tmp_path):
    return request.param(tmp_path)


def run_fold(number, trial=0, attempt=1, **point):
    point = {"fault": "", "at": 0, "other": 0} | point
    return msg.RunFold(assignment=number, trial=trial, fold=0, attempt=attempt, point=point)


def until(master, kind, n=1):
    while sum(isinstance(report, kind) for report in master.reports) < n:
        assert master.step(), f"no {kind.__name__} came"


def settle(master):
    while master.step():
        pass


def kinds(master):
    return [type(report).__name__ for report in master.reports]


def test_a_fold_starts_reports_every_epoch_and_finishes(master):
    master.order(run_fold(7))
    settle(master)
    assert kinds(master) == ["FoldStarted", *["EpochReported"] * N_EPOCHS, "FoldFinished"]
    started, *epochs, finished = master.reports
    assert {report.assignment for report in master.reports} == {7}
    assert (started.epoch, started.waited_s) == (0, None)
    assert [epoch.epoch for epoch in epochs] == [1, 2, 3]
    assert finished.n_epochs == N_EPOCHS
    assert finished.metrics == epochs[-1].metrics
    assert finished.figure_of_merit in finished.metrics.values()
    assert finished.train_s > 0


@pytest.mark.parametrize("at", [0, 4, 8])
def test_a_fold_that_fails_says_what_it_has_trained_and_then_why(master, at):
    master.order(run_fold(0, fault="gradient", at=at))
    settle(master)
    assert kinds(master) == ["FoldStarted", *["EpochReported"] * (at // 3), "FoldFailed"]
    assert master.reports[-1].reason


def test_the_next_assignment_tells_how_long_the_master_was_idle(master):
    master.order(run_fold(0))
    settle(master)
    master.order(msg.FoldRecorded(assignment=0))
    master.order(run_fold(1, trial=1))
    settle(master)
    first, second = [report for report in master.reports if isinstance(report, msg.FoldStarted)]
    assert first.waited_s is None
    assert second.waited_s >= 0
    assert master.reports[-1].assignment == 1


@pytest.mark.parametrize("n_epochs", [0, 2])
def test_an_order_to_stop_ends_the_fold_at_once_and_the_next_one_is_taken(master, n_epochs):
    master.order(run_fold(0))
    until(master, msg.FoldStarted)
    if n_epochs:
        until(master, msg.EpochReported, n_epochs)
    master.order(msg.StopFold(assignment=0))
    until(master, msg.FoldStopped)
    assert kinds(master) == ["FoldStarted", *["EpochReported"] * n_epochs, "FoldStopped"]
    master.order(run_fold(1, trial=1))
    settle(master)
    assert kinds(master)[n_epochs + 2 :] == ["FoldStarted", *["EpochReported"] * N_EPOCHS, "FoldFinished"]


def test_an_order_to_stop_before_the_fold_has_started(master):
    master.order(run_fold(0))
    master.order(msg.StopFold(assignment=0))
    settle(master)
    assert kinds(master) == ["FoldStopped"]


def test_an_order_to_stop_that_comes_too_late_changes_nothing(master):
    master.order(run_fold(0))
    settle(master)
    n_reports = len(master.reports)
    master.order(msg.StopFold(assignment=0))
    settle(master)
    master.order(run_fold(1, trial=1))
    master.order(msg.StopFold(assignment=0))
    settle(master)
    assert kinds(master)[n_reports:] == ["FoldStarted", *["EpochReported"] * N_EPOCHS, "FoldFinished"]


def test_a_fold_waits_for_a_decision_is_paused_and_continues_where_it_was(master):
    waiting = {"waits_for_decision": True, "pause_epochs": [2]}
    master.order(run_fold(0).replaced(**waiting))
    for n_epochs, order in enumerate((msg.GoOn, msg.PauseFold), 1):
        until(master, msg.EpochReported, n_epochs)
        settle(master)
        assert kinds(master)[-1] == "EpochReported"
        master.order(order(assignment=0))
    settle(master)
    assert master.reports[-1] == msg.FoldPaused(assignment=0, epoch=2)
    assert [report.waits for report in master.reports[1:-1]] == [True, True]
    master.order(run_fold(1))
    settle(master)
    started, *epochs, finished = master.reports[4:]
    assert started.epoch == 2
    assert [report.epoch for report in epochs if report.epoch > 2] == [3]
    assert finished.n_epochs == N_EPOCHS


@pytest.mark.parametrize("message", [msg.FoldStarted(assignment=0), Shutdown(exit_code=0)], ids=str)
def test_what_is_no_order_is_a_bug(master, message):
    master.order(message)
    with pytest.raises(ProtocolError, match="does not accept"):
        settle(master)


def test_two_assignments_at_once_are_a_bug(master):
    master.order(run_fold(0))
    master.order(run_fold(1, trial=1))
    with pytest.raises(ProtocolError, match="under way"):
        settle(master)


# ---------------------------------------------------------------- a whole search


class Likewise(Shape):
    options = OPTIONS


@dataclass
class Told:
    """A transport that keeps what the coordinator takes in."""

    transport: object

    def __post_init__(self):
        self.messages = []

    @property
    def lost(self):
        return self.transport.lost

    def poll(self):
        received = self.transport.poll()
        if received is not None:
            self.messages.append((received.source, received.message))
        return received

    def send(self, dest, message):
        self.transport.send(dest, message)


def listen_to(coordinator):
    """Return the transport of a coordinator, which keeps its messages from now on."""
    told = Told(coordinator._setup.ranks)
    coordinator._setup = coordinator._setup.replaced(ranks=told)
    return told


class RealSearch(System):
    """A search on real masters, whose coordinator comes first."""

    space, seed = SPACE, 5

    def step(self, rng):
        self.clock.advance(1.0)
        return self.coordinator.step() or any(self.teams[i].step() for i in rng.permutation(len(self.teams)))


def real_search(directory, shape):
    """(messages to the coordinator, events) of a search on real masters."""
    directory.mkdir()
    system, rng = RealSearch(directory, shape), np.random.default_rng(0)
    told = listen_to(system.coordinator)
    system.run(rng)
    system.finish(rng)
    return told.messages, read_events(system.journal.path.read_bytes(), "journal")[0]


def simulated_search(directory, shape):
    """The same of a simulation."""
    directory.mkdir()
    journal, search, topology = Journal(directory / "journal.jsonl"), InlineSearch(), shape.topology
    search.start("random", SPACE, RealSearch.seed, {})
    n_train, n_workers = 18 if shape.n_fold == 1 else 24 // shape.n_fold, topology.teams[0].n_workers
    likewise = workload(n_train // n_workers // shape.options.batch)
    simulation = Simulation(SimulationPlan(search=shape.plan, topology=topology, workload=likewise), search, journal)
    told = listen_to(simulation._coordinator)
    simulation.run()
    journal.close()
    return told.messages, read_events(journal.path.read_bytes(), "journal")[0]


def names(things):
    return [type(thing).__name__ for thing in things]


def test_one_block_sends_the_same_messages_and_leaves_the_same_journal(tmp_path):
    shape = Likewise(3, 2, n_trials=12)
    real, real_events = real_search(tmp_path / "real", shape)
    virtual, virtual_events = simulated_search(tmp_path / "virtual", shape)
    said = [(source, type(message).__name__, message.assignment) for source, message in real]
    assert said == [(source, type(message).__name__, message.assignment) for source, message in virtual]
    assert {name for _, name, _ in said} == {"FoldStarted", "EpochReported", "FoldFinished", "FoldFailed"}
    assert names(real_events) == names(virtual_events)
    points = [event.point for event in real_events if type(event).__name__ == "TrialSuggested"]
    assert points == [event.point for event in virtual_events if type(event).__name__ == "TrialSuggested"]


def by_trial_and_fold(messages, events):
    """(trial, fold) -> what was said of it."""
    place = {e.assignment: (e.trial, e.fold) for e in events if type(e).__name__ == "FoldAssigned"}
    said = {}
    for _, message in messages:
        said.setdefault(place[message.assignment], []).append(type(message).__name__)
    return said


@pytest.mark.parametrize(
    ("world_size", "block_size", "n_fold"),
    [pytest.param(7, 2, 1, id="three blocks"), pytest.param(7, 3, 2, id="two blocks, folds one after another")],
)
def test_several_blocks_say_the_same_of_every_fold(tmp_path, world_size, block_size, n_fold):
    shape = Likewise(world_size, block_size, n_fold, n_trials=10)
    real, real_events = real_search(tmp_path / "real", shape)
    virtual, virtual_events = simulated_search(tmp_path / "virtual", shape)
    said = by_trial_and_fold(real, real_events)
    assert said == by_trial_and_fold(virtual, virtual_events)
    assert "FoldFailed" in {name for line in said.values() for name in line}
    for kind in ("TrialSuggested", "FoldAssigned", "TrialCompleted", "TrialFailed"):
        assert names(real_events).count(kind) == names(virtual_events).count(kind)


def test_folds_at_the_same_time_leave_the_same_kinds_of_events(tmp_path):
    """Which of two folds of a block fails first, and whether the other is stopped in time, is a matter of time."""
    shape = Likewise(9, 4, 2, n_trials=10)
    _, real_events = real_search(tmp_path / "real", shape)
    _, virtual_events = simulated_search(tmp_path / "virtual", shape)
    assert set(names(real_events)) == set(names(virtual_events))
    for kind in ("TrialSuggested", "FoldAssigned", "TrialCompleted", "TrialFailed"):
        assert names(real_events).count(kind) == names(virtual_events).count(kind)
