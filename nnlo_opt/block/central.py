"""The master's half of each update rule: what becomes of the central weights when an update comes in.

The mathematics stands in `algorithms`; this is where a rule meets the protocol. All vectors are float32 (n_weights,).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from nnlo_opt.errors import ProtocolError
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.update_rules import downpour, easgd
from nnlo_opt.update_rules.optimizers import make_optimizer
from nnlo_opt.vectors import aligned_empty


class CentralRule(Protocol):
    """One update rule at the master, for one assignment."""

    #: what a worker adopts: "weights", the central ones; "difference", what its update was turned into; or "nothing",
    #: as it has kept its own
    answers: str

    #: updates applied so far, where the next depends on that; else left alone
    n_steps: int

    @property
    def vectors(self) -> Sequence[np.ndarray]:
        """What the next update depends on besides, (n_weights,) each."""
        ...

    def live_in(self, memory: Sequence[np.ndarray]) -> None:
        """Take these for `vectors` from now on, with what they hold."""
        ...

    def apply(self, central: np.ndarray, update: np.ndarray, weight: float) -> None:
        """Move `central` by one update of staleness weight `weight`; `update` may become the answer, in place."""
        ...

    def exchange_block(
        self, central: np.ndarray, update: np.ndarray, answer: np.ndarray, weight: float, block: slice
    ) -> None:
        """Do the part of `apply` that is of one of the `blocks` of all weights, as that of update number `n_steps`.

        `update` may be spoilt; what its worker is to adopt is written into that block of `answer` (n_weights,).
        """
        ...

    def apply_round(self, central: np.ndarray, updates: Sequence[tuple[int, np.ndarray]]) -> None:
        """Move `central` by the updates of a synchronous round, (n_samples, update) of each worker in order."""
        ...

    def scale_learning_rate(self, factor: float) -> None:
        """Take `factor` times the learning rate that was asked for."""
        ...

    def state(self) -> dict[str, Any]:
        """Scalars and vectors that the next update depends on; empty without any."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` of the same rule returned."""
        ...


class CentralOptimizer:
    """Downpour: an optimizer follows the gradients of the workers."""

    answers = "weights"

    def __init__(self, options: TrainingOptions, n_weights: int) -> None:
        self._optimizer = make_optimizer(options.optimizer, n_weights, options.learning_rate, options.optimizer_params)
        self._learning_rate = self._optimizer.learning_rate
        self._mean = aligned_empty(0)

    @property
    def n_steps(self) -> int:
        return self._optimizer.n_steps

    @n_steps.setter
    def n_steps(self, n_steps: int) -> None:
        self._optimizer.n_steps = n_steps

    @property
    def vectors(self) -> Sequence[np.ndarray]:
        return self._optimizer.slots

    def live_in(self, memory: Sequence[np.ndarray]) -> None:
        self._optimizer.live_in(memory)

    def apply(self, central: np.ndarray, update: np.ndarray, weight: float) -> None:
        if weight != 1.0:
            update *= weight
        self._optimizer.apply(central, update)

    def exchange_block(
        self, central: np.ndarray, update: np.ndarray, answer: np.ndarray, weight: float, block: slice
    ) -> None:
        if weight:
            with np.errstate(all="ignore"):
                if weight != 1.0:
                    update[block] *= weight
                self._optimizer.apply_block(central, update, block)
        if answer is not central:
            answer[block] = central[block]

    def apply_round(self, central: np.ndarray, updates: Sequence[tuple[int, np.ndarray]]) -> None:
        if len(self._mean) != len(central):
            self._mean = aligned_empty(len(central))
        downpour.combine(updates, self._mean)
        self._optimizer.apply(central, self._mean)

    def scale_learning_rate(self, factor: float) -> None:
        self._optimizer.learning_rate = self._learning_rate * factor

    def state(self) -> dict[str, Any]:
        return self._optimizer.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state(state)


class _WithoutState:
    """A rule whose learning rates and memories are at the workers."""

    n_steps = 0
    vectors: Sequence[np.ndarray] = ()

    def live_in(self, memory: Sequence[np.ndarray]) -> None:
        """There are no vectors."""

    def scale_learning_rate(self, factor: float) -> None:
        """Nothing here: the workers scale theirs."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ProtocolError(f"This update rule has no state. Received: {sorted(state)}.")


class CentralElastic(_WithoutState):
    """EASGD: the elastic force moves the central weights, and the same force the worker's."""

    answers = "difference"

    def __init__(self, options: TrainingOptions, n_workers: int) -> None:
        self._alpha = easgd.moving_rate(options.elastic_force, n_workers)

    def apply(self, central: np.ndarray, update: np.ndarray, weight: float) -> None:
        easgd.exchange(central, update, self._alpha, out=update)

    def exchange_block(
        self, central: np.ndarray, update: np.ndarray, answer: np.ndarray, weight: float, block: slice
    ) -> None:
        easgd.exchange(central[block], update[block], self._alpha, out=answer[block])

    def apply_round(self, central: np.ndarray, updates: Sequence[tuple[int, np.ndarray]]) -> None:
        easgd.exchange_round(central, [vector for _, vector in updates], self._alpha)


class CentralSum(_WithoutState):
    """GEM: the workers have done it all; their updates are added."""

    answers = "weights"

    def apply(self, central: np.ndarray, update: np.ndarray, weight: float) -> None:
        with np.errstate(all="ignore"):
            central += update

    def exchange_block(
        self, central: np.ndarray, update: np.ndarray, answer: np.ndarray, weight: float, block: slice
    ) -> None:
        self.apply(central[block], update[block], weight)
        answer[block] = central[block]

    def apply_round(self, central: np.ndarray, updates: Sequence[tuple[int, np.ndarray]]) -> None:
        raise ProtocolError("GEM has no synchronous rounds.")


class CentralCopy(_WithoutState):
    """Allreduce: the workers' weights are all the same; those of the first are the central ones."""

    answers = "nothing"

    def apply(self, central: np.ndarray, update: np.ndarray, weight: float) -> None:
        raise ProtocolError("Allreduce has no updates of single workers.")

    def exchange_block(
        self, central: np.ndarray, update: np.ndarray, answer: np.ndarray, weight: float, block: slice
    ) -> None:
        self.apply(central, update, weight)

    def apply_round(self, central: np.ndarray, updates: Sequence[tuple[int, np.ndarray]]) -> None:
        np.copyto(central, updates[0][1])


def central_rule(options: TrainingOptions, n_weights: int, n_workers: int) -> CentralRule:
    """The rule that `options` ask for."""
    match options.mode:
        case "easgd":
            return CentralElastic(options, n_workers)
        case "gem":
            return CentralSum()
        case "allreduce":
            return CentralCopy()
    return CentralOptimizer(options, n_weights)
