"""Callback for `model.fit` of Keras."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from nnlo_opt import TrialError
from nnlo_opt.integrations.reporter import TrialReporter

if TYPE_CHECKING:
    from nnlo_opt import RunningTrial

#: files of a save: weights and state of the optimizer; state of random layers, which Keras leaves out
_WEIGHTS, _SEEDS = "model.weights.h5", "seeds.npz"


class TrialCallback(TrialReporter, keras.callbacks.Callback):
    """Callback that saves and reports every epoch, and stops `fit` when the trial is to stop.

    A trial that goes on has its weights and the state of its optimizer back when `fit` begins. The state of other
    callbacks is not saved; they stand before this one.

    >>> def objective(trial):
    ...     model = get_model(trial.parameters)
    ...     callback = TrialCallback(trial, "val_loss")
    ...     model.fit(x, y, validation_split=0.2, epochs=6, initial_epoch=callback.epoch, callbacks=[callback])
    ...     return callback.value

    Args:
        trial: the trial that the objective has got.
        monitor: name of the figure by which trials are compared, as the history of `fit` has it.
        random: generators that Keras does not know, such as that of a data set.

    Raises:
        TrialError: in `fit`, if an epoch lacks the monitored figure, or does not continue after its save.
    """

    _begins_by = "pass `initial_epoch=callback.epoch` to `fit`"

    def __init__(self, trial: "RunningTrial", monitor: str = "val_loss", random: Sequence[Any] = ()) -> None:
        keras.callbacks.Callback.__init__(self)
        TrialReporter.__init__(self, trial, monitor, random)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self.model.built:
            raise TrialError(
                "a model that is saved must have its weights when `fit` begins; received: one without; begin it with "
                "`keras.Input(shape)`, or call it on a batch"
            )
        if self._saved is None:
            return
        if not self.model.optimizer.built:  # it would leave out its part of the file
            self.model.optimizer.build(self.model.trainable_variables)
        # Ranks differ in their seeds. A rank that has no part of its own takes the first one.
        part = self._trial.checkpoint.folder or self._saved
        self.model.load_weights(part / _WEIGHTS)
        with np.load(part / _SEEDS, allow_pickle=False) as saved:
            for seed, name in zip(self._seeds(), saved.files, strict=True):
                seed.assign(saved[name])
        self._begin_random()
        self._saved = None  # a second `fit` goes on with what the first one has left

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.stop_training |= not self._end_epoch(epoch + 1, logs or {}, self._write)

    def _write(self, folder: Path) -> None:
        self.model.save_weights(folder / _WEIGHTS)
        np.savez(folder / _SEEDS, *map(keras.ops.convert_to_numpy, self._seeds()))

    def _seeds(self) -> list[Any]:
        weights = {id(weight) for weight in self.model.weights}
        return [seed for seed in self.model.non_trainable_variables if id(seed) not in weights]
