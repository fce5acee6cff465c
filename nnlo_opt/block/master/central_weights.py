"""The central weights of an assignment at its master: what they are, what moves them, and who else sees them.

The update rule itself stands in `block.central`. Where workers share memory with the master and the rule has use for
it, the weights lie there (`block.exchange.shared_weights`), or the workers' steps do (`block.exchange.shared_step`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.block.central import CentralRule, central_rule
from nnlo_opt.block.exchange.shared_step import SharedStep
from nnlo_opt.block.exchange.shared_weights import SharedWeights
from nnlo_opt.block.local import common_optimizer
from nnlo_opt.block.master.endpoints import WorkerEndpoints
from nnlo_opt.block.master.state import MasterState
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.transport import Received, SharedMemory
from nnlo_opt.errors import ProtocolError, TrialError
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.checkpoint import Checkpoint
from nnlo_opt.vectors import aligned_empty

#: before the names of the update rule's vectors among the arrays of a checkpoint
_OF_RULE = "rule."


class CentralWeights:
    """Weights and float model state of one assignment, with the update rule that moves them."""

    def __init__(
        self, options: TrainingOptions, state: MasterState, ends: WorkerEndpoints, rate_factor: float = 1.0
    ) -> None:
        """`state` says how far the training is; it moves on before the weights do."""
        self._options = options
        self._state = state
        self._ends = ends
        self._schedule = options.schedule
        #: central weights, then float model state, float32
        self.central = aligned_empty(0)
        self.n_weights = 0
        #: weights, float model state and training samples, as all workers must have them; None before one is ready
        self._size: tuple[int, int, int] | None = None
        #: None until all workers are ready
        self._rule: CentralRule | None = None
        #: the central weights, where the workers move them themselves
        self.shared: SharedWeights | None = None
        #: memory for the workers' steps, in allreduce, where they share it
        self._steps: SharedMemory | None = None
        #: where that of either is, as long as the workers have to be told
        self._place: tuple[int, ...] = ()
        #: worker -> (samples, update) of the round being collected; after it, the answers to them
        self._held: dict[int, tuple[int, np.ndarray]] = {}
        #: worker -> float model state handed in at the fence
        self._model_states: dict[int, np.ndarray] = {}
        #: weights and model state of the best epoch; None before there is one
        self._best: np.ndarray | None = None
        #: training samples behind the central weights; those of updates that are held do not count yet
        self._n_applied = state.n_samples
        #: what callbacks want the learning rates to be multiplied by
        self.rate_factor = rate_factor

    # ------------------------------------------------------------ what they are to begin with

    def take_ready(self, worker: int, received: Received) -> None:
        """`worker` has built its model; TrialError where that is another than the others'."""
        message = received.message
        assert isinstance(message, msg.WorkerReady)
        size, others = (message.n_weights, message.n_state, message.n_train), self._size
        if others not in (None, size):
            raise TrialError(
                "`get_model` must build the same model on every worker, and all must see the same data; worker "
                f"{self._ends.led_by(worker)[0]} has (weights, state, training samples) {size}, another has {others}"
            )
        self._size = size
        self.n_weights = message.n_weights
        if received.payload is not None and self._rule is None:  # else ranks have died since: these are no news
            self.central = aligned_empty(len(received.payload))
            np.copyto(self.central, received.payload)

    def initialise(self, resumed: Checkpoint | None, directory: Path) -> None:
        """All workers are ready: go on from what was `resumed` from `directory`, or begin with the model's weights."""
        self._rule = self._new_rule()
        if resumed is not None:
            if resumed.arrays["central"].shape != self.central.shape:
                raise TrialError(
                    f"The checkpoint in `{directory}` holds {resumed.arrays['central'].size} weights, the model has "
                    f"{self.central.size}: has the model changed? Remove the checkpoint, or start a new run."
                )
            np.copyto(self.central, resumed.arrays["central"])
            self._best = resumed.arrays.get("best")
            vectors = {
                name.removeprefix(_OF_RULE): array
                for name, array in resumed.arrays.items()
                if name.startswith(_OF_RULE)
            }
            self._rule.load_state({**resumed.master["rule"], **vectors})
        self._share(self._rule)

    def regroup(self, ends: WorkerEndpoints) -> None:
        """Go on as they are with the workers that stand at `ends`; the decisions know of them."""
        self._ends = ends
        self._held, self._model_states = {}, {}
        if self._rule is None:
            return
        before = self.rule.state()
        # In memory of its own again: who is left may stand on other transports, or be one process.
        self._rule, self.shared = self._new_rule(), None
        self._rule.load_state(before)
        self._share(self._rule)

    @property
    def are_initialised(self) -> bool:
        """Whether there is something that is trained."""
        return self._rule is not None

    def _new_rule(self) -> CentralRule:
        return central_rule(self._options, self.n_weights, len(self._state.workers))

    def _share(self, rule: CentralRule) -> None:
        """Make memory for all workers, where they are all on this node and the update rule has use for it."""
        options, ends, n_workers = self._options, self._ends, len(self._state.workers)
        if ends.groups:
            return
        if options.shares_weights:
            self.shared = SharedWeights.of_master(ends.block, rule, self.central, self.n_weights, n_workers)
            if self.shared is not None:
                self.central, self._place = self.shared.central, self.shared.place
                self.open_to_workers()
        elif options.shares_steps and n_workers > 1:
            optimizer = common_optimizer(options, 1)
            self._steps = ends.block.share(SharedStep.n_bytes(optimizer, self.n_weights, n_workers))
            if self._steps is not None:
                self._place = self._steps.place

    def take_place(self) -> list[int]:
        """By which workers are to join memory, if they have not been told; they have then."""
        place, self._place = self._place, ()
        return [*place]

    # ------------------------------------------------------------ what moves them

    @property
    def rule(self) -> CentralRule:
        """The update rule as all updates have left it; ProtocolError before there is one."""
        if self._rule is None:
            raise ProtocolError("An update came before the weights.")
        return self._rule if self.shared is None else self.shared.settle()

    def open_to_workers(self) -> None:
        """Let the workers move the weights until the epoch is full, where they move them themselves."""
        if self.shared is not None:
            state = self._state
            full_at = 0 if state.preempting else (state.epoch + 1) * state.n_train
            self.shared.begin(state.version, state.n_samples, full_at)

    def recall(self) -> None:
        """Have the next update of each worker that moves them be its last."""
        if self.shared is not None:
            self.shared.recall()

    def apply(self, received: Received | None, weight: float) -> None:
        """Move them by the update that has come."""
        self._scale_learning_rate()
        self.rule.apply(self.central[: self.n_weights], _payload(received), weight)

    def hold(self, worker: int, n_samples: int, received: Received | None) -> None:
        """Keep the update that has come from `worker` until its round is complete."""
        if received is not None and received.payload is None:
            return  # allreduce: the weights of one worker are those of all
        _, buffer = self._held.get(worker, (0, None))
        buffer = aligned_empty(self.n_weights) if buffer is None else buffer
        np.copyto(buffer, _payload(received))
        self._held[worker] = (n_samples, buffer)

    def apply_round(self, workers: Sequence[int]) -> None:
        """Move them by the updates held of `workers`, in this order."""
        self._scale_learning_rate()
        updates = [self._held[worker] for worker in workers if worker in self._held]
        self.rule.apply_round(self.central[: self.n_weights], updates)

    def answer_to(self, worker: int, received: Received | None) -> np.ndarray | None:
        """What the update that `worker` pushed last was turned into, where the rule answers that."""
        if self.rule.answers != "difference" or self.shared is not None:
            return None
        return self._held[worker][1] if self._state.plan.synchronous else _payload(received)

    def _scale_learning_rate(self) -> None:
        """Take the learning rate of this point of the training for the update that comes next."""
        state = self._state
        if self._schedule.changes or state.plan.calls_back:
            factor = self._schedule.factor_of_update(
                self._n_applied, state.n_samples, state.n_train, self._options.epochs
            )
            self.rule.scale_learning_rate(factor * self.rate_factor)
        self._n_applied = state.n_samples

    # ------------------------------------------------------------ at the end of an epoch

    def hold_state(self, worker: int, received: Received | None) -> None:
        """Keep the float model state that `worker` has handed in; when all have, theirs is the mean of them."""
        self._model_states[worker] = _payload(received).copy()
        if len(self._model_states) < len(self._state.workers):
            return
        if len(self.central) > self.n_weights:
            workers = sorted(self._model_states)
            states = [self._model_states[worker] for worker in workers]
            n_led = [len(self._ends.led_by(worker)) for worker in workers]
            self.central[self.n_weights :] = average_states(states, n_led)
        self._model_states.clear()

    def take_wishes(self, received: Received | None) -> None:
        """Take what callbacks have answered: the learning rate, and the weights where there are any."""
        assert received is not None
        message = received.message
        assert isinstance(message, msg.CalledBack)
        self.rate_factor = message.rate_factor
        if received.payload is not None:
            np.copyto(self.central, received.payload)

    def keep_best(self) -> None:
        """Keep a copy: the best so far."""
        self._best = self.central.copy()

    def result(self, *, restore_best: bool) -> np.ndarray:
        """Those that the fold has at its end, or of its best epoch; TrialError unless they are finite."""
        result = self._best if restore_best and self._best is not None else self.central
        if not np.isfinite(result).all():
            # An update after the last loss that was looked at: no figure shows it.
            raise TrialError("the weights are not finite after the last update: lower the learning rate")
        return result

    def to_checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays of a checkpoint, and scalars of the update rule, from which `initialise` goes on."""
        arrays, scalars = {"central": self.central}, {}
        if self._best is not None:
            arrays["best"] = self._best
        for name, value in self.rule.state().items():
            if isinstance(value, np.ndarray):
                arrays[f"{_OF_RULE}{name}"] = value
            else:
                scalars[name] = value
        return arrays, scalars


def average_states(states: Sequence[np.ndarray], n_workers: Sequence[int]) -> np.ndarray:
    """The mean of float model states (n_state,), each itself the mean of `n_workers`; float64 (n_state,)."""
    return np.asarray(np.average(np.asarray(states, np.float64), axis=0, weights=n_workers))


def _payload(received: Received | None) -> np.ndarray:
    if received is None or received.payload is None:
        raise ProtocolError(f"{received and type(received.message).__name__} came without its vector.")
    return received.payload
