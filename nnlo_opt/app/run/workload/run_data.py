"""Samples of a run, read from HDF5 files or made by the model module."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.app.run.options.table import FEATURES, LABELS
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.records import Frozen, field
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays
from nnlo_opt.core.data.arrays import JoinedSource
from nnlo_opt.core.data.folds import Fold, first_classes, make_folds, single_fold
from nnlo_opt.core.data.ragged import padded
from nnlo_opt.core.data.source import DataInfo, DataSource, FileInfo, Indices
from nnlo_opt.core.data.weights import ClassTable, check_sample_weights, class_tables
from nnlo_opt.engine.data.cache import FileCache
from nnlo_opt.engine.data.indexed import ItemSource, is_batched, n_samples_of
from nnlo_opt.engine.data.lists import read_list, verify
from nnlo_opt.engine.data.made import WEIGHTS, Made, made_of
from nnlo_opt.engine.models.builders import Files

#: function of a model module that returns samples -> the option that takes its place
_OPTION_OF = {"get_train": "train_data", "get_val": "val_data"}
#: options that name data sets of files, with their defaults
_OF_FILES = {"features_name": None, "labels_name": None, "sample_weights_name": None, "fold_by": "samples"}
#: number of labels used to infer a loss
_N_HINT = 1000


class TrainingData(Frozen):
    """Samples of a training, with their folds."""

    source: DataSource
    folds: list[Fold]
    n_train: int
    #: files with training samples of any fold
    trained: tuple[Path, ...] = ()
    #: names of features and labels, for the findings; empty for samples in no file
    names: tuple[str, str] = ("", "")
    #: function of the model module -> fingerprint of the samples that it has returned
    made: Mapping[str, str] = field(default_factory=dict)
    #: column with a weight for each sample; None: all equal
    weights_name: str | None = None
    #: class weights for every fold; None: not requested
    class_tables: list[ClassTable] | None = None

    @property
    def n_validation(self) -> int:
        """Samples that are only for validation, without folds."""
        return n_samples_of(self.source, np.arange(self.source.info.n_samples)) - self.n_train

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The data files, empty if the samples are in none."""
        return () if self.made else self.source.info.files


