"""A worker, which computes true gradients on its shard for its master.

It is reactive: `handle` takes one message of the master, `work` trains one batch; neither waits. So a worker is
never stuck because a peer failed, and master and worker can share a process. Allreduce alone is a collective call. The
training itself stands in `worker.training`.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.timeline import NO_TIMELINE, Timeline
from nnlo_opt.core.block.answers import failures_to, fold_failed
from nnlo_opt.core.block.exchange.rounds import average_states
from nnlo_opt.core.block.task import FoldTask, TaskFactory, open_task, release
from nnlo_opt.core.block.worker.group import Then, check_members
from nnlo_opt.core.block.worker.training import MASTER, LocalTraining, Partners
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.models.adapter import EpochCallbacks
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.core.trials.figure import judged

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a worker when ranks of its team died, for the worker that its rank is after that."""

    assignment: int
    #: memory of its update rule, and float model state, as a checkpoint in the middle of an epoch has them
    state: dict[str, Any]


class LoadMonitor(Protocol):
    """Measures what this process takes of its machine, epoch by epoch."""

    def start(self) -> None:
        """Begin an epoch."""

    def end_epoch(self) -> dict[str, float]:
        """Return the figures of the epoch, and begin another one."""

    def stop(self) -> None:
        """Measure no more."""


class WorkerSetup(Frozen):
    """All that a worker is made of."""

    #: leads to the master (end 0)
    block: Transport
    tasks: TaskFactory
    world_rank: int
    #: ranks with which it computes gradients
    partners: Partners = Partners()
    timeline: Timeline = NO_TIMELINE
    #: measures what this process takes of its machine, for the history; None if that is not wanted
    monitor: LoadMonitor | None = None
    #: callbacks of the user, if this is worker 1
    callbacks: EpochCallbacks | None = None
    #: the user's figure of merit, if this is worker 1
    figure: Callable[[dict[str, Any], FoldTask], Any] | None = None
    #: memory of an assignment that may continue after deaths
    memory: Memory | None = None


