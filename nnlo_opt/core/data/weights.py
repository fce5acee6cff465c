"""Sample weights in the loss: the product of a class weight and a weight of the sample.

As in Keras's `fit`, a class without a weight has weight 1, and validation ignores weights.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays
from nnlo_opt.core.data.folds import class_numbers, first_classes
from nnlo_opt.core.data.source import Indices
from nnlo_opt.core.space.values import is_number

#: class -> weight; "balanced" gives all classes the same total weight
ClassWeights: TypeAlias = Mapping[int, float] | Literal["balanced"]
_RULE = 'must be balanced, or a dictionary of class numbers and weights, such as "{0: 1.0, 1: 5.0}"'


def parse_class_weights(text: str) -> ClassWeights:
    """Return `balanced` or the dictionary in `text`; ConfigurationError for any other text."""
    if text.strip() == "balanced":
        return "balanced"
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, dict) or not value or not all(type(key) is int for key in value):
        raise ConfigurationError(f"`{spelled('class_weights')}` {_RULE}. Received: {text}.")
    for key, weight in value.items():
        if not (is_number(weight) and weight >= 0):
            raise ConfigurationError(
                f"A weight of `{spelled('class_weights')}` must be a finite number, at least 0. Received: {text}, "
                f"with {weight!r} for class {key}."
            )
    if not any(value.values()):
        raise ConfigurationError(
            f"A class must have a weight above 0 in `{spelled('class_weights')}`. Received: {text}."
        )
    return {key: float(weight) for key, weight in value.items()}


@dataclass(frozen=True, slots=True, eq=False)
class ClassTable:
    """Weight of every class of a fold."""

    #: number of the leaf of the labels with the class
    leaf: int
    #: classes, ascending, and their weights, float32
    classes: NDArray[np.int64]
    weights: NDArray[np.float32]

    def of(self, labels: Arrays) -> NDArray[np.float32]:
        """Return the weights of samples with these labels, (n,); 1 for a class that is not in the table."""
        classes = class_numbers(labels, self.leaf)
        places = np.minimum(np.searchsorted(self.classes, classes), len(self.classes) - 1)
        return np.where(self.classes[places] == classes, self.weights[places], np.float32(1))


def class_tables(wanted: ClassWeights, labels: Arrays, trains: list[Indices]) -> list[ClassTable]:
    """Return a table for each fold, of its training samples in `trains`; ConfigurationError if `labels` do not fit."""
    found = first_classes(labels)
    if found is None:
        raise ConfigurationError(
            f"`{spelled('class_weights')}` is for labels that are classes: whole numbers or one-hot rows. Received: "
            f"labels that are neither; leave it out, or give `{spelled('sample_weights_name')}`."
        )
    leaf, classes = found
    known = np.unique(classes)
    if wanted == "balanced":
        return [_balanced(leaf, classes[train]) for train in trains]
    if unknown := sorted(set(wanted) - set(known.tolist())):
        raise ConfigurationError(
            f"`{spelled('class_weights')}` must name classes of the labels. Received: {unknown[0]}, which no sample "
            f"has; there are {_named(known)}."
        )
    weights = np.array([wanted.get(number, 1.0) for number in known.tolist()], np.float32)
    for train in trains:
        if not np.any(weights[np.searchsorted(known, np.unique(classes[train]))]):
            raise ConfigurationError(
                f"A class of the training samples must have a weight above 0 in `{spelled('class_weights')}`. "
                "Received: 0 for all of them."
            )
    return [ClassTable(leaf, known, weights)] * len(trains)


def check_sample_weights(name: str, values: np.ndarray, *, some: bool = False) -> NDArray[np.float32]:
    """Return the weights (n,) from the data set `name`; ConfigurationError unless all are finite and at least 0.

    Args:
        some: True if these are weights of some samples only, which may all be 0.
    """
    rule = (
        f"`{spelled('sample_weights_name')}` must name a data set of finite numbers of at least 0. Received: {name!r}"
    )
    if values.dtype.kind not in "iufb":
        raise ConfigurationError(f"{rule}, which holds text. Choose another data set.")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        raise ConfigurationError(f"{rule} with {values[wrong[0]]} for sample {wrong[0]}. Correct the data.")
    if not (some or np.any(values)):
        raise ConfigurationError(f"{rule} with only 0. Correct the data, or leave the weights out.")
    return values.astype(np.float32)


def _balanced(leaf: int, classes: NDArray[np.int64]) -> ClassTable:
    """Return weights n / (number of classes * n of the class), like scikit-learn; their mean over samples is 1."""
    known, counts = np.unique(classes, return_counts=True)
    return ClassTable(leaf, known, (len(classes) / (len(known) * counts)).astype(np.float32))


def _named(classes: NDArray[np.int64]) -> str:
    if len(classes) <= 10:
        return ", ".join(map(str, classes.tolist()))
    return f"{len(classes)} from {classes[0]} to {classes[-1]}"
