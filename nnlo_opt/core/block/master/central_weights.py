"""The central weights of an assignment at its master, with the update rule that moves them.

If workers share memory with the master and the rule supports it, the weights are there (`exchange.shared_weights`), or
the workers' steps are (`exchange.shared_step`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError, TrialError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.vectors import aligned_empty, without_bytes
from nnlo_opt.core.block.exchange.rounds import HeldUpdates, average_states, check_same_model
from nnlo_opt.core.block.exchange.shared_step import SharedStep
from nnlo_opt.core.block.exchange.shared_weights import SharedWeights
from nnlo_opt.core.block.master.endpoints import WorkerEndpoints
from nnlo_opt.core.block.master.state import MasterState
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.transport import Received, SharedMemory
from nnlo_opt.core.trials.checkpoint import Checkpoint
from nnlo_opt.core.update_rules.layers import Layer, layers_of
from nnlo_opt.core.update_rules.rule import Answer, MasterHalf

#: name of the callbacks' state among the arrays of a checkpoint
_OF_CALLBACKS = "callbacks"
#: prefix of the update rule's vectors among the arrays of a checkpoint
_OF_RULE = "rule."


class CentralWeights:
    """Weights and float model state of one assignment, with the update rule that moves them."""

    def __init__(self, state: MasterState, ends: WorkerEndpoints, rate_factor: float = 1.0) -> None:
        """Start without weights, until the first worker is ready; `state` changes before the weights do."""
        #: options of the trial; replaced for a model that trains itself
        self._options = state.plan.options
        self._state = state
        self._ends = ends
        self._schedule = self._options.schedule
        #: central weights, then float model state, float32
        self.central = aligned_empty(0)
        self.n_weights = 0
        #: message of the first ready worker, which the others must match; None before that
        self._first_ready: msg.WorkerReady | None = None
        #: None until all workers are ready
        self._rule: MasterHalf | None = None
        #: the shared central weights, if the workers update them directly
        self.shared: SharedWeights | None = None
        #: memory for the workers' steps in allreduce, if they share it
        self._steps: SharedMemory | None = None
        #: updates of the current round; after it, the answers
        self._held = HeldUpdates()
        #: worker -> float model state handed in at the fence
        self._model_states: dict[int, np.ndarray] = {}
        #: weights and model state of the best epoch; None before there is one
        self._best: np.ndarray | None = None
        #: training samples behind the central weights, without held updates
        self._n_applied = state.n_samples
        #: learning rate factor requested by callbacks
        self.rate_factor = rate_factor
        #: the callbacks' own state, bytes that only they understand, (n_bytes,); None before they have any
        self.callbacks: np.ndarray | None = None

    # ------------------------------------------------------------ at the beginning

    def take_ready(self, worker: int, ready: msg.WorkerReady, initial: np.ndarray | None) -> None:
        """Record that `worker` has built its model; TrialError if it differs from another worker's.

        Args:
            initial: initial weights and float model state, from worker 1; else None.
        """
        self._first_ready = self._first_ready or ready
        check_same_model(self._ends.led_by(worker)[0], ready, self._first_ready)
        self.n_weights = ready.n_weights
        self._options = self._options.with_steps(ready.steps)
        if ready.trains_itself:
            self._options = self._options.for_updates()
        if initial is not None and self._rule is None:  # otherwise ranks have died, and these are old
            self.central = aligned_empty(len(initial))
            np.copyto(self.central, initial)

    def initialise(self, resumed: Checkpoint | None, directory: SafePath) -> None:
        """Start from the checkpoint `resumed` in `directory`, or from the weights of worker 1."""
        self._rule = self._new_rule()
        if resumed is not None:
            if resumed.arrays["central"].shape != self.central.shape:
                raise TrialError(
                    f"The checkpoint in `{directory}` holds {resumed.arrays['central'].size} weights, the model has "
                    f"{self.central.size}: has the model changed? Remove the checkpoint, or start a new run."
                )
            np.copyto(self.central, resumed.arrays["central"])
            self._best = resumed.arrays.get("best")
            self.callbacks = resumed.arrays.get(_OF_CALLBACKS)
            vectors = {
                name.removeprefix(_OF_RULE): array
                for name, array in resumed.arrays.items()
                if name.startswith(_OF_RULE)
            }
            self._rule.load_state({**resumed.master["rule"], **vectors})
        self._check(self._rule)
        self._share(self._rule)

    def _check(self, rule: MasterHalf) -> None:
        """Raise TrialError if the rule does not do what it declares; its workers rely on it."""
        options = self._options
        for name, is_missing in (
            ("ema", options.ema is not None and rule.average is None),
            ("synchronous", options.clips_mean and options.clipping(()) is not None and not rule.clips),
        ):
            if is_missing:
                raise TrialError(
                    f"{type(rule).__name__} of the update rule {options.mode} must have `average` with "
                    f"`{spelled('ema')}`, and clip the mean if its `averages_gradients` is True. Received: "
                    f"`{spelled(name, getattr(options, name))}`; leave it out."
                )

    def regroup(self, ends: WorkerEndpoints) -> None:
        """Continue with the workers at `ends`; the state already has them."""
        self._ends = ends
        self._held, self._model_states = HeldUpdates(), {}
        if self._rule is None:
            return
        before = self.rule.state()
        # Move back to private memory: the remaining ranks may have other transports, or be one process.
        self._rule, self.shared = self._new_rule(), None
        self._rule.load_state(before)
        self._share(self._rule)

    @property
    def are_initialised(self) -> bool:
        """True once there are weights."""
        return self._rule is not None

    def _new_rule(self) -> MasterHalf:
        assert self._first_ready is not None
        rule = self._options.rule.master_half(self._options, self.n_weights, len(self._state.workers))
        rule.take_layers(self._layers)
        return rule

    @property
    def _layers(self) -> tuple[Layer, ...]:
        assert self._first_ready is not None
        return layers_of(self._first_ready.layers)

    def _share(self, rule: MasterHalf) -> None:
        """Create shared memory for all workers, if they are on this node and the update rule supports it."""
        options, ends, n_workers = self._options, self._ends, len(self._state.workers)
        if ends.groups:
            return
        if options.shares_weights:
            self.shared = SharedWeights.of_master(ends.block, rule, self.central, self.n_weights, n_workers)
            if self.shared is not None:
                self.central = self.shared.central
                self.open_to_workers()
        elif options.shares_steps and n_workers > 1:
            optimizer, clipping = options.rule.optimizer(options, 1), options.clipping(self._layers)
            self._steps = ends.block.share(SharedStep.n_bytes(optimizer, self.n_weights, n_workers, clipping))

    @property
    def place(self) -> list[int]:
        """Handle for workers to join the shared memory; [] without it."""
        memory = self.shared or self._steps
        return [] if memory is None else [*memory.place]

    # ------------------------------------------------------------ updates

    @property
    def rule(self) -> MasterHalf:
        """The master's half of the rule after all updates; ProtocolError before all workers are ready."""
        if self._rule is None:
            raise ProtocolError("An update came before the weights.")
        return self._rule if self.shared is None else self.shared.settle()

    def open_to_workers(self) -> None:
        """Let the workers update shared weights until the epoch is full."""
        if self.shared is not None:
            state = self._state
            full_at = 0 if state.preempting else (state.epoch + 1) * state.n_train
            self.shared.begin(state.version, state.n_samples, full_at, state.staleness)

    def recall(self) -> None:
        """Make the next update of each worker with shared weights its last."""
        if self.shared is not None:
            self.shared.recall()

    def apply(self, received: Received, weight: float) -> None:
        """Apply the received update."""
        self._scale_learning_rate()
        if self._options.momentum_correction:
            self.rule.take_staleness(self._state.staleness.mean)
        self.rule.apply(self.central[: self.n_weights], received.vector, weight)

    def hold(self, worker: int, n_samples: int, received: Received) -> None:
        """Keep the received update of `worker` until its round is complete."""
        if received.payload is not None:  # allreduce: all workers have the same weights
            self._held.keep(worker, n_samples, received.payload)

    def apply_round(self, workers: Sequence[int]) -> None:
        """Apply the held updates of `workers`, in this order."""
        self._scale_learning_rate()
        self.rule.apply_round(self.central[: self.n_weights], self._held.of(workers))

    def answer_to(self, worker: int, received: Received) -> np.ndarray | None:
        """Return the answer to the last update of `worker` if it is a difference, else None."""
        if self.rule.answers != Answer.DIFFERENCE or self.shared is not None:
            return None
        return self._held.answer_to(worker) if self._options.waits else received.vector

    def _scale_learning_rate(self) -> None:
        """Set the learning rate of the next update."""
        state = self._state
        if self._schedule.changes or state.calls_back:
            factor = self._schedule.factor_of_update(
                self._n_applied, state.n_samples, state.n_train, self._options.epochs
            )
            self.rule.scale_learning_rate(factor * self.rate_factor)
        self._n_applied = state.n_samples

    # ------------------------------------------------------------ at the end of an epoch

    def hold_state(self, worker: int, received: Received) -> None:
        """Keep the float model state of `worker`; after the last one, the central state becomes their mean."""
        self._model_states[worker] = received.vector.copy()
        if len(self._model_states) < len(self._state.workers):
            return
        if len(self.central) > self.n_weights:
            workers = sorted(self._model_states)
            states = [self._model_states[worker] for worker in workers]
            n_led = [len(self._ends.led_by(worker)) for worker in workers]
            self.central[self.n_weights :] = average_states(states, n_led)
        self._model_states.clear()

    def take_requests(self, received: Received) -> None:
        """Adopt the learning rate of the callbacks, their state, and the weights if they changed them."""
        message = received.message
        assert isinstance(message, msg.CalledBack)
        self.rate_factor = message.rate_factor
        if received.payload is None:
            return
        changed, state = without_bytes(received.payload, message.n_state)
        self.callbacks = state if message.n_state else None
        if len(changed):
            np.copyto(self.central, changed)

    @property
    def evaluated(self) -> np.ndarray:
        """Weights and model state to evaluate and save: the central ones, or their average over the updates."""
        average = self.rule.average
        if average is None or not self._state.version:
            return self.central
        return np.concatenate([average, self.central[self.n_weights :]])

    def keep_best(self) -> None:
        """Keep a copy of weights and model state: the best so far."""
        self._best = self.evaluated.copy()

    def result(self, *, restore_best: bool) -> np.ndarray:
        """Return weights and model state of the last or the best epoch; TrialError unless they are finite."""
        result = self._best if restore_best and self._best is not None else self.evaluated
        if not np.isfinite(result).all():
            # Caused by an update after the last loss, so no metric shows it.
            raise TrialError("the weights are not finite after the last update: lower the learning rate")
        return result

    def to_checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays of a checkpoint, and scalars of the update rule, from which `initialise` continues."""
        arrays, scalars = {"central": self.central}, {}
        if self._best is not None:
            arrays["best"] = self._best
        if self.callbacks is not None:
            arrays[_OF_CALLBACKS] = self.callbacks
        for name, value in self.rule.state().items():
            if isinstance(value, np.ndarray):
                arrays[f"{_OF_RULE}{name}"] = value
            else:
                scalars[name] = value
        return arrays, scalars
