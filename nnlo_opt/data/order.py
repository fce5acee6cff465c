"""The order of the samples of a shard, pass by pass.

A shard is cut into blocks of consecutive samples, small enough that many of them make a window and large enough to be
read at once. A pass takes the blocks in a random order, some at a time; these are a window, whose samples it takes in a
random order. So a sample may come out anywhere, files sorted by class are mixed, and a shard larger than memory can be
read window by window. A shard of one window is one permutation.

The order depends on (*rng_key, pass) and on the cut alone, and the cut on the data alone: not on whether the shard is
held in memory. So the same seed gives the same training on a machine with less memory.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.data.source import DataInfo, Indices

#: samples mixed with each other; also what is held in memory at a time of a shard that does not fit
WINDOW_BYTES = 64 << 20
#: read at once: a millisecond or so, against some 0.1 ms to begin a read
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a shard is divided."""

    #: samples of a block, at least 1
    block: int
    #: blocks of a window, at least 1
    n_blocks: int

    @property
    def window(self) -> int:
        """Samples of a window."""
        return self.block * self.n_blocks

    @classmethod
    def of(cls, info: DataInfo) -> "Cut":
        """The cut for samples as large as those of `info`."""
        sample_bytes, chunk = max(1, info.sample_bytes), max(1, info.chunk_samples)
        window = max(chunk, WINDOW_BYTES // sample_bytes)
        # A chunk is read whole: a block of two reads one more at its ends, and larger blocks would mix less.
        block = min(window, max(2 * chunk if chunk > 1 else 1, BLOCK_BYTES // sample_bytes))
        return cls(block=block, n_blocks=window // block)


class Order:
    """The order of `n_samples` samples in every pass; holds nothing but the blocks of the pass asked about last."""

    def __init__(self, n_samples: int, rng_key: tuple[int, ...], *, shuffle: bool, cut: Cut | None = None) -> None:
        """`rng_key` holds numbers >= 0."""
        if n_samples < 1:
            raise ValueError("A stream of batches needs at least one sample.")
        self.n_samples = n_samples
        self.shuffle = shuffle
        self._rng_key = rng_key
        self._cut = cut or Cut(block=n_samples, n_blocks=1)
        #: (pass, its blocks in order)
        self._blocks: tuple[int, Indices] | None = None

    def twin(self) -> "Order":
        """The same order for another thread."""
        return Order(self.n_samples, self._rng_key, shuffle=self.shuffle, cut=self._cut)

    @property
    def n_windows(self) -> int:
        """Windows of a pass."""
        n_blocks = -(-self.n_samples // self._cut.block)
        return -(-n_blocks // self._cut.n_blocks)

    def starts(self, pass_number: int) -> Indices:
        """For every window the samples that come before it in the pass, and their total, (n_windows + 1,)."""
        sizes = self._sizes(self._blocks_of(pass_number))
        edges = np.arange(0, len(sizes), self._cut.n_blocks)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.add.reduceat(sizes, edges))])

    def window(self, pass_number: int, number: int) -> tuple[Indices, NDArray[np.int64] | None]:
        """(samples of the window (m,), ascending; in what order they come (m,), None: in this)."""
        blocks = self._blocks_of(pass_number)
        mine = np.sort(blocks[number * self._cut.n_blocks : (number + 1) * self._cut.n_blocks])
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._sizes(mine))])
        samples = np.arange(edges[-1]) + np.repeat(mine * self._cut.block - edges[:-1], np.diff(edges))
        if not self.shuffle:
            return samples, None
        if self.n_windows == 1:
            return samples, self._rng(pass_number).permutation(len(samples))
        seed = np.random.SeedSequence((*self._rng_key, pass_number), spawn_key=(number,))
        return samples, np.random.default_rng(seed).permutation(len(samples))

    def _blocks_of(self, pass_number: int) -> Indices:
        if self._blocks is None or self._blocks[0] != pass_number:
            n_blocks = -(-self.n_samples // self._cut.block)
            shuffled = self.shuffle and self.n_windows > 1
            blocks = self._rng(pass_number).permutation(n_blocks) if shuffled else np.arange(n_blocks)
            self._blocks = pass_number, blocks
        return self._blocks[1]

    def _sizes(self, blocks: Indices) -> Indices:
        return np.minimum((blocks + 1) * self._cut.block, self.n_samples) - blocks * self._cut.block

    def _rng(self, pass_number: int) -> np.random.Generator:
        return np.random.default_rng((*self._rng_key, pass_number))
