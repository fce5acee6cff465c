"""Workload of a command, opened once for all trials."""

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from nnlo_opt.app.run.options.space_checks import check_training
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.app.run.workload.fold_tasks import Feeding, FoldTasks, model_seed
from nnlo_opt.app.run.workload.inspection import Inspection
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.app.run.workload.run_data import RunData, TrainingData
from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.pulse import PULSE, SLOW
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays
from nnlo_opt.core.block.task import FoldTask, validation_batch
from nnlo_opt.core.comm.messages import Json, StartFold
from nnlo_opt.core.comm.objective_messages import CallObjective
from nnlo_opt.core.comm.run_messages import OpenRun
from nnlo_opt.core.data.ragged import padded
from nnlo_opt.core.models.adapter import EpochCallbacks, FrameworkAdapter, Predictor, figures_over
from nnlo_opt.core.models.layout import FloatVector
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.space.tuples import Tuples
from nnlo_opt.core.training.options import TrainingOptions, model_parameters
from nnlo_opt.core.trials.checkpoint import load_weights
from nnlo_opt.engine.models.builders import TrialDefinition
from nnlo_opt.engine.models.early import without_framework
from nnlo_opt.engine.objective.rank import UserObjective
from nnlo_opt.engine.objective.signature import objective_of

logger = logging.getLogger(__name__)

_WITHOUT = Tuples()
#: names of arrays that an error shows
_SHOWN = 4


