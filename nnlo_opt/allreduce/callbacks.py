"""Horovod's callbacks for `model.fit`, under Horovod's names."""

import math
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import nnlo_opt.allreduce as hvd
from nnlo_opt.allreduce.other_names import absence
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.averaged_gradients import averaged_apply_of


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcasts the weights of one rank to all before the first batch, and weights batches by their samples.

    A model that is not built yet gets its weights after the first batch, as in Horovod: on TensorFlow, Keras builds a
    model without input shape in the first batch.

    Args:
        root_rank: rank whose weights, moving statistics and optimizer state are broadcast.
        device: ignored.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._is_due = False

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        averaged_apply = averaged_apply_of(model)
        if averaged_apply is not None:
            averaged_apply.watch(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        if model.weights and getattr(model.optimizer, "built", True) is False:
            model.optimizer.build(model.trainable_variables)
        # Ranks decide together, because one may have loaded its model.
        counts = hvd.allgather(np.array([len(self._variables()) if model.weights else 0]))
        self._is_due = counts.min() == 0 or counts.min() != counts.max()
        if not self._is_due:
            hvd.broadcast_variables(self._variables(), self._root_rank)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._is_due:
            hvd.broadcast_variables(self._variables(), self._root_rank)
            self._is_due = False

    def _variables(self) -> list[Any]:
        # These include neither seeds nor metrics.
        return [*self.model.weights, *getattr(self.model.optimizer, "variables", ())]


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all ranks; put it before callbacks that use them."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs:
            names = sorted(logs)
            means = hvd.allreduce(np.array([float(logs[name]) for name in names]), ", ".join(names))
            logs.update(zip(names, means.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times a multiplier during some epochs.

    With momentum correction (Goyal et al., "Accurate, Large Minibatch SGD", arXiv:1706.02677, section 3, remark 2)
    velocities of SGD, which contain learning rates of earlier steps, are scaled along.

    Args:
        initial_lr: learning rate to be multiplied.
        multiplier: number, or function of the completed epochs.
        start_epoch: first epoch, from 0.
        end_epoch: first epoch in which the learning rate is no longer set; None for no end.
        staircase: False to update it at every batch, with fractional epochs.
        settings: `momentum_correction`, True to scale velocities; `steps_per_epoch`, batches of an epoch, if Keras
            cannot tell.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: float = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._initial_lr, self._multiplier = initial_lr, multiplier
        self._start_epoch, self._end_epoch = start_epoch, math.inf if end_epoch is None else end_epoch
        self._staircase = staircase
        self._settings = settings
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._start_epoch <= self._epoch < self._end_epoch and not (self._staircase and batch):
            self._set(self._epoch + (batch / self._steps() if batch else 0))

    def _steps(self) -> int:
        steps = self._settings.get("steps_per_epoch") or (self.params or {}).get("steps")
        if not steps:
            raise ConfigurationError(
                f"`{type(self).__name__}` must know the batches of an epoch. Received: data of unknown length. Give it "
                "`steps_per_epoch`."
            )
        return steps

    def _set(self, epochs: float) -> float:
        """Set the learning rate for this number of completed epochs, and return it."""
        optimizer, multiplier = self.model.optimizer, self._multiplier
        rate = self._initial_lr * (multiplier(epochs) if callable(multiplier) else multiplier)
        former = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        if self._settings.get("momentum_correction", True) and former and type(optimizer).__name__ == "SGD":
            for velocity in getattr(optimizer, "momentums", []):
                velocity.assign(velocity * (rate / former))
        optimizer.learning_rate = rate
        return rate


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / hvd.size()` to `initial_lr` in the first epochs.

    Goyal et al., section 2.2. With t epochs done,

        learning rate = initial_lr / size * (1 + t / warmup_epochs * (size - 1))

    Args:
        initial_lr: learning rate after the warm-up.
        warmup_epochs: epochs of the warm-up.
        momentum_correction: True to scale velocities of SGD with the learning rate.
        steps_per_epoch: batches of an epoch, if Keras cannot tell.
        verbose: 1 to print a line at the end of the warm-up.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epochs: float) -> float:
            done = min(1.0, epochs / warmup_epochs) if warmup_epochs else 1.0
            return (1 + done * (hvd.size() - 1)) / hvd.size()

        settings = {"momentum_correction": momentum_correction, "steps_per_epoch": steps_per_epoch}
        super().__init__(initial_lr, multiplier, 0, warmup_epochs, staircase=False, **settings)
        self._verbose = verbose
        self._is_over = True

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_begin(batch, logs)
        if self._epoch >= self._end_epoch and not self._is_over:
            rate = self._set(self._end_epoch)
            if self._verbose and hvd.rank() == 0:
                sys.stdout.write(f"Epoch {self._epoch + 1}: the warm-up is over, the learning rate is {rate:g}.\n")
        self._is_over = self._epoch >= self._end_epoch


def __getattr__(name: str) -> Any:
    raise AttributeError(absence(__name__, name))
