"""Channel by which workers ask a user's controller, with parameters that they share.

Rank 0 of an `mpirun` is the controller, every other rank a worker. Workers ask the controller what to do, by messages.
The shared parameters stay in memory of the node, where each worker applies the rule itself under one lock; no message
and no other process takes part in an exchange. The kernel gives the lock of a worker that dies to the next one.

The names are Platoon's (Lamblin et al., 2016). There the processes were started one by one, and met at a port.
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
from nnlo_opt.core.update_rules.optimizers import is_number
from nnlo_opt.engine.comm.rank_group import FailedElsewhereError, abort_on_error
from nnlo_opt.engine.runtime.launched import split_world
from nnlo_opt.engine.runtime.mpi_kind import MpiKind
from nnlo_opt.engine.runtime.process import only_here

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=Message)
Arrays: TypeAlias = list[np.ndarray]
#: changes local and central arrays in place, or returns both lists anew
Rule: TypeAlias = Callable[[Arrays, Arrays], Any]
#: type and shape of each array
Layout: TypeAlias = list[tuple[str, list[int]]]
#: the lock of all shared parameters
_LOCK = 0
#: seconds for which a rank that leaves waits until its last messages have left
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

    Zhang, Choromanska and LeCun (arXiv:1412.6651), steps a and b of Algorithm 1. The sum of both is conserved.

    Args:
        alpha: moving rate, from 0 (no exchange) to 1. It may be set anew at any time.

    Raises:
        ConfigurationError: `alpha` is out of range.
    """

    def __init__(self, alpha: float) -> None:
        if not is_number(alpha) or not 0 <= alpha <= 1:
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
    """Return arrays as a list if they can be changed in place; ConfigurationError if not."""
    params = [*params] if isinstance(params, Iterable) and not isinstance(params, np.ndarray) else params
    if not isinstance(params, list) or not params:
        raise ConfigurationError(f"Parameters must be a list of NumPy arrays. Received: {type(params).__name__}.")
    for i, array in enumerate(params):
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            kind = f"array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ConfigurationError(
                f"Parameters must be NumPy arrays of floats. Received: {kind} as number {i}. A torch tensor gives "
                "its memory by `.detach().numpy()`."
            )
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ConfigurationError(
                f"Parameters must be contiguous arrays that can be written, as they are changed in place. Received: "
                f"array {i} of shape {array.shape}, which is not. Pass a copy, `numpy.array(a, order='C')`."
            )
    return params


def layout_of(params: Arrays) -> Layout:
    """Return type and shape of each array."""
    return [(array.dtype.str, list(array.shape)) for array in params]


def arrays_in(memory: np.ndarray | None, layout: Layout) -> tuple[Arrays, int]:
    """Return the arrays of a layout in `memory` (uint8), each aligned, and the bytes of all; no arrays without it."""
    arrays, start = [], 0
    for dtype, shape in layout:
        n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if memory is not None:
            arrays.append(memory[start : start + n_bytes].view(dtype).reshape(shape))
        start += aligned(n_bytes)
    return arrays, max(start, ALIGNMENT_BYTES)


def difference_of(layout: Layout, other: Layout) -> str | None:
    """Return in words the first array in which `other` differs from `layout`; None if they are equal."""
    if len(layout) != len(other):
        return f"{len(other)} arrays instead of {len(layout)}"
    for i, (one, another) in enumerate(zip(layout, other, strict=True)):
        if (one[0], list(one[1])) != (another[0], list(another[1])):
            wanted, found = (f"{np.dtype(kind)} {tuple(shape)}" for kind, shape in (one, another))
            return f"{found} instead of {wanted} as array {i}"
    return None


def apply(rule: Rule, local: Arrays, central: Arrays) -> None:
    """Apply a rule, and take in what it returns; ConfigurationError, with nothing taken in, for other shapes."""
    result = rule(local, central)
    if result is None:
        return
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise _refusal(f"{type(result).__name__} instead of two lists")
    # Copies, as a rule may return the arrays that it was given.
    copies = [_checked(*part) for part in zip(("local", "central"), result, (local, central), strict=True)]
    set_arrays(local, copies[0])
    set_arrays(central, copies[1])


