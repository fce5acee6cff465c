"""Optimizers in NumPy on flat float32 vectors, in place: formulas and defaults of Keras 3.

An optimizer keeps *slots* (running averages, as long as the weights) and works block by block, so that temporaries stay
in the processor's cache; a step allocates nothing. `tests/core/update_rules` compares each optimizer with Keras's, step
by step.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from nnlo_opt.core.base.errors import CheckpointError, ConfigurationError, require_known
from nnlo_opt.core.update_rules.layers import Layer
from nnlo_opt.core.update_rules.vectors import FLUSH_EVERY, FloatVector, blocks, decay, flush_tiny, scratch_for

Slots = Mapping[str, FloatVector]
#: slot of the average of the weights
_AVERAGE = "average"


def is_real(value: Any) -> bool:
    """Return True for a real number, but not for a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _refusal(what: str, rule: str, value: Any, otherwise: object) -> ConfigurationError:
    return ConfigurationError(f"{what} must be {rule}. Received: {value!r}. Leave it out for {otherwise}.")


def check_positive(option: str, value: Any, otherwise: str) -> None:
    """Raise ConfigurationError unless `option` is finite and above 0; `otherwise`: what applies without the option."""
    if not is_real(value) or not 0 < value < math.inf:
        raise _refusal(f"`{option}`", "a finite number above 0", value, otherwise)


def check_fraction(option: str, value: Any, otherwise: str) -> None:
    """Raise ConfigurationError unless `option` is at least 0 and below 1; see `check_positive`."""
    if not is_real(value) or not 0 <= value < 1:
        raise _refusal(f"`{option}`", "a number of at least 0 and below 1", value, otherwise)


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], owner: str, remedy: str) -> None:
    """Raise CheckpointError unless `state` has the same optimizer name, keys and shapes as `own`."""
    received, expected = ({name: np.shape(value) for name, value in values.items()} for values in (state, own))
    if received != expected or str(state["name"]) != own["name"]:
        raise CheckpointError(
            f"The state of {owner} is expected. Received: `{state.get('name')}` with {received}. "
            f"Resume with the {remedy} of the checkpoint."
        )


@dataclass(frozen=True, slots=True)
class _Parameter:
    """Number or bool that an optimizer accepts: its default, and its rule in words and in code."""

    default: float | bool
    rule: str
    holds: Callable[[float], bool]

    def parse(self, name: str, value: Any) -> float | bool:
        """Convert `value` to the type of the default; ConfigurationError if it is invalid."""
        if isinstance(self.default, bool):
            valid = isinstance(value, bool | np.bool_)
        else:
            valid = is_real(value) and math.isfinite(value) and self.holds(float(value))
        if not valid:
            raise _refusal(f"The optimizer parameter `{name}`", self.rule, value, self.default)
        return type(self.default)(value)


def _fraction(default: float) -> _Parameter:
    return _Parameter(default, "a number of at least 0 and below 1", lambda value: 0 <= value < 1)


def _positive(default: float) -> _Parameter:
    return _Parameter(default, "a number above 0", lambda value: value > 0)


def _not_negative(default: float) -> _Parameter:
    return _Parameter(default, "a number of at least 0", lambda value: value >= 0)


def _switch(default: bool) -> _Parameter:
    return _Parameter(default, "true or false", lambda value: True)


class _Part(NamedTuple):
    """What a step on a block of the weights needs, cut to it."""

    slots: Slots
    scratch: list[FloatVector]
    #: slices of the block that decay
    decaying: list[slice]
    #: average of the weights
    mean: FloatVector | None


