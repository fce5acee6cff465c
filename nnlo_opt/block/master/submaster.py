"""A sub-master (`--n-masters`): leads a group of workers, and is one worker to the top master.

NumPy only, and reactive as masters and workers are. To its workers it speaks as their master does, to the top master
as a worker: neither side knows that it is one. What it decides stands in `master.submaster_state`, what an update rule
does here in `block.group`.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.block.answers import worker_failed
from nnlo_opt.block.group import GroupRule, group_rule
from nnlo_opt.block.master.central_weights import average_states
from nnlo_opt.block.master.instructions import HoldState, HoldUpdate
from nnlo_opt.block.master.submaster_state import (
    Adopt,
    Answer,
    GroupState,
    HandIn,
    Instruction,
    PassDown,
    PassUp,
    PushRound,
    SayReady,
)
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Team
from nnlo_opt.comm.transport import Received, Transport
from nnlo_opt.errors import ProtocolError
from nnlo_opt.runtime.timeline import NO_TIMELINE, Timeline
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.checkpoint import load_group, save_group
from nnlo_opt.vectors import aligned_empty

logger = logging.getLogger(__name__)

#: end of the top master on the transport of the masters
TOP = 0


@dataclass(slots=True, kw_only=True)
class _Fold:
    """All that belongs to the assignment under way."""

    assignment: int
    options: TrainingOptions
    state: GroupState
    #: initial weights and model state, from worker 1; None in other groups
    initial: np.ndarray | None = None
    #: None until all workers are ready
    rule: GroupRule | None = None
    n_weights: int = 0
    #: worker -> (samples, update) of its last round; after it, where the rule says so, the answer to it
    held: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    #: worker -> float model state handed in at the fence
    model_states: dict[int, np.ndarray] = field(default_factory=dict)
    #: what was written to the checkpoint under way: file name -> fingerprint
    written: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubMasterSetup:
    """All that a sub-master is made of.

    The ranks of its workers stand at the ends 1, 2, … of `below`, those of one worker side by side.
    """

    #: leads to the top master (end 0), where this end has the group's number
    above: Transport
    #: leads to the workers of the group
    below: Transport
    team: Team
    options: TrainingOptions
    world_rank: int
    timeline: Timeline = NO_TIMELINE


class SubMaster:
    """A sub-master; serves one assignment after another."""

    def __init__(self, setup: SubMasterSetup) -> None:
        self._above, self._below = setup.above, setup.below
        self._options, self._world_rank, self._timeline = setup.options, setup.world_rank, setup.timeline
        self._group = setup.team.groups[setup.above.rank - 1]
        self._n_workers, self._ranks_per_worker = setup.team.n_workers(), setup.team.ranks_per_worker
        #: the assignment under way; None between assignments and after a failure, when messages about it are dropped
        self._fold: _Fold | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an assignment is under way here."""
        return self._fold is not None

    def handle(self, received: Received) -> None:
        """Take in one message, of either side. Errors of the trial are answered, not raised."""
        message, fold = received.message, self._fold
        if isinstance(message, msg.StartFold):
            with self._answering_for(message.assignment):
                self._begin(message)
        elif fold is None or getattr(message, "assignment", None) != fold.assignment:
            logger.debug("dropped a late %s", type(message).__name__)
        elif isinstance(message, msg.EndFold):
            self._end()
        elif isinstance(message, msg.WorkerFailed):
            self._end()
            self._above.send(TOP, message)
        else:
            with self._answering_for(fold.assignment):
                self._take(fold, received)

    @contextmanager
    def _answering_for(self, assignment: int) -> Iterator[None]:
        try:
            yield
        except ProtocolError:
            raise
        except Exception as error:
            logger.info("assignment %d fails on this sub-master", assignment, exc_info=error)
            self._end()
            self._above.send(TOP, worker_failed(assignment, error, self._world_rank))

    def _begin(self, start: msg.StartFold) -> None:
        self._end()
        options = self._options.with_point(start.point)
        state = GroupState(self._group.workers, synchronous=options.waits)
        self._fold = _Fold(assignment=start.assignment, options=options, state=state)
        for worker in self._group.workers:
            # Shards are those of all workers of the team, as without sub-masters.
            self._send(worker, start.replaced(worker=worker, n_workers=self._n_workers))

    def _take(self, fold: _Fold, received: Received) -> None:
        message = received.message
        if isinstance(message, msg.FROM_WORKERS):
            worker = self._group.workers[(received.source - 1) // self._ranks_per_worker]
            if isinstance(message, msg.WorkerReady) and received.payload is not None:
                fold.initial = received.payload.copy()
            instructions = fold.state.hear(worker, message)
        else:
            worker = 0
            instructions = fold.state.order(message)
        for instruction in instructions:
            with self._timeline.span(type(instruction).__name__, worker=worker):
                self._carry_out(fold, instruction, received.payload)

    def _carry_out(self, fold: _Fold, instruction: Instruction, payload: np.ndarray | None) -> None:
        match instruction:
            case SayReady(message=message):
                fold.n_weights = message.n_weights
                fold.rule = group_rule(fold.options, message.n_weights, len(self._group.workers))
                self._above.send(TOP, message, fold.initial)
                fold.initial = None
            case Adopt(message=message):
                self._adopt(fold, message, payload)
            case PassDown(workers=workers, message=message):
                for worker in workers:
                    self._send(worker, message, payload)
            case PassUp(message=message):
                self._above.send(TOP, message, payload)
            case Answer(workers=workers, message=message):
                self._answer(fold, workers, message, payload)
            case HoldUpdate(worker=worker, n_samples=n_samples):
                _, buffer = fold.held.get(worker, (0, None))
                buffer = aligned_empty(fold.n_weights) if buffer is None else buffer
                np.copyto(buffer, _vector(payload))
                fold.held[worker] = n_samples, buffer
            case PushRound(workers=workers, message=message):
                update = _opened(fold.rule).combine([fold.held[worker] for worker in workers])
                self._above.send(TOP, message, update)
            case HoldState(worker=worker):
                fold.model_states[worker] = _vector(payload).copy()
            case HandIn(message=message):
                states = [fold.model_states[worker] for worker in self._group.workers]
                mean = average_states(states, [1] * len(states)).astype(np.float32)
                self._above.send(TOP, message.replaced(files=fold.written), mean)
                fold.written = {}
                self._timeline.flush()

    def _adopt(self, fold: _Fold, message: msg.Train | msg.Fence, payload: np.ndarray | None) -> None:
        rule = _opened(fold.rule)
        if isinstance(message, msg.Train) and message.restore:
            state = load_group(Path(message.restore), self._group.workers)
            if state is not None:
                rule.load_state(state)
        if message.adopt != "nothing":
            rule.adopt(message.adopt, _vector(payload)[: fold.n_weights])
        if isinstance(message, msg.Fence) and message.checkpoint:
            fold.written = save_group(Path(message.checkpoint), self._group.workers, rule.state())

    def _answer(
        self, fold: _Fold, workers: tuple[int, ...], message: msg.Train | msg.Fence, payload: np.ndarray | None
    ) -> None:
        """Send each of `workers` what it adopts: what came from above, or what became of its own update."""
        for worker in workers:
            if _opened(fold.rule).answers == "difference":
                self._send(worker, message, fold.held[worker][1])
            else:
                self._send(worker, message, payload)

    def _send(self, worker: int, message: msg.Message, payload: np.ndarray | None = None) -> None:
        end = 1 + (worker - self._group.workers[0]) * self._ranks_per_worker
        self._below.send(end, message, payload)

    def _end(self) -> None:
        fold, self._fold = self._fold, None
        if fold is not None:
            for worker in self._group.workers:
                self._send(worker, msg.EndFold(assignment=fold.assignment))


def _opened(rule: GroupRule | None) -> GroupRule:
    if rule is None:
        raise ProtocolError("The group's workers are not ready.")
    return rule


def _vector(payload: np.ndarray | None) -> np.ndarray:
    if payload is None:
        raise ProtocolError("A vector was expected beside the message.")
    return payload
