"""The best model of a run, from its files."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from nnlo_opt.app.run.start.serving_ranks import RankDiedError, ServingRanks
from nnlo_opt.core.base.errors import CheckpointError, OutOfTimeError
from nnlo_opt.core.base.files import parse_object
from nnlo_opt.core.base.records import checked
from nnlo_opt.core.base.safe_path import MOST_BYTES
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.comm.run_messages import ExportModel, ModelExported
from nnlo_opt.core.space.space import TRAIN_PREFIX, Point
from nnlo_opt.core.training.history import FoldRecord
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.attempts import result_directory
from nnlo_opt.core.trials.checkpoint import HISTORY_NAME
from nnlo_opt.core.trials.trial import Trial

#: name of the best model in the run directory, without the framework's suffix
BEST_MODEL = "best_model"


def save_model(
    ranks: ServingRanks, candidates: Sequence[int], directory: Path, trial: Trial, direction: str, measure: bool = False
) -> ModelExported:
    """Have the first responding trainer rank of `candidates` save and evaluate the model of a trial."""
    order = ExportModel(
        point=trial.point,
        weights_path=str(result_directory(directory.resolve(), trial, best_fold(trial, direction))),
        path=str((directory / BEST_MODEL).resolve()),
        measure=measure,
    )
    why = ""
    for rank in candidates:
        try:
            return ranks.ask(rank, order, ModelExported)
        except RankDiedError as error:
            why = str(error)
        except OutOfTimeError as error:
            return ModelExported(path="", error=str(error))
    return ModelExported(path="", error=why)


def best_fold(trial: Trial, direction: str) -> int:
    """Return the fold of a complete trial whose model is saved: the one with the best figure of merit."""
    sign = -1.0 if direction == "max" else 1.0
    return min(trial.folds, key=lambda fold: (sign * trial.folds[fold].figure_of_merit, fold))


def history_of(directory: Path, trial: Trial, fold: int) -> dict[str, Json]:
    """Return the history of a fold, written by its master; CheckpointError if it cannot be read."""
    path = result_directory(directory, trial, fold) / HISTORY_NAME
    try:
        checked(history := parse_object(path.read_bytes(MOST_BYTES)), FoldRecord)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"The history of a fold must be readable. Received: `{path}` ({error}).") from error
    return history


def kept_epoch(directory: Path, trial: Trial, fold: int) -> int:
    """Return the epoch of a finished fold's saved weights; the last one if the history does not tell."""
    try:
        return int(history_of(directory, trial, fold)["kept_epoch"])
    except (CheckpointError, KeyError):
        return trial.folds[fold].n_epochs


def weights_text(directory: Path, trial: Trial, direction: str) -> str:
    """Describe which weights the saved model of a complete trial has."""
    fold = best_fold(trial, direction)
    epoch, n_epochs = kept_epoch(directory, trial, fold), trial.folds[fold].n_epochs
    of_fold = f"fold {fold} (the best of {len(trial.folds)}), " if len(trial.folds) > 1 else ""
    return f"with the weights of {of_fold}epoch {epoch}{f' (the best of {n_epochs})' * (epoch < n_epochs)}"


def without_validation(directory: Path, trial: Trial, training: TrainingOptions) -> Point:
    """Return the training options to retrain a trial without validation data.

    Stopping rules, which need these, are replaced by the number of epochs after which its weights were best.
    """
    epochs = [kept_epoch(directory, trial, fold) for fold in trial.folds]
    rules = [name for name in ("early_stopping", "target_metric") if "val_" in (getattr(training, name) or "")]
    n_epochs = round(fmean(epochs or [training.epochs]))
    return {f"{TRAIN_PREFIX}epochs": n_epochs} | {f"{TRAIN_PREFIX}{name}": None for name in rules}
