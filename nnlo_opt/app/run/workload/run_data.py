"""Samples of a run, read from HDF5 files."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from nnlo_opt.app.run.options.table import FEATURES, LABELS
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays
from nnlo_opt.core.data.folds import Fold, first_classes, make_folds, single_fold
from nnlo_opt.core.data.ragged import padded
from nnlo_opt.core.data.source import DataInfo, DataSource, Indices
from nnlo_opt.core.data.weights import ClassTable, check_sample_weights, class_tables
from nnlo_opt.engine.data.cache import FileCache
from nnlo_opt.engine.data.lists import read_list, verify
from nnlo_opt.engine.models.builders import Files

#: number of labels used to infer a loss
_N_HINT = 1000


class TrainingData(Frozen):
    """Samples of a training, with their folds."""

    source: DataSource
    folds: list[Fold]
    n_train: int
    #: files with training samples of any fold
    trained: tuple[Path, ...] = ()
    #: names of features and labels, for the findings
    names: tuple[str, str] = ("", "")
    #: class weights for every fold; None: not requested
    class_tables: list[ClassTable] | None = None


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

    def anew(self) -> "RunData":
        """Return a copy that has not read anything yet."""
        return RunData(self._options, self._maker)

    def look_first(self) -> None:
        """Have a separate process read the data files first, because damaged ones may crash it."""
        self._looks_first = True

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
        return padded(source.read_labels(np.arange(min(_N_HINT, source.info.n_samples))))

    def read(self) -> TrainingData:
        """Read the headers of the files, and create the folds."""
        given, definition = self._options.data, self._maker.definition
        train = _paths(given.train_data or definition.files("get_train"))
        validation = _paths(given.val_data or definition.files("get_val"))
        if not train:
            raise ConfigurationError(
                f"Training needs data. Received: none; give `{spelled('train_data', 'LIST')}`, or define "
                "`get_train()` in the model module."
            )
        if given.pooled:
            train, validation = (*train, *validation), ()
        source, names = self.source([*train, *validation])
        n_train = sum(file.n_samples for file in source.info.files[: len(train)])
        if n_train == 0:
            raise ConfigurationError("Training needs samples. Received: files of training data that hold none.")
        folds = self.folds(source, n_train)
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
        # Together with a file of training samples, which test samples must match.
        known = self.training.source.info.files[0]
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
        read = self._maker.definition.files
        asked = given.train_data or read("get_train"), given.val_data or read("get_val"), given.test_data
        lists = [files for files in asked if files is not None]
        for files in lists:
            if not isinstance(files, Path):
                raise ConfigurationError(
                    f"`{spelled('verify_data', True)}` compares the files of lists, which have their checksums beside "
                    f"them. Received: data that `{self._maker.definition.source}` names file by file; give "
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
        case "samples":
            _, labels = first_classes(source.read_labels(rows)) or (0, None)
        case "files":
            groups = source.info.file_numbers()[slice(None) if rows is None else rows]
        case _:
            groups = source.read_column(by, rows)
    n_samples = source.info.n_samples if rows is None else len(rows)
    return make_folds(n_fold, n_samples=n_samples, seed=seed, labels=labels, groups=groups)


def _paths(files: Files | None) -> tuple[Path, ...]:
    """Return absolute paths of the data files named by an option or a function; a single path is a list file."""
    if files is None:
        return ()
    return tuple(path.absolute() for path in (read_list(files) if isinstance(files, Path) else files))
