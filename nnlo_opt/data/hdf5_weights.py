"""Weights in HDF5 files of Keras 1 or 2, written by `save_weights` or with a full model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.files import regular


@dataclass(frozen=True)
class SavedWeights:
    """Arrays of a file, in its order."""

    #: name of a layer and its arrays; layers without weights are included
    layers: Sequence[tuple[str, list[NDArray]]]
    #: "1" if the file does not state it, as before Keras 2
    keras_version: str
    #: "tensorflow", "theano" or "cntk"; None if the file does not state it
    backend: str | None


def read_saved_weights(path: Path) -> SavedWeights:
    """Read a file of weights; raise `ConfigurationError` unless Keras 0, 1 or 2 wrote the file."""
    try:
        with h5py.File(regular(path), "r", locking="best-effort") as file:
            group = file.get("model_weights", file)
            layers = [
                (name, [np.asarray(group[name][weight]) for weight in weights]) for name, weights in _named(group)
            ]
            version, backend = (_text(group, key) or _text(file, key) for key in ("keras_version", "backend"))
    except Exception as error:  # h5py raises half a dozen kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError(
            f"A file of weights must be a complete HDF5 file. Received: {path} ({reason}). Check the path, or save "
            "the weights again."
        ) from error
    if not layers:
        raise ConfigurationError(
            f"A file of weights must be one that Keras 1 or 2 saved. Received: {path}, which names no layers. "
            "Load weights saved by Keras 3 with Keras 3."
        )
    return SavedWeights(layers, version or "1", backend)


def _named(group: h5py.Group) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the names of the layers, and of the weights of each; lazily, as a file may name more than it holds."""
    if "nb_layers" in group.attrs:
        # Keras 0 numbered the layers.
        for number in range(group.attrs["nb_layers"]):
            name = f"layer_{number}"
            yield name, map("param_{}".format, range(group[name].attrs["nb_params"]))
    else:
        for name in _texts(group, "layer_names"):
            yield name, _texts(group[name], "weight_names")


def _texts(group: h5py.Group, key: str) -> list[str]:
    """Return a list of names among the attributes; a long list is stored in parts, as `key` and a number."""
    if key in group.attrs:
        return [_decoded(name) for name in group.attrs[key]]
    parts = takewhile(lambda part: part in group.attrs, (f"{key}{number}" for number in count()))
    return [_decoded(name) for part in parts for name in group.attrs[part]]


def _text(group: h5py.Group, key: str) -> str | None:
    return _decoded(group.attrs[key]) if key in group.attrs else None


def _decoded(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