class ModuleWorkload:
    """Model and data of this rank, or its objective.

    Args:
        searches: True with a search space (OptimizationDriver); otherwise the model is built unchanged.
        maker: builds the models; None: those of `--model`.
        data: the samples; None: those named by the options or the model module.
        tuples: parameters of the search space with tuples, until a run is opened.
    """

    def __init__(
        self,
        options: Options,
        context: ProcessContext,
        *,
        searches: bool,
        maker: ModelMaker | None = None,
        data: RunData | None = None,
        tuples: Tuples = _WITHOUT,
    ) -> None:
        self.maker = maker or ModelMaker(options, context)
        self.data = data or RunData(options, self.maker)
        #: options of the run
        self.options = options
        self._context = context
        #: False: all trials are parts of one training
        self.searches = searches
        #: most workers of a master
        self.n_workers = 1
        #: True once a task was opened
        self._has_opened = False
        self._tuples = tuples
        #: fingerprints of `TrainingData.made` on the rank that was asked before the run
        self._made: Mapping[str, str] = {}
        #: samples of the tasks; None before the first
        self._tasks: FoldTasks | None = None

    # ------------------------------------------------------------ before a run

    def check(self, space: Space | None) -> Findings | None:
        """Return the findings without importing a framework; None if that is impossible.

        Raises:
            ConfigurationError: as in `inspect`.
        """
        with without_framework() as context:
            findings = self._inspection.look(space) if self.maker.read_early() else None
        self.maker.forget_early(wholly=context.was_needed)
        if context.was_needed:
            self.data, findings = self.data.anew(), None
        return findings

    def inspect(self, space: Space | None) -> Findings:
        """Describe model, search space and data; `space`: from `--search-space`, None to use the module's.

        Raises:
            ConfigurationError: they are invalid, or do not fit together.
        """
        return self._inspection.inspect(space)

    @property
    def _inspection(self) -> Inspection:
        return Inspection(self.options, self.maker, self.data, searches=self.searches, n_workers=self.n_workers)

    def read(self) -> TrialDefinition:
        """Return the definition of the model or the objective; the first call executes the user's module."""
        return self.maker.definition

    def follow(
        self, *, compile: bool, metrics: bool = True, callbacks: bool = True, optimizer: bool = True, n_workers: int = 1
    ) -> None:
        """Use or ignore what models say by `compile`, metrics, and `get_callbacks`; see `core.comm.run_messages`."""
        self.n_workers = n_workers
        self.maker.follows_optimizer = optimizer and self.options.follows_optimizer
        self.maker.follows_compile = compile and self.options.follows_compile
        self.maker.follows_metrics = metrics and self.options.follows_metrics
        self.maker.calls_back = callbacks

    def prepare(self) -> None:
        """Import the framework; an objective needs none."""
        self.maker.prepare()

    # ------------------------------------------------------------ trials

    def open_run(self, run: OpenRun) -> None:
        """From now on build models for the search space of this run, and measure them as it was found."""
        self.maker.merging = run.merging
        self._tuples, self._made = Tuples(run.with_tuples), run.made

    @overload
    def open(self, start: StartFold) -> FoldTask: ...

    @overload
    def open(self, start: CallObjective) -> UserObjective: ...

    def open(self, start: StartFold | CallObjective) -> FoldTask | UserObjective:
        """Return the training of `start`, with model and data, or the function that calls the user's program.

        The first training reads and imports what it needs.
        """
        if isinstance(start, CallObjective):
            return self.open_program(start)
        PULSE.expect(SLOW, "builds the model and reads its samples")
        with self._context.timeline.span("build model, read data", "data", trial=start.trial, fold=start.fold):
            if not self._has_opened:
                self.prepare()
                self._has_opened = True
            # In the journal the parts of a continued training are trials; for the order of batches they are one.
            return self.open_task(start if self.searches else start.replaced(trial=0))

    def close(self) -> None:
        """Release the resources of the last trial: the model of a training."""
        if self._tasks is not None:
            self._tasks.close()
            self.maker.release()

    def open_task(self, start: StartFold) -> FoldTask:
        """Build model and data for `start`; the framework must have been imported."""
        parameters = model_parameters(start.point)
        self.data.use(self._tuples.given(parameters))
        data, given = self.data.training, self.options.data
        if self._tasks is None or self._tasks.source is not data.source:
            self._check_made(data)
            if self._tasks is not None:
                self._tasks.close()
            self._tasks = FoldTasks(
                source=data.source,
                folds=data.folds,
                seed=self.options.seed,
                feeding=Feeding(
                    memory_bytes=given.memory_bytes,
                    n_ahead=given.n_ahead,
                    gathers_ahead=self._context.share.has_spare_core,
                    class_tables=data.class_tables,
                    sample_weights_name=data.weights_name,
                ),
            )
        self._tasks.close()  # stop the last task's thread from reading while a model is built
        options = self.options.training.with_point(start.point)
        adapter = self.build(parameters, options, model_seed(self.options.seed, start))
        steps = self.maker.steps
        options = options.with_steps(steps)
        if steps:
            check_training(options)
        # Each rank of a worker is a worker of its own here.
        options = self.maker.with_own(options, max(1, start.n_workers // self.options.n_processes))
        _check_no_decay(options, [spec.name for spec in adapter.layout.specs])
        return self._tasks.task(start, adapter, options).replaced(steps=steps)

    def _check_made(self, data: TrainingData) -> None:
        """Raise TrialError if a function has made other samples here than on the rank that was asked before the run."""
        if self.data.varies:
            return  # they were made for another point
        for name, fingerprint in self._made.items():
            if data.made.get(name) != fingerprint:
                raise TrialError(
                    f"`{name}` of {self.maker.definition.source} must return the same samples on every rank. Received: "
                    "others here than on the first one. Seed all random draws, shuffles and splits."
                )

    def open_program(self, start: CallObjective) -> UserObjective:
        """Return the function that calls the user's program; ConfigurationError if it cannot be called."""
        definition = self.read()
        return objective_of(definition.objective, str(definition.source), start.names)

    def build(self, parameters: dict[str, Any], options: TrainingOptions, seed: int) -> FrameworkAdapter:
        """Return a model with fresh weights, which depend only on the seed; TrialError if it cannot be built."""
        given = self._tuples.given(parameters)
        self.data.use(given)
        return self.maker.build(given, options, seed, self.data)

    def callbacks(self, task: FoldTask) -> EpochCallbacks | None:
        """Return new callbacks of the model module for a training; None if it has none."""
        adapter = cast(FrameworkAdapter, task.adapter)
        return self.maker.callbacks(adapter.figures, task.options, validates=task.n_validation > 0)

    def judge(self, fold: dict[str, Json], task: FoldTask) -> object:
        """Return the figure of merit of a fold; only worker 1 loads the module of its function."""
        figure = self.maker.figure
        assert figure is not None
        if isinstance(point := fold.get("point"), dict):
            fold = fold | {"point": self._tuples.given(point)}
        if not figure.takes_model:
            return figure.function(fold)
        model = cast(Predictor, task.adapter).synced_model()
        return figure.function(fold, model, task.validation_batches(all_workers=True))

    # ------------------------------------------------------------ trained models

    def export(
        self, point: Point, weights_directory: SafePath, path: Path, *, measure: bool = False
    ) -> tuple[Path, dict[str, float]]:
        """Save the model of `point` with the weights of a finished fold to `path`, with the framework's suffix."""
        adapter = self.trained_model(point, *load_weights(weights_directory), seed=0)
        path = path.with_suffix(self.maker.framework.SUFFIX)
        adapter.save(path)
        metrics = figures_over(adapter, self._test_batches) if measure and self.data.test is not None else {}
        self.maker.release()
        for name in [name for name, value in metrics.items() if not math.isfinite(value)]:
            logger.warning("%s is %s on the test samples", name, metrics.pop(name))
        return path, metrics

    def _test_batches(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Yield the test samples."""
        assert self.data.test is not None
        source, rows = self.data.test
        for part in np.array_split(rows, -(-len(rows) // validation_batch(self.options.training))):
            x, y = source.read(part)
            yield padded(x), padded(y)

    def trained_model(self, point: Point, weights: FloatVector, state: FloatVector, seed: int) -> FrameworkAdapter:
        """Return the model of `point` with trained weights (n_weights,) and float model state (n_state,)."""
        adapter = self.build(model_parameters(point), self.options.training.with_point(point), seed)
        both = np.concatenate([weights, state])
        adapter.write_weights(both[: adapter.n_weights])
        adapter.write_state(both[adapter.n_weights :])
        return adapter


def _check_no_decay(options: TrainingOptions, arrays: Sequence[str]) -> None:
    """Raise TrialError if `--no-decay` names none of the `arrays` of a model."""
    if options.no_decay is not None and not any(re.search(options.no_decay, name) for name in arrays):
        some = ", ".join(arrays[:_SHOWN]) + ", …" * (len(arrays) > _SHOWN)
        raise TrialError(
            f"`{spelled('no_decay')}` must match the name of an array of the model: {some}. Received: "
            f"{options.no_decay!r}."
        )
