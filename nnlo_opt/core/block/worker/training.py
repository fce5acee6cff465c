"""Training of one assignment by a worker: batch by batch, in sync periods, from one message of the master to the next.

`LocalTraining` contains an open assignment of `worker.worker`: model and data (`FoldTask`), the worker's half of the
update rule (`update_rules`), the gradients (`exchange.gradients`). It pushes its updates to the master, or applies them
itself if the central weights are shared (`exchange.shared_weights`).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.timeline import Timeline
from nnlo_opt.core.block.exchange.gradients import CommonBatches, OwnBatches, Step
from nnlo_opt.core.block.exchange.shared_step import SharedStep
from nnlo_opt.core.block.exchange.shared_weights import SharedWeights
from nnlo_opt.core.block.task import FoldTask
from nnlo_opt.core.block.worker.group import GroupBatches, WorkerGroup
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.transport import Collective, Transport
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.core.training.schedules import LearningRates
from nnlo_opt.core.trials.checkpoint import load_state, of_message, save_state
from nnlo_opt.core.update_rules.rule import Answer

#: end of the master on the transport of a team
MASTER = 0
#: key of a worker's float model state, beside the memory of its update rule
_MODEL_STATE = "model_state"
#: key of its states of metrics after deaths
_METRIC_STATES = "metric_states"
#: worker that saves the optimizer's state, if it is the same at all workers
_KEEPER = 1


@dataclass(frozen=True, slots=True)
class Partners:
    """Ranks with which a worker's rank may compute gradients."""

    #: all workers of its team (allreduce); None for a worker alone
    team: Collective | None = None
    #: the ranks of this worker, which this rank leads; None for a worker of one rank
    group: WorkerGroup | None = None


@dataclass(slots=True)
class Period:
    """Training of a worker between two updates."""

    n_samples: int = 0
    n_batches: int = 0
    #: version of the central weights at the first batch
    base_version: int = 0
    #: True if the end of a pass has ended the period
    end_of_pass: bool = False


