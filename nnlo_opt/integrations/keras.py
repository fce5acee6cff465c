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

#: files of a save: weights and optimizer state; state of random layers, which Keras omits
_WEIGHTS, _SEEDS = "model.weights.h5", "seeds.npz"


class TrialCallback(TrialReporter, keras.callbacks.Callback):
    """Callback for `fit` that saves and reports every epoch, and stops when the trial should stop.

    When a trial resumes, weights and optimizer state are restored at the beginning of `fit`. The state of other
    callbacks is not saved; put them before this one.

    >>> def objective(trial):
    ...     model = get_model(trial.parameters)
    ...     callback = TrialCallback(trial, "val_loss")
    ...     model.fit(x, y, validation_split=0.2, epochs=6, initial_epoch=callback.epoch, callbacks=[callback])
    ...     return callback.value

    Args:
        trial: argument of the objective.
        monitor: metric to compare trials by, as named in the history of `fit`.
        random: random generators that Keras does not manage, such as that of a data set.

    Raises:
        TrialError: in `fit`, if an epoch lacks the monitored metric, or `fit` does not continue after the saved epoch.
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
        if not self.model.optimizer.built:  # otherwise it is missing from the file
            self.model.optimizer.build(self.model.trainable_variables)
        # Each rank has its own seeds; a rank without a part of the save uses the first one.
        part = self._trial.checkpoint.folder or self._saved
        self.model.load_weights(part / _WEIGHTS)
        with np.load(part / _SEEDS, allow_pickle=False) as saved:
            for seed, name in zip(self._seeds(), saved.files, strict=True):
                seed.assign(saved[name])
        self._begin_random()
        self._saved = None  # a second `fit` continues from the first

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.stop_training |= not self._end_epoch(epoch + 1, logs or {}, self._write)

    def _write(self, folder: Path) -> None:
        self.model.save_weights(folder / _WEIGHTS)
        np.savez(folder / _SEEDS, *map(keras.ops.convert_to_numpy, self._seeds()))

    def _seeds(self) -> list[Any]:
        weights = {id(weight) for weight in self.model.weights}
        return [seed for seed in self.model.non_trainable_variables if id(seed) not in weights]
