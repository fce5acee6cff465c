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


def aligned_empty(n: int) -> NDArray[np.float32]:
    """Return an uninitialised float32 vector, shape (n,)."""
    return aligned_bytes(4 * n).view(np.float32)
