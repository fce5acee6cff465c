"""Losses by name, with the rules by which a loss fits a model with its labels.

Names are Keras's names; Keras computes the losses (`keras_model`). Shapes have no batch dimension.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nnlo_opt.errors import ConfigurationError

Shape = tuple[int | None, ...]
AccuracyKind = Literal["categorical", "sparse_categorical", "binary"]

LOSSES: tuple[str, ...] = (
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_hinge",
    "cosine_similarity",
    "dice",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "sparse_categorical_crossentropy",
    "squared_hinge",
    "tversky",
)

# Short names of Keras and PyTorch in the form of `fold`; only names of the same computation.
_ALIASES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "bce": "binary_crossentropy",
    "kld": "kl_divergence",
    "kldiv": "kl_divergence",
    "kullbackleiblerdivergence": "kl_divergence",
    "l1": "mean_absolute_error",
    "smoothl1": "huber",
}

_SPARSE = "sparse_categorical_crossentropy"
_ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy", "categorical_hinge")
_BINARY = ("binary_crossentropy", "binary_focal_crossentropy")


@dataclass(frozen=True, slots=True)
class InferredLoss:
    """Loss that fits, and `why`, a sentence for the log."""

    name: str
    why: str


def check_loss(name: str) -> str:
    """Return Keras's name of the loss `name`; case, underscores and a final "Loss" do not matter.

    Raises:
        ConfigurationError: for an unknown name, with the closest names.
    """
    known = {fold(loss): loss for loss in LOSSES} | _ALIASES
    folded = fold(name)
    if folded in known:
        return known[folded]
    close = dict.fromkeys(known[match] for match in get_close_matches(folded, known, n=3, cutoff=0.5))
    names = ", ".join(close or LOSSES)
    raise ConfigurationError(f"`--loss` must name a loss. Received: {name!r}. Choose one of: {names}.")


def infer_loss(
    last_activation: str | None,
    output_shape: Shape,
    label_shape: Shape,
    label_dtype: DTypeLike,
    label_values_hint: NDArray | None = None,
) -> InferredLoss:
    """Choose the loss by the model's last activation (None: linear) and its labels; the hint holds some labels."""
    whole = np.issubdtype(label_dtype, np.integer) or np.issubdtype(label_dtype, np.bool_)
    if last_activation == "softmax":
        if _same(output_shape, label_shape):
            return InferredLoss("categorical_crossentropy", "the last layer is a softmax and the labels are one-hot")
        if whole or _all_in(label_values_hint, None):
            return InferredLoss(_SPARSE, "the last layer is a softmax and the labels are class numbers")
    if last_activation == "sigmoid" and (label_values_hint is None or _all_in(label_values_hint, (0, 1))):
        return InferredLoss("binary_crossentropy", "the last layer is a sigmoid and the labels are 0 or 1")
    activation = last_activation or "linear"
    return InferredLoss("mean_squared_error", f"the last layer is {activation} and the labels are no classes")


def metric_for(loss: str, last_activation: str | None = None) -> AccuracyKind | None:
    """Return the way in which "acc" is counted with `loss`; None if the labels are no classes.

    A softmax trained with a binary cross-entropy still predicts one class: if each output were counted separately, nine
    tenths of a wrong digit would be right.
    """
    if loss == _SPARSE:
        return "sparse_categorical"
    if loss in _ONE_HOT:
        return "categorical"
    if loss in _BINARY:
        return "categorical" if last_activation == "softmax" else "binary"
    return None


def label_mismatch(loss: str | None, output_shape: Shape, label_shape: Shape) -> str | None:
    """Return a sentence if labels cannot be compared with the output by `loss` (None: by any loss), else None."""
    same = _same(output_shape, label_shape)
    sparse = _same(output_shape[:-1], label_shape)
    if {None: same or sparse, _SPARSE: sparse}.get(loss, same):
        return None
    if loss == _SPARSE:
        return (
            f"The loss {loss} takes one class number for each output of shape {output_shape}. Received: labels of "
            f"shape {label_shape}. Give class numbers, or use categorical_crossentropy for one-hot labels."
        )
    return (
        f"Labels must have the shape of the model's output, {output_shape}. Received: labels of shape {label_shape}. "
        f"Give the model an output of that shape{', or use ' + _SPARSE + ' for class numbers' if sparse else ''}."
    )


def _same(a: Shape, b: Shape) -> bool:
    """Return True if two shapes agree; None matches any length, and one last dimension of 1 may be left out."""
    shorter, longer = sorted((a, b), key=len)
    if len(longer) == len(shorter) + 1 and longer[-1] == 1:
        longer = longer[:-1]
    return len(shorter) == len(longer) and all(m == n or None in (m, n) for m, n in zip(shorter, longer, strict=True))


def _all_in(values: NDArray | None, allowed: tuple[int, ...] | None) -> bool:
    """Return True if all values are in `allowed` (None: are whole numbers); False without values."""
    if values is None or not np.size(values):
        return False
    return bool(np.isin(values, allowed).all() if allowed is not None else (np.mod(values, 1) == 0).all())


def fold(name: str) -> str:
    """Return a name without case, underscores and a final "loss"."""
    return name.lower().replace("_", "").removesuffix("loss")
