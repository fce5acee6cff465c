"""Optimizers that are objects of a framework, behind the interface of those in NumPy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nnlo_opt.core.base.errors import CheckpointError, ConfigurationError
from nnlo_opt.core.models.adapter import blame_on_trial
from nnlo_opt.core.update_rules.optimizers import BaseOptimizer
from nnlo_opt.core.update_rules.vectors import FloatVector, blocks, scratch_for
from nnlo_opt.engine.models.plain_data import packed, unpacked


@dataclass(frozen=True, slots=True)
class Own:
    """Optimizer that a model brings."""

    #: object of the framework
    optimizer: Any
    #: class and arguments, without addresses of memory: the same on all ranks
    words: str
    #: schedule that counts its steps, in words; empty if it has none
    schedule: str = ""
    #: steps after which the schedule changes no more; None if it always does, or that is unknown
    n_scheduled: int | None = None
    #: returns a scheduler of torch, the `schedule`, for an optimizer; None for a schedule inside of the optimizer
    make_scheduler: Callable[[Any], Any] | None = None
    #: sentence on what of it may surprise; empty if there is nothing
    remark: str = ""
    #: momentum of the average of the weights; None for no average
    ema: float | None = None
    #: True if one of `OPTIMIZERS` takes the same steps at a constant rate
    differs_in_rate_only: bool = False

    def schedule_beside(self, learning_rate: float | None) -> str:
        """Return the schedule that holds with this option for the learning rate, which replaces one inside."""
        return "" if learning_rate is not None and self.make_scheduler is None else self.schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """Options that hold in place of an optimizer's own settings; None to keep these."""

    learning_rate: float | None = None
    weight_decay: float | None = None
    #: regular expression for the names of weights that do not decay
    no_decay: str | None = None
    #: True to leave clipping to the caller
    clips: bool = False


class Stepping(Protocol):
    """Steps of a framework's optimizer on a model; vectors are float32 (n_weights,)."""

    #: initial learning rate; that of the first step for a schedule
    learning_rate: float

    def step(self, weights: FloatVector, gradient: FloatVector) -> None:
        """Apply one step to `weights` in place."""

    def scale_learning_rate(self, factor: float) -> None:
        """Set the learning rate to `factor` times the initial one."""

    def state(self) -> dict[str, Any]:
        """Return all state of the next step as plain data; ConfigurationError if it is anything else."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""


class OwnOptimizer(BaseOptimizer):
    """Optimizer of a model, run by its framework.

    Args:
        words: the optimizer in words, by which a checkpoint is recognised.
        ema: momentum of the average of the weights; None for no average.
    """

    name = "own"

    def __init__(self, n_weights: int, stepping: Stepping, words: str, ema: float | None = None) -> None:
        super().__init__(n_weights, stepping.learning_rate)
        if ema is not None:
            self.keep_average(ema)
        self._scratch = scratch_for(n_weights)
        self._stepping = stepping
        self._words = words

    def apply(self, weights: FloatVector, gradient: FloatVector) -> None:
        self.n_steps += 1
        with blame_on_trial("step of the optimizer"):
            self._stepping.step(weights, gradient)
        if (mean := self.average) is not None:
            for block in blocks(self._n_weights):
                part = mean[block]
                self._move_average(part, weights[block], self._scratch[: len(part)])

    def scale_learning_rate(self, factor: float) -> None:
        super().scale_learning_rate(factor)
        self._stepping.scale_learning_rate(factor)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "words": self._words, "packed": packed(self._stepping.state())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if str(state.get("words")) != self._words:
            raise CheckpointError(
                f"The state of {self._words} is expected. Received: that of {state.get('words', state.get('name'))}. "
                "Resume with the optimizer of the checkpoint."
            )
        self._take(state)
        self._stepping.load_state(unpacked(np.asarray(state["packed"], np.uint8)))

    def try_step(self) -> None:
        """Take a step without a gradient, and take its state; ConfigurationError if the optimizer cannot."""
        zeros = np.zeros(self._n_weights, np.float32)
        self.apply(zeros.copy(), zeros)
        self.state()


def refusal_of_state(optimizer: Any, name: str, value: Any) -> ConfigurationError:
    """Return the error for state that no checkpoint can hold."""
    return ConfigurationError(
        "An optimizer must keep numbers, text, lists, dictionaries and arrays, for checkpoints. Received: "
        f"`{name}` of {type(optimizer).__name__}, {type(value).__name__}. Keep such data, or make the object where it "
        "is used."
    )
