"""Elastic averaging SGD: workers train independently, and an elastic force couples their weights to the central ones.

Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD" (arXiv:1412.6651). With w the central weights
and x_i the weights of worker i of p, an exchange every k batches (the paper's communication period) is steps a and b of
Algorithms 1 and 2:

    d = alpha (x_i - w);  x_i <- x_i - d;  w <- w + d,  with alpha = beta / p                              (1)

Both sides use w from before the exchange, which conserves x_i + w. An exchange is one message each way: the worker
pushes x_i, the master answers d, and the worker subtracts it. Unlike weights, d is correct whenever it arrives: local
steps made in the meantime are kept.

A synchronous round exchanges with all workers at once, (5) and (6) of the paper less the gradient step:

    x_i <- x_i - alpha (x_i - w);  w <- (1 - beta) w + beta mean_i(x_i) = w + sum_i(alpha (x_i - w))       (2)

Between exchanges a worker takes local steps with any optimizer: plain SGD is EASGD, Nesterov's momentum delta with the
learning rate eta is EAMSGD (Algorithm 2):

    v <- delta v - eta g(x + delta v);  x <- x + v                                                         (3)

Departure: in the paper the first gradient after an exchange is taken at the x from before the exchange. Here a worker
that waits for d takes it at the new x; a worker that overlaps the exchange with that batch follows the paper.

With sub-masters each group has its own centre: its workers pull on it in a round of (2) with alpha = beta / workers of
the group, and it pulls on the central weights like a worker, with alpha = beta / groups: elastic averaging in a tree
(Zhang, arXiv:1605.02216, chapter 6).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.update_rules.optimizers import (
    SGD,
    BaseOptimizer,
    Optimizer,
    check_fraction,
    check_positive,
    is_real,
    make_optimizer,
)
from nnlo_opt.core.update_rules.rule import (
    Answer,
    AveragingMaster,
    GroupHalf,
    RuleOption,
    RuleOptions,
    SteppingWorker,
    UpdateRule,
)
from nnlo_opt.core.update_rules.vectors import FloatVector, blocks

#: beta of the paper's experiments
ELASTIC_FORCE = 0.9


def moving_rate(elastic_force: float, n_workers: int) -> float:
    """Return alpha = beta / p of (1), in (0, 1]; ConfigurationError for an `elastic_force` beta out of range."""
    if not is_real(elastic_force) or not 0 < elastic_force <= n_workers:
        raise ConfigurationError(
            f"`{spelled('elastic_force')}` must be above 0 and at most the number of workers of a master, {n_workers}. "
            f"Received: {elastic_force!r}. Leave it out for {ELASTIC_FORCE}."
        )
    return float(elastic_force) / n_workers


def exchange(central: FloatVector, local: FloatVector, alpha: float, out: FloatVector) -> None:
    """Apply the master's half of (1): add d to `central` in place, and write it into `out`, the answer to the worker.

    All float32 (n_weights,). `out` may be `local`, which is otherwise not changed. Allocates nothing.
    """
    _check(central, local, out)
    # Non-finite numbers stay visible in the weights, here and below; the master checks these.
    with np.errstate(all="ignore"):
        for block in blocks(len(central)):
            difference = out[block]
            np.subtract(local[block], central[block], out=difference)
            difference *= alpha
            central[block] += difference


def exchange_round(central: FloatVector, local: Sequence[FloatVector], alpha: float) -> None:
    """Apply the master's half of (2): move `central` in place, and turn each vector of `local` into the answer d.

    `local` has the weights of the round's workers, overwritten because each is needed only once; missing workers exert
    no force. The sum follows the given order, so the same order gives the same bits.
    """
    _check(central, *local)
    with np.errstate(all="ignore"):
        for block in blocks(len(central)):
            weights = central[block]
            for vector in local:
                vector[block] -= weights
                vector[block] *= alpha
            for vector in local:
                weights += vector[block]


def adopt(local: FloatVector, difference: FloatVector) -> None:
    """Apply the worker's half of (1) and (2): subtract the master's answer from the `local` weights in place."""
    with np.errstate(all="ignore"):
        np.subtract(local, difference, out=local)


def _check(central: FloatVector, *others: FloatVector) -> None:
    for vector in others:
        if vector.shape != central.shape or vector.dtype != central.dtype:
            raise ValueError(
                f"Vectors like the central weights, {central.dtype} {central.shape}, are expected. Received: "
                f"{vector.dtype} {vector.shape}."
            )


class ElasticMomentum(SGD):
    """Local steps of EAMSGD, (3), in the paper's form; without momentum plain SGD, the steps of EASGD.

    Like SGD with momentum, but `apply` needs the gradient at `look_ahead`. An exchange moves x only: push the weights,
    not the look-ahead, and keep the velocity v.
    """

    name = "elastic_momentum"
    averages: ClassVar = {"velocity": "momentum"}

    def __init__(self, n_weights: int, learning_rate: float = SGD.default_learning_rate, momentum: float = 0.0) -> None:
        """`learning_rate` is eta, `momentum` is delta; ConfigurationError for values out of range."""
        check_positive(spelled("elastic_lr"), learning_rate, "the learning rate of the local optimizer")
        check_fraction(spelled("elastic_momentum"), momentum, "steps without momentum")
        super().__init__(n_weights, float(learning_rate), {"momentum": float(momentum), "nesterov": False})

    def look_ahead(self, weights: FloatVector, out: FloatVector) -> FloatVector:
        """Return the point for the next gradient, x + delta v: `weights` without momentum, else `out`, filled."""
        if not self._slots:
            return weights
        velocity, delta = self._slots["velocity"], self.values["momentum"]
        with np.errstate(all="ignore"):
            for block in blocks(self._n_weights):
                np.multiply(velocity[block], delta, out=out[block])
                out[block] += weights[block]
        return out


class EasgdMaster(AveragingMaster):
    """The master's half: the elastic force moves the central weights, and with opposite sign the worker's."""

    answers = Answer.DIFFERENCE

    def __init__(self, alpha: float, n_weights: int = 0, ema: float | None = None) -> None:
        super().__init__(n_weights, ema)
        self._alpha = alpha

    def apply(self, central: FloatVector, update: FloatVector, weight: float) -> None:
        exchange(central, update, self._alpha, out=update)
        self._average(central)

    def exchange_block(
        self, central: FloatVector, update: FloatVector, answer: FloatVector, weight: float, block: slice
    ) -> None:
        exchange(central[block], update[block], self._alpha, out=answer[block])
        self._average(central, block)

    def apply_round(self, central: FloatVector, updates: Sequence[tuple[int, FloatVector]]) -> None:
        exchange_round(central, [vector for _, vector in updates], self._alpha)
        self._average(central)


class EasgdWorker(SteppingWorker):
    """The worker's half: trains independently and pushes its weights; the answer is the elastic force on them."""

    def __init__(self, n_weights: int, optimizer: BaseOptimizer) -> None:
        super().__init__(n_weights, optimizer)
        self._ahead = aligned_empty(n_weights)

    def adopt(self, kind: Answer, answer: FloatVector) -> None:
        if kind == Answer.DIFFERENCE:
            adopt(self.weights, answer)
        else:
            super().adopt(kind, answer)

    def point(self) -> FloatVector:
        if isinstance(self._optimizer, ElasticMomentum):
            return self._optimizer.look_ahead(self.weights, self._ahead)
        return self.weights

    def state(self) -> dict[str, Any]:
        return {"weights": self.weights, **super().state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        np.copyto(self.weights, state["weights"])
        super().load_state({name: value for name, value in state.items() if name != "weights"})


class EasgdGroup(GroupHalf):
    """The sub-master's half: a centre coupled to the central weights and to the weights of its workers."""

    answers = Answer.DIFFERENCE

    def __init__(self, n_weights: int, alpha: float) -> None:
        self._alpha = alpha
        self._centre = aligned_empty(n_weights)

    def combine(self, updates: Sequence[tuple[int, FloatVector]]) -> FloatVector:
        exchange_round(self._centre, [vector for _, vector in updates], self._alpha)
        return self._centre

    def adopt(self, kind: Answer, answer: FloatVector) -> None:
        if kind == Answer.DIFFERENCE:
            adopt(self._centre, answer)
        else:
            np.copyto(self._centre, answer)

    def state(self) -> dict[str, Any]:
        return {"centre": self._centre}

    def load_state(self, state: Mapping[str, Any]) -> None:
        np.copyto(self._centre, state["centre"])


class Easgd(UpdateRule):
    """The rule of `--mode easgd`."""

    name = "easgd"
    # fmt: off
    options = (
        RuleOption("elastic_force", "BETA", default=ELASTIC_FORCE, example="0.5",
            help="elastic force; each of n workers is coupled by BETA / n"),
        RuleOption("elastic_lr", "RATE", shown="--learning-rate", example="0.1", is_rate=True,
            help="learning rate of the workers' local steps"),
        RuleOption("elastic_momentum", "DELTA", default=0.0, example="0.9",
            help="Nesterov momentum of the workers' local steps (EAMSGD)"),
    )
    # fmt: on
    steps_at_workers = keeps_average = True

    def master_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> EasgdMaster:
        return EasgdMaster(moving_rate(options.of_rules["elastic_force"], n_workers), n_weights, options.ema)

    def worker_half(self, options: RuleOptions, n_weights: int) -> EasgdWorker:
        return EasgdWorker(n_weights, self.stepping(options, n_weights))

    def group_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> EasgdGroup:
        return EasgdGroup(n_weights, moving_rate(options.of_rules["elastic_force"], n_workers))

    def optimizer(self, options: RuleOptions, n_weights: int) -> Optimizer:
        rate, momentum = options.of_rules["elastic_lr"], options.of_rules["elastic_momentum"]
        rate = options.learning_rate if rate is None else rate
        optimizer: Optimizer
        if momentum:
            rate = ElasticMomentum.default_learning_rate if rate is None else rate
            optimizer = ElasticMomentum(n_weights, rate, momentum)
        elif options.worker_optimizer is None:
            parameters = {**options.optimizer_params, **options.worker_optimizer_params}
            optimizer = make_optimizer(options.optimizer, n_weights, rate, parameters)
        else:
            optimizer = make_optimizer(options.worker_optimizer, n_weights, rate, options.worker_optimizer_params)
        return optimizer.beside(options.weight_decay, options.no_decay)

    def takes_own(self, options: RuleOptions, n_workers: int) -> bool:
        return type(self) is Easgd and not options.of_rules["elastic_momentum"]

    def check(self, options: RuleOptions) -> None:
        momentum = options.of_rules["elastic_momentum"]
        if momentum and options.worker_optimizer not in (None, "sgd"):
            raise ConfigurationError(
                f"`{spelled('elastic_momentum')}` defines the local steps itself: leave "
                f"`{spelled('worker_optimizer')}` out, or give sgd. Received: {momentum!r} with "
                f"`{spelled('mode', self.name)}`."
            )

    def check_workers(self, own: Mapping[str, Any], n_workers: int) -> None:
        moving_rate(own["elastic_force"], n_workers)

    def least_workers(self, own: Mapping[str, Any]) -> float:
        return float(own["elastic_force"])