class Worker:
    """One worker; serves one assignment after another.

    Between messages it works: `work` trains one batch if `can_work` is true. A worker that overlaps may be one batch
    ahead of the master's answer; that batch comes before the answer is read (`works_first`), so that the order of
    events does not depend on which rank is faster.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._block, self._timeline = setup.block, setup.timeline
        #: the ranks of this worker; None if it is the only one
        self._group = setup.partners.group
        #: memory of an assignment that may continue, until it does
        self._memory = setup.memory
        #: assignment served; None between assignments and after a failure, when messages about it are dropped
        self._assignment: int | None = None
        #: the training of that assignment; None while it is opened, and without an assignment
        self._training: LocalTraining | None = None
        self._answers_failures = failures_to(self._fail)

    @property
    def is_busy(self) -> bool:
        """True if an assignment is under way here."""
        return self._assignment is not None

    @property
    def can_work(self) -> bool:
        """True if there is a batch to be trained now."""
        training = self._training
        return training is not None and training.can_train

    @property
    def works_first(self) -> bool:
        """True if that batch comes before any message."""
        training = self._training
        return training is not None and training.is_outstanding and training.can_train

    def handle(self, received: Received) -> None:
        """Take in one message of the master and answer it; failures of the trial are answered, not raised."""
        message = received.message
        assignment = getattr(message, "assignment", None)
        if isinstance(message, msg.StartFold):
            self._end()
            self._assignment = message.assignment
        elif assignment != self._assignment:
            logger.debug("dropped a late %s about assignment %s", type(message).__name__, assignment)
            return
        with self._answers_failures:
            self._dispatch(message, received.payload)

    def handle_follower(self, received: Received) -> None:
        """Take in an answer of a member of this worker's group."""
        message = received.message
        if self._group is None or getattr(message, "assignment", None) != self._assignment:
            logger.debug("dropped a late %s of a member", type(message).__name__)
        elif isinstance(message, msg.FoldFailed):
            self._end()
            self._block.send(MASTER, message)
        else:
            with self._answers_failures:
                self._group.hear(received)

    def work(self, undisturbed_s: float = 0.0) -> None:
        """Train one batch, and more within so many seconds if these need no message.

        Failures of the trial are answered, not raised.
        """
        training = self._opened()
        until_s = time.perf_counter() + undisturbed_s
        with self._answers_failures:
            training.train_batch()
            while training.is_undisturbed and time.perf_counter() < until_s:
                PULSE.ticks += 1
                training.train_batch()

    def _dispatch(self, message: msg.Message, payload: np.ndarray | None) -> None:
        match message:
            case msg.StartFold():
                self._open(message)
            case msg.Train():
                self._opened().go_on(message, payload, None if message.restore else self._remember())
            case msg.Fence():
                self._hand_in(message, payload)
            case msg.Validate():
                with self._timeline.span("validate"):
                    self._validate(message, payload)
            case msg.CallBack():
                self._call_back(message, payload)
            case msg.Judge():
                with self._timeline.span("judge"):
                    self._judge(message, payload)
            case msg.Halt():
                self._opened().gradients.end_pass()
            case msg.EndFold():
                self._end()
            case _:
                raise ProtocolError(f"A worker takes no {type(message).__name__}.")

    # ------------------------------------------------------------ beginning and end of an assignment

    def _open(self, start: msg.StartFold) -> None:
        if self._memory is not None and self._memory.assignment != start.assignment:
            self._memory = None  # that assignment did not continue
        mine = start if self._group is None else self._group.start(start)
        task = open_task(self._setup.tasks, mine, self._timeline)
        self._training = LocalTraining(self._block, task, start, self._setup.partners, self._timeline)
        initial = task.read_model() if start.worker == 1 else None
        ready = task.ready(start.assignment)
        if self._setup.monitor is not None:
            self._setup.monitor.start()

        def then(answers: list[Received]) -> None:
            check_members(ready, answers)
            self._block.send(MASTER, ready, initial)

        self._when_members_answer(then)

    def _remember(self) -> dict[str, Any] | None:
        memory, self._memory = self._memory, None
        return None if memory is None else memory.state

    def abandon(self) -> Memory | None:
        """Let go of an assignment, as ranks of the team have died; this worker is not used again.

        Returns:
            The `memory` of the worker that follows.
        """
        memory = self._memory
        if self._assignment is not None and self._training is not None and self._training.has_begun:
            memory = Memory(self._assignment, self._training.remembered())
        self._group = None  # its ranks notice by themselves
        self._end()
        return memory

    def _end(self) -> None:
        # Also after an `open` that failed half way: it may have left a model behind.
        was_open = self._assignment is not None
        if self._setup.monitor is not None:
            self._setup.monitor.stop()
        if was_open and self._group is not None and self._assignment is not None:
            self._group.tell(msg.EndFold(assignment=self._assignment))
        self._assignment = self._training = None
        if was_open:
            release(self._setup.tasks)

    def _fail(self, error: BaseException) -> None:
        failed = fold_failed(self._assignment, error, self._setup.world_rank)
        self._end()
        self._block.send(MASTER, failed)

    def _opened(self) -> LocalTraining:
        if self._training is None:
            raise ProtocolError("No assignment is under way on this worker.")
        return self._training

    # ------------------------------------------------------------ between two epochs

    def _hand_in(self, fence: msg.Fence, payload: np.ndarray | None) -> None:
        training = self._opened()
        left = training.stop(fence, payload)
        state = training.task.model_state()
        files = training.save(fence, state)
        position = training.gradients.position()
        load = {} if self._setup.monitor is None else self._setup.monitor.end_epoch()

        def then(answers: list[Received]) -> None:
            states = [state]
            for answer in answers:
                of_member = answer.message
                assert isinstance(of_member, msg.FenceReached)
                position.setdefault("followers", []).append(of_member.position)
                assert answer.payload is not None
                states.append(answer.payload)
            np.copyto(state, average_states(states), casting="same_kind")
            reached = msg.FenceReached(
                assignment=fence.assignment,
                position=position,
                n_samples=left.n_samples,
                sums={**left.sums},
                files=files,
                load=load,
            )
            self._block.send(MASTER, reached, state)
            self._timeline.flush()

        if self._group is not None:
            self._group.tell(msg.Fence(assignment=fence.assignment))
        self._when_members_answer(then)

    def _validate(self, message: msg.Validate, payload: np.ndarray | None) -> None:
        task = self._opened().task
        if self._group is not None:
            self._group.tell(message, payload)
        own = task.validate(message.assignment, payload)

        def then(answers: list[Received]) -> None:
            total = Metrics(own.n_samples, own.sums)
            for answer in answers:
                of_member = answer.message
                assert isinstance(of_member, msg.Validated)
                total = total.merge(Metrics(of_member.n_samples, of_member.sums))
            self._block.send(MASTER, own.replaced(n_samples=total.n_samples, sums={**total.sums}))

        self._when_members_answer(then)

    def _when_members_answer(self, then: Then) -> None:
        if self._group is None:
            then([])
        else:
            self._group.expect(then)

    # ------------------------------------------------------------ functions of the user

    def _call_back(self, message: msg.CallBack, payload: np.ndarray | None) -> None:
        task, callbacks = self._opened().task, self._setup.callbacks
        if callbacks is None:
            raise ProtocolError("Callbacks were expected on this worker.")
        task.write_model(payload)
        base = task.options.rule.base_learning_rate(task.options)
        rate = base * message.rate_factor
        with PULSE.unwatched():
            wishes = callbacks.call(task.adapter, message.epoch, message.metrics, rate, is_last=message.is_last)
        changed = task.read_model() if wishes.has_changed else None
        # Left alone, the factor stays as it is to the last bit.
        factor = message.rate_factor if wishes.learning_rate == rate else wishes.learning_rate / base
        answer = msg.CalledBack(assignment=message.assignment, rate_factor=factor, stop=wishes.stop)
        self._block.send(MASTER, answer, changed)

    def _judge(self, message: msg.Judge, payload: np.ndarray | None) -> None:
        function, task = self._setup.figure, self._opened().task
        if function is None:
            raise ProtocolError("A figure of merit to call was expected.")
        task.write_model(payload)
        with PULSE.unwatched():
            figure = judged(lambda fold: function(fold, task), message.fold)
        self._block.send(MASTER, msg.Judged(assignment=message.assignment, figure_of_merit=figure))
