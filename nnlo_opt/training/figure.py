"""The figure of merit of a training: 1 - validation accuracy, else the validation loss. Both are minimised."""

from collections.abc import Mapping


def figure_name(metrics: Mapping[str, float] | tuple[str, ...]) -> str:
    """What `figure_of_merit` takes from these metrics, in words."""
    if "val_acc" in metrics:
        return "1 - val_acc"
    return "val_loss" if "val_loss" in metrics else "loss"


def figure_of_merit(metrics: Mapping[str, float]) -> float:
    """The figure of merit of one epoch's metrics (the training loss where nothing was validated)."""
    if "val_acc" in metrics:
        return 1.0 - metrics["val_acc"]
    return metrics["val_loss"] if "val_loss" in metrics else metrics["loss"]
