"""A master: owns the central weights of an assignment and carries out what `MasterState` decides.

NumPy only. It is reactive, as a worker is: `handle_order` takes a message of the coordinator, `handle` one of a
worker; neither waits.
"""

import json
import logging
import socket
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.algorithms.downpour import combine
from nnlo_opt.algorithms.optimizers import Optimizer, make_optimizer
from nnlo_opt.block import master_state as ms
from nnlo_opt.block.worker import reason_of
from nnlo_opt.clock import Clock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.transport import Received, Transport
from nnlo_opt.config import TrainingOptions
from nnlo_opt.errors import ProtocolError, TrialError
from nnlo_opt.files import atomic_write
from nnlo_opt.training import checkpoint
from nnlo_opt.training.checkpoint import Checkpoint, fold_directory
from nnlo_opt.training.history import FoldHistory
from nnlo_opt.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.vectors import aligned_empty

logger = logging.getLogger(__name__)

#: end of the coordinator on the transport of the orders
COORDINATOR = 0


def fold_plan(options: TrainingOptions, n_workers: int) -> ms.FoldPlan:
    """The plan of one assignment from the options of its trial."""
    return ms.FoldPlan(
        n_workers=n_workers,
        epochs=options.epochs,
        synchronous=options.synchronous,
        checkpoint_interval=options.checkpoint_interval,
        early_stopping=EarlyStopping.parse(options.early_stopping) if options.early_stopping else None,
        target_metric=TargetMetric.parse(options.target_metric) if options.target_metric else None,
    )


@dataclass(slots=True, kw_only=True)
class _Fold:
    """All that belongs to the assignment under way."""

    order: msg.RunFold
    directory: Path
    options: TrainingOptions
    state: ms.MasterState
    #: where it goes on from; None when it begins afresh
    checkpoint: Checkpoint | None
    began_s: float
    #: seconds trained before the checkpoint
    trained_before_s: float
    #: central weights, then float model state, float32
    central: np.ndarray = field(default_factory=lambda: aligned_empty(0))
    n_weights: int = 0
    optimizer: Optimizer | None = None
    #: worker -> (samples, update) of the round being collected
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


