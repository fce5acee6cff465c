"""Messages of any size: MPI counts numbers up to 2^31 - 1, so larger ones go in parts, all of them here."""

from collections.abc import Callable, Iterator

import numpy as np
from mpi4py import MPI

#: most bytes of a part
PART_BYTES = 1 << 30


def parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the numbers of a contiguous array one after the other as views of at most `PART_BYTES`; at least one."""
    flat, step = array.reshape(-1), max(1, PART_BYTES // array.itemsize)
    for start in range(0, max(1, flat.size), step):
        yield flat[start : start + step]


def broadcast(comm: MPI.Comm, array: np.ndarray, root: int) -> None:
    """Give a contiguous array the bytes of rank `root`. Collective: every rank, with equally many bytes."""
    for part in parts(array.reshape(-1).view(np.uint8)):
        comm.Bcast([part, MPI.BYTE], root)


def reduce_in_place(
    comm: MPI.Comm, vector: np.ndarray, operation: MPI.Op, wait: Callable[[MPI.Request], object] = MPI.Request.Wait
) -> None:
    """Reduce a vector in place. Collective: every rank, with equally many numbers.

    Args:
        wait: returns when a request is complete.
    """
    for part in parts(vector):
        wait(comm.Iallreduce(MPI.IN_PLACE, part, operation))


def gather_rows(comm: MPI.Comm, rows: np.ndarray) -> np.ndarray:
    """Return the rows of all ranks, one rank after the other. Collective: every rank, with rows of equal length."""
    n_rows = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(rows)], np.int64), n_rows)
    gathered = np.empty((int(n_rows.sum()), *rows.shape[1:]), rows.dtype)
    if gathered.nbytes <= PART_BYTES:
        n_bytes = (n_rows * (gathered.nbytes // max(1, len(gathered)))).tolist()
        comm.Allgatherv([rows, MPI.BYTE], [gathered, n_bytes, MPI.BYTE])
        return gathered
    # Places in what is gathered are counted, too; so each rank sends its rows to all others.
    for root, of_root in enumerate(np.split(gathered, np.cumsum(n_rows)[:-1])):
        if root == comm.Get_rank():
            of_root[:] = rows
        broadcast(comm, of_root, root)
    return gathered
