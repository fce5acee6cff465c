"""Metrics of one fold: sums are accumulated during an epoch, means are kept at its end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from nnlo_opt.core.base.errors import TrialError


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics over some samples, kept as sums so that they can be merged exactly.

    >>> Metrics(2, {"loss": 1.0}).merge(Metrics(6, {"loss": 1.0})).means()
    {'loss': 0.25}

    Args:
        n_samples: number of samples.
        sums: sum of each metric over the samples: "loss", for classes "acc", and for several outputs also
            "<output>_loss" and "<output>_acc".
        states: for metrics that are not means, such as AUC: numbers (n,) whose sum over parts of the samples is their
            value for all samples; empty if there are none, and the metric needs all samples at once.

    Raises:
        ValueError: by `merge`, if the names of the metrics differ.
    """

    n_samples: int = 0
    sums: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, ArrayLike] = field(default_factory=dict, compare=False)

    def merge(self, other: "Metrics") -> "Metrics":
        """Return the metrics over both sets of samples; `Metrics()` is the neutral element."""
        if not self.n_samples:
            return other
        if not other.n_samples:
            return self
        for mine, others in ((self.sums, other.sums), (self.states, other.states)):
            if mine.keys() != others.keys():
                raise ValueError(f"Both metrics must have the same figures. Received: {[*mine]} and {[*others]}.")
        sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        return Metrics(self.n_samples + other.n_samples, sums, sum_of_states(self.states, other.states))

    def means(self) -> dict[str, float]:
        """Return the mean of every metric; empty without samples."""
        return {name: value / self.n_samples for name, value in self.sums.items()} if self.n_samples else {}


