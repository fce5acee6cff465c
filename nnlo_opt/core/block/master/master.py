"""The master of a team: handles orders of the coordinator and messages of its workers.

NumPy only. Like a worker it is reactive: `handle_order` handles a message of the coordinator, `handle` one of a worker;
neither waits. It treats a sub-master (`master.submaster`) as one worker. `master.state` decides what follows from a
message, and `MasterAssignment` carries it out.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.timeline import NO_TIMELINE, Timeline
from nnlo_opt.core.base.vectors import with_bytes
from nnlo_opt.core.block.answers import Results, failures_to, fold_failed
from nnlo_opt.core.block.master import instructions as ins
from nnlo_opt.core.block.master.central_weights import CentralWeights
from nnlo_opt.core.block.master.checkpoints import Checkpoints, made_by_same_workers, remembers_all, state_from
from nnlo_opt.core.block.master.endpoints import WorkerEndpoints
from nnlo_opt.core.block.master.state import FoldPlan, MasterState
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Team
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials import checkpoint, manifest
from nnlo_opt.core.trials.attempts import ordered_directory, take_over
from nnlo_opt.core.trials.checkpoint import HISTORY_NAME, Checkpoint
from nnlo_opt.core.trials.figure import figure_so_far, measured
from nnlo_opt.core.trials.objectives import Comparison, pick
from nnlo_opt.core.update_rules.rule import Answer

logger = logging.getLogger(__name__)

#: end of the coordinator on the transport of the orders
COORDINATOR = 0


class MasterSetup(Frozen):
    """Parts of a master."""

    #: transport to the coordinator (end 0)
    orders: Transport
    #: the workers of the team
    endpoints: WorkerEndpoints
    #: run directory, with a folder for each fold
    directory: Path
    options: TrainingOptions
    clock: Clock
    timeline: Timeline = NO_TIMELINE
    #: objectives that trials are compared by
    comparison: Comparison = Comparison()
    #: True if checkpoints are written
    writes_checkpoints: bool = True
    #: True to keep checkpoints when a fold has ended
    keeps_checkpoints: bool = False


@dataclass(slots=True, kw_only=True)
class MasterAssignment:
    """One assignment, from its order to its end; it sends to the workers and reports to the coordinator."""

    order: msg.RunFold
    state: MasterState
    ends: WorkerEndpoints
    weights: CentralWeights
    checkpoints: Checkpoints
    setup: MasterSetup
    #: idle seconds of this team before the order
    waited_s: float | None
    #: time at which it began, by the clock, less the seconds trained before the checkpoint
    began_s: float
    #: True if the workers have begun, and so may have their own weights
    has_begun: bool = False
    #: True once the coordinator has stopped it, because its trial has ended
    is_stopped: bool = False

    def start(self) -> None:
        """Tell the workers to build the model and load their shards."""
        order, is_alone = self.order, self.ends.block.n_processes == 1
        for worker in self.state.workers:
            start = msg.StartFold(
                assignment=order.assignment,
                trial=order.trial,
                fold=order.fold,
                point=order.point,
                worker=worker,
                n_workers=self.state.plan.n_workers,
                overlap=self.state.plan.options.overlaps and not is_alone,
            )
            self.ends.send(worker, start)

    def regroup(self, ends: WorkerEndpoints) -> None:
        """Continue from the current central weights with the workers at `ends`, which get new shards."""
        n_workers, shared = ends.n_workers(self.state.plan.options), self.weights.shared
        self.ends = ends
        if shared is None:
            self.state.regroup(n_workers)
        else:
            self.state.regroup(n_workers, shared.n_samples, shared.version)
        self.checkpoints.regroup(self.state.epoch if self.weights.are_initialised else None)
        self.weights.regroup(ends)
        self.has_begun = False
        self.start()

    def end(self) -> None:
        """Tell the workers that the assignment is over."""
        for worker in self.state.workers:
            self.ends.send(worker, msg.EndFold(assignment=self.order.assignment))
        self.checkpoints.abandon()

    def carry_out(self, instruction: ins.Instruction, received: Received) -> msg.Message | None:
        """Carry out an instruction that follows from `received`, a message of a worker or the coordinator.

        Returns:
            The message that ends the assignment, for the coordinator; None if this was not the last instruction.
        """
        weights, assignment = self.weights, self.order.assignment
        match instruction:
            case ins.Initialise():
                self._initialise(instruction)
            case ins.ApplyUpdate():
                weights.apply(received, instruction.weight)
            case ins.HoldUpdate():
                weights.hold(instruction.worker, instruction.n_samples, received)
            case ins.ApplyRound():
                weights.apply_round(instruction.workers)
            case ins.SendWeights(with_state=False):
                self._answer(instruction, received)
            case ins.SendWeights():
                self._begin_epoch(instruction)
            case ins.SendFence():
                self._send_fence(instruction, received)
            case ins.HoldState():
                self._hold_state(instruction, received)
            case ins.SendValidate():
                evaluated = weights.evaluated
                for worker in self.state.workers:
                    self.ends.send(worker, msg.Validate(assignment=assignment), evaluated)
            case ins.SendMeasure():
                states, training = instruction.states, instruction.training
                self.ends.send(1, msg.Measure(assignment=assignment, states=states, training=training))
            case ins.SendCallBack():
                self._send_call_back(instruction)
            case ins.TakeRequests():
                weights.take_requests(received)
            case ins.SendHalt():
                self.ends.send(instruction.worker, msg.Halt(assignment=assignment))
            case ins.KeepBest():
                weights.keep_best()
            case ins.ReportEpoch():
                self._report_epoch(instruction)
            case ins.SaveMidEpoch():
                self.checkpoints.save(self.state, weights, self._train_s, instruction.n_samples)
            case ins.SendJudge():
                self._send_judge(instruction)
            case ins.FinishFold():
                return self._finish(instruction)
            case ins.End():
                return instruction.message
        return None

    @property
    def _train_s(self) -> float:
        return self.setup.clock.monotonic_s() - self.began_s

    # ------------------------------------------------------------ to the workers

    def _answer(self, instruction: ins.SendWeights, received: Received) -> None:
        """Send the answer to an update."""
        weights, kind = self.weights, self.weights.rule.answers
        for worker in instruction.workers:
            train = msg.Train(
                assignment=self.order.assignment,
                version=instruction.version,
                n_samples=self.state.n_samples,
                adopt=kind,
            )
            is_central = kind == Answer.WEIGHTS
            answer = weights.central[: weights.n_weights] if is_central else weights.answer_to(worker, received)
            self.ends.send(worker, train, answer)

    def _begin_epoch(self, instruction: ins.SendWeights) -> None:
        """Send the weights that an epoch begins with, and the positions of workers that begin or resume with it."""
        weights, checkpoints = self.weights, self.checkpoints
        keeps_own = weights.rule.answers == Answer.DIFFERENCE
        weights.open_to_workers()
        resumed = checkpoints.resumed_by(self.state.workers, self.ends)
        remembers = resumed is not None and remembers_all(resumed, self.state.workers, self.ends)
        kind = Answer.NOTHING if keeps_own and (self.has_begun or remembers) else Answer.WEIGHTS
        together = self.state.plan.options.rule.averages_every_batch
        restore = checkpoints.restored_by(self.state.workers, self.ends, same_optimizer=together)
        place = [] if self.has_begun else weights.place
        self.has_begun = True
        for worker in instruction.workers:
            positions = checkpoints.positions(self.ends.led_by(worker), same_workers=resumed is not None)
            train = msg.Train(
                assignment=self.order.assignment,
                version=instruction.version,
                n_samples=self.state.n_samples,
                adopt=kind,
                position=self._as_sent_to(worker, positions),
                restore=restore,
                mid_epoch=resumed is not None and resumed.n_samples_inside > 0,
                rate_factor=weights.rate_factor if self.state.calls_back else None,
                shared=place,
            )
            self.ends.send(worker, train, weights.central[0 if kind == Answer.WEIGHTS else weights.n_weights :])
        checkpoints.forget_positions()

    def _as_sent_to(self, worker: int, positions: dict[int, dict[str, Any]] | None) -> dict[str, Any] | None:
        """Return the position of a worker, or the positions of all workers of a sub-master."""
        if positions is None:
            return None
        return {str(n): position for n, position in positions.items()} if self.ends.groups else positions[worker]

    def _send_fence(self, instruction: ins.SendFence, received: Received) -> None:
        if instruction.checkpoint:
            self.checkpoints.begin(instruction.epoch)
        for worker in instruction.workers:
            answer = self.weights.answer_to(worker, received)
            fence = msg.Fence(
                assignment=self.order.assignment,
                adopt=Answer.NOTHING if answer is None else Answer.DIFFERENCE,
                checkpoint=self.checkpoints.begun,
                mid_epoch=instruction.mid_epoch,
            )
            self.ends.send(worker, fence, answer)

    def _hold_state(self, instruction: ins.HoldState, received: Received) -> None:
        message = received.message
        assert isinstance(message, msg.FenceReached)
        self.checkpoints.hold(instruction.worker, message)
        self.weights.hold_state(instruction.worker, received)

    def _send_call_back(self, instruction: ins.SendCallBack) -> None:
        weights, state = self.weights.central, self.weights.callbacks if instruction.metrics is None else None
        message = msg.CallBack(
            assignment=self.order.assignment,
            epoch=instruction.epoch,
            metrics=instruction.metrics,
            rate_factor=self.weights.rate_factor,
            is_last=instruction.is_last,
            n_state=0 if state is None else len(state),
        )
        self.ends.send(1, message, weights if state is None else with_bytes(weights, state))

    def _send_judge(self, instruction: ins.SendJudge) -> None:
        epochs, order = self.state.history.epochs, self.order
        facts: dict[str, Any] = {"epochs": epochs, "epoch": instruction.epoch, "metrics": instruction.metrics}
        facts |= {"n_weights": self.weights.n_weights, "train_s": self._train_s}
        facts |= {"point": order.point, "trial": order.trial, "fold": order.fold}
        kept = self.weights.result(restore_best=instruction.epoch < self.state.epoch)
        self.ends.send(1, msg.Judge(assignment=self.order.assignment, fold=facts), kept)

    # ------------------------------------------------------------ to the coordinator

    def _initialise(self, instruction: ins.Initialise) -> None:
        self.weights.initialise(self.checkpoints.resumed, self.checkpoints.directory)
        started = msg.FoldStarted(assignment=self.order.assignment, epoch=instruction.epoch, waited_s=self.waited_s)
        self.setup.orders.send(COORDINATOR, started)

    def _report_epoch(self, instruction: ins.ReportEpoch) -> None:
        written = self.checkpoints.resumed is not None  # for the epoch it has resumed from
        if instruction.checkpoint:
            written = self.checkpoints.save(self.state, self.weights, self._train_s) or written
        reported = msg.EpochReported(
            assignment=self.order.assignment,
            epoch=instruction.epoch,
            metrics=instruction.metrics,
            figure_of_merit=figure_so_far(self.state.plan.comparison, self.state.history.epochs),
            checkpointed=written,
            waits=instruction.waits,
        )
        self.setup.orders.send(COORDINATOR, reported)
        self.setup.timeline.flush()

    def _finish(self, instruction: ins.FinishFold) -> msg.FoldFinished:
        """Write weights and history; TrialError if a value that the comparison needs was not measured."""
        weights, n_weights = self.weights.result(restore_best=instruction.restore_best), self.weights.n_weights
        comparison, train_s = self.state.plan.comparison, self._train_s
        values = _values(comparison, instruction, n_weights, train_s)
        checkpoint.save_weights(self.checkpoints.directory, weights[:n_weights], weights[n_weights:])
        history = {
            **self.state.history.to_json(),
            "staleness": self.state.staleness.to_json(),
            "train_s": train_s,
            "n_workers": len(self.ends.all_led_by(self.state.workers)),
            "ended_because": instruction.reason,
            "kept_epoch": instruction.kept_epoch,
        }
        atomic_write(self.checkpoints.directory / HISTORY_NAME, json.dumps(history, indent=1))
        return msg.FoldFinished(
            assignment=self.order.assignment,
            figure_of_merit=values[comparison.objectives[0].name],
            metrics=instruction.metrics | pick(comparison.constraints, values),
            n_epochs=instruction.n_epochs,
            train_s=train_s,
            reason=instruction.reason,
            objectives=pick(comparison.several, values),
        )


def _values(comparison: Comparison, finish: ins.FinishFold, n_weights: int, train_s: float) -> dict[str, float]:
    """Return the values to compare trials by; TrialError if one is not measured."""
    values = {
        **finish.metrics,
        "figure_of_merit": finish.figure_of_merit,
        "n_weights": float(n_weights),
        "n_epochs": float(finish.n_epochs),
        "train_s": train_s,
        "epoch_s": train_s / finish.n_epochs,
    }
    return {part.name: measured(part.name, values) for part in comparison.needed}


class Master:
    """The master of a team; serves one assignment after another."""

    def __init__(self, setup: MasterSetup) -> None:
        self._setup = setup
        self._endpoints = setup.endpoints
        #: current assignment; None when idle
        self._assignment: MasterAssignment | None = None
        #: time at which the last assignment ended, by the clock; None before the first
        self._idle_since_s: float | None = None
        #: assignment -> folder of its checkpoints, until the coordinator has recorded its end
        self._unrecorded: dict[int, SafePath] = {}
        #: results of finished assignments, until the coordinator has recorded them
        self.results = Results()
        #: the last assignment that this master has taken; -1 before the first
        self.taken = -1

    # ------------------------------------------------------------ messages of the coordinator

    def handle_order(self, message: msg.Message) -> None:
        """Handle one message of the coordinator."""
        match message:
            case msg.RunFold():
                self._run(message)
            case msg.GoOn() | msg.PauseFold() | msg.PreemptFold() | msg.StopFold():
                self._hear(message)
            case msg.FoldRecorded():
                self.results.forget(message.assignment)
                directory = self._unrecorded.pop(message.assignment, None)
                if directory is not None and not self._setup.keeps_checkpoints:
                    manifest.remove_all(directory)
            case _:
                raise ProtocolError(f"A master does not accept {type(message).__name__} from the coordinator.")

    def _run(self, order: msg.RunFold) -> None:
        if self._assignment is not None:
            under_way = self._assignment.order.assignment
            raise ProtocolError(f"Assignment {order.assignment} came while {under_way} is under way.")
        self.taken = order.assignment
        waited_s = None if self._idle_since_s is None else self._setup.clock.monotonic_s() - self._idle_since_s
        directory, ends = ordered_directory(self._setup.directory, order), self._endpoints
        try:
            resumed = take_over(self._setup.directory, order, checkpoint.load_latest)
            state = self._state(order, ends, resumed)
        except Exception as error:
            self._unrecorded[order.assignment] = directory
            self._idle_since_s = self._setup.clock.monotonic_s()
            self._setup.orders.send(COORDINATOR, fold_failed(order.assignment, error, self._setup.orders.rank))
            return
        before = {} if resumed is None else resumed.master
        self._assignment = MasterAssignment(
            order=order,
            state=state,
            ends=ends,
            weights=CentralWeights(state, ends, float(before.get("rate_factor", 1.0))),
            checkpoints=Checkpoints(directory, resumed, writes=self._setup.writes_checkpoints),
            setup=self._setup,
            waited_s=waited_s,
            began_s=self._setup.clock.monotonic_s() - float(before.get("train_s", 0.0)),
        )
        self._assignment.start()

    def _state(self, order: msg.RunFold, ends: WorkerEndpoints, resumed: Checkpoint | None) -> MasterState:
        """Return the decisions of an assignment that begins, or resumes from a checkpoint."""
        options = self._setup.options.with_point(order.point)
        plan = FoldPlan(
            order=order,
            n_workers=ends.n_workers(options),
            options=options,
            comparison=self._setup.comparison,
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
            return  # it has ended by itself, and its last message is in transit
        match message:
            case msg.GoOn():
                instructions = assignment.state.go_on()
            case msg.PauseFold():
                instructions = assignment.state.pause()
            case msg.PreemptFold():
                instructions = assignment.state.preempt()
                assignment.weights.recall()
            case msg.StopFold():
                assignment.is_stopped = True
                instructions = assignment.state.stop()
        for instruction in instructions:
            ending = assignment.carry_out(instruction, Received(COORDINATOR, message, None))
            if ending is not None:
                self._end(assignment, ending)

    def regroup(self, block: Transport, team: Team | None) -> int:
        """Continue with the ranks of `team` that are left after deaths, on their new transport `block`.

        An assignment whose workers wait for each other is repeated from its last checkpoint, because a step with only
        some of them would be wrong. Any other continues from the current central weights with new shards; only updates
        not yet pushed are lost.

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
        """Handle one message of a worker, and carry out what follows from it."""
        assignment = self._assignment
        message = received.message
        if assignment is None or getattr(message, "assignment", None) != assignment.order.assignment:
            logger.debug("dropped a late %s", type(message).__name__)
            return
        number, rank = assignment.order.assignment, self._setup.orders.rank
        with failures_to(lambda error: self._end(assignment, fold_failed(number, error, rank))):
            worker = assignment.ends.worker_at(received.source)
            if isinstance(message, msg.WorkerReady):
                assignment.weights.take_ready(worker, message, received.payload)
                logger.debug("worker %d trains %d of %d samples", worker, message.n_shard, message.n_train)
            for instruction in assignment.state.handle(worker, message):
                with self._setup.timeline.span(type(instruction).__name__, worker=worker):
                    ending = assignment.carry_out(instruction, received)
                    if ending is not None:
                        self._end(assignment, ending)

    def _end(self, assignment: MasterAssignment, message: msg.Message) -> None:
        """Clean up an ended assignment, and send the coordinator `message`."""
        order = assignment.order
        goes_on = isinstance(message, msg.FoldStopped) and not assignment.is_stopped
        if not (goes_on or isinstance(message, msg.FoldPaused)):
            # The checkpoints of a paused or preempted assignment are kept even when the journal has its end.
            self._unrecorded[order.assignment] = assignment.checkpoints.directory
        if isinstance(message, msg.FoldFinished):
            self.results.add(order, message)
        assignment.end()
        self._assignment = None
        self._idle_since_s = self._setup.clock.monotonic_s()
        self._setup.orders.send(COORDINATOR, message)
