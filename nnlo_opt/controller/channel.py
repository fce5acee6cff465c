"""Channel between a user's controller and its workers, with shared parameters.

Rank 0 of an `mpirun` is the controller, every other rank a worker. Workers ask the controller by messages what to do.
The shared parameters are in shared memory of the node, where each worker applies the rule itself under a single lock,
without messages or other processes. If a worker dies, the kernel releases its lock.

The names are Platoon's (Lamblin et al., 2016), where processes were started one by one and connected by a port.
"""

import argparse
import atexit
import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np

from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, ConfigurationError, NnloError
from nnlo_opt.core.base.user_code import shortened, takes_arguments
from nnlo_opt.core.base.vectors import ALIGNMENT_BYTES, aligned, aligned_bytes
from nnlo_opt.core.comm import objective_messages as msg
from nnlo_opt.core.comm.messages import Json, Message
from nnlo_opt.core.comm.transport import RanksLost, Received, SharedMemory, receive
from nnlo_opt.core.space.values import plain
from nnlo_opt.core.update_rules import easgd
from nnlo_opt.core.update_rules.optimizers import is_real
from nnlo_opt.engine.comm.rank_group import FailedElsewhereError, abort_on_error
from nnlo_opt.engine.runtime.launched import split_world
from nnlo_opt.engine.runtime.mpi_kind import MpiKind
from nnlo_opt.engine.runtime.process import only_here

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=Message)
Arrays: TypeAlias = list[np.ndarray]
#: changes local and central arrays in place, or returns both lists
Rule: TypeAlias = Callable[[Arrays, Arrays], Any]
#: type and shape of each array
Layout: TypeAlias = list[tuple[str, list[int]]]
#: the lock of all shared parameters
_LOCK = 0
#: seconds that a leaving rank waits for its last messages to be sent
_FLUSH_S = 10.0
#: members of Platoon's classes that do not exist here
_MISSING = frozenset(["send_mb", "recv_mb", "init_data", "init_mb_sock", "all_reduce", "shared", "shared_arrays"])


# ---------------------------------------------------------------- rules and arrays


class EASGD:
    """Elastic averaging: d = alpha (local - central); local <- local - d; central <- central + d.

    >>> local, central = [np.array([1.0])], [np.array([0.0])]
    >>> EASGD(0.25)(local, central)
    >>> local, central
    ([array([0.75])], [array([0.25])])

    Zhang, Choromanska and LeCun (arXiv:1412.6651), steps a and b of Algorithm 1. The sum of local and central is
    conserved.

    Args:
        alpha: moving rate, from 0 (no exchange) to 1; may be changed at any time.

    Raises:
        ConfigurationError: `alpha` is out of range.
    """

    def __init__(self, alpha: float) -> None:
        if not is_real(alpha) or not 0 <= alpha <= 1:
            raise ConfigurationError(f"`alpha` must be a number from 0 to 1. Received: {alpha!r}.")
        self.alpha = float(alpha)

    def get_alpha(self) -> float:
        """Return the moving rate, as in Platoon."""
        return self.alpha

    def set_alpha(self, alpha: float) -> None:
        """Set the moving rate, as in Platoon."""
        self.alpha = EASGD(alpha).alpha

    def __call__(self, local: Arrays, central: Arrays) -> None:
        """Exchange all arrays in place."""
        for own, shared in zip(local, central, strict=True):
            vector = own.reshape(-1)
            difference = np.empty_like(vector)
            easgd.exchange(shared.reshape(-1), vector, self.alpha, out=difference)
            easgd.adopt(vector, difference)


def check_params(params: object) -> Arrays:
    """Return arrays as a list; ConfigurationError unless they can be changed in place."""
    params = [*params] if isinstance(params, Iterable) and not isinstance(params, np.ndarray) else params
    if not isinstance(params, list) or not params:
        raise ConfigurationError(f"Parameters must be a list of NumPy arrays. Received: {type(params).__name__}.")
    for i, array in enumerate(params):
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            kind = f"array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ConfigurationError(
                f"Parameters must be NumPy arrays of floats. Received: {kind} as number {i}. For a torch "
                "tensor, pass `.detach().numpy()`, which shares its memory."
            )
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ConfigurationError(
                "Parameters must be contiguous arrays that can be written, because they are changed in place. "
                f"Received: array {i} of shape {array.shape}, which is not. Pass a copy, `numpy.array(a, order='C')`."
            )
    return params


def layout_of(params: Arrays) -> Layout:
    """Return type and shape of each array."""
    return [(array.dtype.str, list(array.shape)) for array in params]


