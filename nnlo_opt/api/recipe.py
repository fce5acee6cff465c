"""Tasks of a rank, made from the objects that a user gives a manager.

Plain HDF5 files are read as in `TrainingDriver`; batches of a generator are dealt out here.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from nnlo_opt.api.algo import Algo
from nnlo_opt.api.data import Data, H5Data
from nnlo_opt.api.model import ModelBuilder, framework_name
from nnlo_opt.block.task import Feeding, FoldTask, FoldTaskFactory, TaskSetup
from nnlo_opt.comm.messages import StartFold
from nnlo_opt.data.folds import Fold, first_classes, make_folds, single_fold
from nnlo_opt.data.generated import GeneratedStream, Pool, as_samples, count_batches, dealt, filled, info_of
from nnlo_opt.data.ragged import padded
from nnlo_opt.data.source import DataInfo
from nnlo_opt.errors import ConfigurationError, NnloError, TrialError
from nnlo_opt.models.adapter import ModelAdapter
from nnlo_opt.models.framework import Framework, FrameworkAdapter, framework_for, framework_of, imported_in
from nnlo_opt.models.losses import Labels, make_terms, split_losses
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trees import leaves
from nnlo_opt.user_files import describe

logger = logging.getLogger(__name__)

#: labels looked at to infer a loss
_N_HINT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Arguments of a manager."""

    data: Data
    algo: Algo
    model_builder: ModelBuilder
    train_list: tuple[str, ...]
    val_list: tuple[str, ...]
    options: TrainingOptions
    #: 1: train on one list, validate on the other; more: pooled and cut
    n_fold: int
    custom_objects: Mapping[str, Any]
    seed: int
    #: ranks among which training samples are shared
    n_shares: int


class ModelMaker:
    """Builds the model on this rank, with its framework."""

    def __init__(self, request: Request, n_threads: int) -> None:
        self._request = request
        self._n_threads = n_threads
        #: adapter of the last model; None after `release`
        self.adapter: FrameworkAdapter | None = None

    def build(self, info: DataInfo, label_hint: Any, options: TrainingOptions, seed: int) -> FrameworkAdapter:
        """Return the adapter of a new model for samples of this kind; `label_hint`: some labels."""
        model = self._new_model(seed)
        try:
            outputs = self._framework.describe_outputs(model, info.feature_shape)
            loss = split_losses(options.loss) if options.loss else self._request.algo.loss
            shapes, dtypes = [*leaves(info.label_shape)], [*leaves(info.label_dtype)]
            values = [None] * len(shapes) if loss else [*leaves(label_hint)]
            labels = [Labels(*parts) for parts in zip(shapes, dtypes, values, strict=True)]
            terms, remarks = make_terms(loss, None, outputs, labels, self._framework.RULES)
        except ConfigurationError as error:
            raise TrialError(str(error)) from error
        for remark in remarks:
            logger.info("%s", remark)
        self.adapter = self._framework.adapter(model, terms)
        return self.adapter

    def release(self) -> None:
        """Release the model."""
        adapter, self.adapter = self.adapter, None
        if adapter is not None:
            adapter.release()
        elif "_framework" in vars(self):
            self._framework.forget_models()

    def _new_model(self, seed: int) -> Any:
        builder, framework = self._request.model_builder, self._framework
        framework.set_seed(seed)
        try:
            with framework.building(self._request.custom_objects, None):
                model = builder.build_model()
        except NnloError:
            raise
        except (Exception, SystemExit) as error:
            raise TrialError(f"`build_model` of {type(builder).__name__} failed, {describe(error)}.") from error
        owner = framework_of(model)
        if owner is None:
            raise TrialError(
                f"`build_model` of {type(builder).__name__} must return {framework.NOUN}. Received: "
                f"{type(model).__name__}. Return the model itself."
            )
        if owner is framework:
            return model
        # The text of the module did not tell.
        owner.import_framework(self._n_threads)
        self._framework = owner
        return self._new_model(seed)

    @cached_property
    def _framework(self) -> Framework:
        builder = self._request.model_builder
        name, source = framework_name(builder), Path()
        with suppress(TypeError, OSError):  # where it has been typed into a console
            source = Path(inspect.getsourcefile(type(builder)) or "")
            # A script may have builders of several frameworks.
            name = name or imported_in(dedent(inspect.getsource(type(builder))))
        framework = framework_for(source, name)
        framework.import_framework(self._n_threads)
        return framework


# ---------------------------------------------------------------- HDF5 files


