"""Samples that a model module makes, in place of naming data files: what its `get_train` and `get_val` return."""

import hashlib
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError, NnloError, TrialError, shown
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.trees import Arrays, leaves
from nnlo_opt.core.data.arrays import ArraySource
from nnlo_opt.core.data.ragged import concatenate
from nnlo_opt.core.data.source import DataSource, NotFiniteError
from nnlo_opt.engine.data.indexed import ItemSource

#: column of `ArraySource` with the weight of each sample
WEIGHTS = "sample_weight"
_ENCODE = (
    "Encode text as numbers, for example by a `TextVectorization` or `StringLookup` layer outside of the model, and "
    "pad sequences to one length by `keras.utils.pad_sequences`"
)
#: whole numbers above it are not all float32
_LARGEST_EXACT = 2**24
_ROUNDED = (
    f"Features are float32, which rounds whole numbers above {_LARGEST_EXACT:,}. Number identifiers from 0, for "
    "example by `numpy.unique(x, return_inverse=True)[1]`."
)
#: parts of a wrong value that a message names
_MOST_PARTS = 4
_RULE = (
    "the path of a list file, a list of data files, or the samples: arrays `(x, y)` or `(x, y, sample_weight)`, a "
    "torch `Dataset` or a Keras `PyDataset`"
)


class Made(Frozen):
    """Samples that a function of a model module has returned."""

    source: DataSource
    #: the kind of samples, in words
    kind: str
    #: remarks for the user
    remarks: tuple[str, ...] = ()
    #: tells whether a later start has the same samples
    fingerprint: str = ""
    #: True if each sample has a weight, in the column `WEIGHTS`
    has_weights: bool = False

    @property
    def brings_weights(self) -> bool:
        """True if each sample has a weight, in a column or with the items."""
        return self.has_weights or (isinstance(self.source, ItemSource) and self.source.weighted)


def made_of(
    value: Any, function: str, finite: Collection[str], collate: Callable[[list[Any]], Any] | None = None
) -> Made:
    """Return the samples in `value`.

    Args:
        value: what `function` has returned, for example "`get_train` of model.py".
        finite: which of "features" and "labels" must be finite.
        collate: makes a batch of the items of a torch `Dataset`; None: each part of the items becomes an array.

    Raises:
        ConfigurationError: it holds no samples, or samples that cannot be read by number.
    """

    def refused(remedy: str, what: str = "") -> ConfigurationError:
        return ConfigurationError(f"{function} must return {_RULE}. Received: {what or in_words(value)}. {remedy}.")

    if remedy := _remedy(value):
        raise refused(remedy)
    if _is_a(value, "torch", "Dataset"):
        return _of_torch(value, function, finite, collate, refused)
    if _is_a(value, "keras", "PyDataset"):
        return _of_keras(value, function, finite, refused)
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        raise refused("Return a tuple of features and labels" if _holds_samples(value) else "Correct the module")
    x, y = (_tree(part, refused) for part in value[:2])
    weights = _weights(value[2], refused) if len(value) == 3 else None
    lengths = {len(leaf) for leaf in (*leaves([x, y]), *([] if weights is None else [weights]))}
    if len(lengths) > 1 or lengths == {0}:
        raise refused("All arrays must have one row for each sample, and at least one")
    columns = {} if weights is None else {WEIGHTS: weights}
    try:
        source = ArraySource(x, y, columns, name=function, finite=finite)
        fingerprint = source.fingerprint()
    except TypeError as error:
        what = str(error).removeprefix("Numbers are expected. Received: ").rstrip(".")
        raise refused(_ENCODE, what) from None
    except NotFiniteError as error:
        raise ConfigurationError(str(error)) from error
    names = [_names(part) for part in value[:2]]
    source.info = replace(source.info, feature_names=names[0], label_names=names[1])
    of = [
        f"{what} in the order {', '.join(own)}" for what, own in zip(("features", "labels"), names, strict=True) if own
    ]
    kind = f"arrays, {' and '.join(of)}" if of else "arrays"
    whole = (leaf for leaf in leaves(x) if leaf.dtype.kind in "iu" and leaf.size)
    is_rounded = any(max(int(leaf.max()), -int(leaf.min())) > _LARGEST_EXACT for leaf in whole)
    return Made(
        source=source,
        kind=kind,
        remarks=(_ROUNDED,) * is_rounded,
        fingerprint=fingerprint,
        has_weights=weights is not None,
    )


