"""Data source of HDF5 files.

Headers are read once, when a source is created; an error in a header is a user error (`ConfigurationError`). An error
while reading samples, such as a vanished file, fails the trial (`TrialError`).

Features and labels are each a data set, or a group: a list of its members in alphabetical order, nested like the group.
Names separated by commas are a list in the given order. `hdf5.parts` describes sequences of variable length.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.files import atomic_path
from nnlo_opt.core.base.trees import Arrays, map_tree
from nnlo_opt.core.data.source import DataInfo, FileInfo, Indices, checked_indices
from nnlo_opt.engine.data.hdf5.file import find_dataset, open_file, reading
from nnlo_opt.engine.data.hdf5.parts import Adaptor, Part, Target, common_count


class Hdf5Source:
    """`DataSource` of HDF5 files, each with one data set or group of features and one of labels.

    Args:
        paths: data files, in the order of their samples.
        features_name: name of the data set or group of features, or several names separated by commas.
        labels_name: the same for labels.
        adaptors: functions that transform features and labels after reading; None for no change.
        locate: returns the file to read samples from, for example a local copy; None for the file itself.
        external: True if the files may link to other files.
        finite: which of "features" and "labels" must be finite when read; adapted samples are not checked.

    Raises:
        ConfigurationError: naming the file, if it is not HDF5, lacks a data set, or does not fit the other files.
    """

    def __init__(
        self,
        paths: Sequence[Path | str],
        features_name: str,
        labels_name: str,
        adaptors: tuple[Adaptor | None, Adaptor | None] = (None, None),
        locate: Callable[[Path], Path] | None = None,
        *,
        external: bool = False,
        finite: Collection[str] = ("features", "labels"),
    ) -> None:
        self._locate = locate or (lambda path: path)
        self._open = partial(open_file, external=external)
        #: True if libhdf5 must decode samples, which may crash it if they are damaged
        self.is_coded = False
        # Models compute in float32, regardless of the type in which features are stored.
        self._features = Part("features", features_name, adaptors[0], finite="features" in finite)
        self._labels = Part("labels", labels_name, adaptors[1], finite="labels" in finite)
        files = tuple(FileInfo(path, self._scan(path)) for path in map(Path, paths))
        not_empty = next((file.path for file in files if file.n_samples), None)
        if not_empty is None:
            raise ConfigurationError(
                f"The data files must hold at least one sample. Received: "
                f"{', '.join(str(file.path) for file in files[:3]) or 'no file'}. Name files with samples."
            )
        parts = (self._features, self._labels)
        with self._open(not_empty, ConfigurationError) as file:
            for part in parts:
                part.settle(file, not_empty)
        self.info = DataInfo(
            files=files,
            feature_shape=self._features.shape,
            label_shape=self._labels.shape,
            label_dtype=map_tree(lambda dtype: dtype.name, self._labels.dtype),
            sample_bytes=sum(part.sample_bytes for part in parts),
            chunk_samples=max(part.chunk for part in parts),
        )
        #: index of the first sample of every file, then the number of all samples
        self._starts: Indices = np.cumsum([0, *(file.n_samples for file in files)])

    def read(self, indices: Indices) -> tuple[Arrays, Arrays]:
        x, y = self._read(indices, (self._features, self._labels), self._locate)
        return x, y

    def read_labels(self, indices: Indices | None = None) -> Arrays:
        # Every rank reads all labels but trains on few files, so copies of all files would not pay off.
        return self._read(indices, (self._labels,), lambda path: path)[0]

    def read_column(self, name: str, indices: Indices | None = None) -> np.ndarray:
        columns = [np.empty(0)]
        for info, rows in self._rows_by_file(checked_indices(indices, self.info.n_samples)):
            with self._open(info.path, ConfigurationError) as file, reading(name, info.path, ConfigurationError):
                columns.append(_column(find_dataset(file, name, info.path), name, info)[rows])
        return np.concatenate(columns[1:] or columns)

    def _scan(self, path: Path) -> int:
        """Check the headers of one file, and return its number of samples."""
        with self._open(path, ConfigurationError) as file:
            counts = {part.name: part.scan(file, path) for part in (self._features, self._labels)}
            self.is_coded |= file.is_coded
        return common_count(counts, path)

    def _read(self, indices: Indices | None, parts: Sequence[Part], locate: Callable[[Path], Path]) -> list[Arrays]:
        """Return the samples `indices` of each part."""
        indices = checked_indices(indices, self.info.n_samples)
        targets = [Target(part.shape, part.dtype, len(indices)) for part in parts]
        for info, rows in self._rows_by_file(indices):
            with self._open(locate(info.path), TrialError) as file:
                for part, target in zip(parts, targets, strict=True):
                    part.read(file, info.path, rows, target)
        return [target.tree() for target in targets]

    def _rows_by_file(self, indices: Indices) -> Iterator[tuple[FileInfo, Indices]]:
        """Yield each file that holds some of the samples `indices`, and their rows in it."""
        edges = np.searchsorted(indices, self._starts)
        for number in np.flatnonzero(np.diff(edges)):
            yield self.info.files[number], indices[edges[number] : edges[number + 1]] - self._starts[number]


def write_hdf5(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` as the data sets of a file, atomically."""
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def _column(dataset: h5py.Dataset, name: str, info: FileInfo) -> np.ndarray:
    """Return the values (n_samples,) of a data set of numbers or strings."""
    remedy = "Choose another data set."
    if dataset.shape not in ((info.n_samples,), (info.n_samples, 1)):
        raise ConfigurationError(
            f"A data set for folds or weights must have one value for each sample, {info.n_samples}. Received: "
            f"{name!r} of shape {dataset.shape} in {info.path}. {remedy}"
        )
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if not is_text and dataset.dtype.kind not in "iufb":
        raise ConfigurationError(
            f"A data set for folds or weights must hold numbers or strings. Received: {name!r} of type "
            f"{dataset.dtype} in {info.path}. {remedy}"
        )
    values = np.asarray(dataset.asstr()[...], np.str_) if is_text else dataset[...]
    return values.reshape(-1)
