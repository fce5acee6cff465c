"""The whole system in one process: coordinator, journal, search, masters and workers, stepped in a seeded order.

A crash drops everything that is in memory; what is on disk goes on. Nothing waits and nothing sleeps.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from nnlo_opt.clock import ManualClock
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.topology import Topology
from nnlo_opt.config import TrainingOptions
from nnlo_opt.coordinator.budget import Budget
from nnlo_opt.coordinator.coordinator import Coordinator
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.coordinator.state import CoordinatorState
from nnlo_opt.data.folds import make_folds, single_fold
from nnlo_opt.search.process import InlineSearch
from nnlo_opt.space import Categorical, Integer, Real, Space
from nnlo_opt.testing.loopback_team import LoopbackTeam, linear_tasks
from nnlo_opt.testing.memory_source import linear_source
from nnlo_opt.training.checkpoint import fold_directory, load_weights
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.journal import Journal, encode_line, read_events
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import AssignmentEnd, TrialState

N_TRIALS = 7
SOURCE = linear_source(24)
#: some points fail, at once or in the middle of an epoch; a point whose fault would come too late does not
SPACE = Space(
    [
        Real(1e-3, 0.2, "log-uniform", name="train.learning_rate"),
        Integer(2, 6, name="train.batch"),
        Categorical(["", "none", "no fault", "gradient", "infinite loss", "build out of memory"], name="fault"),
        Integer(0, 15, name="at"),
    ]
)


@dataclass(frozen=True)
class Shape:
    """A world and what it is to do."""

    world_size: int
    block_size: int
    n_fold: int = 1
    synchronous: bool = True
    #: whether all teams are alike, so that it does not matter which one trains a fold
    even: bool = True

    @property
    def topology(self) -> Topology:
        return Topology.plan(self.world_size, self.block_size, self.n_fold)

    @property
    def plan(self) -> SearchPlan:
        return SearchPlan(num_iterations=N_TRIALS, n_fold=self.n_fold)

    @property
    def options(self) -> TrainingOptions:
        return TrainingOptions(epochs=2, optimizer="sgd", synchronous=self.synchronous)


SHAPES = [
    pytest.param(Shape(7, 2), id="three blocks of a master and a worker"),
    pytest.param(Shape(13, 6, n_fold=2), id="two blocks cut into sub-blocks of two workers"),
    pytest.param(Shape(7, 3, n_fold=2), id="two blocks too small to be cut"),
    pytest.param(Shape(9, 3, n_fold=2, even=False), id="a last block with fewer workers"),
    pytest.param(Shape(1, 1, n_fold=2), id="one rank"),
    pytest.param(Shape(3, 1), id="two trainers alone"),
    pytest.param(Shape(9, 4, n_fold=2, synchronous=False), id="sub-blocks, asynchronous"),
    pytest.param(Shape(9, 4, synchronous=False), id="three workers, asynchronous"),
]


class System:
    """Everything that is in memory while a run goes on: one start of it."""

    def __init__(self, directory: Path, shape: Shape, start_s: float = 0.0, walltime_s: float | None = None) -> None:
        topology = shape.topology
        self.clock = ManualClock(start_s)
        self.journal = Journal(directory / "journal.jsonl")
        self.ledger = Ledger()
        for event in self.journal.events:
            self.ledger.apply(event)
        started = ev.RunStarted(
            time_s=start_s, unix_s=start_s, n_ranks=topology.world_size, n_blocks=topology.n_blocks, identity={}
        )
        self.ledger.apply(started)
        self.journal.append([started])
        search = InlineSearch()
        search.start("random", SPACE, 3, {})
        network = LoopbackNetwork(max(2, topology.world_size))
        folds = make_folds(shape.n_fold, n_samples=24, seed=0) if shape.n_fold > 1 else [single_fold(18, 6)]
        tasks = linear_tasks(SOURCE, folds, shape.options)
        self.teams = [
            LoopbackTeam(network.end(team.master_rank), directory, shape.options, tasks, team.n_workers())
            for team in topology.teams
        ]
        budget = Budget(deadline_s=None if walltime_s is None else start_s + walltime_s)
        self.state = CoordinatorState(replace(shape.plan, budget=budget), topology, self.ledger)
        self.coordinator = Coordinator(self.state, self.journal, network.end(0), search, self.clock)
        self.coordinator.begin()
        self.state.check()

    def step(self, rng: np.random.Generator) -> bool:
        """Let one of those who have something to do take one message in; -> whether there was one."""
        actors = [self.coordinator.step, *(lambda team=team: team.step(rng) for team in self.teams)]
        for i in rng.permutation(len(actors)):
            if actors[i]():
                self.clock.advance(1.0)
                self.state.check()
                return True
        return False

    def run(self, rng: np.random.Generator, n_steps: int | None = None) -> bool:
        """Go on to the end, or for `n_steps`; -> whether the search is over."""
        while not self.coordinator.finished_because:
            if n_steps is not None:
                if n_steps == 0:
                    return False
                n_steps -= 1
            assert self.step(rng), "everybody waits for somebody else"
        return True

    def finish(self, rng: np.random.Generator) -> None:
        """Deliver what is still on its way, and write that the search is over."""
        while self.step(rng):
            pass
        self.coordinator.complete()
        self.journal.close()


def crash(system: System, rng: np.random.Generator) -> None:
    """End a start as a power cut does: what was not waited for may be lost, and a last line may be torn."""
    path = system.journal.path
    system.journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    news = (b'"event":"FoldBegan"', b'"event":"EpochEnded"')
    while lines and any(kind in lines[-1] for kind in news) and rng.random() < 0.7:
        lines.pop()
    # The line that was being written says nothing yet: whatever it justifies was not done.
    next_line = encode_line(len(lines), ev.AssignmentLost(time_s=0.0, assignment=0))
    torn = next_line[: int(rng.integers(len(next_line)))] if rng.random() < 0.5 else b""
    path.write_bytes(b"".join(lines) + torn)


def run_search(directory: Path, shape: Shape, seed: int, n_crashes: int) -> Ledger:
    """Run the search in the order of `seed`, crashing at random steps; the live ledger at its end."""
    rng = np.random.default_rng(seed)
    system = System(directory, shape)
    for _ in range(n_crashes):
        if system.run(rng, n_steps=int(rng.integers(1, 160))):
            break
        crash(system, rng)
        system = System(directory, shape, start_s=system.clock.now_s)
    system.run(rng)
    system.finish(rng)
    return system.ledger


@cache
def undisturbed(shape: Shape) -> dict[int, tuple[TrialState, float | None]]:
    """How every trial ends when nothing happens; one order stands for all."""
    with TemporaryDirectory() as directory:
        return outcomes(run_search(Path(directory), shape, seed=10**6, n_crashes=0))


def outcomes(ledger: Ledger) -> dict[int, tuple[TrialState, float | None]]:
    return {trial.number: (trial.state, trial.figure_of_merit) for trial in ledger.trials}


def check_outcome(directory: Path, shape: Shape, ledger: Ledger) -> None:
    events, _ = read_events((directory / "journal.jsonl").read_bytes(), "journal")
    ends = Counter(event.trial for event in events if isinstance(event, ev.TrialCompleted | ev.TrialFailed))
    assert ends == dict.fromkeys(range(N_TRIALS), 1)
    assert [event.trial for event in events if isinstance(event, ev.TrialSuggested)] == list(range(N_TRIALS))
    assert len({SPACE.key(trial.point) for trial in ledger.trials}) == N_TRIALS
    states = {trial.state for trial in ledger.trials}
    assert states == {TrialState.COMPLETE, TrialState.FAILED}, "the test wants both"
    assert all(assignment.end is not None for assignment in ledger.assignments)
    for trial in ledger.trials:
        if trial.state is TrialState.COMPLETE:
            assert sorted(trial.folds) == list(range(shape.n_fold))
            for fold in trial.folds:
                weights, _ = load_weights(fold_directory(directory, trial.number, fold))
                assert np.isfinite(weights).all()
        else:
            assert trial.reason
    replayed = Ledger()
    for event in events:
        replayed.apply(event)
    assert vars(replayed) == vars(ledger)


def checkpoints_left(directory: Path) -> list[Path]:
    return sorted((directory / "trials").glob("*/*/checkpoint-*"))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_search_ends_every_trial_once_in_every_order_of_events(tmp_path, shape, seed):
    ledger = run_search(tmp_path, shape, seed, n_crashes=0)
    check_outcome(tmp_path, shape, ledger)
    assert not checkpoints_left(tmp_path)
    assert not [a for a in ledger.assignments if a.end is AssignmentEnd.LOST]
    if shape.even and shape.synchronous:
        assert outcomes(ledger) == undisturbed(shape)


@pytest.mark.parametrize("seed", range(20))
def test_a_search_that_crashes_anywhere_goes_on_and_ends_as_if_it_had_not(tmp_path, seed):
    shape = SHAPES[seed % len(SHAPES)].values[0]
    ledger = run_search(tmp_path, shape, seed, n_crashes=1 + seed % 4)
    check_outcome(tmp_path, shape, ledger)
    if shape.even and shape.synchronous:
        # Same points, same weights, same figures, to the last bit.
        assert outcomes(ledger) == undisturbed(shape)


def test_a_complete_run_that_is_started_again_is_over_at_once(tmp_path):
    shape = SHAPES[0].values[0]
    before = outcomes(run_search(tmp_path, shape, 0, n_crashes=0))
    rng = np.random.default_rng(0)
    again = System(tmp_path, shape)
    assert again.coordinator.finished_because
    again.finish(rng)
    assert outcomes(again.ledger) == before
    assert not any(team.deliveries for team in again.teams)


@pytest.mark.parametrize("seed", range(10))
def test_a_search_of_many_short_walltimes_ends_as_if_it_had_had_time(tmp_path, seed):
    shape = SHAPES[seed % len(SHAPES)].values[0]
    rng = np.random.default_rng(seed)
    now_s, n_starts, n_preempted = 0.0, 0, 0
    while True:
        system = System(tmp_path, shape, start_s=now_s, walltime_s=float(rng.integers(20, 120)))
        system.run(rng)
        checkpoints = checkpoints_left(tmp_path)
        system.finish(rng)
        now_s, n_starts = system.clock.now_s, n_starts + 1
        if system.coordinator.is_complete:
            break
        assert not system.ledger.complete
        assert "walltime" in system.ledger.preempted_because
        assert not [a for a in system.ledger.assignments if a.end is None]
        for assignment in (a for a in system.ledger.assignments if a.end is AssignmentEnd.PREEMPTED):
            n_preempted += 1
            place = fold_directory(tmp_path, assignment.trial, assignment.fold)
            if assignment.fold not in system.ledger.trials[assignment.trial].folds:
                assert not [c for c in checkpoints if c.parent == place and not c.exists()], "a checkpoint was removed"
        assert n_starts < 100, "no start comes any further"
    assert n_starts > 1
    assert n_preempted or shape.world_size == 1  # one rank has one trial at a time, and none where time is short
    assert not [a for a in system.ledger.assignments if a.end is AssignmentEnd.LOST]
    check_outcome(tmp_path, shape, system.ledger)
    if shape.even and shape.synchronous:
        assert outcomes(system.ledger) == undisturbed(shape)