def _tree(value: Any, refused: Callable[..., NnloError]) -> Arrays:
    """Return an array, or the list of the arrays of a list or dictionary, the latter in the order of its keys."""
    if isinstance(value, dict) and value and all(isinstance(key, str) for key in value):
        return [_tree(value[key], refused) for key in sorted(value)]
    if isinstance(value, list | tuple) and value:
        return [_tree(part, refused) for part in value]
    if remedy := _remedy(value):
        raise refused(remedy)
    try:
        array = np.asarray(value)
    except Exception:  # for example a tensor on a GPU
        array = np.empty(())
    if not getattr(value, "shape", ()) or not array.shape:
        raise refused("Make arrays of them, by `numpy.asarray`")
    return array


def _names(value: Any) -> tuple[str, ...]:
    return tuple(sorted(value)) if isinstance(value, dict) else ()


def _weights(value: Any, refused: Callable[..., ConfigurationError]) -> NDArray[np.float32]:
    weights = _tree(value, refused)
    if isinstance(weights, list) or weights.ndim != 1 or weights.dtype.kind not in "iufb":
        raise refused("The weights of samples are one array with a number for each sample")
    weights = weights.astype(np.float32)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise refused("The weights of samples must be finite, at least 0, and not all 0")
    return weights


# ---------------------------------------------------------------- data sets with an index


def _of_torch(
    dataset: Any,
    function: str,
    finite: Collection[str],
    collate: Callable[[list[Any]], Any] | None,
    refused: Callable[..., ConfigurationError],
) -> Made:
    """Return the samples of a torch `Dataset` of the map style."""
    name = type(dataset).__name__
    if not hasattr(dataset, "__len__") or not len(dataset):
        raise refused("Define its `__len__`, of at least 1", f"{name}, whose length is unknown or 0")

    def as_batch(items: list[Any]) -> tuple[Arrays, Arrays, Any]:
        return _batch_of((collate or _stacked)(items), name, "`collate_fn`" if collate else "An item")

    source = ItemSource(f"{name} of {function}", dataset.__getitem__, len(dataset), as_batch, finite=finite)
    # A split that is drawn must be the same on every rank.
    split = "" if (numbers := getattr(dataset, "indices", None)) is None else f", {_digest(numbers)}"
    fingerprint = f"{name} of {len(dataset)} items{split}"
    return Made(source=source, kind=f"torch Dataset `{name}`", fingerprint=fingerprint)


def _digest(numbers: Any) -> str:
    return hashlib.sha256(np.asarray(numbers).tobytes()).hexdigest()


def _of_keras(dataset: Any, function: str, finite: Collection[str], refused: Callable[..., ConfigurationError]) -> Made:
    """Return the batches of a Keras `PyDataset`."""
    name, n_batches = type(dataset).__name__, dataset.num_batches
    if not n_batches:
        raise refused("Define its `__len__`, of at least 1", f"{name}, whose number of batches is {n_batches}")

    def as_batch(items: list[Any]) -> tuple[Arrays, Arrays, Any]:
        batches = [_batch_of(item, name, "An item") for item in items]
        if len(batches) == 1:
            return batches[0]
        x, y = (concatenate([batch[part] for batch in batches]) for part in (0, 1))
        weights = [batch[2] for batch in batches]
        return x, y, None if weights[0] is None else np.concatenate(weights)

    source = ItemSource(f"{name} of {function}", dataset.__getitem__, n_batches, as_batch, batched=True, finite=finite)
    size = int(source.sizes[0])
    ignored = [f"`{part}`" for part in ("on_epoch_begin", "on_epoch_end") if _overrides(dataset, part)]
    remarks = [f"{' and '.join(ignored)} of `{name}` are not called: the seed shuffles the batches."] if ignored else []
    if getattr(dataset, "workers", 1) > 1 or getattr(dataset, "use_multiprocessing", False):
        remarks.append(f"`workers` of `{name}` have no effect: one thread makes batches ahead.")
    return Made(
        source=source,
        kind=f"Keras PyDataset `{name}`, {n_batches:,} batches of {size}",
        remarks=tuple(remarks),
        fingerprint=f"{name} of {n_batches} batches of {size}",
    )


def _overrides(dataset: Any, method: str) -> bool:
    owner = next((of for of in type(dataset).__mro__ if method in vars(of)), object)
    return owner is not object and owner.__module__.partition(".")[0] != "keras"


