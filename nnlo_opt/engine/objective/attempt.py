"""State of one rank during one attempt at a trial of an objective."""

from collections.abc import Mapping
from typing import Any

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.objective_messages import CallObjective, ObjectiveArrived, ObjectiveProceed
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.engine.objective.checkpoint import Save, TrialCheckpoint
from nnlo_opt.engine.objective.epochs import EpochCount
from nnlo_opt.engine.objective.values import epoch_reported, finished_fold


class Attempt:
    """One attempt at a trial: what this rank has reported, and received from the coordinator and other ranks.

    Args:
        order: order of the coordinator; on ranks other than block rank 0, which do not report, of block rank 0.
        saved: the save to resume from; None: from the beginning.
        folder: folder of the attempt.
        comparison: rules by which trials are compared.
        clock: measures its duration.
        checkpoint: further fields of its `TrialCheckpoint`.
    """

    def __init__(
        self,
        order: msg.RunFold | CallObjective,
        saved: Save | None,
        folder: SafePath,
        comparison: Comparison,
        clock: Clock,
        **checkpoint: Any,
    ) -> None:
        self.order, self._comparison, self._clock = order, comparison, clock
        #: its start time, minus the training time before its save
        self._began_s = clock.monotonic_s() - (0.0 if saved is None else saved.train_s)
        count = EpochCount(order.first if saved is None else saved.first)
        #: saves of the trial
        self.checkpoint = TrialCheckpoint(
            _directory=folder, _last=saved, count=count, _train_s=lambda: self.train_s, **checkpoint
        )
        #: last report; None before the first
        self.reported: msg.EpochReported | None = None
        #: types of the orders received from the coordinator about it
        self.heard = set[type[msg.Message]]()
        #: message that ends it after `goes_on` has returned False; None before
        self.end: msg.Message | None = None
        #: failure on any rank of its block; None without one
        self.failure: msg.FoldFailed | None = None
        #: block rank 0's answer to the last arrival of this rank
        self.proceed: ObjectiveProceed | None = None
        #: waiting rank -> its collective call (at block rank 0 only)
        self.arrived: dict[int, ObjectiveArrived] = {}
        #: ranks that have left the objective (at block rank 0 only)
        self.returned = set[int]()

    @property
    def train_s(self) -> float:
        """Seconds that the trial has taken so far."""
        return self._clock.monotonic_s() - self._began_s

    def report(self, epoch: Any, value: Any, figures: Mapping[str, Any]) -> msg.EpochReported:
        """Record the report of an epoch and return it; TrialError unless all values are numbers."""
        assert isinstance(self.order, msg.RunFold)
        reported = epoch_reported(self.order, self._comparison, self.checkpoint.count, epoch, value, figures)
        n_saved = self.checkpoint.n_epochs
        self.reported = reported.replaced(checkpointed=n_saved == reported.epoch, can_pause=n_saved > 0)
        return self.reported

    def goes_on(self) -> bool:
        """Return False if an order of the coordinator ends it with its last report."""
        assert self.reported is not None
        if msg.StopFold in self.heard or (msg.PreemptFold in self.heard and self.reported.checkpointed):
            self.end = msg.FoldStopped(assignment=self.order.assignment)
        elif msg.PauseFold in self.heard:
            self.end = msg.FoldPaused(assignment=self.order.assignment, epoch=self.reported.epoch)
        return self.end is None

    def finished(self, value: Any) -> msg.FoldFinished:
        """Return its result; TrialError unless all values are numbers."""
        last, number = self.reported, self.order.assignment
        n_epochs = self.checkpoint.n_epochs if last is None else last.epoch
        return finished_fold(self._comparison, last, number, value, n_epochs=n_epochs, train_s=self.train_s)
