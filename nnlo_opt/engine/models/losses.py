"""Loss of a model, a weighted sum of one loss for each output, and the rules for matching losses and labels.

A request is a name or function for all outputs, a list in the order of the outputs, or a dict by their names. Without a
request, the loss is chosen to fit each output and its labels. Names are Keras's names; Keras computes the losses
(`keras_model`). Shapes have no batch dimension.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled

Shape = tuple[int | None, ...]
AccuracyKind = Literal["categorical", "sparse_categorical", "binary"]
#: name of a loss, or function (y_true, y_pred) -> loss of each sample, or their mean
Loss: TypeAlias = str | Callable[[Any, Any], Any]
#: one loss for all outputs, a list in their order, or a dict by their names; None to choose losses that fit
LossRequest: TypeAlias = Loss | Sequence[Loss] | Mapping[str, Loss] | None
#: weights in the order of the outputs, or by their names; None for 1 each
WeightRequest: TypeAlias = Sequence[float] | Mapping[str, float] | None

#: names of losses
_LOSSES = (
    "binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy "
    "categorical_hinge cosine_similarity dice hinge huber kl_divergence log_cosh mean_absolute_error "
    "mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson "
    "sparse_categorical_crossentropy squared_hinge tversky"
)
LOSSES = tuple(_LOSSES.split())

# fmt: off
# Short names of Keras and PyTorch after `fold`; only names for the same computation.
_ALIASES = {
    "mse": "mean_squared_error", "mae": "mean_absolute_error", "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error", "bce": "binary_crossentropy", "kld": "kl_divergence",
    "kldiv": "kl_divergence", "kullbackleiblerdivergence": "kl_divergence", "l1": "mean_absolute_error",
    "smoothl1": "huber",
}
# fmt: on

SPARSE = "sparse_categorical_crossentropy"
_ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy", "categorical_hinge")
_BINARY = ("binary_crossentropy", "binary_focal_crossentropy")


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a model.

    >>> Output("softmax", (10,), "softmax").name
    'softmax'
    """

    #: name, unique in the model
    name: str
    shape: Shape
    #: activation that computes the output; None if linear or unknown
    activation: str | None


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one output: shape and dtype of one sample's labels, and the labels of some samples, if known."""

    shape: Shape
    dtype: str
    values: np.ndarray | None = None

    @property
    def are_whole(self) -> bool:
        """True if the labels have an integer type."""
        return np.issubdtype(self.dtype, np.integer) or np.issubdtype(self.dtype, np.bool_)