class RunData:
    """Samples of this rank; the headers of their files are read on first use.

    Args:
        options: options of the run; paths are relative to the folder where the run was started.
        maker: has the model definition, which may name files, data sets and their adaptors.
    """

    def __init__(self, options: Options, maker: ModelMaker) -> None:
        # The user's module may change the working folder.
        data, start = options.data, options.run.start
        paths = {name: start / path for name in ("train_data", "val_data", "cache") if (path := getattr(data, name))}
        self._options = replace(options, data=replace(data, **paths))
        self._maker = maker
        #: True if this rank opens the data files before all other ranks
        self._looks_first = False
        #: arguments of `get_train` and `get_val`
        self._arguments: dict[str, dict[str, Any]] = {}
        #: what these functions have returned, each called once for its arguments
        self._returned: dict[str, Files | Made | None] = {}

    def anew(self) -> "RunData":
        """Return a copy that has not read anything yet."""
        return RunData(self._options, self._maker)

    def look_first(self) -> None:
        """Have a separate process read the data files first, because damaged ones may crash it."""
        self._looks_first = True

    def use(self, parameters: Mapping[str, Any]) -> None:
        """From now on have the samples for these parameters of the model, if `get_train` or `get_val` take any."""
        definition = self._maker.definition
        asked = {name: definition.arguments_of(name, parameters) for name in _OPTION_OF if self._calls(name)}
        asked = {name: arguments for name, arguments in asked.items() if arguments}
        if asked != self._arguments:
            self._arguments = asked
            self._returned.clear()
            for name in ("training", "some_labels"):
                self.__dict__.pop(name, None)

    @property
    def varies(self) -> bool:
        """True if the samples depend on parameters of the model."""
        return bool(self._arguments)

    def given(self, function: str) -> Files | Made | None:
        """Return what takes the place of `function`, or what it returns; None without samples."""
        if not self._calls(function):
            asked: Path | None = getattr(self._options.data, _OPTION_OF[function])
            return asked
        if function not in self._returned:
            definition = self._maker.definition
            value = definition.samples(function, self._arguments.get(function, {}))
            if not isinstance(value, Path) and not _are_paths(value) and (value is not None or function == "get_train"):
                collate = definition.functions.get("collate_fn")
                value = made_of(value, f"`{function}` of {definition.source}", self.finite, collate)
            self._returned[function] = value
        return self._returned[function]

    def _calls(self, function: str) -> bool:
        is_replaced = getattr(self._options.data, _OPTION_OF[function]) is not None
        return not is_replaced and function in self._maker.definition.functions

    @cached_property
    def training(self) -> TrainingData:
        """Samples for training and validation."""
        return self.read()

    @property
    def info(self) -> DataInfo:
        """Description of the samples."""
        return self.training.source.info

    @cached_property
    def some_labels(self) -> Arrays:
        """Some labels, to infer a loss."""
        source = self.training.source
        some = source.some if isinstance(source, ItemSource) else np.arange(min(_N_HINT, source.info.n_samples))
        return padded(source.read_labels(some))

    def read(self) -> TrainingData:
        """Read the headers of the files, and create the folds."""
        given = self._options.data
        asked = {name: samples for name in _OPTION_OF if (samples := self.given(name)) is not None}
        if "get_train" not in asked:
            raise ConfigurationError(
                f"Training needs data. Received: none; give `{spelled('train_data', 'LIST')}`, or define "
                "`get_train()` in the model module."
            )
        made = {name: samples for name, samples in asked.items() if isinstance(samples, Made)}
        if made:
            return self._training_of(made, asked)
        files = {name: samples for name, samples in asked.items() if not isinstance(samples, Made)}
        train, validation = (_paths(files.get(name)) for name in _OPTION_OF)
        if given.pooled:
            train, validation = (*train, *validation), ()
        source, names = self.source([*train, *validation])
        n_train = sum(file.n_samples for file in source.info.files[: len(train)])
        if n_train == 0:
            raise ConfigurationError("Training needs samples. Received: files of training data that hold none.")
        data = TrainingData(source=source, folds=self.folds(source, n_train), n_train=n_train, names=names)
        trained = (*train, *validation) if len(data.folds) > 1 else train
        return self._weighted(data.replaced(trained=trained, weights_name=given.sample_weights_name))

    def _training_of(self, made: Mapping[str, Made], asked: Mapping[str, Files | Made]) -> TrainingData:
        """Return the samples that functions of the model module have made."""
        given, definition = self._options.data, self._maker.definition
        if other := next((name for name in asked if name not in made), None):
            one = next(iter(made))
            what = f"files from `{other}`" if self._calls(other) else f"`{spelled(_OPTION_OF[other], asked[other])}`"
            raise ConfigurationError(
                f"Training and validation data must be both files, or both samples that functions return. Received: "
                f"{made[one].kind} from `{one}` of {definition.source}, {what}. Return the other ones from `{other}`, "
                "too."
            )
        ignored = [spelled(name) for name, value in _OF_FILES.items() if getattr(given, name) != value]
        ignored += [name for name in ("get_features", "get_labels") if name in definition.functions]
        if ignored:
            kind = next(iter(made.values())).kind
            raise ConfigurationError(
                f"`{ignored[0]}` is for data files. Received: it with {kind}, which a function of {definition.source} "
                "returns. Leave it out."
            )
        has_weights = [samples.has_weights for samples in made.values()]
        if len(set(has_weights)) > 1 and (given.pooled or self._options.plan.n_fold > 1):
            raise ConfigurationError(
                "Samples that are pooled must all have a weight, or none. Received: weights from one of "
                f"{' and '.join(f'`{name}`' for name in made)} of {definition.source}. Return them from both, for "
                "example ones."
            )
        source = _joined(list(made.values()))
        if is_batched(source) and given.class_weights is not None:
            raise ConfigurationError(
                f"`{spelled('class_weights')}` is for samples of which each has a number. Received: batches of "
                f"{next(iter(made.values())).kind}. Let each batch be `(x, y, sample_weight)`."
            )
        n_train = (source if given.pooled else made["get_train"].source).info.n_samples
        data = TrainingData(
            source=source,
            folds=self.folds(source, n_train),
            n_train=n_samples_of(source, np.arange(n_train)),
            made={name: samples.fingerprint for name, samples in made.items()},
            weights_name=WEIGHTS if any(has_weights[: None if given.pooled else 1]) else None,
        )
        return self._weighted(data)

    def _weighted(self, data: TrainingData) -> TrainingData:
        """Return the samples with their class weights, after a look at those of single samples."""
        given, source, trains = self._options.data, data.source, [fold.train for fold in data.folds]
        if given.sample_weights_name is not None:
            numbers = np.unique(np.concatenate(trains))
            check_sample_weights(given.sample_weights_name, source.read_column(given.sample_weights_name, numbers))
        if given.class_weights is None:
            return data
        return data.replaced(class_tables=class_tables(given.class_weights, source.read_labels(), trains))

    @cached_property
    def test(self) -> tuple[DataSource, Indices] | None:
        """Source and indices of the test samples for the saved model; None without test data."""
        files = _paths(self._options.data.test_data)
        if not files:
            return None
        trained = {path.resolve() for path in self.training.trained}
        if seen := [path for path in files if path.resolve() in trained]:
            raise ConfigurationError(
                f"`--test-data` must name samples that are not trained on. Received: {seen[0]}, which is trained on. "
                f"Name other files, or train on fewer by `{spelled('train_data')}` and `{spelled('val_data')}`."
            )
        if not self.training.files:
            source, _ = self.source(files)
            joined = JoinedSource([self.training.source, source])  # they must match
            return joined, np.arange(self.training.source.info.n_samples, joined.info.n_samples)
        # A file of training samples is opened with them, so that a test sample of another shape is refused.
        known = self.training.files[0]
        source, _ = self.source([known.path, *files])
        return source, np.arange(known.n_samples, source.info.n_samples)

    @property
    def finite(self) -> tuple[str, ...]:
        """Which of features and labels must be finite; a user-defined loss may accept labels that are not."""
        return ("features",) if "get_loss" in self._maker.definition.functions else ("features", "labels")

    def source(self, files: Sequence[Path]) -> tuple[DataSource, tuple[str, str]]:
        """Return the samples of data files, and the names of their features and labels."""
        from nnlo_opt.app.run.workload.hdf5_check import check_files
        from nnlo_opt.engine.data.hdf5.source import Hdf5Source

        given, definition, external = self._options.data, self._maker.definition, self._options.data.external_data
        features, features_adaptor = definition.dataset("get_features") or (FEATURES, None)
        labels, labels_adaptor = definition.dataset("get_labels") or (LABELS, None)
        names = given.features_name or features, given.labels_name or labels
        adaptors = features_adaptor, labels_adaptor
        if self._looks_first:
            # A separate process reads the files first, because damaged ones may crash it.
            weights = [path for path in (definition.beside,) if path is not None and path.suffix != ".py"]
            finite = [role for role, adaptor in zip(self.finite, adaptors, strict=False) if adaptor is None]
            columns = given.fold_by, given.sample_weights_name
            check_files(files, [*names, *columns], weights, external=external, finite=finite)
        # The source keeps the cache, which closes at the end of the process. A copy would break links to other files.
        locate = None if given.cache is None or external else FileCache(given.cache, given.copy_command).locate
        return Hdf5Source([*files], *names, adaptors, locate, external=external, finite=self.finite), names

    @cached_property
    def verified(self) -> tuple[str, ...]:
        """Remarks for the user on the data files; with `--verify-data`, first verifies their checksums."""
        given = self._options.data
        if not given.verify_data:
            return ()
        asked = self.given("get_train"), self.given("get_val"), given.test_data
        lists = [files for files in asked if files is not None]
        for files in lists:
            if not isinstance(files, Path):
                how = "makes" if isinstance(files, Made) else "names file by file"
                raise ConfigurationError(
                    f"`{spelled('verify_data', True)}` compares the files of lists, which have their checksums beside "
                    f"them. Received: data that `{self._maker.definition.source}` {how}; give "
                    f"`{spelled('train_data')}` and `{spelled('val_data')}`."
                )
        n_files = sum(verify(files) for files in lists if isinstance(files, Path))
        return (f"Data verified: {n_files} files match their checksums.",)

    def folds(self, source: DataSource, n_train: int) -> list[Fold]:
        """Return the folds; the first `n_train` samples are for training."""
        n_fold = self._options.plan.n_fold
        if n_fold == 1:
            return [single_fold(n_train, source.info.n_samples - n_train)]
        return cut(source, self._options.data.fold_by, n_fold, self._options.seed)


