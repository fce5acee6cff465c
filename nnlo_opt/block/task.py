"""Tasks of a worker: model, shard of the training samples, share of the validation samples of one fold.

Samples that fit into memory are held there from trial to trial; others are read from the files in every pass, window by
window. Either way they come in the same order (`data.order`).
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.comm.messages import StartFold, Validated, WorkerReady
from nnlo_opt.data.batches import BatchStream, Samples, Stream, Windows, WindowsInMemory, iterate
from nnlo_opt.data.folds import Fold, shard
from nnlo_opt.data.memory import budget_bytes
from nnlo_opt.data.order import Cut, Order
from nnlo_opt.data.source import DataSource, Indices
from nnlo_opt.data.streaming import GatheredWindows, StreamedWindows, piece, read_in_order
from nnlo_opt.data.weights import ClassTable, check_sample_weights
from nnlo_opt.errors import ProtocolError, TrialError
from nnlo_opt.models.adapter import ModelAdapter
from nnlo_opt.pulse import PULSE, SLOW
from nnlo_opt.records import Value
from nnlo_opt.runtime.devices import node_place
from nnlo_opt.timeline import Timeline
from nnlo_opt.training.history import Metrics
from nnlo_opt.training.options import TrainingOptions, model_parameters
from nnlo_opt.trees import Arrays
from nnlo_opt.vectors import aligned_empty

logger = logging.getLogger(__name__)

#: validation needs no gradients, so small training batches are no reason for small validation batches
_SMALLEST_VALIDATION_BATCH = 128


class FoldTask(Value):
    """One worker's part of one fold: the model, its shard, its share of the validation samples."""

    adapter: ModelAdapter
    #: endless batches of the shard
    stream: Stream
    #: makes the validation samples of this worker, part by part in order; possibly none
    validation: Callable[[], Iterator[Samples]]
    options: TrainingOptions
    #: training samples of all workers and of this one; validation samples of all
    n_train: int
    n_shard: int
    n_validation: int
    #: batches of a pass on the rank that has most; None: as follows from the samples and the size of a batch
    steps_a_pass: int | None = None
    #: makes all validation samples, part by part in order; None if they cannot be read here
    all_validation: Callable[[], Iterator[Samples]] | None = None

    def ready(self, assignment: int) -> WorkerReady:
        """Return the message that model and data are there."""
        return WorkerReady(
            assignment=assignment,
            n_weights=self.adapter.n_weights,
            n_state=self.adapter.n_state,
            n_train=self.n_train,
            n_shard=self.n_shard,
            has_validation=self.n_validation > 0,
            trains_itself=self.adapter.trains_itself,
        )

    def model_state(self) -> NDArray[np.float32]:
        """Return a copy of the float model state, (n_state,)."""
        state = aligned_empty(self.adapter.n_state)
        self.adapter.read_state(state)
        return state

    def write_model(self, weights_and_state: NDArray[np.float32] | None) -> None:
        """Take over weights and float model state that lie in one vector; ProtocolError for another length."""
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
        """Evaluate this rank's validation samples at weights and float model state, which the adapter holds afterwards.

        Raises:
            TrialError: a figure is not finite.
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
        return Validated(assignment=assignment, n_samples=metrics.n_samples, sums={**metrics.sums})

    def validation_batches(self, *, all_workers: bool = False) -> Iterator[tuple[Arrays, Arrays]]:
        """Yield the validation samples in order, in batches without weights; `all_workers`: not only this worker's."""
        for samples in self.all_validation() if all_workers and self.all_validation else self.validation():
            yield from iterate(samples.x, samples.y, validation_batch(self.options))


class TaskFactory(Protocol):
    """Maker of the tasks of this rank."""

    def open(self, start: StartFold) -> FoldTask:
        """Build model and data for `start`; any exception fails the trial."""

    def close(self) -> None:
        """Release the model of the last task."""


