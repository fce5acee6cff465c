"""Workload of a manager on one rank, from the user's objects.

Plain HDF5 files are read as in `TrainingDriver`; batches of a generator are distributed here.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from nnlo_opt.ancestors.manager.data import Data, H5Data
from nnlo_opt.ancestors.manager.generated import GeneratedStream, Pool, as_samples, count_batches, dealt, filled
from nnlo_opt.ancestors.manager.settings import Settings
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.workload.fold_tasks import model_seed
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.app.run.workload.run_data import RunData, TrainingData
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import ConfigurationError, NnloError, TrialError
from nnlo_opt.core.base.trees import Arrays
from nnlo_opt.core.base.user_code import describe
from nnlo_opt.core.block.task import FoldTask
from nnlo_opt.core.comm.messages import StartFold
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.data.batches import Samples
from nnlo_opt.core.data.folds import Fold, check_workers
from nnlo_opt.core.data.source import DataInfo
from nnlo_opt.core.models.adapter import FrameworkAdapter
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.engine.comm.rank_group import RankGroup
from nnlo_opt.engine.models.builders import TrialDefinition
from nnlo_opt.engine.models.framework import Framework, framework_for, imported_in

#: other names of frameworks that a builder may return
_ALIASES: dict[str | None, str] = {"tensorflow": "keras", "tf": "keras", "pytorch": "torch"}
_NOTHING = Pool(files=(), sizes=(), by_files=True)


def workload_of(
    settings: Settings, options: Options, topology: Topology, group: RankGroup, context: ProcessContext
) -> "ManagerWorkload":
    """Inspect the data and return the workload of this rank. Collective: every rank of `group` must call it."""
    ranks_of_teams = [team.trainer_ranks for team in topology.teams]
    trainers = sorted(rank for ranks in ranks_of_teams for rank in ranks)
    n_shares = max(map(len, ranks_of_teams))
    data = settings.data
    if isinstance(data, H5Data) and data.is_plain:
        files = [*settings.train_list, *settings.files_to_validate]
        group.attempt(lambda: data.check(files) if group.rank == 0 else None)
        workload = ManagerWorkload(settings, options, context)
        samples = workload.data
        group.attempt(lambda: check_workers(samples.training.n_train, n_shares) if group.rank in trainers else None)
        if settings.algo.validate_every:
            n_train = samples.training.n_train if group.rank == trainers[0] else None
            options = _counting_validations(settings, options, group.share_json(n_train, trainers[0]))
            return ManagerWorkload(settings, options, context)
        return workload
    pool, validation = _cut_pools(settings, n_shares, by_batches=topology.teams[0].every_rank_trains)
    train = replace(pool, sizes=_counted(settings.data, pool, group, trainers))
    group.attempt(lambda: _check_pool(train, n_shares, settings.n_fold) if group.rank == 0 else None)
    options = _counting_validations(settings, options, train.n_samples)
    return GeneratedWorkload(settings, options, context, train, validation)


def _counting_validations(settings: Settings, options: Options, n_train: int) -> Options:
    """Return the options with epochs counted in validations, if these do not follow every epoch."""
    training, n_folds = options.training, options.plan.n_fold
    n_between = settings.algo.samples_between_validations(n_train, training.batch)
    if n_between == n_train or training.waits or n_folds > 1:
        return options
    n_validations = -(-training.epochs * n_train // n_between)
    return replace(options, training=replace(training, epochs=n_validations))


# ---------------------------------------------------------------- the model


def definition_of(settings: Settings) -> TrialDefinition:
    """Return the definition of the model of a manager's builder, with the loss of its algorithm."""
    builder, loss = settings.model_builder, settings.algo.loss
    name = type(builder).__name__

    def build_model() -> Any:
        try:
            return builder.build_model()
        except (NnloError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise TrialError(f"`build_model` of {name} failed, {describe(error)}.") from error

    build_model.trains_itself = getattr(builder, "trains_itself", False)  # type: ignore[attr-defined]
    return TrialDefinition(
        name=name,
        kind="model",
        source=Path(name),
        functions={"get_model": build_model} if loss is None else {"get_model": build_model, "get_loss": lambda: loss},
        custom_objects=dict(settings.custom_objects or {}) | getattr(builder, "custom_objects", {}),
        function="build_model",
    )


def _framework_of(builder: Any) -> Framework:
    """Return the framework that a builder declares, or else the one that its class or script imports."""
    asked, source = builder.get_backend_name(), Path()
    name = _ALIASES.get(asked, asked)
    with suppress(TypeError, OSError):  # if it was typed into a console
        source = Path(inspect.getsourcefile(type(builder)) or "")
        # A script may contain builders of several frameworks.
        name = name or imported_in(dedent(inspect.getsource(type(builder))))
    return framework_for(source, name)


class ManagerWorkload(ModuleWorkload):
    """Workload of a manager, whose samples are read from HDF5 files by number.

    If validations do not follow every epoch, the epochs of its options are validations.
    """

    def __init__(self, settings: Settings, options: Options, context: ProcessContext) -> None:
        builder = settings.model_builder
        # The algorithm of a manager chooses loss and optimizer.
        options = replace(options, follows_compile=False)
        maker = ModelMaker(options, context, definition_of(settings), partial(_framework_of, builder))
        super().__init__(options, context, searches=False, maker=maker, data=ManagerData(settings, options, maker))
        self._settings = settings

    def open_task(self, start: StartFold) -> FoldTask:
        """Build model and data for `start`; the framework is imported."""
        return self._cut(super().open_task(start))

    def _cut(self, task: FoldTask) -> FoldTask:
        """Return a task whose epochs end at each validation."""
        if self.options.training.epochs == self._settings.epochs:
            return task
        n_between = self._settings.algo.samples_between_validations(task.n_train, task.options.batch)
        return task.replaced(n_train=n_between)


class ManagerData(RunData):
    """Samples of the HDF5 files of a manager."""

    def __init__(self, settings: Settings, options: Options, maker: ModelMaker) -> None:
        super().__init__(options, maker)
        self._settings = settings

    def read(self) -> TrainingData:
        settings = self._settings
        assert isinstance(settings.data, H5Data)
        source = settings.data.source([*settings.train_list, *settings.files_to_validate], self.finite)
        n_train = sum(file.n_samples for file in source.info.files[: len(settings.train_list)])
        folds = self.folds(source, n_train)
        if not settings.algo.validates:
            folds = [Fold(fold.train, fold.validation[:0]) for fold in folds]
        return TrainingData(source=source, folds=folds, n_train=n_train)


# ---------------------------------------------------------------- generators


class GeneratedWorkload(ManagerWorkload):
    """Workload of a manager whose samples come from a user's generator.

    Args:
        train: units to train on, counted; with folds, all units.
        validation: units to validate on; with folds, none.
    """

    def __init__(
        self, settings: Settings, options: Options, context: ProcessContext, train: Pool, validation: Pool
    ) -> None:
        super().__init__(settings, options, context)
        self._train = train
        self._validation = validation
        #: batches of the current task; None without one
        self._stream: GeneratedStream | None = None
        #: samples for a model without a task; None before first use
        self._seen: Samples | None = None

    def build(self, parameters: dict[str, Any], options: TrainingOptions, seed: int) -> FrameworkAdapter:
        """Return the model for the first batch of the generator."""
        return self.maker.build(parameters, options, seed, self)

    def open_task(self, start: StartFold) -> FoldTask:
        """Start the generator of this worker's share, and build the model for its first batch."""
        train, validation = self._of_fold(start.fold)
        mine = train.deal(start.n_workers, {start.worker - 1})
        if mine.is_empty or not mine.n_samples:
            raise TrialError(
                f"Every worker must have at least one batch. Received: none for worker {start.worker} of "
                f"{start.n_workers}. Use fewer ranks, or more data."
            )
        stream = self._stream = GeneratedStream(self._generator(mine), mine.n_samples)
        stream.peek()  # before random numbers are seeded for the model
        options = self.options.training
        adapter = self.build({}, options, model_seed(self.options.seed, start))
        validates = validation if validation.is_empty else validation.deal(start.n_workers, {start.worker - 1})
        generate = self._generator(validates)
        task = FoldTask(
            adapter=adapter,
            stream=stream,
            validation=lambda: map(as_samples, generate()),
            options=options.for_updates() if adapter.trains_itself else options,
            n_train=train.n_samples,
            n_shard=mine.n_samples,
            n_validation=0 if validation.is_empty else 1,
            steps_a_pass=None if train.by_files else -(-len(train.sizes or ()) // start.n_workers),
        )
        return self._cut(task)

    def close(self) -> None:
        """Release the model, and end the generator."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self.maker.release()

    @property
    def info(self) -> DataInfo:
        """Description of the samples."""
        first = self._first()
        return DataInfo.of("generated", first.x, first.y)

    @property
    def some_labels(self) -> Arrays:
        """Some labels, to infer a loss from."""
        return self._first().y

    def _first(self) -> Samples:
        if self._stream is not None:
            return self._stream.peek()
        if self._seen is None:
            self._seen = GeneratedStream(self._generator(self._train), self._train.n_samples).peek()
        return self._seen

    def _of_fold(self, fold: int) -> tuple[Pool, Pool]:
        n_fold = self._settings.n_fold
        if n_fold == 1:
            return self._train, self._validation
        train = self._train.deal(n_fold, set(range(n_fold)) - {fold})
        return train, self._train.deal(n_fold, {fold}) if self._settings.algo.validates else _NOTHING

    def _generator(self, pool: Pool) -> Callable[[], Any]:
        if pool.by_files and not pool.files:
            return lambda: iter(())
        data = self._settings.data.of(pool.files)
        return lambda: dealt(filled(data.generate_data()), pool.deals)


def _cut_pools(settings: Settings, n_shares: int, *, by_batches: bool) -> tuple[Pool, Pool]:
    """Return the pools to train on and to validate on, not yet counted; with folds, all units and none.

    Args:
        n_shares: number of ranks that share the training samples.
        by_batches: True to share batches: ranks average batch by batch, and need equal numbers of batches.
    """
    lists = settings.train_list, settings.files_to_validate
    if settings.n_fold == 1:
        train, validation = (
            Pool(files=files, sizes=None, by_files=len(files) >= n_shares and not by_batches) for files in lists
        )
        return train, validation if validation.files else _NOTHING
    files = (*lists[0], *lists[1])
    n_in_fold = -(-len(files) // settings.n_fold)
    enough = len(files) >= settings.n_fold and len(files) - n_in_fold >= n_shares
    return Pool(files=files, sizes=None, by_files=enough and not by_batches), _NOTHING


def _counted(data: Data, pool: Pool, group: RankGroup, trainers: Sequence[int]) -> tuple[int, ...]:
    """Return the samples of every unit of a pool: all `trainers` count files; the first one counts batches."""
    if not pool.by_files:

        def count() -> list[int]:
            everything = data.of(pool.files)
            return count_batches(everything.generate_data, everything.max_batches_per_epoch)

        sizes = group.attempt(lambda: count() if group.rank == trainers[0] else None)
        return tuple(group.share_json(sizes, trainers[0]))
    mine = range(trainers.index(group.rank), len(pool.files), len(trainers)) if group.rank in trainers else ()
    counted = np.zeros(len(pool.files), np.int64)
    counted[[*mine]] = group.attempt(lambda: [data.of([pool.files[number]]).count_data() for number in mine])
    return tuple(group.sum(counted).tolist())


def _check_pool(train: Pool, n_shares: int, n_fold: int) -> None:
    """Raise ConfigurationError if a worker would have nothing to train on."""
    for fold in range(n_fold):
        pool = train if n_fold == 1 else train.deal(n_fold, set(range(n_fold)) - {fold})
        if not pool.n_samples or not all(pool.deal(n_shares, {share}).n_samples for share in range(n_shares)):
            unit = "file with samples" if train.by_files else "batch"
            raise ConfigurationError(
                f"Every worker must have at least one {unit}. Received: {len(pool.sizes or ())} for {n_shares} "
                f"workers{' in a fold' * (n_fold > 1)}. Use fewer ranks, or more data."
            )