@dataclass(frozen=True, slots=True)
class VariedLoss:
    """A named loss with non-default arguments: a function per sample, and the name of the loss with the same labels."""

    function: Callable[[Any, Any], Any]
    name: str
    #: name with arguments, for messages
    text: str

    def __call__(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each sample."""
        return self.function(y_true, y_pred)


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """A loss that reduces a batch itself, and its text for messages."""

    #: of labels, predictions, and weights of samples (n,) or None; returns a number
    function: Callable[[Any, Any, Any], Any]
    text: str

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the loss of a batch."""
        return self.function(y_true, y_pred, sample_weight)


@dataclass(frozen=True, slots=True)
class LossTerm:
    """Loss of one output, and how to count its accuracy."""

    output: str
    loss: Loss
    weight: float = 1.0
    #: kind of accuracy; None if the labels are not classes
    accuracy: AccuracyKind | None = None

    @property
    def loss_name(self) -> str:
        """Name of the loss for messages."""
        return request_in_words(self.loss)


@dataclass(frozen=True, slots=True)
class InferredLoss:
    """Loss that fits, and `why`, an explanation for the log."""

    name: str
    why: str


class LossRules(Protocol):
    """Losses of a framework, and the rules for them; this module implements Keras's."""

    def check_loss(self, name: str) -> str: ...

    def infer_loss(self, output: Output, labels: Labels) -> InferredLoss: ...

    def metric_for(self, loss: str, last_activation: str | None = None) -> AccuracyKind | None: ...

    def label_mismatch(self, loss: str | None, output_shape: Shape, label_shape: Shape) -> str | None: ...


# ---------------------------------------------------------------- the rules of Keras


def check_loss(name: str, more: Iterable[str] = ()) -> str:
    """Return Keras's name of the loss `name`, or the name in `more`, losses of another framework.

    Case, underscores and a final "Loss" do not matter.

    Raises:
        ConfigurationError: for an unknown name, with the closest names.
    """
    known = {fold(loss): loss for loss in LOSSES} | _ALIASES | {fold(loss): loss for loss in more}
    folded = fold(name)
    if folded in known:
        return known[folded]
    close = dict.fromkeys(known[match] for match in get_close_matches(folded, known, n=3, cutoff=0.5))
    names = ", ".join(close or (*LOSSES, *more))
    raise ConfigurationError(f"`{spelled('loss')}` must name a loss. Received: {name!r}. Choose one of: {names}.")


def infer_loss(output: Output, labels: Labels) -> InferredLoss:
    """Choose the loss by the activation of an output (None: linear) and its labels."""
    if output.activation == "softmax":
        if alike(output.shape, labels.shape):
            return InferredLoss("categorical_crossentropy", "the last layer is a softmax and the labels are one-hot")
        if labels.are_whole or _all_in(labels.values, None):
            return InferredLoss(SPARSE, "the last layer is a softmax and the labels are class numbers")
    if output.activation == "sigmoid" and (labels.values is None or _all_in(labels.values, (0, 1))):
        return InferredLoss("binary_crossentropy", "the last layer is a sigmoid and the labels are 0 or 1")
    activation = output.activation or "linear"
    return InferredLoss("mean_squared_error", f"the last layer is {activation} and the labels are not classes")


def metric_for(loss: str, last_activation: str | None = None) -> AccuracyKind | None:
    """Return how "acc" is counted with `loss`; None if the labels are not classes.

    A softmax trained with a binary cross-entropy still predicts one class: if each output were counted separately, a
    wrong digit would count as nine tenths correct.
    """
    if loss == SPARSE:
        return "sparse_categorical"
    if loss in _ONE_HOT:
        return "categorical"
    if loss in _BINARY:
        return "categorical" if last_activation == "softmax" else "binary"
    return None


def label_mismatch(loss: str | None, output_shape: Shape, label_shape: Shape) -> str | None:
    """Return an error if `loss` (None: any loss) cannot compare labels and output of these shapes, else None."""
    same = alike(output_shape, label_shape)
    sparse = alike(output_shape[:-1], label_shape)
    if {None: same or sparse, SPARSE: sparse}.get(loss, same):
        return None
    if loss == SPARSE:
        return (
            f"The loss {loss} takes one class number for each output of shape {output_shape}. Received: labels of "
            f"shape {label_shape}. Give class numbers, or use categorical_crossentropy for one-hot labels."
        )
    return (
        f"Labels must have the shape of the model's output, {output_shape}. Received: labels of shape {label_shape}. "
        f"Give the model an output of that shape{', or use ' + SPARSE + ' for class numbers' if sparse else ''}."
    )


def alike(a: Shape, b: Shape) -> bool:
    """Return True if two shapes agree; None matches any length, and a last dimension of 1 is optional."""
    shorter, longer = sorted((a, b), key=len)
    if len(longer) == len(shorter) + 1 and longer[-1] == 1:
        longer = longer[:-1]
    return fits(shorter, longer)


def fits(a: Shape, b: Shape) -> bool:
    """Return True if two shapes agree; None matches any length."""
    return len(a) == len(b) and all(m == n or None in (m, n) for m, n in zip(a, b, strict=True))


def _all_in(values: np.ndarray | None, allowed: tuple[int, ...] | None) -> bool:
    """Return True if all values are in `allowed` (None: are integers); False without values."""
    if values is None or not np.size(values):
        return False
    return bool(np.isin(values, allowed).all() if allowed is not None else (np.mod(values, 1) == 0).all())


def fold(name: str) -> str:
    """Return a name without case, underscores and a final "loss"."""
    return name.lower().replace("_", "").removesuffix("loss")


# ---------------------------------------------------------------- the losses of a model


def split_losses(text: str) -> str | list[str]:
    """Return the request of `--loss`: one name, or several separated by commas."""
    names = [name.strip() for name in text.split(",")]
    return names if len(names) > 1 else names[0]


def request_in_words(request: LossRequest) -> str:
    """Return a loss request as text."""
    if isinstance(request, str):
        return request
    if isinstance(request, VariedLoss | BatchLoss):
        return request.text
    if isinstance(request, Mapping | Sequence):
        values = request.values() if isinstance(request, Mapping) else request
        return ",".join(map(request_in_words, values))
    return getattr(request, "__name__", "a function of the module")


def losses_in_words(terms: Sequence[LossTerm]) -> str:
    """Return the losses as `--loss` would name them."""
    return ",".join(term.loss_name for term in terms)


def figures_of(terms: Sequence[LossTerm]) -> tuple[str, ...]:
    """Return the names of a model's figures in the order of their computation.

    They are "loss", "acc" of the first output that predicts classes, and for several outputs also "<output>_loss" and
    "<output>_acc".
    """
    classes = [term for term in terms if term.accuracy]
    overall = ("loss", "acc") if classes else ("loss",)
    if len(terms) == 1:
        return overall
    return (*overall, *(f"{term.output}_loss" for term in terms), *(f"{term.output}_acc" for term in classes))


def make_terms(
    request: LossRequest, weights: WeightRequest, outputs: Sequence[Output], labels: Sequence[Labels], rules: LossRules
) -> tuple[tuple[LossTerm, ...], tuple[str, ...]]:
    """Return the loss of every output, and an explanation for each loss that was chosen automatically.

    Raises:
        ConfigurationError: if outputs, labels and losses do not match.
    """
    if len(outputs) != len(labels):
        raise ConfigurationError(
            f"Every output of the model must have its own labels. Received: {len(labels)} sets of labels for "
            f"{len(outputs)} outputs, {_listed(outputs)}. Give a group with one data set for each output."
        )
    losses = _per_output(request, outputs, "losses")
    scales = _per_output(1.0 if weights is None else weights, outputs, "loss weights")
    terms, remarks = [], []
    for output, label, loss, weight in zip(outputs, labels, losses, scales, strict=True):
        term, why = _term(output, label, loss, rules, "" if len(outputs) == 1 else f"Output {output.name!r}: ")
        if not math.isfinite(weight):
            raise ConfigurationError(f"A loss weight must be a finite number. Received: {weight} for {output.name!r}.")
        terms.append(LossTerm(output.name, term.loss, float(weight), term.accuracy))
        if why:
            of = "" if len(outputs) == 1 else f" of output {output.name!r}"
            remarks.append(f"Loss{of}: {term.loss}, because {why}; `{spelled('loss')}` chooses another.")
    return tuple(terms), tuple(remarks)


def _term(output: Output, labels: Labels, loss: Loss | None, rules: LossRules, prefix: str) -> tuple[LossTerm, str]:
    """Return the term of one output, and the reason for its loss or "" if it was requested."""
    mismatch = rules.label_mismatch(None, output.shape, labels.shape)
    inferred = rules.infer_loss(output, labels)
    if callable(loss) and not isinstance(loss, VariedLoss):
        # Count classes like for the loss that would fit. A function may compare an output with labels of any shape.
        accuracy = None if mismatch else rules.metric_for(inferred.name, output.activation)
        return LossTerm(output.name, loss, accuracy=accuracy), ""
    if mismatch:
        raise ConfigurationError(prefix + mismatch)
    name = inferred.name if loss is None else loss.name if isinstance(loss, VariedLoss) else rules.check_loss(loss)
    if mismatch := rules.label_mismatch(name, output.shape, labels.shape):
        raise ConfigurationError(prefix + mismatch)
    accuracy = rules.metric_for(name, output.activation)
    used = loss if isinstance(loss, VariedLoss) else name
    return LossTerm(output.name, used, accuracy=accuracy), inferred.why if loss is None else ""


def _per_output(request: Any, outputs: Sequence[Output], what: str) -> list[Any]:
    """Return the requested value of each output."""
    if isinstance(request, Mapping):
        names = [output.name for output in outputs]
        if request.keys() != set(names):
            raise ConfigurationError(
                f"The {what} must be given for every output by its name. Received: {', '.join(map(str, request))}; "
                f"the outputs are {_listed(outputs)}."
            )
        return [request[name] for name in names]
    if isinstance(request, Sequence) and not isinstance(request, str):
        if len(request) != len(outputs):
            raise ConfigurationError(
                f"There must be as many {what} as outputs. Received: {len(request)}; "
                f"the outputs are {_listed(outputs)}."
            )
        return list(request)
    return [request] * len(outputs)


def _listed(outputs: Sequence[Output]) -> str:
    return ", ".join(output.name for output in outputs)