class Feeding(Value):
    """Settings by which samples are held, read and weighted."""

    #: bytes of samples that a rank may hold; None: a quarter of the node's free memory, divided among its ranks
    memory_bytes: int | None = None
    #: windows read ahead by a thread if samples are not held in memory; 0: no thread
    n_ahead: int = 1
    #: True if a thread gathers shuffled batches ahead of need, for which it wants a core of its own
    gathers_ahead: bool = False
    #: weights of the classes, for every fold; None: all alike
    class_tables: Sequence[ClassTable] | None = None
    #: data set with a weight for each sample; None: all alike
    sample_weights_name: str | None = None


def open_task(tasks: TaskFactory, start: StartFold, timeline: Timeline) -> FoldTask:
    """Build model and data for `start`, which may take long."""
    PULSE.expect(SLOW, "builds the model and reads its samples")
    with timeline.span("build model, read data", "data", trial=start.trial, fold=start.fold):
        return tasks.open(start)


def release(tasks: TaskFactory) -> None:
    """Release the model of the last task; the fold is over, so a failure of the framework is only logged."""
    try:
        tasks.close()
    except Exception:
        logger.warning("a model could not be released", exc_info=True)


@dataclass(kw_only=True)
class FoldTaskFactory:
    """Tasks from a data source with fixed folds and a function that builds the model of a point."""

    #: `build(parameters, options, seed)` returns a model with fresh weights that depend on the seed alone
    build: Callable[[dict[str, Any], TrainingOptions, int], ModelAdapter]
    #: releases the last model
    release: Callable[[], None]
    source: DataSource
    folds: list[Fold]
    options: TrainingOptions
    seed: int
    feeding: Feeding = field(default_factory=Feeding)
    #: samples read last: most trials ask for the same shard again
    _loaded: dict[tuple[str, int, int, int], Samples] = field(default_factory=dict, init=False)
    #: of the task under way; its thread ends with the task
    _stream: BatchStream | None = field(default=None, init=False)

    def open(self, start: StartFold) -> FoldTask:
        """Build the model of the point and load this worker's shard. Not collective."""
        self._end_stream()
        options = self.options.with_point(start.point)
        fold = self.folds[start.fold]
        adapter = self.build(model_parameters(start.point), options, model_seed(self.seed, start))
        mine = shard(fold.train, start.n_workers, start.worker - 1)
        # Fewer validation samples than workers is no reason to refuse: some have nothing to do.
        edges = [len(fold.validation) * i // start.n_workers for i in (start.worker - 1, start.worker)]
        validates = fold.validation[edges[0] : edges[1]]
        # One fold at a time: folds that take turns on a small block do not fill its memory.
        self._loaded = {key: samples for key, samples in self._loaded.items() if key[1:] == _place(start)}
        validation, n_left = self._validation(validates, start, options)
        key = (self.seed, start.trial, start.fold, start.worker)
        order = Order(len(mine), key, shuffle=options.shuffle, cut=self._cut)
        windows = self._windows(mine, start, order, n_left)
        if self.feeding.gathers_ahead and options.shuffle:
            windows = GatheredWindows(windows, piece(options.batch, self.source.info.sample_bytes))
        self._stream = BatchStream(windows, options.batch)
        return FoldTask(
            adapter=adapter,
            stream=self._stream,
            validation=validation,
            options=options.for_updates() if adapter.trains_itself else options,
            n_train=len(fold.train),
            n_shard=len(mine),
            n_validation=len(fold.validation),
            all_validation=self._in_parts(fold.validation, options, n_ahead=0),
        )

    def close(self) -> None:
        """Release the model and end reading ahead; samples held in memory stay for the next trial."""
        self._end_stream()
        self.release()

    # ------------------------------------------------------------ in memory or not

    def _validation(
        self, numbers: Indices, start: StartFold, options: TrainingOptions
    ) -> tuple[Callable[[], Iterator[Samples]], int]:
        """Return the maker of the validation samples, and the bytes of memory left for training samples."""
        n_bytes = len(numbers) * self.source.info.sample_bytes
        if len(numbers) <= self._cut.window or n_bytes <= self._memory_bytes // 2:
            samples = self._load("validation", start, lambda: self._read(numbers))
            return lambda: iter([samples]), self._memory_bytes - n_bytes
        _say_streamed("validation", len(numbers), n_bytes)
        return self._in_parts(numbers, options, self.feeding.n_ahead), self._memory_bytes

    def _in_parts(self, numbers: Indices, options: TrainingOptions, n_ahead: int) -> Callable[[], Iterator[Samples]]:
        """Return the maker of validation samples that are read part by part, each of whole batches."""
        batch = validation_batch(options)
        n_at_once = max(1, self._cut.window // batch) * batch
        return lambda: read_in_order(lambda part: self._read(numbers[part]), len(numbers), n_at_once, n_ahead)

    def _windows(self, numbers: Indices, start: StartFold, order: Order, memory_bytes: int) -> Windows:
        """Return the training samples, in memory if `memory_bytes` are enough."""
        tables, name = self.feeding.class_tables, self.feeding.sample_weights_name
        table = tables[start.fold] if tables else None
        n_bytes = len(numbers) * self.source.info.sample_bytes
        if order.n_windows == 1 or n_bytes <= memory_bytes:

            def load() -> Samples:
                return _weighted(self._read(numbers), table, self._column(name, numbers))

            return WindowsInMemory(self._load("train", start, load), order)
        _say_streamed("training", len(numbers), n_bytes)
        weights = self._column(name, numbers)

        def read(part: Indices) -> Samples:
            return _weighted(self._read(numbers[part]), table, None if weights is None else weights[part])

        return StreamedWindows(read, order, self.feeding.n_ahead)

    def _load(self, part: str, start: StartFold, read: Callable[[], Samples]) -> Samples:
        key = (part, *_place(start))
        if key not in self._loaded:
            self._loaded[key] = read()
        return self._loaded[key]

    def _read(self, numbers: Indices) -> Samples:
        return Samples(*self.source.read(numbers))

    def _column(self, name: str | None, numbers: Indices) -> NDArray[np.float32] | None:
        if name is None:
            return None
        return check_sample_weights(name, self.source.read_column(name, numbers), some=True)

    @cached_property
    def _cut(self) -> Cut:
        return Cut.of(self.source.info)

    @cached_property
    def _memory_bytes(self) -> int:
        given = self.feeding.memory_bytes
        return budget_bytes(node_place(os.environ)[1]) if given is None else given

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def validation_batch(options: TrainingOptions) -> int:
    """Return the number of samples of a validation batch."""
    return max(options.batch, _SMALLEST_VALIDATION_BATCH)


def model_seed(seed: int, start: StartFold) -> int:
    """Return the seed of a model; it depends on the fold too, as every fold begins with fresh weights."""
    return int(np.random.SeedSequence((seed, start.trial, start.fold)).generate_state(1)[0]) & 0x7FFFFFFF


def _place(start: StartFold) -> tuple[int, int, int]:
    """Return the fields of an order that determine the samples of a worker."""
    return start.fold, start.worker, start.n_workers


def _weighted(samples: Samples, table: ClassTable | None, weights: NDArray[np.float32] | None) -> Samples:
    """Return the samples with the weight of their class times their own."""
    if table is not None:
        of_class = table.of(samples.y)
        weights = of_class if weights is None else weights * of_class
    return Samples(samples.x, samples.y, weights)


def _say_streamed(what: str, n_samples: int, n_bytes: int) -> None:
    logger.info(
        "%d %s samples (%.0f MiB) are more than this rank may hold in memory: they are read in every pass",
        n_samples,
        what,
        n_bytes / 2**20,
    )
