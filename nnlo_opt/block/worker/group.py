"""A worker of several ranks (`--n-processes`): a leader, which the master knows, and its followers.

The leader is a worker as any other; for each of its steps it tells the followers where to compute (`GroupStep`), and
all of them average their gradients in one collective sum. What the master asks of a worker the leader passes on, and
answers when the followers have answered it. Followers are reactive too: they know their leader only.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnlo_opt.block.answers import worker_failed
from nnlo_opt.block.exchange.gradients import CommonBatches, Gradients, Step
from nnlo_opt.block.task import FoldTask, TaskFactory, release
from nnlo_opt.block.worker.validation import validate
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.transport import Collective, Received, Transport
from nnlo_opt.errors import ProtocolError, TrialError
from nnlo_opt.runtime.pulse import PULSE, SLOW
from nnlo_opt.runtime.timeline import NO_TIMELINE, Timeline
from nnlo_opt.vectors import aligned_empty

Then = Callable[[list[Received]], None]


class WorkerGroup:
    """The leader's side: its followers, and what is being waited for from them."""

    def __init__(self, block: Transport, together: Collective, n_processes: int) -> None:
        """The followers stand at the `n_processes` - 1 ends behind the leader's own; `together` are all of them."""
        self._block = block
        self.together = together
        self.n_ranks = n_processes
        #: ranks of all workers of the assignment
        self.n_all = n_processes
        self._ends = range(block.rank + 1, block.rank + n_processes)
        self._answers: dict[int, Received] = {}
        self._then: Then | None = None

    def start(self, start: msg.StartFold) -> msg.StartFold:
        """Have the followers open their shards; -> the leader's own start, numbered among all ranks of all workers."""
        n_all, first = start.n_workers * self.n_ranks, (start.worker - 1) * self.n_ranks + 1
        self.n_all = n_all
        for i, end in enumerate(self._ends, 1):
            self._block.send(end, start.replaced(worker=first + i, n_workers=n_all))
        return start.replaced(worker=first, n_workers=n_all)

    def tell(self, message: msg.Message, payload: np.ndarray | None = None) -> None:
        """Send to all followers."""
        for end in self._ends:
            self._block.send(end, message, payload)

    def tell_each(self, messages: list[msg.Message], payload: np.ndarray | None = None) -> None:
        """Send one message to each follower."""
        for end, message in zip(self._ends, messages, strict=True):
            self._block.send(end, message, payload)

    def expect(self, then: Then) -> None:
        """Call `then` with an answer of every follower, in their order, when all have come."""
        self._answers, self._then = {}, then

    def hear(self, received: Received) -> None:
        """Take in the answer of a follower."""
        if self._then is None:
            raise ProtocolError(f"A leader expects no {type(received.message).__name__} now.")
        payload = None if received.payload is None else received.payload.copy()
        self._answers[received.source] = replace(received, payload=payload)
        if len(self._answers) == len(self._ends):
            then, self._then = self._then, None
            then([self._answers[end] for end in self._ends])


class GroupBatches(CommonBatches):
    """The leader's gradients: those of the whole ring, all of whose samples count for this worker."""

    def __init__(
        self,
        task: FoldTask,
        gradient: np.ndarray,
        group: WorkerGroup,
        assignment: int,
        point: Callable[[], np.ndarray],
        timeline: Timeline,
    ) -> None:
        """`point()` is where the next gradient is wanted, (n_weights,)."""
        super().__init__(task, gradient, group.together, group.n_all, timeline, counts_all=True)
        self._group = group
        self._message = msg.GroupStep(assignment=assignment)
        self._point = point

    def step(self) -> Step:
        self._group.tell(self._message, self._point())
        return super().step()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSetup:
    """All that a member of a worker group is made of."""

    block: Transport
    #: the leader's end of `block`
    leader: int
    tasks: TaskFactory
    world_rank: int
    #: all ranks of the group
    together: Collective
    timeline: Timeline = NO_TIMELINE


