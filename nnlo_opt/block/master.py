"""A master: owns the central weights of an assignment and carries out what `MasterState` decides.

NumPy only. It is reactive, as a worker is: `handle_order` takes a message of the coordinator, `handle` one of a
worker; neither waits. With sub-masters (`block.submaster`) each of these is one worker to it.
"""

import json
import logging
import socket
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.block import instructions as ins
from nnlo_opt.block.central import CentralRule, central_rule
from nnlo_opt.block.fold_plan import fold_plan
from nnlo_opt.block.local import common_optimizer
from nnlo_opt.block.master_phases import Phase
from nnlo_opt.block.master_state import MasterState
from nnlo_opt.block.objective_values import values_of_training
from nnlo_opt.block.reasons import reason_of
from nnlo_opt.block.results import Results
from nnlo_opt.block.resumption import (
    are_the_same,
    average_states,
    position_of,
    remembers_all,
    rule_state,
    state_from,
)
from nnlo_opt.block.shared_step import SharedStep
from nnlo_opt.block.shared_weights import SharedWeights
from nnlo_opt.clock import Clock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Group, Team, count_workers
from nnlo_opt.comm.transport import Received, SharedMemory, Transport
from nnlo_opt.config import TrainingOptions
from nnlo_opt.errors import ProtocolError, TrialError
from nnlo_opt.files import atomic_write
from nnlo_opt.training import checkpoint
from nnlo_opt.training.checkpoint import Checkpoint, fold_directory
from nnlo_opt.training.figure import figure_so_far
from nnlo_opt.training.schedules import LearningRateSchedule
from nnlo_opt.training.timeline import NO_TIMELINE, Timeline
from nnlo_opt.trials.objectives import Comparison
from nnlo_opt.vectors import aligned_empty

logger = logging.getLogger(__name__)

#: end of the coordinator on the transport of the orders
COORDINATOR = 0


@dataclass(slots=True, kw_only=True)
class _Fold:
    """All that belongs to the assignment under way."""

    order: msg.RunFold
    directory: Path
    options: TrainingOptions
    schedule: LearningRateSchedule
    state: MasterState
    #: where it goes on from; None when it begins afresh
    checkpoint: Checkpoint | None
    began_s: float
    #: seconds trained before the checkpoint
    trained_before_s: float
    #: central weights, then float model state, float32
    central: np.ndarray = field(default_factory=lambda: aligned_empty(0))
    n_weights: int = 0
    rule: CentralRule | None = None
    #: the central weights, where the workers move them themselves
    shared: SharedWeights | None = None
    #: memory for the workers' steps, in allreduce, where they share it
    steps: SharedMemory | None = None
    #: where that of either is, as long as the workers have to be told
    place: tuple[int, ...] = ()
    #: whether the workers have begun, and hold weights of their own where the update rule has such
    has_begun: bool = False
    #: the folder of the checkpoint that workers write to; None where none is due
    writing: Path | None = None
    #: what the workers have written to it: file name -> fingerprint
    written: dict[str, Any] = field(default_factory=dict)
    #: worker -> (samples, update) of the round being collected; after it, the answers to them
    held: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    #: worker -> float model state handed in at the fence
    model_states: dict[int, np.ndarray] = field(default_factory=dict)
    #: worker -> position handed in at the fence
    positions: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: weights and model state of the best epoch; None before there is one
    best: np.ndarray | None = None
    #: weights, float model state and training samples, as all workers must have them; None before the first is ready
    size: tuple[int, int, int] | None = None
    #: seconds this team was idle before the order came
    waited_s: float | None = None
    #: training samples behind the central weights; those of updates that are held do not count yet
    n_applied: int = 0
    #: what callbacks want the learning rates to be multiplied by
    rate_factor: float = 1.0
    #: pass over the data that workers begin with which are new in the middle of a training; None once they have
    next_pass: int | None = None


