"""Buffers aligned to 64 bytes.

Frameworks that alias NumPy memory (DLPack) abort the process if the alignment is smaller.
"""

from collections.abc import Iterable
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

ALIGNMENT_BYTES = 64


def aligned(n_bytes: int) -> int:
    """Round `n_bytes` up to a multiple of `ALIGNMENT_BYTES`."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def offsets(sizes: Iterable[int]) -> list[int]:
    """Return the offsets of consecutive aligned parts of these sizes, and the end of the last."""
    return [0, *accumulate(map(aligned, sizes))]


def aligned_bytes(n_bytes: int) -> NDArray[np.uint8]:
    """Return an uninitialised uint8 array, shape (n_bytes,)."""
    raw = np.empty(n_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + n_bytes]


def with_bytes(vector: NDArray[np.float32] | None, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return a vector (None: an empty one) followed by bytes, shape (n_bytes,), which fill whole numbers."""
    n = 0 if vector is None else len(vector)
    both = aligned_empty(n - (-len(data) // 4))
    if vector is not None:
        both[:n] = vector
    both[n:].view(np.uint8)[: len(data)] = data
    return both


def without_bytes(both: NDArray[np.float32], n_bytes: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the vector and a copy of the `n_bytes` bytes that `with_bytes` has joined; the vector is a view."""
    n = len(both) + (-n_bytes // 4)
    return both[:n], both[n:].view(np.uint8)[:n_bytes].copy()


def aligned_empty(n: int) -> NDArray[np.float32]:
    """Return an uninitialised float32 vector, shape (n,)."""
    return aligned_bytes(4 * n).view(np.float32)
