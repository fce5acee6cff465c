"""Workload of a command, opened once for all trials."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.block.task import Feeding, FoldTask, FoldTaskFactory, TaskFactory, TaskSetup, validation_batch
from nnlo_opt.comm.messages import Json
from nnlo_opt.data.cache import FileCache
from nnlo_opt.data.folds import Fold, first_classes, make_folds, single_fold
from nnlo_opt.data.lists import read_list, verify
from nnlo_opt.data.ragged import padded
from nnlo_opt.data.source import DataInfo, DataSource, Indices
from nnlo_opt.data.weights import ClassTable, check_sample_weights, class_tables
from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.models.adapter import Metrics
from nnlo_opt.models.builders import Files, ModelDefinition, model_file, names_objective, open_model
from nnlo_opt.models.composite import CompositeAdapter, CompositeModel
from nnlo_opt.models.early import read_early, without_framework
from nnlo_opt.models.framework import Framework, FrameworkAdapter, framework_for, framework_of
from nnlo_opt.models.losses import Labels, LossTerm, figures_of, losses_in_words, make_terms, split_losses
from nnlo_opt.models.user_figure import UserFigure, load_figure
from nnlo_opt.objective.rank import Objective
from nnlo_opt.objective.signature import objective_of
from nnlo_opt.run.checks import check_space, check_training
from nnlo_opt.run.context import ProcessContext
from nnlo_opt.run.findings import DataFindings, Findings
from nnlo_opt.run.option_table import FEATURES, LABELS
from nnlo_opt.run.options import DataOptions, Options, check_objectives
from nnlo_opt.runtime.pulse import PULSE
from nnlo_opt.safe_path import SafePath
from nnlo_opt.space.constraint import CONSTRAINT_NAME
from nnlo_opt.space.loading import finish_space, space_from_dimensions
from nnlo_opt.space.space import Point, Space
from nnlo_opt.training.options import TrainingOptions, model_parameters, option_name
from nnlo_opt.training.stopping import check_metric
from nnlo_opt.trees import Arrays, leaves
from nnlo_opt.trials.checkpoint import load_weights
from nnlo_opt.trials.failures import cause_of
from nnlo_opt.trials.figure import figure_name
from nnlo_opt.trials.objectives import FIGURE

logger = logging.getLogger(__name__)

#: labels looked at to infer a loss
_N_HINT = 1000
#: points drawn to find one that is new
_DRAWS_A_POINT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Samples of a training in their folds."""

    source: DataSource
    folds: list[Fold]
    n_train: int
    #: files with samples that a fold trains on
    trained: tuple[Path, ...] = ()
    #: of features and labels, for the findings
    names: tuple[str, str] = ("", "")
    #: weights of the classes, for every fold; None: none were asked for
    class_tables: list[ClassTable] | None = None


