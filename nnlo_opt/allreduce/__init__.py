"""Horovod's interface over MPI: data-parallel training of a user's own script, with averaged gradients.

    import nnlo_opt.allreduce as hvd

Sergeev and Del Balso, "Horovod" (arXiv:1802.05799). One `mpirun` starts the script on all ranks. There is no background
thread: a call reaches the other ranks when all ranks make it. Before each call they agree that it is the same
(`comm.calls`), so that a mistake is an error on all ranks.
"""

import atexit
import os
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.errors import EXIT_FAILURE, ConfigurationError, NnloError
from nnlo_opt.models import keras_tensorflow, keras_torch
from nnlo_opt.models.averaged_gradients import Wire, distribute, distribute_tape
from nnlo_opt.models.tensors import through
from nnlo_opt.runtime import devices
from nnlo_opt.runtime.process import only_here, refuse_forked

if TYPE_CHECKING:
    from nnlo_opt.comm.mpi.agreed_calls import AgreedCalls
    from nnlo_opt.comm.mpi.world import World

#: operations of `allreduce` and `DistributedOptimizer`
Average, Sum, Min, Max = "average", "sum", "min", "max"
#: seconds for which a rank leaves it to another one to say what is wrong on all ranks
_SILENT_S = 5.0


class Compression:
    """Values of `compression`: how the numbers of gradients travel."""

    none = "sum"
    #: half of the bytes; 11 bits, numbers up to 65,504
    fp16 = "float16"
    #: half of the bytes; 8 bits, the range of float32
    bf16 = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """State between `init` and `shutdown`."""

    #: number of the process that has called `init`
    pid: int
    world: "World"
    calls: "AgreedCalls"
    #: ranks of this node, ascending
    on_node: tuple[int, ...]


_session: _Session | None = None


def init() -> None:
    """Begin: find the other ranks, and share the cores of the node with them. Collective: every rank of the world.

    From now on an exception that nothing catches ends all ranks, instead of letting the other ranks wait for this one.
    """
    global _session  # noqa: PLW0603
    if _session is not None:
        return
    from nnlo_opt.comm.mpi.agreed_calls import AgreedCalls
    from nnlo_opt.comm.mpi.world import WORLD, World

    world = World()
    cores_of = world.on_node(devices.pack_cores(devices.cores()))
    _session = _Session(pid=os.getpid(), world=world, calls=AgreedCalls(WORLD.Dup()), on_node=tuple(sorted(cores_of)))
    if len(cores_of) > 1 and devices.given_threads(os.environ) is None:
        cores = {rank: devices.unpack_cores(packed) for rank, packed in cores_of.items()}
        _use_threads(devices.core_share(cores[world.rank], list(cores.values())))
    if world.size > 1:
        sys.excepthook = only_here(_end_all, sys.excepthook)
        atexit.register(_leave, os.getpid())


def _use_threads(n_threads: int) -> None:
    """Let the frameworks that are imported compute with `n_threads` threads."""
    if "tensorflow" in sys.modules:
        keras_tensorflow.use_threads(n_threads)
    if "torch" in sys.modules:
        keras_torch.use_threads(n_threads)


