"""One attempt at a trial that code of a user computes, as one rank knows it; made anew for each."""

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
    """Attempt at a trial, as one rank knows it: what it has reported, and heard of the coordinator and other ranks.

    Args:
        order: of the coordinator, or of block rank 0 to the other ranks, which report nothing.
        saved: save from which it goes on; None: from the beginning.
        folder: of its fold.
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
        #: time of its beginning, less the seconds before its save
        self._began_s = clock.monotonic_s() - (0.0 if saved is None else saved.train_s)
        count = EpochCount(order.first if saved is None else saved.first)
        #: saves of the trial
        self.checkpoint = TrialCheckpoint(
            _directory=folder, _last=saved, count=count, _train_s=lambda: self.train_s, **checkpoint
        )
        #: last report; None before the first
        self.reported: msg.EpochReported | None = None
        #: orders about it that the coordinator has sent
        self.heard = set[type[msg.Message]]()
        #: message by which it ends after `goes_on` has returned False; None before
        self.end: msg.Message | None = None
        #: failure on any rank of its block; None while it can succeed
        self.failure: msg.FoldFailed | None = None
        #: block rank 0's answer to the last arrival of this rank
        self.proceed: ObjectiveProceed | None = None
        #: waiting rank -> its collective call (at block rank 0 only)
        self.arrived: dict[int, ObjectiveArrived] = {}
        #: ranks that have left the objective (at block rank 0 only)
        self.returned = set[int]()

    @property
    def train_s(self) -> float:
        """Seconds that the trial has taken by now."""
        return self._clock.monotonic_s() - self._began_s

    def report(self, epoch: Any, value: Any, figures: Mapping[str, Any]) -> msg.EpochReported:
        """Return the report of an epoch, which is the last one from now on; TrialError unless it is of numbers."""
        assert isinstance(self.order, msg.RunFold)
        reported = epoch_reported(self.order, self._comparison, self.checkpoint.count, epoch, value, figures)
        n_saved = self.checkpoint.n_epochs
        self.reported = reported.replaced(checkpointed=n_saved == reported.epoch, can_pause=n_saved > 0)
        return self.reported

    def goes_on(self) -> bool:
        """Return False if it has to end with its last report, as orders say that have come."""
        assert self.reported is not None
        if msg.StopFold in self.heard or (msg.PreemptFold in self.heard and self.reported.checkpointed):
            self.end = msg.FoldStopped(assignment=self.order.assignment)
        elif msg.PauseFold in self.heard:
            self.end = msg.FoldPaused(assignment=self.order.assignment, epoch=self.reported.epoch)
        return self.end is None

    def finished(self, value: Any) -> msg.FoldFinished:
        """Return its result; TrialError unless `value` is of numbers."""
        last, number = self.reported, self.order.assignment
        n_epochs = self.checkpoint.n_epochs if last is None else last.epoch
        return finished_fold(self._comparison, last, number, value, n_epochs=n_epochs, train_s=self.train_s)
