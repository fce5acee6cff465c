"""Downpour SGD: each worker pushes gradients at its own pace, then adopts the central weights.

Dean et al., "Large Scale Distributed Deep Networks" (NIPS 2012), section 4.1 and Algorithm 7.1: after every n_push
batches a worker pushes its accumulated gradient, and pulls the central weights. Here push and pull are one exchange
every k batches (the sync period), and the optimizer at the master can be chosen; the paper uses Adagrad.

Notation: g_j is the mean gradient of batch j of n_j samples. At k = 1 a worker pushes g_1. At k > 1 it takes local
steps x <- x - lr g_j in between (or steps of another local optimizer) and pushes

    u = k * sum_j(n_j g_j) / sum_j(n_j)                                                        (1)

which is their plain sum if batches have equal sizes: then one worker, with SGD of the same learning rate at the master,
is serial SGD. Synchronous training averages the pushes u_i of the workers, of N_i samples each, into

    u = sum_i(N_i u_i) / sum_i(N_i)                                                            (2)

which at k = 1 is the gradient of the union of their batches, however the samples are divided. A sub-master computes (2)
for its group, so in synchronous training a tree of masters is equivalent to one master.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.update_rules.clipping import Clipping
from nnlo_opt.core.update_rules.layers import Layer
from nnlo_opt.core.update_rules.optimizers import Optimizer, make_optimizer
from nnlo_opt.core.update_rules.rule import (
    Answer,
    AveragingMaster,
    GroupHalf,
    MasterHalf,
    RuleOptions,
    SteppingWorker,
    UpdateRule,
    WorkerHalf,
)
from nnlo_opt.core.update_rules.staleness import explicit_momentum
from nnlo_opt.core.update_rules.vectors import FloatVector, add_scaled, scratch_for


def combine(updates: Sequence[tuple[int, FloatVector]], out: FloatVector) -> None:
    """Write the average of `updates`, pairs (n_samples, vector), weighted by samples as in (2), into `out`.

    The sum follows the given order, so the same order gives the same bits. `out` must not be one of the vectors.
    """
    total = sum(n_samples for n_samples, _ in updates)
    if total <= 0:
        raise ValueError(f"Updates of at least one sample are expected. Received: {len(updates)} updates of {total}.")
    (n_first, first), *others = updates
    np.multiply(first, n_first / total, out=out)
    scratch = scratch_for(len(out))
    for n_samples, vector in others:
        add_scaled(out, vector, n_samples / total, scratch)


class DownpourMaster(MasterHalf):
    """The master's half: an optimizer follows the gradients of the workers."""

    clips = True

    def __init__(self, optimizer: Optimizer, options: RuleOptions | None = None) -> None:
        self._optimizer: Optimizer = optimizer
        self._options = options
        corrects_momentum = options is not None and options.momentum_correction
        #: clips the mean of a round; None before `take_layers`, or if nothing does
        self._clipping: Clipping | None = None
        #: total momentum of staleness and optimizer; None if momentum is not corrected
        self._asked_momentum = float(optimizer.values["momentum"]) if corrects_momentum else None
        self._mean = aligned_empty(0)

    def take_layers(self, layers: Iterable[Layer]) -> None:
        super().take_layers(layers)
        if self._options is not None and self._options.clips_mean:
            self._clipping = self._options.clipping(self._layers)

    def take_staleness(self, mean: float) -> None:
        if self._asked_momentum is not None:
            self._optimizer.values["momentum"] = explicit_momentum(self._asked_momentum, mean)

    def apply(self, central: FloatVector, update: FloatVector, weight: float) -> None:
        if weight != 1.0:
            update *= weight
        self._optimizer.apply(central, update)

    def exchange_block(
        self, central: FloatVector, update: FloatVector, answer: FloatVector, weight: float, block: slice
    ) -> None:
        if weight:
            with np.errstate(all="ignore"):
                if weight != 1.0:
                    update[block] *= weight
                self._optimizer.apply_block(central, update, block)
        if answer is not central:
            answer[block] = central[block]

    def apply_round(self, central: FloatVector, updates: Sequence[tuple[int, FloatVector]]) -> None:
        if len(self._mean) != len(central):
            self._mean = aligned_empty(len(central))
        combine(updates, self._mean)
        if self._clipping is not None:
            self._clipping.clip(self._mean)
        self._optimizer.apply(central, self._mean)


class DownpourWorker(WorkerHalf):
    """The worker's half for an exchange every batch: the update is the gradient."""

    def own(self, central: FloatVector) -> None:
        self.weights = self.answer = central

    def finish(self) -> FloatVector:
        return self.gradient


