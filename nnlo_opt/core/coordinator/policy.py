"""Pruning policy: verdicts of the pruner and of the race between folds.

The state machine asks the policy, which never acts. It learns from the ledger only: at the start from its trials, then
from every applied event.
"""

from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.search.curves import Reports
from nnlo_opt.core.search.pruners import make_pruner
from nnlo_opt.core.search.pruning import Decision, Pruner
from nnlo_opt.core.search.racing import SIGNIFICANCE, race
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger, mean_and_std
from nnlo_opt.core.trials.trial import Trial


class Policy:
    """Judges reports, and decides which folds a trial may run and which paused trial is promoted next.

    Args:
        plan: plan of the search, including pruning.
        ledger: trials so far; read-only, later events come by `take`.
        pruner: custom pruner; None for the one in the plan.
    """

    def __init__(self, plan: SearchPlan, ledger: Ledger, pruner: Pruner | None = None) -> None:
        self._plan = plan
        self._ledger = ledger
        #: None if epochs are not judged
        self.pruner = pruner or (None if plan.pruning is None else make_pruner(plan.pruning))
        #: epochs, folds, rungs and ends of the trials in the ledger, for the pruner
        self.reports = Reports(plan.n_fold, plan.direction)
        for trial in ledger.trials:
            for fold, curve in trial.reports.items():
                for epoch, figure in curve.items():
                    self.reports.add(trial.number, fold, epoch, figure)
            for fold, result in trial.folds.items():
                self.reports.finish(trial.number, fold, result.figure_of_merit)
            if trial.n_rungs:
                self.reports.promote(trial.number, trial.n_rungs)
            if trial.state.ended:
                self.reports.end(trial.number)

    def take(self, event: ev.Event) -> None:
        """Process an event that was just applied to the ledger."""
        match event:
            case ev.EpochEnded() if event.figure_of_merit is not None:
                assignment = self._ledger.assignments[event.assignment]
                self.reports.add(assignment.trial, assignment.fold, event.epoch, event.figure_of_merit)
            case ev.AssignmentFinished():
                assignment = self._ledger.assignments[event.assignment]
                self.reports.finish(assignment.trial, assignment.fold, event.figure_of_merit)
            case ev.TrialPromoted():
                self.reports.promote(event.trial, event.n_rungs)
            case ev.TrialCompleted() | ev.TrialFailed() | ev.TrialPruned():
                self.reports.end(event.trial)

    # ------------------------------------------------------------ epochs

    def judge(self, trial: int, fold: int, epoch: int) -> Decision:
        """Return the verdict about a trial that has just reported."""
        assert self.pruner is not None
        return self.pruner.decide(trial, fold, epoch, self.reports)

    def pause_epochs(self, trial: int) -> list[int]:
        """Return the epochs after which the trial may be paused."""
        return [] if self.pruner is None else list(self.pruner.pause_epochs(trial, self.reports))

    def folds_to_run(self, trial: Trial) -> list[int]:
        """Return the folds that have neither finished nor are waiting at a rung, in order."""
        rung = next(iter(self.pause_epochs(trial.number)), None)
        return [
            fold
            for fold in range(self._plan.n_fold)
            if fold not in trial.folds and (rung is None or self.reports.curve(trial.number, fold).last_epoch < rung)
        ]

    # ------------------------------------------------------------ paused trials

    def promotion(self, *, alone: bool) -> int | None:
        """Return the paused trial to promote next; None if there is none.

        Args:
            alone: False if the search also decides (`freeze-thaw`), so that the pruner only has its turns.
        """
        if self.pruner is None or not (alone or self.pruner.has_turn(self.reports)):
            return None
        return self.pruner.promotion(self.reports)

    def rungs_behind(self, trial: Trial) -> int:
        """Return the rungs that a paused trial has passed once it resumes: one more, and all that it has overrun.

        User code may stop some epochs later than it should.
        """
        reached = min(self.reports.curve(trial.number, fold).last_epoch for fold in range(self._plan.n_fold))
        return trial.n_rungs + 1 + sum(rung <= reached for rung in self.pause_epochs(trial.number)[1:])

    def last_resort(self) -> int | None:
        """Return the paused trial to resume when nothing else can run, so that the search gets a result."""
        if self.pruner is None or self._ledger.best(self._plan.direction) is not None:
            return None
        return self.pruner.last_resort(self.reports)

    def why_left(self, trial: int) -> str:
        """Return why a paused trial was never promoted."""
        return f"not promoted: {self.place(trial, self.pause_epochs(trial)[0])}"

    def place(self, trial: int, epoch: int) -> str:
        """Describe the rank of a trial among all at its rung after `epoch` epochs."""
        assert self.pruner is not None
        return self.pruner.place(trial, epoch, self.reports)

    def goal(self, trial: int, n_rungs: int) -> str:
        """Describe how far a trial trains after `n_rungs` rungs, and its rank at the last of them."""
        assert self.pruner is not None
        rungs = self.pruner.rungs(trial)
        goal = f"to epoch {rungs[n_rungs]}" if n_rungs < len(rungs) else "to its last epoch"
        return f"{goal} ({self.place(trial, rungs[n_rungs - 1])})"

    # ------------------------------------------------------------ folds

    def why_worse(self, trial: Trial) -> str:
        """Return why the finished folds show that the trial is worse than the best one; empty if they do not."""
        best = self._ledger.best(self._plan.direction)
        if not self._plan.fold_racing or best is None:
            return ""
        figures = {fold: result.figure_of_merit for fold, result in trial.folds.items()}
        of_best = {fold: result.figure_of_merit for fold, result in best.folds.items()}
        chance = race(figures, of_best, self._plan.n_fold, maximise=self._plan.direction == "max")
        if chance >= SIGNIFICANCE:
            return ""
        mean, _ = mean_and_std(list(figures.values()))
        mean_of_best, _ = mean_and_std([of_best[fold] for fold in figures])
        return (
            f"after {len(figures)} of {self._plan.n_fold} folds its mean {mean:.6g} is worse than the "
            f"{mean_of_best:.6g} of trial {best.number} on the same folds (paired t-test, p = {chance:.2g})"
        )
