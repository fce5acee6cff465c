"""Figure of merit of a training: `objectives.DEFAULT_FIGURE`, which is minimised, or what a user's function returns.

With `--figure-of-merit` a user's function computes it: `function(fold)` returns a finite number for `fold`, which is
plain data:

    epochs      list of the metrics of every epoch: {"loss": …, "val_loss": …, …}
    epoch       number of the epoch whose weights are kept, from 1; `metrics` holds its metrics
    n_weights   trainable weights
    train_s     seconds of training and validation
    point, trial, fold      the point of the search space, and the numbers of trial and fold

A `function(fold, model, batches)` also gets the model that `get_model` returned, with the kept weights, and an iterable
of all validation batches (x, y).
"""

import math
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import MisuseError, TrialError
from nnlo_opt.core.trials.objectives import FIGURE, Comparison, Objective

#: types that NumPy converts to real numbers although they are not
_NOT_REAL = (np.complexfloating, np.datetime64, np.timedelta64, np.void, str, bytes)


def figure_name(metrics: Collection[str]) -> str:
    """Describe what `figure_of_merit` computes from these metrics."""
    if "val_acc" in metrics:
        return "1 - val_acc"
    return "val_loss" if "val_loss" in metrics else "loss"


def figure_of_merit(metrics: Mapping[str, float]) -> float:
    """Return the figure of merit of one epoch (its training loss if nothing was validated)."""
    name = figure_name(metrics)
    return metrics[name] if name in metrics else 1.0 - metrics["val_acc"]


def epoch_value(name: str, metrics: Mapping[str, float]) -> float:
    """Return the value of an objective after an epoch; TrialError if it is not measured."""
    return figure_of_merit(metrics) if name == FIGURE else measured(name, metrics)


def measured(name: str, values: Mapping[str, float]) -> float:
    """Return the value called `name`; TrialError if it is not measured."""
    if name not in values:
        raise TrialError(f"`{name}` is not measured for this trial; measured are {', '.join(values)}")
    return values[name]


def best_epoch(objective: Objective, epochs: Sequence[Mapping[str, float]]) -> int:
    """Return the index of the epoch in which the objective was best; the first among equal ones."""
    values = [objective.loss(epoch_value(objective.name, metrics)) for metrics in epochs]
    return min(range(len(values)), key=values.__getitem__)


def figure_so_far(comparison: Comparison, epochs: Sequence[Mapping[str, float]]) -> float | None:
    """Return the figure of merit after these epochs (at least one); None if it needs a full training."""
    first = comparison.objectives[0]
    if not comparison.is_of_epochs:
        return None
    return epoch_value(first.name, epochs[best_epoch(first, epochs) if comparison.epoch == "best" else -1])


def judged(figure: Callable[[dict[str, Any]], Any], fold: dict[str, Any]) -> float:
    """Call a user's figure of merit; TrialError unless it returns a finite number. Its exceptions propagate."""
    return finite_number(figure(fold), "the figure of merit must be a finite number")


def finite_number(value: Any, rule: str) -> float:
    """Convert a result of user code to a float; TrialError with the `rule` unless it is finite.

    The TrialError is a MisuseError if the value is not a real number.
    """
    is_text, what = False, ", as from a function without `return`" * (value is None)
    try:
        # NumPy accepts a torch tensor only on the CPU and without gradient.
        plain = value.item() if hasattr(value, "detach") else value
        is_text = issubclass(np.asarray(plain).dtype.type, str | bytes)
        number = real_number(plain)
    except Exception:  # a user's object may raise anything, for example a tensor with many elements
        what = ", which is text: convert it by `float(...)`" if is_text else what or _several(value)
        raise MisuseError(f"{rule}; received: {reprlib.repr(value)}{what}") from None
    if not math.isfinite(number):
        raise TrialError(f"{rule}; received: {number}")
    return number


def _several(value: Any) -> str:
    """Return a remedy for an array of several numbers; empty for anything else."""
    shape = getattr(value, "shape", None)
    n_items = math.prod(shape) if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape) else 0
    return f", which holds {n_items} numbers: return one of them, or their `.mean()`" * (n_items > 1)


def real_number(value: Any) -> float:
    """Return a value, or its only element, as a float; raises any exception if it is not a real number.

    NumPy would drop the imaginary part, count units of a datetime, parse text and bytes, and ignore a mask.
    """
    if isinstance(value, list | tuple):
        (value,) = value
        return real_number(value)
    array = np.asarray(value)
    if array.dtype.hasobject and hasattr(value, "__array__"):
        return real_number(array.item())
    is_number = hasattr(value, "__float__") or hasattr(value, "__array__")
    if not is_number or np.ma.is_masked(value) or issubclass(array.dtype.type, _NOT_REAL):
        raise TypeError(f"not a real number: {value!r}")
    return float(np.asarray(value, dtype=float).item())
