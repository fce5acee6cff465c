"""A worker's half of each update rule: what becomes of a batch's gradient, and what is pushed after a sync period.

The mathematics stands in `algorithms`; this is where a rule meets the protocol. All vectors are float32 (n_weights,).
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from nnlo_opt.block.exchange.shared_step import SharedStep
from nnlo_opt.errors import ProtocolError
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.update_rules import easgd
from nnlo_opt.update_rules.downpour import LocalSteps
from nnlo_opt.update_rules.gem import Gem
from nnlo_opt.update_rules.optimizers import Optimizer, make_optimizer
from nnlo_opt.vectors import aligned_empty


class LocalRule(Protocol):
    """One update rule at a worker, for one assignment."""

    #: whether an unfinished period is pushed at the epoch's fence; else it goes on behind it
    drains: bool
    #: whether the weights of all workers are the same after every period
    is_common: bool

    @property
    def weights(self) -> np.ndarray:
        """The worker's weights; the master's answers and local steps move them."""
        ...

    @property
    def gradient(self) -> np.ndarray:
        """Where the gradient of a batch is to be written before `step`."""
        ...

    @property
    def answer(self) -> np.ndarray:
        """Where an answer may be written before `adopt` takes it in."""
        ...

    def adopt(self, kind: str, answer: np.ndarray) -> None:
        """Take in the master's answer, which is of the kind "weights" or "difference"."""
        ...

    def own(self, central: np.ndarray) -> None:
        """Nobody else moves the `central` weights (n_weights,), which this worker sees: they may be its own."""

    def point(self) -> np.ndarray:
        """Where the next gradient is wanted."""
        ...

    def step(self, n_samples: int) -> bool:
        """Take in `gradient`, the mean over a batch; -> whether `point` has moved."""
        ...

    def finish(self) -> np.ndarray:
        """End the period: what is to be pushed, valid until the next `step`."""
        ...

    def scale_learning_rate(self, factor: float) -> None:
        """Take `factor` times the learning rate that was asked for, in local steps."""
        ...

    def state(self) -> dict[str, Any]:
        """Scalars and vectors that are nowhere else, for a checkpoint at a fence; empty without any."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` of the same rule returned."""
        ...


