"""A worker: computes true gradients on its shard and pushes them to its master.

It is reactive: `handle` takes one message of the master, `work` trains one batch; neither waits. So a worker whose
peer failed is never stuck, and master and worker can share a process. Allreduce alone is a collective call.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.algorithms.staleness import StalenessPolicy
from nnlo_opt.block.central import central_rule
from nnlo_opt.block.gradients import NO_GRADIENTS, CommonBatches, Gradients, OwnBatches
from nnlo_opt.block.local import LocalRule, PushGradient, StepTogether, base_learning_rate, local_rule
from nnlo_opt.block.own_updates import OwnUpdates, Period
from nnlo_opt.block.reasons import worker_failed
from nnlo_opt.block.ring import Ring, RingBatches, Then, check_alike, in_next_step, restore_position
from nnlo_opt.block.shared_step import SharedStep
from nnlo_opt.block.shared_weights import SharedWeights
from nnlo_opt.block.validation import validate
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.transport import Collective, Received, Transport
from nnlo_opt.errors import ProtocolError
from nnlo_opt.pulse import PULSE, SLOW
from nnlo_opt.training.callbacks import EpochCallbacks
from nnlo_opt.training.checkpoint import load_local, save_local
from nnlo_opt.training.figure import judged
from nnlo_opt.training.monitor import Monitor
from nnlo_opt.training.schedules import LearningRateSchedule
from nnlo_opt.training.task import FoldTask, TaskFactory, release
from nnlo_opt.training.timeline import NO_TIMELINE, Timeline
from nnlo_opt.vectors import aligned_empty

logger = logging.getLogger(__name__)

#: end of the master on the transport of a team
MASTER = 0
#: the float model state of a worker, beside what its update rule remembers
_MODEL_STATE = "model_state"


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of ranks that a worker's rank may compute gradients with."""

    #: all workers of its team (allreduce); None: it is the only one
    team: Collective | None = None
    #: the ranks of this worker, which this rank leads; None: it is the only one
    ring: Ring | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What a worker had of an assignment when ranks of its team died, for whom this rank is after that."""

    assignment: int
    #: what its update rule remembers, and float model state, as a checkpoint in the middle of an epoch has them
    state: dict[str, Any]


class Worker:
    """One worker; serves one assignment after another.

    Between messages it works: `work` trains one batch when `can_work` says so. Where it overlaps, it may be one batch
    ahead of the master's answer; that batch comes before the answer is read (`works_first`), so that the order of
    things does not depend on who is faster.
    """

    def __init__(
        self,
        block: Transport,
        tasks: TaskFactory,
        world_rank: int,
        groups: Groups | None = None,
        timeline: Timeline = NO_TIMELINE,
        monitor: Monitor | None = None,
    ) -> None:
        """`groups`: with whom it computes gradients together; None: alone.

        `monitor` measures what this process takes of its machine, for the history; None: that is not wanted.
        """
        self._block = block
        self._tasks = tasks
        self._world_rank = world_rank
        self._groups = groups or Groups()
        self._timeline = timeline
        self._monitor = monitor
        self._ring = self._groups.ring
        #: assignment served; None between assignments and after a failure, when messages about it are dropped
        self._assignment: int | None = None
        #: set as long as `_assignment` is, with what belongs to it
        self._task: FoldTask | None = None
        self._rule: LocalRule = PushGradient(0)
        self._start: msg.StartFold | None = None
        #: whether the master has sent something to train on, and no fence since
        self._training = False
        #: whether another rank has failed in a step with this one: nothing more is trained of this assignment
        self._is_deserted = False
        #: version of the central weights adopted last
        self._version = 0
        #: whether the master has given weights to begin with
        self._has_begun = False
        #: what this rank remembers of an assignment that may go on, until it does; to be set before it is started again
        self.memory: Memory | None = None
        #: where this worker moves the central weights itself; None: the master does
        self._own: OwnUpdates | None = None
        #: of the learning rates of steps made here; and the training samples of all workers behind the next step, as
        #: far as is known: between two answers of the master the others are taken to be as fast as this one
        self._schedule = LearningRateSchedule()
        self._n_trained = 0
        self._period = Period()
        #: whether the period is over and waits to be pushed
        self._is_due = False
        #: whether a push is not yet answered
        self._outstanding = False
        #: whether the next batch may be trained before the answer
        self._may_run_ahead = False
        self._gradients: Gradients = NO_GRADIENTS
        #: what the callbacks of worker 1 want the learning rates to be multiplied by; None: there are none
        self._rate_factor: float | None = None
        #: what the user wants to be called at the epochs, if this is worker 1; to be set before the first assignment
        self.callbacks: EpochCallbacks | None = None
        #: the user's figure of merit, if this is worker 1; to be set before the first assignment
        self.figure: Callable[[dict[str, Any]], Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an assignment is under way here."""
        return self._assignment is not None

    @property
    def can_work(self) -> bool:
        """Whether there is a batch to be trained now."""
        return self._training and not self._is_due and (not self._outstanding or self._may_run_ahead)

    @property
    def works_first(self) -> bool:
        """Whether that batch comes before any message."""
        return self._outstanding and self.can_work

    def handle(self, received: Received) -> None:
        """Take in one message of the master and answer it. Errors of the trial are answered, not raised."""
        message = received.message
        assignment = getattr(message, "assignment", None)
        if not isinstance(message, msg.StartFold) and assignment != self._assignment:
            logger.debug("dropped a late %s about assignment %s", type(message).__name__, assignment)
            return
        with self._answering_for(assignment):
            self._dispatch(message, received.payload)

    def handle_follower(self, received: Received) -> None:
        """Take in an answer of one of the other ranks of this worker."""
        message = received.message
        if self._ring is None or getattr(message, "assignment", None) != self._assignment:
            logger.debug("dropped a late %s of a follower", type(message).__name__)
        elif isinstance(message, msg.WorkerFailed):
            self._end()
            self._block.send(MASTER, message)
        else:
            with self._answering_for(self._assignment):
                self._ring.hear(received)

    def work(self) -> None:
        """Train one batch. Errors of the trial are answered, not raised."""
        # As `_answering_for`, whose generator would take longer than all else that is done here about a batch.
        try:
            self._train_batch()
        except ProtocolError:
            raise
        except (Exception, SystemExit) as error:
            self._fail(self._assignment, error)

    @contextmanager
    def _answering_for(self, assignment: int | None) -> Iterator[None]:
        try:
            yield
        except ProtocolError:
            raise
        except (Exception, SystemExit) as error:
            # A user's code that leaves must not take the search with it.
            self._fail(assignment, error)

    def _dispatch(self, message: msg.Message, payload: np.ndarray | None) -> None:
        match message:
            case msg.StartFold():
                self._open(message)
            case msg.Train():
                self._go_on(message, payload)
            case msg.Fence():
                self._hand_in(message, payload)
            case msg.Validate():
                with self._timeline.span("validate"):
                    self._validate(message, payload)
            case msg.CallBack():
                self._call_back(message, payload)
            case msg.Judge():
                with self._timeline.span("judge"):
                    if self.figure is None:
                        raise ProtocolError("A figure of merit to call was expected.")
                    with PULSE.unwatched():
                        figure = judged(self.figure, message.fold)
                self._block.send(MASTER, msg.Judged(assignment=message.assignment, figure_of_merit=figure))
            case msg.Halt():
                self._gradients.wants_end = True
            case msg.EndFold():
                self._end()
            case _:
                raise ProtocolError(f"A worker takes no {type(message).__name__}.")

    # ------------------------------------------------------------ from the master

    def _open(self, start: msg.StartFold) -> None:
        self._end()
        self._assignment, self._start = start.assignment, start
        if self.memory is not None and self.memory.assignment != start.assignment:
            self.memory = None  # that one did not go on
        mine = start if self._ring is None else self._ring.start(start)
        PULSE.expect(SLOW)
        with self._timeline.span("build model, read data", "data", trial=start.trial, fold=start.fold):
            task = self._task = self._tasks.open(mine)
        n_weights, n_state = task.adapter.n_weights, task.adapter.n_state
        self._rule = local_rule(task.options, n_weights)
        self._schedule = task.options.schedule
        self._gradients = self._gradients_of(task, mine.n_workers)
        initial = None
        if start.worker == 1:
            initial = aligned_empty(n_weights + n_state)
            task.adapter.read_weights(initial[:n_weights])
            task.adapter.read_state(initial[n_weights:])
        ready = msg.WorkerReady(
            assignment=start.assignment,
            n_weights=n_weights,
            n_state=n_state,
            n_train=task.n_train,
            n_shard=task.n_shard,
            has_validation=task.n_validation > 0,
        )
        if self._monitor is not None:
            self._monitor.start()

        def then(answers: list[Received]) -> None:
            check_alike(ready, answers)
            self._block.send(MASTER, ready, initial)

        self._when_ring_answers(then)

    def _gradients_of(self, task: FoldTask, n_ranks: int) -> Gradients:
        gradient, timeline = self._rule.gradient, self._timeline
        if task.options.mode == "allreduce":
            return CommonBatches(task, gradient, self._groups.team, n_ranks, timeline)
        if self._ring is not None:
            _, start = self._opened()
            return RingBatches(task, gradient, self._ring, start.assignment, self._rule.point, timeline)
        return OwnBatches(task, gradient, timeline)

    def _go_on(self, train: msg.Train, payload: np.ndarray | None) -> None:
        task, start = self._opened()
        if train.shared:
            self._join(task, start, (train.shared[0], train.shared[1]))
        # The other ranks of a group are on their way to the next step: one that fails here must not be missing there.
        with in_next_step(self._gradients):
            kept = load_local(Path(train.restore), start.worker) if train.restore else self._remember()
            model_state = None if kept is None else kept.pop(_MODEL_STATE, None)
            if kept:
                self._rule.load_state(kept)
            is_midway = train.mid_epoch
            if kept and "weights" in kept and train.adopt == "weights" and payload is not None:
                # It has outlived others, and goes on with weights of its own, as the update rule has such.
                train, payload, is_midway = replace(train, adopt="nothing"), payload[task.adapter.n_weights :], True
            state_given = self._adopt(train.adopt, payload)
            if is_midway and model_state is not None:
                task.adapter.write_state(model_state)  # its own: in the middle of an epoch nobody averages
            if train.position is not None:
                restore_position(task, self._gradients, train.position)
            if self._ring is not None:
                self._pass_on(self._ring, train, state_given)
            task.adapter.write_weights(self._rule.point())
        if train.rate_factor is not None:
            self._rate_factor = train.rate_factor
        self._version, self._has_begun = train.version, True
        self._n_trained = train.n_samples + self._period.n_samples * start.n_workers
        self._outstanding, self._training = False, not self._is_deserted
        if self._is_due:
            self._push()

    def _join(self, task: FoldTask, start: msg.StartFold, place: tuple[int, int]) -> None:
        """Work in the memory that the master has made, from now on."""
        options, adapter = task.options, task.adapter
        try:
            memory = self._block.join(MASTER, place)
        except OSError as error:
            if options.mode == "allreduce":
                # The others wait in memory for this rank, and hear of its death alone.
                raise ProtocolError(f"The memory of the workers' steps cannot be joined: {error}.") from error
            raise
        if isinstance(self._rule, StepTogether):
            rank, n_ranks, together = start.worker - 1, start.n_workers, self._groups.team
            assert isinstance(self._gradients, CommonBatches)
            assert together is not None
            self._gradients.averaging = self._rule.share(
                lambda optimizer: SharedStep(memory, optimizer, adapter.n_weights, rank, n_ranks, together)
            )
            return
        rule = central_rule(options, adapter.n_weights, start.n_workers)
        shared = SharedWeights(memory, rule, adapter.n_weights, adapter.n_state, start.n_workers)
        shared.policy = StalenessPolicy.parse(options.staleness)
        shared.factor = lambda before, after: self._factor(task, before, after)
        self._own = OwnUpdates(shared)

    def _hand_in(self, fence: msg.Fence, payload: np.ndarray | None) -> None:
        task, start = self._opened()
        self._outstanding = self._training = False
        self._adopt(fence.adopt, payload)
        if self._period.n_batches and self._rule.drains:
            self._push()
        self._outstanding = False
        # What is left of a period has no update of its own in this epoch, but its samples were trained in it.
        left = self._period.take_sums()
        state = aligned_empty(task.adapter.n_state)
        task.adapter.read_state(state)
        files = {}
        if fence.checkpoint:
            # The ranks of a ring have one state each, which are averaged, as at the end of an epoch.
            own = {_MODEL_STATE: state} if fence.mid_epoch and len(state) and self._ring is None else {}
            files = save_local(Path(fence.checkpoint), start.worker, {**self._rule.state(), **own})
        position = {**self._gradients.position(), "discrete": task.adapter.discrete_state()}
        load = {} if self._monitor is None else self._monitor.end_epoch()

        def then(answers: list[Received]) -> None:
            states = [state]
            for answer in answers:
                of_follower = answer.message
                assert isinstance(of_follower, msg.FenceReached)
                position.setdefault("followers", []).append(of_follower.position)
                states.append(aligned_empty(0) if answer.payload is None else answer.payload)
            np.copyto(state, np.mean(states, axis=0, dtype=np.float64), casting="same_kind")
            reached = msg.FenceReached(
                assignment=start.assignment,
                position=position,
                n_samples=left.n_samples,
                sums=left.sums,
                files=files,
                load=load,
            )
            self._block.send(MASTER, reached, state)
            self._timeline.flush()

        if self._ring is not None:
            self._ring.tell(msg.Fence(assignment=start.assignment))
        self._when_ring_answers(then)

    def _pass_on(self, ring: Ring, train: msg.Train, state: np.ndarray | None) -> None:
        """Give the followers the model state, and the positions they handed in, where these came."""
        positions = (train.position or {}).get("followers") or [None] * (ring.n_ranks - 1)
        plain = msg.Train(assignment=train.assignment, version=train.version, adopt="nothing")
        ring.tell_each([replace(plain, position=position) for position in positions], state)

    def _validate(self, message: msg.Validate, payload: np.ndarray | None) -> None:
        task, start = self._opened()
        if payload is None:
            raise ProtocolError("Central weights and model state were expected beside the message.")
        if self._ring is not None:
            self._ring.tell(message, payload)
        n_samples, sums = validate(task, payload)

        def then(answers: list[Received]) -> None:
            total, n_total = dict(sums), n_samples
            for answer in answers:
                of_follower = answer.message
                assert isinstance(of_follower, msg.Validated)
                n_total += of_follower.n_samples
                for name, value in of_follower.sums.items():
                    total[name] = total.get(name, 0.0) + value
            self._block.send(MASTER, msg.Validated(assignment=start.assignment, n_samples=n_total, sums=total))

        self._when_ring_answers(then)

    def _call_back(self, message: msg.CallBack, payload: np.ndarray | None) -> None:
        task, start = self._opened()
        adapter, n_weights = task.adapter, task.adapter.n_weights
        if payload is None or self.callbacks is None:
            raise ProtocolError("Callbacks, and weights to show them, were expected.")
        adapter.write_weights(payload[:n_weights])
        adapter.write_state(payload[n_weights:])
        base = base_learning_rate(task.options)
        rate = base * message.rate_factor
        with PULSE.unwatched():
            wishes = self.callbacks.call(adapter, message.epoch, message.metrics, rate, is_last=message.is_last)
        changed = None
        if wishes.has_changed:
            changed = aligned_empty(len(payload))
            adapter.read_weights(changed[:n_weights])
            adapter.read_state(changed[n_weights:])
        # Left alone, the factor stays as it is to the last bit.
        factor = message.rate_factor if wishes.learning_rate == rate else wishes.learning_rate / base
        answer = msg.CalledBack(assignment=start.assignment, rate_factor=factor, stop=wishes.stop)
        self._block.send(MASTER, answer, changed)

    def _when_ring_answers(self, then: Then) -> None:
        if self._ring is None:
            then([])
        else:
            self._ring.expect(then)

    def _adopt(self, kind: str, payload: np.ndarray | None) -> np.ndarray | None:
        """Take in the master's answer and the averaged model state; -> the latter, None where it did not come."""
        task, _ = self._opened()
        n_answer = 0 if kind == "nothing" else task.adapter.n_weights
        n_given = 0 if payload is None else len(payload)
        if n_given not in (n_answer, n_answer + task.adapter.n_state):
            raise ProtocolError(f"An answer of {n_answer} numbers ({kind}) was expected. Received: {n_given}.")
        if payload is not None and n_answer:
            self._rule.adopt(kind, payload[:n_answer])
        if payload is None or n_given == n_answer:
            return None
        task.adapter.write_state(payload[n_answer:])
        return payload[n_answer:]

    def abandon(self) -> Memory | None:
        """Let go of an assignment whose ranks are not together any more; this worker is not used again.

        -> what the next one is to have as its `memory`.
        """
        memory = self.memory
        if self._assignment is not None and self._task is not None and self._has_begun:
            state = aligned_empty(self._task.adapter.n_state)
            self._task.adapter.read_state(state)
            memory = Memory(self._assignment, {**self._rule.state(), _MODEL_STATE: state})
        self._ring = None  # its ranks find out by themselves
        self._end()
        return memory

    def _remember(self) -> dict[str, Any] | None:
        memory, self.memory = self.memory, None
        return None if memory is None else memory.state

    def _end(self) -> None:
        # Also after an `open` that failed half way: it may have left a model behind.
        was_open = self._assignment is not None
        if self._monitor is not None:
            self._monitor.stop()
        if was_open and self._ring is not None and self._assignment is not None:
            self._ring.tell(msg.EndFold(assignment=self._assignment))
        self._assignment, self._task, self._start, self._gradients = None, None, None, NO_GRADIENTS
        self._rule, self._period = PushGradient(0), Period()
        self._training = self._is_due = self._outstanding = self._is_deserted = self._has_begun = False
        self._rate_factor, self._own = None, None
        if was_open:
            release(self._tasks)

    # ------------------------------------------------------------ training

    def _train_batch(self) -> None:
        task, start = self._opened()
        if not self._period.n_batches:
            self._period.base_version = self._version
        step = self._gradients.step()
        if step.has_failed:
            # The rank that failed says why. An answer of the master that comes before must not begin another step,
            # in which nobody would be with us.
            self._training, self._is_deserted = False, True
            return
        together = task.options.mode == "allreduce"
        self._scale_learning_rate(step.n_samples if together else step.n_samples * start.n_workers)
        # At the end of an allreduce epoch nobody waits in a step for this rank any more.
        with in_next_step(self._gradients) if together and not step.end_of_pass else nullcontext():
            if self._rule.step(step.n_samples):
                task.adapter.write_weights(self._rule.point())
        self._period.add(step.metrics)
        self._period.end_of_pass = step.end_of_pass
        self._may_run_ahead = False
        # A sync period does not reach over the end of a pass: synchronous workers meet there, and a period longer
        # than a pass would train more than the epochs that were asked for.
        if step.end_of_pass or (self._period.n_batches >= task.options.sync_every and not together):
            self._is_due = True
            if self._own is not None:
                self._exchange(self._own)
            elif not self._outstanding:
                self._push()

    def _scale_learning_rate(self, n_samples: int) -> None:
        """Take the learning rate of this point of the training for the step that comes next.

        `n_samples`: what all workers train in it.
        """
        task, _ = self._opened()
        before, self._n_trained = self._n_trained, self._n_trained + n_samples
        if self._schedule.changes or self._rate_factor is not None:
            self._rule.scale_learning_rate(self._factor(task, before, self._n_trained))

    def _factor(self, task: FoldTask, before: int, after: int) -> float:
        """What learning rates are multiplied by in an update that takes the samples trained from one to the other."""
        factor = self._schedule.factor_of_update(before, after, task.n_train, task.options.epochs)
        return factor * (1.0 if self._rate_factor is None else self._rate_factor)

    def _exchange(self, own: OwnUpdates) -> None:
        """Do what the master would on a push, and go on; or, where that was the last, tell it of all of them."""
        task, start = self._opened()
        with self._timeline.span("exchange", "message"):
            done = own.make(self._rule, self._period)
            task.adapter.write_weights(self._rule.point())
        self._version, self._n_trained = done.version, done.n_samples
        self._is_due, self._period = False, Period()
        if done.is_full:
            self._block.send(MASTER, own.tell(start.assignment))
            self._outstanding = True

    def _push(self) -> None:
        _, start = self._opened()
        period = self._period
        push = msg.PushUpdate(
            assignment=start.assignment,
            base_version=period.base_version,
            n_samples=period.n_samples,
            n_batches=period.n_batches,
            sums=period.sums,
            end_of_pass=period.end_of_pass,
        )
        with self._timeline.span("push", "message"):
            # In allreduce all workers have the same weights: those of one are enough.
            is_one_of_many = self._rule.is_common and start.worker > 1
            self._block.send(MASTER, push, None if is_one_of_many else self._rule.finish())
        # Behind the end of a pass lies the next epoch, which a lone worker must not begin before the fence.
        self._may_run_ahead = start.overlap and not period.end_of_pass
        self._outstanding, self._is_due, self._period = True, False, Period()

    def _fail(self, assignment: int | None, error: BaseException) -> None:
        logger.info("assignment %s fails on this worker", assignment, exc_info=error)
        failed = worker_failed(assignment, error, self._world_rank)
        self._end()
        self._block.send(MASTER, failed)

    # ------------------------------------------------------------ helpers

    def _opened(self) -> tuple[FoldTask, msg.StartFold]:
        if self._task is None or self._start is None:
            raise ProtocolError("No assignment is under way on this worker.")
        return self._task, self._start