class ModuleWorkload:
    """Model and data of this rank, or its objective; a `Workload` of its server."""

    def __init__(
        self, options: Options, context: ProcessContext, *, searches: bool, given: ModelDefinition | None = None
    ) -> None:
        """`searches`: there is a search space (OptimizationDriver); else the model is built as it is.

        `given`: the model in place of what `--model` names.
        """
        self._given = given
        # The user's module may change the working folder.
        data, start = options.data, options.run.start
        paths = {name: start / path for name in ("train_data", "val_data", "cache") if (path := getattr(data, name))}
        self._options = replace(options, data=replace(data, **paths))
        self._context = context
        self._searches = searches
        self._adapter: Any = None
        #: True once the imported objects are hidden from the garbage collector
        self._froze = False
        #: True if this rank looks at the data files before all other ranks
        self._looks_first = False

    @cached_property
    def definition(self) -> ModelDefinition:
        """Definition of the model that `--model` names."""
        asked = self._options
        return self._given or open_model(asked.model, asked.model_sha256, fresh=asked.fresh_weights)

    @cached_property
    def figure(self) -> UserFigure | None:
        """Figure of merit that `--figure-of-merit` names; None without one."""
        spec, definition = self._options.comparison.function, self.definition
        if spec and ".py:" in spec:
            spec = str(self._options.run.start / spec)
        return None if spec is None else load_figure(spec, definition.functions, definition.source)

    # ------------------------------------------------------------ what the server asks for

    def check(self, space: Space | None) -> Findings | None:
        """Return the findings that need no framework, before one is imported; None if they are unknown.

        Raises:
            ConfigurationError: as `inspect`.
        """
        definition, findings, asked = None, None, self._options
        with without_framework() as was_wanted:
            if definition := self._given or read_early(asked.model, asked.model_sha256, fresh=asked.fresh_weights):
                self.definition = definition
                findings = self._look(space)
        if was_wanted() or not definition or not definition.is_whole:
            for name in ("definition", "data", "_test") if was_wanted() else ("definition",):
                vars(self).pop(name, None)
        return None if was_wanted() else findings

    def look_first(self) -> None:
        """Have a process read the data files before this one, as damage may crash it."""
        self._looks_first = True

    def prepare(self) -> None:
        """Import the framework, unless the model is an objective, which needs none."""
        given = self._given
        is_objective = names_objective(self._options.model) if given is None else given.kind == "objective"
        if not is_objective:
            # Before the user's module, which may import it too and does not know about threads and noise.
            self._import(self._framework)

    def inspect(self, space: Space | None) -> Findings:
        """Describe model, search space and data; `space` comes from `--search-space`; without it the module has one.

        Raises:
            ConfigurationError: they are not what they should be, or do not fit together.
        """
        findings = self._look(space)
        if findings.is_objective:
            return findings
        figure, loss, remarks = self._inspect_model(findings.space)
        function = self.figure
        return replace(
            findings,
            figure=figure,
            figure_function=None if function is None else {"name": function.name, "sha256": function.sha256},
            loss=loss,
            remarks=(*findings.remarks, *remarks),
        )

    def _look(self, space: Space | None) -> Findings:
        """Return the findings that need no framework; as `inspect`."""
        definition = self.definition
        space = self._space(space)
        findings = Findings(
            model=definition.name,
            kind=definition.kind,
            source=str(definition.source.resolve()),
            sha256=definition.sha256,
            function=definition.function,
            space=space,
            trains_itself=definition.trains_itself,
        )
        if definition.kind == "objective":
            return replace(findings, figure=self._inspect_objective(space))
        if space is None:
            definition.check_parameters(self._options.point)
        else:
            check_space(space, definition, self._options)
        self.look_first()
        verified, data = self._verified, self.data
        info = data.source.info
        if self._searches and self._options.plan.n_fold == 1 and not len(data.folds[0].validation):
            raise ConfigurationError(
                "A search needs validation data to compare trials. Received: none; give `--val-data LIST`, or "
                "`--n-fold` of at least 2."
            )
        test = () if self._test is None else (f"Test data for the saved model: {len(self._test[1]):,} samples.",)
        return replace(
            findings,
            data=DataFindings(
                files=tuple((str(file.path.resolve()), file.n_samples) for file in info.files),
                n_train=data.n_train,
                n_validation=info.n_samples - data.n_train,
            ),
            features_name=data.names[0],
            labels_name=data.names[1],
            n_train_smallest=min(len(fold.train) for fold in data.folds),
            remarks=(*self._unnamed_data(), *verified, *test),
        )

    def _unnamed_data(self) -> list[str]:
        """Return sentences about the data that the model module names and the command line does not."""
        given, definition, here = self._options.data, self.definition, Path.cwd()
        said = []
        parts = ("Training", given.train_data, "get_train"), ("Validation", given.val_data, "get_val")
        for what, asked, name in parts:
            if asked is None and (files := definition.files(name)):
                place = files if isinstance(files, Path) else files[0].parent
                shown = place.relative_to(here) if place.is_relative_to(here) else place
                said.append(f"{what} data: `{shown}`, from `{name}` of `{self._options.model}`.")
        return said

    def export(
        self, point: Point, weights_directory: SafePath, path: Path, *, measure: bool = False
    ) -> tuple[Path, dict[str, float]]:
        """Save the model of `point` with the weights of a finished fold as `path`, with the ending of its framework."""
        adapter = self.trained_model(point, *load_weights(weights_directory), seed=0)
        path = path.with_suffix(self._framework.SUFFIX)
        adapter.save(path)
        metrics = Metrics()
        if measure and self._test is not None:
            source, rows = self._test
            for part in np.array_split(rows, -(-len(rows) // validation_batch(self._options.training))):
                PULSE.ticks += 1
                x, y = source.read(part)
                metrics = metrics.merge(adapter.evaluate(padded(x), padded(y)))
        self._release()
        return path, metrics.means()

    def trained_model(
        self, point: Point, weights: NDArray[np.float32], state: NDArray[np.float32], seed: int
    ) -> FrameworkAdapter:
        """Return the model of `point` with trained weights (n_weights,) and float model state (n_state,)."""
        adapter = self._build(model_parameters(point), self._options.training.with_point(point), seed)
        both = np.concatenate([weights, state])
        adapter.write_weights(both[: adapter.n_weights])
        adapter.write_state(both[adapter.n_weights :])
        return adapter

    def tasks(self) -> TaskFactory:
        """Return the maker of this rank's tasks."""
        data, given = self.data, self._options.data
        setup = TaskSetup(
            build=self._build,
            release=self._release,
            source=data.source,
            folds=data.folds,
            options=self._options.training,
            seed=self._options.seed,
            feeding=Feeding(
                memory_bytes=given.memory_bytes,
                n_ahead=given.n_ahead,
                gathers_ahead=self._context.has_spare_core,
                class_tables=data.class_tables,
                sample_weights_name=given.sample_weights_name,
            ),
        )
        return FoldTaskFactory(setup)

    def judge(self, fold: dict[str, Json], task: FoldTask) -> object:
        """Return the figure of merit of a fold; the module of its function is loaded on worker 1 alone."""
        assert self.figure is not None
        if not self.figure.takes_model:
            return self.figure.function(fold)
        return self.figure.function(fold, self._adapter.synced_model(), task.validation_batches(all_workers=True))

    @property
    def objective(self) -> Objective:
        """The function of an objective module, as it is called; ConfigurationError if it cannot be."""
        return objective_of(self.definition.objective, str(self.definition.source))

    # ------------------------------------------------------------ the space

    def _space(self, given: Space | None) -> Space | None:
        if not self._searches:
            return None
        if given is not None:
            return given
        definition, fixed = self.definition, self._options.fix
        function = "objective" if definition.kind == "objective" else "get_model"
        if definition.parameter_range is None:
            raise ConfigurationError(
                f"A search needs a search space. Received: none in `{definition.source}`; give "
                f"`--search-space MODULE`, or set `{function}.parameter_range` in the model module."
            )
        space = space_from_dimensions(definition.parameter_range, f"{function}.parameter_range of {definition.source}")
        feasible = definition.functions.get(CONSTRAINT_NAME)
        return finish_space(space, feasible, str(definition.source.resolve()), fixed)

    # ------------------------------------------------------------ the model

    def _inspect_objective(self, space: Space | None) -> str:
        """Return the name of the figure of merit; ConfigurationError for options that an objective has none of."""
        objective_of(self.definition.objective, str(self.definition.source))
        options = self._options
        if options.plan.n_fold > 1:
            raise ConfigurationError(
                f"`--n-fold` must be 1 with an objective module, which has no folds. Received: {options.plan.n_fold}."
            )
        others = ("backend", "keras_backend", "n_processes", "n_masters")
        ignored = (
            _first_change(options.training.to_json(), TrainingOptions().to_json())
            or _first_change(asdict(options.data), asdict(DataOptions()))
            or next((option_name(name) for name in others if getattr(options, name) not in (None, 1)), "")
        )
        if ignored:
            raise ConfigurationError(
                f"An objective module trains by itself: options of training and data do not reach it. Received: "
                f"`{ignored}`; leave it out."
            )
        if space is None:
            raise ConfigurationError(
                "An objective module is for a search. Received: one in TrainingDriver; use OptimizationDriver."
            )
        if space.train_names:
            raise ConfigurationError(
                "Parameters that begin with `train.` set training options, and an objective has none. "
                f"Received: {space.train_names[0]!r}."
            )
        comparison = options.comparison
        if comparison.function is not None or comparison.epoch != "last":
            option = "--objective-epoch" if comparison.function is None else "--figure-of-merit"
            raise ConfigurationError(
                f"`{option}` is for models. Received: an objective module, whose figure of merit is what it returns; "
                "leave it out."
            )
        name = comparison.objectives[0].name
        return "value" if name == FIGURE else name

    def _inspect_model(self, space: Space | None) -> tuple[str, str | None, tuple[str, ...]]:
        """Return the name of the figure of merit, the losses in words, and sentences for the user."""
        point = space.middle() if space else self._options.point
        options = self._options.training.with_point(point)
        early, target = check_training(options)
        figures: tuple[str, ...] | None = None
        loss_name = options.loss
        try:
            model = self._new_model(model_parameters(point), seed=0)
        except TrialError as error:
            self._refuse_if_alike(error, point, space)
            remarks: tuple[str, ...] = (f"The model could not be built at the middle of the search space: {error}",)
        else:
            if isinstance(model, CompositeModel):
                composite, remarks = self._composite(model, options, seed=0)
                figures, loss_name = composite.figures, composite.losses_text
            else:
                terms, remarks = self._checked_loss(options, model)
                figures, loss_name = figures_of(terms), losses_in_words(terms)
        figure = "1 - val_acc, else val_loss"
        if figures is not None:
            validates = any(len(fold.validation) for fold in self.data.folds)
            known = (*figures, *(f"val_{name}" for name in figures if validates))
            if early:
                check_metric(early.metric, known, "--early-stopping")
            if target:
                check_metric(target.metric, known, "--target-metric")
            check_objectives(self._options.comparison, known)
            figure = figure_name(known)
        first, function = self._options.comparison.objectives[0], self.figure
        if function is not None and first.name == FIGURE:
            figure = function.name
        elif first.name != FIGURE:
            figure = first.name
        self._release()
        return figure, loss_name, remarks

    def _refuse_if_alike(self, error: TrialError, point: Point, space: Space | None) -> None:
        """Raise ConfigurationError if the model fails at `--max-failures` points as at `point`, or at all if fewer."""
        if space is None:
            raise ConfigurationError(str(error)) from error
        most, rng = self._options.plan.budget.n_alike_failures or 0, np.random.default_rng(self._options.seed)
        drawn = [point, *(space.sample(rng) for _ in range(_DRAWS_A_POINT * most))]
        points = [*{str(model_parameters(other)): other for other in drawn}.values()][:most]
        for other in points[1:]:
            try:
                self._new_model(model_parameters(other), seed=0)
            except TrialError as failed:
                if cause_of(str(failed), other) == cause_of(str(error), point):
                    continue
            return
        if points:
            raise ConfigurationError(
                f"A model must be built at some point of its search space. Received: {error} So it failed at "
                f"{len(points)} point{'s' * (len(points) > 1)}. Correct it; `--max-failures 0` searches all the same."
            ) from error

    def _checked_loss(self, options: TrainingOptions, model: Any) -> tuple[tuple[LossTerm, ...], tuple[str, ...]]:
        """Return the losses, and sentences about inferred ones; ConfigurationError if model, data, losses disagree."""
        info, some_labels = self._sample()
        outputs = self._framework.describe_outputs(model, info.feature_shape)
        request = split_losses(options.loss) if options.loss else self.definition.loss()
        shapes, dtypes = [*leaves(info.label_shape)], [*leaves(info.label_dtype)]
        values = [None] * len(shapes) if request else [*leaves(some_labels())]
        labels = [Labels(*parts) for parts in zip(shapes, dtypes, values, strict=True)]
        return make_terms(request, self.definition.loss_weights(), outputs, labels, self._framework.RULES)

    def _sample(self) -> tuple[DataInfo, Callable[[], Arrays]]:
        """Return the description of the samples, and a function that returns some labels."""
        return self.data.source.info, lambda: self._label_hint

    @cached_property
    def _label_hint(self) -> Arrays:
        source = self.data.source
        return padded(source.read_labels(np.arange(min(_N_HINT, source.info.n_samples))))

    def _build(self, parameters: dict[str, Any], options: TrainingOptions, seed: int) -> FrameworkAdapter:
        model = self._new_model(parameters, seed)
        try:
            if isinstance(model, CompositeModel):
                return self._composite(model, options, seed)[0]
            terms, remarks = self._checked_loss(options, model)
        except ConfigurationError as error:
            # The middle of the search space was sound: it is this point that is not.
            raise TrialError(str(error)) from error
        if self._given is not None:  # a command prints them
            for remark in remarks:
                logger.info("%s", remark)
        self._adapter = self._framework.adapter(model, terms, jit_compile=self.definition.jit_compile)
        return self._adapter

    def _composite(
        self, model: CompositeModel, options: TrainingOptions, seed: int
    ) -> tuple[CompositeAdapter, tuple[str, ...]]:
        """Return the adapter of a composite, and sentences for the user about options that have no effect."""
        definition, data = self.definition, self._options.data
        if not definition.trains_itself:
            raise ConfigurationError(
                f"A composite model must be announced. Received: one of {definition.source}, whose `get_model` is not. "
                "Write `get_model.trains_itself = True` below `get_model`."
            )
        if data.class_weights is not None or data.sample_weights_name is not None:
            raise ConfigurationError(
                "A composite model takes no weights of classes or samples. Received: some; leave `--class-weights` "
                "and `--sample-weights-name` out."
            )
        policy = getattr(definition.functions["get_model"], "dtype_policy", None)
        with self._framework.building(definition.custom_objects, policy):
            self._adapter = CompositeAdapter(model, self._sample()[0].feature_shape, options, seed)
        ignored = ("`--loss` has no effect: the models of a composite have losses of their own.",)
        return self._adapter, ignored if options.loss else ()

    def _new_model(self, parameters: dict[str, Any], seed: int) -> Any:
        self._framework.set_seed(seed)
        model = self.definition.build(parameters, self._framework)
        owner = framework_of(model)
        if owner is not None and owner is not self._framework:
            if self._options.backend is not None:
                raise ConfigurationError(
                    f"`get_model` must return {self._framework.NOUN} with `--backend {self._options.backend}`. "
                    f"Received: {owner.NOUN}; leave `--backend` out."
                )
            # The text of the module did not tell.
            self._import(owner)
            self._framework = owner
            return self._new_model(parameters, seed)
        return model

    @cached_property
    def _framework(self) -> Framework:
        """Framework of the model; until the model is built, the one that the text of its module imports."""
        source = model_file(self._options.model) if self._given is None else self._given.source
        return framework_for(source, self._options.backend)

    def _import(self, framework: Framework) -> None:
        framework.import_framework(
            self._context.n_threads,
            quiet=self._options.log_level not in ("trace", "debug"),
            backend=self._options.keras_backend,
        )

    def _release(self) -> None:
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.release()
        else:
            self._framework.forget_models()
        if not self._froze and self._given is None:
            # What is left is the framework: looking through its objects again would take 0.2 s of every trial.
            gc.freeze()
            self._froze = True

    # ------------------------------------------------------------ the data

    @cached_property
    def data(self) -> TrainingData:
        """Samples of this rank; the headers of their files are read when this is first asked for."""
        given, definition = self._options.data, self.definition
        train = _paths(given.train_data or definition.files("get_train"))
        validation = _paths(given.val_data or definition.files("get_val"))
        if not train:
            raise ConfigurationError(
                "Training needs data. Received: none; give `--train-data LIST`, or define `get_train()` in the model "
                "module."
            )
        if given.pooled:
            train, validation = (*train, *validation), ()
        source, names = self._source([*train, *validation])
        n_train = sum(file.n_samples for file in source.info.files[: len(train)])
        if n_train == 0:
            raise ConfigurationError("Training needs samples. Received: files of training data that hold none.")
        folds = self._folds(source, n_train)
        tables = None
        if given.class_weights is not None:
            tables = class_tables(given.class_weights, source.read_labels(), [fold.train for fold in folds])
        if given.sample_weights_name is not None:
            trains = np.unique(np.concatenate([fold.train for fold in folds]))
            check_sample_weights(given.sample_weights_name, source.read_column(given.sample_weights_name, trains))
        trained = (*train, *validation) if len(folds) > 1 else train
        return TrainingData(
            source=source, folds=folds, n_train=n_train, trained=trained, names=names, class_tables=tables
        )

    @cached_property
    def _test(self) -> tuple[DataSource, Indices] | None:
        """Samples on which the saved model is measured, with their numbers in their source; None without test data."""
        files = _paths(self._options.data.test_data)
        if not files:
            return None
        trained = {path.resolve() for path in self.data.trained}
        if seen := [path for path in files if path.resolve() in trained]:
            raise ConfigurationError(
                f"`--test-data` must name samples that are not trained on. Received: {seen[0]}, which is trained on. "
                "Name other files, or train on fewer by `--train-data` and `--val-data`."
            )
        # Beside a file of training samples, with which those of the test have to agree.
        known = self.data.source.info.files[0]
        source, _ = self._source([known.path, *files])
        return source, np.arange(known.n_samples, source.info.n_samples)

    @property
    def finite(self) -> tuple[str, ...]:
        """Names of what must be finite; a loss of the user's may be made for labels that are not."""
        return ("features",) if "get_loss" in self.definition.functions else ("features", "labels")

    def _source(self, files: Sequence[Path]) -> tuple[DataSource, tuple[str, str]]:
        """Return the samples of data files, and the names of their features and labels."""
        from nnlo_opt.data.hdf5 import Hdf5Source
        from nnlo_opt.data.hdf5_check import check_files

        given, definition, external = self._options.data, self.definition, self._options.data.external_data
        features, features_adaptor = definition.dataset("get_features") or (FEATURES, None)
        labels, labels_adaptor = definition.dataset("get_labels") or (LABELS, None)
        names = given.features_name or features, given.labels_name or labels
        adaptors = features_adaptor, labels_adaptor
        if self._looks_first:
            # A process reads the files first, as damage may crash it.
            weights = [path for path in (definition.beside,) if path is not None and path.suffix != ".py"]
            finite = [role for role, adaptor in zip(self.finite, adaptors, strict=False) if adaptor is None]
            columns = given.fold_by, given.sample_weights_name
            check_files(files, [*names, *columns], weights, external=external, finite=finite)
        # The cache is kept by the source, and closed at the end of the process; a copy would lead to no other file.
        locate = None if given.cache is None or external else FileCache(given.cache, given.copy_command).locate
        return Hdf5Source([*files], *names, adaptors, locate, external=external, finite=self.finite), names

    @cached_property
    def _verified(self) -> tuple[str, ...]:
        """Sentences for the user about the data files, which are compared with their checksums if that is asked for."""
        given = self._options.data
        if not given.verify_data:
            return ()
        read = self.definition.files
        asked = given.train_data or read("get_train"), given.val_data or read("get_val"), given.test_data
        lists = [files for files in asked if files is not None]
        for files in lists:
            if not isinstance(files, Path):
                raise ConfigurationError(
                    "`--verify-data` compares the files of lists, which have their checksums beside them. Received: "
                    f"data that `{self.definition.source}` names file by file; give `--train-data` and `--val-data`."
                )
        n_files = sum(verify(files) for files in lists if isinstance(files, Path))
        return (f"Data verified: {n_files} files match their checksums.",)

    def _folds(self, source: DataSource, n_train: int) -> list[Fold]:
        n_fold, by, info = self._options.plan.n_fold, self._options.data.fold_by, source.info
        if n_fold == 1:
            return [single_fold(n_train, info.n_samples - n_train)]
        groups = labels = None
        match by:
            case "samples":
                _, labels = first_classes(source.read_labels()) or (0, None)
            case "files":
                groups = info.file_numbers()
            case _:
                groups = source.read_column(by)
        return make_folds(n_fold, n_samples=info.n_samples, seed=self._options.seed, labels=labels, groups=groups)


def _paths(files: Files | None) -> tuple[Path, ...]:
    """Return absolute paths of the data files that an option or a function names; a single path is a list file."""
    if files is None:
        return ()
    return tuple(path.absolute() for path in (read_list(files) if isinstance(files, Path) else files))


def _first_change(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the first option without its default value; empty if there is none."""
    return next((option_name(name) for name, value in values.items() if value != defaults[name]), "")
