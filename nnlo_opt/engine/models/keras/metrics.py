"""Metrics of Keras as pure functions of their states: additive over samples, or updated through all samples in turn."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nnlo_opt.core.base.errors import ConfigurationError, TrialError, did_you_mean
from nnlo_opt.engine.models.losses import Loss, LossTerm
from nnlo_opt.engine.models.metrics import Asked, OutputMetric, asked_metrics, only_number


def metrics_of(request: Any, terms: Sequence[LossTerm], weighted: Any = None) -> Asked:
    """Return the metrics of `compile` or `get_metrics`; ConfigurationError for one that is not Keras's."""
    return asked_metrics(request, terms, _named, weighted)


def _named(metric: Any) -> tuple[str, Any, bool]:
    """Return the name of a metric, its object, and True if it is one of Keras with the usual threshold."""
    import keras

    if metric in ("accuracy", "acc"):
        return metric, None, True  # Keras chooses one by the labels
    try:
        found = keras.metrics.get(metric)
    except (ValueError, TypeError):
        found = None
    if not callable(found):
        raise ConfigurationError(
            f"A metric must be one of Keras, the name of one, or a function (y_true, y_pred). Received: "
            f"{metric!r:.200}.{did_you_mean(metric, _names(metric))}"
        )
    is_object = isinstance(found, keras.metrics.Metric)
    kind = type(found).__name__ if is_object else getattr(found, "__name__", type(found).__name__)
    module = type(found).__module__ if is_object else str(getattr(found, "__module__", ""))
    is_plain = module.partition(".")[0] == "keras" and getattr(found, "threshold", 0.5) in (None, 0.5)
    if isinstance(metric, str) and metric != kind:
        name = metric
    else:
        name = _without_counter(found.name, kind) if is_object else kind
    return name, found if is_object else keras.metrics.MeanMetricWrapper(found, name=name), is_plain


def _names(metric: Any) -> list[str]:
    """Return the names of metrics that a wrong one may mean."""
    import keras

    return [name for name in dir(keras.metrics) if not name.startswith("_")] if isinstance(metric, str) else []


def remarks_on_logits(terms: Sequence[LossTerm], asked: Asked) -> list[str]:
    """Return a sentence on metrics that expect probabilities of outputs that are logits; `fit` is silent, too."""
    mistaken, remedies = [], []
    for term in terms:
        if _takes_logits(term.loss) and term.accuracy == "binary":
            mistaken.append("acc" if len(terms) == 1 else f"{term.output}_acc")
            remedies.append("BinaryAccuracy(threshold=0)")
    for one in asked.metrics:
        term = terms[one.output]
        remedy = _for_logits(one.metric) if _takes_logits(term.loss) else None
        if remedy is not None:
            mistaken.append(one.name)
            # A softmax depends on all logits of a sample.
            is_enough = remedy and (term.accuracy == "binary" or "crossentropy" in type(one.metric).__name__.lower())
            activation = "sigmoid" if term.accuracy == "binary" else "softmax"
            remedies.append(f"{type(one.metric).__name__}({remedy})" if is_enough else f"a {activation} as last layer")
    if not mistaken:
        return []
    return [
        "The loss has from_logits=True, and some metrics take these logits for probabilities, as in `fit`: "
        f"{', '.join(mistaken)}. Use {', '.join(dict.fromkeys(remedies))}."
    ]


def _takes_logits(loss: Loss) -> bool:
    arguments = getattr(getattr(loss, "function", loss), "__self__", loss)
    return getattr(arguments, "_fn_kwargs", {}).get("from_logits") is True


def _for_logits(metric: Any) -> str | None:
    """Return the argument with which a metric of Keras takes logits, "" if it has none; None if it takes them."""
    if type(metric).__module__.partition(".")[0] != "keras" or type(metric).__name__ == "MeanMetricWrapper":
        return None
    config = metric.get_config()
    if "from_logits" in config:
        return None if config["from_logits"] else "from_logits=True"
    if "thresholds" in config and config.get("top_k") is None:
        given = config["thresholds"]
        limits = given if isinstance(given, list | tuple) else [0.5 if given is None else given]
        return "thresholds=0" if any(0 < limit < 1 for limit in limits) else None
    if config.get("threshold") is not None:
        return "threshold=0" if 0 < config["threshold"] < 1 else None
    return "" if "num_thresholds" in config else None


def _without_counter(name: str, kind: str) -> str:
    """Return a name without the number that Keras gives to the second metric of a kind in a process."""
    stem, _, number = name.rpartition("_")
    return stem if number.isdecimal() and stem.replace("_", "") == kind.lower() else name


