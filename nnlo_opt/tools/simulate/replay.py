"""Workload that replays the complete trials of an earlier run."""

from pathlib import Path
from statistics import median

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Trial, TrialState
from nnlo_opt.tools.simulate.workload import SimulatedObjective, Workload


class Replay(Workload, kw_only=True):  # for mypy, which does not see that all are
    """Results of trials, in the order in which their points are suggested."""

    trials: list[Trial]

    @classmethod
    def of(cls, run: Path, ledger: Ledger) -> "Replay":
        """Return the complete trials of a run; ConfigurationError if it has none, or no search space."""
        trials = [trial for trial in ledger.trials if trial.state is TrialState.COMPLETE]
        space, best = ledger.identity.space, ledger.best()
        if space is None or best is None:
            raise ConfigurationError(
                f"`--run` must name a search with complete trials. Received: `{run}`, which has none; name another."
            )
        starts_s = [
            assignment.started_at_s - assignment.assigned_at_s
            for trial in trials
            for assignment in trial.assignments
            if assignment.started_at_s is not None
        ]

        def unknown(point: Point) -> float:
            raise AssertionError(f"the figures of {point} are known by the number of the trial")

        return cls(
            # Without the constraint, which all points satisfy: it is code given by a journal.
            objective=SimulatedObjective(
                name=f"run {run.name}", function=unknown, space=Space(space.parameters), optimum=best.figure_of_merit
            ),
            durations=lambda point, rng: unknown(point),
            startup_s=median(starts_s),
            trials=trials,
        )

    @property
    def points(self) -> list[Point]:
        """Points of the trials, in order."""
        return [trial.point for trial in self.trials]

    @property
    def n_epochs_most(self) -> int:
        """Epochs of the longest fold."""
        return max(result.n_epochs for trial in self.trials for result in trial.folds.values())

    def train_s(self, order: msg.RunFold, rng: np.random.Generator) -> float:
        return self.trials[order.trial].folds[order.fold].train_s

    def values(self, order: msg.RunFold) -> list[float]:
        trial = self.trials[order.trial]
        result, curve = trial.folds[order.fold], trial.reports.get(order.fold, {})
        # An unreported epoch has the figure of the previous one; the last epoch has the result.
        figures = [curve.get(epoch) for epoch in range(1, result.n_epochs)]
        known = next((figure for figure in figures if figure is not None), result.figure_of_merit)
        values = [known := known if figure is None else figure for figure in figures]
        return [*values, result.figure_of_merit]
