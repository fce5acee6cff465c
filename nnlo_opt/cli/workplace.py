"""A trainer rank's workplace: the user's model and data, opened once and used for every trial."""

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.algorithms.optimizers import make_optimizer
from nnlo_opt.cli.options import Options
from nnlo_opt.config import TrainingOptions, model_parameters
from nnlo_opt.data.folds import Fold, classes_of, make_folds, single_fold
from nnlo_opt.data.lists import read_list
from nnlo_opt.errors import ConfigurationError, NnloError, TrialError
from nnlo_opt.models import losses
from nnlo_opt.models.adapter import ModelAdapter
from nnlo_opt.models.builders import Files, ModelDefinition, names_objective, open_model
from nnlo_opt.space.loading import space_from_dimensions
from nnlo_opt.space.parameters import Categorical, Integer, Real
from nnlo_opt.space.space import Space
from nnlo_opt.training.checkpoint import load_weights
from nnlo_opt.training.figure import figure_name
from nnlo_opt.training.stopping import EarlyStopping, TargetMetric, check_metric
from nnlo_opt.training.task import FoldTaskFactory

logger = logging.getLogger(__name__)

#: labels looked at to infer a loss
_N_HINT = 1000


@dataclass(frozen=True, slots=True)
class _Data:
    source: Any
    folds: list[Fold]
    n_train: int