class SummingWorker(WorkerHalf):
    """The worker's half for longer periods: local steps; the update is (1) of the gradients along them."""

    def __init__(self, n_weights: int, optimizer: Optimizer) -> None:
        super().__init__(n_weights)
        self._optimizer: Optimizer = optimizer
        #: sum of n_j / n_1 * g_j: exactly g_1 after one batch, and exactly the plain sum for equal batches
        self._sum = np.zeros(n_weights, np.float32)
        #: n_1, samples of the first batch of the period
        self._n_first = 0
        #: batches and samples of the period so far
        self._n_batches = self._n_samples = 0
        self._scratch = scratch_for(n_weights)
        self._update = aligned_empty(n_weights)

    def step(self, n_samples: int) -> bool:
        if n_samples < 1:
            raise ValueError(f"A batch of at least one sample is expected. Received: {n_samples}.")
        if self._n_batches:
            add_scaled(self._sum, self.gradient, n_samples / self._n_first, self._scratch)
        else:
            self._n_first = n_samples
            np.copyto(self._sum, self.gradient)
        self._n_batches += 1
        self._n_samples += n_samples
        self._optimizer.apply(self.weights, self.gradient)
        return True

    def finish(self) -> FloatVector:
        if not self._n_batches:
            raise ValueError("A sync period of at least one batch is expected. Received: none.")
        np.multiply(self._sum, self._n_batches * self._n_first / self._n_samples, out=self._update)
        self._n_batches = self._n_samples = 0
        return self._update

    def state(self) -> dict[str, Any]:
        # Plain SGD has no state.
        state = super().state()
        return state if any(isinstance(value, np.ndarray) for value in state.values()) else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if state:
            super().load_state(state)


class FollowingMaster(AveragingMaster):
    """The master's half of a lone worker that takes the steps: the central weights are its weights."""

    answers = Answer.NOTHING

    def apply(self, central: FloatVector, update: FloatVector, weight: float) -> None:
        np.copyto(central, update)
        self._average(central)

    def exchange_block(
        self, central: FloatVector, update: FloatVector, answer: FloatVector, weight: float, block: slice
    ) -> None:
        if update is not central:
            central[block] = update[block]
        self._average(central, block)

    def apply_round(self, central: FloatVector, updates: Sequence[tuple[int, FloatVector]]) -> None:
        np.copyto(central, updates[0][1])
        self._average(central)


class LoneWorker(SteppingWorker):
    """The worker's half that takes the steps, with an optimizer that its framework runs."""

    drains = True

    def own(self, central: FloatVector) -> None:
        self.weights = self.answer = central

    def adopt(self, kind: Answer, answer: FloatVector) -> None:
        if kind != Answer.NOTHING:
            super().adopt(kind, answer)


class DownpourGroup(GroupHalf):
    """The sub-master's half: (2) over the updates of the group."""

    def __init__(self, n_weights: int) -> None:
        self._update = aligned_empty(n_weights)

    def combine(self, updates: Sequence[tuple[int, FloatVector]]) -> FloatVector:
        combine(updates, self._update)
        return self._update


def gradient_worker(options: RuleOptions, n_weights: int, learning_rate: float) -> WorkerHalf:
    """Return the half of a worker that pushes gradients and takes local steps at `learning_rate`."""
    if options.sync_every == 1:
        return DownpourWorker(n_weights)
    name, parameters = options.worker_optimizer or "sgd", options.worker_optimizer_params
    return SummingWorker(n_weights, make_optimizer(name, n_weights, learning_rate, parameters))


class Downpour(UpdateRule):
    """The rule of `--mode downpour`."""

    name = "downpour"
    weighs_staleness = True
    averages_gradients = keeps_average = True
    corrects_momentum = True

    def master_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> MasterHalf:
        if options.own_optimizer:
            return FollowingMaster(n_weights, options.ema)
        return DownpourMaster(self.optimizer(options, n_weights), options)

    def worker_half(self, options: RuleOptions, n_weights: int) -> WorkerHalf:
        if options.own is not None:
            return LoneWorker(n_weights, options.own)
        # Local steps use the learning rate of the master's optimizer.
        return gradient_worker(options, n_weights, self.base_learning_rate(options))

    def takes_own(self, options: RuleOptions, n_workers: int) -> bool:
        return n_workers == 1 and type(self) is Downpour

    def group_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> DownpourGroup:
        return DownpourGroup(n_weights)
