"""A worker group (`--n-processes`): a leader, which is a worker to the master, and its members.

For each step the leader tells the members to compute (`GroupStep`), and all ranks of the group average their gradients
in one collective sum. On one node the members read the leader's weights in shared memory; otherwise the leader sends
them with the step, if they have changed. The leader forwards the master's requests, and answers when the members have
answered. Members are reactive, too, and only know their leader.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.timeline import NO_TIMELINE, Timeline
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.block.answers import failures_to, fold_failed
from nnlo_opt.core.block.exchange.gradients import CommonBatches, Step
from nnlo_opt.core.block.exchange.rounds import check_same_model
from nnlo_opt.core.block.task import FoldTask, TaskFactory, release
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.transport import Collective, Received, SharedMemory, Transport
from nnlo_opt.core.update_rules.rule import Answer, WorkerHalf

Then = Callable[[list[Received]], None]


class WorkerGroup:
    """The leader's view of a worker group: the members and their pending answers.

    Args:
        block: transport on which the members have the `n_ranks` - 1 ends after the leader's.
        together: sums over all ranks of the group.
        n_ranks: number of ranks, including the leader.
    """

    def __init__(self, block: Transport, together: Collective, n_ranks: int) -> None:
        self._block = block
        self.together = together
        #: ranks of all workers of the assignment
        self.n_all = self._n_ranks = n_ranks
        self._ends = range(block.rank + 1, block.rank + n_ranks)
        self._answers: dict[int, Received] = {}
        self._then: Then | None = None

    def start(self, start: msg.StartFold) -> msg.StartFold:
        """Tell the members to open their shards; return the leader's own order, with its number among all ranks."""
        n_all, first = start.n_workers * self._n_ranks, (start.worker - 1) * self._n_ranks + 1
        self.n_all = n_all
        for i, end in enumerate(self._ends, 1):
            self._block.send(end, start.replaced(worker=first + i, n_workers=n_all))
        return start.replaced(worker=first, n_workers=n_all)

    def share(self, n_bytes: int) -> SharedMemory | None:
        """Return new memory that all members can join; None if a member is on another node."""
        return self._block.share(n_bytes, self._ends)

    def pass_on(self, train: msg.Train, state: np.ndarray | None, place: list[int]) -> None:
        """Send the members the parts of `train` that they need, if any.

        Args:
            state: averaged model state (n_state,) that came with it, or None.
            place: handle of the memory with the weights from now on; [] for no change.
        """
        positions = (train.position or {}).get("followers") or [None] * len(self._ends)
        if state is None and not place and not any(positions):
            return
        plain = msg.Train(assignment=train.assignment, version=train.version, adopt=Answer.NOTHING, shared=place)
        for end, position in zip(self._ends, positions, strict=True):
            self._block.send(end, plain.replaced(position=position), state)

    def tell(self, message: msg.Message, payload: np.ndarray | None = None) -> None:
        """Send to all members."""
        for end in self._ends:
            self._block.send(end, message, payload)

    def expect(self, then: Then) -> None:
        """Call `then` with the answers of all members, in order, when all have arrived."""
        self._answers, self._then = {}, then

    def hear(self, received: Received) -> None:
        """Handle the answer of a member."""
        if self._then is None:
            raise ProtocolError(f"A leader expects no {type(received.message).__name__} now.")
        payload = None if received.payload is None else received.payload.copy()
        self._answers[received.source] = replace(received, payload=payload)
        if len(self._answers) == len(self._ends):
            then, self._then = self._then, None
            then([self._answers[end] for end in self._ends])


class GroupBatches(CommonBatches):
    """The leader's gradients, averaged over the group; the samples of all its ranks count for this worker."""

    def __init__(
        self, task: FoldTask, gradient: np.ndarray, group: WorkerGroup, assignment: int, timeline: Timeline
    ) -> None:
        super().__init__(task, gradient, group.together, group.n_all, timeline, counts_all=True)
        self._group = group
        self._message = msg.GroupStep(assignment=assignment)
        #: weights for the next gradient, if not yet sent to the members
        self._unsent: np.ndarray | None = None
        #: shared memory of the group, and the weights in it (n_weights,); None without shared memory
        self._memory: SharedMemory | None = None
        self._shared: np.ndarray | None = None

    def share_weights(self, rule: WorkerHalf) -> list[int]:
        self._memory = self._group.share(self._gradient.nbytes)
        if self._memory is None:
            return []
        self._shared = self._memory.bytes[: self._gradient.nbytes].view(np.float32)
        rule.live_in(self._shared)
        return [*self._memory.place]

    def at(self, weights: np.ndarray) -> None:
        # The members no longer need the last weights: they have contributed their gradients.
        super().at(weights)
        if self._shared is None:
            self._unsent = weights
        elif weights is not self._shared:
            np.copyto(self._shared, weights)

    def step(self) -> Step:
        self._group.tell(self._message, self._unsent)
        self._unsent = None
        return super().step()