def sum_of_states(one: Mapping[str, ArrayLike], other: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
    """Return the states of two parts of some samples together; {} is the neutral element."""
    if not (one and other):
        return one or other
    return {name: np.add(state, other[name], dtype=float) for name, state in one.items()}


def plain_states(states: Mapping[str, ArrayLike]) -> dict[str, list[float]]:
    """Return states as plain data, for a message."""
    return {name: np.asarray(state, float).tolist() for name, state in states.items()}


class FoldHistory:
    """Metrics of a fold by epoch, over all workers and for each worker.

    Sums are divided once by the number of samples, so a mean does not depend on how samples are distributed.
    """

    def __init__(self) -> None:
        #: one dictionary of finite means per epoch: loss, acc, val_loss, val_acc
        self.epochs: list[dict[str, float]] = []
        #: worker -> metric -> one mean per epoch in which the worker trained, including the load of its process
        self.workers: dict[int, dict[str, list[float]]] = {}
        #: metrics of each worker in the current epoch
        self._training: dict[int, Metrics] = {}
        #: states of each worker's training samples in the current epoch
        self._states: dict[int, Mapping[str, ArrayLike]] = {}
        self._validation: dict[int, Metrics] = {}
        #: worker -> load of its process in the current epoch
        self._loads: dict[int, dict[str, float]] = {}

    @property
    def n_epochs(self) -> int:
        """Number of finished epochs."""
        return len(self.epochs)

    def add_training(self, worker: int, n_samples: int, sums: Mapping[str, float]) -> None:
        """Add the sums over `n_samples` training samples of `worker`."""
        self._training[worker] = self._training.get(worker, Metrics()).merge(Metrics(n_samples, sums))

    def add_training_states(self, worker: int, states: Mapping[str, ArrayLike]) -> None:
        """Add the states over training samples of `worker`."""
        self._states[worker] = sum_of_states(self._states.get(worker, {}), states)

    def add_validation(
        self, worker: int, n_samples: int, sums: Mapping[str, float], states: Mapping[str, ArrayLike] | None = None
    ) -> None:
        """Add the sums and states over `n_samples` validation samples of `worker`."""
        metrics = Metrics(n_samples, sums, states or {})
        self._validation[worker] = self._validation.get(worker, Metrics()).merge(metrics)

    def validation_states(self) -> dict[str, list[float]]:
        """Return the merged states of the current epoch's validation, as plain data."""
        return plain_states(_merged(self._validation).states)

    def training_states(self) -> dict[str, list[float]]:
        """Return the merged states of the current epoch's training samples, as plain data."""
        # In the order of workers, so that the order of arrival changes no bit.
        return plain_states(reduce(sum_of_states, (self._states[worker] for worker in sorted(self._states)), {}))

    def add_load(self, worker: int, load: Mapping[str, float]) -> None:
        """Store the load of the process of `worker` in this epoch, as measured by `engine.runtime.monitor`."""
        self._loads[worker] = dict(load)

    def forget_validation(self) -> None:
        """Discard the validation of the current epoch, because other workers will repeat it."""
        self._validation = {}

    def end_epoch(
        self, measured: Mapping[str, float] | None = None, in_training: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """End the epoch and return its means, with the metrics `measured` from the states of the validation.

        `in_training`: those from the states of the training samples.
        """
        means = [(worker, part.means()) for worker, part in sorted(self._training.items())]
        for worker, values in [*means, *sorted(self._loads.items())]:
            for name, value in values.items():
                self.workers.setdefault(worker, {}).setdefault(name, []).append(value)
        validation = _merged(self._validation).means() | {**(measured or {})}
        training = _merged(self._training).means() | {**(in_training or {})}
        metrics = training | {f"val_{name}": value for name, value in validation.items()}
        self.epochs.append(metrics)
        self._training, self._states, self._validation, self._loads = {}, {}, {}, {}
        return metrics

    def values(self, metric: str) -> list[float]:
        """Return the metric's value of each epoch; TrialError for a metric that is not measured."""
        if self.epochs and metric not in self.epochs[-1]:
            raise TrialError(f"`{metric}` is not measured for this trial; measured are {', '.join(self.epochs[-1])}")
        return [metrics[metric] for metrics in self.epochs]

    def to_json(self) -> dict[str, Any]:
        """Return the finished epochs as plain data."""
        return {"epochs": self.epochs, "workers": {str(worker): values for worker, values in self.workers.items()}}

    def epoch_under_way(self) -> dict[str, Any]:
        """Return the training sums of the current epoch, and states if there are any, as plain data."""
        states = {worker: [plain_states(own)] for worker, own in self._states.items() if own}
        parts = self._training.items()
        return {str(worker): [part.n_samples, part.sums, *states.get(worker, [])] for worker, part in parts}

    def resume_epoch(self, data: Mapping[str, Any]) -> None:
        """Restore what `epoch_under_way` returned."""
        self._training, self._states = {}, {}
        for worker, (n_samples, sums, *states) in data.items():
            self._training[int(worker)] = Metrics(n_samples, dict(sums))
            self._states[int(worker)] = states[0] if states else {}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FoldHistory":
        """Return the history that `to_json` has written."""
        history = cls()
        history.epochs = list(data["epochs"])
        history.workers = {int(worker): values for worker, values in data["workers"].items()}
        return history


class FoldRecord(TypedDict):
    """Fields of `history.json` that are read back."""

    epochs: list[dict[str, float]]
    workers: dict[int, dict[str, list[float]]]
    staleness: dict[str, Any]
    train_s: float
    ended_because: NotRequired[str]
    kept_epoch: NotRequired[int]


def as_nnlo_history(fold: Mapping[str, Any], n_ranks: int) -> dict[str, Any]:
    """Return the `history.json` of a fold in the form that NNLO writes: `<world>:<parent>:<process>` -> values.

    The master reports the validation metrics of the central weights and what only all workers together have, a worker
    the training metrics of its batches. A training in one process reports both under one name.
    """
    history: dict[str, dict[str, list[float]]] = {"0:-:-": {}}
    of_workers = {name for metrics in fold["workers"].values() for name in metrics}
    for metrics in fold["epochs"]:
        for name, value in metrics.items():
            if name not in of_workers:
                history["0:-:-"].setdefault(name, []).append(value)
    for worker, metrics in fold["workers"].items():
        history.setdefault("0:-:-" if n_ranks == 1 else f"{worker}:{worker}:-", {}).update(metrics)
    return {"train_time": fold["train_s"], "history": history, "staleness": fold["staleness"]}


def _merged(parts: Mapping[int, Metrics]) -> Metrics:
    """Return the metrics over all parts, added in the order of workers, so that the order of arrival changes no bit."""
    return reduce(Metrics.merge, (parts[worker] for worker in sorted(parts)), Metrics())
