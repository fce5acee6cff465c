"""Allreduce steps in shared memory, where each rank updates its part of the weights.

Every rank writes its gradient to shared memory. Then each averages one n-th of all gradients and applies that part of
the optimizer's step; when all parts are done, every rank reads all weights. If gradients are clipped by their norm, the
ranks meet once more, to add up the squares of their parts. So nothing is sent, and n ranks compute one
optimizer step instead of n: stage 1 of ZeRO (Rajbhandari et al., arXiv:1910.02054), with the reduce-scatter and the
gather of an allreduce. The result is the same as if every rank averaged all gradients.

Collective: every rank must call the same methods in the same order, unless stated otherwise.
"""

import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from nnlo_opt.core.base.vectors import ALIGNMENT_BYTES, offsets
from nnlo_opt.core.comm.transport import Collective, SharedMemory
from nnlo_opt.core.update_rules.clipping import Clipping
from nnlo_opt.core.update_rules.optimizers import Optimizer
from nnlo_opt.core.update_rules.vectors import block_size, scratch_for

#: int64 numbers of a rank, in its own cache line: the count of its barriers, then numbers about a step
_LINE = ALIGNMENT_BYTES // 8
#: seconds: a waiting rank spins for this long, then checks with these pauses; interval of checks for dead ranks
_SPIN_S, _PAUSE_S, _CHECK_S = 2e-3, 1e-4, 1e-2
#: granularity of the parts of the weights, in numbers, so that no two ranks share a cache line
_GRAIN = ALIGNMENT_BYTES // 4


class Averaging(Protocol):
    """Averages the gradients of the ranks of a group."""

    #: this rank's gradient, float32 (n_weights,); write it before `average`
    gradient: np.ndarray

    def average(self, numbers: Sequence[float]) -> Sequence[float]:
        """Sum `numbers` over all ranks; average the gradients, weighted by the first number, the samples.

        Collective: every rank must call it. Blocks until all have; RanksLost if a rank has died.
        """


