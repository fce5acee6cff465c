"""Losses of a torch module: Keras's losses by their meaning, PyTorch's own losses unchanged.

Keras's names compute Keras's losses, but depend on the activation of the outputs: after a softmax or a sigmoid the
outputs are probabilities, after a log-softmax logarithms of probabilities, and otherwise the cross-entropies take them
for logits. PyTorch's names (`CrossEntropyLoss`, or `cross_entropy`) compute the losses of `torch.nn` after any
activation; only the labels are converted to the form that these losses need.
"""

from difflib import get_close_matches

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models import losses
from nnlo_opt.models.loss_terms import Loss
from nnlo_opt.models.losses import AccuracyKind, InferredLoss, Shape

#: PyTorch's losses without a counterpart in Keras, with the way "acc" is counted
TORCH_LOSSES: dict[str, AccuracyKind | None] = {
    "BCELoss": "binary",
    "BCEWithLogitsLoss": "binary",
    "CrossEntropyLoss": "categorical",
    "HingeEmbeddingLoss": None,
    "KLDivLoss": None,
    "MultiLabelMarginLoss": None,
    "MultiLabelSoftMarginLoss": "binary",
    "MultiMarginLoss": "categorical",
    "NLLLoss": "categorical",
    "PoissonNLLLoss": None,
    "SoftMarginLoss": None,
}
#: inputs of other losses, in addition to or in place of one output and its labels
_REFUSED = {
    "AdaptiveLogSoftmaxWithLoss": "weights of its own",
    "CTCLoss": "the lengths of inputs and targets",
    "CosineEmbeddingLoss": "two inputs and a label",
    "GaussianNLLLoss": "a variance",
    "LinearCrossEntropyLoss": "weights of its own",
    "MarginRankingLoss": "two inputs and a label",
    "TripletMarginLoss": "an anchor, a positive and a negative",
    "TripletMarginWithDistanceLoss": "an anchor, a positive and a negative",
}
#: losses with classes on dimension 1 of their input; labels may be class numbers or one-hot
OF_CLASSES = ("CrossEntropyLoss", "MultiMarginLoss", "NLLLoss")
#: losses with labels -1 or 1
OF_SIGNS = ("HingeEmbeddingLoss", "SoftMarginLoss")

SPARSE = "sparse_categorical_crossentropy"


def check_loss(name: str) -> str:
    """Return Keras's name of the loss `name`, or PyTorch's if Keras has none (`cross_entropy`: CrossEntropyLoss).

    Case, underscores and a final "Loss" do not matter.

    Raises:
        ConfigurationError: for an unknown name, or for a loss that needs more than outputs and labels.
    """
    own = {losses.fold(loss): loss for loss in (*TORCH_LOSSES, *_REFUSED)}
    folded = losses.fold(name)
    loss = own.get(folded)
    if loss in _REFUSED:
        raise ConfigurationError(
            f"`--loss` must name a loss of outputs and labels. Received: {name!r}, which takes {_REFUSED[loss]}. Give "
            "a function (y_true, y_pred) as `get_loss()` of the model module."
        )
    if loss:
        return loss
    try:
        return losses.check_loss(name)
    except ConfigurationError:
        known = {losses.fold(loss): loss for loss in (*losses.LOSSES, *TORCH_LOSSES)}
        close = [known[match] for match in get_close_matches(folded, known, n=3, cutoff=0.5)]
        raise ConfigurationError(
            f"`--loss` must name a loss. Received: {name!r}. Choose one of: {', '.join(close or known.values())}."
        ) from None


def infer_loss(
    last_activation: str | None,
    output_shape: Shape,
    label_shape: Shape,
    label_dtype: DTypeLike,
    label_values_hint: NDArray | None = None,
) -> InferredLoss:
    """Choose the loss as `losses.infer_loss`, but take outputs without activation for logits if labels are classes."""
    hint = label_values_hint
    whole = np.issubdtype(label_dtype, np.integer) or np.issubdtype(label_dtype, np.bool_)
    n_classes = output_shape[-1] if output_shape else 1
    if last_activation is None:
        logits = "the last layer is linear, its outputs are taken for logits, and the labels are"
        if whole and n_classes != 1 and label_shape in (output_shape[:-1], (*output_shape[:-1], 1)):
            return InferredLoss(SPARSE, f"{logits} class numbers")
        if hint is not None and np.size(hint) and np.isin(hint, (0, 1)).all() and np.any(hint):
            if n_classes != 1 and label_shape == output_shape and (hint.sum(axis=-1) == 1).all():
                return InferredLoss("categorical_crossentropy", f"{logits} one-hot")
            return InferredLoss("binary_crossentropy", f"{logits} 0 or 1")
    inferred = losses.infer_loss(_in_keras(last_activation), output_shape, label_shape, label_dtype, hint)
    return InferredLoss(inferred.name, inferred.why.replace("softmax", last_activation or ""))


def metric_for(loss: str, last_activation: str | None = None) -> AccuracyKind | None:
    """Return the way in which "acc" is counted with `loss`; None if the labels are no classes."""
    return TORCH_LOSSES[loss] if loss in TORCH_LOSSES else losses.metric_for(loss, _in_keras(last_activation))


def label_mismatch(loss: str | None, output_shape: Shape, label_shape: Shape) -> str | None:
    """Return a sentence if labels cannot be compared with the output by `loss` (None: by any loss), else None."""
    if loss in (None, *OF_CLASSES) and output_shape and label_shape in (output_shape[1:], (*output_shape[1:], 1)):
        # PyTorch's own losses have classes on dimension 1.
        return None
    return losses.label_mismatch(loss, output_shape, label_shape)


def _in_keras(activation: str | None) -> str | None:
    """Return the activation for Keras's rules; a log-softmax predicts classes as a softmax does."""
    return "softmax" if activation == "log_softmax" else activation


def own_name(loss: Loss) -> str | None:
    """Return the name in `TORCH_LOSSES` of a loss given by name, as a module or as a function of `torch.nn`."""
    if isinstance(loss, str):
        return loss if loss in TORCH_LOSSES else None
    if not is_of_torch(loss):
        return None
    name = getattr(loss, "__name__", type(loss).__name__).replace("binary_cross_entropy", "bce")
    return {losses.fold(known): known for known in TORCH_LOSSES}.get(losses.fold(name))


def is_of_torch(loss: Loss) -> bool:
    """Return True if a loss is a function or an object of PyTorch."""
    named = loss if hasattr(loss, "__name__") else type(loss)
    return str(named.__module__).startswith("torch.")
