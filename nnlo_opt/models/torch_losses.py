"""Losses of a torch module: Keras's by what they mean, PyTorch's own on their own terms.

Keras's names compute what Keras computes, but first look at where the outputs come from: after a softmax or a sigmoid
they are probabilities, after a log-softmax their logarithms, and anything else is taken for logits by the
cross-entropies. PyTorch's names (`CrossEntropyLoss`, or `cross_entropy`) compute what `torch.nn` computes, whatever
the model ends in; only the labels are given the form that they want.
"""

from difflib import get_close_matches

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models import losses
from nnlo_opt.models.loss_terms import Loss
from nnlo_opt.models.losses import AccuracyKind, InferredLoss, Shape

#: PyTorch's losses that no name of Keras's computes, and how "acc" is counted under them.
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
#: What these take beside or instead of one output and its labels.
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
#: Classes lie on dimension 1 of their input, and labels may be class numbers or one-hot.
OF_CLASSES = ("CrossEntropyLoss", "MultiMarginLoss", "NLLLoss")
#: Labels are -1 or 1.
OF_SIGNS = ("HingeEmbeddingLoss", "SoftMarginLoss")

SPARSE = "sparse_categorical_crossentropy"


def check_loss(name: str) -> str:
    """Return Keras's name of the loss `name`, or PyTorch's where Keras has none (`cross_entropy`: CrossEntropyLoss).

    Case, underscores and a final "Loss" do not matter. Raises `ConfigurationError` for an unknown name, and for a loss
    that takes more than outputs and labels.
    """
    own = {_fold(loss): loss for loss in (*TORCH_LOSSES, *_REFUSED)}
    folded = _fold(name)
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
        known = {_fold(loss): loss for loss in (*losses.LOSSES, *TORCH_LOSSES)}
        close = [known[match] for match in get_close_matches(folded, known, n=3, cutoff=0.5)]
        raise ConfigurationError(
            f"`--loss` must name a loss. Received: {name!r}. Take one of: {', '.join(close or known.values())}."
        ) from None


def infer_loss(
    last_activation: str | None,
    output_shape: Shape,
    label_shape: Shape,
    label_dtype: DTypeLike,
    label_values_hint: NDArray | None = None,
) -> InferredLoss:
    """As `losses.infer_loss`, but what comes from no activation is taken for logits where the labels are classes."""
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
    """How "acc" is counted under `loss`; None where the labels are no classes."""
    return TORCH_LOSSES[loss] if loss in TORCH_LOSSES else losses.metric_for(loss, _in_keras(last_activation))


def label_mismatch(loss: str | None, output_shape: Shape, label_shape: Shape) -> str | None:
    """One sentence if labels of `label_shape` cannot be compared with the output under `loss` (None: any loss)."""
    if loss in (None, *OF_CLASSES) and output_shape and label_shape in (output_shape[1:], (*output_shape[1:], 1)):
        # PyTorch's own losses want classes first.
        return None
    return losses.label_mismatch(loss, output_shape, label_shape)


def _in_keras(activation: str | None) -> str | None:
    """A log-softmax stands for classes as a softmax does."""
    return "softmax" if activation == "log_softmax" else activation


def _fold(name: str) -> str:
    return name.lower().replace("_", "").removesuffix("loss")


def own_name(loss: Loss) -> str | None:
    """The name in `TORCH_LOSSES` of a loss given by name, as a module of `torch.nn` or as a function of its."""
    if isinstance(loss, str):
        return loss if loss in TORCH_LOSSES else None
    if not is_of_torch(loss):
        return None
    name = getattr(loss, "__name__", type(loss).__name__).replace("binary_cross_entropy", "bce")
    return {_fold(known): known for known in TORCH_LOSSES}.get(_fold(name))


def is_of_torch(loss: Loss) -> bool:
    """Whether a loss is a function or an object of PyTorch's own, whatever its name."""
    named = loss if hasattr(loss, "__name__") else type(loss)
    return str(named.__module__).startswith("torch.")
