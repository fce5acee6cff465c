"""Callback for Lightning's Trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer

from nnlo_opt.integrations.reporter import TrialReporter

if TYPE_CHECKING:
    from nnlo_opt import RunningTrial

_CHECKPOINT = "trainer.ckpt"


class TrialCallback(TrialReporter, Callback):
    """Callback that saves and reports every epoch, and stops the training when the trial should stop.

    >>> def objective(trial):
    ...     callback = TrialCallback(trial, "val_loss")
    ...     trainer = Trainer(max_epochs=6, callbacks=[callback], enable_checkpointing=False)
    ...     trainer.fit(Model(trial.parameters), data, ckpt_path=callback.ckpt_path)
    ...     return callback.value

    Args:
        trial: argument of the objective.
        monitor: metric to compare trials by, as the module logs it.
        random: random generators that Lightning does not manage, such as that of a data set.

    Raises:
        TrialError: in `Trainer.fit`, if an epoch lacks the monitored metric, or the training does not continue after
            the saved epoch.
    """

    _begins_by = "pass `ckpt_path=callback.ckpt_path` to `Trainer.fit`"

    def __init__(self, trial: "RunningTrial", monitor: str = "val_loss", random: Sequence[Any] = ()) -> None:
        super().__init__(trial, monitor, random)

    @property
    def ckpt_path(self) -> Path | None:
        """File for `Trainer.fit` to resume from; None without a save."""
        return None if self._saved is None else self._saved / _CHECKPOINT

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saved is None:
            return
        self._begin_random(trainer.train_dataloader)
        loop = trainer.fit_loop
        # An uninterrupted training starts iterating now, at the beginning of the epoch. A resumed one started before
        # this hook, and does not draw a new batch order.
        if getattr(loop, "is_resuming", False) or loop.restarting:
            iter(loop._data_fetcher or ())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Collective: block rank 0 writes.
        def write(folder: Path) -> None:
            trainer.save_checkpoint(folder / _CHECKPOINT, False)  # not only the weights

        goes_on = self._end_epoch(trainer.current_epoch + 1, trainer.callback_metrics, write, trainer.train_dataloader)
        trainer.should_stop |= not goes_on
