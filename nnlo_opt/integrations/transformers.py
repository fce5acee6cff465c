"""Callback for Transformers' Trainer."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from nnlo_opt import TrialError
from nnlo_opt.integrations.reporter import TrialReporter

if TYPE_CHECKING:
    from nnlo_opt import RunningTrial

#: folder of a save that the Trainer writes
_CHECKPOINT = "trainer"


class TrialCallback(TrialReporter, TrainerCallback):
    """Callback that saves and reports every epoch, and stops the training when the trial should stop.

    >>> def objective(trial):
    ...     callback = TrialCallback(trial, "eval_loss")
    ...     arguments = TrainingArguments(trial.directory, eval_strategy="epoch", save_strategy="no", ...)
    ...     trainer = Trainer(model, arguments, callbacks=[callback], ...)
    ...     trainer.train(resume_from_checkpoint=callback.resume_from)
    ...     return callback.value

    Args:
        trial: argument of the objective.
        monitor: metric to compare trials by, as the Trainer logs it.
        random: random generators that the Trainer does not manage, such as that of a data set.

    Raises:
        TrialError: in `Trainer.train`, if an epoch lacks the monitored metric, or the training does not continue after
            the saved epoch.
    """

    _begins_by = "pass `resume_from_checkpoint=callback.resume_from` to `Trainer.train`"

    def __init__(self, trial: "RunningTrial", monitor: str = "eval_loss", random: Sequence[Any] = ()) -> None:
        super().__init__(trial, monitor, random)
        #: True between the end of an epoch and its save
        self._is_due = False

    @property
    def resume_from(self) -> str | None:
        """Folder for `Trainer.train` to resume from; None without a save."""
        return None if self._saved is None else str(self._saved / _CHECKPOINT)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        wrong = "save_only_model=True" * args.save_only_model or 'save_strategy="best"' * (args.save_strategy == "best")
        if wrong:
            raise TrialError(
                f"a trial must save every epoch, with its optimizer; received: `TrainingArguments({wrong})`; leave it "
                'out, or write `save_strategy="no"`'
            )
        self._begin_random(kwargs.get("train_dataloader"))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The Trainer logs, evaluates and saves next.
        self._is_due = control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._is_due:
            return  # the user's own save, between two epochs
        self._is_due = False
        written = Path(f"{args.output_dir}/checkpoint-{state.global_step}")

        def write(folder: Path) -> None:
            # All ranks wrote to one folder.
            if state.is_world_process_zero:
                move = shutil.move if args.save_strategy == "no" else shutil.copytree
                move(written, folder / _CHECKPOINT)

        logged = [entry for entry in state.log_history if entry["step"] == state.global_step]
        figures = {name: figure for entry in logged for name, figure in entry.items() if name != "step"}
        control.should_training_stop |= not self._end_epoch(
            math.ceil(state.epoch or 0), figures, write, kwargs.get("train_dataloader")
        )
