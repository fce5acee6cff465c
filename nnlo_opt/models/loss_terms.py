"""Loss of a model: the weighted sum of one loss for each of its outputs.

A request is a name or function for all outputs, a list in the order of the outputs, or a dict by their names. Without a
request, the loss is chosen to fit each output and its labels. Shapes have no batch dimension.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models.losses import AccuracyKind, InferredLoss, Shape

#: name of a loss, or function (y_true, y_pred) -> loss of each sample, or their mean
Loss: TypeAlias = str | Callable[[Any, Any], Any]
#: losses of all outputs, of each in their order, or by their names; None to choose losses that fit
LossRequest: TypeAlias = Loss | Sequence[Loss] | Mapping[str, Loss] | None
#: weights in the order of the outputs, or by their names; None for 1 each
WeightRequest: TypeAlias = Sequence[float] | Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a model."""

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
    values: NDArray | None = None


@dataclass(frozen=True, slots=True)
class LossTerm:
    """Loss of one output, with the way its accuracy is counted."""

    output: str
    loss: Loss
    weight: float = 1.0
    #: kind of accuracy; None if the labels are no classes
    accuracy: AccuracyKind | None = None

    @property
    def loss_name(self) -> str:
        """Name of the loss for messages."""
        return self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", "a function of the module")


class LossRules(Protocol):
    """Losses that a framework knows, and the rules for them; the module `losses` has the rules of Keras."""

    def check_loss(self, name: str) -> str: ...

    def infer_loss(
        self,
        last_activation: str | None,
        output_shape: Shape,
        label_shape: Shape,
        label_dtype: Any,
        label_values_hint: NDArray | None = None,
    ) -> InferredLoss: ...

    def metric_for(self, loss: str, last_activation: str | None = None) -> AccuracyKind | None: ...

    def label_mismatch(self, loss: str | None, output_shape: Shape, label_shape: Shape) -> str | None: ...


def split_losses(text: str) -> str | list[str]:
    """Return the request of `--loss`: one name, or several separated by commas."""
    names = [name.strip() for name in text.split(",")]
    return names if len(names) > 1 else names[0]


def losses_in_words(terms: Sequence[LossTerm]) -> str:
    """Return the losses as `--loss` would name them."""
    return ",".join(term.loss_name for term in terms)


def figures_of(terms: Sequence[LossTerm]) -> tuple[str, ...]:
    """Return the names of the figures of a model, in the order in which they are computed.

    They are "loss", "acc" of the first output that predicts classes, and "<output>_loss" and "<output>_acc" as well if
    the model has several outputs.
    """
    classes = [term for term in terms if term.accuracy]
    overall = ("loss", "acc") if classes else ("loss",)
    if len(terms) == 1:
        return overall
    return (
        *overall,
        *(f"{term.output}_loss" for term in terms),
        *(f"{term.output}_acc" for term in classes),
    )


def make_terms(
    request: LossRequest, weights: WeightRequest, outputs: Sequence[Output], labels: Sequence[Labels], rules: LossRules
) -> tuple[tuple[LossTerm, ...], tuple[str, ...]]:
    """Return the loss of every output, and a sentence on each loss that was chosen.

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
            remarks.append(f"Loss{of}: {term.loss}, because {why}; `--loss` chooses another.")
    return tuple(terms), tuple(remarks)


def _term(output: Output, labels: Labels, loss: Loss | None, rules: LossRules, prefix: str) -> tuple[LossTerm, str]:
    """Return the term of one output, and the reason for its loss or "" if it was requested."""
    if mismatch := rules.label_mismatch(None, output.shape, labels.shape):
        raise ConfigurationError(prefix + mismatch)
    inferred = rules.infer_loss(output.activation, output.shape, labels.shape, labels.dtype, labels.values)
    if callable(loss):
        # Classes are counted as for the loss that would fit.
        return LossTerm(output.name, loss, accuracy=rules.metric_for(inferred.name, output.activation)), ""
    name = inferred.name if loss is None else rules.check_loss(loss)
    if mismatch := rules.label_mismatch(name, output.shape, labels.shape):
        raise ConfigurationError(prefix + mismatch)
    accuracy = rules.metric_for(name, output.activation)
    return LossTerm(output.name, name, accuracy=accuracy), inferred.why if loss is None else ""


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
