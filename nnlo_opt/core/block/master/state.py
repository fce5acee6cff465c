"""Decisions of a master about one assignment: pure, synchronous, without arrays.

`MasterState.handle` takes the messages of the workers and returns instructions for `master.master`, which owns the
vectors. An assignment goes through these phases:

    STARTING     workers build the model and load their shards
    TRAINING     updates arrive; asynchronously each is applied at once, synchronously round by round; or workers apply
                 theirs themselves, and report once they have to stop
    FENCING      the epoch is full: each worker's next update is its last, then it hands in its model state; one that
                 overlaps has another update computed by then, which it pushes before
    VALIDATING   every worker validates the same version on its share
    MEASURING    worker 1 computes the metrics that are not means from the states of all workers, if there are any
    JUDGING      the user's figure of merit, if there is one, is called on worker 1 when all epochs are trained
    CALLING_BACK the user's callbacks, if there are any, run on worker 1 before it begins to train and after each epoch
    AWAITING     the epoch is reported, and the coordinator's decision about the trial is awaited
    HALTING      allreduce: the assignment is stopped; the workers finish the current step together, as all must take
                 part
    OVER         finished, failed, paused or stopped

A preempted assignment ends at a fence within an epoch: from TRAINING to FENCING as soon as no worker waits for others,
and from there to OVER. It resumes within that epoch.

An epoch is full when the workers together have trained as many samples as the training set has. Synchronously every
worker passes over its shard exactly once an epoch; a worker that is through waits at the fence.
"""

import math
from collections.abc import Callable, Mapping, Set
from enum import Enum, auto
from typing import Any

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.block.exchange.rounds import SynchronousRounds
from nnlo_opt.core.block.master import instructions as ins
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.training.history import FoldHistory
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.figure import best_epoch, figure_of_merit
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.core.update_rules.staleness import StalenessStatistics


class FoldPlan(Frozen):
    """Plan of one assignment: length, checkpoints, stopping rules."""

    order: msg.RunFold
    n_workers: int
    #: options of the trial
    options: TrainingOptions
    #: how trials are compared
    comparison: Comparison = Comparison()
    #: True if a fence within an epoch is possible; not for synchronous groups, which may have a worker that has
    #: finished its shard, known only to its sub-master
    can_stop_mid_epoch: bool = True

    def checkpoint_due(self, epoch: int) -> bool:
        """Return True if `epoch` needs a checkpoint even if it is not the last."""
        return epoch % self.options.checkpoint_interval == 0 or epoch in self.order.pause_epochs

    def reason_to_end(self, history: FoldHistory) -> str:
        """Return why the fold has finished, after at least one epoch; "" if it has not."""
        target, stopping = self.options.target, self.options.stopping
        if target and target.reached(history.values(target.metric)[-1]):
            return f"{target.metric} is past its target of {target.value:g} (`{spelled('target_metric')}`)"
        if stopping and stopping.reached(values := history.values(stopping.metric)):
            return f"{stopping.why(values)} (`{spelled('early_stopping', stopping)}`)"
        return "all epochs are done" if history.n_epochs >= self.options.epochs else ""

    def best_index(self, history: FoldHistory) -> int | None:
        """Return the index of the best epoch so far, whose weights are kept; None if the last weights are kept."""
        stopping = self.options.stopping
        if self.comparison.epoch == "best":
            return best_epoch(self.comparison.objectives[0], history.epochs)
        return stopping.best_index(history.values(stopping.metric)) if stopping else None


class Phase(Enum):
    """Phases of an assignment; see the top of the module."""

    STARTING = auto()
    TRAINING = auto()
    FENCING = auto()
    VALIDATING = auto()
    MEASURING = auto()
    CALLING_BACK = auto()
    JUDGING = auto()
    AWAITING = auto()
    HALTING = auto()
    OVER = auto()


STOPPED_BY_CALLBACK = "a callback has stopped the training"
#: phases in which workers may be replaced, if they do not wait for each other
REGROUPING = frozenset({Phase.STARTING, Phase.TRAINING, Phase.FENCING, Phase.VALIDATING, Phase.MEASURING})