class SharedStep:
    """One rank's view of the shared memory for the steps of an assignment."""

    def __init__(
        self,
        memory: SharedMemory,
        optimizer: Optimizer,
        n_weights: int,
        rank: int,
        n_ranks: int,
        together: Collective,
        clipping: Clipping | None = None,
    ) -> None:
        """Store the slots of `optimizer` in `memory` from now on; `rank` counts from 0. Not collective.

        Args:
            clipping: clips the averaged gradient; None if nothing does.
        """
        self._optimizer = optimizer
        self._rank = rank
        self._together = together
        self._clipping = clipping
        n_norms = 0 if clipping is None else len(clipping.parts)
        at = iter(_starts(n_weights, len(optimizer.slots), n_ranks, n_norms)[:-1])
        #: one line per rank
        self._lines = memory.bytes[next(at) :][: ALIGNMENT_BYTES * n_ranks].data.cast("q")
        self._mine = self._lines[_LINE * rank : _LINE * (rank + 1)]
        self._n_met = 0
        self._others = [_LINE * other for other in range(n_ranks) if other != rank]
        #: samples of each rank in this step
        self._n_samples = [0] * n_ranks
        #: of each rank, the squares of its part of the gradient (n_ranks, n_norms)
        self._squares = memory.bytes[next(at) :][: 8 * n_norms * n_ranks].view(np.float64).reshape(n_ranks, n_norms)
        vectors = [memory.bytes[start:][: 4 * n_weights].view(np.float32) for start in at]
        #: the weights of all ranks (n_weights,)
        self.weights = vectors.pop(0)
        optimizer.live_in([vectors.pop(0) for _ in optimizer.slots])
        self.gradient = vectors[rank]
        first, last = (min(n_weights, _cut(n_weights, part, n_ranks)) for part in (rank, rank + 1))
        size = block_size(n_weights)
        #: this rank's part, in blocks; for each block the gradients of all ranks
        self._part = [slice(start, min(start + size, last)) for start in range(first, last, size)]
        self._gradients = [[vector[block] for vector in vectors] for block in self._part]
        self._scratch = scratch_for(n_weights)
        self._fence = threading.Lock()

    @staticmethod
    def n_bytes(optimizer: Optimizer, n_weights: int, n_ranks: int, clipping: Clipping | None = None) -> int:
        """Return the size of the memory for `n_ranks`; it must be zeroed."""
        n_norms = 0 if clipping is None else len(clipping.parts)
        return _starts(n_weights, len(optimizer.slots), n_ranks, n_norms)[-1]

    def average(self, numbers: Sequence[float]) -> Sequence[float]:
        """Sum at most 7 whole numbers over all ranks, as in `Averaging`; `apply` averages the gradients."""
        for i, number in enumerate(numbers, 1):
            self._mine[i] = int(number)
        self._meet()
        of_ranks = [self._lines[i::_LINE].tolist() for i in range(1, 1 + len(numbers))]
        self._n_samples = of_ranks[0]
        return [sum(of_rank) for of_rank in of_ranks]

    def apply(self) -> None:
        """Apply this rank's part of the step along the average; return when `weights` has all parts."""
        try:
            self._optimizer.at_step(self._optimizer.n_steps + 1)
            # Non-finite numbers stay visible in the weights.
            with np.errstate(all="ignore"):
                if self._clipping is not None:
                    self._clip(self._clipping)
                for block, gradients in zip(self._part, self._gradients, strict=True):
                    if self._clipping is None:
                        self._average(gradients)
                    self._optimizer.apply_block(self.weights, self.gradient, block)
        finally:
            self._meet()

    def _clip(self, clipping: Clipping) -> None:
        """Average and clip this rank's part of the gradient."""
        for gradients in self._gradients:
            self._average(gradients)
        part = slice(self._part[0].start, self._part[-1].stop) if self._part else slice(0, 0)
        self._squares[self._rank] = clipping.squares(self.gradient, part)
        if clipping.parts:
            self._meet()
        clipping.scale(self.gradient, part, self._squares.sum(axis=0))

    def _average(self, gradients: Sequence[np.ndarray]) -> None:
        """Turn this rank's gradient of a block into the mean of all gradients, weighted by samples."""
        n_samples, mean = self._n_samples, gradients[self._rank]
        if n_samples.count(n_samples[0]) == len(n_samples):  # true except in the last steps of a pass
            for rank, gradient in enumerate(gradients):
                if rank != self._rank:
                    mean += gradient
            mean *= 1 / len(n_samples)
            return
        # A rank without samples has not written a gradient.
        if n_samples[self._rank]:
            mean *= n_samples[self._rank]
        else:
            mean[:] = 0
        term = self._scratch[: len(mean)]
        for rank, gradient in enumerate(gradients):
            if rank != self._rank and n_samples[rank]:
                np.multiply(gradient, n_samples[rank], out=term)
                mean += term
        mean *= 1 / sum(n_samples)

    def _meet(self) -> None:
        """Barrier: wait for all ranks; afterwards all ranks see all earlier writes."""
        self._n_met += 1
        self._order()
        self._mine[0] = self._n_met
        if not self._are_here():
            self._wait()
        self._order()

    def _wait(self) -> None:
        began_s = checked_s = time.perf_counter()
        while not self._are_here():
            os.sched_yield()  # there may be more ranks than cores
            now_s = time.perf_counter()
            if now_s - began_s > _SPIN_S:
                time.sleep(_PAUSE_S)
            if now_s - checked_s > _CHECK_S:
                self._together.check()
                checked_s = now_s

    def _are_here(self) -> bool:
        lines, n_met = self._lines, self._n_met
        return all(lines[other] >= n_met for other in self._others)

    def _order(self) -> None:
        """Memory fence: no reads or writes are reordered across this call."""
        for _ in range(2):
            with self._fence:
                pass


def _starts(n_weights: int, n_vectors: int, n_ranks: int, n_norms: int) -> list[int]:
    """Return the offsets of lines, squares, weights, the optimizer's vectors and gradients, and the end."""
    vectors = [4 * n_weights] * (1 + n_vectors + n_ranks)
    return offsets([ALIGNMENT_BYTES * n_ranks, 8 * n_norms * n_ranks, *vectors])


def _cut(n_weights: int, part: int, n_parts: int) -> int:
    return -(-n_weights // (n_parts * _GRAIN)) * _GRAIN * part