def set_arrays(arrays: Arrays, values: Arrays) -> None:
    """Give arrays the values of others, in place."""
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
    """Return True on rank 0, which is the controller; it raises nothing.

    >>> Rank = MyController if is_controller() else MyWorker  # doctest: +SKIP
    """
    from nnlo_opt.engine.comm.mpi.world import WORLD

    return WORLD.Get_rank() == 0


class ControllerLostError(NnloError):
    """Error for a worker whose controller has ended before it."""


class _Rank:
    """One rank of the channel, from its construction to the end of its process. Collective: every rank."""

    #: True once this process has made one
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
                "A controller needs at least one worker, on a rank of its own. Received: 1 rank. "
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
        #: shared parameters, in memory of the node; empty before all workers have called `init_shared_params`
        self.shared_params: Arrays = []
        #: memory of these; None before
        self._memory: SharedMemory | None = None
        atexit.register(only_here(self._exit))

    def __getattr__(self, name: str) -> Any:
        if name not in _MISSING:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise ConfigurationError(
            f"Workers must load their own data; `nnlo_opt.allreduce` averages gradients. Received: `{name}` of Platoon."
        )

    def init_control(self, port: int | None = None) -> None:
        """Do nothing, as mpirun has connected the ranks; kept for Platoon's scripts."""

    init_control_sock = init_control

    @staticmethod
    def default_parser() -> argparse.ArgumentParser:
        """Return a parser for the ports that Platoon's scripts take; they have no effect."""
        parser = argparse.ArgumentParser()
        for flag in ("--control-port", "--data-port", "--data-hwm"):
            parser.add_argument(flag, type=int, help="has no effect, as mpirun has connected the ranks")
        return parser

    @staticmethod
    def default_arguments(args: argparse.Namespace) -> dict[str, Any]:
        """Return the arguments of the class: none, as none has an effect."""
        return {}

    def _exit(self) -> None:
        """Leave MPI at the end of the process, together with all ranks that live."""
        from nnlo_opt.engine.comm.mpi.world import finalize

        if not self._can_leave() or not finalize():
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(EXIT_OK)

    def _can_leave(self) -> bool:
        """Return True when every rank is ready to leave MPI; False if a rank that is needed has died."""
        raise NotImplementedError


