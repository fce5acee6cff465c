"""Keras's losses, implemented in torch under the same names.

Each function takes the output, its labels in the form of the output and the activation of the output, and returns the
losses of each sample (n, ...). This module imports torch: import it only when a model exists.
"""

from typing import Any

import numpy as np
import torch
from torch.nn import functional

#: Keras's fuzz factor
_EPSILON = 1e-7


def binary_crossentropy(output: Any, y: Any, activation: str | None) -> Any:
    """Return the cross-entropy of each output separately; an output without activation is a logit."""
    if activation is None:
        return functional.binary_cross_entropy_with_logits(output, y, reduction="none")
    return functional.binary_cross_entropy(_probabilities(output, activation), y, reduction="none")


def binary_focal_crossentropy(output: Any, y: Any, activation: str | None) -> Any:
    """Return the binary cross-entropy with more weight on wrong outputs, with Keras's gamma of 2."""
    p = _probabilities(output, activation)
    return (1 - y * p - (1 - y) * (1 - p)) ** 2 * binary_crossentropy(output, y, activation)


def categorical_crossentropy(output: Any, y: Any, activation: str | None) -> Any:
    """Return the cross-entropy of classes; outputs without activation are logits."""
    return -(y * _log_probabilities(output, activation)).sum(-1)


def categorical_focal_crossentropy(output: Any, y: Any, activation: str | None) -> Any:
    """Return the cross-entropy with more weight on wrong classes, with Keras's alpha of 0.25 and gamma of 2."""
    log_p = _log_probabilities(output, activation)
    return (-0.25 * (1 - log_p.exp()) ** 2 * y * log_p).sum(-1)


def sparse_categorical_crossentropy(output: Any, y: Any, activation: str | None) -> Any:
    """Return the cross-entropy of classes; `y` holds class numbers."""
    log_p = _log_probabilities(output, activation).reshape(-1, output.shape[-1])
    return functional.nll_loss(log_p, y.reshape(-1), reduction="none").reshape(y.shape)


def categorical_hinge(output: Any, y: Any, _: str | None) -> Any:
    """Return the hinge loss: how far the correct class is from exceeding the best other class by 1, at least 0."""
    return (1 + ((1 - y) * output).amax(-1) - (y * output).sum(-1)).relu()


def hinge(output: Any, y: Any, _: str | None) -> Any:
    """Return the margin of each output; labels are -1 or 1, or 0 or 1."""
    signs = 2 * y - 1 if ((y == 0) | (y == 1)).all() else y
    return (1 - signs * output).relu()


def squared_hinge(output: Any, y: Any, activation: str | None) -> Any:
    """Return the square of the margin of each output."""
    return hinge(output, y, activation) ** 2


def kl_divergence(output: Any, y: Any, activation: str | None) -> Any:
    """Return the divergence of two distributions; outputs without activation are logits."""
    y = y.clamp(_EPSILON, 1)
    if activation in (None, "log_softmax"):
        return (y * (y.log() - _log_probabilities(output, activation))).sum(-1)
    return (y * (y / output.clamp(_EPSILON, 1)).log()).sum(-1)


def cosine_similarity(output: Any, y: Any, _: str | None) -> Any:
    """Return the negative cosine of the angle between output and labels."""
    return -(functional.normalize(y, dim=-1) * functional.normalize(output, dim=-1)).sum(-1)


def log_cosh(output: Any, y: Any, _: str | None) -> Any:
    """Return the logarithm of the hyperbolic cosine of the error."""
    error = output - y
    return error + functional.softplus(-2 * error) - float(np.log(2))


def huber(output: Any, y: Any, _: str | None) -> Any:
    """Return half the square of errors up to 1, and the absolute error minus 0.5 above."""
    return functional.huber_loss(output, y, reduction="none")


def mean_squared_error(output: Any, y: Any, _: str | None) -> Any:
    """Return the square of each error."""
    return functional.mse_loss(output, y, reduction="none")


def mean_absolute_error(output: Any, y: Any, _: str | None) -> Any:
    """Return the absolute value of each error."""
    return functional.l1_loss(output, y, reduction="none")


def mean_absolute_percentage_error(output: Any, y: Any, _: str | None) -> Any:
    """Return each error in percent of the label."""
    return 100 * ((y - output) / y.abs().clamp(min=_EPSILON)).abs()


def mean_squared_logarithmic_error(output: Any, y: Any, _: str | None) -> Any:
    """Return the square of the difference of the logarithms."""
    return (output.clamp(min=_EPSILON).log1p() - y.clamp(min=_EPSILON).log1p()) ** 2


def poisson(output: Any, y: Any, _: str | None) -> Any:
    """Return the Poisson loss of counts; the output is their rate."""
    return output - y * torch.log(output + _EPSILON)


def tversky(output: Any, y: Any, _: str | None) -> Any:
    """Return the loss of the full batch; with alpha = beta = 0.5 it is the Dice loss."""
    return 1 - 2 * (y * output).sum() / (y.sum() + output.sum() + _EPSILON)


dice = tversky


def _log_probabilities(output: Any, activation: str | None) -> Any:
    """Return log probabilities of classes on the last axis."""
    if activation == "log_softmax":
        return output
    if activation is None:
        return functional.log_softmax(output, -1)
    return (output / output.sum(-1, keepdim=True)).clamp(_EPSILON, 1 - _EPSILON).log()


def _probabilities(output: Any, activation: str | None) -> Any:
    """Return the probability of each output separately."""
    if activation is None:
        return output.sigmoid()
    return (output.exp() if activation == "log_softmax" else output).clamp(_EPSILON, 1 - _EPSILON)
