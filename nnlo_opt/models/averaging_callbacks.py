"""Keras callbacks of a training whose ranks average their gradients; the module imports Keras."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models.averaged_gradients import averaged_apply_of

#: returns the array of all ranks, made of the array of this rank
Reduction = Callable[[NDArray], NDArray]


class Broadcast(keras.callbacks.Callback):
    """Callback that gives all ranks the weights of one rank before the first batch, and weighs batches by samples.

    Args:
        broadcast: returns the array of the root rank.
    """

    def __init__(self, broadcast: Reduction) -> None:
        super().__init__()
        self._broadcast = broadcast

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        averaged_apply = averaged_apply_of(model)
        if averaged_apply is not None:
            averaged_apply.watch(model)

    def on_train_begin(self, logs: dict | None = None) -> None:
        # Neither seeds nor metrics are among these.
        for variable in [*self.model.weights, *getattr(self.model.optimizer, "variables", ())]:
            variable.assign(self._broadcast(keras.ops.convert_to_numpy(variable)))


class MetricAverage(keras.callbacks.Callback):
    """Callback that averages the metrics of an epoch over all ranks; it must stand before callbacks that use them.

    Args:
        average: returns the mean over the ranks.
    """

    def __init__(self, average: Reduction) -> None:
        super().__init__()
        self._average = average

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if logs:
            names = sorted(logs)
            means = self._average(np.array([float(logs[name]) for name in names]))
            logs.update(zip(names, means.tolist(), strict=True))


class WarmUp(keras.callbacks.Callback):
    """Callback that raises the learning rate from the rate of one rank to the full rate during the first epochs.

    Goyal et al., "Accurate, Large Minibatch SGD" (arXiv:1706.02677), section 2.2. With t epochs done, of `n_epochs`,

        learning rate = full_rate / size * (1 + t / n_epochs * (size - 1))

    With momentum correction (section 3, remark 2) velocities, which hold learning rates of earlier steps, change in the
    same proportion.

    Args:
        full_rate: learning rate after the warm-up.
        size: number of ranks.
        n_epochs: epochs of the warm-up.
        steps_per_epoch: batches of an epoch; None if Keras knows.
        corrects_momentum: True for momentum correction.
        say: called with a sentence when the warm-up is over; None for none.
    """

    def __init__(
        self,
        full_rate: float,
        size: int,
        *,
        n_epochs: float = 5,
        steps_per_epoch: int | None = None,
        corrects_momentum: bool = True,
        say: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__()
        self._full_rate = full_rate
        self._size = size
        self._n_epochs = n_epochs
        self._steps_per_epoch = steps_per_epoch
        self._corrects_momentum = corrects_momentum
        self._say = say
        self._epoch = 0
        #: learning rate that was set last; None before the first
        self._rate: float | None = None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        if self._epoch >= self._n_epochs and self._rate in (None, self._full_rate):
            return
        steps = self._steps_per_epoch or (self.params or {}).get("steps")
        if not steps:
            raise ConfigurationError(
                "`LearningRateWarmupCallback` must know the batches of an epoch. Received: data of unknown length. "
                "Give it `steps_per_epoch`."
            )
        self._set(self.rate_at(self._epoch + batch / steps))

    def rate_at(self, epochs: float) -> float:
        """Return the learning rate after so many epochs."""
        if epochs >= self._n_epochs:
            return self._full_rate
        return self._full_rate / self._size * (1 + epochs / self._n_epochs * (self._size - 1))

    def _set(self, rate: float) -> None:
        optimizer = self.model.optimizer
        if self._corrects_momentum and self._rate:
            # Of SGD: Adam's moments hold no learning rates.
            velocities = getattr(optimizer, "momentums", []) if type(optimizer).__name__ == "SGD" else []
            for velocity in velocities:
                velocity.assign(velocity * (rate / self._rate))
        optimizer.learning_rate = rate
        if rate == self._full_rate and self._rate != rate and self._say is not None:
            self._say(f"Epoch {self._epoch + 1}: the warm-up is over, the learning rate is {rate:g}.\n")
        self._rate = rate
