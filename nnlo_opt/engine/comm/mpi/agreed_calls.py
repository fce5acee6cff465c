"""Collective calls over MPI after an agreement of all ranks of a user's program (`core.comm.calls`)."""

import os
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from nnlo_opt.core.base.errors import ConfigurationError, NnloError
from nnlo_opt.core.base.vectors import aligned_bytes
from nnlo_opt.core.comm import calls
from nnlo_opt.core.comm.calls import DTYPES, HALVES, Agreement, Call, Step, numbers_of
from nnlo_opt.core.comm.transport import wait_until
from nnlo_opt.engine.comm.mpi.parts import broadcast, gather_rows, parts, reduce_in_place

#: seconds of spinning for the other ranks, longer than ranks differ in a batch; after that the rank sleeps in between
SPIN_S = 0.05
_OPERATIONS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}


class AgreedCalls:
    """Collective calls of the ranks of a communicator. Nothing else may use `comm`, and only one thread at a time."""

    def __init__(self, comm: MPI.Comm) -> None:
        """Take over `comm`. Collective: every rank of it must call it."""
        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        #: error of the last call; a framework may raise another one instead
        self.failure: NnloError | None = None

    def average(
        self, vector: np.ndarray, n_samples: int, step: Step, kind: str = "sum", sums: bool = False
    ) -> np.ndarray:
        """Return the mean of the vectors of all ranks, weighted by their samples.

        Args:
            vector: one-dimensional, float32 or float64; it is not changed.
            n_samples: samples of this rank.
            step: what the vector is for.
            kind: sum, or one of `HALVES` for a sum that travels in 16 bits.
            sums: True for the mean times the number of participating ranks.

        Collective: every rank.
        """
        agreement = self._agree_on_sum(kind, "sum" if sums else "average", vector, n_samples, step)
        share = n_samples / max(1, agreement.n_samples) * (agreement.n_active if sums else 1)
        mean = aligned_bytes(vector.nbytes).view(vector.dtype)
        # Shares before the sum keep a sum of 16 bits in its range.
        np.multiply(vector, vector.dtype.type(share), out=mean)
        self._reduce(mean, kind)
        return mean

    def average_chunks(self, vector: np.ndarray, n_samples: int, step: Step) -> "ChunkedAverage":
        """Begin to average `vector` (float32) by `chunks`. Collective: every rank, before any other call."""
        agreement = self._agree_on_sum("chunks", "average", vector, n_samples, step)
        return ChunkedAverage(self._comm, vector, n_samples / max(1, agreement.n_samples))

    def _agree_on_sum(self, kind: str, operation: str, vector: np.ndarray, n_samples: int, step: Step) -> Agreement:
        way = f" as {kind}" * (kind != "sum") + f", {step.shown}" * bool(step.rates)
        words = f"a reduction ({operation}{way}) of {numbers_of(vector.shape, vector.dtype)} in arrays of {step.shapes}"
        return self._agree(Call(kind, vector.dtype.name, vector.size, words=words), n_samples)

    def reduce(self, array: np.ndarray, operation: str, name: str | None = None) -> np.ndarray:
        """Return the sum, average, min, max or product over the ranks, which have the same bits of it.

        Args:
            array: real numbers. Small integers, bool and 16 bits are computed in the next dtype that MPI knows.
            operation: sum, average, min, max or product.
            name: name that must be equal on all ranks.

        Raises:
            ConfigurationError: it holds no real numbers, or the mean of integers is no integer.

        Collective: every rank that has not joined; ranks that have joined add nothing.
        """
        is_integer, averages = array.dtype.kind in "biu", operation == "average"
        if not (is_integer or array.dtype.name in ("float16", "bfloat16", "float32", "float64")):
            raise self._failed(f"`hvd.allreduce` takes real numbers. Received: an array of {array.dtype}.")
        given = _native(array)
        least = np.int32 if is_integer else np.float32
        numbers = given.astype(given.dtype if given.itemsize == 8 else np.result_type(given.dtype, least))
        if is_integer and averages:
            numbers = np.stack([numbers, numbers])  # quotients and rests, whose sums do not overflow
        words = f"a reduction ({operation}) of {numbers_of(given.shape, given.dtype, name)}"
        call = Call("sum" if averages else operation, numbers.dtype.name, numbers.size, words=words)
        n_active = self._agree(call, 1).n_active
        if is_integer and averages:
            numbers[:] = np.divmod(numbers[0], n_active)
        self._reduce(numbers.reshape(-1), call.kind)
        if is_integer and averages:
            if (numbers[1] % n_active).any():
                raise self._failed(
                    "`hvd.allreduce` averages integers only if their mean is an integer. Received: integers with "
                    f"another mean over {n_active} ranks. Give floating point numbers, or `op=hvd.Sum`."
                )
            numbers = numbers[0] + numbers[1] // n_active
        elif averages:
            np.divide(numbers, n_active, out=numbers)
        return np.asarray(numbers, array.dtype)

    def gather(self, array: np.ndarray, name: str | None = None) -> np.ndarray:
        """Concatenate the rows of all ranks, in rank order. Collective: every rank."""
        given = np.atleast_1d(_native(array))  # a number becomes a row
        numbers = _numbers(given)
        n_in_row = int(np.prod(given.shape[1:], dtype=int)) * (given.itemsize // numbers.itemsize)
        words = f"a gathering of rows of {numbers_of(given.shape[1:], given.dtype, name)}"
        self._agree(Call("gather", numbers.dtype.name, n_in_row, words=words), 1)
        rows = gather_rows(self._comm, numbers.reshape(len(given), n_in_row))
        return np.asarray(rows.view(given.dtype).reshape(len(rows), *given.shape[1:]), array.dtype)

    def broadcast(self, array: np.ndarray, root: int, name: str | None = None) -> np.ndarray:
        """Return the array of rank `root`. Collective: every rank."""
        given = np.array(_native(array))
        numbers = _numbers(given)
        words = f"a broadcast of {numbers_of(given.shape, given.dtype, name)} from rank {root}"
        self._agree(Call("broadcast", numbers.dtype.name, numbers.size, root, words), 1)
        broadcast(self._comm, numbers, root)
        return np.asarray(given, array.dtype)

    def barrier(self) -> None:
        """Wait until all ranks that have not joined have called it. Collective: every rank."""
        self._agree(Call("sum", "uint8", 0, words="a barrier"), 1)
        self._reduce(np.empty(0, np.uint8), "sum")

    def join(self) -> int:
        """Take part in the calls of the other ranks until all have joined; return the last rank to join."""
        n_calls = self._serve(calls.idle_head(), lambda agreement: agreement.n_active == 0)
        return self._last(self.rank if n_calls == 0 else -1)

    def leave(self) -> None:
        """Wait until all ranks have left their programs; ranks that make further calls raise."""
        self._serve(calls.idle_head(self.rank), lambda agreement: agreement.n_left == self.size)

    def _last(self, rank: int) -> int:
        last = np.array([rank], np.int64)
        self._comm.Allreduce(MPI.IN_PLACE, last, MPI.MAX)
        return int(last[0])

    def _serve(self, idle: np.ndarray, is_over: Callable[[Agreement], bool]) -> int:
        """Take part in calls without data of this rank; return how many there were."""
        n_calls = 0
        while not is_over(agreement := self._meet(idle)):
            n_calls += 1
            if agreement.n_active == 0:
                self._last(-1)  # which the ranks ask for that have joined
            elif self._is_refused(agreement):
                self._refuse(agreement, "")
            elif agreement.call is not None:
                self._take_part(agreement.call)
        return n_calls

    def _meet(self, mine: np.ndarray) -> Agreement:
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
        self.failure = None
        agreement = self._meet(calls.head(call, n_samples))
        if self._is_refused(agreement):
            raise self._failed(self._refuse(agreement, call.words))
        return agreement

    def _failed(self, failure: str) -> ConfigurationError:
        """Return the error of these words, and keep it."""
        self.failure = ConfigurationError(failure)
        return self.failure

    def _is_refused(self, agreement: Agreement) -> bool:
        return agreement.n_left > 0 or agreement.call is None

    def _refuse(self, agreement: Agreement, words: str) -> str:
        line = np.frombuffer(f"{' '.join(words.split())}\n".encode(), np.uint8)
        return calls.refusal(agreement, gather_rows(self._comm, line[:, None]).tobytes().decode().split("\n"))

    def _take_part(self, call: Call) -> None:
        """Make the same MPI calls as the ranks that make `call`, without contributing."""
        if call.kind == "gather":
            gather_rows(self._comm, np.empty((0, call.n_numbers), call.dtype))
            return
        nothing = np.zeros(call.n_numbers, call.dtype)
        if call.kind == "broadcast":
            broadcast(self._comm, nothing, call.root)
        elif call.kind == "chunks":
            ChunkedAverage(self._comm, nothing, 0).finish()
        else:
            self._reduce(nothing, call.kind, takes_part=False)

    def _reduce(self, vector: np.ndarray, kind: str, *, takes_part: bool = True) -> None:
        if kind in HALVES:
            for part in parts(vector):
                self._sum_halves(part, kind)
            return
        is_float = vector.dtype.kind == "f"
        if not takes_part:
            low, high = (-np.inf, np.inf) if is_float else (np.iinfo(vector.dtype).min, np.iinfo(vector.dtype).max)
            vector.fill({"min": high, "max": low, "product": 1}.get(kind, 0))
        nans = np.isnan(vector) if is_float and kind in ("min", "max") else None
        self._in_place(vector, _OPERATIONS[kind])
        if nans is not None:  # MPI's minimum of a number and a NaN is the one or the other
            self._in_place(nans.view(np.uint8), MPI.MAX)
            vector[nans] = np.nan

    def _in_place(self, vector: np.ndarray, operation: MPI.Op) -> None:
        reduce_in_place(self._comm, vector, operation, _wait)

    def _sum_halves(self, vector: np.ndarray, kind: str) -> None:
        """Sum in place: each rank sums a part in float32, and sends it to all; both ways in 16 bits."""
        part = -(-vector.size // self.size)
        mine = np.zeros(part * self.size, np.uint16)
        mine[: vector.size] = calls.halved(vector, kind)
        parts = np.empty_like(mine)
        self._comm.Alltoall([mine, MPI.UINT16_T], [parts, MPI.UINT16_T])
        total = calls.doubled(parts, kind).reshape(self.size, part).sum(0)
        self._comm.Allgather([calls.halved(total, kind), MPI.UINT16_T], [mine, MPI.UINT16_T])
        vector[:] = calls.doubled(mine, kind)[: vector.size]


def _wait(request: MPI.Request) -> None:
    while not request.Test():
        os.sched_yield()  # a rank that has to send may wait for this core; MPICH's Allreduce would keep it


def _native(array: np.ndarray) -> np.ndarray:
    """Return an array in the byte order of this machine, in C order.

    Raises:
        ConfigurationError: it holds Python objects.
    """
    if array.dtype.hasobject:
        raise ConfigurationError("Ranks exchange arrays of numbers or texts. Received: Python objects.")
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _numbers(array: np.ndarray) -> np.ndarray:
    """Return the numbers of an array one after the other; its bytes if a call does not know the dtype."""
    flat = array.reshape(-1)
    return flat if flat.dtype.name in DTYPES else flat.view(np.uint8)


class ChunkedAverage:
    """Weighted mean of the vectors of all ranks, whose chunks travel while later ones are still computed."""

    def __init__(self, comm: MPI.Comm, vector: np.ndarray, share: float) -> None:
        """Average `vector` in place; the caller multiplies what it writes to it by `share`, this rank's weight."""
        self.share = share
        self._comm = comm
        self._vector = vector
        self._chunks = calls.chunks(vector.size)
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