def arrays_in(memory: np.ndarray | None, layout: Layout) -> tuple[Arrays, int]:
    """Return the arrays of a layout in `memory` (uint8), each aligned, and their bytes; without memory no arrays."""
    arrays, start = [], 0
    for dtype, shape in layout:
        n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if memory is not None:
            arrays.append(memory[start : start + n_bytes].view(dtype).reshape(shape))
        start += aligned(n_bytes)
    return arrays, max(start, ALIGNMENT_BYTES)


def difference_of(layout: Layout, other: Layout) -> str | None:
    """Describe the first array in which `other` differs from `layout`; None if they are equal."""
    if len(layout) != len(other):
        return f"{len(other)} arrays instead of {len(layout)}"
    for i, (one, another) in enumerate(zip(layout, other, strict=True)):
        if (one[0], list(one[1])) != (another[0], list(another[1])):
            wanted, found = (f"{np.dtype(kind)} {tuple(shape)}" for kind, shape in (one, another))
            return f"{found} instead of {wanted} as array {i}"
    return None


def apply(rule: Rule, local: Arrays, central: Arrays) -> None:
    """Apply a rule, and store what it returns; ConfigurationError, with nothing stored, for other shapes."""
    result = rule(local, central)
    if result is None:
        return
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise _refusal(f"{type(result).__name__} instead of two lists")
    # Copies, because a rule may return the arrays it was given.
    copies = [_checked(*part) for part in zip(("local", "central"), result, (local, central), strict=True)]
    set_arrays(local, copies[0])
    set_arrays(central, copies[1])


def set_arrays(arrays: Arrays, values: Arrays) -> None:
    """Copy `values` into `arrays`."""
    for array, value in zip(arrays, values, strict=True):
        array[...] = value


def _checked(name: str, new: object, old: Arrays) -> Arrays:
    if not isinstance(new, Sequence) or len(new) != len(old):
        n_found = f"{len(new)} arrays" if isinstance(new, Sequence) else type(new).__name__
        raise _refusal(f"{n_found} for {len(old)} {name} arrays")
    for i, (value, array) in enumerate(zip(new, old, strict=True)):
        if np.shape(value) != array.shape:
            raise _refusal(f"shape {np.shape(value)} for {name} array {i}, which has {array.shape}")
    return [np.array(value, array.dtype) for value, array in zip(new, old, strict=True)]


def _refusal(received: str) -> ConfigurationError:
    return ConfigurationError(
        "A rule must change the arrays in place and return None, or return the lists of new local and new central "
        f"arrays, in the same shapes. Received: {received}."
    )


# ---------------------------------------------------------------- ranks


def is_controller() -> bool:
    """Return True on rank 0, which is the controller; use it to choose the class to construct.

    >>> Rank = MyController if is_controller() else MyWorker  # doctest: +SKIP
    """
    from nnlo_opt.engine.comm.mpi.world import WORLD

    return WORLD.Get_rank() == 0


class ControllerLostError(NnloError):
    """The controller ended before this worker."""


class _Rank:
    """One rank of the channel, until its process ends. Collective: every rank must construct one."""

    #: True once this process has constructed one
    _exists = False

    def __init__(self, name: str, *, controls: bool) -> None:
        from nnlo_opt.engine.comm.mpi.world import WORLD, World, library

        if _Rank._exists:
            raise ConfigurationError(f"A process must make one rank. Received: a second {name}. Keep the first.")
        self._world = world = World()
        if world.size < 2:
            if (launch := split_world(world.size)) is not None:
                raise ConfigurationError(launch.split_text(str(MpiKind.of(library()))))
            raise ConfigurationError(
                "A controller needs at least one worker, on a separate rank. Received: 1 rank. "
                "Start with `mpirun -n 3 python SCRIPT`, for two workers."
            )
        abort_on_error(WORLD)
        if controls != (world.rank == 0):
            raise ConfigurationError(
                f"Rank 0 must be the controller, and every other rank a worker. Received: a {name} on rank "
                f"{world.rank}. Ask `is_controller()`, or name the controller's script first: "
                "`mpirun -n 1 python CONTROLLER : -n 2 python WORKER`."
            )
        _Rank._exists = True
        self._transport = world.transport()
        #: shared parameters, in shared memory; empty until all workers have called `init_shared_params`. Other workers
        #: change them at any time: hold the lock to read or write them consistently, and write in place
        self.shared_params: Arrays = []
        #: memory of the shared parameters; None before
        self._memory: SharedMemory | None = None
        atexit.register(only_here(self._exit))

    def __getattr__(self, name: str) -> Any:
        if name not in _MISSING:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise ConfigurationError(
            f"Workers must load their own data; `nnlo_opt.allreduce` averages gradients. Received: `{name}` of Platoon."
        )

    def init_control(self, port: int | None = None) -> None:
        """Do nothing: mpirun has connected the ranks. Kept for Platoon's scripts."""

    init_control_sock = init_control

    @staticmethod
    def default_parser() -> argparse.ArgumentParser:
        """Return a parser for the port options of Platoon's scripts, which have no effect."""
        parser = argparse.ArgumentParser()
        for flag in ("--control-port", "--data-port", "--data-hwm"):
            parser.add_argument(flag, type=int, help="has no effect, because mpirun has connected the ranks")
        return parser

    @staticmethod
    def default_arguments(args: argparse.Namespace) -> dict[str, Any]:
        """Return the arguments of the class: none, because none has an effect."""
        return {}

    def _exit(self) -> None:
        """Leave MPI at the end of the process, together with all live ranks."""
        from nnlo_opt.engine.comm.mpi.world import finalize

        if not self._can_leave() or not finalize():
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(EXIT_OK)

    def _can_leave(self) -> bool:
        """Return True when every rank is ready to leave MPI; False if a required rank has died."""
        raise NotImplementedError


