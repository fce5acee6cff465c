"""A search in one process: coordinator, journal, search, masters and workers, stepped in a seeded order.

Nothing waits and nothing sleeps. To drop a `System` is a crash of everything that is in memory.
"""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nnlo_opt.app.run.start.inbox import Inbox
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.coordinator import Coordinator, CoordinatorSetup
from nnlo_opt.core.coordinator.instructions import Budget, SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.data.folds import make_folds, single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.checkpoint import fold_directory, load_weights
from nnlo_opt.core.trials.journal import Journal, read_events
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import TrialState
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.space import Categorical, Integer, Real, Space
from tests.helpers.loopback_team import LoopbackTeam, linear_tasks
from tests.helpers.manual_clock import ManualClock
from tests.helpers.memory_source import linear_source
from tests.helpers.steps import check

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
    n_trials: int = N_TRIALS

    @property
    def topology(self) -> Topology:
        return Topology.plan(self.world_size, self.block_size, self.n_fold)

    @property
    def plan(self) -> SearchPlan:
        return SearchPlan(num_iterations=self.n_trials, n_fold=self.n_fold)

    @property
    def options(self) -> TrainingOptions:
        return TrainingOptions(epochs=2, optimizer="sgd", synchronous=self.synchronous)


class System:
    """Everything that is in memory while a run goes on: one start of it."""

    #: of the search: which points, and so which faults, the trials have
    space = SPACE
    seed = 3

    def __init__(self, directory: Path, shape: Shape, start_s: float = 0.0, walltime_s: float | None = None) -> None:
        topology = shape.topology
        self.clock = ManualClock(start_s)
        self.journal, self.ledger = self.open_run(directory)
        size = {"n_ranks": topology.world_size, "n_blocks": topology.n_blocks}
        started = ev.RunStarted(time_s=start_s, unix_s=start_s, identity={}, **size)
        self.ledger.apply(started)
        self.journal.append([started])
        search = InlineSearch()
        search.start("random", self.space, self.seed, {})
        network = LoopbackNetwork(max(2, topology.world_size))
        folds = make_folds(shape.n_fold, n_samples=24, seed=0) if shape.n_fold > 1 else [single_fold(18, 6)]
        tasks = linear_tasks(SOURCE, folds, shape.options)
        self.teams = [
            LoopbackTeam(network.end(team.master_rank), directory, shape.options, tasks, team.n_workers)
            for team in topology.teams
        ]
        budget = Budget(deadline_s=None if walltime_s is None else start_s + walltime_s)
        self.state = CoordinatorState(replace(shape.plan, budget=budget), topology, self.ledger)
        self.inbox = self.open_inbox(directory)
        own = {"state": self.state, "journal": self.journal, "clock": self.clock}
        setup = CoordinatorSetup(**own, ranks=network.end(0), search=search)
        if self.inbox is not None:
            setup = setup.replaced(requests=self.inbox, observers=[self.inbox])
        self.coordinator = Coordinator(setup)
        self.coordinator.begin()
        check(self.state)

    def open_run(self, directory: Path) -> tuple[Journal, Ledger]:
        """The run in `directory`, to be begun or gone on with."""
        journal = Journal(directory / "journal.jsonl")
        return journal, Ledger(journal.events)

    def open_inbox(self, directory: Path) -> Inbox | None:
        """What users ask of the run; None if nobody does."""
        return None

    def step(self, rng: np.random.Generator) -> bool:
        """Let one of those who have something to do take one message in; -> whether there was one."""
        actors = [self.coordinator.step, *(lambda team=team: team.step(rng) for team in self.teams)]
        for i in rng.permutation(len(actors)):
            if actors[i]():
                self.clock.advance(1.0)
                check(self.state)
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


def outcomes(ledger: Ledger) -> dict[int, tuple[TrialState, float | None]]:
    return {trial.number: (trial.state, trial.figure_of_merit) for trial in ledger.trials}


def check_outcome(directory: Path, shape: Shape, ledger: Ledger) -> None:
    events, _ = read_events((directory / "journal.jsonl").read_bytes(), "journal")
    ends = Counter(event.trial for event in events if isinstance(event, ev.TrialCompleted | ev.TrialFailed))
    assert ends == dict.fromkeys(range(shape.n_trials), 1)
    assert [event.trial for event in events if isinstance(event, ev.TrialSuggested)] == list(range(shape.n_trials))
    assert len({SPACE.key(trial.point) for trial in ledger.trials}) == shape.n_trials
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
    assert vars(Ledger(events)) == vars(ledger)
