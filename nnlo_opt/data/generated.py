"""Batches that a user's generator makes, pass after pass, and how they are dealt out to workers.

Nothing is held but one batch ahead of the one that is trained, which tells the last batch of a pass. What there is to
be dealt is a `Pool`: by files where each worker can have some, else batch by batch, and then every worker runs the
whole generator and takes its turn.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nnlo_opt.data.batches import Batch, Samples
from nnlo_opt.data.source import DataInfo, FileInfo, dtype_as_read
from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.trees import leaves, map_tree, n_samples, shapes_of

#: what a generator yields: (x, y) or (x, y, sample weights); x and y arrays, or lists of them
Generate = Callable[[], Iterable[Any]]

_RULE = "`generate_data` must yield batches ([x1, …], [y1, …])"
_ENDLESS = "`generate_data` must return after one epoch of batches"
_NO_FILE = Path("generated")


# ---------------------------------------------------------------- who takes what


@dataclass(frozen=True, slots=True)
class Deal:
    """Of every `n` batches those whose turn is in `turns` (0 .. n - 1)."""

    n: int
    turns: frozenset[int]


def dealt(items: Iterable[Any], deals: Iterable[Deal]) -> Iterator[Any]:
    """The items that are left after one deal after another."""
    for deal in deals:
        items = _turns(items, deal)
    return iter(items)


def _turns(items: Iterable[Any], deal: Deal) -> Iterator[Any]:
    return (item for number, item in enumerate(items) if number % deal.n in deal.turns)


@dataclass(frozen=True, slots=True)
class Pool:
    """What there is to be dealt out, in units: files, or batches of all files together."""

    files: tuple[str, ...]
    #: samples of every unit; None: not counted, nor the batches
    sizes: tuple[int, ...] | None
    by_files: bool
    #: by batches: what has been dealt already
    deals: tuple[Deal, ...] = ()

    def deal(self, n: int, turns: Collection[int]) -> "Pool":
        """Of every `n` units those whose turn is in `turns`."""
        n_units = len(self.files) if self.by_files else len(self.sizes or ())
        mine = [number for number in range(n_units) if number % n in turns]
        sizes = None if self.sizes is None else tuple(self.sizes[number] for number in mine)
        if self.by_files:
            return replace(self, files=tuple(self.files[number] for number in mine), sizes=sizes)
        return replace(self, sizes=sizes, deals=(*self.deals, Deal(n, frozenset(turns))))

    @property
    def n_samples(self) -> int:
        """Samples in it; it must have been counted."""
        return sum(self.sizes or ())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be generated."""
        return not self.files if self.by_files else self.sizes is not None and not self.sizes


# ---------------------------------------------------------------- batches


def as_samples(item: Any) -> Samples:
    """What a generator has yielded, as arrays of our own; TrialError for anything else than a batch.

    A list of one array counts as that array. Features become float32, as does what labels are stored as floats.
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


def _tree(value: Any, dtype_of: Callable[[NDArray], DTypeLike]) -> Any:
    if isinstance(value, tuple | list) and len(value) and all(np.ndim(part) for part in value):
        branches = [_tree(part, dtype_of) for part in value]
        return branches[0] if len(branches) == 1 else branches
    array = np.asarray(value)
    if not array.ndim or array.dtype.kind not in "fbiu":
        raise TrialError(f"{_RULE} of numbers. Received: {_in_words(value)}. Yield arrays, one row a sample.")
    # A copy: a generator may use its arrays again for the next batch.
    return np.array(array, dtype_of(array))


def _in_words(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def info_of(samples: Samples) -> DataInfo:
    """What a batch tells of all of them."""
    return DataInfo(
        files=(FileInfo(_NO_FILE, n_samples(samples.x)),),
        feature_shape=shapes_of(samples.x),
        label_shape=shapes_of(samples.y),
        feature_dtype=map_tree(lambda leaf: leaf.dtype.name, samples.x),
        label_dtype=map_tree(lambda leaf: leaf.dtype.name, samples.y),
    )


def count_batches(generate: Generate, most: int) -> list[int]:
    """Samples of every batch of one pass; ConfigurationError for what is no batch, and past `most` batches."""
    sizes: list[int] = []
    for item in filled(generate()):
        if not sizes:
            try:
                as_samples(item)
            except TrialError as error:
                raise ConfigurationError(str(error)) from error
        if len(sizes) >= most:
            raise ConfigurationError(
                f"{_ENDLESS}. Received: more than {most} batches. Take out its endless loop; if an epoch is as long as "
                "that, override `count_data`, or set `max_batches_per_epoch`."
            )
        sizes.append(_n_rows(item[0]))
    return sizes


def filled(items: Iterable[Any]) -> Iterator[Any]:
    """The batches that hold samples."""
    return (item for item in items if _has_rows(item))


def _has_rows(item: Any) -> bool:
    try:
        return _n_rows(item[0]) > 0
    except (TypeError, IndexError, KeyError):
        return True  # and `as_samples` says what it is


def _n_rows(x: Any) -> int:
    while isinstance(x, tuple | list) and len(x) and all(np.ndim(part) for part in x):
        x = x[0]
    return len(x)


class GeneratedStream:
    """Endless passes over what a generator yields, in its own order."""

    def __init__(self, generate: Generate, n_expected: int) -> None:
        """`n_expected`: samples of a pass; TrialError from `next` when one goes on past twice as many."""
        self._generate = generate
        self._most = 2 * n_expected
        self._pass = 0
        #: batches and samples of this pass handed out
        self._offset = self._n_samples = 0
        #: of this pass; None: not begun
        self._batches: Iterator[Samples] | None = None
        #: the next batch; None: not fetched yet
        self._ahead: Samples | None = None

    @property
    def position(self) -> tuple[int, int]:
        """Passes completed, and batches of the current one handed out: where `seek` leads back to."""
        return self._pass, self._offset

    def seek(self, pass_number: int, offset: int) -> None:
        """Go to a `position`, by passing over the batches before it."""
        self.close()
        self._pass, self._offset, self._n_samples = pass_number, offset, 0

    def peek(self) -> Samples:
        """The next batch, which stays the next."""
        if self._ahead is None:
            self._ahead = self._fetch()
        if self._ahead is None:
            raise TrialError(f"{_RULE} on every worker. Received: none in pass {self._pass + 1}. Give more data.")
        return self._ahead

    def next(self) -> Batch:
        """The next batch, and whether it ends the pass."""
        samples = self.peek()
        self._n_samples += len(samples)
        if self._n_samples > self._most:
            raise TrialError(
                f"{_ENDLESS}. Received: {self._n_samples} samples and more, where {self._most // 2} were counted. Take "
                "out its endless loop, or mend `count_data`."
            )
        self._ahead = self._fetch()
        is_last = self._ahead is None
        if is_last:
            self.seek(self._pass + 1, 0)
        else:
            self._offset += 1
        return Batch(samples.x, samples.y, is_last, samples.weights)

    def close(self) -> None:
        """Let go of the generator; the stream can still be used."""
        self._batches = self._ahead = None

    def _fetch(self) -> Samples | None:
        if self._batches is None:
            self._batches = map(as_samples, islice(self._generate(), self._offset, None))
        return next(self._batches, None)
