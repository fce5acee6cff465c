"""Conformance tests of pruners."""

import copy
from typing import ClassVar

import numpy as np
import pytest

from nnlo_opt.core.search.curves import Reports
from nnlo_opt.core.search.pruning import Pruner, Verdict

N_TRIALS, N_EPOCHS = 24, 12


def curves(seed: int) -> np.ndarray:
    """Return noisy decreasing learning curves, (N_TRIALS, N_EPOCHS) float64; the first trial is by far the best."""
    rng = np.random.default_rng(seed)
    ends, rates = rng.uniform(0.3, 1.0, N_TRIALS), rng.uniform(0.2, 1.0, N_TRIALS)
    ends[0] = -1.0
    epochs = np.arange(1, N_EPOCHS + 1)
    noise = 0.02 * rng.normal(size=(N_TRIALS, N_EPOCHS))
    return ends[:, None] + np.exp(-rates[:, None] * epochs) + noise


class World:
    """Simulated trials that run one after another, until the pruner stops or pauses them."""

    def __init__(self, pruner: Pruner, values: np.ndarray, direction: str = "min") -> None:
        self.pruner = pruner
        self.values = values
        self.reports = Reports(1, direction)
        #: trial -> epochs done
        self.epochs = dict.fromkeys(range(len(values)), 0)
        #: trial -> reason of its end
        self.ends: dict[int, str] = {}

    def run(self, trial: int) -> None:
        """Train the trial until it ends or is paused."""
        while self.epochs[trial] < self.values.shape[1]:
            self.epochs[trial] += 1
            epoch = self.epochs[trial]
            self.reports.add(trial, 0, epoch, float(self.values[trial, epoch - 1]))
            if epoch == self.values.shape[1]:
                break
            decision = self.pruner.decide(trial, 0, epoch, self.reports)
            if decision.n_rungs > self.reports.n_rungs(trial):
                self.reports.promote(trial, decision.n_rungs)
            if decision.verdict is Verdict.PAUSE:
                assert epoch in self.pruner.pause_epochs(trial, self.reports)
                return
            if decision.verdict is Verdict.PRUNE:
                assert decision.reason
                self.end(trial, decision.reason)
                return
        self.reports.finish(trial, 0, float(self.values[trial, -1]))
        self.end(trial, "complete")

    def end(self, trial: int, why: str) -> None:
        self.ends[trial] = why
        self.reports.end(trial)

    def run_all(self) -> None:
        """Run all trials; promotions precede new trials."""
        for trial in range(len(self.values)):
            self.run(trial)
            while (promoted := self.pruner.promotion(self.reports)) is not None:
                assert promoted not in self.ends
                self.reports.promote(promoted, self.reports.n_rungs(promoted) + 1)
                self.run(promoted)


class CurvePrunerConformance:
    """Test class to inherit from for a custom pruner that judges each curve by itself; define `make`.

    >>> class TestMine(CurvePrunerConformance):
    ...     @staticmethod
    ...     def make():
    ...         return MyPruner()
    """

    @staticmethod
    def make() -> Pruner:
        """Return the pruner under test, for trainings of N_EPOCHS epochs."""
        raise NotImplementedError("A suite must have a static method `make`, as its docstring shows.")

    def test_decisions_are_functions_of_the_reports_alone(self) -> None:
        world = World(self.make(), curves(7))
        for trial in range(N_TRIALS):
            world.run(trial)
            for reports in (world.reports, copy.deepcopy(world.reports)):
                for pruner in (world.pruner, self.make()):
                    said = [pruner.decide(t, 0, world.epochs[t], reports) for t in range(trial + 1)]
                    assert said == [world.pruner.decide(t, 0, world.epochs[t], world.reports) for t in range(trial + 1)]
                    assert pruner.promotion(reports) == world.pruner.promotion(world.reports)

    def test_the_direction_mirrors(self) -> None:
        low, high = World(self.make(), curves(3)), World(self.make(), -curves(3), "max")
        low.run_all()
        high.run_all()
        assert low.epochs == high.epochs

    def test_what_has_ended_is_not_promoted(self) -> None:
        world = World(self.make(), curves(2))
        for trial in range(N_TRIALS):
            world.run(trial)
        for trial in range(N_TRIALS):
            world.reports.end(trial)
        assert world.pruner.promotion(world.reports) is None
        assert world.pruner.last_resort(world.reports) is None


class PrunerConformance(CurvePrunerConformance):
    """Test class to inherit from for a custom pruner that compares trials; define `make`.

    >>> class TestMine(PrunerConformance):
    ...     @staticmethod
    ...     def make():
    ...         return MyPruner()
    """

    #: set to False if the pruner stops so few trials that more than 0.8 of all epochs are trained
    saves_much: ClassVar[bool] = True

    @pytest.mark.parametrize("seed", range(5))
    def test_the_best_trial_is_trained_to_its_end_and_others_are_not(self, seed: int) -> None:
        world = World(self.make(), curves(seed))
        world.run_all()
        last = world.pruner.last_resort(world.reports)
        while "complete" not in world.ends.values() and last is not None:
            world.reports.promote(last, world.reports.n_rungs(last) + 1)
            world.run(last)
            last = world.pruner.last_resort(world.reports)
        assert world.ends.get(0) == "complete"
        assert sum(world.epochs.values()) < (0.8 if self.saves_much else 1.0) * world.values.size

    def test_a_trial_alone_is_never_pruned(self) -> None:
        world = World(self.make(), curves(1)[:1])
        world.run_all()
        assert world.ends.get(0, "complete") == "complete"

    def test_equal_trials_are_not_all_given_up(self) -> None:
        world = World(self.make(), np.ones((N_TRIALS, N_EPOCHS)))
        world.run_all()
        assert "complete" in world.ends.values() or world.pruner.last_resort(world.reports) is not None
