"""Interface of a user's callbacks, which worker 1 calls after the epochs of a training with any framework."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from nnlo_opt.models.adapter import ModelAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackRequests:
    """Changes that callbacks request."""

    learning_rate: float
    #: True to end the training
    stop: bool = False
    #: True if the weights or the state of the adapter were changed
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
    ) -> CallbackRequests:
        """Call the callbacks at an epoch fence, while the adapter holds the central weights.

        Args:
            adapter: adapter of the trained model.
            epoch: number of epochs done.
            metrics: metrics of the last epoch; None at the beginning of the training.
            learning_rate: current learning rate.
            is_last: True if the training ends after this epoch. Its end is also announced to the callbacks if they
                request to stop.
        """
        ...
