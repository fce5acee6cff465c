"""A sub-master (`--n-masters`) leads a group of workers and acts as one worker of the top master.

NumPy only, and reactive like masters and workers. Its workers see a master, and the top master sees a worker.
`master.submaster_state` has its decisions, `update_rules` the group's half of each update rule.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.timeline import NO_TIMELINE, Timeline
from nnlo_opt.core.block.answers import failures_to, fold_failed
from nnlo_opt.core.block.exchange.rounds import HeldUpdates, average_states
from nnlo_opt.core.block.master import instructions as ins
from nnlo_opt.core.block.master.endpoints import WorkerEndpoints
from nnlo_opt.core.block.master.submaster_state import GroupState
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Team
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.checkpoint import load_state, of_message, save_state
from nnlo_opt.core.update_rules.layers import layers_of
from nnlo_opt.core.update_rules.rule import Answer, GroupHalf

logger = logging.getLogger(__name__)

#: end of the top master on the transport of the masters
TOP = 0


@dataclass(slots=True, kw_only=True)
class _Fold:
    """The current assignment."""

    assignment: int
    options: TrainingOptions
    state: GroupState
    #: initial weights and model state, from worker 1; None in other groups
    initial: np.ndarray | None = None
    #: None until all workers are ready
    rule: GroupHalf | None = None
    n_weights: int = 0
    #: updates of the current round; afterwards the answers, if the rule writes them
    held: HeldUpdates = field(default_factory=HeldUpdates)
    #: worker -> float model state handed in at the fence
    model_states: dict[int, np.ndarray] = field(default_factory=dict)
    #: file name -> fingerprint of the files written to the current checkpoint
    written: dict[str, Any] = field(default_factory=dict)


class SubMasterSetup(Frozen):
    """Parts of a sub-master.

    The ranks of its workers have the ends 1, 2, … of `below`, with consecutive ends for the ranks of one worker.
    """

    #: transport to the top master (end 0); this end has the number of the group
    above: Transport
    #: transport to the workers of the group
    below: Transport
    team: Team
    options: TrainingOptions
    world_rank: int
    timeline: Timeline = NO_TIMELINE


class SubMaster:
    """A sub-master; serves one assignment after another."""

    def __init__(self, setup: SubMasterSetup) -> None:
        self._above = setup.above
        #: the workers of the group, numbered from 1
        self._endpoints = WorkerEndpoints(setup.below, setup.team.ranks_per_worker)
        self._options, self._world_rank, self._timeline = setup.options, setup.world_rank, setup.timeline
        self._group = setup.team.groups[setup.above.rank - 1]
        self._n_workers = setup.team.n_workers
        #: current assignment; None between assignments and after a failure, when its messages are dropped
        self._fold: _Fold | None = None

    @property
    def is_busy(self) -> bool:
        """True if this rank has an assignment."""
        return self._fold is not None

    def handle(self, received: Received) -> None:
        """Handle one message from either side; failures of the trial are reported, not raised."""
        message, fold = received.message, self._fold
        if isinstance(message, msg.StartFold):
            self._end()
            with failures_to(lambda error: self._fail(message.assignment, error)):
                self._begin(message)
        elif fold is None or getattr(message, "assignment", None) != fold.assignment:
            logger.debug("dropped a late %s", type(message).__name__)
        elif isinstance(message, msg.EndFold):
            self._end()
        elif isinstance(message, msg.FoldFailed):
            self._end()
            self._above.send(TOP, message)
        else:
            with failures_to(lambda error: self._fail(fold.assignment, error)):
                self._take(fold, received)

    def _fail(self, assignment: int, error: BaseException) -> None:
        logger.info("assignment %d fails on this sub-master", assignment, exc_info=error)
        self._end()
        self._above.send(TOP, fold_failed(assignment, error, self._world_rank))

    def _begin(self, start: msg.StartFold) -> None:
        options = self._options.with_point(start.point)
        state = GroupState(self._group.workers, synchronous=options.waits)
        self._fold = _Fold(assignment=start.assignment, options=options, state=state)
        for worker in self._group.workers:
            # Shards are over all workers of the team, as without sub-masters.
            self._send(worker, start.replaced(worker=worker, n_workers=self._n_workers))

    def _take(self, fold: _Fold, received: Received) -> None:
        message = received.message
        if isinstance(message, msg.FROM_WORKERS):
            worker = self._group.workers[self._endpoints.worker_at(received.source) - 1]
            if isinstance(message, msg.WorkerReady) and received.payload is not None:
                fold.initial = received.payload.copy()
            instructions = fold.state.hear(worker, message)
        else:
            worker = 0
            instructions = fold.state.order(message)
        for instruction in instructions:
            with self._timeline.span(type(instruction).__name__, worker=worker):
                self._carry_out(fold, instruction, received)

    def _carry_out(self, fold: _Fold, instruction: ins.Instruction, received: Received) -> None:
        match instruction:
            case ins.SayReady(message=message):
                fold.n_weights = message.n_weights
                options = fold.options.with_steps(message.steps)
                options = options.for_updates() if message.trains_itself else options
                fold.rule = options.rule.group_half(options, message.n_weights, len(self._group.workers))
                fold.rule.take_layers(layers_of(message.layers))
                self._above.send(TOP, message, fold.initial)
                fold.initial = None
            case ins.Adopt(message=message):
                self._adopt(fold, message, received)
            case ins.PassDown(workers=workers, message=message):
                for worker in workers:
                    self._send(worker, message, received.payload)
            case ins.PassUp(message=message):
                self._above.send(TOP, message, received.payload)
            case ins.Answer(workers=workers, message=message):
                # Each adopts the answer to its own update, or the vector from above.
                is_own = _opened(fold.rule).answers == Answer.DIFFERENCE
                for worker in workers:
                    self._send(worker, message, fold.held.answer_to(worker) if is_own else received.payload)
            case ins.HoldUpdate(worker=worker, n_samples=n_samples):
                fold.held.keep(worker, n_samples, received.vector)
            case ins.PushRound(workers=workers, message=message):
                self._above.send(TOP, message, _opened(fold.rule).combine(fold.held.of(workers)))
            case ins.HoldState(worker=worker):
                fold.model_states[worker] = received.vector.copy()
            case ins.HandIn(message=message):
                states = [fold.model_states[worker] for worker in self._group.workers]
                mean = average_states(states).astype(np.float32)
                self._above.send(TOP, message.replaced(files=fold.written), mean)
                fold.written = {}
                self._timeline.flush()

    def _adopt(self, fold: _Fold, message: msg.Train | msg.Fence, received: Received) -> None:
        rule = _opened(fold.rule)
        if isinstance(message, msg.Train) and message.restore:
            state = load_state(of_message(message.restore), self._group.workers)
            if state is not None:
                rule.load_state(state)
        if message.adopt != Answer.NOTHING:
            rule.adopt(message.adopt, received.vector[: fold.n_weights])
        if isinstance(message, msg.Fence) and message.checkpoint:
            fold.written = save_state(of_message(message.checkpoint), self._group.workers, rule.state())

    def _send(self, worker: int, message: msg.Message, payload: np.ndarray | None = None) -> None:
        self._endpoints.send(1 + worker - self._group.workers[0], message, payload)

    def _end(self) -> None:
        fold, self._fold = self._fold, None
        if fold is not None:
            for worker in self._group.workers:
                self._send(worker, msg.EndFold(assignment=fold.assignment))


def _opened(rule: GroupHalf | None) -> GroupHalf:
    if rule is None:
        raise ProtocolError("The group's workers are not ready.")
    return rule
