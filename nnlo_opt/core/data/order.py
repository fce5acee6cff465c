"""Order of the samples of a shard in each pass.

A shard is cut into blocks of consecutive samples, large enough to read efficiently and small enough that a window has
many. A pass visits the blocks in random order; several blocks form a window, whose samples are shuffled. So any sample
can come anywhere, files sorted by class are mixed, and a shard larger than memory is read window by window. A shard of
one window is fully permuted.

The order depends only on (*rng_key, pass) and the cut, and the cut only on the data, not on whether the shard fits into
memory. So the same seed gives the same training on a machine with less memory.
"""

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.data.source import DataInfo, Indices

#: bytes of a window, that is, of the samples shuffled together; also the memory used for a shard that does not fit
WINDOW_BYTES = 64 << 20
#: bytes of a block; reading it takes about a millisecond, of which starting takes some 0.1 ms
BLOCK_BYTES = 1 << 20


class Cut(Frozen):
    """Division of a shard into blocks and windows."""

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
        """Return the cut for samples of the size in `info`."""
        sample_bytes, chunk = max(1, info.sample_bytes), max(1, info.chunk_samples)
        window = max(chunk, WINDOW_BYTES // sample_bytes)
        # Only whole chunks can be read: a block of two chunks reads one more at its ends; larger blocks would shuffle
        # less.
        block = min(window, max(2 * chunk if chunk > 1 else 1, BLOCK_BYTES // sample_bytes))
        return cls(block=block, n_blocks=window // block)


class Order:
    """Order of samples in every pass; thread-safe. Only the blocks of the last requested pass are cached.

    Args:
        n_samples: number of samples, at least 1.
        rng_key: seed, numbers >= 0.
        shuffle: False to keep the order of the samples.
        cut: division into blocks and windows; None for a single window.
    """

    def __init__(self, n_samples: int, rng_key: tuple[int, ...], *, shuffle: bool, cut: Cut | None = None) -> None:
        if n_samples < 1:
            raise ValueError("A stream of batches needs at least one sample.")
        self.n_samples = n_samples
        self.shuffle = shuffle
        self._rng_key = rng_key
        self._cut = cut or Cut(block=n_samples, n_blocks=1)
        #: number of a pass, and its shuffled blocks
        self._blocks: tuple[int, Indices] | None = None

    @property
    def n_windows(self) -> int:
        """Windows of a pass."""
        n_blocks = -(-self.n_samples // self._cut.block)
        return -(-n_blocks // self._cut.n_blocks)

    def starts(self, pass_number: int) -> Indices:
        """Return the number of samples before each window of the pass, and their total, (n_windows + 1,)."""
        sizes = self._sizes(self._blocks_of(pass_number))
        edges = np.arange(0, len(sizes), self._cut.n_blocks)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.add.reduceat(sizes, edges))])

    def window(self, pass_number: int, number: int) -> tuple[Indices, NDArray[np.int64] | None]:
        """Return the samples of a window (m,), ascending, and their permutation (m,); None if they stay in order."""
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
        known = self._blocks  # another thread may replace it at any time
        if known is None or known[0] != pass_number:
            n_blocks = -(-self.n_samples // self._cut.block)
            shuffled = self.shuffle and self.n_windows > 1
            blocks = self._rng(pass_number).permutation(n_blocks) if shuffled else np.arange(n_blocks)
            known = self._blocks = pass_number, blocks
        return known[1]

    def _sizes(self, blocks: Indices) -> Indices:
        return np.minimum((blocks + 1) * self._cut.block, self.n_samples) - blocks * self._cut.block

    def _rng(self, pass_number: int) -> np.random.Generator:
        return np.random.default_rng((*self._rng_key, pass_number))
