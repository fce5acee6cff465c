"""What one assignment is to do, and when it has done it."""

from dataclasses import dataclass

from nnlo_opt.training.history import FoldHistory
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.trials.figure import best_epoch
from nnlo_opt.trials.objectives import Comparison
from nnlo_opt.update_rules.staleness import StalenessPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """What one assignment is to do."""

    n_workers: int
    epochs: int
    #: workers wait for each other
    synchronous: bool = False
    #: workers train a whole epoch together before they push
    together: bool = False
    staleness: StalenessPolicy = StalenessPolicy()  # noqa: RUF009  (frozen)
    checkpoint_interval: int = 1
    early_stopping: EarlyStopping | None = None
    target_metric: TargetMetric | None = None
    #: worker 1 has callbacks of the user
    calls_back: bool = False
    #: what the trial is compared by
    comparison: Comparison = Comparison()  # noqa: RUF009  (frozen)
    #: the coordinator says after each epoch whether there is another
    waits_for_decision: bool = False
    #: epochs after which it may be paused, and so has a checkpoint
    pause_epochs: frozenset[int] = frozenset()
    #: the workers can be brought to a fence in the middle of an epoch; not synchronously in groups, each of which may
    #: have a worker that has passed over its shard, which only its sub-master knows
    can_stop_mid_epoch: bool = True

    def checkpoint_due(self, epoch: int) -> bool:
        """Whether `epoch` has a checkpoint, other than for being the last."""
        return epoch % self.checkpoint_interval == 0 or epoch in self.pause_epochs

    def reason_to_end(self, history: FoldHistory) -> str:
        """Why the fold is trained, after at least one epoch; empty while it is not."""
        target, stopping = self.target_metric, self.early_stopping
        if target and target.reached(history.values(target.metric)[-1]):
            return f"{target.metric} is past its target of {target.value:g}"
        if stopping and stopping.reached(history.values(stopping.metric)):
            return f"{stopping.metric} has not improved for {stopping.patience} epochs"
        return f"{history.n_epochs} epochs are done" if history.n_epochs >= self.epochs else ""

    def best_index(self, history: FoldHistory) -> int | None:
        """Index of the epoch whose weights are kept, as far as is known; None: those of the last are."""
        stopping = self.early_stopping
        if self.comparison.epoch == "best":
            return best_epoch(self.comparison.objectives[0], history.epochs)
        return stopping.best_index(history.values(stopping.metric)) if stopping else None


def fold_plan(options: TrainingOptions, n_workers: int) -> FoldPlan:
    """The plan of one assignment from the options of its trial."""
    return FoldPlan(
        n_workers=n_workers,
        epochs=options.epochs,
        synchronous=options.waits,
        together=options.mode == "allreduce",
        staleness=StalenessPolicy.parse(options.staleness),
        checkpoint_interval=options.checkpoint_interval,
        early_stopping=EarlyStopping.parse(options.early_stopping) if options.early_stopping else None,
        target_metric=TargetMetric.parse(options.target_metric) if options.target_metric else None,
    )
