"""A worker: computes true gradients on its shard and pushes them to its master.

It is reactive: `handle` takes one message of the master, works, and answers; it never waits. So a worker whose peer
failed is never stuck, and master and worker can share a process.
"""

import logging
import math
import socket
import traceback
from typing import Any

import numpy as np

from nnlo_opt.algorithms.downpour import LocalSteps
from nnlo_opt.algorithms.optimizers import make_optimizer
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.transport import Received, Transport
from nnlo_opt.errors import NnloError, ProtocolError, TrialError
from nnlo_opt.training.task import FoldTask, TaskFactory
from nnlo_opt.vectors import aligned_empty

logger = logging.getLogger(__name__)

#: end of the master on the transport of a team
MASTER = 0


def reason_of(error: BaseException) -> str:
    """An exception in one sentence: our own as they are, others with their type."""
    text = " ".join(str(error).split())
    if isinstance(error, NnloError):
        return text
    if isinstance(error, MemoryError):
        return f"out of memory: {text or 'Python could not allocate'}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Worker:
    """One worker; serves one assignment after another."""

    def __init__(self, block: Transport, tasks: TaskFactory, world_rank: int) -> None:
        self._block = block
        self._tasks = tasks
        self._world_rank = world_rank
        #: assignment served; None between assignments and after a failure, when messages about it are dropped
        self._assignment: int | None = None
        #: set as long as `_assignment` is
        self._task: FoldTask | None = None
        #: weights this worker computes at (float32, n_weights); with local steps they run ahead of the central ones
        self._weights = aligned_empty(0)
        #: the update under construction, float32 (n_weights,)
        self._update = aligned_empty(0)
        self._gradient = aligned_empty(0)
        self._local_steps: LocalSteps | None = None
        self._local_learning_rate = 0.0

    def handle(self, received: Received) -> None:
        """Take in one message of the master and answer it. Errors of the trial are answered, not raised."""
        message = received.message
        assignment = getattr(message, "assignment", None)
        if not isinstance(message, msg.StartFold) and assignment != self._assignment:
            logger.debug("dropped a late %s about assignment %s", type(message).__name__, assignment)
            return
        try:
            self._dispatch(message, received.payload)
        except ProtocolError:
            raise
        except (Exception, SystemExit) as error:
            # A user's code that leaves must not take the search with it.
            self._fail(assignment, error)

    def _dispatch(self, message: msg.Message, payload: np.ndarray | None) -> None:
        match message:
            case msg.StartFold():
                self._start(message)
            case msg.Train():
                self._train(message, payload)
            case msg.Fence():
                self._hand_in()
            case msg.Validate():
                self._validate(payload)
            case msg.EndFold():
                self._end()
            case _:
                raise ProtocolError(f"A worker takes no {type(message).__name__}.")

    # ------------------------------------------------------------ one message each

    def _start(self, start: msg.StartFold) -> None:
        self._end()
        self._assignment = start.assignment
        task = self._task = self._tasks.open(start)
        n_weights, n_state = task.adapter.n_weights, task.adapter.n_state
        if len(self._weights) != n_weights:
            self._weights, self._update, self._gradient = (aligned_empty(n_weights) for _ in range(3))
        self._local_steps = None
        if task.options.sync_every > 1:
            self._local_steps = LocalSteps(n_weights)
            # Local steps are plain SGD at the rate the master's optimizer would take.
            self._local_learning_rate = make_optimizer(
                task.options.optimizer, 1, task.options.learning_rate, task.options.optimizer_params
            ).learning_rate
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
        self._block.send(MASTER, ready, initial)

    def _train(self, train: msg.Train, payload: np.ndarray | None) -> None:
        task = self._running_task()
        self._adopt(payload)
        if train.position is not None:
            self._resume_at(train.position)
        sums: dict[str, float] = {}
        n_samples = n_batches = 0
        while True:
            batch = task.stream.next()
            gradient = self._update if self._local_steps is None else self._gradient
            metrics = task.adapter.gradient(batch.x, batch.y, gradient)
            if not math.isfinite(metrics.sums["loss"]):
                raise TrialError(f"the loss is {metrics.sums['loss']} (a non-finite loss): lower the learning rate")
            n_samples += metrics.n_samples
            n_batches += 1
            for name, value in metrics.sums.items():
                sums[name] = sums.get(name, 0.0) + value
            if self._local_steps is not None:
                self._local_steps.add(gradient, metrics.n_samples, self._weights, self._local_learning_rate)
                task.adapter.write_weights(self._weights)
            # A sync period does not reach over the end of a pass: synchronous workers meet there, and a period longer
            # than a pass would train more than the epochs that were asked for.
            if n_batches >= task.options.sync_every or batch.end_of_pass:
                break
        if self._local_steps is not None:
            self._local_steps.result(self._update)
        push = msg.PushUpdate(
            assignment=train.assignment,
            base_version=train.version,
            n_samples=n_samples,
            n_batches=n_batches,
            sums=sums,
            end_of_pass=batch.end_of_pass,
        )
        self._block.send(MASTER, push, self._update)

    def _hand_in(self) -> None:
        task = self._running_task()
        state = aligned_empty(task.adapter.n_state)
        task.adapter.read_state(state)
        sweep, offset = task.stream.position
        position = {"pass": sweep, "offset": offset, "discrete": task.adapter.discrete_state()}
        self._block.send(MASTER, msg.FenceReached(assignment=self._number(), position=position), state)

    def _validate(self, payload: np.ndarray | None) -> None:
        task = self._running_task()
        self._adopt(payload)
        n_samples, sums = 0, dict[str, float]()
        for x, y in task.validation_batches():
            metrics = task.adapter.evaluate(x, y)
            n_samples += metrics.n_samples
            for name, value in metrics.sums.items():
                sums[name] = sums.get(name, 0.0) + value
        for name, value in sums.items():
            if not math.isfinite(value):
                raise TrialError(f"val_{name} is {value} (a non-finite figure): lower the learning rate")
        self._block.send(MASTER, msg.Validated(assignment=self._number(), n_samples=n_samples, sums=sums))

    def _end(self) -> None:
        # Also after an `open` that failed half way: it may have left a model behind.
        was_open = self._assignment is not None
        self._assignment, self._task, self._local_steps = None, None, None
        if was_open:
            try:
                self._tasks.close()
            except Exception:
                # The fold is over: what a framework says on its way out changes nothing about it.
                logger.warning("a model could not be released", exc_info=True)

    def _fail(self, assignment: int | None, error: BaseException) -> None:
        logger.info("assignment %s fails on this worker", assignment, exc_info=error)
        failed = msg.WorkerFailed(
            assignment=-1 if assignment is None else assignment,
            reason=reason_of(error),
            traceback="".join(traceback.format_exception(error)),
            world_rank=self._world_rank,
            host=socket.gethostname(),
        )
        self._end()
        self._block.send(MASTER, failed)

    # ------------------------------------------------------------ helpers

    def _adopt(self, payload: np.ndarray | None) -> None:
        """Take over central weights and, where they came too, the averaged model state."""
        task = self._running_task()
        if payload is None or len(payload) < len(self._weights):
            raise ProtocolError("Central weights were expected beside the message.")
        n_weights = len(self._weights)
        np.copyto(self._weights, payload[:n_weights])
        task.adapter.write_weights(self._weights)
        if len(payload) > n_weights:
            task.adapter.write_state(payload[n_weights:])

    def _resume_at(self, position: dict[str, Any]) -> None:
        task = self._running_task()
        task.stream.seek(position["pass"], position["offset"])
        if position.get("discrete"):
            task.adapter.load_discrete_state(position["discrete"])

    def _running_task(self) -> FoldTask:
        if self._task is None:
            raise ProtocolError("No assignment is under way on this worker.")
        return self._task

    def _number(self) -> int:
        if self._assignment is None:
            raise ProtocolError("No assignment is under way on this worker.")
        return self._assignment
