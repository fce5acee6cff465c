"""A worker: computes gradients on its shard for its master.

It is reactive: `handle` handles one message of the master, `work` trains one batch; neither waits. So a worker never
hangs because a peer failed, and master and worker can share a process. Only allreduce is a collective call.
`worker.training` has the training itself.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.timeline import NO_TIMELINE, Timeline
from nnlo_opt.core.base.vectors import with_bytes, without_bytes
from nnlo_opt.core.block.answers import failures_to, fold_failed
from nnlo_opt.core.block.exchange.rounds import average_states
from nnlo_opt.core.block.task import FoldTask, TaskFactory, metrics_of, release, validated
from nnlo_opt.core.block.worker.group import Then, check_members
from nnlo_opt.core.block.worker.training import MASTER, LocalTraining, Partners
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.models.adapter import EpochCallbacks
from nnlo_opt.core.training.history import plain_states, sum_of_states
from nnlo_opt.core.trials.figure import judged

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """State of a worker at the death of ranks of its team, for the next worker of its rank."""

    assignment: int
    #: memory of its update rule, and float model state, as in a checkpoint within an epoch
    state: dict[str, Any]


class LoadMonitor(Protocol):
    """Measures the load of this process, epoch by epoch."""

    def start(self) -> None:
        """Start the first epoch."""

    def end_epoch(self) -> dict[str, float]:
        """Return the load in the epoch, and start the next one."""

    def stop(self) -> None:
        """Stop measuring."""


class WorkerSetup(Frozen):
    """Parts of a worker."""

    #: transport to the master (end 0)
    block: Transport
    tasks: TaskFactory
    world_rank: int
    #: ranks that it computes gradients with
    partners: Partners = Partners()
    timeline: Timeline = NO_TIMELINE
    #: measures the load of this process for the history; None to not measure it
    monitor: LoadMonitor | None = None
    #: returns the callbacks of the user for a training, called on worker 1; None if there are none
    make_callbacks: Callable[[FoldTask], EpochCallbacks | None] = lambda task: None
    #: the user's figure of merit, if this is worker 1
    figure: Callable[[dict[str, Any], FoldTask], Any] | None = None
    #: memory of an assignment that may continue after deaths
    memory: Memory | None = None


class Worker:
    """One worker; serves one assignment after another.

    Between messages `work` trains one batch, if `can_work`. A worker that overlaps may be one batch ahead of the
    master's answer; it trains that batch before reading the answer (`works_first`), so that the order of events does
    not depend on which rank is faster.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._block, self._timeline = setup.block, setup.timeline
        #: ranks of this worker; None if it has only one
        self._group = setup.partners.group
        #: memory of an assignment that may continue; None once it has
        self._memory = setup.memory
        #: current assignment; None between assignments and after a failure, when its messages are dropped
        self._assignment: int | None = None
        #: training of that assignment; None while it is being opened, and without one
        self._training: LocalTraining | None = None
        #: callbacks of the user in that training, if this is worker 1
        self._callbacks: EpochCallbacks | None = None
        self._answers_failures = failures_to(self._fail)

    @property
    def is_busy(self) -> bool:
        """True if this rank has an assignment."""
        return self._assignment is not None

    @property
    def can_work(self) -> bool:
        """True if there is a batch to be trained now."""
        training = self._training
        return training is not None and training.can_train

    @property
    def works_first(self) -> bool:
        """True if that batch must be trained before handling any message."""
        training = self._training
        return training is not None and training.is_outstanding and training.can_train

    def handle(self, received: Received) -> None:
        """Handle one message of the master and answer it; failures of the trial are reported, not raised."""
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
        """Handle an answer of a member of this worker's group."""
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
        """Train one batch, and more for `undisturbed_s` seconds while no message is needed.

        Failures of the trial are reported, not raised.
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
            case msg.Measure():
                with self._timeline.span("measure"):
                    self._block.send(MASTER, self._opened().task.measure(message))
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
                raise ProtocolError(f"A worker does not accept {type(message).__name__}.")

    # ------------------------------------------------------------ beginning and end of an assignment

    def _open(self, start: msg.StartFold) -> None:
        if self._memory is not None and self._memory.assignment != start.assignment:
            self._memory = None  # that assignment did not continue
        mine = start if self._group is None else self._group.start(start)
        task = self._setup.tasks.open(mine)
        self._training = LocalTraining(self._block, task, start, self._setup.partners, self._timeline)
        is_first = start.worker == 1
        self._callbacks = self._setup.make_callbacks(task) if is_first else None
        initial = task.read_model() if is_first else None
        ready = task.ready(start.assignment).replaced(calls_back=self._callbacks is not None)
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
        """Drop the assignment, because ranks of the team have died. Do not use this worker afterwards.

        Returns:
            The `memory` for the next worker.
        """
        memory = self._memory
        if self._assignment is not None and self._training is not None and self._training.has_begun:
            memory = Memory(self._assignment, self._training.remembered())
        self._group = None  # its ranks notice by themselves
        self._end()
        return memory

    def _end(self) -> None:
        # Also after a failed `open`, which may have left a model behind.
        was_open = self._assignment is not None
        if self._setup.monitor is not None:
            self._setup.monitor.stop()
        if was_open and self._group is not None and self._assignment is not None:
            self._group.tell(msg.EndFold(assignment=self._assignment))
        self._assignment = self._training = self._callbacks = None
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
        own = training.gradients.take_states()
        load = {} if self._setup.monitor is None else self._setup.monitor.end_epoch()

        def then(answers: list[Received]) -> None:
            states, of_all = [state], [own]
            for answer in answers:
                of_member = answer.message
                assert isinstance(of_member, msg.FenceReached)
                position.setdefault("followers", []).append(of_member.position)
                of_all.append(of_member.states)
                assert answer.payload is not None
                states.append(answer.payload)
            np.copyto(state, average_states(states), casting="same_kind")
            reached = msg.FenceReached(
                assignment=fence.assignment,
                position=position,
                n_samples=left.n_samples,
                sums={**left.sums},
                states=plain_states(reduce(sum_of_states, of_all, {})),
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
            total = metrics_of(own)
            for answer in answers:
                of_member = answer.message
                assert isinstance(of_member, msg.Validated)
                total = total.merge(metrics_of(of_member))
            self._block.send(MASTER, validated(message.assignment, total))

        self._when_members_answer(then)

    def _when_members_answer(self, then: Then) -> None:
        if self._group is None:
            then([])
        else:
            self._group.expect(then)

    # ------------------------------------------------------------ functions of the user

    def _call_back(self, message: msg.CallBack, payload: np.ndarray | None) -> None:
        task, callbacks = self._opened().task, self._callbacks
        if callbacks is None or payload is None:
            raise ProtocolError("Callbacks and weights were expected on this worker.")
        central, state = without_bytes(payload, message.n_state)
        task.write_model(central)
        base = task.options.rule.base_learning_rate(task.options)
        rate = base * message.rate_factor
        with PULSE.unwatched():
            wishes = callbacks.call(
                task.adapter,
                message.epoch,
                message.metrics,
                rate,
                is_last=message.is_last,
                state=state if message.n_state else None,
            )
        changed = task.read_model() if wishes.has_changed else None
        # If unchanged, the factor keeps its exact bits.
        factor = message.rate_factor if wishes.learning_rate == rate else wishes.learning_rate / base
        own = wishes.state
        answer = msg.CalledBack(
            assignment=message.assignment,
            rate_factor=factor,
            stop=wishes.stop,
            n_state=0 if own is None else len(own),
        )
        self._block.send(MASTER, answer, changed if own is None else with_bytes(changed, own))

    def _judge(self, message: msg.Judge, payload: np.ndarray | None) -> None:
        function, task = self._setup.figure, self._opened().task
        if function is None:
            raise ProtocolError("A figure of merit to call was expected.")
        task.write_model(payload)
        with PULSE.unwatched():
            figure = judged(lambda fold: function(fold, task), message.fold)
        self._block.send(MASTER, msg.Judged(assignment=message.assignment, figure_of_merit=figure))
