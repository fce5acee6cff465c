"""One allreduce step in memory of the node: each rank averages and applies the part of the weights that is its own.

Every rank writes its gradient where the others see it. When all have, each averages one n-th of the weights' gradients,
and makes that part of the optimizer's step; when all have, every rank reads all the weights. So nothing is sent, and
n ranks make one step of the optimizer where they made n: stage 1 of ZeRO (Rajbhandari et al., arXiv:1910.02054), on the
reduce-scatter and the gather that an allreduce is made of. The result is that of averaging everything everywhere.

All methods but those that say so are for every rank, the same ones in the same order.
"""

import os
import threading
import time
from typing import Protocol

import numpy as np

from nnlo_opt.algorithms.optimizers import Optimizer
from nnlo_opt.algorithms.vectors import block_size, scratch_for
from nnlo_opt.comm.transport import Collective, SharedMemory
from nnlo_opt.vectors import ALIGNMENT_BYTES, aligned

#: float32 numbers that go with a gradient: samples, ranks that failed, ranks that want the epoch to end, and sums
N_FLAGS, N_SUMS = 3, 61
_N_NUMBERS = N_FLAGS + N_SUMS
#: who waits looks without a pause for so long, then with pauses of as much; and for deaths as often as that; seconds
_SPIN_S, _PAUSE_S, _CHECK_S = 2e-3, 1e-4, 1e-2
#: the smallest parts of the weights that ranks take, in numbers: a cache line is nobody's twice
_GRAIN = ALIGNMENT_BYTES // 4


class Averaging(Protocol):
    """How the gradients of the ranks of a group become one."""

    #: where this rank's gradient is to be written, float32 (n_weights,)
    gradient: np.ndarray

    def average(self, numbers: np.ndarray) -> np.ndarray:
        """Sum the `numbers` (64,) of all ranks, the first of which are samples; average the gradients by these.

        It blocks until all ranks have called it; RanksLost where one cannot.
        """
        ...


class SharedStep:
    """The memory of the steps of one assignment, as one of its ranks holds it."""

    def __init__(
        self, memory: SharedMemory, optimizer: Optimizer, n_weights: int, rank: int, n_ranks: int, together: Collective
    ) -> None:
        """`rank` counts from 0; `optimizer` lives in `memory` from now on. For each rank by itself."""
        self._optimizer = optimizer
        self._rank = rank
        self._together = together
        starts = _starts(n_weights, len(optimizer.slots), n_ranks)
        at = iter(starts)
        #: how many times each rank has met the others; a cache line of int64 for each
        self._arrived = memory.bytes[next(at) :][: ALIGNMENT_BYTES * n_ranks].data.cast("q")
        self._n_met = 0
        self._others = [8 * other for other in range(n_ranks) if other != rank]
        numbers = memory.bytes[next(at) :][: 4 * _N_NUMBERS * n_ranks].view(np.float32)
        #: what goes with the gradient of each rank
        self._numbers = numbers.reshape(n_ranks, _N_NUMBERS)
        vectors = [memory.bytes[start:][: 4 * n_weights].view(np.float32) for start in at]
        #: of all ranks (n_weights,)
        self.weights = vectors.pop(0)
        optimizer.live_in([vectors.pop(0) for _ in optimizer.slots])
        self._gradients = vectors
        self.gradient = vectors[rank]
        first, last = (min(n_weights, _cut(n_weights, part, n_ranks)) for part in (rank, rank + 1))
        size = block_size(n_weights)
        #: the part of this rank, in blocks
        self._part = [slice(start, min(start + size, last)) for start in range(first, last, size)]
        self._scratch = scratch_for(n_weights)
        self._fence = threading.Lock()

    @staticmethod
    def n_bytes(optimizer: Optimizer, n_weights: int, n_ranks: int) -> int:
        """Of the memory for `n_ranks`, of zeros at the beginning."""
        return _starts(n_weights, len(optimizer.slots), n_ranks)[-1] + aligned(4 * n_weights)

    def average(self, numbers: np.ndarray) -> np.ndarray:
        """As `Averaging`; the mean gradient is known for the part of this rank only, which `apply` takes."""
        self._numbers[self._rank] = numbers
        self._meet()
        total: np.ndarray = self._numbers.sum(axis=0)
        n_samples = self._numbers[:, 0]
        if total[0]:
            with np.errstate(all="ignore"):
                for block in self._part:
                    self._average_block(block, n_samples, 1 / total[0])
        return total

    def _average_block(self, block: slice, n_samples: np.ndarray, factor: np.float32) -> None:
        mean = self.gradient[block]
        # A rank without samples has written no gradient.
        if n_samples[self._rank]:
            mean *= n_samples[self._rank]
        else:
            mean[:] = 0
        term = self._scratch[: block.stop - block.start]
        for rank, gradient in enumerate(self._gradients):
            if rank != self._rank and n_samples[rank]:
                np.multiply(gradient[block], n_samples[rank], out=term)
                mean += term
        mean *= factor

    def apply(self) -> None:
        """Make the optimizer's step along the average; then `weights` are those of all parts."""
        try:
            self._optimizer.n_steps += 1
            for block in self._part:
                self._optimizer.apply_block(self.weights, self.gradient, block)
        finally:
            self._meet()

    def _meet(self) -> None:
        """Wait until all ranks are here: what each has written before, all see after."""
        self._n_met += 1
        self._order()
        self._arrived[8 * self._rank] = self._n_met
        began_s = checked_s = time.perf_counter()
        while not self._are_here():
            os.sched_yield()  # for there may be more ranks than cores
            now_s = time.perf_counter()
            if now_s - began_s > _SPIN_S:
                time.sleep(_PAUSE_S)
            if now_s - checked_s > _CHECK_S:
                self._together.check()
                checked_s = now_s
        self._order()

    def _are_here(self) -> bool:
        arrived, n_met = self._arrived, self._n_met
        return all(arrived[other] >= n_met for other in self._others)

    def _order(self) -> None:
        """Let no processor move what is read and written here from one side of this call to the other."""
        for _ in range(2):
            with self._fence:
                pass


def _starts(n_weights: int, n_vectors: int, n_ranks: int) -> list[int]:
    """First bytes of arrivals, numbers, weights, the optimizer's vectors and gradients."""
    sizes = [ALIGNMENT_BYTES * n_ranks, 4 * _N_NUMBERS * n_ranks] + [4 * n_weights] * (1 + n_vectors + n_ranks)
    starts = [0]
    for size in sizes[:-1]:
        starts.append(starts[-1] + aligned(size))
    return starts


def _cut(n_weights: int, part: int, n_parts: int) -> int:
    return -(-n_weights // (n_parts * _GRAIN)) * _GRAIN * part
