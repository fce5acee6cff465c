"""How a worker trains one assignment: batch by batch, in sync periods, from one word of its master to the next.

`LocalTraining` is what `worker.worker` has of an assignment as long as that is open: model and data (`FoldTask`), the
worker's half of the update rule (`block.local`), and the gradients (`exchange.gradients`). It pushes its updates
itself, or makes them where the central weights are shared (`exchange.own_updates`).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.block.central import central_rule
from nnlo_opt.block.exchange.gradients import CommonBatches, Gradients, OwnBatches, Step
from nnlo_opt.block.exchange.own_updates import OwnUpdates, Period, Trained
from nnlo_opt.block.exchange.shared_step import SharedStep
from nnlo_opt.block.exchange.shared_weights import SharedWeights
from nnlo_opt.block.local import StepTogether, local_rule
from nnlo_opt.block.task import FoldTask
from nnlo_opt.block.worker.group import GroupBatches, WorkerGroup, in_next_step, restore_position
from nnlo_opt.block.worker.learning_rates import LearningRates
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.transport import Collective, Transport
from nnlo_opt.errors import ProtocolError
from nnlo_opt.runtime.timeline import Timeline
from nnlo_opt.trials.checkpoint import load_local, save_local
from nnlo_opt.update_rules.staleness import StalenessPolicy
from nnlo_opt.vectors import aligned_empty

#: end of the master on the transport of a team
MASTER = 0
#: the float model state of a worker, beside what its update rule remembers
_MODEL_STATE = "model_state"


@dataclass(frozen=True, slots=True)
class Partners:
    """The groups of ranks that a worker's rank may compute gradients with."""

    #: all workers of its team (allreduce); None: it is the only one
    team: Collective | None = None
    #: the ranks of this worker, which this rank leads; None: it is the only one
    group: WorkerGroup | None = None