def _end_all(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write an error that nothing has caught, and end all ranks."""
    session = _of("init")
    failure = error if isinstance(error, NnloError) else session.calls.failure
    if failure is None:
        traceback.print_exception(kind, error, trace)
    elif failure is session.calls.failure and session.world.rank != 0:
        time.sleep(_SILENT_S)  # rank 0 has the same error
    words = f"Rank {session.world.rank} has failed: all ranks end." if failure is None else str(failure)
    sys.stderr.write(f"{words}\n")
    atexit.unregister(_leave)  # MPICH's Abort may return
    session.world.abort(EXIT_FAILURE if failure is None else failure.exit_code)


def _leave(pid: int) -> None:
    """Let the other ranks know that this program ends; not in processes that it has forked from process `pid`."""
    if _session is not None and os.getpid() == pid:
        _session.calls.leave()


def shutdown() -> None:
    """End: return when all ranks have called it, or have ended. Collective: every rank."""
    global _session  # noqa: PLW0603
    if _session is not None and _session.calls.size > 1:
        _leave(_session.pid)
        atexit.unregister(_leave)
        sys.excepthook = sys.__excepthook__
    _session = None


def is_initialized() -> bool:
    """Return True between `init` and `shutdown`."""
    return _session is not None


def _of(caller: str) -> _Session:
    if _session is None:
        raise ConfigurationError(
            f"`hvd.init()` must be called before `hvd.{caller}`. Received: a program that has not called it. Add it "
            "after the imports."
        )
    refuse_forked(_session.pid, "Horovod's session", f"Leave `hvd.{caller}` to the latter.")
    return _session


def rank() -> int:
    """Return the number of this rank, from 0."""
    return _of("rank()").world.rank


def size() -> int:
    """Return the number of ranks."""
    return _of("size()").world.size


def local_rank() -> int:
    """Return the number of this rank among the ranks of its node, from 0; by it a program chooses a GPU."""
    session = _of("local_rank()")
    return session.on_node.index(session.world.rank)


def local_size() -> int:
    """Return the number of ranks on this node."""
    return len(_of("local_size()").on_node)


def allreduce(value: Any, name: str | None = None, *, op: str = Average, compression: str = Compression.none) -> Any:
    """Return `value` averaged over all ranks that have not joined (or its sum, min or max), as what it is.

    Args:
        value: number, array, or tensor of TensorFlow, torch or JAX, also in a traced function.
        name: without effect.
        op: Average, Sum, Min or Max.
        compression: one of `Compression`; for averages of floating point numbers.

    Collective: every rank, with the same shape.
    """
    calls = _of("allreduce").calls
    if op not in (Average, Sum, Min, Max):
        raise ConfigurationError(f"`op` must be hvd.Average, hvd.Sum, hvd.Min or hvd.Max. Received: {op!r}.")

    def reduce(array: NDArray) -> NDArray:
        if array.dtype.kind not in "biufV":  # V: bfloat16
            raise ConfigurationError(f"`hvd.allreduce` takes real numbers. Received: an array of {array.dtype}.")
        # Small integers, bool and 16 bits are computed in the next dtype that MPI knows.
        is_known = array.dtype.name in ("float32", "float64", "int32", "int64")
        numbers = array if is_known else array.astype(np.int64 if array.dtype.kind in "iub" else np.float32)
        if compression != Compression.none and op == Average and numbers.dtype.kind == "f":
            result = calls.average(numbers.reshape(-1), 1, kind=compression).reshape(numbers.shape)
        else:
            result = calls.reduce(numbers, "sum" if op == Average else op, averages=op == Average)
        return result.astype(array.dtype)

    return through(reduce, value)


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the rows of all ranks one after the other; ranks may have different numbers of rows.

    Collective: every rank. `name` is without effect.
    """
    return through(_of("allgather").calls.gather, value, same_shape=False)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of rank `root_rank`. Collective: every rank, with the same shape. `name` is without effect."""
    calls = _of("broadcast").calls
    if not 0 <= root_rank < calls.size:
        raise ConfigurationError(f"`root_rank` must be in 0..{calls.size - 1}. Received: {root_rank}.")
    return through(lambda array: calls.broadcast(array, root_rank), value)


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Give the variables (TensorFlow or Keras) of all ranks the values of rank `root_rank`. Collective: every rank."""
    for variable in variables:
        variable.assign(broadcast(np.asarray(variable), root_rank))


def join() -> int:
    """Take part in the calls of the other ranks until all have joined; return the rank that has joined last.

    For ranks that have fewer batches: their share in averages is nothing, and the mean is over the other ranks.
    Collective: every rank.
    """
    return _of("join()").calls.join()


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, *, compression: str = Compression.none, op: str = Average
) -> Any:
    """Let a Keras optimizer step along the gradients of all ranks; return the same optimizer.

    With `callbacks.BroadcastGlobalVariablesCallback` the mean is weighted by the samples of each rank's batch, which is
    the gradient of the union of the batches. Without, each rank weighs the same.

    Args:
        optimizer: optimizer of Keras 3, on TensorFlow, JAX or torch.
        name: without effect.
        compression: one of `Compression`.
        op: Average or Sum.
    """
    return distribute(optimizer, _of("DistributedOptimizer").calls, _wire(compression, op))


def DistributedGradientTape(
    gradtape: Any, *, compression: str = Compression.none, op: str = Average, n_samples: Any = 1
) -> Any:
    """Let the method `gradient` of a gradient tape of TensorFlow average over all ranks; return the same tape.

    Args:
        gradtape: the tape, after its context.
        compression: one of `Compression`.
        op: Average or Sum.
        n_samples: samples of this rank's batch, by which its gradient weighs; by default all ranks weigh the same.
    """
    return distribute_tape(gradtape, _of("DistributedGradientTape").calls, _wire(compression, op), n_samples)


def _wire(compression: str, op: str) -> Wire:
    known = (Compression.none, Compression.fp16, Compression.bf16)
    if compression not in known or op not in (Average, Sum):
        raise ConfigurationError(
            "`compression` must be one of hvd.Compression.none, .fp16, .bf16, and `op` hvd.Average or hvd.Sum. "
            f"Received: {compression!r}, {op!r}."
        )
    return Wire(kind=compression, sums=op == Sum)


def __getattr__(name: str) -> Any:
    """Import `callbacks` when it is used: it imports Keras."""
    if name == "callbacks":
        import nnlo_opt.allreduce.callbacks as module

        return module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