class Controller(_Rank):
    """Base class of controllers: rank 0 answers the requests of the workers.

    Override `handle_control`, then call `serve`. Collective: every other rank must construct a `Worker`.

    >>> class Batches(Controller):
    ...     n_left = 1000
    ...
    ...     def handle_control(self, request, worker):
    ...         self.n_left -= 1
    ...         return "train" if self.n_left >= 0 else "stop"
    >>> sys.exit(Batches().serve())  # doctest: +SKIP

    Args:
        ports, others: arguments as Platoon's scripts give them; none has an effect.

    Raises:
        ConfigurationError: this is not rank 0, or there is no other rank.
    """

    def __init__(self, *ports: Any, **others: Any) -> None:
        super().__init__("controller", controls=True)
        #: ranks of workers that have neither left nor died. Do not set from outside: `serve` returns when it is empty
        self.workers = set(range(1, self._world.size))
        #: requests of workers that wait for shared parameters
        self._asking: dict[int, msg.ShareParams] = {}
        #: worker whose parameters initialise the shared ones, its request and its bytes; None before the first request
        self._first: tuple[int, msg.ShareParams, np.ndarray] | None = None

    def handle_control(self, request: Json, worker: int, info: Json = None) -> Json:
        """Return the answer to a worker's request, as JSON data or None; called by `serve`. Override this.

        Args:
            request: argument of the worker's `send_request`, after JSON (a tuple has become a list).
            worker: rank of the worker, from 1. An override may omit the last arguments.
            info: second argument of `send_request`.
        """
        raise ConfigurationError(
            f"A controller must override `handle_control(request, worker)`. Received: {type(self).__name__}, without "
            f"it, and the request {request!r}."
        )

    def worker_lost(self, worker: int) -> None:
        """Called when a worker has died; override it to react. Only with ULFM does the job survive that."""
        logger.warning("Worker %d has died; %d workers continue.", worker, len(self.workers))

    def worker_is_done(self, worker: int) -> None:
        """Do nothing: `serve` waits until each worker has left. Kept for Platoon's scripts."""

    def serve(self) -> int:
        """Answer requests until every worker has left or died; return the exit code."""
        transport = self._transport
        # An override may omit the last of its three arguments.
        n_arguments = max((n for n in range(4) if takes_arguments(self.handle_control, n)), default=3)
        while self.workers:
            found = receive([transport], until=lambda: bool(transport.lost & self.workers))
            if found is not None:
                self._take(found[1], n_arguments)
            for worker in sorted(transport.lost & self.workers):
                self.workers.discard(worker)
                self._asking.pop(worker, None)
                self.worker_lost(worker)
            if self.workers and self._asking.keys() == self.workers:
                self._share()
        for worker in range(1, self._world.size):
            transport.send(worker, msg.Dismissed())
        return EXIT_OK

    def _take(self, received: Received, n_arguments: int) -> None:
        worker, message = received.source, received.message
        if isinstance(message, msg.ControlRequest):
            arguments: tuple[Any, ...] = (json.loads(message.request), worker, json.loads(message.info))
            answer = self.handle_control(*arguments[:n_arguments])
            self._transport.send(worker, msg.ControlAnswer(answer=_json("An answer of `handle_control`", answer)))
        elif isinstance(message, msg.ShareParams):
            self._asking[worker] = message
            rank, first, _ = self._first or (worker + 1, message, None)
            if (message.is_first, -worker) > (first.is_first, -rank):
                self._first = worker, message, received.vector.copy()
        elif isinstance(message, msg.Leave):
            self.workers.discard(worker)

    def _share(self) -> None:
        """Create the shared parameters, once all workers have asked for them."""
        assert self._first is not None
        (first, message, values), self._first = self._first, None
        asking, self._asking = self._asking, {}
        others = {rank: difference_of(message.layout, other.layout) for rank, other in asking.items()}
        differing = {rank: difference for rank, difference in others.items() if difference is not None}
        memory = self._transport.share(values.nbytes)
        if differing:
            teller = min(differing)
            reason = (
                f"All workers must share parameters of the same shapes and types. Received: {differing[teller]} from "
                f"worker {teller}, unlike worker {first}. Build the same model on every worker."
            )
        elif memory is None:
            teller = min(asking)
            reason = (
                "All ranks must be on one node, with room for the shared parameters in its memory. Received: "
                f"{values.nbytes} bytes for {self._world.size} ranks. Start all ranks on one node."
            )
        else:
            memory.bytes.view(np.float32)[:] = values
            self._memory = memory
            self.shared_params, _ = arrays_in(memory.bytes, message.layout)
            for rank in asking:
                self._transport.send(rank, msg.ParamsShared(place=[*memory.place]), values)
            return
        for rank in asking:
            self._transport.send(rank, msg.ParamsRefused(reason=reason, is_reported=rank != teller))

    def _can_leave(self) -> bool:
        if self.workers - self._transport.lost:
            logger.error(
                "A controller must `serve` until its workers have left. Received: a controller that ended before them."
            )
            self._world.abort(EXIT_FAILURE)
        self._transport.flush(_FLUSH_S)
        return True


