"""Gradient Energy Matching: workers scale their updates so that together they move no faster than momentum SGD.

Hermans and Louppe, "Gradient Energy Matching for Distributed Asynchronous Gradient Descent" (arXiv:1805.08469). A
worker follows the proxy, the momentum SGD that it would be alone, and leaves out what the other workers already
contribute. Per element, with the gradient u of a sync period and c the movement of the central weights between two
exchanges:

    g = -lr u;  m <- mu m + g                                        the proxy's step                      (1)
    pi = clip((kappa |m| - |c|) / |g|, 0, 5)                         |pi g| + |c| is at most kappa |m|     (2)
    w <- w + pi g                                                    at the master                         (3)

The clip at 5 is from the authors' own program (there "for numerical stability"), without its 1e-12 beside g: this code
computes pi g = sign(g) min(max(kappa |m| - |c|, 0), 5 |g|), which is equal, and zero if g is zero.

Departures from the paper:
- One round trip. Its worker waits for its turn, pulls w, computes pi and commits before anybody else does. Ours
  pushes pi g and gets back the w after it, at which it trains on: so c is the movement between the last two answers.
  It holds the same update of the worker itself; updates of other workers count one exchange later. One worker alone
  does exactly what the paper says.
- A sync period of k batches. u is its update as `core.update_rules.downpour` defines it, (1) there: the gradient at k =
  1, the sum over the period with local SGD steps of the same lr in between at k > 1. So g is the worker's own way
  through the period, and m decays once a period.

A sub-master adds the updates of its group like the master: the workers have already matched them to each other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.update_rules.downpour import DownpourGroup, gradient_worker
from nnlo_opt.core.update_rules.optimizers import check_fraction, check_positive, check_state
from nnlo_opt.core.update_rules.rule import Answer, AveragingMaster, RuleOption, RuleOptions, UpdateRule, WorkerHalf
from nnlo_opt.core.update_rules.vectors import FLUSH_EVERY, TINY, FloatVector, blocks, scratch_for

#: upper end of the clip in (2)
MAX_PI = 5.0
#: defaults of lr, mu and kappa
RATE, MU, KAPPA = 0.01, 0.9, 2.0


class Gem:
    """A worker's side of GEM: `adopt` every answer of the master; `update` turns a gradient into the update to push."""

    name = "gem"

    def __init__(self, n_weights: int, learning_rate: float = RATE, momentum: float = MU, kappa: float = KAPPA) -> None:
        """Raise ConfigurationError for a value out of range."""
        check_positive(spelled("gem_lr"), learning_rate, str(RATE))
        check_positive(spelled("gem_kappa"), kappa, str(KAPPA))
        check_fraction(spelled("gem_momentum"), momentum, str(MU))
        #: lr of (1), and of local steps; may be set between updates
        self.learning_rate = float(learning_rate)
        self._mu = float(momentum)
        self._kappa = float(kappa)
        #: number of answers adopted
        self.n_adopted = 0
        #: m of (1); zero before the first update
        self._momentum = np.zeros(n_weights, np.float32)
        #: central weights last adopted; unused before the first
        self._stale = np.zeros(n_weights, np.float32)
        #: |c| of (2): distance between the last two adopted weights; zero before the second
        self._movement = np.zeros(n_weights, np.float32)
        self._scratch = scratch_for(n_weights), scratch_for(n_weights)

    def adopt(self, central: FloatVector) -> None:
        """Adopt `central` (n_weights,), which is not changed; call once for every answer."""
        # Non-finite numbers stay visible in the weights; the master checks these.
        with np.errstate(all="ignore"):
            for block in blocks(len(self._stale)):
                # The first has no predecessor: compared with zeros, all weights would count as movement, and pi would
                # be 0.
                if self.n_adopted:
                    movement = self._movement[block]
                    np.subtract(central[block], self._stale[block], out=movement)
                    np.abs(movement, out=movement)
                np.copyto(self._stale[block], central[block])
        self.n_adopted += 1

    def update(self, gradient: FloatVector, out: FloatVector) -> None:
        """Write pi g, which the master adds to the central weights, into `out`, which may be `gradient` itself."""
        with np.errstate(all="ignore"):
            for block in blocks(len(self._momentum)):
                step, momentum = out[block], self._momentum[block]
                size, limit = (array[: len(step)] for array in self._scratch)
                np.multiply(gradient[block], -self.learning_rate, out=step)
                momentum *= self._mu
                momentum += step
                np.abs(momentum, out=size)
                if self.n_adopted % FLUSH_EVERY == 0:
                    momentum[size < TINY] = 0.0
                size *= self._kappa
                size -= self._movement[block]
                np.maximum(size, 0, out=size)
                np.abs(step, out=limit)
                limit *= MAX_PI
                np.minimum(size, limit, out=size)
                np.copysign(size, step, out=step)

    def state(self) -> dict[str, Any]:
        """All state of the next update: plain scalars, and the live vectors (copy them to keep them)."""
        return {
            "name": self.name,
            "n_adopted": self.n_adopted,
            "learning_rate": self.learning_rate,
            "momentum": self._momentum,
            "stale": self._stale,
            "movement": self._movement,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore (copy) what `state` returned; CheckpointError for anything else."""
        own = self.state()
        check_state(state, own, f"`{spelled('mode', 'gem')}` for {len(self._momentum)} weights", "mode and model")
        self.n_adopted = int(state["n_adopted"])
        self.learning_rate = float(state["learning_rate"])
        for name in ("momentum", "stale", "movement"):
            np.copyto(own[name], state[name])


class GemMaster(AveragingMaster):
    """The master's half: adds the updates, which the workers have already scaled."""

    def apply(self, central: FloatVector, update: FloatVector, weight: float) -> None:
        with np.errstate(all="ignore"):
            central += update
        self._average(central)


class GemWorker(WorkerHalf):
    """The worker's half: another rule's update, scaled so that all workers together move no faster than one."""

    def __init__(self, inner: WorkerHalf, gem: Gem) -> None:
        self._inner = inner
        self._gem = gem
        self._learning_rate = gem.learning_rate
        self.weights, self.gradient, self.answer = inner.weights, inner.gradient, inner.answer
        self._update = aligned_empty(len(inner.weights))

    def adopt(self, kind: Answer, answer: FloatVector) -> None:
        self._inner.adopt(kind, answer)
        self._gem.adopt(self.weights)

    def live_in(self, memory: FloatVector) -> None:
        self._inner.live_in(memory)
        self.weights, self.answer = self._inner.weights, self._inner.answer

    def step(self, n_samples: int) -> bool:
        return self._inner.step(n_samples)

    def finish(self) -> FloatVector:
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


class GemGroup(DownpourGroup):
    """The sub-master's half: the sum of the updates, as the master would add them."""

    def combine(self, updates: Sequence[tuple[int, FloatVector]]) -> FloatVector:
        with np.errstate(all="ignore"):
            np.copyto(self._update, updates[0][1])
            for _, update in updates[1:]:
                self._update += update
        return self._update


class GradientEnergyMatching(UpdateRule):
    """The rule of `--mode gem`."""

    name = "gem"
    # fmt: off
    options = (
        RuleOption("gem_lr", "RATE", default=RATE, example="0.05", is_rate=True,
            help="learning rate of a worker; an update is scaled by up to 5"),
        RuleOption("gem_momentum", "MU", default=MU, example="0.5", help="momentum of a worker"),
        RuleOption("gem_kappa", "KAPPA", default=KAPPA, example="1.5",
            help="limit of the movement of the weights by all workers together, relative to one worker alone"),
    )
    # fmt: on
    takes_optimizer = False
    may_be_synchronous = False
    keeps_average = True

    def master_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> GemMaster:
        return GemMaster(n_weights, options.ema)

    def worker_half(self, options: RuleOptions, n_weights: int) -> GemWorker:
        gem = Gem(n_weights, *(options.of_rules[option.name] for option in self.options))
        return GemWorker(gradient_worker(options, n_weights, gem.learning_rate), gem)

    def group_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> GemGroup:
        return GemGroup(n_weights)

    def base_learning_rate(self, options: RuleOptions) -> float:
        return float(options.of_rules["gem_lr"])
