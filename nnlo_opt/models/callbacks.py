"""A user's callbacks at the epochs of a training: what worker 1 asks of them, whatever the framework."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from nnlo_opt.models.adapter import ModelAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What callbacks want to be otherwise."""

    learning_rate: float
    #: end the training
    stop: bool = False
    #: the adapter holds other weights, or another state, than before
    has_changed: bool = False


class EpochCallbacks(Protocol):
    """The callbacks of one training."""

    def call(
        self,
        adapter: ModelAdapter,
        epoch: int,
        metrics: Mapping[str, float] | None,
        learning_rate: float,
        *,
        is_last: bool,
    ) -> Wishes:
        """Call them at a fence, the adapter holding the central weights.

        `epoch` epochs are done, the last with `metrics`; None: the training begins. `is_last`: it ends, unless it
        does anyway because a callback wants it to; then their end is called too.
        """
        ...
