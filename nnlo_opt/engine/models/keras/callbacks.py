"""Runs Keras callbacks at the epochs of a training without Keras's `fit`.

Callbacks see the model with the central weights, and an optimizer with the learning rate of the training. Their changes
are applied to the actual optimizer. Batch methods are not called, because batches are trained on all workers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.models.adapter import CallbackRequests
from nnlo_opt.engine.models.keras.adapter import KerasAdapter

#: our name of a figure -> Keras's, if different
_KERAS_NAMES = {"acc": "accuracy", "val_acc": "val_accuracy"}


class KerasCallbacks:
    """A user's callbacks, for successive trainings.

    Args:
        callbacks: Keras callbacks.
        epochs: epochs of the full training, shown to callbacks.
    """

    def __init__(self, callbacks: Sequence[Any], epochs: int) -> None:
        self._callbacks = list(callbacks)
        self._epochs = epochs
        #: callback list and optimizer of the current training
        self._list: Any = None
        self._optimizer: Any = None

    def call(
        self, adapter: Any, epoch: int, metrics: Mapping[str, float] | None, learning_rate: float, *, is_last: bool
    ) -> CallbackRequests:
        """Call the callbacks, see `core.models.adapter.EpochCallbacks`."""
        if not isinstance(adapter, KerasAdapter):
            raise TrialError("Keras callbacks need a Keras model. Received: another model. Leave `callbacks` out.")
        model = adapter.synced_model()
        if metrics is None:
            self._begin(model, learning_rate)
        self._optimizer.learning_rate = learning_rate
        shown = self._shown_rate
        if metrics is None:
            self._list.on_train_begin()
        else:
            logs = {**metrics, **{_KERAS_NAMES[name]: metrics[name] for name in metrics if name in _KERAS_NAMES}}
            self._list.on_epoch_end(epoch - 1, logs)
        stop = bool(model.stop_training)
        if metrics is not None and (is_last or stop):
            self._list.on_train_end(logs)
        else:
            self._list.on_epoch_begin(epoch)
        has_changed = adapter.take_from_model()
        wanted = self._shown_rate
        if not (np.isfinite(wanted) and wanted > 0):
            raise TrialError(f"A callback has set the learning rate to {wanted}. It must be a finite number above 0.")
        # The optimizer shown to callbacks stores float32: keep the exact rate unless a callback has changed it.
        rate = learning_rate if wanted == shown else wanted
        return CallbackRequests(learning_rate=rate, stop=stop, has_changed=has_changed)

    @property
    def _shown_rate(self) -> float:
        from keras import ops

        return float(ops.convert_to_numpy(self._optimizer.learning_rate))

    def _begin(self, model: Any, learning_rate: float) -> None:
        import keras

        self._optimizer = model.optimizer = keras.optimizers.SGD(learning_rate)
        model.stop_training = False
        for callback in self._callbacks:
            _settle_mode(callback)
        self._list = keras.callbacks.CallbackList(
            self._callbacks, model=model, epochs=self._epochs, steps=None, verbose=0
        )


def _settle_mode(callback: Any) -> None:
    """Set the mode that a callback would derive from the metrics of a compiled model; ours is not compiled."""
    monitor = getattr(callback, "monitor", None)
    if getattr(callback, "mode", None) == "auto" and isinstance(monitor, str):
        if monitor.endswith(("acc", "accuracy")):
            callback.mode = "max"
        elif monitor.endswith("loss"):
            callback.mode = "min"
