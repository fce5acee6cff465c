"""Allreduce: all workers take the same step along the mean of their gradients, so their weights stay equal.

Synchronous SGD with averaged gradients, as in Sergeev and Del Balso, "Horovod" (arXiv:1802.05799), section 3: with n_i
samples in the batch of worker i, every worker applies the optimizer to

    g = sum_i(n_i g_i) / sum_i(n_i)

which is the gradient of the union of their batches. `core.block.exchange` computes the sum. One worker sends the
weights to the master once per epoch.
"""

from collections.abc import Callable, Sequence

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, ProtocolError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.update_rules.optimizers import Optimizer
from nnlo_opt.core.update_rules.rule import (
    Answer,
    MasterHalf,
    PartedStep,
    RuleOptions,
    Step,
    SteppingWorker,
    UpdateRule,
)
from nnlo_opt.core.update_rules.vectors import FloatVector

_AVERAGE = "average"


class AllreduceMaster(MasterHalf):
    """The master's half: the central weights are those of the first worker, because all workers have the same."""

    answers = Answer.NOTHING

    def __init__(self, n_averaged: int = 0) -> None:
        """Expect the average of that many weights behind the weights of a worker."""
        if n_averaged:
            self.memory = {_AVERAGE: np.zeros(n_averaged, np.float32)}

    @property
    def average(self) -> FloatVector | None:
        return self.memory.get(_AVERAGE)

    def apply(self, central: FloatVector, update: FloatVector, weight: float) -> None:
        raise ProtocolError("Allreduce has no updates of single workers.")

    def apply_round(self, central: FloatVector, updates: Sequence[tuple[int, FloatVector]]) -> None:
        _, update = updates[0]
        np.copyto(central, update[: len(central)])
        if self.average is not None:
            np.copyto(self.average, update[len(central) :])


class AllreduceWorker(SteppingWorker):
    """The worker's half: the optimizer's step, whole or this rank's part of it."""

    #: None if each rank applies the whole step
    _shared: PartedStep | None = None

    def share(self, make: Callable[[Optimizer], Step]) -> Step:
        optimizer = self._optimizer
        assert isinstance(optimizer, Optimizer), "an optimizer of a framework takes no parts of a step"
        self._shared = shared = make(optimizer)
        self.weights, self.gradient = shared.weights, shared.gradient
        return shared

    def step(self, n_samples: int) -> bool:
        if self._shared is None:
            return super().step(n_samples)
        self._shared.apply()
        return True

    def finish(self) -> FloatVector:
        average = self._optimizer.average
        return self.weights if average is None else np.concatenate([self.weights, average])


class Allreduce(UpdateRule):
    """The rule of `--mode allreduce`."""

    name = "allreduce"
    averages_every_batch = parts_steps = keeps_average = True
    makes_local_steps = False

    def master_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> AllreduceMaster:
        return AllreduceMaster(0 if options.ema is None else n_weights)

    def worker_half(self, options: RuleOptions, n_weights: int) -> AllreduceWorker:
        return AllreduceWorker(n_weights, self.stepping(options, n_weights))

    def takes_own(self, options: RuleOptions, n_workers: int) -> bool:
        return type(self) is Allreduce  # a custom rule need not use `optimizer`

    def check_groups(self, n_masters: int, n_processes: int) -> None:
        for option, number, rule in (
            ("n_processes", n_processes, "averages over all ranks"),
            ("n_masters", n_masters, "has no masters"),
        ):
            if number > 1:
                raise ConfigurationError(
                    f"`{spelled(option)}` must be 1 with `{spelled('mode', self.name)}`, which {rule}. Received: "
                    f"{number}; leave it out, or choose another mode."
                )
