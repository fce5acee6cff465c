"""Collective calls over MPI that all ranks of a user's program have agreed on; `comm.calls` says how."""

import os
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from nnlo_opt.comm.calls import DTYPES, HALVES, Agreement, Call, chunks, doubled, halved, head, idle_head, refusal
from nnlo_opt.comm.transport import wait_until
from nnlo_opt.errors import ConfigurationError, NnloError
from nnlo_opt.vectors import aligned_bytes

#: seconds of spinning for the other ranks, longer than ranks differ in a batch; after that the rank sleeps in between
SPIN_S = 0.05
_OPERATIONS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}


class AgreedCalls:
    """Collective calls of the ranks of a communicator, which carries nothing else; one thread at a time calls."""

    def __init__(self, comm: MPI.Comm) -> None:
        """Take over `comm`. Collective: every rank of it."""
        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        #: error of the last call: a framework hands on another one
        self.failure: NnloError | None = None

    def average(self, vector: NDArray, n_samples: int, *, kind: str = "sum", n_arrays: int = 0) -> NDArray:
        """Return the mean of the vectors of all ranks, weighted by their samples.

        Args:
            vector: one-dimensional, float32 or float64; it is not changed.
            n_samples: samples of this rank.
            kind: sum, or one of `HALVES` for a sum that travels in 16 bits.
            n_arrays: arrays that make up the vector.

        Collective: every rank.
        """
        call = Call(kind, vector.dtype.name, vector.size, n_arrays)
        share = n_samples / max(1, self._agree(call, n_samples).n_samples)
        mean = aligned_bytes(vector.nbytes).view(vector.dtype)
        # Shares before the sum keep a sum of 16 bits in its range.
        np.multiply(vector, vector.dtype.type(share), out=mean)
        self._reduce(mean, kind)
        return mean

    def average_chunks(self, vector: NDArray, n_samples: int) -> "ChunkedAverage":
        """Begin to average `vector` (float32) by `chunks`. Collective: every rank, before any other call."""
        agreement = self._agree(Call("chunks", vector.dtype.name, vector.size), n_samples)
        return ChunkedAverage(self._comm, vector, n_samples / max(1, agreement.n_samples))

    def reduce(self, array: NDArray, kind: str, *, averages: bool = False) -> NDArray:
        """Return the sum, min or max over the ranks, with `averages` the sum over the number of ranks that take part.

        Collective: every rank that has not joined; ranks that have joined add nothing.
        """
        result = np.array(array, order="C")
        agreement = self._agree(Call(kind, array.dtype.name, array.size), 1)
        self._reduce(result.reshape(-1), kind)
        return (result / agreement.n_active).astype(array.dtype) if averages else result

    def gather(self, array: NDArray) -> NDArray:
        """Return the rows of all ranks, one rank after the other. Collective: every rank."""
        array = np.ascontiguousarray(array)  # a number becomes a row
        numbers = _numbers(array)
        n_in_row = int(np.prod(array.shape[1:], dtype=int)) * (array.itemsize // numbers.itemsize)
        rows = numbers.reshape(len(array), n_in_row)
        self._agree(Call("gather", rows.dtype.name, n_in_row), 1)
        return self._gather(rows).view(array.dtype).reshape(-1, *array.shape[1:])

    def broadcast(self, array: NDArray, root: int) -> NDArray:
        """Return the array of rank `root`. Collective: every rank."""
        array = np.array(array, order="C")
        numbers = _numbers(array)
        self._agree(Call("broadcast", numbers.dtype.name, numbers.size, root), 1)
        self._comm.Bcast([numbers, MPI.BYTE], root)
        return array

    def join(self) -> int:
        """Take part in the calls of the other ranks until all have joined; return the last rank that has joined."""
        n_calls = self._serve(idle_head(), lambda agreement: agreement.n_active == 0)
        return self._last(self.rank if n_calls == 0 else -1)

    def leave(self) -> None:
        """Return when all ranks have left their programs; ranks that make further calls raise."""
        self._serve(idle_head(self.rank), lambda agreement: agreement.n_left == self.size)

    def _last(self, rank: int) -> int:
        last = np.array([rank], np.int64)
        self._comm.Allreduce(MPI.IN_PLACE, last, MPI.MAX)
        return int(last[0])

    def _serve(self, idle: NDArray, is_over: Callable[[Agreement], bool]) -> int:
        """Take part in calls without data of this rank; return how many there were."""
        n_calls = 0
        while not is_over(agreement := self._meet(idle)):
            n_calls += 1
            if agreement.n_active == 0:
                self._last(-1)  # which the ranks ask for that have joined
            elif self._is_refused(agreement):
                self._refuse(agreement, None)
            elif agreement.call is not None:
                self._take_part(agreement.call)
        return n_calls

    def _meet(self, mine: NDArray) -> Agreement:
        sums = mine.copy()
        request = self._comm.Iallreduce(MPI.IN_PLACE, sums, MPI.SUM)
        spins_until_s = time.perf_counter() + SPIN_S
        while not request.Test():
            if time.perf_counter() > spins_until_s:
                wait_until(request.Test)
                break
            os.sched_yield()
        return Agreement.of(sums)

    def _agree(self, call: Call, n_samples: int) -> Agreement:
        """Return what all ranks have agreed on; raises ConfigurationError if it is not this call."""
        agreement = self._meet(head(call, n_samples))
        if self._is_refused(agreement):
            self.failure = self._refuse(agreement, call)
            raise self.failure
        return agreement

    def _is_refused(self, agreement: Agreement) -> bool:
        return agreement.n_left > 0 or agreement.call is None

    def _refuse(self, agreement: Agreement, call: Call | None) -> NnloError:
        codes = np.empty((self.size, 3), np.int64)
        self._comm.Allgather(np.array(call.code() if call else [-1, 0, 0], np.int64), codes)
        return refusal(agreement, [Call.of(code) if code[0] >= 0 else None for code in codes])

    def _take_part(self, call: Call) -> None:
        """Make the same calls to MPI as the ranks that make `call`, with nothing of this rank."""
        if call.kind == "gather":
            self._gather(np.empty((0, call.n_numbers), call.dtype))
            return
        nothing = np.zeros(call.n_numbers, call.dtype)
        if call.kind == "broadcast":
            self._comm.Bcast([nothing, MPI.BYTE], call.root)
        elif call.kind == "chunks":
            ChunkedAverage(self._comm, nothing, 0).finish()
        else:
            self._reduce(nothing, call.kind, takes_part=False)

    def _reduce(self, vector: NDArray, kind: str, *, takes_part: bool = True) -> None:
        if kind in HALVES:
            self._sum_halves(vector, kind)
            return
        if not takes_part and kind != "sum":
            limits = np.iinfo(vector.dtype) if vector.dtype.kind in "iu" else np.finfo(vector.dtype)
            vector.fill(limits.max if kind == "min" else limits.min)
        request = self._comm.Iallreduce(MPI.IN_PLACE, vector, _OPERATIONS[kind])
        while not request.Test():
            os.sched_yield()  # a rank that has to send may wait for this core; MPICH's Allreduce would keep it

    def _sum_halves(self, vector: NDArray, kind: str) -> None:
        """Sum in place: each rank sums a part in float32, and sends it to all; both ways in 16 bits."""
        part = -(-vector.size // self.size)
        mine = np.zeros(part * self.size, np.uint16)
        mine[: vector.size] = halved(vector, kind)
        parts = np.empty_like(mine)
        self._comm.Alltoall([mine, MPI.UINT16_T], [parts, MPI.UINT16_T])
        total = doubled(parts, kind).reshape(self.size, part).sum(0)
        self._comm.Allgather([halved(total, kind), MPI.UINT16_T], [mine, MPI.UINT16_T])
        vector[:] = doubled(mine, kind)[: vector.size]

    def _gather(self, rows: NDArray) -> NDArray:
        n_rows = np.empty(self.size, np.int64)
        self._comm.Allgather(np.array([len(rows)], np.int64), n_rows)
        gathered = np.empty((int(n_rows.sum()), rows.shape[1]), rows.dtype)
        n_bytes = (n_rows * rows.shape[1] * rows.itemsize).tolist()
        self._comm.Allgatherv([rows, MPI.BYTE], [gathered, n_bytes, MPI.BYTE])
        return gathered


def _numbers(array: NDArray) -> NDArray:
    """Return the numbers of an array one after the other; its bytes if a call does not know the dtype.

    Raises:
        ConfigurationError: it holds Python objects.
    """
    if array.dtype.hasobject:
        raise ConfigurationError("Ranks exchange arrays of numbers or texts. Received: Python objects.")
    flat = array.reshape(-1)
    return flat if flat.dtype.name in DTYPES else flat.view(np.uint8)


class ChunkedAverage:
    """Weighted mean of the vectors of all ranks, whose chunks travel while later ones are still computed."""

    def __init__(self, comm: MPI.Comm, vector: NDArray, share: float) -> None:
        """Average `vector` in place; the caller multiplies what it writes to it by `share`, this rank's weight."""
        self.share = share
        self._comm = comm
        self._vector = vector
        self._chunks = chunks(vector.size)
        self._requests: list[MPI.Request] = []

    def send_until(self, end: int) -> None:
        """Send the chunks that end at or before the number `end` of the vector, which are complete."""
        while len(self._requests) < len(self._chunks) and self._chunks[len(self._requests)].stop <= end:
            chunk = self._vector[self._chunks[len(self._requests)]]
            self._requests.append(self._comm.Iallreduce(MPI.IN_PLACE, chunk, MPI.SUM))
        MPI.Request.Testall(self._requests)  # without calls MPI makes no progress

    def finish(self) -> None:
        """Send the rest, and return when the vector is the mean."""
        self.send_until(self._vector.size)
        MPI.Request.Waitall(self._requests)
