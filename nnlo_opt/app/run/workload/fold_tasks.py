"""Training and validation samples of a worker for one fold.

Samples that fit into memory are kept between trials; others are read from the files in every epoch, window by window.
The order is the same in both cases (`core.data.order`).
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.block.task import FoldTask, validation_batch
from nnlo_opt.core.comm.messages import StartFold
from nnlo_opt.core.data.batches import BatchStream, Samples, Stream, Windows, WindowsInMemory
from nnlo_opt.core.data.folds import Fold, shard
from nnlo_opt.core.data.order import Cut, Order
from nnlo_opt.core.data.source import DataSource, Indices
from nnlo_opt.core.data.weights import ClassTable, check_sample_weights
from nnlo_opt.core.models.adapter import ModelAdapter
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.engine.data.indexed import ItemSource, ItemStream, is_batched, n_samples_of
from nnlo_opt.engine.data.memory import budget_bytes
from nnlo_opt.engine.data.streaming import GatheredWindows, StreamedWindows, piece, read_in_order
from nnlo_opt.engine.runtime.devices import node_place

logger = logging.getLogger(__name__)


class Feeding(Frozen):
    """How to keep, read and weight samples."""

    #: bytes of samples that a rank may keep; None: a quarter of the node's free memory, divided among its ranks
    memory_bytes: int | None = None
    #: windows that a thread reads ahead if samples are not in memory; 0: no thread
    n_ahead: int = 1
    #: True if a thread prefetches shuffled batches, which needs a spare core
    gathers_ahead: bool = False
    #: class weights for every fold; None: all equal
    class_tables: Sequence[ClassTable] | None = None
    #: data set with a weight for each sample; None: all equal
    sample_weights_name: str | None = None


@dataclass(kw_only=True)
class FoldTasks:
    """Tasks from a data source with fixed folds."""

    source: DataSource
    folds: list[Fold]
    seed: int
    feeding: Feeding = field(default_factory=Feeding)
    #: samples read last, because most trials need the same shard again
    _loaded: dict[tuple[str, int, int, int], Samples] = field(default_factory=dict, init=False)
    #: stream of the current task; its thread ends with the task
    _stream: Stream | None = field(default=None, init=False)

    def task(self, start: StartFold, adapter: ModelAdapter, options: TrainingOptions) -> FoldTask:
        """Load this worker's shard for the model of a point, trained with its `options`. Not collective."""
        fold = self.folds[start.fold]
        mine = shard(fold.train, start.n_workers, start.worker - 1)
        # Fewer validation samples than workers are allowed: some workers get none.
        edges = [len(fold.validation) * i // start.n_workers for i in (start.worker - 1, start.worker)]
        validates = fold.validation[edges[0] : edges[1]]
        # Keep one fold at a time, so that folds that alternate on a small block do not fill its memory.
        self._loaded = {key: samples for key, samples in self._loaded.items() if key[1:] == _place(start)}
        source, key = self.source, (self.seed, start.trial, start.fold, start.worker)
        if isinstance(source, ItemSource):
            if source.batched:
                options = replace(options, batch=int(source.sizes[0]))
            order = Order(len(mine), key, shuffle=options.shuffle)
            self._stream = self._stream_of_items(source, mine, start, order, options)
            validation = self._in_parts(validates, options, self.feeding.n_ahead)
        else:
            validation, n_left = self._validation(validates, start, options)
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
            n_train=n_samples_of(source, fold.train),
            n_shard=n_samples_of(source, mine),
            n_validation=n_samples_of(source, fold.validation),
            steps_a_pass=-(-len(fold.train) // start.n_workers) if is_batched(source) else None,
            all_validation=self._in_parts(fold.validation, options, n_ahead=0),
        )

    def _stream_of_items(
        self, source: ItemSource, mine: Indices, start: StartFold, order: Order, options: TrainingOptions
    ) -> ItemStream:
        table = self.feeding.class_tables[start.fold] if self.feeding.class_tables else None

        def make(places: Indices) -> Samples:
            samples = source.samples(mine[places])
            return _weighted(samples, table, samples.weights)

        return ItemStream(make, order, 1 if source.batched else options.batch, self.feeding.n_ahead)

    def close(self) -> None:
        """Stop reading ahead; samples in memory are kept for the next trial."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    # ------------------------------------------------------------ in memory or not

    def _validation(
        self, numbers: Indices, start: StartFold, options: TrainingOptions
    ) -> tuple[Callable[[], Iterator[Samples]], int]:
        """Return a function that yields the validation samples, and the bytes left for training samples."""
        n_bytes = len(numbers) * self.source.info.sample_bytes
        if len(numbers) <= self._cut.window or n_bytes <= self._memory_bytes // 2:
            samples = self._load("validation", start, lambda: self._read(numbers))
            return lambda: iter([samples]), self._memory_bytes - n_bytes
        _say_streamed("validation", len(numbers), n_bytes)
        return self._in_parts(numbers, options, self.feeding.n_ahead), self._memory_bytes

    def _in_parts(self, numbers: Indices, options: TrainingOptions, n_ahead: int) -> Callable[[], Iterator[Samples]]:
        """Return a function that reads and yields validation samples in parts, each of full batches."""
        batch = validation_batch(options)
        n_at_once = max(1, self._cut.window // batch) * batch
        if isinstance(self.source, ItemSource):
            n_at_once = 1 if self.source.batched else batch
        return lambda: read_in_order(lambda part: self._read(numbers[part]), len(numbers), n_at_once, n_ahead)

    def _windows(self, numbers: Indices, start: StartFold, order: Order, memory_bytes: int) -> Windows:
        """Return the training samples, in memory if they fit in `memory_bytes`."""
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


def model_seed(seed: int, start: StartFold) -> int:
    """Return the seed of a model; it also depends on the fold, because every fold begins with fresh weights."""
    return int(np.random.SeedSequence((seed, start.trial, start.fold)).generate_state(1)[0]) & 0x7FFFFFFF


def _place(start: StartFold) -> tuple[int, int, int]:
    """Return the fields of an order that determine the samples of a worker."""
    return start.fold, start.worker, start.n_workers


def _weighted(samples: Samples, table: ClassTable | None, weights: NDArray[np.float32] | None) -> Samples:
    """Return the samples, weighted by the product of class weight and sample weight."""
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