class LocalTraining:
    """One assignment at a worker, from the built model to the end.

    Args:
        block: transport to the master (end 0).
        start: the order; a worker group in `partners` has already started on it.
    """

    def __init__(
        self, block: Transport, task: FoldTask, start: msg.StartFold, partners: Partners, timeline: Timeline
    ) -> None:
        self._block = block
        self._partners = partners
        self._timeline = timeline
        #: model and data
        self.task = task
        self._start = start
        assert (task.options.own is not None) == bool(task.options.own_optimizer), "its steps would be others"
        self._rule = task.options.rule.worker_half(task.options, task.adapter.n_weights)
        self._rule.take_layers(task.layers)
        options = task.options
        #: clips the gradient before a step; None if nothing does, or another part of the team
        self._clipping = None if options.clips_mean else options.clipping(task.layers)
        #: True if all workers take every step together
        self._together = task.options.rule.averages_every_batch
        #: source of the gradients of its steps
        self.gradients = self._gradients()
        #: True if the master has sent weights or an answer to train on, and no fence since
        self.is_running = False
        #: True if another rank has failed in a common step: this assignment trains no more
        self._is_deserted = False
        #: True once the master has sent the initial weights
        self.has_begun = False
        #: version of the central weights adopted last
        self._version = 0
        #: the shared central weights, if this worker updates them itself; None if the master does
        self._shared: SharedWeights | None = None
        #: learning rates of the steps taken here
        self._rates = LearningRates(task.options.schedule, task.n_train, task.options.epochs)
        #: estimated training samples of all workers before the next step: between two answers of the master all workers
        #: are assumed to be as fast as this one
        self._n_trained = 0
        #: training since the last update
        self._period = Period()
        #: batches per update; infinite in allreduce, where only the end of a pass counts
        self._sync_every = math.inf if self._together else task.options.sync_every
        #: training not yet reported to the master
        self._untold = Metrics()
        #: True if the period is over and waits to be pushed
        self._is_due = False
        #: True if a push has not been answered yet
        self.is_outstanding = False
        #: True if the next batch may be trained before the answer arrives
        self._may_run_ahead = False

    def _gradients(self) -> OwnBatches:
        task, gradient, partners, timeline = self.task, self._rule.gradient, self._partners, self._timeline
        if self._together:
            return CommonBatches(task, gradient, partners.team, self._start.n_workers, timeline)
        if partners.group is None:
            return OwnBatches(task, gradient, timeline)
        return GroupBatches(task, gradient, partners.group, self._start.assignment, timeline)

    # ------------------------------------------------------------ batches

    @property
    def can_train(self) -> bool:
        """True if there is a batch to train now."""
        return self.is_running and not self._is_due and (not self.is_outstanding or self._may_run_ahead)

    @property
    def is_undisturbed(self) -> bool:
        """True if the next batch needs no message: updates are in shared memory or collective."""
        return self.can_train and (self._together or self._shared is not None)

    def train_batch(self) -> None:
        """Train one batch; if it ends the period, push or apply the update."""
        period = self._period
        if not period.n_batches:
            period.base_version = self._version
        step = self.gradients.step()
        if step.has_failed:
            # The failed rank reports why. An earlier answer of the master must not start another step, which no other
            # rank would join.
            self.is_running, self._is_deserted = False, True
            return
        if self._together and not step.end_of_pass:
            with self.gradients.fails_in_next_step:
                self._step(step)
        else:  # at the end of an allreduce epoch no rank waits in a step for this one
            self._step(step)
        self._untold = self._untold.merge(step.metrics)
        period.n_samples += step.metrics.n_samples
        period.n_batches += 1
        self._may_run_ahead = False
        # A sync period does not extend beyond the end of a pass: synchronous workers meet there, and a longer period
        # would train more epochs than requested. Nor does it continue when other workers have trained the last samples
        # of an epoch: they would wait for half a period on average.
        is_over = step.end_of_pass or period.n_batches >= self._sync_every
        if is_over or (self._shared is not None and self._shared.is_trained):
            period.end_of_pass = step.end_of_pass
            self._is_due = True
            if self._shared is not None:
                self._exchange(self._shared)
            elif not self.is_outstanding:
                self._push()

    def _step(self, step: Step) -> None:
        """Pass the gradient to the rule."""
        if self._rates.vary:
            # At the learning rate of the current progress.
            n_of_all = step.n_samples if self._together else step.n_samples * self._start.n_workers
            before, self._n_trained = self._n_trained, self._n_trained + n_of_all
            self._rule.scale_learning_rate(self._rates.factor(before, self._n_trained))
        if self._clipping is not None:
            self._clipping.clip(self._rule.gradient)
        if self._rule.step(step.n_samples):
            self.gradients.at(self._rule.point())

    def _exchange(self, shared: SharedWeights) -> None:
        """Apply the update to the shared weights; continue, or tell the master if that was the last of the epoch."""
        rule, period = self._rule, self._period
        with self._timeline.span("exchange", "message"):
            done = shared.exchange(rule.finish(), rule.answer, period.n_samples, period.base_version)
            if not done.is_full or shared.answers == Answer.DIFFERENCE:  # otherwise the weights come after the fence
                rule.adopt(shared.answers, rule.answer)
            self.gradients.at(rule.point())
        self._version, self._n_trained = done.version, done.n_samples
        self._is_due = False
        if done.is_full:
            self._block.send(MASTER, self._update(base_version=shared.version, applied=shared.take_applied()))
            self.is_outstanding = True
        self._period = Period()

    def _push(self) -> None:
        period = self._period
        push = self._update(base_version=period.base_version)
        with self._timeline.span("push", "message"):
            # In allreduce all workers have the same weights, so those of one are enough.
            is_one_of_many = self._together and self._start.worker > 1
            self._block.send(MASTER, push, None if is_one_of_many else self._rule.finish())
        # After the end of a pass a lone worker must not begin the next epoch before the fence.
        self._may_run_ahead = self._start.overlap and not period.end_of_pass
        self.is_outstanding, self._is_due = True, False
        self._period = Period()

    def _update(self, base_version: int, applied: dict[str, int] | None = None) -> msg.PushUpdate:
        """Return the message with the metrics of all unreported batches."""
        trained = self._take_untold()
        return msg.PushUpdate(
            assignment=self._start.assignment,
            base_version=base_version,
            n_samples=trained.n_samples,
            sums={**trained.sums},
            end_of_pass=self._period.end_of_pass,
            applied=applied or {},
        )

    def _take_untold(self) -> Metrics:
        untold, self._untold = self._untold, Metrics()
        return untold

    # ------------------------------------------------------------ messages of the master

    def go_on(self, train: msg.Train, payload: np.ndarray | None, memory: dict[str, Any] | None) -> None:
        """Continue training with the master's answer.

        Args:
            payload: vector that came with `train`.
            memory: return value of `remembered` of this worker before ranks died; else None.
        """
        task, start = self.task, self._start
        if train.shared:
            self._join((train.shared[0], train.shared[1]))
        # The other ranks of a group are about to enter the next step: a rank that fails here must still take part, or
        # they hang.
        with self.gradients.fails_in_next_step:
            place = [] if self.has_begun else self.gradients.share_weights(self._rule)
            kept = self._restored(of_message(train.restore)) if train.restore else memory
            model_state = None if kept is None else kept.pop(_MODEL_STATE, None)
            if kept is not None:
                self.gradients.states = kept.pop(_METRIC_STATES, {})
            if kept:
                self._rule.load_state(kept)
            is_midway = train.mid_epoch
            if kept and "weights" in kept and train.adopt == Answer.WEIGHTS and payload is not None:
                # It has survived other ranks, and continues with its own weights of the update rule.
                train, is_midway = train.replaced(adopt=Answer.NOTHING), True
                payload = payload[task.adapter.n_weights :]
            state_given = self._adopt(train.adopt, payload)
            if is_midway and model_state is not None:
                task.adapter.write_state(model_state)  # its own: states are not averaged within an epoch
            if train.position is not None:
                self.gradients.seek(train.position)
            if self._partners.group is not None:
                self._partners.group.pass_on(train, state_given, place)
            self.gradients.at(self._rule.point())
        if train.rate_factor is not None:
            self._rates.take_request(train.rate_factor)
        self._version, self.has_begun = train.version, True
        self._n_trained = train.n_samples + self._period.n_samples * start.n_workers
        self.is_outstanding, self.is_running = False, not self._is_deserted
        if self._is_due:
            self._push()

    def _restored(self, place: SafePath) -> dict[str, Any] | None:
        """Return this worker's state in a checkpoint, which other workers may have written; None if there is none."""
        own = load_state(place, self._start.worker)
        if self._start.worker == _KEEPER or not self.task.options.rule.averages_every_batch:
            return own
        of_keeper = load_state(place, _KEEPER) or {}
        of_optimizer = {name: of_keeper[name] for name in self._rule.optimizer_state() if name in of_keeper}
        return {**self._rule.memory_state(), **(own or {}), **of_optimizer} or None

    def _join(self, place: tuple[int, int]) -> None:
        """Use the master's shared memory from now on."""
        options, adapter, start = self.task.options, self.task.adapter, self._start
        try:
            memory = self._block.join(MASTER, place)
        except OSError as error:
            if self._together:
                # The other workers wait in shared memory for this rank, and only notice its death.
                raise ProtocolError(f"The memory of the workers' steps cannot be joined: {error}.") from error
            raise
        if self._together:
            rank, n_ranks, together = start.worker - 1, start.n_workers, self._partners.team
            assert together is not None
            clipping, self._clipping = self._clipping, None
            shared_step = self._rule.share(
                lambda optimizer: SharedStep(memory, optimizer, adapter.n_weights, rank, n_ranks, together, clipping)
            )
            self.gradients.average_by(shared_step)
            return
        half = options.rule.master_half(options, adapter.n_weights, start.n_workers)
        half.take_layers(self.task.layers)
        sizes, policy = (adapter.n_weights, adapter.n_state), options.staleness_policy
        self._shared = SharedWeights(memory, half, sizes, start.n_workers, policy, self._rates)
        if start.n_workers == 1 and self._partners.group is None:
            self._rule.own(self._shared.weights)

    def _adopt(self, kind: Answer, payload: np.ndarray | None) -> np.ndarray | None:
        """Apply the master's answer and the averaged model state; return the latter, or None."""
        adapter = self.task.adapter
        n_answer = 0 if kind == Answer.NOTHING else adapter.n_weights
        n_given = 0 if payload is None else len(payload)
        if n_given not in (n_answer, n_answer + adapter.n_state):
            raise ProtocolError(f"An answer of {n_answer} numbers ({kind}) was expected. Received: {n_given}.")
        if payload is not None and n_answer:
            self._rule.adopt(kind, payload[:n_answer])
        if payload is None or n_given == n_answer:
            return None
        adapter.write_state(payload[n_answer:])
        return payload[n_answer:]

    # ------------------------------------------------------------ at a fence

    def stop(self, fence: msg.Fence, payload: np.ndarray | None) -> Metrics:
        """Stop training until `go_on`; return the metrics that have not been pushed."""
        self.is_outstanding = self.is_running = False
        self._adopt(fence.adopt, payload)
        if self._period.n_batches and self._rule.drains:
            self._push()
        self.is_outstanding = False
        # The rest of a period has no update in this epoch, but its samples were trained in it.
        self._period.n_samples = 0
        return self._take_untold()

    def save(self, fence: msg.Fence, model_state: np.ndarray) -> dict[str, Any]:
        """Write this worker's own state to the checkpoint, if one is due; return file name -> fingerprint."""
        if not fence.checkpoint:
            return {}
        # The states of a worker group's ranks are averaged, as at the end of an epoch.
        keeps_own = fence.mid_epoch and len(model_state) and self._partners.group is None
        own = {_MODEL_STATE: model_state} if keeps_own else {}
        worker, rule = self._start.worker, self._rule
        has_copy = worker != _KEEPER and self.task.options.rule.averages_every_batch
        state = rule.memory_state() if has_copy else rule.state()
        return save_state(of_message(fence.checkpoint), worker, {**state, **own})

    def remembered(self) -> dict[str, Any]:
        """Return update rule's memory, model state and states of metrics, for this rank's next worker after deaths."""
        states = {_METRIC_STATES: self.gradients.states} if self.gradients.states else {}
        return {**self._rule.state(), _MODEL_STATE: self.task.model_state(), **states}
