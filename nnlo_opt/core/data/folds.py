"""Divides samples into folds, and into a shard for each worker."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays, leaves
from nnlo_opt.core.data.source import Indices


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Sample numbers for training and for validation: disjoint, ascending int64 arrays."""

    train: Indices
    validation: Indices


def single_fold(n_train: int, n_validation: int) -> Fold:
    """Return a train/validation split: the first `n_train` samples train, the next `n_validation` validate."""
    numbers = np.arange(n_train + n_validation)
    return Fold(numbers[:n_train], numbers[n_train:])


def make_folds(
    n_fold: int, *, n_samples: int, seed: int, labels: np.ndarray | None = None, groups: np.ndarray | None = None
) -> list[Fold]:
    """Cut the samples 0 .. n_samples - 1 into `n_fold` folds.

    Fold sizes differ by at most one sample. If `labels` are classes (`classes_of`), folds are stratified: the number of
    samples of each class differs by at most one, too. With `groups`, all samples of a group are in one fold; the
    largest groups are assigned first to make the sizes as equal as possible, and labels are ignored.

    Args:
        n_fold: number of folds, at least 2.
        n_samples: number of samples.
        seed: the same seed gives the same folds.
        labels: (n_samples, ...).
        groups: group of each sample, (n_samples,).

    Raises:
        ConfigurationError: `n_fold` exceeds the number of samples or groups.
    """
    rng = np.random.default_rng(seed)
    if groups is not None:
        fold_of = _deal_groups(n_fold, _numbered(groups, n_samples, "groups"), rng)
    else:
        classes = None if labels is None else classes_of(labels)
        numbers = np.zeros(n_samples) if classes is None else _numbered(classes, n_samples, "labels")
        fold_of = _deal_samples(n_fold, numbers, rng)
    return [Fold(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(n_fold)]


def check_workers(n_samples: int, n_workers: int, n_fold: int = 1, what: str = "sample") -> None:
    """Raise ConfigurationError if a fold has fewer training samples, or batches, than workers."""
    if n_samples < n_workers:
        several = "" if n_samples == 1 else "es" if what == "batch" else "s"
        raise ConfigurationError(
            f"Every worker must have at least one training {what}. Received: {n_samples} {what}{several}"
            f"{' in a fold' * (n_fold > 1)} for {n_workers} workers. Use fewer ranks, or more data; in a search, "
            f"smaller blocks (`{spelled('block_size')}`)."
        )


def shard(indices: Indices, n_workers: int, worker: int) -> Indices:
    """Return the shard of `worker` (0 .. n_workers - 1): a view of a contiguous part of `indices`.

    The shards of all workers together are `indices`; their sizes differ by at most one. A contiguous part reads the
    fewest files.

    Raises:
        ConfigurationError: there are fewer samples than workers.
    """
    if not 0 <= worker < n_workers:
        raise ValueError(f"`worker` must be from 0 to {n_workers - 1}. Received: {worker}.")
    check_workers(len(indices), n_workers)
    start, stop = (len(indices) * edge // n_workers for edge in (worker, worker + 1))
    return indices[start:stop]


def classes_of(labels: np.ndarray) -> NDArray[np.int64] | None:
    """Return the class of every sample, (n,), if `labels` are classes; None otherwise, for example for a regression.

    Classes are one-hot rows (n, c) of any dtype with c >= 2, integers or booleans (n,) or (n, 1), or floats (n,) or
    (n, 1) that are all 0 or 1.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1:
        is_class = labels.dtype.kind in "iub" or _is_binary(labels)
        return labels.astype(np.int64) if is_class else None
    if labels.ndim == 2 and labels.shape[1] > 1 and _is_binary(labels) and np.all(labels.sum(axis=1) == 1):
        return labels.argmax(axis=1)
    return None


def first_classes(labels: Arrays) -> tuple[int, NDArray[np.int64]] | None:
    """Return the number of the first leaf of `labels` with classes, and the class of every sample; None if none has."""
    for number, leaf in enumerate(leaves(labels)):
        classes = classes_of(leaf) if isinstance(leaf, np.ndarray) else None
        if classes is not None:
            return number, classes
    return None


def class_numbers(labels: Arrays, number: int) -> NDArray[np.int64]:
    """Return the classes, (n,), in leaf `number`, as found by `first_classes` for all samples."""
    leaf = next(islice(leaves(labels), number, None))
    if leaf.ndim == 2 and leaf.shape[1] > 1:
        return leaf.argmax(axis=1)
    return leaf.reshape(-1).astype(np.int64)


def _is_binary(values: np.ndarray) -> bool:
    return bool(np.all((values == 0) | (values == 1)))


def _numbered(keys: np.ndarray, n_samples: int, what: str) -> Indices:
    """Number the distinct keys from 0."""
    if len(keys) != n_samples:
        raise ValueError(f"`{what}` must have one entry a sample, {n_samples}. Received: {len(keys)}.")
    return np.unique(keys, return_inverse=True)[1]


def _deal_samples(n_fold: int, classes: np.ndarray, rng: np.random.Generator) -> Indices:
    """Return the fold of every sample: samples are shuffled, ordered by class, and dealt to the folds in turn."""
    _check_enough(n_fold, len(classes), "samples")
    order = rng.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    fold_of = np.empty(len(classes), np.int64)
    fold_of[order] = np.arange(len(classes)) % n_fold
    return fold_of


def _deal_groups(n_fold: int, groups: Indices, rng: np.random.Generator) -> Indices:
    """Return the fold of every sample: groups go, largest first, to the fold with the fewest samples."""
    sizes = np.bincount(groups)
    _check_enough(n_fold, len(sizes), f"groups of samples (`{spelled('fold_by')}`)")
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    fold_of_group = np.empty(len(sizes), np.int64)
    n_in_fold = np.zeros(n_fold, np.int64)
    for group in order:
        # Ties go to the first fold; no fold stays empty, because no group is empty.
        fold_of_group[group] = fold = np.argmin(n_in_fold)
        n_in_fold[fold] += sizes[group]
    return fold_of_group[groups]


def _check_enough(n_fold: int, n: int, what: str) -> None:
    if n_fold > n:
        raise ConfigurationError(
            f"`{spelled('n_fold')}` must be at most the number of {what}, {n}. Received: {n_fold}. Ask for fewer folds."
        )