class States:
    """The states of all metrics of a model, each a list of arrays: the values of the metric's variables.

    Args:
        metrics: metrics of the outputs.
        merging: names of those whose states add up over samples; None for all.
    """

    def __init__(self, metrics: Sequence[OutputMetric], merging: Collection[str] | None) -> None:
        self._metrics = metrics
        self._merging = {metric.name for metric in metrics if merging is None or metric.name in merging}
        #: values of all variables without samples; None until `build`
        self.initial: list[np.ndarray] | None = None

    @property
    def modes(self) -> dict[str, str]:
        """Metric -> "max" or "min", whichever is better; only metrics of which Keras knows the direction."""
        directions = ((one.name, getattr(one.metric, "_direction", None)) for one in self._metrics)
        return {name: "max" if direction == "up" else "min" for name, direction in directions if direction}

    def build(self, outputs: Sequence[Any], ys: Sequence[Any]) -> None:
        """Create the variables of the metrics, which some only do for the first samples."""
        from keras import ops

        for one in self._metrics:
            if not one.metric.variables or not getattr(one.metric, "_built", True):
                one.metric.update_state(ys[one.output], outputs[one.output])
            one.metric.reset_state()
            if not one.metric.variables:
                raise TrialError(f"the metric {one.name} has no variables, which must keep its state")
        self.initial = [
            ops.convert_to_numpy(variable.value) for one in self._metrics for variable in one.metric.variables
        ]

    @property
    def need_samples(self) -> bool:
        """True if the first samples must be seen before `build`."""
        return not all(one.metric.variables and getattr(one.metric, "_built", True) for one in self._metrics)

    @property
    def any_adds_up(self) -> bool:
        """True if the states of some metric add up over samples."""
        return bool(self._merging)

    def after(
        self, states: Sequence[Any], outputs: Sequence[Any], ys: Sequence[Any], weights: Sequence[Any] = ()
    ) -> list[Any]:
        """Return all states after some samples, as tensors; part of a computation of the backend.

        `weights`: of the samples, (n,), for metrics that take them; or empty.
        """
        return [
            state
            for one, own in self._each(states)
            for state in one.metric.stateless_update_state(
                own, ys[one.output], outputs[one.output], *(weights if one.is_weighted else ())
            )
        ]

    @property
    def none(self) -> dict[str, np.ndarray]:
        """An empty vector for each metric: it is computed on all samples at once."""
        return {one.name: np.empty(0) for one in self._metrics}

    def sums(self, states: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return what samples have added to the initial states that add up, as vectors."""
        assert self.initial is not None
        changes = [np.subtract(state, first, dtype=float) for state, first in zip(states, self.initial, strict=True)]
        return {
            one.name: np.concatenate([change.ravel() for change in own])
            for one, own in self._each(changes)
            if one.name in self._merging
        }

    def results(self, added: Mapping[str, ArrayLike], carried: Callable[[], Sequence[np.ndarray]]) -> dict[str, float]:
        """Return the metrics of merged states; `carried` returns all states after all samples, for the empty ones."""
        last = () if all(np.size(state) for state in added.values()) else carried()
        if self.initial is None:
            self.build((), ())  # this rank has had no samples
        assert self.initial is not None
        found = {}
        for (one, own), (_, carried_on) in zip(self._each(self.initial), self._each(last), strict=True):
            if one.name in added:
                state = added[one.name]
                found[one.name] = self._result(one, _sums(own, state) if np.size(state) else carried_on)
        return found

    def _result(self, one: OutputMetric, state: Sequence[np.ndarray]) -> float:
        import keras
        from keras import ops

        pairs = zip(one.metric.variables, state, strict=True)
        # Not `stateless_result`: a result may be a variable, which has this value only within the scope.
        with keras.StatelessScope([(variable, ops.cast(value, variable.dtype)) for variable, value in pairs]):
            result = one.metric.result()
            if isinstance(result, Mapping):
                raise TrialError(f"a metric must be one number; {one.name} is a dict of {', '.join(map(str, result))}")
            return only_number(one.name, np.asarray(ops.convert_to_numpy(ops.convert_to_tensor(result))))

    def _each(self, states: Sequence[Any]) -> Iterator[tuple[OutputMetric, Sequence[Any]]]:
        """Yield the metrics, each with its part of the states of all."""
        begin = 0
        for one in self._metrics:
            end = begin + len(one.metric.variables)
            yield one, states[begin:end]
            begin = end


def _sums(arrays: Sequence[np.ndarray], vector: ArrayLike) -> list[np.ndarray]:
    """Return arrays plus their parts of a vector."""
    parts = np.split(np.asarray(vector), np.cumsum([array.size for array in arrays])[:-1])
    return [array + part.reshape(array.shape) for array, part in zip(arrays, parts, strict=True)]
