"""Tasks of a worker: model, training shard and validation share for one fold."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ProtocolError, TrialError
from nnlo_opt.core.base.pulse import PULSE, SLOW
from nnlo_opt.core.base.records import Frozen, field
from nnlo_opt.core.base.trees import Arrays
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.comm.messages import Measure, Measured, StartFold, Validated, WorkerReady
from nnlo_opt.core.data.batches import Samples, Stream, iterate
from nnlo_opt.core.models.adapter import Measuring, ModelAdapter
from nnlo_opt.core.training.history import Metrics, plain_states
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.layers import Layer, layers_of

logger = logging.getLogger(__name__)

#: validation needs no gradients, so its batches may be larger than training batches
_SMALLEST_VALIDATION_BATCH = 128


class FoldTask(Frozen):
    """One worker's part of a fold: the model, its training shard, its validation share."""

    adapter: ModelAdapter
    #: endless batches of the shard
    stream: Stream
    #: yields this worker's validation samples in parts, in order; possibly none
    validation: Callable[[], Iterator[Samples]]
    options: TrainingOptions
    #: training samples of all workers, and of this one; validation samples of all
    n_train: int
    n_shard: int
    n_validation: int
    #: batches per pass on the rank with the most; None to compute it from samples and batch size
    steps_a_pass: int | None = None
    #: yields all validation samples in parts, in order; None if they cannot be read here
    all_validation: Callable[[], Iterator[Samples]] | None = None
    #: training options that the model brings, which are in `options`; see `TrainingOptions.with_steps`
    steps: Mapping[str, Any] = field(default_factory=dict)

    def ready(self, assignment: int) -> WorkerReady:
        """Return the message that model and data are ready."""
        return WorkerReady(
            assignment=assignment,
            n_weights=self.adapter.n_weights,
            n_state=self.adapter.n_state,
            n_train=self.n_train,
            n_shard=self.n_shard,
            has_validation=self.n_validation > 0,
            trains_itself=self.adapter.trains_itself,
            steps=dict(self.steps),
            layers=[[spec.name, [*spec.shape]] for spec in self.adapter.layout.specs],
        )

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The arrays of the model, for update rules."""
        return layers_of((spec.name, spec.shape) for spec in self.adapter.layout.specs)

    def model_state(self) -> NDArray[np.float32]:
        """Return a copy of the float model state, (n_state,)."""
        state = aligned_empty(self.adapter.n_state)
        self.adapter.read_state(state)
        return state

    def write_model(self, weights_and_state: NDArray[np.float32] | None) -> None:
        """Set weights and float model state from one vector; ProtocolError for a wrong length."""
        n_weights, n_state = self.adapter.n_weights, self.adapter.n_state
        if weights_and_state is None or len(weights_and_state) != n_weights + n_state:
            raise ProtocolError(f"{n_weights} weights and {n_state} numbers of state are expected beside the message.")
        self.adapter.write_weights(weights_and_state[:n_weights])
        self.adapter.write_state(weights_and_state[n_weights:])

    def read_model(self) -> NDArray[np.float32]:
        """Return a copy of the weights and the float model state in one vector."""
        model = aligned_empty(self.adapter.n_weights + self.adapter.n_state)
        self.adapter.read_weights(model[: self.adapter.n_weights])
        self.adapter.read_state(model[self.adapter.n_weights :])
        return model

    def validate(self, assignment: int, weights_and_state: NDArray[np.float32] | None) -> Validated:
        """Evaluate this rank's validation samples at weights and float model state, which the adapter keeps.

        Raises:
            TrialError: a metric is not finite.
        """
        self.write_model(weights_and_state)
        metrics = Metrics()
        PULSE.expect(SLOW)  # the first batch may have to be compiled
        for x, y in self.validation_batches():
            metrics = metrics.merge(self.adapter.evaluate(x, y))
            PULSE.ticks += 1
        for name, value in metrics.sums.items():
            if not math.isfinite(value):
                raise TrialError(f"val_{name} is {value} (a non-finite figure): lower the learning rate")
        for name, state in metrics.states.items():
            if not np.isfinite(state).all():
                raise TrialError(f"the state of val_{name} has numbers that are not finite: lower the learning rate")
        return validated(assignment, metrics)

    def measure(self, message: Measure) -> Measured:
        """Return metrics from the states of all workers, or on all validation samples, at the weights just validated.

        Raises:
            TrialError: a metric is not finite.
        """
        adapter = cast(Measuring, self.adapter)
        metrics = adapter.finish(message.states, lambda: self.validation_batches(all_workers=True))
        training = adapter.finish(message.training, tuple) if message.training else {}
        for prefix, kind, found in (("val_", "validation", metrics), ("", "training", training)):
            for name, value in found.items():
                if not math.isfinite(value):
                    raise TrialError(f"{prefix}{name} is {value}: a metric must be finite on all {kind} samples")
        return Measured(assignment=message.assignment, metrics=metrics, training=training)

    def validation_batches(self, *, all_workers: bool = False) -> Iterator[tuple[Arrays, Arrays]]:
        """Yield the validation samples in order, in batches without weights; `all_workers`: those of all workers."""
        for samples in self.all_validation() if all_workers and self.all_validation else self.validation():
            yield from iterate(samples.x, samples.y, validation_batch(self.options))


def validated(assignment: int, metrics: Metrics) -> Validated:
    """Return the message with metrics over validation samples."""
    sums, states = {**metrics.sums}, plain_states(metrics.states)
    return Validated(assignment=assignment, n_samples=metrics.n_samples, sums=sums, states=states)


def metrics_of(message: Validated) -> Metrics:
    """Return the metrics in a message."""
    return Metrics(message.n_samples, message.sums, message.states)


class TaskFactory(Protocol):
    """Creates the tasks of this rank."""

    def open(self, start: StartFold) -> FoldTask:
        """Build model and data for `start`; any exception fails the trial."""

    def close(self) -> None:
        """Release the model of the last task."""


def release(tasks: TaskFactory) -> None:
    """Release the model of the last task; the fold is over, so a failure of the framework is only logged."""
    try:
        tasks.close()
    except Exception:
        logger.warning("a model could not be released", exc_info=True)


def validation_batch(options: TrainingOptions) -> int:
    """Return the number of samples of a validation batch."""
    return max(options.batch, _SMALLEST_VALIDATION_BATCH)