class LocalTraining:
    """One assignment, from the model that is built to its end."""

    def __init__(
        self, block: Transport, task: FoldTask, start: msg.StartFold, partners: Partners, timeline: Timeline
    ) -> None:
        """`block` leads to the master (end 0); a worker group among `partners` has begun with `start`."""
        self._block = block
        self._partners = partners
        self._timeline = timeline
        #: model and data
        self.task = task
        self._start = start
        self._rule = local_rule(task.options, task.adapter.n_weights)
        #: whether all workers make one step together
        self._together = task.options.mode == "allreduce"
        #: where the gradients of its steps come from
        self.gradients = self._gradients()
        #: whether the master has sent something to train on, and no fence since
        self.is_running = False
        #: whether another rank has failed in a step with this one: nothing more is trained of this assignment
        self._is_deserted = False
        #: whether the master has given weights to begin with
        self.has_begun = False
        #: version of the central weights adopted last
        self._version = 0
        #: where this worker moves the central weights itself; None: the master does
        self._own: OwnUpdates | None = None
        #: of the steps made here
        self._rates = LearningRates(task.options.schedule, task.n_train, task.options.epochs)
        #: training samples of all workers behind the next step, as far as is known: between two answers of the master
        #: the others are taken to be as fast as this one
        self._n_trained = 0
        #: what was trained since the last update
        self._period = Period()
        #: batches after which that is due; in allreduce the end of a pass alone
        self._sync_every = math.inf if self._together else task.options.sync_every
        #: what was trained that the master has not been told
        self._untold = Trained()
        #: whether the period is over and waits to be pushed
        self._is_due = False
        #: whether a push is not yet answered
        self.is_outstanding = False
        #: whether the next batch may be trained before the answer
        self._may_run_ahead = False

    def _gradients(self) -> Gradients:
        task, gradient, partners, timeline = self.task, self._rule.gradient, self._partners, self._timeline
        n_ranks = self._start.n_workers if partners.group is None else partners.group.n_all
        if self._together:
            return CommonBatches(task, gradient, partners.team, n_ranks, timeline)
        if partners.group is not None:
            return GroupBatches(task, gradient, partners.group, self._start.assignment, self._rule.point, timeline)
        return OwnBatches(task, gradient, timeline)

    # ------------------------------------------------------------ batches

    @property
    def can_train(self) -> bool:
        """Whether there is a batch to be trained now."""
        return self.is_running and not self._is_due and (not self.is_outstanding or self._may_run_ahead)

    @property
    def is_undisturbed(self) -> bool:
        """Whether there is, and it needs no message: the updates of all workers are made in memory or together."""
        return self.can_train and (self._together or self._own is not None)

    def train_batch(self) -> None:
        """Train one batch; where that ends the period, push it, or make its update."""
        period = self._period
        if not period.n_batches:
            period.base_version = self._version
        step = self.gradients.step()
        if step.has_failed:
            # The rank that failed says why. An answer of the master that comes before must not begin another step,
            # in which nobody would be with us.
            self.is_running, self._is_deserted = False, True
            return
        if self._together and not step.end_of_pass:
            with in_next_step(self.gradients):
                self._step(step)
        else:  # at the end of an allreduce epoch nobody waits in a step for this rank any more
            self._step(step)
        self._untold.add(step.metrics)
        period.n_samples += step.metrics.n_samples
        period.n_batches += 1
        self._may_run_ahead = False
        # A sync period does not reach over the end of a pass: synchronous workers meet there, and a period longer
        # than a pass would train more than the epochs that were asked for. Nor does it where the others have trained
        # the last samples of an epoch: they would wait for half a period in the mean.
        is_over = step.end_of_pass or period.n_batches >= self._sync_every
        if is_over or (self._own is not None and self._own.are_enough):
            period.end_of_pass = step.end_of_pass
            self._is_due = True
            if self._own is not None:
                self._exchange(self._own)
            elif not self.is_outstanding:
                self._push()

    def _step(self, step: Step) -> None:
        """Have the rule take in the gradient."""
        if self._rates.vary:
            # At the learning rate of this point of the training.
            n_of_all = step.n_samples if self._together else step.n_samples * self._start.n_workers
            before, self._n_trained = self._n_trained, self._n_trained + n_of_all
            self._rule.scale_learning_rate(self._rates.factor(before, self._n_trained))
        if self._rule.step(step.n_samples):
            self.task.adapter.borrow_weights(self._rule.point())

    def _exchange(self, own: OwnUpdates) -> None:
        """Do what the master would on a push, and go on; or, where that was the last, tell it of all of them."""
        rule = self._rule
        with self._timeline.span("exchange", "message"):
            done = own.make(rule, self._period)
            self.task.adapter.borrow_weights(rule.point())
        self._version, self._n_trained = done.version, done.n_samples
        self._is_due = False
        self._period.restart()
        if done.is_full:
            self._block.send(MASTER, own.tell(self._start.assignment, self._untold.take()))
            self.is_outstanding = True

    def _push(self) -> None:
        start, period, trained = self._start, self._period, self._untold.take()
        push = msg.PushUpdate(
            assignment=start.assignment,
            base_version=period.base_version,
            n_samples=trained.n_samples,
            n_batches=period.n_batches,
            sums=trained.sums,
            end_of_pass=period.end_of_pass,
        )
        with self._timeline.span("push", "message"):
            # In allreduce all workers have the same weights: those of one are enough.
            is_one_of_many = self._rule.is_common and start.worker > 1
            self._block.send(MASTER, push, None if is_one_of_many else self._rule.finish())
        # Behind the end of a pass lies the next epoch, which a lone worker must not begin before the fence.
        self._may_run_ahead = start.overlap and not period.end_of_pass
        self.is_outstanding, self._is_due = True, False
        period.restart()

    # ------------------------------------------------------------ the master's word

    def go_on(self, train: msg.Train, payload: np.ndarray | None, memory: dict[str, Any] | None) -> None:
        """Train on what the master sends; `memory`: what `remembered` of this worker before ranks died, else None."""
        task, start, group = self.task, self._start, self._partners.group
        if train.shared:
            self._join((train.shared[0], train.shared[1]))
        # The other ranks of a group are on their way to the next step: one that fails here must not be missing there.
        with in_next_step(self.gradients):
            kept = load_local(Path(train.restore), start.worker) if train.restore else memory
            model_state = None if kept is None else kept.pop(_MODEL_STATE, None)
            if kept:
                self._rule.load_state(kept)
            is_midway = train.mid_epoch
            if kept and "weights" in kept and train.adopt == "weights" and payload is not None:
                # It has outlived others, and goes on with weights of its own, as the update rule has such.
                train, payload, is_midway = train.replaced(adopt="nothing"), payload[task.adapter.n_weights :], True
            state_given = self._adopt(train.adopt, payload)
            if is_midway and model_state is not None:
                task.adapter.write_state(model_state)  # its own: in the middle of an epoch nobody averages
            if train.position is not None:
                restore_position(task, self.gradients, train.position)
            if group is not None:
                _pass_on(group, train, state_given)
            task.adapter.borrow_weights(self._rule.point())
        if train.rate_factor is not None:
            self._rates.take_wish(train.rate_factor)
        self._version, self.has_begun = train.version, True
        self._n_trained = train.n_samples + self._period.n_samples * start.n_workers
        self.is_outstanding, self.is_running = False, not self._is_deserted
        if self._is_due:
            self._push()

    def _join(self, place: tuple[int, int]) -> None:
        """Work in the memory that the master has made, from now on."""
        options, adapter, start = self.task.options, self.task.adapter, self._start
        try:
            memory = self._block.join(MASTER, place)
        except OSError as error:
            if self._together:
                # The others wait in memory for this rank, and hear of its death alone.
                raise ProtocolError(f"The memory of the workers' steps cannot be joined: {error}.") from error
            raise
        if isinstance(self._rule, StepTogether):
            rank, n_ranks, together = start.worker - 1, start.n_workers, self._partners.team
            assert isinstance(self.gradients, CommonBatches)
            assert together is not None
            self.gradients.averaging = self._rule.share(
                lambda optimizer: SharedStep(memory, optimizer, adapter.n_weights, rank, n_ranks, together)
            )
            return
        rule = central_rule(options, adapter.n_weights, start.n_workers)
        shared = SharedWeights(memory, rule, adapter.n_weights, adapter.n_state, start.n_workers)
        shared.rates = self._rates
        shared.policy = StalenessPolicy.parse(options.staleness)
        self._own = OwnUpdates(shared)
        if start.n_workers == 1:
            self._rule.own(shared.weights)

    def _adopt(self, kind: str, payload: np.ndarray | None) -> np.ndarray | None:
        """Take in the master's answer and the averaged model state; -> the latter, None where it did not come."""
        adapter = self.task.adapter
        n_answer = 0 if kind == "nothing" else adapter.n_weights
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

    def stop(self, fence: msg.Fence, payload: np.ndarray | None) -> Trained:
        """Train no more until `go_on`; -> what has been trained and not pushed."""
        self.is_outstanding = self.is_running = False
        self._adopt(fence.adopt, payload)
        if self._period.n_batches and self._rule.drains:
            self._push()
        self.is_outstanding = False
        # What is left of a period has no update of its own in this epoch, but its samples were trained in it.
        self._period.n_samples = 0
        return self._untold.take()

    def model_state(self) -> np.ndarray:
        """The float model state, (n_state,)."""
        state = aligned_empty(self.task.adapter.n_state)
        self.task.adapter.read_state(state)
        return state

    def position(self) -> dict[str, Any]:
        """Where it stands in its data, and the integer state of its model, plain data."""
        return {**self.gradients.position(), "discrete": self.task.adapter.discrete_state()}

    def save(self, fence: msg.Fence, model_state: np.ndarray) -> dict[str, Any]:
        """Write to the checkpoint, if there is one, what else is nowhere; -> file name -> fingerprint."""
        if not fence.checkpoint:
            return {}
        # The ranks of a ring have one state each, which are averaged, as at the end of an epoch.
        keeps_own = fence.mid_epoch and len(model_state) and self._partners.group is None
        own = {_MODEL_STATE: model_state} if keeps_own else {}
        return save_local(Path(fence.checkpoint), self._start.worker, {**self._rule.state(), **own})

    def remembered(self) -> dict[str, Any]:
        """What the update rule remembers, and float model state, for a worker that this rank is after deaths."""
        return {**self._rule.state(), _MODEL_STATE: self.model_state()}


def _pass_on(group: WorkerGroup, train: msg.Train, state: np.ndarray | None) -> None:
    """Give the followers the model state, and the positions they handed in, where these came."""
    positions = (train.position or {}).get("followers") or [None] * (group.n_ranks - 1)
    plain = msg.Train(assignment=train.assignment, version=train.version, adopt="nothing")
    group.tell_each([plain.replaced(position=position) for position in positions], state)