def _stacked(items: list[Any]) -> Any:
    """Return a batch of items of the same form: tuples, lists and dictionaries of arrays and numbers."""
    first = items[0]
    if isinstance(first, dict):
        return {key: _stacked([item[key] for item in items]) for key in first}
    if isinstance(first, list | tuple):
        return tuple(_stacked([*parts]) for parts in zip(*items, strict=True))
    return np.stack([np.asarray(item) for item in items])


def _batch_of(value: Any, name: str, what: str) -> tuple[Arrays, Arrays, Any]:
    """Return features, labels and weights of a batch; TrialError if it is none."""

    def refused(remedy: str, found: str = "") -> TrialError:
        rule = "a tuple of features and labels, and perhaps weights"
        return TrialError(f"{what} of {name} must be {rule}. Received: {found or in_words(value)}. {remedy}.")

    if not isinstance(value, list | tuple) or len(value) not in (2, 3):
        raise refused("Return `(x, y)`, for example from a function `collate_fn(items)` of the module")
    x, y = (_tree(part, refused) for part in value[:2])
    if len({len(leaf) for leaf in leaves([x, y])}) != 1:
        raise refused("All arrays must have one row for each sample")
    return x, y, None if len(value) == 2 else _tree(value[2], refused)


def _is_a(value: Any, package: str, name: str) -> bool:
    """Return True for an object of a class of a framework, which need not be imported to tell."""
    return any(of.__name__ == name and of.__module__.partition(".")[0] == package for of in type(value).__mro__)


# ---------------------------------------------------------------- what cannot be read by number

#: (package, class) -> the two lines that make arrays or a data set of it
_REMEDIES = {
    ("pandas", "DataFrame"): 'y = frame.pop("label").to_numpy()\nreturn frame.to_numpy("float32"), y',
    ("pandas", "Series"): "x, y = x.to_numpy(), y.to_numpy()\nreturn x, y",
    ("polars", "DataFrame"): 'y = frame["label"].to_numpy()\nreturn frame.drop("label").to_numpy(), y',
    ("polars", "Series"): "x, y = x.to_numpy(), y.to_numpy()\nreturn x, y",
    ("scipy", "_spbase"): "x = x.toarray()\nreturn x, y",
    ("tensorflow", "DatasetV2"): "whole = data.unbatch().batch(10**9)  # without unbatch if there are no batches\n"
    "return next(whole.as_numpy_iterator())",
    ("tensorflow", "RaggedTensor"): "x = x.to_tensor().numpy()\nreturn x, y",
    ("torch", "IterableDataset"): "x, y = zip(*data)\nreturn numpy.stack(x), numpy.stack(y)",
    ("torch", "DataLoader"): "collate_fn = loader.collate_fn  # of the module\nreturn loader.dataset",
    ("datasets", "Dataset"): 'data = data.with_format("numpy")\nreturn data["x"], data["y"]',
}
_OF_ITERATOR = "x, y = zip(*batches)  # if they end\nreturn numpy.concatenate(x), numpy.concatenate(y)"


def _remedy(value: Any) -> str:
    """Return what to write in place of samples that have no index; empty if they may have one."""
    if isinstance(value, np.ndarray):
        return ""
    for of in type(value).__mro__:
        if lines := _REMEDIES.get((of.__module__.partition(".")[0], of.__name__)):
            return _as_lines(lines)
    return _as_lines(_OF_ITERATOR) if hasattr(value, "__next__") else ""


def _as_lines(lines: str) -> str:
    return "Write " + " and ".join(f"`{line}`" for line in lines.splitlines())


# ---------------------------------------------------------------- values in words


def in_words(value: Any) -> str:
    """Return a value in words; of samples the type and the shape, because their text is long and says nothing."""
    if hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list | dict) and not _is_plain(value):
        parts = [*map(in_words, islice(value.values() if isinstance(value, dict) else value, _MOST_PARTS))]
        more = ["…"] * (len(value) > _MOST_PARTS)
        return f"a {type(value).__name__} of {', '.join([*parts, *more])}"
    return shown(value) if _is_plain(value) else type(value).__name__


def _holds_samples(value: Any) -> bool:
    return not _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Return True for a value whose text says what it is."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return isinstance(value, str | os.PathLike | tuple | list | dict | int | float | None) and all(
        map(_is_plain, parts)
    )
