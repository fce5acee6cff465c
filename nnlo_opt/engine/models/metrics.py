"""Metrics of a model besides its losses and accuracy: which of its outputs each one belongs to, and its name.

They are those of `compile` or of `get_metrics()`: a list or a dict of names for the only output, a list with an entry
for each output, or a dict by the names of outputs. The framework's objects compute them (`engine.models.keras.metrics`,
`engine.models.torch.metrics`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.trees import Arrays, n_samples
from nnlo_opt.core.data.ragged import take
from nnlo_opt.core.models.adapter import ModelAdapter
from nnlo_opt.core.training.stopping import canonical_metric
from nnlo_opt.engine.models.losses import LossTerm, figures_of, fold

#: metrics that `acc` may be, folded, with the kind of accuracy that they are; "" is the one that fits
_ACCURACIES = {
    "accuracy": "",
    "acc": "",
    "binaryaccuracy": "binary",
    "categoricalaccuracy": "categorical",
    "sparsecategoricalaccuracy": "sparse_categorical",
}
#: relative difference of states that count as equal: sums in float32
_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class OutputMetric:
    """A framework's metric of one output."""

    #: name in histories, without `val_`
    name: str
    #: number of the output, from 0
    output: int
    metric: Any
    #: True if it counts each training sample by its weight
    is_weighted: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """The metrics requested for a model."""

    metrics: tuple[OutputMetric, ...] = ()
    #: names of metrics that are an accuracy of the losses, which is counted as `acc`
    counted: tuple[str, ...] = ()
    #: names of accuracies of outputs without classes, which are not measured
    unfit: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics in histories, without `val_`."""
        return tuple(metric.name for metric in self.metrics)


NO_METRICS = Asked()


def asked_metrics(
    request: Any, terms: Sequence[LossTerm], make: Callable[[Any], tuple[str, Any, bool]], weighted: Any = None
) -> Asked:
    """Return the metrics of a request.

    Args:
        request: metrics as `compile` takes them.
        terms: losses of the outputs.
        make: returns the name of one metric, its object, and True if it is the framework's with its defaults.
        weighted: metrics with sample weights, which only training samples have.

    Raises:
        ConfigurationError: the metrics do not fit the outputs, or have a name of a loss.
    """
    metrics, counted, unfit = list[OutputMetric](), list[str](), list[str]()
    reserved, taken = {*figures_of(terms), "acc"}, set[str]()
    for each, is_weighted in ((request, False), (weighted, True)):
        for number, one, own in _by_output(each, terms):
            name, metric, is_plain = make(one)
            term = terms[number]
            kind = _ACCURACIES.get(fold(name)) if is_plain else None
            is_acc = kind is not None and (kind == term.accuracy or (kind == "" and bool(term.accuracy)))
            if is_acc and not is_weighted:
                counted.append(name)
            elif kind == "" and not is_acc:
                unfit.append(name)
            else:
                metric = make(f"{term.accuracy}_accuracy")[1] if metric is None else metric
                of_output = "" if len(terms) == 1 else f"{term.output}_"
                whole = of_output + canonical_metric((own or name) if not of_output else name)
                if is_acc or (is_weighted and whole in taken):
                    whole = f"{of_output}weighted_{'acc' if is_acc else name}"
                if whole in reserved:
                    raise ConfigurationError(
                        f"A metric must have a name that no loss or accuracy has. Received: {whole}. Choose another, "
                        "for example by `name=`."
                    )
                numbered = (f"{whole}_{n}" for n in range(1, len(taken) + 1))
                free = next(other for other in (whole, *numbered) if other not in taken)
                taken.add(free)
                metrics.append(OutputMetric(free, number, metric, is_weighted))
    return Asked(tuple(metrics), tuple(dict.fromkeys(counted)), tuple(dict.fromkeys(unfit)))


def merging(adapter: ModelAdapter, x: Arrays, y: Arrays) -> tuple[str, ...]:
    """Return the metrics whose states add up: the sum of the states of two parts of some samples is that of the whole.

    Args:
        adapter: adapter that treats all of its metrics as additive.
        x, y: some samples, at least two.
    """
    n = n_samples(x)
    whole, first, second = (
        adapter.evaluate(take(x, rows), take(y, rows)) for rows in (slice(n), slice(n // 3 or 1), slice(n // 3 or 1, n))
    )
    both = first.merge(second)
    pairs = ((name, np.asarray(state), np.asarray(both.states[name])) for name, state in whole.states.items())
    return tuple(name for name, one, other in pairs if one.size and _are_equal(one, other))


def only_number(name: str, result: np.ndarray) -> float:
    """Return the result of a metric; TrialError if it is several numbers."""
    if result.size != 1:
        raise TrialError(
            f"a metric must be one number; {name} has shape {result.shape} (many metrics take `average='macro'`)"
        )
    return float(result.item())


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or not np.isfinite([one, other]).all():
        return False
    return bool(np.abs(one - other).max() <= _TOLERANCE * np.abs(one).max())


def _by_output(request: Any, terms: Sequence[LossTerm]) -> Iterator[tuple[int, Any, str]]:
    """Yield the number of an output, one of its metrics, and its name in a request of names; for all metrics."""
    if request is None or (isinstance(request, list | tuple | Mapping) and not request):
        return
    names = [term.output for term in terms]
    if isinstance(request, Mapping) and set(request) <= set(names):
        each = [request.get(name) for name in names]
    elif len(terms) == 1:
        if isinstance(request, Mapping) and not any(isinstance(metric, list | tuple) for metric in request.values()):
            yield from ((0, metric, str(name)) for name, metric in request.items())
            return
        each = [request]
    elif isinstance(request, list | tuple) and len(request) == len(terms):
        each = [*request]
    else:
        received = ", ".join(map(str, request)) if isinstance(request, Mapping) else f"{request!r:.200}"
        raise ConfigurationError(
            f"Metrics must be a dict by the names of outputs, or a list with an entry for each output: "
            f"{', '.join(names)}. Received: {received}."
        )
    for number, metrics in enumerate(each):
        for metric in _flat(metrics):
            yield number, metric, ""


def _flat(metrics: Any) -> Iterator[Any]:
    if isinstance(metrics, Mapping | list | tuple):
        for metric in metrics.values() if isinstance(metrics, Mapping) else metrics:
            yield from _flat(metric)
    elif metrics is not None:
        yield metrics