class FileTasks:
    """Tasks from plain HDF5 files; reads their headers at once."""

    def __init__(self, request: Request, maker: ModelMaker, *, gathers_ahead: bool) -> None:
        """`gathers_ahead`: a thread may bring samples into order."""
        data, options = request.data, request.options
        assert isinstance(data, H5Data)
        source = data.source([*request.train_list, *request.val_list])
        n_train = sum(file.n_samples for file in source.info.files[: len(request.train_list)])
        if n_train < request.n_shares:
            raise ConfigurationError(
                f"Every worker must have at least one training sample. Received: {n_train} samples for "
                f"{request.n_shares} workers. Take fewer ranks, or more data."
            )
        hint = padded(source.read_labels(np.arange(min(_N_HINT, source.info.n_samples))))

        def build(parameters: dict[str, Any], options: TrainingOptions, seed: int) -> ModelAdapter:
            return maker.build(source.info, hint, options, seed)

        folds = self._folds(request, source, n_train)
        setup = TaskSetup(
            build=build,
            release=maker.release,
            source=source,
            folds=folds,
            options=options,
            seed=request.seed,
            feeding=Feeding(n_ahead=max(1, data.preloading), gathers_ahead=gathers_ahead),
        )
        self._tasks = FoldTaskFactory(setup)
        #: (info, labels) to build the model with
        self.sample = lambda: (source.info, hint)

    def open(self, start: StartFold) -> FoldTask:
        return self._tasks.open(start)

    def close(self) -> None:
        self._tasks.close()

    @staticmethod
    def _folds(request: Request, source: Any, n_train: int) -> list[Fold]:
        n_samples = source.info.n_samples
        if request.n_fold == 1:
            return [single_fold(n_train, n_samples - n_train)]
        _, labels = first_classes(source.read_labels()) or (0, None)
        folds = make_folds(request.n_fold, n_samples=n_samples, seed=request.seed, labels=labels)
        nobody = np.empty(0, np.int64)
        return folds if request.algo.validates else [Fold(fold.train, nobody) for fold in folds]


# ---------------------------------------------------------------- generators


def cut_pools(request: Request) -> tuple[Pool, Pool]:
    """Return the pools to train on and to validate on, not yet counted; with folds, everything and nothing."""
    # Ranks that average batch by batch need as many batches each, so these share the batches.
    together = request.options.rule.averages_every_batch

    nobody = Pool(files=(), sizes=(), by_files=True)
    if request.n_fold == 1:
        train, validation = (
            Pool(files=files, sizes=None, by_files=len(files) >= request.n_shares and not together)
            for files in (request.train_list, request.val_list)
        )
        return train, validation if request.val_list else nobody
    files = (*request.train_list, *request.val_list)
    n_in_fold = -(-len(files) // request.n_fold)
    enough = len(files) >= request.n_fold and len(files) - n_in_fold >= request.n_shares
    return Pool(files=files, sizes=None, by_files=enough and not together), nobody


def count(data: Data, pool: Pool, units: Sequence[int] | None = None) -> np.ndarray:
    """Return the samples of every unit of a pool, int64; by files only of the `units`, and 0 for all other files."""
    if not pool.by_files:
        other = data.of(pool.files)
        return np.array(count_batches(other.generate_data, other.max_batches_per_epoch), np.int64)
    sizes = np.zeros(len(pool.files), np.int64)
    for number in range(len(pool.files)) if units is None else units:
        sizes[number] = data.of([pool.files[number]]).count_data()
    return sizes


class GeneratedTasks:
    """Tasks from a user's generator."""

    def __init__(self, request: Request, maker: ModelMaker, train: Pool, validation: Pool) -> None:
        """`train` has been counted."""
        self._request = request
        self._maker = maker
        self._train = train
        self._validation = validation
        self._stream: GeneratedStream | None = None

    def open(self, start: StartFold) -> FoldTask:
        """Start the generator of this worker's share, and build the model for what it yields first."""
        request = self._request
        train, validation = self._of_fold(start.fold)
        mine = train.deal(start.n_workers, {start.worker - 1})
        if mine.is_empty or not mine.n_samples:
            raise TrialError(
                f"Every worker must have at least one batch. Received: none for worker {start.worker} of "
                f"{start.n_workers}. Take fewer ranks, or more data."
            )
        stream = self._stream = GeneratedStream(self._generator(mine), mine.n_samples)
        first = stream.peek()
        seed = int(np.random.SeedSequence((request.seed, start.trial, start.fold)).generate_state(1)[0]) & 0x7FFFFFFF
        adapter = self._maker.build(info_of(first), first.y, request.options, seed)
        validates = validation if validation.is_empty else validation.deal(start.n_workers, {start.worker - 1})
        generate = self._generator(validates)
        return FoldTask(
            adapter=adapter,
            stream=stream,
            validation=lambda: map(as_samples, generate()),
            options=request.options,
            n_train=train.n_samples,
            n_shard=mine.n_samples,
            n_validation=0 if validation.is_empty else 1,
            steps_a_pass=None if train.by_files else -(-len(train.sizes or ()) // start.n_workers),
        )

    def close(self) -> None:
        """Release the model, and end the generator."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._maker.release()

    def sample(self) -> tuple[DataInfo, Any]:
        """Return (info, labels) to build the model with."""
        first = GeneratedStream(self._generator(self._train), self._train.n_samples).peek()
        return info_of(first), first.y

    def _of_fold(self, fold: int) -> tuple[Pool, Pool]:
        n_fold = self._request.n_fold
        if n_fold == 1:
            return self._train, self._validation
        train = self._train.deal(n_fold, set(range(n_fold)) - {fold})
        nobody = Pool(files=(), sizes=(), by_files=True)
        return train, self._train.deal(n_fold, {fold}) if self._request.algo.validates else nobody

    def _generator(self, pool: Pool) -> Callable[[], Any]:
        if pool.by_files and not pool.files:
            return lambda: iter(())
        data = self._request.data.of(pool.files)
        return lambda: dealt(filled(data.generate_data()), pool.deals)


Tasks = FileTasks | GeneratedTasks


def reads_files(data: Data) -> bool:
    """Return True if samples are read from HDF5 files by number, and no generator makes them."""
    return isinstance(data, H5Data) and data.is_plain