class MemberSetup(Frozen):
    """Parts of a member of a worker group."""

    block: Transport
    #: the leader's end of `block`
    leader: int
    tasks: TaskFactory
    world_rank: int
    #: sums over all ranks of the group
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
        #: shared memory of the group, and the leader's weights in it; None if they come with the steps
        self._memory: SharedMemory | None = None
        self._weights: np.ndarray | None = None

    @property
    def is_busy(self) -> bool:
        """True if this rank has an assignment."""
        return self._assignment is not None

    def handle(self, received: Received) -> None:
        """Handle one message of the leader and answer it; failures of the trial are reported, not raised."""
        message, payload = received.message, received.payload
        if isinstance(message, msg.StartFold):
            self.abandon()
            self._assignment = message.assignment
        elif getattr(message, "assignment", None) != self._assignment:
            return  # late, for an assignment that has failed here
        with failures_to(self._fail):
            match message:
                case msg.StartFold():
                    self._open(message)
                case msg.Train():
                    self._go_on(message, payload)
                case msg.GroupStep():
                    self._step(payload)
                case msg.Fence():
                    self._hand_in(message)
                case msg.Validate():
                    task, _ = self._opened()
                    with self._timeline.span("validate"):
                        self._answer(task.validate(message.assignment, payload))
                case msg.EndFold():
                    self.abandon()
                case _:
                    raise ProtocolError(f"A member of a worker group does not accept {type(message).__name__}.")

    def _fail(self, error: BaseException) -> None:
        failed = fold_failed(self._assignment, error, self._setup.world_rank)
        self.abandon()
        self._answer(failed)

    def _open(self, start: msg.StartFold) -> None:
        task = self._task = self._setup.tasks.open(start)
        gradient, together = aligned_empty(task.adapter.n_weights), self._setup.together
        self._batches = CommonBatches(task, gradient, together, start.n_workers, self._timeline, counts_all=True)
        self._answer(task.ready(start.assignment))

    def _go_on(self, train: msg.Train, payload: np.ndarray | None) -> None:
        task, batches = self._opened()
        # The other ranks are about to enter the next step: a rank that fails here must still take part, or they hang.
        with batches.fails_in_next_step:
            if train.shared:
                self._memory = self._setup.block.join(self._setup.leader, (train.shared[0], train.shared[1]))
                self._weights = self._memory.bytes.view(np.float32)[: task.adapter.n_weights]
            if payload is not None and len(payload):
                task.adapter.write_state(payload)
            if train.position is not None:
                batches.seek(train.position)

    def _step(self, weights: np.ndarray | None) -> None:
        task, batches = self._opened()
        with batches.fails_in_next_step:
            if weights is not None:
                task.adapter.write_weights(weights)
            elif self._weights is not None:
                task.adapter.borrow_weights(self._weights)
        batches.step()

    def _hand_in(self, fence: msg.Fence) -> None:
        task, batches = self._opened()
        states = batches.take_states()
        reached = msg.FenceReached(assignment=fence.assignment, position=batches.position(), states=states)
        self._answer(reached, task.model_state())
        self._timeline.flush()

    def abandon(self) -> None:
        """Drop the assignment, if any: it is over, or ranks of the team have died."""
        was_open, self._assignment, self._task, self._batches = self._assignment is not None, None, None, None
        self._memory = self._weights = None
        if was_open:
            release(self._setup.tasks)

    def _opened(self) -> tuple[FoldTask, CommonBatches]:
        if self._task is None or self._batches is None:
            raise ProtocolError("No assignment is under way on this rank.")
        return self._task, self._batches

    def _answer(self, message: msg.Message, payload: np.ndarray | None = None) -> None:
        self._setup.block.send(self._setup.leader, message, payload)


def check_members(own: msg.WorkerReady, members: list[Received]) -> None:
    """Raise TrialError if a member's model differs from the leader's."""
    for received in members:
        member = received.message
        assert isinstance(member, msg.WorkerReady)
        check_same_model(received.source, member, own)