class PushGradient:
    """Downpour with an exchange every batch: the gradient itself is the update."""

    drains = True
    is_common = False

    def __init__(self, n_weights: int) -> None:
        self.weights = aligned_empty(n_weights)
        self.gradient = aligned_empty(n_weights)
        self.answer = self.weights

    def adopt(self, kind: str, answer: np.ndarray) -> None:
        _expect_weights(kind)
        if answer is not self.weights:
            np.copyto(self.weights, answer)

    def own(self, central: np.ndarray) -> None:
        self.weights = self.answer = central

    def point(self) -> np.ndarray:
        return self.weights

    def step(self, n_samples: int) -> bool:
        return False

    def finish(self) -> np.ndarray:
        return self.gradient

    def scale_learning_rate(self, factor: float) -> None:
        """No local steps."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ProtocolError(f"This update rule has no state at a worker. Received: {sorted(state)}.")


class PushSum(PushGradient):
    """Downpour with longer periods: local steps in between, the true gradients along them are the update."""

    def __init__(self, n_weights: int, optimizer: Optimizer) -> None:
        super().__init__(n_weights)
        self._steps = LocalSteps(n_weights)
        self._optimizer = optimizer
        self._learning_rate = optimizer.learning_rate
        self._update = aligned_empty(n_weights)

    def own(self, central: np.ndarray) -> None:
        """The local steps of a period are made on a copy."""

    def step(self, n_samples: int) -> bool:
        self._steps.add(self.gradient, n_samples)
        self._optimizer.apply(self.weights, self.gradient)
        return True

    def finish(self) -> np.ndarray:
        self._steps.result(self._update)
        return self._update

    def scale_learning_rate(self, factor: float) -> None:
        self._optimizer.learning_rate = self._learning_rate * factor

    def state(self) -> dict[str, Any]:
        # Plain SGD remembers nothing.
        state = self._optimizer.state()
        return state if any(isinstance(value, np.ndarray) for value in state.values()) else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if state:
            self._optimizer.load_state(state)


class PushMatched:
    """GEM: what another rule would push, scaled so that all workers together move no faster than one alone."""

    drains = True
    is_common = False

    def __init__(self, inner: PushGradient, gem: Gem) -> None:
        self._inner = inner
        self._gem = gem
        self._learning_rate = gem.learning_rate
        self._update = aligned_empty(len(inner.weights))

    @property
    def weights(self) -> np.ndarray:
        return self._inner.weights

    @property
    def gradient(self) -> np.ndarray:
        return self._inner.gradient

    @property
    def answer(self) -> np.ndarray:
        return self._inner.answer

    def adopt(self, kind: str, answer: np.ndarray) -> None:
        self._inner.adopt(kind, answer)
        self._gem.adopt(self.weights)

    def own(self, central: np.ndarray) -> None:
        """Weights and updates are scaled on a copy."""

    def point(self) -> np.ndarray:
        return self._inner.point()

    def step(self, n_samples: int) -> bool:
        return self._inner.step(n_samples)

    def finish(self) -> np.ndarray:
        self._gem.update(self._inner.finish(), out=self._update)
        return self._update

    def scale_learning_rate(self, factor: float) -> None:
        self._gem.learning_rate = self._learning_rate * factor
        self._inner.scale_learning_rate(factor)

    def state(self) -> dict[str, Any]:
        inner = {f"inner.{name}": value for name, value in self._inner.state().items()}
        return {**inner, **self._gem.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        prefix = "inner."
        self._inner.load_state({n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)})
        self._gem.load_state({name: value for name, value in state.items() if not name.startswith(prefix)})


class PushWeights:
    """EASGD: a worker trains on its own and pushes its weights; the answer is the elastic force on them."""

    drains = False
    is_common = False

    def __init__(self, n_weights: int, optimizer: Optimizer) -> None:
        self.weights = aligned_empty(n_weights)
        self.gradient = aligned_empty(n_weights)
        self._optimizer = optimizer
        self._learning_rate = optimizer.learning_rate
        self._ahead = aligned_empty(n_weights)
        self.answer = aligned_empty(n_weights)

    def adopt(self, kind: str, answer: np.ndarray) -> None:
        if kind == "difference":
            easgd.adopt(self.weights, answer)
        else:
            _expect_weights(kind)
            np.copyto(self.weights, answer)

    def own(self, central: np.ndarray) -> None:
        """A worker has weights of its own."""

    def point(self) -> np.ndarray:
        if isinstance(self._optimizer, easgd.ElasticMomentum):
            return self._optimizer.look_ahead(self.weights, self._ahead)
        return self.weights

    def step(self, n_samples: int) -> bool:
        self._optimizer.apply(self.weights, self.gradient)
        return True

    def finish(self) -> np.ndarray:
        return self.weights

    def scale_learning_rate(self, factor: float) -> None:
        self._optimizer.learning_rate = self._learning_rate * factor

    def state(self) -> dict[str, Any]:
        return {"weights": self.weights, **self._optimizer.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        np.copyto(self.weights, state["weights"])
        self._optimizer.load_state({name: value for name, value in state.items() if name != "weights"})


class StepTogether(PushWeights):
    """Allreduce: all workers take the same step along their common gradient, so their weights stay the same."""

    is_common = True
    #: None: each rank makes the whole step
    _shared: SharedStep | None = None

    def share(self, make: Callable[[Optimizer], SharedStep]) -> SharedStep:
        """Make a part of each step only, in the memory of a `SharedStep` that has the optimizer."""
        self._shared = make(self._optimizer)
        self.weights, self.gradient = self._shared.weights, self._shared.gradient
        return self._shared

    def step(self, n_samples: int) -> bool:
        if self._shared is None:
            return super().step(n_samples)
        self._shared.apply()
        return True

    def state(self) -> dict[str, Any]:
        return self._optimizer.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state(state)


def local_rule(options: TrainingOptions, n_weights: int) -> LocalRule:
    """The rule that `options` ask for."""
    match options.mode:
        case "easgd":
            return PushWeights(n_weights, _elastic_optimizer(options, n_weights))
        case "allreduce":
            return StepTogether(n_weights, common_optimizer(options, n_weights))
        case "gem":
            gem = Gem(n_weights, options.gem_lr, options.gem_momentum, options.gem_kappa)
            return PushMatched(_push_gradients(options, n_weights, gem.learning_rate), gem)
    # Local steps are taken at the rate of the optimizer at the master.
    rate = make_optimizer(options.optimizer, 1, options.learning_rate, options.optimizer_params).learning_rate
    return _push_gradients(options, n_weights, rate)


def common_optimizer(options: TrainingOptions, n_weights: int) -> Optimizer:
    """Allreduce: the optimizer of all workers."""
    return make_optimizer(options.optimizer, n_weights, options.learning_rate, options.optimizer_params)


def base_learning_rate(options: TrainingOptions) -> float:
    """The learning rate that a training begins with, of the optimizer at the master or of the workers' own steps."""
    match options.mode:
        case "easgd":
            return _elastic_optimizer(options, 1).learning_rate
        case "gem":
            return options.gem_lr
    return make_optimizer(options.optimizer, 1, options.learning_rate, options.optimizer_params).learning_rate


def _push_gradients(options: TrainingOptions, n_weights: int, learning_rate: float) -> PushGradient:
    if options.sync_every == 1:
        return PushGradient(n_weights)
    name, parameters = options.worker_optimizer or "sgd", options.worker_optimizer_params
    return PushSum(n_weights, make_optimizer(name, n_weights, learning_rate, parameters))


def _elastic_optimizer(options: TrainingOptions, n_weights: int) -> Optimizer:
    rate = options.learning_rate if options.elastic_lr is None else options.elastic_lr
    if options.elastic_momentum:
        return easgd.ElasticMomentum(
            n_weights, easgd.ElasticMomentum.default_learning_rate if rate is None else rate, options.elastic_momentum
        )
    if options.worker_optimizer is None:
        return make_optimizer(options.optimizer, n_weights, rate, options.optimizer_params)
    return make_optimizer(options.worker_optimizer, n_weights, rate, options.worker_optimizer_params)


def _expect_weights(kind: str) -> None:
    if kind != "weights":
        raise ProtocolError(f"Central weights are expected as the answer of the master. Received: {kind}.")
