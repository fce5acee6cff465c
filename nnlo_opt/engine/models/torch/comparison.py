"""Comparison of a torch module's outputs with labels, by the losses named in the module `losses`.

This module imports torch: import it only when a model exists.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.engine.models.losses import SPARSE, LossTerm
from nnlo_opt.engine.models.torch import keras_losses as torch_keras_losses
from nnlo_opt.engine.models.torch.losses import OF_CLASSES, OF_SIGNS, is_of_torch, own_name

logger = logging.getLogger(__name__)

#: PyTorch's names of operations that keep values unchanged or in the same range
_NEUTRAL = {
    *("Alias", "Clamp", "ClampMin", "Clone", "Index", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze"),
    *("T", "ToCopy", "Transpose", "UnsafeView", "Unsqueeze", "View"),
}


def activation_of(output: Any) -> str | None:
    """Return the activation that computed `output` (n, ...): "softmax", "log_softmax", "sigmoid"; None if unknown.

    It is read from the autograd graph, so `F.softmax` in a `forward` is found, too. Otherwise the values decide: rows
    that are probability distributions come from a softmax.
    """
    node, activation = output.grad_fn, None
    while node is not None and activation is None:
        name = node.name().rstrip("0123456789").removesuffix("Backward")
        parent = node.next_functions[0][0] if node.next_functions else None
        activation = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}.get(name)
        if name == "Exp" and parent is not None and parent.name().startswith("LogSoftmax"):
            activation = "softmax"
        node = parent if name in _NEUTRAL else None
    if activation or output.dim() < 2 or output.shape[-1] < 2:
        return activation
    rows = output.detach().float()
    zero = rows.new_zeros(())
    if (rows >= 0).all() and torch.allclose(rows.sum(-1), zero + 1, atol=1e-3):
        return "softmax"
    return "log_softmax" if torch.allclose(rows.logsumexp(-1), zero, atol=1e-3) else None


class Comparison:
    """Comparison of one output of a model with its labels.

    Args:
        term: loss of the output.
        activation: activation of the output, from `activation_of`.
    """

    def __init__(self, term: LossTerm, activation: str | None) -> None:
        self.term = term
        self.activation = activation
        loss, name = term.loss, own_name(term.loss)
        #: axis of the classes
        self._axis = 1 if name in OF_CLASSES else -1
        #: outputs above this threshold count as class 1
        self._threshold = {None: 0.0, "log_softmax": float(np.log(0.5))}.get(activation, 0.5)
        if name:
            self._threshold = 0.5 if name == "BCELoss" else 0.0
        #: (output, labels) -> the loss of each sample (n, ...), or one number for the batch
        self.values: Callable[[Any, Any], Any]
        #: (output, labels) -> mean loss, if there is a faster way for classes on axis 1
        self._fused: Callable[[Any, Any], Any] | None = None
        if name:
            own = getattr(torch.nn, name)(reduction="none") if isinstance(loss, str) else loss
            self.values = lambda output, labels: own(output, _target(name, output, labels))
        elif isinstance(loss, str):
            compute, form = getattr(torch_keras_losses, loss), _numbers if loss == SPARSE else _like

            def values(output: Any, labels: Any) -> Any:
                output, labels = aligned(output, labels)
                return compute(output, form(output, labels), activation)

            self.values = values
            if activation is None and loss in (SPARSE, "categorical_crossentropy"):
                # The fused function gives the same result and saves a tenth of the time of a small model's batch.
                self._fused = lambda output, labels: cross_entropy(output, form(output, labels))
        elif is_of_torch(loss):
            self.values = lambda output, labels: loss((pair := aligned(output, labels))[0], _like(*pair))
        elif isinstance(loss, torch.nn.Module):
            self.values = lambda output, labels: loss(*aligned(output, labels))
        else:
            self.values = lambda output, labels: loss(*reversed(aligned(output, labels)))

    def mean(self, output: Any, labels: Any, weights: Any = None) -> Any:
        """Return the mean loss of a batch.

        Each sample's loss is multiplied by its weight in `weights` (n,), if given.
        """
        if weights is None:
            fused = self._fused if output.dim() == 2 else None
            return fused(output, labels) if fused else self.values(output, labels).mean()
        n, values = len(output), self.values(output, labels)
        if values.shape[:1] != (n,):
            raise TrialError(
                "A loss must give one value for each sample if samples are weighted. Received: one for the batch. "
                'Choose another loss, or let it return all values (`reduction="none"`).'
            )
        return (values.reshape(n, -1).mean(1) * weights).mean()

    @classmethod
    def of(cls, term: LossTerm, output: Any) -> "Comparison":
        """Return the comparison for the outputs of a first batch; warn if the loss does not fit their activation."""
        activation, name = activation_of(output), own_name(term.loss)
        if name == "CrossEntropyLoss" and activation in ("softmax", "sigmoid"):
            logger.warning(
                "%s takes logits, not the output of a %s; categorical_crossentropy takes both.", name, activation
            )
        if name == "NLLLoss" and activation != "log_softmax":
            logger.warning("%s takes the output of a log_softmax; categorical_crossentropy takes logits too.", name)
        return cls(term, activation)

    def n_correct(self, output: Any, labels: Any) -> Any:
        """Return the number of correct samples; one with several predictions counts as the correct fraction."""
        axis = self._axis
        if axis < 0:
            output, labels = aligned(output, labels)
        if self.term.accuracy == "binary":
            correct = (output > self._threshold) == (_like(output, labels) > 0.5)
        elif self.term.accuracy == "categorical" and labels.shape == output.shape:
            correct = output.argmax(axis) == labels.argmax(axis)
        else:
            correct = output.argmax(axis) == _numbers(output, labels, axis)
        return correct.sum() if correct.dim() == 1 else correct.flatten(1).float().mean(1).sum()

    def in_classes(self, output: Any, labels: Any) -> tuple[Any, Any]:
        """Return probabilities, with classes on axis 1, and whole labels, if the labels are classes.

        Metrics cannot tell logits from probabilities in every batch.
        """
        if self.term.accuracy is None:
            return aligned(output, labels)
        if self.term.accuracy == "binary":
            output, labels = aligned(output, labels)
            if self._threshold != 0.5:
                output = output.exp() if self.activation == "log_softmax" else output.sigmoid()
            return output, (labels > 0.5).long()
        if labels.shape == output.shape:
            labels = labels.argmax(self._axis)
        else:
            labels = _numbers(output, labels, self._axis)
        output = output.movedim(self._axis, 1)
        return {None: output.softmax(1), "log_softmax": output.exp()}.get(self.activation, output), labels


def aligned(output: Any, labels: Any) -> tuple[Any, Any]:
    """Return both with the same rank, adding or removing a last dimension of 1 if needed.

    Losses would pair (n,) with (n, 1) as (n, n).
    """
    if output.dim() == 1:
        output = output.unsqueeze(-1)
    if output.shape == labels.shape:
        return output, labels
    if output.shape[-1] == 1 and labels.dim() == output.dim() - 1:
        return output, labels.unsqueeze(-1)
    if labels.shape[-1] == 1 and labels.dim() == output.dim() + 1:
        return output, labels.squeeze(-1)
    return output, labels


def _target(name: str, output: Any, labels: Any) -> Any:
    """Return labels in the form that the loss of `torch.nn` needs."""
    if name in OF_CLASSES:
        if labels.shape != output.shape:
            return _numbers(output, labels, 1)
        return labels.to(output.dtype) if name == "CrossEntropyLoss" else labels.argmax(1)
    output, labels = (output, labels) if output.dim() == 1 == labels.dim() else aligned(output, labels)
    if name == "MultiLabelMarginLoss":
        labels = _like(output, labels) if labels.is_floating_point() else labels
        if not labels.is_floating_point():
            return labels.long()
        # PyTorch expects the class numbers, padded with -1, instead of a row of 0 and 1.
        n_classes = labels.shape[-1]
        numbers = torch.where(labels > 0.5, torch.arange(n_classes, device=labels.device), n_classes).sort(-1).values
        return numbers.masked_fill(numbers == n_classes, -1)
    labels = _like(output, labels)
    if name in OF_SIGNS and ((labels == 0) | (labels == 1)).all():
        return 2 * labels - 1
    return labels


def _like(output: Any, labels: Any) -> Any:
    """Return labels with the type of the output; raise if the shapes differ, to prevent broadcasting."""
    if labels.shape != output.shape:
        raise TrialError(
            f"Labels must have the shape of the model's output, {tuple(output.shape)}. Received: "
            f"{tuple(labels.shape)}. Change the model, the labels or the loss."
        )
    return labels.to(output.dtype)


def _numbers(output: Any, labels: Any, axis: int = -1) -> Any:
    """Return class numbers (int64) for an output with its classes on `axis`."""
    expected = list(output.shape)
    del expected[axis]
    if [*labels.shape] == [*expected, 1]:
        labels = labels.squeeze(-1)
    if [*labels.shape] != expected:
        raise TrialError(
            f"Labels must be class numbers of shape {tuple(expected)}. Received: {tuple(labels.shape)}. Change the "
            "model, the labels or the loss."
        )
    return labels.long()
