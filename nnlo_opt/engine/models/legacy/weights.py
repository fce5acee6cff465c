"""Loading of weights of Keras 1 or 2 into a Keras 3 model that was translated from their architecture.

Arrays are converted to the layout of Keras 3, like `preprocess_weights_for_loading` of Keras 2.2.5
(keras/engine/saving.py) did for Keras 2. In Keras 1, the gates of recurrent layers were separate arrays, and
convolution kernels had the axis order of the images. Theano convolved while TensorFlow correlates, and CuDNN used yet
another order.
"""

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.legacy.weight_files import SavedWeights, read_saved_weights, write_saved_weights

Arrays = list[np.ndarray]

#: for layers whose gates were separate arrays in Keras 1: the old index of each gate of today's order
GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 2, 1, 3), "ConvLSTM2D": (0, 2, 1, 3), "GRU": (0, 1, 2)}
#: axes that give (*space, in, out) from the kernels of Keras 1, by layer and order of the images
KERNELS_OF_KERAS_1: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("Conv2D", "channels_first"): (2, 3, 1, 0),
    ("Conv3D", "channels_first"): (2, 3, 4, 1, 0),
    ("ConvLSTM2D", "channels_first"): (2, 3, 1, 0),
    ("Conv2DTranspose", "channels_last"): (0, 1, 3, 2),
    ("Conv2DTranspose", "channels_first"): (2, 3, 0, 1),
}
#: layers whose kernels Theano stored flipped
CONVOLUTIONS = frozenset({"Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "ConvLSTM2D"})
#: suffixes of weight files for an architecture NAME.json or NAME_arch.json
ENDINGS = (".h5", "_weights.h5", ".hdf5", "_weights.hdf5")


def find_legacy_weights(architecture: Path) -> Path | None:
    """Return the weight file next to an architecture, found by name; None if there is none."""
    stems = dict.fromkeys((architecture.stem, architecture.stem.removesuffix("_arch")))
    candidates = (architecture.with_name(stem + ending) for stem in stems for ending in ENDINGS)
    return next((path for path in candidates if os.path.isfile(path)), None)


def load_legacy_weights(model: Any, path: Path) -> None:
    """Load the weights of a file of Keras 1 or 2 into `model`, all or none.

    Args:
        model: built Keras model.
        path: weight file.

    Raises:
        ConfigurationError: if the weights do not fit the model.
    """
    saved = read_saved_weights(path)
    assignments = []
    for layer, arrays in _paired(model, saved, path):
        try:
            values = [*_values(layer, arrays, saved)]
        except (ValueError, IndexError, TypeError) as error:
            raise _misfit(layer, path, str(error)) from error
        for variable, value in values:
            if tuple(variable.shape) != value.shape:
                raise _misfit(layer, path, f"an array of shape {value.shape} for one of {tuple(variable.shape)}")
        assignments += values
    for variable, value in assignments:
        variable.assign(value)
    for leaf in _leaves(model):
        if hasattr(leaf, "finalize_state"):
            # `Normalization` computes with values derived from its weights, and does not update them by itself.
            leaf.finalize_state()


def save_legacy_weights(model: Any, path: Path) -> None:
    """Write the weights of a Keras model in the format of Keras 2, which `load_legacy_weights` reads."""
    layers = {
        layer.name: [
            (f"{layer.name}/{variable.path}", np.asarray(variable.value))
            for variable in (*layer.trainable_weights, *layer.non_trainable_weights)
        ]
        for layer in model.layers
    }
    write_saved_weights(path, layers)


def _paired(model: Any, saved: SavedWeights, path: Path) -> list[tuple[Any, Arrays]]:
    """Return layers with their arrays: by name if the names agree, else by their order, as in Keras."""
    stored = {name.replace("/", "_"): arrays for name, arrays in saved.layers if arrays}
    # Keras 1 saved the layers inside a Sequential as layers of the model itself.
    views = [[layer for layer in layers if layer.weights] for layers in (model.layers, [*_leaves(model)])]
    for layers in views:
        if {layer.name for layer in layers} == set(stored):
            return [(layer, stored[layer.name]) for layer in layers]
    for layers in views:
        if len(layers) == len(stored):
            return [*zip(layers, stored.values(), strict=True)]
    raise ConfigurationError(
        f"A file of weights must hold the weights of the model, which has {len(views[0])} layers with weights. "
        f"Received: {path} with {len(stored)}. Name the weights that belong to the architecture."
    )


def _values(layer: Any, arrays: Arrays, saved: SavedWeights) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield every variable of `layer` with its value; arrays are in the order of Keras, trainable ones first."""
    leaves = [leaf for leaf in _leaves(layer) if leaf.weights]
    counts = [len(leaf.trainable_weights) for leaf in leaves]
    counts += [len(leaf.non_trainable_weights) for leaf in leaves]
    if sum(counts) != len(arrays):
        # The gates of recurrent layers may be separate arrays.
        factors = [len(GATES.get(_class(leaf), (0,))) for leaf in leaves]
        counts = [n * factor for n, factor in zip(counts, factors * 2, strict=True)]
    if sum(counts) != len(arrays):
        raise ValueError(f"{len(arrays)} arrays")
    remaining = iter(arrays)
    parts = [[*islice(remaining, count)] for count in counts]
    for leaf, trained, fixed in zip(leaves, parts, parts[len(leaves) :], strict=False):
        variables = [*leaf.trainable_weights, *leaf.non_trainable_weights]
        yield from zip(variables, _converted(leaf, trained + fixed, saved), strict=True)


def _converted(leaf: Any, arrays: Arrays, saved: SavedWeights) -> Arrays:
    """Return the arrays of a layer without inner layers in the layout of Keras 3."""
    name = _class(leaf)
    if saved.keras_version.startswith("1"):
        arrays = _from_keras_1(name, leaf, arrays)
    if saved.backend == "theano" and name in CONVOLUTIONS:
        n_kernels = 2 if name == "ConvLSTM2D" else 1
        arrays[:n_kernels] = [np.flip(kernel, (*range(kernel.ndim - 2),)) for kernel in arrays[:n_kernels]]
    return _from_cudnn(name, arrays) if name in {"LSTM", "GRU"} else arrays


def _from_keras_1(name: str, leaf: Any, arrays: Arrays) -> Arrays:
    if name in GATES and len(arrays) == 3 * len(GATES[name]):
        # Each gate had a kernel, a recurrent kernel and a bias.
        axis = -1 if getattr(leaf, "data_format", None) != "channels_first" else 0
        arrays = [
            np.concatenate([arrays[3 * gate + kind] for gate in GATES[name]], axis if arrays[kind].ndim > 1 else 0)
            for kind in range(3)
        ]
    if name == "Conv1D":
        kernel = arrays[0]
        # Keras 1.1 had (out, in, length, 1), Keras 1.2 (length, 1, in, out).
        is_older = kernel.shape[1] != 1 or kernel.shape[3] != leaf.filters
        arrays[0] = (np.transpose(kernel, (2, 3, 1, 0)) if is_older else kernel)[:, 0]
    order = KERNELS_OF_KERAS_1.get((name, getattr(leaf, "data_format", "")))
    if order is not None:
        arrays = [np.transpose(array, order) if array.ndim == len(order) else array for array in arrays]
    return arrays


def _from_cudnn(name: str, arrays: Arrays) -> Arrays:
    """Convert CuDNN arrays (two biases, transposed kernels) to the layout of Keras 3; leave others unchanged."""
    n_gates = len(GATES[name])
    if len(arrays) < 3 or arrays[2].shape != (2 * n_gates * len(arrays[1]),):
        return arrays
    kernel, recurrent, bias = arrays
    biases = bias.reshape(2, -1)
    return [
        np.hstack([gate.T.reshape(gate.shape, order="F") for gate in np.hsplit(kernel, n_gates)]),
        np.hstack([gate.T for gate in np.hsplit(recurrent, n_gates)]),
        biases.sum(0) if name == "LSTM" else biases,
    ]


#: layers that contain layers, and the attributes with these
_INSIDE = {"Bidirectional": ("forward_layer", "backward_layer"), "TimeDistributed": ("layer",)}


def _leaves(layer: Any) -> Iterator[Any]:
    """Yield the innermost layers of `layer` in order, or `layer` itself if it contains none."""
    names = _INSIDE.get(_class(layer))
    inside = layer.layers if names is None and hasattr(layer, "layers") else [getattr(layer, n) for n in names or ()]
    if not inside:
        yield layer
    for part in inside:
        yield from _leaves(part)


def _class(layer: Any) -> str:
    return type(layer).__name__


def _misfit(layer: Any, path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"Weights must fit layer {layer.name!r}, a {_class(layer)}. Received: {what}, in {path}. Name the weights that "
        "belong to the architecture."
    )
