"""Runs Keras callbacks at the epochs of a training without Keras's `fit`.

Callbacks see the model with the central weights, and an optimizer with the learning rate of the training. Their changes
are applied to the actual optimizer. Batch methods are not called, because batches are trained on all workers.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.models.adapter import CallbackRequests
from nnlo_opt.engine.models.keras.adapter import KerasAdapter
from nnlo_opt.engine.models.keras.callback_rules import refuse_schedule
from nnlo_opt.engine.models.keras.callback_state import load_state, state_of
from nnlo_opt.engine.models.plain_data import packed, unpacked

logger = logging.getLogger(__name__)


def with_keras_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics under our names and Keras's, such as `val_acc` and `val_accuracy`."""
    ours = [name for name in metrics if name == "acc" or name.endswith("_acc")]
    return {**metrics, **{name.removesuffix("acc") + "accuracy": metrics[name] for name in ours}}


class KerasCallbacks:
    """A user's callbacks in one training.

    Args:
        callbacks: Keras callbacks.
        epochs: epochs of the full training, shown to callbacks.
        is_strict: True to fail a training if a callback changes something without effect, or has an attribute that
            cannot be saved; if False, callbacks whose data cannot be saved begin afresh after a resume.
        is_scheduled: True if they may not change the learning rate, as an option does.
    """

    def __init__(
        self, callbacks: Sequence[Any], epochs: int, *, is_strict: bool = False, is_scheduled: bool = False
    ) -> None:
        self._callbacks = list(callbacks)
        self._epochs = epochs
        self._is_strict = is_strict
        self._is_scheduled = is_scheduled
        #: callback list and optimizer of the current training
        self._list: Any = None
        self._optimizer: Any = None
        #: what callbacks must leave alone, as it was at the beginning
        self._fixed: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return ", ".join(type(callback).__name__ for callback in self._callbacks)

    def call(
        self,
        adapter: Any,
        epoch: int,
        metrics: Mapping[str, float] | None,
        learning_rate: float,
        *,
        is_last: bool,
        state: NDArray[np.uint8] | None = None,
    ) -> CallbackRequests:
        """Call the callbacks, see `core.models.adapter.EpochCallbacks`."""
        if not isinstance(adapter, KerasAdapter):
            raise TrialError("Keras callbacks need a Keras model. Received: another model. Leave `callbacks` out.")
        model = adapter.synced_model()
        before = None if state is None else self._checked(unpacked(state))
        if metrics is None:
            self._begin(model, learning_rate, adapter.modes)
        self._optimizer.learning_rate = learning_rate
        shown = self._shown_rate
        logs = with_keras_names(metrics or {})
        if metrics is not None:
            self._list.on_epoch_end(epoch - 1, logs)
        else:
            self._list.on_train_begin()
            if before is not None:
                self._load(before)
                # The training has gone on from what they changed at its beginning.
                self._optimizer.learning_rate = learning_rate
                adapter.synced_model()
                model.stop_training = before["stops"] and not before["has_ended"]
        stops = bool(model.stop_training)
        has_ended = metrics is not None and (is_last or stops)
        if has_ended:
            self._list.on_train_end(logs)
        elif before is None or before["has_ended"]:
            self._list.on_epoch_begin(epoch)
        if self._is_strict:
            self._check_fixed(model)
        has_changed = adapter.take_from_model()
        wanted = self._shown_rate
        if not (np.isfinite(wanted) and wanted > 0):
            raise TrialError(f"A callback has set the learning rate to {wanted}. It must be a finite number above 0.")
        if wanted != shown and self._is_scheduled:
            refuse_schedule(str(self))
        # The optimizer shown to callbacks stores float32: keep the exact rate unless a callback has changed it.
        rate = learning_rate if wanted == shown else wanted
        kept = packed(
            {
                "names": str(self),
                "states": [*map(self._state_of, self._callbacks)],
                "stops": bool(model.stop_training),
                "has_ended": has_ended,
            }
        )
        return CallbackRequests(learning_rate=rate, stop=stops, has_changed=has_changed, state=kept)

    def _state_of(self, callback: Any) -> dict[str, Any] | None:
        try:
            return state_of(callback)
        except ConfigurationError:
            if self._is_strict:
                raise
            return None

    def _checked(self, before: dict[str, Any]) -> dict[str, Any] | None:
        """Return the state if it is of these callbacks; else they begin afresh, unless that is an error."""
        if str(self) == before["names"]:
            return before
        if self._is_strict:
            raise ConfigurationError(
                f"A training resumes with the callbacks that it began with: {before['names']}. Received: {self}."
            )
        logger.warning("callbacks begin afresh, as the checkpoint has the state of others: %s", before["names"])
        return None

    def _load(self, before: Mapping[str, Any]) -> None:
        for callback, state in zip(self._callbacks, before["states"], strict=True):
            if state is not None:
                load_state(callback, state)

    @property
    def _shown_rate(self) -> float:
        from keras import ops

        return float(ops.convert_to_numpy(self._optimizer.learning_rate))

    def _begin(self, model: Any, learning_rate: float, modes: Mapping[str, str]) -> None:
        import keras

        self._optimizer = model.optimizer = keras.optimizers.SGD(learning_rate)
        model.stop_training = False
        self._fixed = self._settings_of(model)
        for callback in self._callbacks:
            _settle_mode(callback, modes)
        self._list = keras.callbacks.CallbackList(
            self._callbacks, model=model, epochs=self._epochs, steps=None, verbose=0
        )

    def _settings_of(self, model: Any) -> dict[str, Any]:
        optimizer = model.optimizer
        return {
            "`model.optimizer`": id(optimizer),
            "settings of the optimizer": ({**optimizer.get_config(), "learning_rate": None}, {*vars(optimizer)}),
            "which weights are trained": [*map(id, model.trainable_variables)],
        }

    def _check_fixed(self, model: Any) -> None:
        """Raise TrialError if a callback has changed what has no effect."""
        now = self._settings_of(model)
        if changed := [what for what, value in now.items() if value != self._fixed[what]]:
            raise TrialError(
                "A callback may change the learning rate, the weights and `stop_training`, because nothing else has an "
                f"effect. Received: one of {self} that changes {changed[0]}."
            )


def _settle_mode(callback: Any, modes: Mapping[str, str]) -> None:
    """Set the mode that a callback would derive from the metrics of `fit`; `modes`: as of `KerasAdapter`."""
    monitor = getattr(callback, "monitor", None)
    if getattr(callback, "mode", None) == "auto" and isinstance(monitor, str):
        if monitor.endswith(("acc", "accuracy")):
            callback.mode = "max"
        elif monitor.endswith("loss"):
            callback.mode = "min"
        else:
            callback.mode = modes.get(monitor.removeprefix("val_"), "auto")