def cut(source: DataSource, by: str, n_fold: int, seed: int, rows: Indices | None = None) -> list[Fold]:
    """Split all samples, or the samples `rows`, into folds: by classes, by files, or by a data set."""
    groups = labels = None
    match by:
        case "samples" if is_batched(source):
            pass
        case "samples":
            _, labels = first_classes(source.read_labels(rows)) or (0, None)
        case "files":
            groups = source.info.file_numbers()[slice(None) if rows is None else rows]
        case _:
            groups = source.read_column(by, rows)
    n_samples = source.info.n_samples if rows is None else len(rows)
    return make_folds(n_fold, n_samples=n_samples, seed=seed, labels=labels, groups=groups)


def _joined(made: Sequence[Made]) -> DataSource:
    """Return the samples of all functions, those of each after the ones before; ConfigurationError if kinds differ."""
    first, *others = (samples.source for samples in made)
    if not others:
        return first
    (other,) = others
    if isinstance(first, ItemSource) and isinstance(other, ItemSource) and first.batched == other.batched:
        return first.followed_by(other)
    if isinstance(first, ItemSource) or isinstance(other, ItemSource):
        raise ConfigurationError(
            "`get_train` and `get_val` must return samples of one kind. Received: "
            f"{' and '.join(samples.kind for samples in made)}. Return the same kind from both."
        )
    return JoinedSource([first, other])


def _are_paths(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(part, Path) for part in value)


def _paths(files: Files | None) -> tuple[Path, ...]:
    """Return absolute paths of the data files named by an option or a function; a single path is a list file."""
    if files is None:
        return ()
    return tuple(path.absolute() for path in (read_list(files) if isinstance(files, Path) else files))
