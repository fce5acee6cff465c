"""Callback for the Trainer of Lightning."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer

from nnlo_opt.integrations.reporter import TrialReporter

if TYPE_CHECKING:
    from nnlo_opt import RunningTrial

_CHECKPOINT = "trainer.ckpt"


class TrialCallback(TrialReporter, Callback):
    """Callback that saves and reports every epoch, and ends the training when the trial is to stop.

    >>> def objective(trial):
    ...     callback = TrialCallback(trial, "val_loss")
    ...     trainer = Trainer(max_epochs=6, callbacks=[callback], enable_checkpointing=False)
    ...     trainer.fit(Model(trial.parameters), data, ckpt_path=callback.ckpt_path)
    ...     return callback.value

    Args:
        trial: the trial that the objective has got.
        monitor: name of the figure by which trials are compared, as the module logs it.
        random: generators that Lightning does not know, such as that of a data set.

    Raises:
        TrialError: in `Trainer.fit`, if an epoch lacks the monitored figure, or does not continue after its save.
    """

    _begins_by = "pass `ckpt_path=callback.ckpt_path` to `Trainer.fit`"

    def __init__(self, trial: "RunningTrial", monitor: str = "val_loss", random: Sequence[Any] = ()) -> None:
        super().__init__(trial, monitor, random)

    @property
    def ckpt_path(self) -> Path | None:
        """File from which `Trainer.fit` goes on; None without a save."""
        return None if self._saved is None else self._saved / _CHECKPOINT

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saved is None:
            return
        self._begin_random(trainer.train_dataloader)
        loop = trainer.fit_loop
        # An unbroken training begins to iterate now, at the begin of the epoch. One that is resumed has begun before
        # this hook, and draws no new order of its batches.
        if getattr(loop, "is_resuming", False) or loop.restarting:
            iter(loop._data_fetcher or ())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Collective: block rank 0 writes.
        def write(folder: Path) -> None:
            trainer.save_checkpoint(folder / _CHECKPOINT, False)  # not the weights alone

        goes_on = self._end_epoch(trainer.current_epoch + 1, trainer.callback_metrics, write, trainer.train_dataloader)
        trainer.should_stop |= not goes_on
