"""Batches of a user's generator, pass after pass, distributed over the workers.

Only the current batch and the next one are in memory; the next one shows whether a pass ends. A `Pool` is distributed
by files if there are enough for all workers. Otherwise by batches: every worker runs the full generator and takes the
batches of its turn.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import compress, cycle, islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.trees import leaves
from nnlo_opt.core.data.batches import Batch, Samples
from nnlo_opt.core.data.source import dtype_as_read

#: generator of (x, y) or (x, y, sample weights); x and y are arrays, or lists of arrays
Generate = Callable[[], Iterable[Any]]

_RULE = "`generate_data` must yield batches ([x1, …], [y1, …])"
_ENDLESS = "`generate_data` must return after one epoch of batches"


# ---------------------------------------------------------------- distribution


#: selection of items: out of every n items, those with a True entry
Deal: TypeAlias = tuple[bool, ...]


def dealt(items: Iterable[Any], deals: Iterable[Deal]) -> Iterator[Any]:
    """Return the items that remain after all deals in turn."""
    for deal in deals:
        items = compress(items, cycle(deal))
    return iter(items)


@dataclass(frozen=True, slots=True)
class Pool:
    """Units to distribute: files, or batches of all files together."""

    files: tuple[str, ...]
    #: samples of every unit; None if not counted
    sizes: tuple[int, ...] | None
    by_files: bool
    #: deals so far, if distributed by batches
    deals: tuple[Deal, ...] = ()

    def deal(self, n: int, turns: Collection[int]) -> "Pool":
        """Return the pool of the units at `turns` of every `n` units."""
        deal = tuple(turn in turns for turn in range(n))
        sizes = None if self.sizes is None else tuple(dealt(self.sizes, [deal]))
        if self.by_files:
            return replace(self, files=tuple(dealt(self.files, [deal])), sizes=sizes)
        return replace(self, sizes=sizes, deals=(*self.deals, deal))

    @property
    def n_samples(self) -> int:
        """Number of samples; they must have been counted."""
        return sum(self.sizes or ())

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to generate."""
        return not self.files if self.by_files else self.sizes is not None and not self.sizes


# ---------------------------------------------------------------- batches


def as_samples(item: Any) -> Samples:
    """Return a generator's batch as new arrays; TrialError for anything else.

    A list of one array counts as that array. Features become float32, and so do labels stored as floats.
    """
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        what = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
        raise TrialError(f"{_RULE}. Received: {what}. Yield features and labels.")
    x = _tree(item[0], lambda array: np.dtype(np.float32))
    y = _tree(item[1], lambda array: dtype_as_read(array.dtype))
    weights = np.array(item[2], np.float32).reshape(-1) if len(item) == 3 and item[2] is not None else None
    counts = {len(leaf) for leaf in leaves([x, y] if weights is None else [x, y, weights])}
    if len(counts) > 1:
        raise TrialError(f"{_RULE} of equal length. Received: {', '.join(map(str, sorted(counts)))} rows in one batch.")
    return Samples(x, y, weights)


def _tree(value: Any, dtype_of: Callable[[np.ndarray], DTypeLike]) -> Any:
    if isinstance(value, tuple | list) and len(value) and all(np.ndim(part) for part in value):
        branches = [_tree(part, dtype_of) for part in value]
        return branches[0] if len(branches) == 1 else branches
    array = np.asarray(value)
    if not array.ndim or array.dtype.kind not in "fbiu":
        what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise TrialError(f"{_RULE} of numbers. Received: {what}. Yield arrays, one row for each sample.")
    # Copy, because a generator may reuse its arrays for the next batch.
    return np.array(array, dtype_of(array))


def count_batches(generate: Generate, most: int) -> list[int]:
    """Return the number of samples of every batch of one pass.

    Raises:
        ConfigurationError: an item is not a batch, or there are more than `most` batches.
    """
    sizes: list[int] = []
    for item in filled(generate()):
        if not sizes:
            try:
                as_samples(item)
            except TrialError as error:
                raise ConfigurationError(str(error)) from error
        if len(sizes) >= most:
            raise ConfigurationError(
                f"{_ENDLESS}. Received: more than {most} batches. Remove its endless loop; if an epoch has so many "
                "batches, override `count_data`, or set `max_batches_per_epoch`."
            )
        sizes.append(_n_rows(item[0]))
    return sizes


def filled(items: Iterable[Any]) -> Iterator[Any]:
    """Return the batches that contain samples."""
    return (item for item in items if _has_rows(item))


def _has_rows(item: Any) -> bool:
    try:
        return _n_rows(item[0]) > 0
    except (TypeError, IndexError, KeyError):
        return True  # so that `as_samples` reports the item


def _n_rows(x: Any) -> int:
    while isinstance(x, tuple | list) and len(x) and all(np.ndim(part) for part in x):
        x = x[0]
    return len(x)


class GeneratedStream:
    """Endless passes over the batches of a generator, in its own order.

    Args:
        generate: returns the generator of one pass.
        n_expected: samples of a pass; `next` raises TrialError if a pass has more than twice as many.
    """

    def __init__(self, generate: Generate, n_expected: int) -> None:
        self._generate = generate
        self._most = 2 * n_expected
        self._pass = 0
        #: batches and samples of this pass returned so far
        self._offset = self._n_samples = 0
        #: batches of this pass; None before it begins
        self._batches: Iterator[Samples] | None = None
        #: next batch; None before it is fetched
        self._ahead: Samples | None = None

    @property
    def position(self) -> tuple[int, int]:
        """Number of completed passes, and of batches returned in the current pass: the arguments of `seek`."""
        return self._pass, self._offset

    def seek(self, pass_number: int, offset: int) -> None:
        """Continue from a `position`, skipping the batches before it."""
        self.close()
        self._pass, self._offset, self._n_samples = pass_number, offset, 0

    def peek(self) -> Samples:
        """Return the next batch without moving on."""
        if self._ahead is None:
            self._ahead = self._fetch()
        if self._ahead is None:
            raise TrialError(f"{_RULE} on every worker. Received: none in pass {self._pass + 1}. Give more data.")
        return self._ahead

    def next(self) -> Batch:
        """Return the next batch, which tells whether it ends the pass."""
        samples = self.peek()
        self._n_samples += len(samples)
        if self._n_samples > self._most:
            raise TrialError(
                f"{_ENDLESS}. Received: more than {self._n_samples} samples, but {self._most // 2} were counted. "
                "Remove its endless loop, or correct `count_data`."
            )
        self._ahead = self._fetch()
        is_last = self._ahead is None
        if is_last:
            self.seek(self._pass + 1, 0)
        else:
            self._offset += 1
        return Batch(samples.x, samples.y, is_last, samples.weights)

    def close(self) -> None:
        """Close the generator; the stream can still be used."""
        self._batches = self._ahead = None

    def _fetch(self) -> Samples | None:
        if self._batches is None:
            self._batches = map(as_samples, islice(self._generate(), self._offset, None))
        return next(self._batches, None)