class Workplace:
    """Model and data of this rank: the `Desk` of its server, and the maker of its tasks."""

    def __init__(self, options: Options, n_threads: int, searches: bool) -> None:
        """`searches`: there is a search space (OptimizationDriver); else the model is built as it is."""
        self._options = options
        self._n_threads = n_threads
        self._searches = searches
        self._adapter: Any = None

    @cached_property
    def definition(self) -> ModelDefinition:
        """What `--model` names."""
        return open_model(self._options.model)

    # ------------------------------------------------------------ the desk

    def prepare(self) -> None:
        """Import the framework, unless the model is an objective, which needs none."""
        if not names_objective(self._options.model):
            from nnlo_opt.models.keras_model import import_framework

            # Before the user's module, which may import it too and does not know about threads and noise.
            import_framework(self._n_threads, quiet=self._options.log_level not in ("trace", "debug"))

    def inspect(self, space_data: dict[str, Any] | None) -> dict[str, Any]:
        """Describe model, search space and data as plain data; ConfigurationError for what is wrong with them.

        `space_data` is the space of `--search-space`; without one it is the module's own `parameter_range`.
        """
        definition = self.definition
        findings: dict[str, Any] = {
            "model": definition.name,
            "kind": definition.kind,
            "source": str(definition.source.resolve()),
            "sha256": definition.sha256,
        }
        space = self._space(space_data)
        findings["space"] = space.to_json() if space else None
        if definition.kind == "objective":
            return findings | self._inspect_objective(space)
        self._check_parameters(space)
        data = self._data
        info = data.source.info
        findings["data"] = {
            "files": [[str(file.path.resolve()), file.n_samples] for file in info.files],
            "n_train": data.n_train,
            "n_validation": info.n_samples - data.n_train,
        }
        findings["n_train_smallest"] = min(len(fold.train) for fold in data.folds)
        if self._searches and self._options.plan.n_fold == 1 and not len(data.folds[0].validation):
            raise ConfigurationError(
                "A search needs validation data to compare trials. Received: none; give `--val-data LIST`, or "
                "`--n-fold` of at least 2."
            )
        return findings | self._inspect_model(space.middle() if space else {})

    def export(self, point: dict[str, Any], weights_directory: Path, path: Path) -> Path:
        """Save the model of `point` with the weights of a finished fold as `path`."""
        adapter = self._build(model_parameters(point), self._options.training.with_point(point), seed=0)
        weights, state = load_weights(weights_directory)
        adapter.write_weights(weights)
        adapter.write_state(state)
        adapter.save(path)
        self._release()
        return path

    def tasks(self) -> FoldTaskFactory:
        """The maker of this rank's tasks."""
        data = self._data
        return FoldTaskFactory(
            build=self._build,
            release=self._release,
            source=data.source,
            folds=data.folds,
            options=self._options.training,
            seed=self._options.seed,
        )

    # ------------------------------------------------------------ the space

    def _space(self, space_data: dict[str, Any] | None) -> Space | None:
        if not self._searches:
            return None
        if space_data is not None:
            return Space.from_json(space_data)
        definition = self.definition
        function = "objective" if definition.kind == "objective" else "get_model"
        if definition.parameter_range is None:
            raise ConfigurationError(
                f"A search needs a search space. Received: none in `{definition.source}`; give "
                f"`--search-space MODULE`, or set `{function}.parameter_range` in the model module."
            )
        return space_from_dimensions(definition.parameter_range, f"{function}.parameter_range of {definition.source}")

    def _check_parameters(self, space: Space | None) -> None:
        self.definition.check_parameters(space.model_names if space else ())
        if space is None:
            return
        for parameter in space.parameters:
            if parameter.name in space.train_names:
                for value in _corners(parameter):
                    try:
                        check_training(self._options.training.with_point({parameter.name: value}))
                    except ConfigurationError as error:
                        raise ConfigurationError(
                            f"Every value of the parameter {parameter.name!r} must be one that its option takes; "
                            f"{value!r} is not: {error}"
                        ) from error

    # ------------------------------------------------------------ the model

    def _inspect_objective(self, space: Space | None) -> dict[str, Any]:
        options = self._options
        if options.plan.n_fold > 1:
            raise ConfigurationError(
                f"`--n-fold` must be 1 with an objective module, which has no folds. Received: {options.plan.n_fold}."
            )
        if space is None:
            raise ConfigurationError(
                "An objective module is for a search. Received: one in TrainingDriver; use OptimizationDriver."
            )
        if space.train_names:
            raise ConfigurationError(
                "Parameters that begin with `train.` set training options, which an objective has none of. "
                f"Received: {space.train_names[0]!r}."
            )
        return {"figure": "value", "loss": None, "data": None, "remarks": []}

    def _inspect_model(self, point: dict[str, Any]) -> dict[str, Any]:
        from nnlo_opt.models.keras_model import last_activation

        options = self._options.training.with_point(point)
        early, target = check_training(options)
        remarks: list[str] = []
        metrics = ["loss"]
        try:
            model = self.definition.build(model_parameters(point))
        except TrialError as error:
            remarks.append(f"The model could not be built at the middle of the search space: {error}")
            model = None
        loss_name = options.loss
        if model is not None:
            loss, why = self._checked_loss(options, model, ConfigurationError)
            if why:
                remarks.append(f"Loss: {loss}, because {why}; `--loss` chooses another.")
            loss_name = loss if isinstance(loss, str) else getattr(loss, "__name__", "a function of the module")
            if isinstance(loss, str) and losses.metric_for(loss, last_activation(model)):
                metrics.append("acc")
        validates = any(len(fold.validation) for fold in self._data.folds)
        known = [*metrics, *(f"val_{name}" for name in metrics if validates)]
        if model is not None:
            if early:
                check_metric(early.metric, known, "--early-stopping")
            if target:
                check_metric(target.metric, known, "--target-metric")
        figure = figure_name(tuple(known)) if model is not None else "1 - val_acc, else val_loss"
        if figure == "val_loss" and self._searches:
            remarks.append("Figure of merit: val_loss, because there is no accuracy to take 1 - val_acc from.")
        self._release()
        return {"figure": figure, "loss": loss_name, "loss_option": options.loss, "remarks": remarks}

    def _checked_loss(self, options: TrainingOptions, model: Any, blame: type[NnloError]) -> tuple[Any, str]:
        """(loss, why it was inferred or ""); raises `blame` where model, data and loss do not go together."""
        from nnlo_opt.models.keras_model import check_shapes

        info = self._data.source.info
        if mismatch := check_shapes(model, info.feature_shape, info.label_shape):
            raise blame(mismatch)
        loss, why = self._loss(options, model)
        if isinstance(loss, str) and (mismatch := check_shapes(model, info.feature_shape, info.label_shape, loss)):
            raise blame(mismatch)
        return loss, why

    def _loss(self, options: TrainingOptions, model: Any) -> tuple[Any, str]:
        """(loss, why it was inferred or "")."""
        from nnlo_opt.models.keras_model import last_activation, output_shape

        if options.loss:
            return losses.check_loss(options.loss), ""
        own = self.definition.loss()
        if own is not None:
            return (losses.check_loss(own) if isinstance(own, str) else own), ""
        info = self._data.source.info
        inferred = losses.infer_loss(
            last_activation(model),
            output_shape(model, info.feature_shape),
            info.label_shape,
            info.label_dtype,
            self._label_hint,
        )
        return inferred.name, inferred.why

    @cached_property
    def _label_hint(self) -> np.ndarray:
        source = self._data.source
        return source.read(np.arange(min(_N_HINT, source.info.n_samples)))[1]

    def _build(self, parameters: dict[str, Any], options: TrainingOptions, seed: int) -> ModelAdapter:
        from nnlo_opt.models.keras_model import KerasAdapter, build_variables, set_seed

        set_seed(seed)
        model = self.definition.build(parameters)
        loss, _ = self._checked_loss(options, model, TrialError)
        build_variables(model, self._data.source.info.feature_shape)
        self._adapter = KerasAdapter(model, loss)
        return self._adapter

    def _release(self) -> None:
        from nnlo_opt.models.keras_model import forget_models

        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.release()
        else:
            forget_models()

    # ------------------------------------------------------------ the data

    @cached_property
    def _data(self) -> _Data:
        from nnlo_opt.data.hdf5 import Hdf5Source

        given, definition = self._options.data, self.definition
        train = _paths(given.train_data or definition.train_files())
        validation = _paths(given.val_data or definition.val_files())
        if not train:
            raise ConfigurationError(
                "Training needs data. Received: none; give `--train-data LIST`, or define `get_train()` in the model "
                "module."
            )
        features, features_adaptor = definition.features() or ("features", None)
        labels, labels_adaptor = definition.labels() or ("labels", None)
        source = Hdf5Source(
            [*train, *validation],
            given.features_name or features,
            given.labels_name or labels,
            (features_adaptor, labels_adaptor),
        )
        n_train = sum(file.n_samples for file in source.info.files[: len(train)])
        if n_train == 0:
            raise ConfigurationError("Training needs samples. Received: files of training data that hold none.")
        return _Data(source, self._folds(source, n_train), n_train)

    def _folds(self, source: Any, n_train: int) -> list[Fold]:
        n_fold, by, info = self._options.plan.n_fold, self._options.data.fold_by, source.info
        if n_fold == 1:
            return [single_fold(n_train, info.n_samples - n_train)]
        groups = labels = None
        match by:
            case "samples":
                labels = classes_of(source.read_labels())
            case "files":
                groups = info.file_numbers()
            case _:
                groups = source.read_column(by)
        return make_folds(n_fold, n_samples=info.n_samples, seed=self._options.seed, labels=labels, groups=groups)


def check_training(options: TrainingOptions) -> tuple[EarlyStopping | None, TargetMetric | None]:
    """ConfigurationError for what can be seen to be wrong without a model; -> the rules for ending a training."""
    make_optimizer(options.optimizer, 1, options.learning_rate, options.optimizer_params)
    if options.loss:
        losses.check_loss(options.loss)
    return (
        EarlyStopping.parse(options.early_stopping) if options.early_stopping else None,
        TargetMetric.parse(options.target_metric) if options.target_metric else None,
    )


def _paths(files: Files | None) -> tuple[Path, ...]:
    """The data files that an option or a function names; a single path is a list file."""
    if files is None:
        return ()
    return read_list(files) if isinstance(files, Path) else tuple(files)


def _corners(parameter: Any) -> tuple[Any, ...]:
    """Values that show whether an option takes all values of `parameter`."""
    match parameter:
        case Categorical():
            return tuple(parameter.categories)
        case Integer() | Real():
            return (parameter.low, parameter.high)
    raise ConfigurationError(f"Not a parameter: {parameter!r}.")
