"""torch process group over the ranks of a block, for one call of an objective.

A gloo group ends only when nothing refers to it: until then, or the time-out, a peer that waits in an exchange stays
blocked. A model in `DistributedDataParallel` refers to its group, and so do the objective's frames with the model in a
variable, and a traceback with these frames. So a context cannot end an objective's group; the rank that called the
objective does, after it has left these frames.
"""

import functools
import gc
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nnlo_opt.core.base.errors import ConfigurationError, TrialError, require_package
from nnlo_opt.engine.runtime.rank_variables import is_of_a_rank

if TYPE_CHECKING:
    import torch

#: seconds after a failed exchange in which a rank may learn that another rank failed before
HEARS_S = 0.5
#: seconds in which threads of gloo release what they hold of the last exchange; they take microseconds
_RELEASES_S = 0.05
LOOPBACK = "127.0.0.1"
#: environment variables for the fields of a `Place`, in order
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


class Place(NamedTuple):
    """Place of a process among those that train a model together."""

    rank: int = 0
    size: int = 1
    #: the same among the processes on its node
    local_rank: int = 0
    local_size: int = 1
    #: number of the node; nodes are ordered by their lowest ranks
    node: int = 0
    n_nodes: int = 1

    @classmethod
    def of(cls, rank: int, hosts: Sequence[str]) -> Self:
        """Return the place of a rank; `hosts`: name of the node of each rank."""
        nodes, mine = list(dict.fromkeys(hosts)), hosts[rank]
        return cls(rank, len(hosts), hosts[:rank].count(mine), hosts.count(mine), nodes.index(mine), len(nodes))

    def alone(self) -> Self:
        """Return the place of a rank that sees a single GPU, as if it were alone on its node."""
        return self._replace(local_rank=0, local_size=1, node=self.rank, n_nodes=self.size)

    def variables(self, address: str, port: int) -> dict[str, str]:
        """Return the variables that `torchrun` sets; the common torch store is at `address` and `port`."""
        numbers = {name: str(number) for name, number in zip(_NAMES, self, strict=True)}
        role = {"ROLE_NAME": "default", "ROLE_RANK": numbers["RANK"], "ROLE_WORLD_SIZE": numbers["WORLD_SIZE"]}
        elastic = {"RUN_ID": f"nnlo_opt-{port}", "RESTART_COUNT": "0", "MAX_RESTARTS": "0"}
        told = {f"TORCHELASTIC_{name}": text for name, text in elastic.items()}
        return numbers | role | told | {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


@contextmanager
def torch_process_group(comm: Any = None, timeout_s: float = 300.0) -> Iterator["torch.device"]:
    """Open a torch process group over the ranks of `comm`, in an objective; yields the device of this rank.

    Within the context `torch.distributed` is initialised (NCCL if each rank has its own GPU, else gloo), and the
    environment is as set by `torchrun`, without the variables of MPI and Slurm, so that Lightning and Accelerate find
    the ranks of the block. In an objective the group lives until the objective returns: a second context with the same
    communicator reuses it. In other code the group ends with the context, if no variable refers to it any more: return
    from the function with the model before, or other ranks may hang.

    Collective: every rank of `comm` must call it.

    Args:
        comm: communicator of the objective; None for a group of one.
        timeout_s: time limit of an exchange in seconds; below 600, after which the job is aborted.

    Raises:
        ConfigurationError: torch is not installed, there already is a group, or `comm` is not a communicator.
        TrialError: the ranks cannot reach each other.

    >>> import torch
    >>> with nnlo_opt.torch_process_group() as device:
    ...     print(torch.distributed.get_backend(), torch.distributed.get_world_size())
    gloo 1
    """
    require_package("`torch_process_group`", "torch", "torch", "train without it")
    _refuse_foreign(comm)
    with ExitStack() as stack:
        call = Call.running or stack.enter_context(Call())
        yield stack.enter_context(call.group(comm, timeout_s))


class Call:
    """Context of a call of an objective, or of a group in other code: a group opened within it ends with it."""

    #: the innermost one in this process; None outside of any
    running: "Call | None" = None

    def __init__(self) -> None:
        #: the enclosing one, of a search within an objective
        self._outer = Call.running
        #: communicator, device and variables of the group; None before it is opened
        self._opened: tuple[Any, torch.device, dict[str, str]] | None = None
        self._is_within = False
        #: PID of this process: forked children do not touch the group
        self._pid = os.getpid()

    @property
    def hears_s(self) -> float:
        """Seconds for which a failed rank waits to learn of an earlier failure on another rank."""
        return HEARS_S if self._opened and self._opened[2]["WORLD_SIZE"] != "1" else 0.0

    @classmethod
    def clear(cls, error: BaseException) -> None:
        """Clear the frames of `error`, which may refer to the group, if the running call has opened one."""
        if cls.running is not None and cls.running._opened is not None:
            clear_frames(error)

    @contextmanager
    def group(self, comm: Any, timeout_s: float) -> Iterator["torch.device"]:
        """Open the group, or reuse it. Collective: every rank of `comm`."""
        from torch import distributed

        if not distributed.is_initialized():
            _reset_accelerate()
            self._opened = (comm, *_open(comm, timeout_s))
        elif self._opened is None or self._opened[0] is not comm or self._is_within:
            raise ConfigurationError(
                "A process can be in only one process group of torch at a time. Received: a second group, while "
                "`torch.distributed` is initialised. Leave out `init_process_group`, and open one "
                "`torch_process_group` a trial."
            )
        _, device, variables = self._opened
        self._is_within = True
        try:
            with in_environment(variables):
                yield device
        finally:
            self._is_within = False

    def __enter__(self) -> Self:
        Call.running = self
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        Call.running = self._outer
        if self._opened is not None and os.getpid() == self._pid:
            from torch import distributed

            self._opened = None
            # A thread of gloo needs the interpreter's lock to release an exchange. If it has not had it before the
            # group is freed, the group's destructor waits forever for the thread, with the lock.
            time.sleep(_RELEASES_S)
            _reset_accelerate()
            clear_frames(error)
            gc.collect()
            with suppress(Exception):  # the user has destroyed the group, or a peer has failed
                distributed.destroy_process_group()


@contextmanager
def in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables within the context, and hide those that would make a framework use all ranks of the job."""
    hidden = {*filter(is_of_a_rank, os.environ)}
    before = {name: os.environ.pop(name, None) for name in hidden | variables.keys()}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def clear_frames(error: BaseException | None) -> None:
    """Clear all frames in the traceback of `error` and of its causes."""
    cleared: set[int] = set()
    while error is not None and id(error) not in cleared:  # an error may be its own cause
        traceback.clear_frames(error.__traceback__)
        cleared.add(id(error))
        error = error.__cause__ or error.__context__


def _refuse_foreign(comm: Any) -> None:
    """Raise ConfigurationError if `comm` is not a communicator of the calling ranks."""
    if comm is not None and not (hasattr(comm, "allgather") and comm):
        given = f"{type(comm).__name__}, which is not one"
    elif comm is not None and Call.running and comm.Get_name() == "MPI_COMM_WORLD" and comm.Get_size() > 1:
        given = "MPI.COMM_WORLD, which has ranks outside of the block"
    else:
        return
    raise ConfigurationError(
        f"`torch_process_group` must get a communicator of mpi4py. Received: {given}. Pass the `comm` of the objective."
    )


def _open(comm: Any, timeout_s: float) -> tuple["torch.device", dict[str, str]]:
    """Open a group; return this rank's device and the variables. Collective: every rank of `comm`."""
    from torch import distributed

    _import_keepers()
    rank, gather = (0, lambda said: [said]) if comm is None else (comm.Get_rank(), comm.allgather)
    place = Place.of(rank, gather(socket.gethostname()))
    is_local = place.n_nodes == 1
    device, gpu, place = _gpu_of(place)
    address, port, listening = "", 0, None
    if rank == 0:
        server = socket.create_server((LOOPBACK if is_local else "", 0))
        address, port = LOOPBACK if is_local else socket.gethostname(), server.getsockname()[1]
        listening = server.detach()
    said = gather((gpu, address, port))
    gpus, (_, address, port) = {gpu for gpu, _, _ in said}, said[0]
    own_gpus = len(gpus) == len(said) and "" not in gpus and distributed.is_nccl_available()
    backend, timeout = "cpu:gloo,cuda:nccl" if own_gpus else "gloo", timedelta(seconds=timeout_s)
    variables = place.variables(address, port)
    if is_local:
        variables["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    try:
        with in_environment(variables):
            store = vars(distributed)["TCPStore"](  # missing in its type stubs
                address, port, place.size, rank == 0, timeout, wait_for_workers=False, master_listen_fd=listening
            )
            distributed.init_process_group(backend, store=store, rank=rank, world_size=place.size, timeout=timeout)
    except RuntimeError as error:
        raise TrialError(
            f"The ranks of a process group of torch must reach each other by TCP. Received: {error}. Name a network "
            "that all nodes share by the variable `GLOO_SOCKET_IFNAME`."
        ) from error
    return device, variables


@functools.cache
def _import_keepers() -> None:
    """Import modules that capture the current group as a default argument, while there is none."""
    with warnings.catch_warnings(action="ignore"):
        import torch.distributed.fsdp.sharded_grad_scaler
        import torch.distributed.nn.functional
        import torch.distributed.optim.zero_redundancy_optimizer  # noqa: F401
    gc.freeze()  # torch has a million objects, which would be scanned after each trial


def _gpu_of(place: Place) -> tuple["torch.device", str, Place]:
    """Return the device of a rank, the unique name of its GPU ("" for none), and its place given its visible GPUs."""
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not n_gpus:
        return torch.device("cpu"), "", place
    if n_gpus < place.local_size:
        place = place.alone()
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device, str(getattr(torch.cuda.get_device_properties(device), "uuid", place.rank)), place


def _reset_accelerate() -> None:
    """Reset Accelerate's state, which it otherwise keeps for the life of the process."""
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