class BaseOptimizer(ABC):
    """Optimizer of `n_weights` weights that takes whole steps."""

    name: ClassVar[str]

    def __init__(self, n_weights: int, learning_rate: float) -> None:
        #: current and initial step size; may be set between steps
        self.learning_rate = self.first_learning_rate = learning_rate
        #: number of steps applied
        self.n_steps = 0
        #: running averages, (n_weights,) each, zero before the first step
        self._slots: dict[str, FloatVector] = {}
        self._ema = 0.0
        self._n_weights = n_weights

    def keep_average(self, ema: float) -> None:
        """Keep the average of the weights, see `Optimizer.beside`; call before any other method."""
        self._ema, self._slots[_AVERAGE] = ema, np.zeros(self._n_weights, np.float32)

    @property
    def average(self) -> FloatVector | None:
        """Average of the weights, zero before the first step; None if none is kept."""
        return self._slots.get(_AVERAGE)

    def _move_average(self, mean: FloatVector, weights: FloatVector, scratch: FloatVector) -> None:
        np.copyto(scratch, weights)
        decay(mean, self._ema if self.n_steps > 1 else 0.0, scratch)

    def take_layers(self, layers: Iterable[Layer]) -> None:  # noqa: B027
        """Take the arrays of the model; called at most once, before any step."""

    def at_step(self, n_steps: int) -> None:
        """Set the number of steps applied, or begun by `Optimizer.apply_block`."""
        self.n_steps = n_steps

    @abstractmethod
    def apply(self, weights: FloatVector, gradient: FloatVector) -> None:
        """Apply one step to `weights` (n_weights,) in place; `gradient` (n_weights,) is not changed."""

    @property
    def slots(self) -> Sequence[FloatVector]:
        """The running averages, in the order of their names in `state`."""
        return list(self._slots.values())

    def scale_learning_rate(self, factor: float) -> None:
        """Set the learning rate to `factor` times the initial one."""
        self.learning_rate = self.first_learning_rate * factor

    def live_in(self, memory: Sequence[FloatVector]) -> None:
        """Use these vectors, with their contents, as `slots` from now on."""
        self._slots = dict(zip(self._slots, memory, strict=True))

    def state(self) -> dict[str, Any]:
        """All state of the next step: plain scalars, and the live slots (copy them to keep them)."""
        return {"name": self.name, "n_steps": self.n_steps, "learning_rate": self.learning_rate, **self._slots}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore (copy) what `state` of the same optimizer returned; CheckpointError for anything else."""
        owner = f"the optimizer `{self.name}` for {self._n_weights} weights"
        check_state(state, self.state(), owner, "optimizer and parameters")
        self._take(state)

    def _take(self, state: Mapping[str, Any]) -> None:
        """Restore scalars and slots."""
        self.n_steps, self.learning_rate = int(state["n_steps"]), float(state["learning_rate"])
        for name, slot in self._slots.items():
            slot[:] = state[name]


class Optimizer(BaseOptimizer):
    """Optimizer in NumPy, which works block by block.

    A subclass declares its parameters and slots, and implements `_update` for one block.
    """

    parameters: ClassVar[Mapping[str, _Parameter]]
    #: slot -> parameter without which the slot is not needed; None if it is always needed
    averages: ClassVar[Mapping[str, str | None]]
    default_learning_rate: ClassVar[float]
    n_scratch: ClassVar[int] = 1

    def __init__(self, n_weights: int, learning_rate: float, values: Mapping[str, float | bool]) -> None:
        super().__init__(n_weights, learning_rate)
        #: name -> value of every parameter
        self.values = dict(values)
        self._slots = {
            slot: np.zeros(n_weights, np.float32)
            for slot, switch in self.averages.items()
            if switch is None or self.values[switch]
        }
        #: see `beside`
        self._weight_decay = float(values.get("weight_decay", 0.0))
        self._no_decay: str | None = None
        #: slices of the weights that decay
        self._decaying: Sequence[slice] = [slice(0, n_weights)]
        #: temporaries of one block
        self._scratch = [scratch_for(n_weights) for _ in range(self.n_scratch)]
        #: (start, stop) of a block -> cached result of `_part`
        self._parts: dict[tuple[int, int], _Part] = {}

    def beside(self, weight_decay: float | None = None, no_decay: str | None = None, ema: float | None = None) -> Self:
        """Let the weights decay, and keep their average, with the formulas of Keras; call before any other method.

        Args:
            weight_decay: before each step, w -= learning rate * weight_decay * w; None for that of the parameters.
            no_decay: regular expression for the names of layers that do not decay.
            ema: after each step, a = ema * a + (1 - ema) * w, beginning with the weights after the first; None for no
                average.
        """
        if weight_decay is not None:
            self._weight_decay = weight_decay
        self._no_decay = no_decay
        if ema is not None:
            self.keep_average(ema)
        return self

    def take_layers(self, layers: Iterable[Layer]) -> None:
        """Exempt the layers of `no_decay` from decay; without a call all weights decay."""
        if self._no_decay is not None:
            self._decaying = [layer.part for layer in layers if not re.search(self._no_decay, layer.name)]
            self._parts.clear()

    def apply(self, weights: FloatVector, gradient: FloatVector) -> None:
        for vector in (weights, gradient):
            if vector.shape != (self._n_weights,) or vector.dtype != np.float32:
                raise ValueError(
                    f"float32 vectors of shape ({self._n_weights},) are expected. "
                    f"Received: {vector.dtype} {vector.shape}."
                )
        self.n_steps += 1
        # Numbers that are not finite stay visible in the weights; the master looks at these.
        with np.errstate(all="ignore"):
            for block in blocks(self._n_weights):
                self.apply_block(weights, gradient, block)

    def apply_block(self, weights: FloatVector, gradient: FloatVector, block: slice) -> None:
        """Apply step `n_steps` (set by `at_step`) to one of the `blocks` of all weights.

        The caller ignores floating-point errors, like `apply`.
        """
        slots, scratch, decaying, mean = self._parts.get((block.start, block.stop)) or self._part(block)
        if self.n_steps % FLUSH_EVERY == 0:
            for average in slots.values():
                flush_tiny(average, scratch[0])
        own = weights[block]
        for part in decaying:
            # Not times 1 - lr weight_decay: rounded to float32, that may be 1.
            np.multiply(own[part], self.learning_rate * self._weight_decay, out=scratch[0][part])
            own[part] -= scratch[0][part]
        self._update(own, gradient[block], slots, *scratch)
        if mean is not None:
            self._move_average(mean, own, scratch[0])

    def _part(self, block: slice) -> _Part:
        """Return what a step on a block needs; cached, because cutting takes longer than one pass."""
        scratch = [array[: block.stop - block.start] for array in self._scratch]
        slots = {name: array[block] for name, array in self._slots.items()}
        cut = [(max(part.start, block.start), min(part.stop, block.stop)) for part in self._decaying]
        decaying = [slice(start - block.start, stop - block.start) for start, stop in cut if start < stop]
        mean = slots.pop(_AVERAGE, None)
        part = _Part(slots, scratch, decaying if self._weight_decay else [], mean)
        self._parts[block.start, block.stop] = part
        return part

    def live_in(self, memory: Sequence[FloatVector]) -> None:
        super().live_in(memory)
        self._parts.clear()

    @abstractmethod
    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        """Apply one step to one block; all arrays have its length, and the scratch is uninitialised."""


class SGD(Optimizer):
    """w += -lr g; with momentum mu: m = mu m - lr g, then w += m, or (Nesterov) w += mu m - lr g."""

    name = "sgd"
    default_learning_rate = 0.01
    parameters: ClassVar = {"momentum": _fraction(0.0), "nesterov": _switch(False)}
    averages: ClassVar = {"momentum": "momentum"}

    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        (step,) = scratch
        np.multiply(gradient, -self.learning_rate, out=step)
        if not slots:
            weights += step
            return
        (momentum,), mu = slots.values(), self.values["momentum"]
        momentum *= mu
        momentum += step
        if self.values["nesterov"]:
            weights += step
            np.multiply(momentum, mu, out=step)
            weights += step
        else:
            weights += momentum


def _move_averages(
    values: Mapping[str, float | bool],
    momentum: FloatVector,
    velocity: FloatVector,
    gradient: FloatVector,
    scratch: FloatVector,
) -> None:
    """Move the averages of Adam and Nadam: m += (1 - b1)(g - m), v += (1 - b2)(g^2 - v)."""
    np.subtract(gradient, momentum, out=scratch)
    scratch *= 1 - values["beta_1"]
    momentum += scratch
    np.multiply(gradient, gradient, out=scratch)
    scratch -= velocity
    scratch *= 1 - values["beta_2"]
    velocity += scratch


class Adam(Optimizer):
    """Kingma and Ba, arXiv:1412.6980, in the form before its section 2.1, as Keras has it.

    m += (1 - b1)(g - m); v += (1 - b2)(g^2 - v); w -= lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon).
    """

    name = "adam"
    default_learning_rate = 0.001
    parameters: ClassVar = {"beta_1": _fraction(0.9), "beta_2": _fraction(0.999), "epsilon": _positive(1e-7)}
    averages: ClassVar = {"momentum": None, "velocity": None}

    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        (step,) = scratch
        momentum, velocity = slots["momentum"], slots["velocity"]
        beta_1, beta_2 = self.values["beta_1"], self.values["beta_2"]
        _move_averages(self.values, momentum, velocity, gradient, step)
        np.sqrt(velocity, out=step)
        step += self.values["epsilon"]
        np.divide(momentum, step, out=step)
        step *= self.learning_rate * math.sqrt(1 - beta_2**self.n_steps) / (1 - beta_1**self.n_steps)
        weights -= step


class AdamW(Adam):
    """Adam whose weights decay, Loshchilov and Hutter, arXiv:1711.05101, as Keras has it; see `Optimizer.beside`."""

    name = "adamw"
    parameters: ClassVar = {**Adam.parameters, "weight_decay": _not_negative(0.004)}


class Nadam(Optimizer):
    """Adam with Nesterov's momentum, Dozat (ICLR workshop, 2016), Algorithm 2, as Keras has it.

    m and v as in Adam; u_t = b1 (1 - 0.96^t / 2), U_t = u_1 ... u_t;
    w -= lr (u_{t+1} m / (1 - U_{t+1}) + (1 - u_t) g / (1 - U_t)) / (sqrt(v / (1 - b2^t)) + epsilon).
    """

    name = "nadam"
    default_learning_rate = 0.001
    n_scratch = 2
    parameters: ClassVar = Adam.parameters
    averages: ClassVar = Adam.averages
    #: t and U_t of the last step
    _at, _product = 0, 1.0

    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        step, root = scratch
        momentum, velocity = slots["momentum"], slots["velocity"]
        _move_averages(self.values, momentum, velocity, gradient, step)
        now, then = self._u(self.n_steps), self._u(self.n_steps + 1)
        product = self._product_of(self.n_steps)
        np.multiply(momentum, then / (1 - product * then), out=step)
        np.multiply(gradient, (1 - now) / (1 - product), out=root)
        step += root
        np.multiply(velocity, 1 / (1 - self.values["beta_2"] ** self.n_steps), out=root)
        np.sqrt(root, out=root)
        root += self.values["epsilon"]
        step /= root
        step *= self.learning_rate
        weights -= step

    def _u(self, t: int) -> float:
        return float(self.values["beta_1"] * (1 - 0.5 * 0.96**t))

    def _product_of(self, t: int) -> float:
        """Return U_t, from the last one if it is earlier."""
        at, product = (self._at, self._product) if self._at <= t else (0, 1.0)
        while at < t and product:
            at += 1
            product *= self._u(at)
        self._at, self._product = t, product
        return product


class Lion(Optimizer):
    """Chen et al., arXiv:2302.06675, Algorithm 2, as Keras has it.

    w -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.
    """

    name = "lion"
    default_learning_rate = 0.001
    n_scratch = 2
    parameters: ClassVar = {"beta_1": _fraction(0.9), "beta_2": _fraction(0.99)}
    averages: ClassVar = {"momentum": None}

    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        step, other = scratch
        momentum, beta_1 = slots["momentum"], self.values["beta_1"]
        np.multiply(momentum, beta_1, out=step)
        np.multiply(gradient, 1 - beta_1, out=other)
        step += other
        # 0, or NaN: the sign alone would hide an infinite gradient.
        np.subtract(step, step, out=other)
        np.sign(step, out=step)
        step += other
        step *= self.learning_rate
        weights -= step
        np.copyto(other, gradient)
        decay(momentum, self.values["beta_2"], other)


class Adagrad(Optimizer):
    """Duchi, Hazan and Singer (JMLR 12, 2011), the diagonal form, as Keras has it.

    a += g^2; w -= lr g / sqrt(a + epsilon), where a begins at initial_accumulator_value. The slot has a without that.
    """

    name = "adagrad"
    default_learning_rate = 0.001
    parameters: ClassVar = {"initial_accumulator_value": _not_negative(0.1), "epsilon": _positive(1e-7)}
    averages: ClassVar = {"accumulator": None}

    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        (step,) = scratch
        accumulator = slots["accumulator"]
        np.multiply(gradient, gradient, out=step)
        accumulator += step
        np.add(accumulator, self.values["initial_accumulator_value"] + self.values["epsilon"], out=step)
        np.sqrt(step, out=step)
        np.divide(gradient, step, out=step)
        step *= self.learning_rate
        weights -= step


class RMSprop(Optimizer):
    """Tieleman and Hinton, lecture 6e of "Neural Networks for Machine Learning" (2012), as Keras has it.

    v = rho v + (1 - rho) g^2; d = v + epsilon, or (centered, a = rho a + (1 - rho) g) d = v - a^2 + epsilon;
    step = lr g / sqrt(d); w -= step, or with momentum mu: m = mu m + step; w -= m.
    """

    name = "rmsprop"
    default_learning_rate = 0.001
    n_scratch = 2
    parameters: ClassVar = {
        "rho": _fraction(0.9),
        "momentum": _fraction(0.0),
        "epsilon": _positive(1e-7),
        "centered": _switch(False),
    }
    averages: ClassVar = {"velocity": None, "mean": "centered", "momentum": "momentum"}

    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        step, root = scratch
        rho = self.values["rho"]
        velocity = slots["velocity"]
        np.multiply(gradient, gradient, out=step)
        decay(velocity, rho, step)
        if self.values["centered"]:
            mean = slots["mean"]
            np.copyto(step, gradient)
            decay(mean, rho, step)
            np.multiply(mean, mean, out=step)
            np.subtract(velocity, step, out=root)
            root += self.values["epsilon"]
        else:
            np.add(velocity, self.values["epsilon"], out=root)
        np.sqrt(root, out=root)
        np.multiply(gradient, self.learning_rate, out=step)
        step /= root
        if self.values["momentum"]:
            momentum = slots["momentum"]
            momentum *= self.values["momentum"]
            momentum += step
            weights -= momentum
        else:
            weights -= step


class Adadelta(Optimizer):
    """Zeiler, arXiv:1212.5701, Algorithm 1, times a learning rate, as Keras has it.

    v = rho v + (1 - rho) g^2; d = sqrt(u + epsilon) / sqrt(v + epsilon) g; u = rho u + (1 - rho) d^2; w -= lr d.
    """

    name = "adadelta"
    default_learning_rate = 0.001
    n_scratch = 2
    parameters: ClassVar = {"rho": _fraction(0.95), "epsilon": _positive(1e-7)}
    averages: ClassVar = {"velocity": None, "step_velocity": None}

    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        step, other = scratch
        rho, epsilon = self.values["rho"], self.values["epsilon"]
        velocity, step_velocity = slots["velocity"], slots["step_velocity"]
        np.multiply(gradient, gradient, out=step)
        decay(velocity, rho, step)
        np.add(step_velocity, epsilon, out=step)
        np.sqrt(step, out=step)
        step *= gradient
        np.add(velocity, epsilon, out=other)
        np.sqrt(other, out=other)
        step /= other
        np.multiply(step, step, out=other)
        decay(step_velocity, rho, other)
        step *= self.learning_rate
        weights -= step


class Averaging(Optimizer):
    """Takes no steps: keeps the average of weights that an update rule moves without an optimizer."""

    name = "averaging"
    default_learning_rate = 1.0
    parameters: ClassVar = {}
    averages: ClassVar = {}

    def __init__(self, n_weights: int, ema: float) -> None:
        super().__init__(n_weights, self.default_learning_rate, {})
        self.beside(ema=ema)

    def _update(self, weights: FloatVector, gradient: FloatVector, slots: Slots, *scratch: FloatVector) -> None:
        pass


OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.name: kind for kind in (SGD, Adam, AdamW, Nadam, RMSprop, Adagrad, Adadelta, Lion)
}


def own_rate(parameters: dict[str, Any], learning_rate: float | None) -> float | None:
    """Pop and return the learning rate among the parameters of an optimizer; else `learning_rate`."""
    rates = [parameters.pop(name) for name in ("lr", "learning_rate") if name in parameters]
    return rates[0] if rates else learning_rate


def make_optimizer(
    name: str, n_weights: int, learning_rate: float | None = None, parameters: Mapping[str, Any] | None = None
) -> Optimizer:
    """Return a new optimizer; a `learning_rate` of None and missing parameters are Keras's defaults.

    A learning rate among the parameters (`lr` or `learning_rate`) takes precedence, because it is specific to this
    optimizer.

    Raises `ConfigurationError` for an unknown name or parameter and for a value out of range.
    """
    require_known("An optimizer", name, OPTIMIZERS)
    kind, given = OPTIMIZERS[name], dict(parameters or {})
    learning_rate = own_rate(given, learning_rate)
    if unknown := [parameter for parameter in given if parameter not in kind.parameters]:
        raise ConfigurationError(
            f"The optimizer `{name}` has the parameters {', '.join(kind.parameters)}. Received: {unknown[0]!r}. Use "
            "one of these, or leave it out."
        )
    values = {key: rule.parse(key, given.get(key, rule.default)) for key, rule in kind.parameters.items()}
    rate = _positive(kind.default_learning_rate).parse(
        "learning_rate", kind.default_learning_rate if learning_rate is None else learning_rate
    )
    return kind(n_weights, rate, values)
