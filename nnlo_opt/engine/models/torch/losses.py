"""Losses of a torch module: Keras's losses adapted to the activation, PyTorch's own losses unchanged.

Keras's names compute Keras's losses, but depend on the activation of the outputs: after a softmax or a sigmoid the
outputs are probabilities, after a log-softmax log probabilities, and otherwise cross-entropies treat them as logits.
PyTorch's names (`CrossEntropyLoss`, or `cross_entropy`) compute the losses of `torch.nn` after any activation; only the
labels are converted to the form that these losses need.
"""

from dataclasses import replace

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.losses import SPARSE, AccuracyKind, InferredLoss, Labels, Loss, Output, Shape

# fmt: off
#: PyTorch's losses without a counterpart in Keras, and how to count "acc" for each
TORCH_LOSSES: dict[str, AccuracyKind | None] = {
    "BCELoss": "binary", "BCEWithLogitsLoss": "binary", "CrossEntropyLoss": "categorical", "HingeEmbeddingLoss": None,
    "KLDivLoss": None, "MultiLabelMarginLoss": None, "MultiLabelSoftMarginLoss": "binary",
    "MultiMarginLoss": "categorical", "NLLLoss": "categorical", "PoissonNLLLoss": None, "SoftMarginLoss": None,
}
# fmt: on
#: unsupported losses, and the inputs that they need beyond or instead of one output and its labels
_REFUSED = {
    **dict.fromkeys(("AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"), "weights of its own"),
    "CTCLoss": "the lengths of inputs and targets",
    **dict.fromkeys(("CosineEmbeddingLoss", "MarginRankingLoss"), "two inputs and a label"),
    "GaussianNLLLoss": "a variance",
    **dict.fromkeys(("TripletMarginLoss", "TripletMarginWithDistanceLoss"), "an anchor, a positive and a negative"),
}
#: losses with classes on dimension 1 of their input; labels may be class numbers or one-hot
OF_CLASSES = ("CrossEntropyLoss", "MultiMarginLoss", "NLLLoss")
#: losses with labels -1 or 1
OF_SIGNS = ("HingeEmbeddingLoss", "SoftMarginLoss")


def check_loss(name: str) -> str:
    """Return Keras's name of the loss `name`, or PyTorch's if Keras has none (`cross_entropy`: CrossEntropyLoss).

    Case, underscores and a final "Loss" do not matter.

    Raises:
        ConfigurationError: for an unknown name, or for a loss that needs more than outputs and labels.
    """
    needs = {losses.fold(loss): inputs for loss, inputs in _REFUSED.items()}.get(losses.fold(name))
    if needs:
        raise ConfigurationError(
            f"`{spelled('loss')}` must name a loss of outputs and labels. Received: {name!r}, which takes {needs}. "
            "Give a function (y_true, y_pred) as `get_loss()` of the model module."
        )
    return losses.check_loss(name, TORCH_LOSSES)


def infer_loss(output: Output, labels: Labels) -> InferredLoss:
    """Choose the loss like `losses.infer_loss`, but treat linear outputs as logits if labels are classes."""
    shape, values = output.shape, labels.values
    n_classes = shape[-1] if shape else 1
    if output.activation is None:
        logits = "the last layer is linear, its outputs are taken for logits, and the labels are"
        if labels.are_whole and n_classes != 1 and labels.shape in (shape[:-1], (*shape[:-1], 1)):
            return InferredLoss(SPARSE, f"{logits} class numbers")
        if values is not None and np.size(values) and np.isin(values, (0, 1)).all() and np.any(values):
            if n_classes != 1 and labels.shape == shape and (values.sum(axis=-1) == 1).all():
                return InferredLoss("categorical_crossentropy", f"{logits} one-hot")
            return InferredLoss("binary_crossentropy", f"{logits} 0 or 1")
    inferred = losses.infer_loss(replace(output, activation=_in_keras(output.activation)), labels)
    return InferredLoss(inferred.name, inferred.why.replace("softmax", output.activation or ""))


def metric_for(loss: str, last_activation: str | None = None) -> AccuracyKind | None:
    """Return how "acc" is counted with `loss`; None if the labels are not classes."""
    return TORCH_LOSSES[loss] if loss in TORCH_LOSSES else losses.metric_for(loss, _in_keras(last_activation))


def label_mismatch(loss: str | None, output_shape: Shape, label_shape: Shape) -> str | None:
    """Return an error if `loss` (None: any loss) cannot compare labels and output of these shapes, else None."""
    if loss in (None, *OF_CLASSES) and output_shape and label_shape in (output_shape[1:], (*output_shape[1:], 1)):
        # PyTorch's own losses have classes on dimension 1.
        return None
    return losses.label_mismatch(loss, output_shape, label_shape)


def _in_keras(activation: str | None) -> str | None:
    """Return the activation for Keras's rules; a log-softmax predicts classes like a softmax."""
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
