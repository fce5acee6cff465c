"""Horovod's interface over MPI: data-parallel training in your own script, with averaged gradients.

>>> import nnlo_opt.allreduce as hvd
>>> hvd.init()  # doctest: +SKIP
>>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))  # doctest: +SKIP
>>> model.compile(optimizer, "mse")  # doctest: +SKIP
>>> model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])  # doctest: +SKIP
>>> print(hvd.allreduce(hvd.rank()))  # the mean over all ranks  # doctest: +SKIP

Sergeev and Del Balso, "Horovod" (arXiv:1802.05799). Start the script on all ranks with one `mpirun`. There is no
background thread: a collective call returns when all ranks have made it. Before each call the ranks check that it is
the same call on all of them (`core.comm.calls`), so a mismatch is an error on all ranks instead of a hang.

Every function except `init`, `shutdown` and `is_initialized` raises `ConfigurationError` before `init`, in a child
forked after it, for an unknown argument, and on all ranks if their calls differ.
"""

import atexit
import os
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from nnlo_opt.allreduce.other_names import ANSWERS, INSTEAD, absence
from nnlo_opt.core.base.errors import EXIT_FAILURE, ConfigurationError, NnloError, refuse_forked
from nnlo_opt.core.comm.calls import Step
from nnlo_opt.engine.models.averaged_gradients import Wire, distribute, distribute_tape
from nnlo_opt.engine.models.keras import on_tensorflow as keras_tensorflow
from nnlo_opt.engine.models.keras import on_torch as keras_torch
from nnlo_opt.engine.models.plain_data import packed, unpacked
from nnlo_opt.engine.models.tensors import through
from nnlo_opt.engine.runtime import devices
from nnlo_opt.engine.runtime.launched import warn_of_split_world
from nnlo_opt.engine.runtime.process import only_here

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.agreed_calls import AgreedCalls
    from nnlo_opt.engine.comm.mpi.world import World

#: operations of `allreduce` and `DistributedOptimizer`
Average, Sum, Min, Max, Product = "average", "sum", "min", "max", "product"
_SUMS = (Average, Sum)
#: Horovod's arguments without effect here -> the only values that are accepted
_DEFAULTS = {
    (None, "", False): "device_dense device_sparse groups ignore_name_scope num_groups process_set use_locking",
    (1.0,): "backward_passes_per_step gradient_predivide_factor postscale_factor prescale_factor scale_local_gradients",
    (True, False): "average_aggregated_gradients sparse_as_dense",
}
#: seconds that a rank waits for another one to report an error common to all
_SILENT_S = 5.0


class Compression:
    """Values of `compression`: the format in which gradients are sent."""

    none = "sum"
    #: half of the bytes; 11 significant bits, numbers up to 65,504
    fp16 = "float16"
    #: half of the bytes; 8 significant bits, the range of float32
    bf16 = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """State between `init` and `shutdown`."""

    #: PID of the process that called `init`
    pid: int
    world: "World"
    calls: "AgreedCalls"
    #: ranks of this node, ascending
    on_node: tuple[int, ...]


_session: _Session | None = None


def init() -> None:
    """Initialise; call it first. Collective: every rank of the world must call it.

    Ranks of a node divide its cores. From now on an uncaught exception on one rank aborts all ranks, so that the others
    do not wait for this one.
    """
    global _session  # noqa: PLW0603
    if _session is not None:
        return
    from nnlo_opt.engine.comm.mpi.agreed_calls import AgreedCalls
    from nnlo_opt.engine.comm.mpi.world import WORLD, World

    world = World()
    warn_of_split_world(world.size, stacklevel=2)
    cores_of = world.on_node(devices.pack_cores(devices.cores()))
    _session = _Session(pid=os.getpid(), world=world, calls=AgreedCalls(WORLD.Dup()), on_node=tuple(sorted(cores_of)))
    if len(cores_of) > 1 and devices.given_threads(os.environ) is None:
        cores = {rank: devices.unpack_cores(packed) for rank, packed in cores_of.items()}
        _use_threads(devices.core_share(cores[world.rank], list(cores.values())))
    if world.size > 1:
        sys.excepthook = only_here(_end_all, sys.excepthook)
        atexit.register(_leave, os.getpid())