class Master:
    """The master of a team; serves one assignment after another."""

    def __init__(
        self, orders: Transport, block: Transport, directory: Path, options: TrainingOptions, clock: Clock
    ) -> None:
        """`orders` leads to the coordinator (end 0), `block` to the workers (ends 1, 2, …)."""
        self._orders = orders
        self._block = block
        self._directory = directory
        self._options = options
        self._clock = clock
        #: the assignment under way; None when idle
        self._fold: _Fold | None = None
        #: when the last assignment ended; None before there was one
        self._idle_since_s: float | None = None
        #: assignment -> where its checkpoints are, until the coordinator has recorded its end
        self._unrecorded: dict[int, Path] = {}
        #: whether checkpoints stay when a fold has ended
        self.keeps_checkpoints = False

    # ------------------------------------------------------------ the coordinator's messages

    def handle_order(self, message: msg.Message) -> None:
        """Take in one message of the coordinator."""
        match message:
            case msg.RunFold():
                self._run(message)
            case msg.StopFold():
                self._stop(message)
            case msg.FoldRecorded():
                directory = self._unrecorded.pop(message.assignment, None)
                if directory is not None and not self.keeps_checkpoints:
                    checkpoint.remove_all(directory)
            case _:
                raise ProtocolError(f"A master takes no {type(message).__name__} from the coordinator.")

    def _run(self, order: msg.RunFold) -> None:
        if self._fold is not None:
            raise ProtocolError(f"Assignment {order.assignment} came while {self._fold.order.assignment} is under way.")
        waited_s = None if self._idle_since_s is None else self._clock.monotonic_s() - self._idle_since_s
        directory = fold_directory(self._directory, order.trial, order.fold)
        try:
            options = self._options.with_point(order.point)
            resumed = checkpoint.load_latest(directory)
            plan = fold_plan(options, n_workers=self._block.size - 1)
            state = ms.MasterState(plan) if resumed is None else _state_from(plan, resumed)
        except Exception as error:
            self._unrecorded[order.assignment] = directory
            self._idle_since_s = self._clock.monotonic_s()
            self._orders.send(COORDINATOR, self._failure(order.assignment, error))
            return
        self._fold = _Fold(
            order=order,
            directory=directory,
            options=options,
            state=state,
            checkpoint=resumed,
            began_s=self._clock.monotonic_s(),
            trained_before_s=0.0 if resumed is None else float(resumed.master.get("train_s", 0.0)),
            waited_s=waited_s,
        )
        for worker in state.workers:
            start = msg.StartFold(
                assignment=order.assignment,
                trial=order.trial,
                fold=order.fold,
                point=order.point,
                worker=worker,
                n_workers=plan.n_workers,
            )
            self._block.send(worker, start)

    def _stop(self, message: msg.StopFold) -> None:
        fold = self._fold
        if fold is None or fold.order.assignment != message.assignment:
            return  # it has ended by itself, and that message is under way
        fold.state.stop()
        self._unrecorded[message.assignment] = fold.directory
        self._end(fold, msg.FoldStopped(assignment=message.assignment))

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
            for instruction in fold.state.handle(received.source, message):
                self._carry_out(fold, instruction, received)
        except ProtocolError:
            raise
        except Exception as error:
            fold.state.stop()
            self._fail(fold, self._failure(fold.order.assignment, error))

    def _take_ready(self, fold: _Fold, received: Received) -> None:
        message = received.message
        assert isinstance(message, msg.WorkerReady)
        size = (message.n_weights, message.n_state, message.n_train)
        if fold.size not in (None, size):
            raise TrialError(
                "`get_model` must build the same model on every worker, and all must see the same data; worker "
                f"{received.source} has (weights, state, training samples) {size}, another has {fold.size}"
            )
        fold.size = size
        logger.debug("worker %d trains %d of %d samples", received.source, message.n_shard, message.n_train)
        fold.n_weights = message.n_weights
        if received.payload is not None:
            fold.central = aligned_empty(len(received.payload))
            np.copyto(fold.central, received.payload)

    def _carry_out(self, fold: _Fold, instruction: ms.Instruction, received: Received) -> None:
        match instruction:
            case ms.Initialise():
                self._initialise(fold, instruction)
            case ms.ApplyUpdate():
                self._optimizer(fold).apply(fold.central[: fold.n_weights], _payload(received))
            case ms.HoldUpdate():
                _, buffer = fold.held.get(instruction.worker, (0, None))
                buffer = aligned_empty(fold.n_weights) if buffer is None else buffer
                np.copyto(buffer, _payload(received))
                fold.held[instruction.worker] = (instruction.n_samples, buffer)
            case ms.ApplyRound():
                mean = aligned_empty(fold.n_weights)
                combine([fold.held[worker] for worker in instruction.workers], mean)
                self._optimizer(fold).apply(fold.central[: fold.n_weights], mean)
            case ms.SendWeights():
                self._send_weights(fold, instruction)
            case ms.SendFence():
                for worker in instruction.workers:
                    self._block.send(worker, msg.Fence(assignment=fold.order.assignment))
            case ms.HoldState():
                message = received.message
                assert isinstance(message, msg.FenceReached)
                fold.positions[instruction.worker] = message.position
                fold.model_states[instruction.worker] = _payload(received).copy()
                if len(fold.model_states) == len(fold.state.workers):
                    self._average_model_states(fold)
            case ms.SendValidate():
                for worker in fold.state.workers:
                    self._block.send(worker, msg.Validate(assignment=fold.order.assignment), fold.central)
            case ms.KeepBest():
                fold.best = fold.central.copy()
            case ms.ReportEpoch():
                self._report_epoch(fold, instruction)
            case ms.Finish():
                self._finish(fold, instruction)
            case ms.Fail():
                failed = msg.FoldFailed(
                    assignment=fold.order.assignment,
                    reason=instruction.reason,
                    traceback=instruction.traceback,
                    world_rank=instruction.world_rank,
                    host=instruction.host,
                )
                self._fail(fold, failed)

    def _initialise(self, fold: _Fold, instruction: ms.Initialise) -> None:
        options = fold.options
        fold.optimizer = make_optimizer(
            options.optimizer, fold.n_weights, options.learning_rate, options.optimizer_params
        )
        if fold.checkpoint is not None:
            arrays = fold.checkpoint.arrays
            if arrays["central"].shape != fold.central.shape:
                raise TrialError(
                    f"The checkpoint in `{fold.directory}` holds {arrays['central'].size} weights, the model has "
                    f"{fold.central.size}: has the model changed? Remove the checkpoint, or start a new run."
                )
            np.copyto(fold.central, arrays["central"])
            fold.best = arrays.get("best")
            fold.optimizer.load_state(_optimizer_state(fold.checkpoint))
        started = msg.FoldStarted(assignment=fold.order.assignment, epoch=instruction.epoch, waited_s=fold.waited_s)
        self._orders.send(COORDINATOR, started)

    def _send_weights(self, fold: _Fold, instruction: ms.SendWeights) -> None:
        payload = fold.central if instruction.with_state else fold.central[: fold.n_weights]
        for worker in instruction.workers:
            train = msg.Train(
                assignment=fold.order.assignment,
                version=instruction.version,
                position=self._position_to_resume(fold, worker),
            )
            self._block.send(worker, train, payload)
        fold.checkpoint = None

    def _position_to_resume(self, fold: _Fold, worker: int) -> dict[str, Any] | None:
        if fold.checkpoint is None:
            return None
        positions = fold.checkpoint.workers
        if set(positions) == set(fold.state.workers):
            return dict(positions[worker])
        # Another number of workers: the shards are others too, so each begins a pass not yet made.
        return {"pass": 1 + max((p["pass"] for p in positions.values()), default=fold.checkpoint.epoch), "offset": 0}

    def _average_model_states(self, fold: _Fold) -> None:
        if len(fold.central) > fold.n_weights:
            states = [fold.model_states[worker] for worker in sorted(fold.model_states)]
            fold.central[fold.n_weights :] = np.mean(states, axis=0, dtype=np.float64)
        fold.model_states.clear()

    def _report_epoch(self, fold: _Fold, instruction: ms.ReportEpoch) -> None:
        written = False
        if instruction.checkpoint:
            try:
                checkpoint.save(fold.directory, self._checkpoint(fold))
                written = True
            except OSError as error:
                logger.warning("no checkpoint of epoch %d: %s", instruction.epoch, error)
        reported = msg.EpochReported(
            assignment=fold.order.assignment,
            epoch=instruction.epoch,
            metrics=instruction.metrics,
            checkpointed=written,
        )
        self._orders.send(COORDINATOR, reported)

    def _checkpoint(self, fold: _Fold) -> Checkpoint:
        state = fold.state
        arrays = {"central": fold.central}
        if fold.best is not None:
            arrays["best"] = fold.best
        scalars = {}
        for name, value in self._optimizer(fold).state().items():
            if isinstance(value, np.ndarray):
                arrays[f"optimizer.{name}"] = value
            else:
                scalars[name] = value
        return Checkpoint(
            epoch=state.epoch,
            arrays=arrays,
            master={
                "n_samples": state.n_samples,
                "version": state.version,
                "train_s": self._train_s(fold),
                "history": state.history.to_json(),
                "staleness": state.staleness.to_json(),
                "optimizer": scalars,
            },
            workers=fold.positions,
        )

    def _finish(self, fold: _Fold, instruction: ms.Finish) -> None:
        weights = fold.best if instruction.restore_best and fold.best is not None else fold.central
        if not np.isfinite(weights).all():
            # An update after the last loss that was looked at: no figure shows it.
            raise TrialError("the weights are not finite after the last update: lower the learning rate")
        train_s = self._train_s(fold)
        checkpoint.save_weights(fold.directory, weights[: fold.n_weights], weights[fold.n_weights :])
        history = {
            **fold.state.history.to_json(),
            "staleness": fold.state.staleness.to_json(),
            "train_s": train_s,
            "n_workers": len(fold.state.workers),
            "ended_because": instruction.reason,
        }
        atomic_write(fold.directory / "history.json", json.dumps(history, indent=1))
        finished = msg.FoldFinished(
            assignment=fold.order.assignment,
            figure_of_merit=instruction.figure_of_merit,
            metrics=instruction.metrics,
            n_epochs=instruction.n_epochs,
            train_s=train_s,
            reason=instruction.reason,
        )
        self._unrecorded[fold.order.assignment] = fold.directory
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
            self._block.send(worker, msg.EndFold(assignment=fold.order.assignment))
        self._fold = None
        self._idle_since_s = self._clock.monotonic_s()
        self._orders.send(COORDINATOR, message)

    def _optimizer(self, fold: _Fold) -> Optimizer:
        if fold.optimizer is None:
            raise ProtocolError("An update came before the weights.")
        return fold.optimizer

    def _train_s(self, fold: _Fold) -> float:
        return fold.trained_before_s + self._clock.monotonic_s() - fold.began_s


def _payload(received: Received) -> np.ndarray:
    if received.payload is None:
        raise ProtocolError(f"{type(received.message).__name__} came without its vector.")
    return received.payload


def _state_from(plan: ms.FoldPlan, resumed: Checkpoint) -> ms.MasterState:
    master = resumed.master
    state = ms.MasterState(
        plan, FoldHistory.from_json(master["history"]), n_samples=master["n_samples"], version=master["version"]
    )
    state.staleness = type(state.staleness).from_json(master["staleness"])
    return state


def _optimizer_state(resumed: Checkpoint) -> dict[str, Any]:
    prefix = "optimizer."
    slots = {name.removeprefix(prefix): a for name, a in resumed.arrays.items() if name.startswith(prefix)}
    return {**resumed.master["optimizer"], **slots}