class MasterState:
    """One assignment, from the first ready worker to its end."""

    def __init__(
        self,
        plan: FoldPlan,
        history: FoldHistory | None = None,
        staleness: StalenessStatistics | None = None,
        n_samples: int = 0,
        version: int = 0,
        *,
        is_stopped: bool = False,
    ) -> None:
        """Begin afresh, or at the fence of a checkpoint (`history` of the epochs done).

        `is_stopped`: a callback has ended the training there.
        """
        self.plan = plan
        #: metrics of the epochs done
        self.history = history or FoldHistory()
        #: number of updates applied to the central weights
        self.version = version
        #: training samples in all updates so far, over all epochs
        self.n_samples = n_samples
        self.phase = Phase.STARTING
        #: staleness of all updates
        self.staleness = staleness or StalenessStatistics()
        self._policy = plan.options.staleness_policy
        #: size of the training set; 0 before the first worker is ready
        self.n_train = 0
        self.has_validation = False
        #: all worker numbers, from 1
        self.workers: tuple[int, ...] = tuple(range(1, plan.n_workers + 1))
        #: workers that have not answered in the current phase
        self.waiting_for: set[int] = set(self.workers)
        #: workers that were sent weights to train on and have not yet pushed
        self.computing: set[int] = set()
        #: workers that were sent a fence and have not yet reached it
        self.fenced: set[int] = set()
        #: synchronous: rounds of the current epoch
        self.rounds = SynchronousRounds(self.workers)
        #: True if the last fence writes a checkpoint; before the first fence, all training is in a checkpoint
        self.checkpoints = True
        #: True if the assignment ends at the next fence that writes a checkpoint
        self.preempting = False
        #: samples of the current epoch in the checkpoint it was resumed from; 0 for a whole epoch
        self.n_samples_inside = 0
        #: True if new workers start within a training, because ranks have died
        self._is_midway = False
        #: True if worker 1 has callbacks of the user
        self.calls_back = False
        #: True once they have been called on this worker
        self._has_called_back = False
        #: True if they have ended the training
        self.is_stopped = is_stopped
        #: metrics passed to the callbacks, None at their beginning; why it was the last epoch, or ""
        self._called_with: tuple[dict[str, float] | None, str] = None, ""
        #: result of the fold without its figure of merit; None until it has finished
        self._finished: ins.FinishFold | None = None

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.history.n_epochs

    def resume_epoch(self, n_samples_inside: int, under_way: Mapping[str, Any]) -> None:
        """Resume within an epoch, with the history of its part `under_way`."""
        self.n_samples_inside = n_samples_inside
        self.history.resume_epoch(under_way)

    def begin_epoch_anew(self) -> None:
        """Discard the part of the epoch done by earlier workers, whose passes these workers cannot continue."""
        if self.plan.options.waits:
            self.n_samples -= self.n_samples_inside
            self.history.resume_epoch({})

    def handle(self, worker: int, message: msg.Message) -> list[ins.Instruction]:
        """Handle a message of `worker`; ProtocolError, without a change, if the phase does not allow it."""
        phases, take_in = _HANDLERS.get(type(message), (frozenset(), None))
        if take_in is None or self.phase not in phases:
            raise ProtocolError(f"Worker {worker} sent {type(message).__name__} in phase {self.phase.name}.")
        return take_in(self, worker, message)

    def stop(self) -> list[ins.Instruction]:
        """End the assignment without a result."""
        if self.plan.options.rule.averages_every_batch and self.phase is Phase.TRAINING:
            self.phase = Phase.HALTING
            return [ins.SendHalt(worker=self.workers[-1])]
        if self.phase is Phase.HALTING:
            return []
        return self._stopped()

    def go_on(self) -> list[ins.Instruction]:
        """Begin the next epoch, as decided by the coordinator."""
        self._heard()
        return self._begin()

    def pause(self) -> list[ins.Instruction]:
        """End the assignment, to be resumed later, as decided by the coordinator."""
        self._heard()
        return self._end(msg.FoldPaused(assignment=self.plan.order.assignment, epoch=self.epoch))

    @property
    def can_regroup(self) -> bool:
        """True if new workers can continue from the current central weights; else only from the last checkpoint."""
        return not self.plan.options.waits and self.phase in REGROUPING

    def regroup(self, n_workers: int, n_samples: int | None = None, version: int | None = None) -> None:
        """Continue the training with `n_workers` new workers; updates that were not pushed are lost.

        A pending fence is dropped: the epoch is full, so the first update of each worker leads to it again.

        Args:
            n_samples: training samples so far, if earlier workers updated shared memory; else None.
            version: updates so far, in that case.
        """
        if not self.can_regroup:
            raise ProtocolError(f"New workers cannot continue in phase {self.phase.name}.")
        self.n_samples = self.n_samples if n_samples is None else n_samples
        self.version = self.version if version is None else version
        self.plan = self.plan.replaced(n_workers=n_workers)
        self._is_midway = self._is_midway or self.phase is not Phase.STARTING
        self._has_called_back = False
        self.phase = Phase.STARTING
        self.workers = tuple(range(1, n_workers + 1))
        self.waiting_for = set(self.workers)
        self.computing.clear()
        self.fenced.clear()
        self.history.forget_validation()

    def _heard(self) -> None:
        if self.phase is not Phase.AWAITING:
            raise ProtocolError(f"The coordinator answered a report in phase {self.phase.name}.")

    def preempt(self) -> list[ins.Instruction]:
        """End the assignment without a result, but with a checkpoint: at once before it has begun, else at a fence.

        If the workers already are at a fence without a checkpoint, the next fence is used.
        """
        self.preempting = True
        if self.phase is Phase.AWAITING and not self.checkpoints:
            return self._begin_epoch()  # no decision will come
        if self.phase is Phase.TRAINING and self.plan.options.rule.averages_every_batch:
            return [ins.SendHalt(worker=self.workers[-1])]  # all end the epoch with the current step
        is_at_rest = self.phase is Phase.AWAITING or (self.phase is Phase.STARTING and not self._is_midway)
        return self.stop() if is_at_rest else []

    # ------------------------------------------------------------ starting

    def _ready(self, worker: int, message: msg.WorkerReady) -> list[ins.Instruction]:
        self._answered(worker)
        self.n_train = message.n_train
        self.has_validation = message.has_validation
        self.calls_back = self.calls_back or message.calls_back
        if self.waiting_for:
            return []
        if self._is_midway:
            return self._begin()
        out: list[ins.Instruction] = [ins.Initialise(epoch=self.epoch)]
        if self.epoch and not self.n_samples_inside:
            reason = self.plan.reason_to_end(self.history)
            if reason := reason or STOPPED_BY_CALLBACK * (self.is_stopped and self.calls_back):
                return [*out, *self._finish(reason)]
        if self.epoch and self.plan.order.waits_for_decision:
            # The coordinator may have died before receiving the report or sending its decision.
            self.phase = Phase.AWAITING
            metrics = self.history.epochs[self.epoch - 1]
            return [*out, ins.ReportEpoch(epoch=self.epoch, metrics=metrics, checkpoint=False, waits=True)]
        return [*out, *self._begin()]

    def _begin(self) -> list[ins.Instruction]:
        """Begin an epoch, after callbacks that have not been called on this worker."""
        is_first = self.calls_back and not self._has_called_back
        return self._call_back(None, "") if is_first else self._begin_epoch()

    def _begin_epoch(self) -> list[ins.Instruction]:
        self.phase = Phase.TRAINING
        self._is_midway = False
        self.rounds = SynchronousRounds(self.workers)
        self.computing = set(self.workers)
        self.fenced.clear()
        return [ins.SendWeights(workers=self.workers, version=self.version, with_state=True)]

    # ------------------------------------------------------------ training

    def _push(self, worker: int, message: msg.PushUpdate) -> list[ins.Instruction]:
        if worker not in self.computing and worker not in self.fenced:
            raise ProtocolError(f"Worker {worker} pushed without having been sent weights.")
        applied = StalenessStatistics.from_json(message.applied)
        staleness = 0 if message.applied else self.staleness.record(message.base_version, self.version)
        self.staleness.merge(applied)
        self.version += applied.n_updates - applied.n_dropped
        self.computing.discard(worker)
        self.n_samples += message.n_samples
        if message.sums:
            self.history.add_training(worker, message.n_samples, message.sums)
        if self.phase is Phase.HALTING:
            return [] if self.computing else self._stopped()
        if self.plan.options.waits:
            return self._push_to_round(worker, message)
        out = [] if message.applied else self._apply(worker, staleness)
        if worker in self.fenced:
            return out
        # A worker that applies its updates itself stops when all together have trained enough, or it was recalled.
        if self.phase is Phase.TRAINING and (self.preempting or self._is_full or message.applied):
            self._begin_fence()
        if self.phase is Phase.FENCING:
            return [*out, self._fence((worker,))]
        self.computing.add(worker)
        return [*out, ins.SendWeights(workers=(worker,), version=self.version)]

    def _apply(self, worker: int, staleness: int) -> list[ins.Instruction]:
        weight = self._policy.weight(staleness)
        if not weight:
            self.staleness.drop()
            return []
        self.version += 1
        return [ins.ApplyUpdate(worker=worker, weight=weight)]

    def _push_to_round(self, worker: int, message: msg.PushUpdate) -> list[ins.Instruction]:
        out: list[ins.Instruction] = [ins.HoldUpdate(worker=worker, n_samples=message.n_samples)]
        complete = self.rounds.take(worker, is_last=message.end_of_pass)
        if not complete:
            return out
        out.append(ins.ApplyRound(workers=complete))
        self.version += 1
        training = self.rounds.training
        # A worker that has finished its shard must not begin another pass: then the epoch's regular fence is near.
        stops_here = self.preempting and self.plan.can_stop_mid_epoch and training == set(self.workers)
        if training and not stops_here:
            self.computing = set(training)
            return [*out, ins.SendWeights(workers=tuple(sorted(training)), version=self.version)]
        self._begin_fence()
        return [*out, self._fence(self.workers)]

    @property
    def _is_full(self) -> bool:
        """True if the workers have trained as many samples in this epoch as there are."""
        return self.n_samples >= (self.epoch + 1) * self.n_train

    def _begin_fence(self) -> None:
        self.phase = Phase.FENCING
        epoch = self.epoch + 1
        self.checkpoints = self.preempting or self.plan.checkpoint_due(epoch) or epoch >= self.plan.options.epochs
        self.waiting_for = set(self.workers)

    # ------------------------------------------------------------ the fence

    def _fence(self, workers: tuple[int, ...]) -> ins.SendFence:
        self.fenced.update(workers)
        return ins.SendFence(
            workers=workers, epoch=self.epoch + 1, checkpoint=self.checkpoints, mid_epoch=self.preempting
        )

    def _fence_reached(self, worker: int, message: msg.FenceReached) -> list[ins.Instruction]:
        if worker in self.computing:
            raise ProtocolError(f"Worker {worker} handed in its state before its last update.")
        self._answered(worker)
        self.fenced.discard(worker)
        self.n_samples += message.n_samples
        for number, own in message.by_worker(worker).items():
            if own.n_samples:
                self.history.add_training(number, own.n_samples, own.sums)
            if own.states:
                self.history.add_training_states(number, own.states)
            if own.load:
                self.history.add_load(number, own.load)
        out: list[ins.Instruction] = [ins.HoldState(worker=worker)]
        if self.waiting_for:
            return out
        if self.preempting and self.checkpoints and not self._is_full:
            n_inside = self.n_samples - self.epoch * self.n_train
            return [*out, ins.SaveMidEpoch(n_samples=n_inside), *self._stopped()]
        if self.has_validation:
            self.phase = Phase.VALIDATING
            self.waiting_for = set(self.workers)
            return [*out, ins.SendValidate()]
        return [*out, *self._measure()]

    def _validated(self, worker: int, message: msg.Validated) -> list[ins.Instruction]:
        self._answered(worker)
        for number, own in message.by_worker(worker).items():
            self.history.add_validation(number, own.n_samples, own.sums, own.states)
        if self.waiting_for:
            return []
        return self._measure()

    def _measure(self) -> list[ins.Instruction]:
        """Have the states turned into metrics, if there are any; then end the epoch."""
        states, training = self.history.validation_states(), self.history.training_states()
        if not (states or training):
            return self._end_epoch()
        self.phase = Phase.MEASURING
        self.waiting_for = {1}
        return [ins.SendMeasure(states=states, training=training)]

    def _measured(self, worker: int, message: msg.Measured) -> list[ins.Instruction]:
        self._answered(worker)
        return self._end_epoch(message)

    def _end_epoch(self, measured: msg.Measured | None = None) -> list[ins.Instruction]:
        metrics = self.history.end_epoch(*([measured.metrics, measured.training] if measured else []))
        bad = next((name for name, value in metrics.items() if not math.isfinite(value)), None)
        if bad:
            reason = f"{bad} is {metrics[bad]} after epoch {self.epoch}"
            return self._end(msg.FoldFailed(assignment=self.plan.order.assignment, reason=reason))
        out: list[ins.Instruction] = [ins.KeepBest()] if self.plan.best_index(self.history) == self.epoch - 1 else []
        reason = self.plan.reason_to_end(self.history)
        return [*out, *(self._call_back(metrics, reason) if self.calls_back else self._go_on(metrics, reason))]

    def _go_on(self, metrics: dict[str, float], reason: str) -> list[ins.Instruction]:
        """End the epoch; then finish for `reason`, wait for a decision, stop if preempted, or begin the next."""
        waits = self.plan.order.waits_for_decision and not reason and not self.preempting
        report = ins.ReportEpoch(
            epoch=self.epoch, metrics=metrics, checkpoint=self.checkpoints or bool(reason), waits=waits
        )
        if reason:
            return [report, *self._finish(reason)]
        if waits:
            self.phase = Phase.AWAITING
            return [report]
        return [report, *(self.stop() if self.preempting and self.checkpoints else self._begin_epoch())]

    def _call_back(self, metrics: dict[str, float] | None, reason: str) -> list[ins.Instruction]:
        self.phase = Phase.CALLING_BACK
        self.waiting_for = {1}
        self._called_with = metrics, reason
        return [ins.SendCallBack(epoch=self.epoch, metrics=metrics, is_last=bool(reason))]

    def _called_back(self, worker: int, message: msg.CalledBack) -> list[ins.Instruction]:
        self._answered(worker)
        self._has_called_back = True
        metrics, reason = self._called_with
        if metrics is None:
            is_at_rest = self.preempting and not self._is_midway
            return [ins.TakeRequests(), *(self.stop() if is_at_rest else self._begin_epoch())]
        if message.stop:
            self.is_stopped = True
            reason = reason or STOPPED_BY_CALLBACK
        return [ins.TakeRequests(), *self._go_on(metrics, reason)]

    def _judged(self, worker: int, message: msg.Judged) -> list[ins.Instruction]:
        self._answered(worker)
        return self._over(message.figure_of_merit)

    def _finish(self, reason: str) -> list[ins.Instruction]:
        best = self.plan.best_index(self.history)
        index = self.epoch - 1 if best is None else best
        metrics = self.history.epochs[index]
        # The figure alone is not known yet.
        self._finished = ins.FinishFold(
            figure_of_merit=math.nan,
            metrics=metrics,
            n_epochs=self.epoch,
            reason=reason,
            kept_epoch=index + 1,
            restore_best=best is not None,
        )
        if self.plan.comparison.function is None:
            return self._over(figure_of_merit(metrics))
        self.phase = Phase.JUDGING
        self.waiting_for = {1}
        return [ins.SendJudge(epoch=index + 1, metrics=metrics)]

    def _over(self, figure: float) -> list[ins.Instruction]:
        assert self._finished is not None
        self.phase = Phase.OVER
        return [self._finished.replaced(figure_of_merit=figure)]

    def _stopped(self) -> list[ins.Instruction]:
        return self._end(msg.FoldStopped(assignment=self.plan.order.assignment))

    def _end(self, message: msg.FoldStopped | msg.FoldPaused | msg.FoldFailed) -> list[ins.Instruction]:
        self.phase = Phase.OVER
        return [ins.End(message=message)]

    def _answered(self, worker: int) -> None:
        if worker not in self.waiting_for:
            raise ProtocolError(f"Worker {worker} answered twice in phase {self.phase.name}.")
        self.waiting_for.remove(worker)


#: message of a worker -> phases that allow it, and the handler; in any other phase it is a bug of this package
_HANDLERS: dict[type[msg.Message], tuple[Set[Phase], Callable[[MasterState, int, Any], list[ins.Instruction]]]] = {
    msg.WorkerReady: ({Phase.STARTING}, MasterState._ready),
    msg.PushUpdate: ({Phase.TRAINING, Phase.FENCING, Phase.HALTING}, MasterState._push),
    msg.FenceReached: ({Phase.FENCING}, MasterState._fence_reached),
    msg.Validated: ({Phase.VALIDATING}, MasterState._validated),
    msg.Measured: ({Phase.MEASURING}, MasterState._measured),
    msg.CalledBack: ({Phase.CALLING_BACK}, MasterState._called_back),
    msg.Judged: ({Phase.JUDGING}, MasterState._judged),
    msg.FoldFailed: ({*Phase} - {Phase.OVER}, lambda self, worker, message: self._end(message)),
}