class Controller(_Rank):
    """Controller to be derived from: rank 0, which tells the workers what to do.

    Override `handle_control`, then call `serve`. Collective: every other rank makes its `Worker`.

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
        #: ranks of the workers that have neither left nor died
        self.workers = set(range(1, self._world.size))
        #: requests of the workers that wait for shared parameters
        self._asking: dict[int, msg.ShareParams] = {}
        #: worker whose parameters the shared ones begin as, its request and its bytes; None before the first request
        self._first: tuple[int, msg.ShareParams, np.ndarray] | None = None

    def handle_control(self, request: Json, worker: int, info: Json = None) -> Json:
        """Return the answer to a worker's request, as JSON data; the worker gets a None, too. To be overridden.

        Args:
            request: argument of the worker's `send_request`, as JSON gives it back (a tuple has become a list).
            worker: rank of the worker, from 1. An override may leave out the last arguments.
            info: second argument of `send_request`.
        """
        raise ConfigurationError(
            f"A controller must override `handle_control(request, worker)`. Received: {type(self).__name__}, without "
            f"it, and the request {request!r}."
        )

    def worker_lost(self, worker: int) -> None:
        """Take notice that a worker has died; to be overridden. The job outlives its workers only with ULFM."""
        logger.warning("Worker %d has died; %d workers continue.", worker, len(self.workers))

    def worker_is_done(self, worker: int) -> None:
        """Do nothing, as `serve` waits until each worker has left; kept for Platoon's scripts."""

    def serve(self) -> int:
        """Answer requests until every worker has left or died; return the exit code."""
        transport = self._transport
        # An override may leave out the last of its three arguments.
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
        """Make the shared parameters, for which all workers ask."""
        assert self._first is not None
        (first, message, values), self._first = self._first, None
        asking, self._asking = self._asking, {}
        others = {rank: difference_of(message.layout, other.layout) for rank, other in asking.items()}
        differing = {rank: difference for rank, difference in others.items() if difference is not None}
        memory = self._transport.share(values.nbytes)
        if differing:
            teller = min(differing)
            reason = (
                "All workers must share parameters of the same shapes and types. "
                f"Received: {differing[teller]} from worker {teller}, as worker {first} has them. "
                "Build the same model on every worker."
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
    """Return a method that takes the name of a job first, too; it has no effect, as each job has its own memory."""

    @functools.wraps(method)
    def call(self: "Worker", *given: Any, job_name: str = "", **named: Any) -> None:
        has_name = bool(given) and isinstance(given[0], str)
        method(self, *given[has_name:], **named)

    return call


class Worker(_Rank):
    """Worker: a rank with the user's own training loop. Collective: every rank makes its `Worker` or `Controller`.

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
        #: the same two in Platoon, where all workers are on one node and the first has rank 0
        self.global_rank = self.local_rank = self.rank - 1
        self.global_size = self.local_size = self.n_workers
        #: this worker's own parameters, and the rule that moves them; empty and None before `init_shared_params`
        self._params: Arrays = []
        self._rule: Rule | None = None
        self._has_lock = self._has_left = False

    def send_request(self, request: Json, info: Json = None) -> Any:
        """Return the controller's answer to a request; both are JSON data, in which NumPy numbers are allowed.

        Raises:
            ConfigurationError: `request` is no JSON data.
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
        """Share parameters among all workers, and begin with the parameters of one worker. Collective: every worker.

        Args:
            params: arrays that `sync_params` reads and changes in place; equal shapes and types on every worker. The
                name of the job, which Platoon wanted first, may be in front of them.
            param_sync_rule: `EASGD`, or a function `rule(local, central)` of two lists of arrays, which changes them in
                place and returns None, or returns both lists anew. By default `EASGD(1 / n_workers)`; for one worker
                `EASGD(0.5)`.
            cleanup: True if all workers begin with the parameters of this one; by default with the values of worker 1.

        Raises:
            ConfigurationError: the parameters cannot be shared, or are shared already, or the rule is none.
        """
        if self._rule is not None:
            raise ConfigurationError("Parameters can be shared once. Received: a second call of `init_shared_params`.")
        own = check_params(params)
        rule = EASGD(1 / max(2, self.n_workers)) if param_sync_rule is None else param_sync_rule
        # An object of Platoon's class `ParamSyncRule` has a method.
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
        # The shared parameters may have moved already, if another worker is faster.
        set_arrays(own, arrays_in(first.view(np.uint8), layout)[0])
        self._memory = self._transport.join(0, (reply.place[0], reply.place[1]))
        self.shared_params, _ = arrays_in(self._memory.bytes, layout)
        self._params, self._rule = own, rule

    def sync_params(self, synchronous: bool = True) -> None:
        """Apply the rule to this worker's own parameters and the shared ones.

        Args:
            synchronous: True if the worker holds the lock meanwhile. Without it exchanges of several workers may mix,
                and updates of single numbers be lost.

        Raises:
            ConfigurationError: `init_shared_params` was not called, or the rule returns other shapes; then no array
                has been changed.
        """
        with self._locked("sync_params", synchronous) as rule:
            apply(rule, self._params, self.shared_params)

    def copy_to_local(self, synchronous: bool = True) -> None:
        """Set this worker's own parameters to the shared ones, for example before a validation."""
        with self._locked("copy_to_local", synchronous):
            set_arrays(self._params, self.shared_params)

    def copy_to_global(self, synchronous: bool = True) -> None:
        """Set the shared parameters to this worker's own."""
        with self._locked("copy_to_global", synchronous):
            set_arrays(self.shared_params, self._params)

    def lock(self) -> None:
        """Wait until this worker alone has the lock of the shared parameters; a worker may ask again for its lock."""
        self._shared("lock").acquire(_LOCK)
        self._has_lock = True

    def unlock(self) -> None:
        """Give the lock back."""
        self._shared("unlock").release(_LOCK)
        self._has_lock = False

    #: names of Platoon before its version 0.6
    lock_params, unlock_params = lock, unlock

    def close(self) -> None:
        """Tell the controller that this worker makes no more requests; the end of the process does so, too."""
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
        """Send a message; return the reply, which is of this kind, with its payload."""
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
