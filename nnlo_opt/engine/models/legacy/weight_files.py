"""Weights in HDF5 files written by `save_weights` or `save` of Keras 1 or 2."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

import h5py
import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import atomic_path
from nnlo_opt.engine.data.hdf5.file import DataFile, reason_of, text_of


@dataclass(frozen=True)
class SavedWeights:
    """Arrays of a file, in its order."""

    #: name of a layer and its arrays; layers without weights are included
    layers: Sequence[tuple[str, list[np.ndarray]]]
    #: "1" if the file does not state it, as before Keras 2
    keras_version: str
    #: "tensorflow", "theano" or "cntk"; None if the file does not state it
    backend: str | None


def read_saved_weights(path: Path) -> SavedWeights:
    """Read a file of weights; raise `ConfigurationError` unless Keras 0, 1 or 2 wrote the file."""
    with _opened(path, "file of weights", "Check the path, or save the weights again") as file:
        group = file.reach("model_weights") or file
        names = _names(group, "layer_names", "nb_layers", "layer_{}")
        layers = [(name, _arrays(file, name, group)) for name in names]
        version, backend = (_text(group, key) or _text(file, key) for key in ("keras_version", "backend"))
    if not layers:
        raise ConfigurationError(
            f"A file of weights must be one that Keras 1 or 2 saved. Received: {path}, which names no layers. "
            "Load weights saved by Keras 3 with Keras 3."
        )
    return SavedWeights(layers, version or "1", backend)


def read_saved_architecture(path: Path) -> str:
    """Return the JSON architecture in a full model file of Keras; ConfigurationError if it has none."""
    with _opened(path, "saved model", "Save it again") as file:
        text = _text(file, "model_config")
    if text is None:
        raise ConfigurationError(
            f"A saved model must hold its architecture. Received: {path} with weights alone. Give the architecture "
            "NAME.json, and name this file NAME.h5 beside it."
        )
    return text


def is_compiled(path: Path) -> bool:
    """Return True if the model in a full model file of Keras was compiled."""
    with _opened(path, "saved model", "Save it again") as file:
        return "training_config" in file.attrs


def write_saved_weights(path: Path, layers: Mapping[str, Sequence[tuple[str, np.ndarray]]]) -> None:
    """Write the named arrays of layers atomically, in the format of Keras 2 on TensorFlow."""
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update({"layer_names": [*layers], "keras_version": "2.3.1", "backend": "tensorflow"})
        for name, arrays in layers.items():
            group = file.create_group(name)
            group.attrs["weight_names"] = [weight for weight, _ in arrays]
            for weight, array in arrays:
                group.create_dataset(weight, data=array)


@contextmanager
def _opened(path: Path, what: str, remedy: str) -> Iterator[DataFile]:
    """Open a file; ConfigurationError if it is damaged, also while reading it inside the context."""
    try:
        with DataFile(path, external=False) as file:
            yield file
    except Exception as error:  # h5py raises half a dozen kinds
        raise ConfigurationError(
            f"A {what} must be a complete HDF5 file. Received: {path} ({reason_of(error)}). {remedy}."
        ) from error


def _arrays(file: DataFile, name: str, group: h5py.Group) -> list[np.ndarray]:
    """Return the arrays of a layer."""
    arrays: list[np.ndarray] = []
    layer = file.need(name, group, h5py.Group)
    for weight in _names(layer, "weight_names", "nb_params", "param_{}"):
        dataset = file.need(weight, layer)
        file.check(dataset)
        if dataset.dtype.kind not in "iufb":
            raise ValueError(f"data set {weight!r} holds no numbers")
        arrays.append(np.asarray(dataset))
    return arrays


def _names(group: h5py.Group, key: str, n_key: str, form: str) -> Iterable[str]:
    """Return a list of names among the attributes; a long list is stored in parts, as `key` and a number."""
    if n_key in group.attrs:
        # Keras 0 numbered them; generate lazily, because a file may declare more than it contains.
        return map(form.format, range(group.attrs[n_key]))
    if key in group.attrs:
        return [text_of(name) for name in group.attrs[key]]
    parts = takewhile(lambda part: part in group.attrs, (f"{key}{number}" for number in count()))
    return [text_of(name) for part in parts for name in group.attrs[part]]


def _text(group: h5py.Group, key: str) -> str | None:
    return text_of(group.attrs[key]) if key in group.attrs else None