def _after_job_name(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method accept a job name as first argument, ignored because each job has its own memory."""

    @functools.wraps(method)
    def call(self: "Worker", *given: Any, job_name: str = "", **named: Any) -> None:
        has_name = bool(given) and isinstance(given[0], str)
        method(self, *given[has_name:], **named)

    return call


class Worker(_Rank):
    """A rank with your own training loop. Collective: every rank must construct a `Worker` or `Controller`.

    >>> worker = Worker()  # doctest: +SKIP
    >>> worker.init_shared_params([weights], EASGD(0.5))  # doctest: +SKIP
    >>> while worker.send_request("next") == "train":  # doctest: +SKIP
    ...     train_a_batch(weights)
    ...     worker.sync_params()

    Args:
        ports, others: arguments as Platoon's scripts give them; none has an effect.

    Raises:
        ConfigurationError: this is rank 0, or the only rank.
    """

    def __init__(self, *ports: Any, **others: Any) -> None:
        super().__init__("worker", controls=False)
        #: rank of this worker, from 1
        self.rank = self._world.rank
        #: number of workers at the start of the job
        self.n_workers = self._world.size - 1
        #: the same for Platoon, where the first worker has rank 0 and all are on one node
        self.global_rank = self.local_rank = self.rank - 1
        self.global_size = self.local_size = self.n_workers
        #: this worker's parameters, and the rule; empty and None before `init_shared_params`
        self._params: Arrays = []
        self._rule: Rule | None = None
        self._has_lock = self._has_left = False

    def send_request(self, request: Json, info: Json = None) -> Any:
        """Send a request to the controller and return its answer; both are JSON data and may contain NumPy numbers.

        Raises:
            ConfigurationError: `request` is not JSON data.
            ControllerLostError: the controller has ended.
        """
        message = msg.ControlRequest(request=_json("A request", request), info=_json("A request", info))
        reply, _ = self._ask(message, msg.ControlAnswer)
        return json.loads(reply.answer)

    #: Platoon's name
    send_req = send_request

    @_after_job_name
    def init_shared_params(
        self, params: Sequence[np.ndarray], param_sync_rule: Rule | None = None, cleanup: bool = False
    ) -> None:
        """Create parameters shared by all workers. Collective: every worker must call it once, before `sync_params`.

        Args:
            params: arrays that `sync_params` reads and changes in place; equal shapes and types on every worker. A job
                name, as in Platoon, may precede them.
            param_sync_rule: `EASGD`, or a function `rule(local, central)` of two lists of arrays that changes them in
                place and returns None, or returns both lists. By default `EASGD(1 / n_workers)`; for one worker
                `EASGD(0.5)`.
            cleanup: True to initialise the shared parameters from this worker; by default from worker 1.

        Raises:
            ConfigurationError: the parameters cannot be shared or already are, or the rule is invalid.
        """
        if self._rule is not None:
            raise ConfigurationError("Parameters can be shared once. Received: a second call of `init_shared_params`.")
        own = check_params(params)
        rule = EASGD(1 / max(2, self.n_workers)) if param_sync_rule is None else param_sync_rule
        # Platoon's `ParamSyncRule` objects have a method instead.
        rule = getattr(rule, "update_params", rule)
        if not callable(rule):
            raise ConfigurationError(
                f"A rule must be `EASGD(alpha)`, or a function of two lists of arrays. Received: {rule!r}."
            )
        layout = layout_of(own)
        values = aligned_bytes(arrays_in(None, layout)[1])
        set_arrays(arrays_in(values, layout)[0], own)
        request = msg.ShareParams(layout=layout, is_first=cleanup)
        reply, first = self._ask(request, msg.ParamsShared, values.view(np.float32))
        assert first is not None
        # A faster worker may already have moved the shared parameters.
        set_arrays(own, arrays_in(first.view(np.uint8), layout)[0])
        self._memory = self._transport.join(0, (reply.place[0], reply.place[1]))
        self.shared_params, _ = arrays_in(self._memory.bytes, layout)
        self._params, self._rule = own, rule

    def sync_params(self, synchronous: bool = True) -> None:
        """Apply the rule to this worker's parameters and the shared ones, for example after every few batches.

        Args:
            synchronous: False to skip the lock; then concurrent exchanges may interleave, and updates of single numbers
                may be lost.

        Raises:
            ConfigurationError: `init_shared_params` was not called, or the rule returned other shapes; no array has
                been changed.
        """
        with self._locked("sync_params", synchronous) as rule:
            apply(rule, self._params, self.shared_params)

    def copy_to_local(self, synchronous: bool = True) -> None:
        """Copy the shared parameters to this worker's, for example before a validation."""
        with self._locked("copy_to_local", synchronous):
            set_arrays(self._params, self.shared_params)

    def copy_to_global(self, synchronous: bool = True) -> None:
        """Copy this worker's parameters to the shared ones."""
        with self._locked("copy_to_global", synchronous):
            set_arrays(self.shared_params, self._params)

    def lock(self) -> None:
        """Acquire the lock of the shared parameters; reentrant. Other workers wait in `sync_params` until `unlock`."""
        self._shared("lock").acquire(_LOCK)
        self._has_lock = True

    def unlock(self) -> None:
        """Release the lock of the shared parameters."""
        self._shared("unlock").release(_LOCK)
        self._has_lock = False

    #: names of Platoon before its version 0.6
    lock_params, unlock_params = lock, unlock

    def close(self) -> None:
        """Tell the controller that this worker is done; implied by the end of the process."""
        if not self._has_left:
            self._has_left = True
            self._transport.send(0, msg.Leave())

    def _shared(self, name: str) -> SharedMemory:
        if self._memory is None:
            raise ConfigurationError(
                f"`{name}` needs shared parameters. Received: no `init_shared_params` before it. Call that first, on "
                "every worker."
            )
        return self._memory

    @contextmanager
    def _locked(self, name: str, takes: bool = True) -> Iterator[Rule]:
        memory = self._shared(name)
        takes = takes and not self._has_lock
        if takes:
            memory.acquire(_LOCK)
        try:
            assert self._rule is not None
            yield self._rule
        finally:
            if takes:
                memory.release(_LOCK)

    def _ask(
        self, message: Message, kind: type[Reply], payload: np.ndarray | None = None
    ) -> tuple[Reply, np.ndarray | None]:
        """Send a message; return the reply of this kind and its payload."""
        if self._has_left:
            raise ConfigurationError("A worker that has called `close` can make no more requests.")
        self._transport.send(0, message, payload)
        return self._next(kind)

    def _next(self, kind: type[Reply]) -> tuple[Reply, np.ndarray | None]:
        try:
            found = receive([self._transport])
        except RanksLost:
            raise ControllerLostError(
                "The controller must live as long as its workers. Received: one that has died. Start the job again."
            ) from None
        assert found is not None
        message = found[1].message
        if isinstance(message, msg.ParamsRefused):
            raise (FailedElsewhereError if message.is_reported else ConfigurationError)(message.reason)
        assert isinstance(message, kind)
        return message, found[1].payload

    def _can_leave(self) -> bool:
        self.close()
        try:
            self._next(msg.Dismissed)
        except ControllerLostError:
            return False
        return True


#: names of the first version of Platoon
Lieutenant, Soldier = Controller, Worker


def _json(name: str, value: Json) -> str:
    try:
        return json.dumps(value, default=plain)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name} must be JSON data: numbers, text, lists, dictionaries, None. Received: {shortened(repr(value))}."
        ) from error
