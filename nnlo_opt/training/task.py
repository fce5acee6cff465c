"""What a worker needs to train one fold, and how it is put together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nnlo_opt.comm.messages import StartFold
from nnlo_opt.config import TrainingOptions, model_parameters
from nnlo_opt.data.batches import BatchStream, iterate
from nnlo_opt.data.folds import Fold
from nnlo_opt.data.shards import shard
from nnlo_opt.data.source import DataSource
from nnlo_opt.models.adapter import ModelAdapter

#: validation needs no gradients, so small training batches are no reason for small validation batches
_SMALLEST_VALIDATION_BATCH = 128


@dataclass(slots=True, kw_only=True)
class FoldTask:
    """One worker's part of one fold: the model, its shard, its share of the validation samples."""

    adapter: ModelAdapter
    #: endless batches of the shard
    stream: BatchStream
    #: validation samples of this worker; may be empty
    x_validation: np.ndarray
    y_validation: np.ndarray
    options: TrainingOptions
    #: training samples of all workers and of this one; validation samples of all
    n_train: int
    n_shard: int
    n_validation: int

    def validation_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The validation samples in order."""
        return iterate(self.x_validation, self.y_validation, max(self.options.batch, _SMALLEST_VALIDATION_BATCH))


class TaskFactory(Protocol):
    """Makes the tasks of this rank."""

    def open(self, start: StartFold) -> FoldTask:
        """Build model and data for `start`; whatever it raises fails the trial."""

    def close(self) -> None:
        """Release the model of the last task."""


class FoldTaskFactory:
    """Tasks from a data source with fixed folds and a function that builds the model of a point."""

    def __init__(
        self,
        build: Callable[[dict[str, Any], TrainingOptions, int], ModelAdapter],
        release: Callable[[], None],
        source: DataSource,
        folds: list[Fold],
        options: TrainingOptions,
        seed: int,
    ) -> None:
        """`build(parameters, options, seed)` returns a model with fresh weights that depend on the seed alone."""
        self._build = build
        self._release = release
        self._source = source
        self._folds = folds
        self._options = options
        self._seed = seed
        #: samples read last: most trials ask for the same shard again
        self._loaded: dict[tuple[str, int, int, int], tuple[np.ndarray, np.ndarray]] = {}

    def open(self, start: StartFold) -> FoldTask:
        """Build the model of the point and load this worker's shard. Not collective."""
        options = self._options.with_point(start.point)
        fold = self._folds[start.fold]
        # The initial weights depend on the fold too: every fold begins with fresh weights.
        model_seed = (
            int(np.random.SeedSequence((self._seed, start.trial, start.fold)).generate_state(1)[0]) & 0x7FFFFFFF
        )
        adapter = self._build(model_parameters(start.point), options, model_seed)
        x, y = self._load("train", fold.train, start)
        x_validation, y_validation = self._load("validation", fold.validation, start)
        return FoldTask(
            adapter=adapter,
            stream=BatchStream(
                x,
                y,
                options.batch,
                rng_key=(self._seed, start.trial, start.fold, start.worker),
                shuffle=options.shuffle,
            ),
            x_validation=x_validation,
            y_validation=y_validation,
            options=options,
            n_train=len(fold.train),
            n_shard=len(x),
            n_validation=len(fold.validation),
        )

    def close(self) -> None:
        """Release the model; the samples stay for the next trial."""
        self._release()

    def _load(self, part: str, indices: np.ndarray, start: StartFold) -> tuple[np.ndarray, np.ndarray]:
        key = (part, start.fold, start.worker, start.n_workers)
        if key not in self._loaded:
            if part == "train":
                mine = shard(indices, start.n_workers, start.worker - 1)
            else:
                # Fewer validation samples than workers is no reason to refuse: some have nothing to do.
                edges = [len(indices) * i // start.n_workers for i in (start.worker - 1, start.worker)]
                mine = indices[edges[0] : edges[1]]
            # One fold at a time: folds that take turns on a small block do not fill its memory.
            self._loaded = {k: v for k, v in self._loaded.items() if k[1] == start.fold}
            self._loaded[key] = self._source.read(mine)
        return self._loaded[key]