class Master:
    """The master of a team; serves one assignment after another."""

    def __init__(
        self,
        orders: Transport,
        block: Transport,
        directory: Path,
        options: TrainingOptions,
        clock: Clock,
        timeline: Timeline = NO_TIMELINE,
    ) -> None:
        """`orders` leads to the coordinator (end 0), `block` to the workers.

        Workers 1, 2, … stand at the ends of these numbers. In allreduce the last worker is this rank itself (end 0),
        unless it is the only one, which has an end of its own.
        """
        self._orders = orders
        self._block = block
        self._directory = directory
        self._options = options
        self._clock = clock
        self._timeline = timeline
        #: the assignment under way; None when idle
        self._fold: _Fold | None = None
        #: when the last assignment ended; None before there was one
        self._idle_since_s: float | None = None
        #: assignment -> where its checkpoints are, until the coordinator has recorded its end
        self._unrecorded: dict[int, Path] = {}
        #: what came of those of them that are finished
        self.results = Results()
        #: the last assignment that was taken; -1 before there was one
        self.taken = -1
        #: whether checkpoints stay when a fold has ended
        self.keeps_checkpoints = False
        #: ranks of a worker; the first of each is the one that we know
        self.ranks_per_worker = 1
        #: the groups whose sub-masters stand at the ends 1, 2, … in place of workers; empty without sub-masters
        self.groups: tuple[Group, ...] = ()
        #: whether checkpoints are written at all
        self.writes_checkpoints = True
        #: whether worker 1 has callbacks of the user
        self.calls_back = False
        #: what trials are compared by
        self.comparison = Comparison()

    # ------------------------------------------------------------ the coordinator's messages

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
                if directory is not None and not self.keeps_checkpoints:
                    checkpoint.remove_all(directory)
            case _:
                raise ProtocolError(f"A master takes no {type(message).__name__} from the coordinator.")

    def _run(self, order: msg.RunFold) -> None:
        if self._fold is not None:
            raise ProtocolError(f"Assignment {order.assignment} came while {self._fold.order.assignment} is under way.")
        self.taken = order.assignment
        waited_s = None if self._idle_since_s is None else self._clock.monotonic_s() - self._idle_since_s
        directory = fold_directory(self._directory, order.trial, order.fold)
        try:
            options = self._options.with_point(order.point)
            resumed = checkpoint.load_latest(directory)
            plan = replace(
                fold_plan(options, self._n_workers(options)),
                calls_back=self.calls_back,
                comparison=self.comparison,
                waits_for_word=order.waits_for_word,
                pause_epochs=frozenset(order.pause_epochs),
                can_stop_mid_epoch=not (self.groups and options.waits),
            )
            state = MasterState(plan) if resumed is None else state_from(plan, resumed)
            if resumed is not None and not are_the_same(resumed, self._all_workers(state), self.ranks_per_worker):
                state.begin_epoch_anew()
        except Exception as error:
            self._unrecorded[order.assignment] = directory
            self._idle_since_s = self._clock.monotonic_s()
            self._orders.send(COORDINATOR, self._failure(order.assignment, error))
            return
        self._fold = _Fold(
            order=order,
            directory=directory,
            options=options,
            schedule=options.schedule,
            state=state,
            checkpoint=resumed,
            began_s=self._clock.monotonic_s(),
            trained_before_s=0.0 if resumed is None else float(resumed.master.get("train_s", 0.0)),
            waited_s=waited_s,
            n_applied=state.n_samples,
            rate_factor=1.0 if resumed is None else float(resumed.master.get("rate_factor", 1.0)),
        )
        self._start_workers(self._fold)

    def _start_workers(self, fold: _Fold) -> None:
        order, is_alone = fold.order, self._block.n_processes == 1
        for worker in fold.state.workers:
            start = msg.StartFold(
                assignment=order.assignment,
                trial=order.trial,
                fold=order.fold,
                point=order.point,
                worker=worker,
                n_workers=fold.state.plan.n_workers,
                overlap=fold.options.overlaps and not is_alone,
            )
            self._send(worker, start)

    def regroup(self, block: Transport, team: Team | None) -> int:
        """Ranks have died, and `block` joins those of the `team` that are left; -> the assignment that goes on, or -1.

        One whose workers wait for each other does not: it is repeated from its last checkpoint, since a step in which
        some have taken part and some have not is no step of it. Another goes on from the central weights as they are,
        with new shards; nothing is lost but what workers had not pushed.
        """
        self._block = block
        if team is not None:
            self.groups, self.ranks_per_worker = team.groups, team.ranks_per_worker
        fold = self._fold
        if fold is None:
            return -1
        checkpoint.abandon(fold.writing)
        n_workers = self._n_workers(fold.options)
        if team is None or not fold.state.can_regroup:
            self._fold = None
            self._idle_since_s = self._clock.monotonic_s()
            return -1
        shared = fold.shared
        if shared is None:
            fold.state.regroup(n_workers)
        else:
            fold.state.regroup(n_workers, shared.n_samples, shared.version)
        if fold.rule is not None:  # else nothing is trained yet
            passes = [int(position["pass"]) for position in fold.positions.values()]
            fold.next_pass = 1 + max(passes, default=fold.state.epoch)
            before = self._rule(fold).state()
            # In memory of its own again: who is left may stand on other transports, or be one process.
            fold.rule, fold.shared, fold.checkpoint = central_rule(fold.options, fold.n_weights, n_workers), None, None
            fold.rule.load_state(before)
            self._share(fold, fold.rule)
        fold.writing, fold.written, fold.has_begun = None, {}, False
        fold.held, fold.model_states, fold.positions = {}, {}, {}
        self._start_workers(fold)
        return fold.order.assignment

    def _n_workers(self, options: TrainingOptions) -> int:
        # A team in one process is a master and workers, each with an end, whatever the rule.
        together = options.mode == "allreduce" and self._block.n_processes > 1
        return count_workers(self._block.size, every_rank=together, ranks_per_worker=self._ends_per_worker)

    @property
    def _ends_per_worker(self) -> int:
        return 1 if self.groups else self.ranks_per_worker

    def _send(self, worker: int, message: msg.Message, payload: np.ndarray | None = None) -> None:
        end = 1 + (worker - 1) * self._ends_per_worker
        self._block.send(end % self._block.size, message, payload)

    def _worker_at(self, end: int) -> int:
        return 1 + (end - 1) // self._ends_per_worker if end else self._block.size

    def _led_by(self, worker: int) -> range:
        """The workers behind one of ours: those of a sub-master, else itself."""
        return self.groups[worker - 1].workers if self.groups else range(worker, worker + 1)

    def _all_workers(self, state: MasterState) -> list[int]:
        return [number for worker in state.workers for number in self._led_by(worker)]

    def _hear(self, message: msg.GoOn | msg.PauseFold | msg.PreemptFold | msg.StopFold) -> None:
        fold = self._fold
        if fold is None or fold.order.assignment != message.assignment:
            return  # it has ended by itself, and that message is under way
        match message:
            case msg.GoOn():
                instructions = fold.state.go_on()
            case msg.PauseFold():
                instructions = fold.state.pause()
            case msg.PreemptFold():
                instructions = fold.state.preempt()
                if fold.shared is not None:
                    fold.shared.recall()
            case msg.StopFold():
                instructions = fold.state.stop()
        for instruction in instructions:
            self._carry_out(fold, instruction, None)

    # ------------------------------------------------------------ the workers' messages

    def handle(self, received: Received) -> None:
        """Take in one message of a worker and carry out what follows from it."""
        fold = self._fold
        message = received.message
        if fold is None or getattr(message, "assignment", None) != fold.order.assignment:
            logger.debug("dropped a late %s", type(message).__name__)
            return
        try:
            if isinstance(message, msg.WorkerReady):
                self._take_ready(fold, received)
            worker = self._worker_at(received.source)
            for instruction in fold.state.handle(worker, message):
                with self._timeline.span(type(instruction).__name__, worker=worker):
                    self._carry_out(fold, instruction, received)
        except ProtocolError:
            raise
        except Exception as error:
            fold.state.phase = Phase.OVER
            self._fail(fold, self._failure(fold.order.assignment, error))

    def _take_ready(self, fold: _Fold, received: Received) -> None:
        message = received.message
        assert isinstance(message, msg.WorkerReady)
        worker = self._worker_at(received.source)
        size = (message.n_weights, message.n_state, message.n_train)
        if fold.size not in (None, size):
            raise TrialError(
                "`get_model` must build the same model on every worker, and all must see the same data; worker "
                f"{self._led_by(worker)[0]} has (weights, state, training samples) {size}, another has {fold.size}"
            )
        fold.size = size
        logger.debug("worker %d trains %d of %d samples", worker, message.n_shard, message.n_train)
        fold.n_weights = message.n_weights
        if received.payload is not None and fold.rule is None:  # else ranks have died since: these are no news
            fold.central = aligned_empty(len(received.payload))
            np.copyto(fold.central, received.payload)

    def _carry_out(self, fold: _Fold, instruction: ins.Instruction, received: Received | None) -> None:
        match instruction:
            case ins.Initialise():
                self._initialise(fold, instruction)
            case ins.ApplyUpdate():
                self._scale_learning_rate(fold)
                self._rule(fold).apply(fold.central[: fold.n_weights], _payload(received), instruction.weight)
            case ins.HoldUpdate():
                self._hold(fold, instruction, received)
            case ins.ApplyRound():
                self._scale_learning_rate(fold)
                updates = [fold.held[worker] for worker in instruction.workers if worker in fold.held]
                self._rule(fold).apply_round(fold.central[: fold.n_weights], updates)
            case ins.SendWeights():
                self._send_weights(fold, instruction, received)
            case ins.SendFence():
                self._send_fence(fold, instruction, received)
            case ins.HoldState():
                self._hold_state(fold, instruction, received)
            case ins.SendValidate():
                for worker in fold.state.workers:
                    self._send(worker, msg.Validate(assignment=fold.order.assignment), fold.central)
            case ins.SendCallBack():
                self._send_call_back(fold, instruction)
            case ins.TakeWishes():
                self._take_wishes(fold, received)
            case ins.SendHalt():
                self._send(instruction.worker, msg.Halt(assignment=fold.order.assignment))
            case ins.Stopped():
                self._unrecorded[fold.order.assignment] = fold.directory
                self._end(fold, msg.FoldStopped(assignment=fold.order.assignment))
            case ins.Paused():
                # Not among the unrecorded: when the journal has this end, its checkpoints stay.
                self._end(fold, msg.FoldPaused(assignment=fold.order.assignment, epoch=instruction.epoch))
            case ins.KeepBest():
                fold.best = fold.central.copy()
            case ins.ReportEpoch():
                self._report_epoch(fold, instruction)
            case ins.SaveMidEpoch():
                self._save(fold, instruction.n_samples)
            case ins.SendJudge():
                self._send_judge(fold, instruction)
            case ins.Finish():
                self._finish(fold, instruction)
            case ins.Fail():
                failed = msg.FoldFailed(
                    assignment=fold.order.assignment,
                    reason=instruction.reason,
                    traceback=instruction.traceback,
                    world_rank=instruction.world_rank,
                    host=instruction.host,
                )
                self._fail(fold, failed)

    def _initialise(self, fold: _Fold, instruction: ins.Initialise) -> None:
        fold.rule = central_rule(fold.options, fold.n_weights, len(fold.state.workers))
        if fold.checkpoint is not None:
            arrays = fold.checkpoint.arrays
            if arrays["central"].shape != fold.central.shape:
                raise TrialError(
                    f"The checkpoint in `{fold.directory}` holds {arrays['central'].size} weights, the model has "
                    f"{fold.central.size}: has the model changed? Remove the checkpoint, or start a new run."
                )
            np.copyto(fold.central, arrays["central"])
            fold.best = arrays.get("best")
            fold.rule.load_state(rule_state(fold.checkpoint))
        self._share(fold, fold.rule)
        started = msg.FoldStarted(assignment=fold.order.assignment, epoch=instruction.epoch, waited_s=fold.waited_s)
        self._orders.send(COORDINATOR, started)

    def _share(self, fold: _Fold, rule: CentralRule) -> None:
        """Make memory for all workers, where they are all on this node and the update rule has use for it."""
        options, n_workers = fold.options, len(fold.state.workers)
        if self.groups:
            return
        if options.shares_weights:
            fold.shared = SharedWeights.of_master(self._block, rule, fold.central, fold.n_weights, n_workers)
            if fold.shared is not None:
                fold.central, fold.place = fold.shared.central, fold.shared.place
                self._open_shared(fold, fold.shared)
        elif options.shares_steps and n_workers > 1:
            optimizer = common_optimizer(options, 1)
            fold.steps = self._block.share(SharedStep.n_bytes(optimizer, fold.n_weights, n_workers))
            if fold.steps is not None:
                fold.place = fold.steps.place

    def _scale_learning_rate(self, fold: _Fold) -> None:
        """Take the learning rate of this point of the training for the update that comes next."""
        state = fold.state
        if fold.schedule.changes or state.plan.calls_back:
            factor = fold.schedule.factor_of_update(fold.n_applied, state.n_samples, state.n_train, fold.options.epochs)
            self._rule(fold).scale_learning_rate(factor * fold.rate_factor)
        fold.n_applied = state.n_samples

    def _send_call_back(self, fold: _Fold, instruction: ins.SendCallBack) -> None:
        message = msg.CallBack(
            assignment=fold.order.assignment,
            epoch=instruction.epoch,
            metrics=instruction.metrics,
            rate_factor=fold.rate_factor,
            is_last=instruction.is_last,
        )
        self._send(1, message, fold.central)

    def _take_wishes(self, fold: _Fold, received: Received | None) -> None:
        assert received is not None
        message = received.message
        assert isinstance(message, msg.CalledBack)
        fold.rate_factor = message.rate_factor
        if received.payload is not None:
            np.copyto(fold.central, received.payload)

    def _hold(self, fold: _Fold, instruction: ins.HoldUpdate, received: Received | None) -> None:
        if received is not None and received.payload is None:
            return  # allreduce: the weights of one worker are those of all
        _, buffer = fold.held.get(instruction.worker, (0, None))
        buffer = aligned_empty(fold.n_weights) if buffer is None else buffer
        np.copyto(buffer, _payload(received))
        fold.held[instruction.worker] = (instruction.n_samples, buffer)

    def _answer_to(self, fold: _Fold, worker: int, received: Received | None) -> np.ndarray | None:
        """What the update that `worker` pushed last was turned into, where the rule answers that."""
        if self._rule(fold).answers != "difference" or fold.shared is not None:
            return None
        return fold.held[worker][1] if fold.state.plan.synchronous else _payload(received)

    def _send_weights(self, fold: _Fold, instruction: ins.SendWeights, received: Received | None) -> None:
        kind = self._rule(fold).answers
        if fold.shared is not None:
            self._open_shared(fold, fold.shared)
        workers, resumed = self._all_workers(fold.state), fold.checkpoint
        if resumed is not None and not are_the_same(resumed, workers, self.ranks_per_worker):
            resumed = None
        if instruction.with_state:
            remembers = resumed is not None and remembers_all(
                resumed, workers, self.groups if kind == "difference" else ()
            )
            kind = "nothing" if kind == "difference" and (fold.has_begun or remembers) else "weights"
            fold.has_begun = True
        for worker in instruction.workers:
            train = msg.Train(
                assignment=fold.order.assignment,
                version=instruction.version,
                n_samples=fold.state.n_samples,
                adopt=kind,
                position=self._position_to_resume(fold, worker, same_workers=resumed is not None),
                restore="" if resumed is None else str(resumed.place),
                mid_epoch=resumed is not None and resumed.n_samples_inside > 0,
                rate_factor=fold.rate_factor if instruction.with_state and fold.state.plan.calls_back else None,
                shared=[*fold.place],
            )
            if not instruction.with_state:
                payload = (
                    fold.central[: fold.n_weights] if kind == "weights" else self._answer_to(fold, worker, received)
                )
            else:
                payload = fold.central if kind == "weights" else fold.central[fold.n_weights :]
            self._send(worker, train, payload)
        fold.checkpoint = fold.next_pass = None
        fold.place = ()

    def _open_shared(self, fold: _Fold, shared: SharedWeights) -> None:
        """Let the workers move the weights until the epoch is full."""
        state = fold.state
        shared.begin(state.version, state.n_samples, 0 if state.preempting else (state.epoch + 1) * state.n_train)

    def _send_fence(self, fold: _Fold, instruction: ins.SendFence, received: Received | None) -> None:
        if instruction.checkpoint and self.writes_checkpoints and fold.writing is None:
            try:
                fold.writing = checkpoint.begin(fold.directory, instruction.epoch)
            except OSError as error:
                logger.warning("no checkpoint of epoch %d: %s", instruction.epoch, error)
        for worker in instruction.workers:
            answer = self._answer_to(fold, worker, received)
            fence = msg.Fence(
                assignment=fold.order.assignment,
                adopt="nothing" if answer is None else "difference",
                checkpoint="" if fold.writing is None else str(fold.writing.resolve()),
                mid_epoch=instruction.mid_epoch,
            )
            self._send(worker, fence, answer)

    def _hold_state(self, fold: _Fold, instruction: ins.HoldState, received: Received | None) -> None:
        assert received is not None
        message = received.message
        assert isinstance(message, msg.FenceReached)
        fold.written.update(message.files)
        for worker, own in message.by_worker(instruction.worker).items():
            fold.positions[worker] = own.position
            fold.written.update(own.files)
        fold.model_states[instruction.worker] = _payload(received).copy()
        if len(fold.model_states) == len(fold.state.workers):
            self._average_model_states(fold)

    def _position_to_resume(self, fold: _Fold, worker: int, *, same_workers: bool) -> dict[str, Any] | None:
        resumed = fold.checkpoint
        if resumed is not None:
            positions = {n: position_of(resumed, n, same_workers=same_workers) for n in self._led_by(worker)}
        elif fold.next_pass is not None:
            positions = {n: {"pass": fold.next_pass, "offset": 0} for n in self._led_by(worker)}
        else:
            return None
        return {str(n): position for n, position in positions.items()} if self.groups else positions[worker]

    def _average_model_states(self, fold: _Fold) -> None:
        if len(fold.central) > fold.n_weights:
            workers = sorted(fold.model_states)
            states = [fold.model_states[worker] for worker in workers]
            fold.central[fold.n_weights :] = average_states(states, [len(self._led_by(worker)) for worker in workers])
        fold.model_states.clear()

    def _report_epoch(self, fold: _Fold, instruction: ins.ReportEpoch) -> None:
        written = fold.checkpoint is not None  # the epoch that was gone on from
        if instruction.checkpoint:
            written = self._save(fold) or written
        reported = msg.EpochReported(
            assignment=fold.order.assignment,
            epoch=instruction.epoch,
            metrics=instruction.metrics,
            figure_of_merit=figure_so_far(self.comparison, fold.state.history.epochs),
            checkpointed=written,
            waits=instruction.waits,
        )
        self._orders.send(COORDINATOR, reported)
        self._timeline.flush()

    def _save(self, fold: _Fold, n_samples_inside: int = 0) -> bool:
        """Write a checkpoint, `n_samples_inside` the epoch under way; -> whether that was wanted and possible."""
        if not self.writes_checkpoints:
            return False
        writing, written = fold.writing, fold.written
        fold.writing, fold.written = None, {}
        try:
            checkpoint.save(fold.directory, self._checkpoint(fold, n_samples_inside), writing, written)
        except OSError as error:
            logger.warning("no checkpoint of epoch %d: %s", fold.state.epoch, error)
            return False
        return True

    def _checkpoint(self, fold: _Fold, n_samples_inside: int) -> Checkpoint:
        state = fold.state
        arrays = {"central": fold.central}
        if fold.best is not None:
            arrays["best"] = fold.best
        scalars = {}
        for name, value in self._rule(fold).state().items():
            if isinstance(value, np.ndarray):
                arrays[f"rule.{name}"] = value
            else:
                scalars[name] = value
        return Checkpoint(
            epoch=state.epoch,
            n_samples_inside=n_samples_inside,
            arrays=arrays,
            master={
                "n_samples": state.n_samples,
                "version": state.version,
                "train_s": self._train_s(fold),
                "history": state.history.to_json(),
                "epoch_under_way": state.history.epoch_under_way(),
                "staleness": state.staleness.to_json(),
                "rule": scalars,
                "rate_factor": fold.rate_factor,
            },
            workers=fold.positions,
        )

    def _send_judge(self, fold: _Fold, instruction: ins.SendJudge) -> None:
        facts = {
            "epochs": fold.state.history.epochs,
            "epoch": instruction.epoch,
            "metrics": instruction.metrics,
            "n_weights": fold.n_weights,
            "train_s": self._train_s(fold),
            "point": fold.order.point,
            "trial": fold.order.trial,
            "fold": fold.order.fold,
        }
        self._send(1, msg.Judge(assignment=fold.order.assignment, fold=facts))

    def _finish(self, fold: _Fold, instruction: ins.Finish) -> None:
        weights = fold.best if instruction.restore_best and fold.best is not None else fold.central
        if not np.isfinite(weights).all():
            # An update after the last loss that was looked at: no figure shows it.
            raise TrialError("the weights are not finite after the last update: lower the learning rate")
        train_s = self._train_s(fold)
        objectives = values_of_training(self.comparison, instruction, fold.n_weights, train_s)
        checkpoint.save_weights(fold.directory, weights[: fold.n_weights], weights[fold.n_weights :])
        history = {
            **fold.state.history.to_json(),
            "staleness": fold.state.staleness.to_json(),
            "train_s": train_s,
            "n_workers": len(self._all_workers(fold.state)),
            "ended_because": instruction.reason,
        }
        atomic_write(fold.directory / "history.json", json.dumps(history, indent=1))
        finished = msg.FoldFinished(
            assignment=fold.order.assignment,
            figure_of_merit=objectives[self.comparison.objectives[0].name],
            metrics=instruction.metrics,
            n_epochs=instruction.n_epochs,
            train_s=train_s,
            reason=instruction.reason,
            objectives=objectives if self.comparison.several else {},
        )
        order = fold.order
        self._unrecorded[order.assignment] = fold.directory
        self.results.add(order, finished)
        self._end(fold, finished)

    def _failure(self, assignment: int, error: Exception) -> msg.FoldFailed:
        return msg.FoldFailed(
            assignment=assignment,
            reason=reason_of(error),
            traceback="".join(traceback.format_exception(error)),
            world_rank=self._orders.rank,
            host=socket.gethostname(),
        )

    def _fail(self, fold: _Fold, failed: msg.FoldFailed) -> None:
        self._unrecorded[fold.order.assignment] = fold.directory
        self._end(fold, failed)

    def _end(self, fold: _Fold, message: msg.Message) -> None:
        for worker in fold.state.workers:
            self._send(worker, msg.EndFold(assignment=fold.order.assignment))
        checkpoint.abandon(fold.writing)
        self._fold = None
        self._idle_since_s = self._clock.monotonic_s()
        self._orders.send(COORDINATOR, message)

    def _rule(self, fold: _Fold) -> CentralRule:
        if fold.rule is None:
            raise ProtocolError("An update came before the weights.")
        return fold.rule if fold.shared is None else fold.shared.settle()

    def _train_s(self, fold: _Fold) -> float:
        return fold.trained_before_s + self._clock.monotonic_s() - fold.began_s


def _payload(received: Received | None) -> np.ndarray:
    if received is None or received.payload is None:
        raise ProtocolError(f"{received and type(received.message).__name__} came without its vector.")
    return received.payload
