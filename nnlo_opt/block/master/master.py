"""A master: it takes orders of the coordinator with the messages of its workers, one assignment after another.

NumPy only. It is reactive, as a worker is: `handle_order` takes a message of the coordinator, `handle` a message of a
worker; neither waits. A sub-master (`master.submaster`) is one worker to it. `master.state` decides what follows from a
message, `master.assignment` carries it out.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from nnlo_opt.block.answers import Results, failures_to, fold_failed, worker_failed
from nnlo_opt.block.master.assignment import COORDINATOR, MasterAssignment
from nnlo_opt.block.master.central_weights import CentralWeights
from nnlo_opt.block.master.checkpoints import Checkpoints, made_by_same_workers, state_from
from nnlo_opt.block.master.endpoints import WorkerEndpoints
from nnlo_opt.block.master.state import MasterState, fold_plan
from nnlo_opt.clock import Clock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Team
from nnlo_opt.comm.transport import Received, Transport
from nnlo_opt.errors import ProtocolError
from nnlo_opt.runtime.timeline import NO_TIMELINE, Timeline
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials import checkpoint
from nnlo_opt.trials.checkpoint import Checkpoint, fold_directory
from nnlo_opt.trials.objectives import Comparison

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterSetup:
    """All that a master is made of."""

    #: leads to the coordinator (end 0)
    orders: Transport
    #: the workers of the team
    endpoints: WorkerEndpoints
    #: the run directory, in which each fold has a folder
    directory: Path
    options: TrainingOptions
    clock: Clock
    timeline: Timeline = NO_TIMELINE
    #: objectives that trials are compared by
    comparison: Comparison = Comparison()  # noqa: RUF009  (frozen)
    #: checkpoints are written at all
    writes_checkpoints: bool = True
    #: checkpoints stay when a fold has ended
    keeps_checkpoints: bool = False
    #: worker 1 has callbacks of the user
    calls_back: bool = False


class Master:
    """The master of a team; serves one assignment after another."""

    def __init__(self, setup: MasterSetup) -> None:
        self._setup = setup
        self._endpoints = setup.endpoints
        #: the assignment under way; None when idle
        self._assignment: MasterAssignment | None = None
        #: time at which the last assignment ended, by the clock; None before the first
        self._idle_since_s: float | None = None
        #: assignment -> folder of its checkpoints, until the coordinator has recorded its end
        self._unrecorded: dict[int, Path] = {}
        #: results of finished assignments, until the coordinator has recorded them
        self.results = Results()
        #: the last assignment that this master has taken; -1 before the first
        self.taken = -1

    # ------------------------------------------------------------ messages of the coordinator

    def handle_order(self, message: msg.Message) -> None:
        """Take in one message of the coordinator."""
        match message:
            case msg.RunFold():
                self._run(message)
            case msg.GoOn() | msg.PauseFold() | msg.PreemptFold() | msg.StopFold():
                self._hear(message)
            case msg.FoldRecorded():
                self.results.forget(message.assignment)
                directory = self._unrecorded.pop(message.assignment, None)
                if directory is not None and not self._setup.keeps_checkpoints:
                    checkpoint.remove_all(directory)
            case _:
                raise ProtocolError(f"A master takes no {type(message).__name__} from the coordinator.")

    def _run(self, order: msg.RunFold) -> None:
        if self._assignment is not None:
            under_way = self._assignment.order.assignment
            raise ProtocolError(f"Assignment {order.assignment} came while {under_way} is under way.")
        self.taken = order.assignment
        waited_s = None if self._idle_since_s is None else self._setup.clock.monotonic_s() - self._idle_since_s
        directory, ends = fold_directory(self._setup.directory, order.trial, order.fold), self._endpoints
        try:
            options = self._setup.options.with_point(order.point)
            resumed = checkpoint.load_latest(directory)
            state = self._state(order, options, ends, resumed)
        except Exception as error:
            self._unrecorded[order.assignment] = directory
            self._idle_since_s = self._setup.clock.monotonic_s()
            self._setup.orders.send(COORDINATOR, self._failure(order.assignment, error))
            return
        rate_factor = 1.0 if resumed is None else float(resumed.master.get("rate_factor", 1.0))
        self._assignment = MasterAssignment(
            order=order,
            options=options,
            state=state,
            ends=ends,
            weights=CentralWeights(options, state, ends, rate_factor),
            checkpoints=Checkpoints(directory, resumed, writes=self._setup.writes_checkpoints),
            orders=self._setup.orders,
            clock=self._setup.clock,
            timeline=self._setup.timeline,
            waited_s=waited_s,
            began_s=self._setup.clock.monotonic_s(),
            trained_before_s=0.0 if resumed is None else float(resumed.master.get("train_s", 0.0)),
        )
        self._assignment.start()

    def _state(
        self, order: msg.RunFold, options: TrainingOptions, ends: WorkerEndpoints, resumed: Checkpoint | None
    ) -> MasterState:
        """Return the decisions of an assignment that begins, or resumes from a checkpoint."""
        plan = replace(
            fold_plan(options, ends.n_workers(options)),
            calls_back=self._setup.calls_back,
            comparison=self._setup.comparison,
            waits_for_decision=order.waits_for_decision,
            pause_epochs=frozenset(order.pause_epochs),
            can_stop_mid_epoch=not (ends.groups and options.waits),
        )
        if resumed is None:
            return MasterState(plan)
        state = state_from(plan, resumed)
        if not made_by_same_workers(resumed, state.workers, ends):
            state.begin_epoch_anew()
        return state

    def _hear(self, message: msg.GoOn | msg.PauseFold | msg.PreemptFold | msg.StopFold) -> None:
        assignment = self._assignment
        if assignment is None or assignment.order.assignment != message.assignment:
            return  # it has ended by itself, and its last message is under way
        match message:
            case msg.GoOn():
                instructions = assignment.state.go_on()
            case msg.PauseFold():
                instructions = assignment.state.pause()
            case msg.PreemptFold():
                instructions = assignment.state.preempt()
                assignment.weights.recall()
            case msg.StopFold():
                instructions = assignment.state.stop()
        for instruction in instructions:
            ending = assignment.carry_out(instruction, None)
            if ending is not None:
                self._end(assignment, ending)

    def regroup(self, block: Transport, team: Team | None) -> int:
        """Continue with the ranks of the `team` that are left after deaths, on the transport `block` that joins them.

        An assignment whose workers wait for each other is repeated from its last checkpoint, since a step in which only
        some of them have taken part is no step of it. Any other continues from the central weights as they are, with
        new shards; only updates that workers had not pushed are lost.

        Args:
            team: None if too few ranks are left to train.

        Returns:
            The assignment that continues; -1 for none.
        """
        if team is not None:
            self._endpoints = WorkerEndpoints.of(block, team)
        assignment = self._assignment
        if assignment is None:
            return -1
        if team is None or not assignment.state.can_regroup:
            assignment.checkpoints.abandon()
            self._assignment = None
            self._idle_since_s = self._setup.clock.monotonic_s()
            return -1
        assignment.regroup(self._endpoints)
        return assignment.order.assignment

    # ------------------------------------------------------------ messages of the workers

    def handle(self, received: Received) -> None:
        """Take in one message of a worker and carry out what follows from it."""
        assignment = self._assignment
        message = received.message
        if assignment is None or getattr(message, "assignment", None) != assignment.order.assignment:
            logger.debug("dropped a late %s", type(message).__name__)
            return
        with failures_to(lambda error: self._end(assignment, self._failure(assignment.order.assignment, error))):
            if isinstance(message, msg.WorkerReady):
                assignment.take_ready(received)
            worker = assignment.ends.worker_at(received.source)
            for instruction in assignment.state.handle(worker, message):
                with self._setup.timeline.span(type(instruction).__name__, worker=worker):
                    ending = assignment.carry_out(instruction, received)
                    if ending is not None:
                        self._end(assignment, ending)

    def _failure(self, assignment: int, error: BaseException) -> msg.FoldFailed:
        return fold_failed(worker_failed(assignment, error, self._setup.orders.rank))

    def _end(self, assignment: MasterAssignment, message: msg.Message) -> None:
        """Let go of an assignment that is over, and send the coordinator `message`."""
        order = assignment.order
        if not isinstance(message, msg.FoldPaused):
            # The checkpoints of a paused assignment stay when the journal has this end.
            self._unrecorded[order.assignment] = assignment.checkpoints.directory
        if isinstance(message, msg.FoldFinished):
            self.results.add(order, message)
        assignment.end()
        self._assignment = None
        self._idle_since_s = self._setup.clock.monotonic_s()
        self._setup.orders.send(COORDINATOR, message)
