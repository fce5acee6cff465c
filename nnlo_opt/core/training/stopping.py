"""Early stopping and target metrics: pure functions of a metric's history."""

import math
from collections.abc import Sequence
from statistics import fmean

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.spelling import spelled

_EARLY_RULE = "must be `metric,<,patience` or `metric,~<,patience` (or `>`), such as val_loss,<,4"
_TARGET_RULE = "must be `metric,>,value` or `metric,<,value`, such as val_acc,>,0.97"
_METRIC_RULE = "must name a metric, or one of an output or model as `name:metric`, such as energy:val_loss"
_VALIDATION = "val_"


def canonical_metric(name: str) -> str:
    """Return the name of a metric in histories: `accuracy` is `acc`, and `energy:val_loss` is `val_energy_loss`.

    The first part of `name:metric` is an output of a model with several, or a model of a training with several.
    """
    owner, colon, metric = name.rpartition(":")
    if colon:
        owner, metric = owner.strip(), metric.strip()
        validation = _VALIDATION if metric.startswith(_VALIDATION) else ""
        name = f"{validation}{owner}_{metric.removeprefix(validation)}"
    # Only the last word, because an output may be called accuracy, too.
    if name == "accuracy" or name.endswith("_accuracy"):
        name = name.removesuffix("accuracy") + "acc"
    return name


def _metric(text: str, option: str) -> str:
    """Return the canonical name of an option's metric; ConfigurationError if a part of `name:metric` is empty."""
    parts = [part.strip() for part in text.split(":")]
    if len(parts) > 2 or "" in parts or parts[-1] == _VALIDATION:
        raise ConfigurationError(f"`{option}` {_METRIC_RULE}. Received: {text!r}.")
    return canonical_metric(text)


def check_metric(name: str, known: Sequence[str], option: str) -> None:
    """Raise ConfigurationError unless the metric `name` will be measured."""
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigurationError(f"`{option}` must name one of {', '.join(known)}. Received: {name!r}.{hint}")


class EarlyStopping(Frozen):
    """Stop when a metric has not improved for `patience` epochs.

    Plain: the best of the last `patience` values is not better than the best before. Smoothed (`~`): the mean of the
    last `patience` values is not better than the mean of the `patience` values before.
    """

    metric: str
    #: "<": lower is better, ">": higher is better
    better: str
    patience: int
    smoothed: bool = False

    @classmethod
    def parse(cls, text: str) -> "EarlyStopping":
        """Parse `metric,[~]<|>,patience`."""
        option, parts = spelled("early_stopping"), [part.strip() for part in text.split(",")]
        if len(parts) != 3 or not parts[0] or parts[1].removeprefix("~") not in ("<", ">"):
            raise ConfigurationError(f"`{option}` {_EARLY_RULE}. Received: {text!r}.")
        try:
            patience = int(parts[2])
        except ValueError:
            patience = 0
        if patience < 1:
            raise ConfigurationError(
                f"`{option}` {_EARLY_RULE}, with a patience of at least 1 epoch. Received: {text!r}."
            )
        return cls(
            metric=_metric(parts[0], option),
            better=parts[1].removeprefix("~"),
            patience=patience,
            smoothed=parts[1].startswith("~"),
        )

    def __str__(self) -> str:
        return f"{self.metric},{'~' * self.smoothed}{self.better},{self.patience}"

    def best_index(self, values: Sequence[float]) -> int:
        """Return the index of the best value; the first among equal ones."""
        return min(range(len(values)), key=lambda i: values[i] if self.better == "<" else -values[i])

    def why(self, values: Sequence[float]) -> str:
        """Explain why the training stops after these values."""
        if self.smoothed:
            return f"the mean {self.metric} of {self.patience} epochs is no better than that of as many epochs before"
        return f"{self.metric} has not improved since epoch {self.best_index(values) + 1}"

    def reached(self, values: Sequence[float]) -> bool:
        """Return True if the training should stop after these values, one per epoch."""
        p = self.patience
        before = values[-2 * p : -p] if self.smoothed else values[:-p]
        if len(before) < (p if self.smoothed else 1):
            return False
        best = min if self.better == "<" else max
        measure = fmean if self.smoothed else best
        then, now = measure(before), measure(values[-p:])
        return then == best(then, now)


class TargetMetric(Frozen):
    """Stop when a metric passes a value."""

    metric: str
    #: "<": below the value, ">": above it
    side: str
    value: float

    @classmethod
    def parse(cls, text: str) -> "TargetMetric":
        """Parse `metric,<|>,value`."""
        option, parts = spelled("target_metric"), [part.strip() for part in text.split(",")]
        try:
            value = float(parts[2])
        except (IndexError, ValueError):
            value = math.nan
        if len(parts) != 3 or not parts[0] or parts[1] not in ("<", ">") or not math.isfinite(value):
            raise ConfigurationError(f"`{option}` {_TARGET_RULE}. Received: {text!r}.")
        return cls(metric=_metric(parts[0], option), side=parts[1], value=value)

    def reached(self, value: float) -> bool:
        """Return True if `value` is past the target."""
        return value < self.value if self.side == "<" else value > self.value
