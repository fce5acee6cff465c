"""Training data of a manager: custom batches, or HDF5 files."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.ancestors.manager.generated import count_batches
from nnlo_opt.app.run.workload.hdf5_check import check_files
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.trees import n_samples
from nnlo_opt.core.data.ragged import concatenate, take
from nnlo_opt.engine.data.cache import FileCache, parse_copy_command
from nnlo_opt.engine.data.hdf5.source import Hdf5Source
from nnlo_opt.engine.data.lists import located

#: data set or group, possibly with a function to apply to its arrays
Named = str | tuple[str, Callable[[Any], Any]]


class Data:
    """Base class for custom batches: override `generate_data`, or `load_data` if each file contains arrays.

    >>> class Sums(Data):
    ...     def generate_data(self):
    ...         for name in self.file_names:
    ...             x = np.random.default_rng(int(name)).random((self.batch_size, 2))
    ...             yield [x], [x.sum(axis=1)]
    >>> data = Sums(batch_size=10)

    `generate_data` yields one epoch of batches `([x1, …], [y1, …])` or `(x, y)`, optionally with sample weights as
    third item, from the files in `self.file_names`, and returns. It is called once per epoch on every worker, and must
    yield the same number of samples each time. Another object does the same for the validation files.

    With at least as many files as workers, each worker gets some of the files in `file_names`. With fewer files every
    worker reads all of them, runs the whole generator and takes every n-th batch; then the generator must yield the
    same batches on each worker, so seed its random numbers. Allreduce always distributes batches.
    """

    #: a longer pass is assumed to be endless, unless `count_data` is overridden
    max_batches_per_epoch = 100_000

    def __init__(self, batch_size: int, cache: str | None = None, copy_command: str | None = None) -> None:
        """Store the arguments.

        Args:
            batch_size: samples per batch.
            cache: folder for copies of the data files; None for the environment variable DATA_CACHE.
            copy_command: command that copies a file, such as "scp {} {}"; None for the environment variable
                DATA_COPY_COMMAND.
        """
        self.batch_size = batch_size
        self.caching_directory = cache or os.environ.get("DATA_CACHE", "")
        self.copy_command = copy_command or os.environ.get("DATA_COPY_COMMAND", "")
        self.file_names: list[str] = []
        self._cache: FileCache | None = None

    def set_caching_directory(self, cache: str) -> None:
        """Set another folder for copies; "" for none."""
        self.caching_directory = cache

    def set_full_file_names(self, file_names: Iterable[str | Path]) -> None:
        """Set the files, which are not copied."""
        self.file_names = [located(str(name)) for name in file_names if name]

    def set_file_names(self, file_names: Iterable[str | Path]) -> None:
        """Set the files to read; with a caching directory, their copies are read."""
        self.set_full_file_names(file_names)
        if getattr(self, "caching_directory", ""):
            cache = self.file_cache()
            self.file_names = [str(cache.locate(Path(name))) for name in self.file_names]

    def generate_data(self) -> Iterator[tuple[Any, Any]]:
        """Yield one epoch of batches; by default from the arrays that `load_data` returns."""
        left: list[Any] | None = None
        for name in self.file_names:
            rows = [*self.load_data(name)]
            rows = rows if left is None else concatenate([left, rows])
            n = n_samples(rows)
            n_whole = n - n % self.batch_size
            for start in range(0, n_whole, self.batch_size):
                x, y = take(rows, slice(start, start + self.batch_size))
                yield x, y
            left = take(rows, slice(n_whole, n)) if n > n_whole else None
        if left is not None:
            yield left[0], left[1]

    def load_data(self, in_file: str) -> tuple[Any, Any]:
        """Return features and labels of a file, as arrays or lists of arrays; called by the default `generate_data`."""
        raise ConfigurationError(
            f"A data class must override `generate_data` or `load_data`. Received: {type(self).__name__} with neither."
        )

    def count_data(self) -> int:
        """Return the number of samples in `file_names`; override it to count them without generating batches."""
        if type(self).generate_data is Data.generate_data:
            return sum(n_samples(self.load_data(name)[0]) for name in self.file_names)
        return sum(count_batches(self.generate_data, self.max_batches_per_epoch))

    def finalize(self) -> None:
        """Remove the copies."""
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    # ------------------------------------------------------------ for the manager

    def of(self, file_names: Sequence[str]) -> "Data":
        """Return a copy with other files, because two generators of one object would share its files."""
        other = copy(self)
        other.set_file_names(file_names)
        return other

    def file_cache(self) -> FileCache:
        """Return the folder of copies."""
        if self._cache is None:
            command = parse_copy_command(self.copy_command, "copy_command") if self.copy_command else None
            self._cache = FileCache(Path(self.caching_directory), command)
        return self._cache


class H5Data(Data):
    """HDF5 files with a data set or group of features and one of labels, read like in `TrainingDriver`.

    >>> data = H5Data(batch_size=100, features_name="images", labels_name="labels")

    Samples are distributed individually and reshuffled in every pass; they need not fit into memory. A subclass that
    overrides `generate_data` or `load_data` is treated like any other `Data`.
    """

    def __init__(
        self,
        batch_size: int,
        cache: str | None = None,
        copy_command: str | None = None,
        preloading: int = 0,
        features_name: Named = "features",
        labels_name: Named = "labels",
        external_data: bool = False,
    ) -> None:
        """Store the arguments.

        Args:
            batch_size: samples per batch.
            cache: as for `Data`.
            copy_command: as for `Data`.
            preloading: windows read ahead if samples do not fit into memory; at least one.
            features_name: a name, or (name, function applied to the arrays).
            labels_name: the same for the labels.
            external_data: True if the files may refer to other files.
        """
        super().__init__(batch_size, cache, copy_command)
        self.preloading = preloading
        self.features_name = features_name
        self.labels_name = labels_name
        self.external_data = external_data

    @property
    def is_plain(self) -> bool:
        """True if samples are read directly from the files, as no subclass generates batches."""
        kind = type(self)
        return kind.generate_data is H5Data.generate_data and kind.load_data is H5Data.load_data

    def check(self, file_names: Sequence[str | Path]) -> None:
        """Read the files in another process first, because damaged ones may crash it; ConfigurationError if so."""
        names = [name if isinstance(name, str) else name[0] for name in (self.features_name, self.labels_name)]
        check_files(file_names, names, external=self.external_data)

    def source(self, file_names: Sequence[str | Path], finite: Sequence[str] = ()) -> Hdf5Source:
        """Return the files as one data source; `finite` as for `Hdf5Source`."""
        named = [(name, None) if isinstance(name, str) else name for name in (self.features_name, self.labels_name)]
        (features, labels), adaptors = zip(*named, strict=True)
        locate = self.file_cache().locate if self.caching_directory and not self.external_data else None
        external = self.external_data
        return Hdf5Source([*file_names], features, labels, adaptors, locate, external=external, finite=finite)

    def load_data(self, in_file: str) -> tuple[Any, Any]:
        source = self.source([in_file])
        return source.read(np.arange(source.info.n_samples))

    def count_data(self) -> int:
        return self.source(self.file_names).info.n_samples if self.is_plain else super().count_data()