def _use_threads(n_threads: int) -> None:
    """Limit the imported frameworks to `n_threads` threads."""
    if "tensorflow" in sys.modules:
        keras_tensorflow.use_threads(n_threads)
    if "torch" in sys.modules:
        keras_torch.use_threads(n_threads)


def _end_all(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception, and abort all ranks."""
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
    """Tell the other ranks that this program ends; not in children forked from process `pid`."""
    if _session is not None and os.getpid() == pid:
        _session.calls.leave()


def shutdown() -> None:
    """Finish; returns when all ranks have called it or ended. Collective: every rank."""
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
    """Return the number of this rank on its node, from 0; use it to choose a GPU."""
    session = _of("local_rank()")
    return session.on_node.index(session.world.rank)


def local_size() -> int:
    """Return the number of ranks on this node."""
    return len(_of("local_size()").on_node)


def allreduce(
    value: Any, name: Any = None, *, op: str | None = None, compression: str = Compression.none, **known: Any
) -> Any:
    """Return the average of `value` over all ranks that have not joined (or the sum, min, max, product).

    The result has the type of `value`.

    Args:
        value: number, array, or tensor of TensorFlow, torch or JAX, also in a traced function.
        name: must be equal on all ranks; False means `average=False`.
        op: Average, Sum, Min, Max or Product.
        compression: one of `Compression`; for averages and sums of floating point numbers.
        known: `average=False` for the sum; other arguments of Horovod are accepted only at their defaults.

    Collective: every rank must call it, with the same shape.
    """
    calls = _of("allreduce").calls
    op = op or (Sum if known.pop("average", name) is False else Average)
    _take("allreduce", known)
    wire = _wire(compression, op, (Average, Sum, Min, Max, Product) if compression == Compression.none else _SUMS)

    def reduce(array: np.ndarray) -> np.ndarray:
        if wire.kind == Compression.none or array.dtype.kind not in "fV":
            return calls.reduce(array, op, name if isinstance(name, str) else None)
        flat = np.asarray(array, np.float64 if array.dtype.itemsize == 8 else np.float32).reshape(-1)
        result = calls.average(flat, 1, Step([array.shape]), wire.kind, wire.sums)
        return np.asarray(result.reshape(array.shape), array.dtype)

    return through(reduce, value)


def grouped_allreduce(tensors: Iterable[Any], *arguments: Any, **options: Any) -> list[Any]:
    """Call `allreduce` for each of the tensors; return the list of results. Collective: every rank."""
    return [allreduce(tensor, *arguments, **options) for tensor in tensors]


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate the rows of all ranks, in rank order; ranks may have different numbers of rows.

    Collective: every rank, with the same `name`.
    """
    calls = _of("allgather").calls
    return through(lambda array: calls.gather(array, name), value, same_shape=False)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of rank `root_rank` on all ranks. Collective: every rank, with the same shape and `name`."""
    calls = _of("broadcast").calls
    if not 0 <= root_rank < calls.size:
        raise ConfigurationError(f"`root_rank` must be in 0..{calls.size - 1}. Received: {root_rank}.")
    return through(lambda array: calls.broadcast(array, root_rank, name), value)


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Set variables (TensorFlow, Keras) on all ranks to the values of rank `root_rank`, also in a traced function.

    Raises:
        ConfigurationError: there are no variables, for example because the model is not built yet.

    Collective: every rank.
    """
    variables = list(variables)
    if not variables:
        raise ConfigurationError(
            "`hvd.broadcast_variables` takes variables. Received: none. Call it after the first batch, or give the "
            "model an input shape, for example by `keras.Input`."
        )
    for variable in variables:
        # A method in TensorFlow, a property in Keras.
        value = variable.value() if callable(variable.value) else variable.value
        variable.assign(broadcast(value, root_rank))


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Set torch tensors, such as `model.state_dict()`, to the values of rank `root_rank`. Collective: every rank.

    `params`: dict of tensors, or tensors, or (name, tensor) pairs.
    """
    for one in params.items() if hasattr(params, "items") else params:
        name, tensor = one if isinstance(one, tuple) else (None, one)
        tensor.data.copy_(broadcast(tensor, root_rank, name))


def broadcast_optimizer_state(optimizer: Any, root_rank: int) -> None:
    """Set the state and settings of a torch optimizer to those of rank `root_rank`. Collective: every rank."""
    optimizer.load_state_dict(broadcast_object(optimizer.state_dict(), root_rank))


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the plain data of rank `root_rank`; on other ranks `obj` is ignored. Collective: every rank."""
    data = packed(obj) if rank() == root_rank else np.empty(0, np.uint8)
    n_bytes = int(broadcast(data.size, root_rank, name))
    return unpacked(broadcast(data if rank() == root_rank else np.empty(n_bytes, np.uint8), root_rank, name))


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the list of all ranks' plain data. Collective: every rank."""
    data = packed(obj)
    ends = np.cumsum(allgather(data.size, name))
    return [unpacked(part) for part in np.split(allgather(data, name), ends[:-1])]


def barrier() -> None:
    """Wait until all ranks that have not joined have called it. Collective: every rank."""
    _of("barrier()").calls.barrier()


def join() -> int:
    """Take part in the calls of the other ranks until all have joined; return the last rank to join.

    Call it when a rank runs out of batches before the others: it contributes nothing to averages, which are over the
    ranks that have not joined. Collective: every rank.
    """
    return _of("join()").calls.join()


def DistributedOptimizer(
    optimizer: Any, name: Any = None, *, compression: str = Compression.none, op: str = Average, **known: Any
) -> Any:
    """Make a Keras or torch optimizer average the gradients over all ranks; return the same optimizer.

    With `callbacks.BroadcastGlobalVariablesCallback` ranks are weighted by the samples of their batches, which gives
    the gradient of the union of the batches. Without it, and with torch, all ranks have equal weights. Collective:
    every rank must take the same steps.

    Args:
        optimizer: optimizer of torch, or of Keras 3 on TensorFlow, JAX or torch.
        name: ignored, like `named_parameters`.
        compression: one of `Compression`.
        op: Average or Sum.
    """
    known.pop("named_parameters", None)
    if hasattr(optimizer, "register_step_pre_hook"):
        known.pop("backward_passes_per_step", None)  # torch accumulates gradients until the step anyway
    _take("DistributedOptimizer", known)
    return distribute(optimizer, _of("DistributedOptimizer").calls, _wire(compression, op))


def DistributedGradientTape(
    gradtape: Any, *, compression: str = Compression.none, op: str = Average, n_samples: Any = 1, **known: Any
) -> Any:
    """Make `gradient` of a TensorFlow gradient tape average over all ranks; return the same tape.

    Args:
        gradtape: the tape, after its `with` block.
        compression: one of `Compression`.
        op: Average or Sum.
        n_samples: samples of this rank's batch, its weight in the average; by default all ranks have equal weights.
    """
    _take("DistributedGradientTape", known)
    return distribute_tape(gradtape, _of("DistributedGradientTape").calls, _wire(compression, op), n_samples)


def _wire(compression: str, op: str, ops: tuple[str, ...] = _SUMS) -> Wire:
    known = (Compression.none, Compression.fp16, Compression.bf16)
    if compression not in known or op not in ops:
        raise ConfigurationError(
            "`compression` must be one of hvd.Compression.none, .fp16, .bf16, and `op` one of "
            f"{', '.join(f'hvd.{one.capitalize()}' for one in ops)}. Received: {compression!r}, {op!r}."
        )
    return Wire(kind=compression, sums=op == Sum)


def _take(caller: str, known: dict[str, Any]) -> None:
    """Refuse unknown arguments, and known ones that are not at their defaults."""
    for name, value in known.items():
        taken = next((values for values, names in _DEFAULTS.items() if name in names.split()), ())
        if value not in taken:
            other = f" other than {taken[0]!r}" if taken else ""
            raise ConfigurationError(f"`hvd.{caller}` takes no `{name}`{other}. Received: {value!r}. Leave it out.")


def __getattr__(name: str) -> Any:
    """Import `callbacks` on first use, because it imports Keras; handle Horovod's other names.

    Raises:
        ImportError: `from nnlo_opt.allreduce import` of an unknown name; Python would replace the message of an
            AttributeError.
        AttributeError: the name is unknown.
    """
    if name == "callbacks":
        return import_module(f"{__name__}.callbacks")
    if name in ANSWERS:
        return lambda: ANSWERS[name]
    is_import = sys._getframe(1).f_code.co_name == "_handle_fromlist"
    raise (ImportError if is_import and name in INSTEAD else AttributeError)(absence(__name__, name))