class WorkerGroupMember:
    """A rank that computes gradients for the leader of its worker group."""

    def __init__(self, setup: MemberSetup) -> None:
        self._setup = setup
        self._timeline = setup.timeline
        #: assignment served; None between assignments and after a failure
        self._assignment: int | None = None
        self._task: FoldTask | None = None
        self._batches: CommonBatches | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an assignment is under way here."""
        return self._assignment is not None

    def handle(self, received: Received) -> None:
        """Take in one message of the leader and answer it. Errors of the trial are answered, not raised."""
        message, payload = received.message, received.payload
        assignment = getattr(message, "assignment", None)
        if not isinstance(message, msg.StartFold) and assignment != self._assignment:
            return  # late: about an assignment that has failed here
        try:
            match message:
                case msg.StartFold():
                    self._open(message)
                case msg.Train():
                    self._go_on(message, payload)
                case msg.GroupStep():
                    self._step(_vector(payload))
                case msg.Fence():
                    self._hand_in(message)
                case msg.Validate():
                    task, _ = self._opened()
                    with self._timeline.span("validate"):
                        n_samples, sums = validate(task, _vector(payload))
                    self._answer(msg.Validated(assignment=message.assignment, n_samples=n_samples, sums=sums))
                case msg.EndFold():
                    self._end()
                case _:
                    raise ProtocolError(f"A rank of a ring takes no {type(message).__name__}.")
        except ProtocolError:
            raise
        except (Exception, SystemExit) as error:
            self._end()
            self._answer(worker_failed(assignment, error, self._setup.world_rank))

    def abandon(self) -> None:
        """Let go of an assignment whose ranks are not together any more; this follower is not used again."""
        self._end()

    def _open(self, start: msg.StartFold) -> None:
        self._end()
        self._assignment = start.assignment
        PULSE.expect(SLOW)
        with self._timeline.span("build model, read data", "data", trial=start.trial, fold=start.fold):
            task = self._task = self._setup.tasks.open(start)
        gradient = aligned_empty(task.adapter.n_weights)
        self._batches = CommonBatches(
            task, gradient, self._setup.together, start.n_workers, self._timeline, counts_all=True
        )
        ready = msg.WorkerReady(
            assignment=start.assignment,
            n_weights=task.adapter.n_weights,
            n_state=task.adapter.n_state,
            n_train=task.n_train,
            n_shard=task.n_shard,
            has_validation=task.n_validation > 0,
        )
        self._answer(ready)

    def _go_on(self, train: msg.Train, payload: np.ndarray | None) -> None:
        task, batches = self._opened()
        with in_next_step(batches):
            if payload is not None and len(payload):
                task.adapter.write_state(payload)
            if train.position is not None:
                restore_position(task, batches, train.position)

    def _step(self, weights: np.ndarray) -> None:
        task, batches = self._opened()
        with in_next_step(batches):
            task.adapter.write_weights(weights)
        batches.step()

    def _hand_in(self, fence: msg.Fence) -> None:
        task, batches = self._opened()
        state = aligned_empty(task.adapter.n_state)
        task.adapter.read_state(state)
        position = {**batches.position(), "discrete": task.adapter.discrete_state()}
        self._answer(msg.FenceReached(assignment=fence.assignment, position=position), state)
        self._timeline.flush()

    def _end(self) -> None:
        was_open, self._assignment, self._task, self._batches = self._assignment is not None, None, None, None
        if was_open:
            release(self._setup.tasks)

    def _opened(self) -> tuple[FoldTask, CommonBatches]:
        if self._task is None or self._batches is None:
            raise ProtocolError("No assignment is under way on this rank.")
        return self._task, self._batches

    def _answer(self, message: msg.Message, payload: np.ndarray | None = None) -> None:
        self._setup.block.send(self._setup.leader, message, payload)


class in_next_step:
    """What is raised inside fails the next step, together with the ranks that are on their way to it."""

    # Not by `contextmanager`, which takes three times as long, and more behind a computation.
    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ProtocolError) or not isinstance(error, Exception | SystemExit):
            return False
        self._gradients.failure = error
        return True


def restore_position(task: FoldTask, gradients: Gradients, position: dict[str, Any]) -> None:
    """Go to where a rank stood at a fence: its data, and the integer state of its model."""
    gradients.seek(position)
    if position.get("discrete"):
        task.adapter.load_discrete_state(position["discrete"])


def check_alike(own: msg.WorkerReady, others: list[Received]) -> None:
    """Raise TrialError where the ranks of a ring have built different models."""
    for received in others:
        other = received.message
        assert isinstance(other, msg.WorkerReady)
        if (own.n_weights, own.n_state) != (other.n_weights, other.n_state):
            raise TrialError(
                "`get_model` must build the same model on every rank; a leader has (weights, state) "
                f"{(own.n_weights, own.n_state)}, a follower {(other.n_weights, other.n_state)}"
            )


def _vector(payload: np.ndarray | None) -> np.ndarray:
    if payload is None:
        raise ProtocolError("Weights were expected beside the message.")
    return payload
