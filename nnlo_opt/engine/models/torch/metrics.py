"""Metrics of torchmetrics, which declares for each state whether it adds up over samples.

The user's module imports torchmetrics; this package does not need it.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.losses import LossTerm
from nnlo_opt.engine.models.metrics import Asked, OutputMetric, asked_metrics, only_number
from nnlo_opt.engine.models.torch.comparison import Comparison, aligned


def metrics_of(request: Any, terms: Sequence[LossTerm]) -> Asked:
    """Return the metrics of `get_metrics`; ConfigurationError for one that is not of torchmetrics."""
    return asked_metrics(request, terms, _named)


def _named(metric: Any) -> tuple[str, Any, bool]:
    """Return the name of a metric, its object, and False: none is the accuracy that is counted anyway."""
    package = sys.modules.get("torchmetrics")
    if package is None or not isinstance(metric, package.Metric):
        install = "" if package else "`pip install torchmetrics`. "
        raise ConfigurationError(
            f"A metric of a torch module must be one metric object of torchmetrics. Received: {metric!r:.200}. "
            f"{install}Return for example `[torchmetrics.AUROC(task='binary', thresholds=200)]`."
        )
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3_\2\4", type(metric).__name__)
    return words.lower(), metric, False


class States:
    """The states of all metrics of a module.

    Args:
        metrics: metrics of the outputs.
        merging: names of those whose states add up over samples; None for all that declare it.
        device: device of the outputs.
    """

    def __init__(self, metrics: Sequence[OutputMetric], merging: Collection[str] | None, device: Any) -> None:
        self.metrics = metrics
        self._merging = {
            one.name for one in metrics if (merging is None or one.name in merging) and _adds_up(one.metric)
        }
        for one in metrics:
            one.metric.to(device)
            one.metric.reset()

    @property
    def any_adds_up(self) -> bool:
        """True if the states of some metric add up over samples."""
        return bool(self._merging)

    @property
    def none(self) -> dict[str, np.ndarray]:
        """An empty vector for each metric: it is computed on all samples at once."""
        return {one.name: np.empty(0) for one in self.metrics}

    def sums(self, comparisons: Sequence[Comparison], outputs: Sequence[Any], labels: Sequence[Any]) -> dict[str, Any]:
        """Return what samples add to the states that add up, as vectors."""
        added = {}
        for one in self.metrics:
            if one.name in self._merging:
                one.metric.reset()
                first = self._vector(one)
                _update(one, comparisons, outputs, labels)
                added[one.name] = self._vector(one) - first
                one.metric.reset()
        return added

    def results(
        self,
        states: Mapping[str, ArrayLike],
        batches: Callable[[], Iterable[tuple[Sequence[Comparison], Sequence[Any], Sequence[Any]]]],
    ) -> dict[str, float]:
        """Return the metrics of merged states; `batches` yields comparisons, outputs, labels for the others."""
        asked = [one for one in self.metrics if one.name in states]
        others = [one for one in asked if not np.size(states[one.name])]
        for parts in batches() if others else ():
            for one in others:
                _update(one, *parts)
        found = {}
        for one in asked:
            if one not in others:
                self._restore(one, np.asarray(states[one.name]))
            found[one.name] = only_number(one.name, _array(one.metric.compute()))
            one.metric.reset()
        return found

    def _vector(self, one: OutputMetric) -> np.ndarray:
        """Return the state of a metric as a vector."""
        return np.concatenate([_array(tensor).ravel().astype(float) for tensor in one.metric.metric_state.values()])

    def _restore(self, one: OutputMetric, added: np.ndarray) -> None:
        """Set the state of a metric to its first one plus what samples have added."""
        one.metric.reset()
        begin = 0
        for name, first in one.metric.metric_state.items():
            part = added[begin : (begin := begin + first.numel())].reshape(first.shape)
            setattr(one.metric, name, first + torch.tensor(part).to(first))
        one.metric._update_count = 1  # or `compute` would warn


def _adds_up(metric: Any) -> bool:
    """Return True if all states of a metric are declared as sums over samples."""
    package = sys.modules["torchmetrics"]
    states, reductions = metric.metric_state, metric._reductions
    is_sum = (reductions.get(name) in (torch.sum, package.utilities.data.dim_zero_sum) for name in states)
    return bool(states) and all(is_sum) and all(map(torch.is_tensor, states.values()))


def _update(
    one: OutputMetric, comparisons: Sequence[Comparison], outputs: Sequence[Any], labels: Sequence[Any]
) -> None:
    comparison, output, label = comparisons[one.output], outputs[one.output], labels[one.output]
    of_classes = type(one.metric).__module__.startswith("torchmetrics.classification")
    one.metric.update(*(comparison.in_classes(output, label) if of_classes else aligned(output, label)))


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Mapping | list | tuple):
        return np.array([np.nan] * 2)  # several numbers
    return torch.as_tensor(value).detach().cpu().numpy()
