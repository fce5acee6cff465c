"""Data sets with an index: their items, samples or whole batches, are made anew whenever they are read.

So an item may differ from epoch to epoch, as augmented images do. Nothing is kept in memory; a thread makes the next
batches (`--preload-data`).
"""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError, NnloError, TrialError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays, leaves, map_tree
from nnlo_opt.core.base.user_code import describe
from nnlo_opt.core.data.batches import Batch, Samples
from nnlo_opt.core.data.order import Order
from nnlo_opt.core.data.ragged import concatenate
from nnlo_opt.core.data.source import (
    DataInfo,
    DataSource,
    FileInfo,
    Indices,
    NotFiniteError,
    Shape,
    checked_indices,
    dtype_as_read,
    first_not_finite,
)
from nnlo_opt.engine.data.streaming import ReadAhead

#: items that are made at once where all are read
_N_AT_ONCE = 128
#: items that tell whether their number of steps differs
_N_LOOK = 8
#: labels that are read to infer a loss
_N_HINT = 100


class ItemSource:
    """`DataSource` of a data set with an index.

    Args:
        name: what messages call the data set.
        item: returns an item by its number.
        n_items: number of items.
        collate: makes a batch of items: trees x, y, and weights or None, of any type.
        batched: True if an item is a batch of as many samples as the first one; the last may have fewer.
        finite: which of "features" and "labels" must be finite.

    Raises:
        ConfigurationError: the first items cannot be made.
    """

    def __init__(
        self,
        name: str,
        item: Callable[[int], Any],
        n_items: int,
        collate: Callable[[list[Any]], tuple[Arrays, Arrays, Any]],
        *,
        batched: bool = False,
        finite: Collection[str] = (),
    ) -> None:
        self._name, self._collate, self._finite = name, collate, finite
        self.batched = batched
        #: functions that return the items, and the number of the first item of each
        self._items, self._starts = [item], [0, n_items]
        # Two threads may read, and an item may move the position in an open file.
        self._lock = threading.Lock()
        try:
            looked_at = {0, n_items - 1} if batched else {*range(min(_N_LOOK, n_items)), n_items - 1}
            found = [self._made([number]) for number in sorted(looked_at)]
            features, labels = (
                _open([map_tree(_shape, tree) for tree in trees]) for trees in zip(*map(_parts, found), strict=True)
            )
        except (TrialError, ValueError) as error:
            raise ConfigurationError(str(error)) from error
        first, last = found[0], found[-1]
        #: number of samples of each item, (n_items,)
        self.sizes: Indices = np.full(n_items, len(first))
        self.sizes[-1] = len(last)
        #: True if items have weights
        self.weighted = first.weights is not None
        n_bytes = sum(leaf.nbytes for leaf in leaves([first.x, first.y]))
        self.info = DataInfo(
            files=(FileInfo(Path(name), n_items),),
            feature_shape=features,
            label_shape=labels,
            label_dtype=map_tree(lambda leaf: leaf.dtype.name, first.y),
            sample_bytes=n_bytes // max(1, len(first)),
        )

    def followed_by(self, other: "ItemSource") -> "ItemSource":
        """Return the source of these items and those of another one; ConfigurationError if they differ in form."""
        both = object.__new__(ItemSource)
        both.__dict__ |= self.__dict__
        both._items = [*self._items, *other._items]
        both._starts = [*self._starts, *(self._starts[-1] + start for start in other._starts[1:])]
        both.sizes = np.concatenate([self.sizes, other.sizes])
        one, two = self.info, other.info
        shapes = [[info.feature_shape, info.label_shape] for info in (one, two)]
        try:
            feature_shape, label_shape = _open(shapes)
        except ValueError:
            feature_shape = None
        if feature_shape is None or one.label_dtype != two.label_dtype:
            forms = [f"{info.feature_shape} and {info.label_shape} ({info.label_dtype})" for info in (one, two)]
            raise ConfigurationError(
                "Training and validation samples must have features and labels of the same form. Received: "
                f"{forms[0]} of {self._name}, {forms[1]} of {other._name}. Correct one of them."
            )
        both.info = replace(one, files=one.files + two.files, feature_shape=feature_shape, label_shape=label_shape)
        return both

    def samples(self, numbers: Indices) -> Samples:
        """Return the samples of the items `numbers` (n,), in this order; TrialError if they cannot be made."""
        made = self._made(numbers.tolist())
        if (n_asked := int(self.sizes[numbers].sum())) != len(made):
            what = "batch but the last must have as many samples as the first" if self.batched else "item must be a row"
            raise TrialError(
                f"Every {what} of the arrays that are made of it. Received: {len(made)} rows in place of {n_asked} "
                f"from {self._name}, item {numbers[0]}. Pad or leave out samples in the data set itself."
            )
        return made

    def count(self, numbers: Indices) -> int:
        """Return the number of samples of items."""
        return int(self.sizes[numbers].sum())

    @property
    def some(self) -> Indices:
        """A few items, whose labels tell what loss they need."""
        return np.arange(min(self.info.n_samples, max(1, _N_HINT // int(self.sizes[0]))))

    def read(self, indices: Indices) -> tuple[Arrays, Arrays]:
        return _parts(self._read(indices))

    def read_labels(self, indices: Indices | None = None) -> Arrays:
        return self._read(indices).y

    def read_column(self, name: str, indices: Indices | None = None) -> NDArray[Any]:
        options = f"`{spelled('fold_by')}` and `{spelled('sample_weights_name')}`"
        raise ConfigurationError(
            f"{options} must name a data set. Received: {name!r} for {self._name}, which has none. Leave it out."
        )

    def _read(self, indices: Indices | None) -> Samples:
        indices = checked_indices(indices, self.info.n_samples)
        if not len(indices):
            one = self.samples(np.arange(1))
            return Samples(*(map_tree(lambda leaf: leaf[:0], tree) for tree in _parts(one)))
        pieces = np.array_split(indices, -(-len(indices) // _N_AT_ONCE))
        try:
            return Samples(*map(concatenate, zip(*(_parts(self.samples(piece)) for piece in pieces), strict=True)))
        except ValueError as error:
            raise ConfigurationError(
                f"Samples that are read together must have one shape. Received: {error} from {self._name}. Pad all of "
                "them to one length."
            ) from error

    def _made(self, numbers: list[int]) -> Samples:
        """Return the samples of items, whatever their number."""
        try:
            with self._lock:
                x, y, weights = self._collate([self._item(number) for number in numbers])
            x = map_tree(lambda leaf: leaf.astype(np.float32), x)
            y = map_tree(lambda leaf: leaf.astype(dtype_as_read(leaf.dtype)), y)
        except (NnloError, KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:
            what = f"Item {numbers[0]} of {self._name}"
            raise TrialError(f"{what} must be readable. Received: {describe(error)}.") from error
        for what, tree in ("features", x), ("labels", y):
            for leaf in leaves(tree):
                if what in self._finite and first_not_finite(leaf) is not None:
                    raise NotFiniteError(
                        f"Data must be finite as float32. Received: NaN or infinity among the {what} of {self._name}, "
                        f"in items {numbers[0]} to {numbers[-1]}. Correct the data, or leave the sample out."
                    )
        return Samples(x, y, None if weights is None else np.asarray(weights, np.float32).reshape(-1))

    def _item(self, number: int) -> Any:
        place = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._items[place](number - self._starts[place])


def is_batched(source: DataSource) -> bool:
    """Return True if the numbers of a source are those of batches."""
    return isinstance(source, ItemSource) and source.batched


def n_samples_of(source: DataSource, numbers: Indices) -> int:
    """Return the number of samples that the numbers of a source stand for."""
    return source.count(numbers) if isinstance(source, ItemSource) else len(numbers)


class ItemStream:
    """Endless passes over items, each in a new order that depends only on its number.

    Args:
        make: returns the samples of items by their places in the shard, in any order; called in a thread.
        order: order of the items in every pass, of one window.
        batch_size: items of a batch, at least 1.
        n_ahead: batches that the thread makes ahead; 0: no thread.
    """

    def __init__(self, make: Callable[[Indices], Samples], order: Order, batch_size: int, n_ahead: int) -> None:
        self._make, self._order, self._batch_size = make, order, batch_size
        self._n_items = order.n_samples
        self._n_batches = -(-self._n_items // batch_size)
        #: number of the next batch, over all passes
        self._number = 0
        #: last pass asked for, and the order of its items
        self._sequence: tuple[int, Indices] = -1, np.empty(0, np.int64)
        self._ahead: ReadAhead[Samples] = ReadAhead(self._batch, n_ahead)

    @property
    def position(self) -> tuple[int, int]:
        sweep, batch = divmod(self._number, self._n_batches)
        return sweep, batch * self._batch_size

    def seek(self, pass_number: int, offset: int) -> None:
        if pass_number < 0 or offset % self._batch_size or not 0 <= offset < self._n_items:
            raise ValueError(f"A position must be the begin of a batch. Received: {pass_number}, {offset}.")
        self._number = pass_number * self._n_batches + offset // self._batch_size

    def next(self) -> Batch:
        samples = self._ahead.get(self._number)
        self._number += 1
        return Batch(samples.x, samples.y, self._number % self._n_batches == 0, samples.weights)

    def close(self) -> None:
        self._ahead.close()

    def _batch(self, number: int) -> Samples:
        sweep, batch = divmod(number, self._n_batches)
        if self._sequence[0] != sweep:
            numbers, order = self._order.window(sweep, 0)
            self._sequence = sweep, numbers if order is None else numbers[order]
        return self._make(self._sequence[1][batch * self._batch_size : (batch + 1) * self._batch_size])


def _parts(samples: Samples) -> tuple[Arrays, Arrays]:
    return samples.x, samples.y


def _shape(leaf: NDArray[Any]) -> Shape:
    return leaf.shape[1:]


def _open(shapes: Sequence[Any]) -> Any:
    """Return the shape of several trees, None for a number of steps that differs; ValueError if more differs."""

    def merged(*same: Shape) -> Shape:
        if len({shape[1:] for shape in same}) > 1 or len({len(shape) for shape in same}) > 1:
            raise ValueError(f"Samples must differ in their number of steps alone. Received: {same}.")
        return same[0] if len({*same}) == 1 else (None, *same[0][1:])

    return map_tree(merged, *shapes)
