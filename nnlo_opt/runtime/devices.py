"""What a rank takes of its node: threads, and one GPU.

To be settled before any framework is imported, in two steps. `cap_threads`, before NumPy is imported and MPI says who
is where: every rank of the node gets the same part of its cores, as NumPy's library reads the number once. Then, when
the topology is known, `share_node` says what this rank really has, and `NodeShare.take` puts it into the environment,
where the framework finds it: ranks that train share all cores among themselves, masters and the coordinator compute
next to nothing, and the GPUs go round among the ranks that train.

The user's `OMP_NUM_THREADS` comes first. The GPUs there are: those that the batch system left visible in
`CUDA_VISIBLE_DEVICES` (for AMD `HIP_VISIBLE_DEVICES` and `ROCR_VISIBLE_DEVICES`) by index, UUID or name of a MIG slice,
else all of the node's.
"""

import os
import re
import subprocess
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

Environment = MutableMapping[str, str]

#: launcher by launcher: (rank on the node, number of ranks on the node)
_NODE_VARIABLES = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: the number of threads that we have set, so that it is not taken for the user's
_OURS = "NNLO_OPT_THREADS"
_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
#: what every runtime takes for "no GPU"
NO_GPU = "-1"
#: cores beyond this number are not shared out
_MAX_CORES = 4096


# ---------------------------------------------------------------- threads


def cores() -> frozenset[int]:
    """Cores this process may run on, which `mpirun` may have chosen."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def pack_cores(numbers: Collection[int]) -> bytes:
    """512 bytes that say which cores, for a message of fixed length."""
    return sum(1 << core for core in numbers if core < _MAX_CORES).to_bytes(_MAX_CORES // 8, "little")


def unpack_cores(packed: bytes) -> frozenset[int]:
    """Inverse of `pack_cores`."""
    bits = int.from_bytes(packed, "little")
    return frozenset(core for core in range(bits.bit_length()) if bits >> core & 1)


def given_threads(environ: Mapping[str, str]) -> int | None:
    """Threads the user asked for; None where nobody did but `cap_threads`."""
    text = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not text.isdigit() or int(text) < 1 or text == environ.get(_OURS):
        return None
    return int(text)


def node_place(environ: Mapping[str, str]) -> tuple[int, int]:
    """(rank on this node, number of ranks on it) as the launcher says it before MPI is there; (0, 1) if it does not."""
    for rank, size in _NODE_VARIABLES:
        if environ.get(size, "").isdigit() and int(environ[size]) > 0:
            number = environ.get(rank, "0")
            return int(number) if number.isdigit() else 0, int(environ[size])
    return 0, 1


def cap_threads(environ: Environment = os.environ) -> None:
    """Give the thread pools of every rank of the node the same part of its cores, unless the user has said how many."""
    n_threads = given_threads(environ)
    if n_threads is None:
        n_threads = max(1, len(cores()) // node_place(environ)[1])
    _set_threads(environ, n_threads)


def core_share(mine: Collection[int], trainers: Sequence[Collection[int]]) -> int:
    """Cores for a rank on the cores `mine`, of the `trainers` of its node, of which it is one, by their cores.

    A core counts in equal parts for all trainers that may run on it. So it holds for ranks that `mpirun` has bound to
    a core, to a socket or not at all, that the node has no more threads than cores (but one for each rank at least).
    """
    share = sum((Fraction(1, max(1, sum(core in other for other in trainers))) for core in mine), Fraction(0))
    return max(1, int(share))


def _set_threads(environ: Environment, n_threads: int) -> None:
    ours = environ.get(_OURS)
    if given_threads(environ) is None:
        environ[_OURS] = str(n_threads)
    for name in _THREAD_VARIABLES:
        if name not in environ or environ[name] == ours:
            environ[name] = str(n_threads)


# ---------------------------------------------------------------- GPUs


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs this process may use."""

    #: names, as `variable` takes them
    names: tuple[str, ...]
    #: the environment variable that chooses among them
    variable: str = _CUDA


def _nvidia_smi() -> str:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """Where the drivers tell which GPUs the node has; other places for tests."""

    nvidia: Path = Path("/proc/driver/nvidia")
    amd: Path = Path("/sys/class/kfd/kfd/topology/nodes")
    #: the answer of `nvidia-smi -L`; "" where there is none
    list_nvidia: Callable[[], str] = _nvidia_smi


def find_gpus(environ: Mapping[str, str], drivers: Drivers | None = None) -> Gpus:
    """The GPUs that the batch system left visible, else all of the node. Imports nothing, starts no runtime.

    Batch systems set the variables of every vendor, so the node's drivers say whose are meant. For AMD the variables
    are filters one behind the other, of which `HIP_VISIBLE_DEVICES` is the last, and its numbers count what
    `ROCR_VISIBLE_DEVICES` lets through; `CUDA_VISIBLE_DEVICES` stands in for it
    (https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html).
    """
    drivers = drivers or Drivers()
    n_amd = 0 if _n_entries(drivers.nvidia, "gpus/*") else _n_amd(drivers)
    if n_amd or (_CUDA not in environ and (_HIP in environ or _ROCR in environ)):
        for variable in (_HIP, _CUDA):
            if variable in environ:
                return Gpus(_visible(environ[variable]), _HIP)
        n_gpus = len(_visible(environ[_ROCR])) if _ROCR in environ else n_amd
        return Gpus(tuple(str(i) for i in range(n_gpus)), _HIP)
    return Gpus(_visible(environ[_CUDA]) if _CUDA in environ else _nvidia_gpus(drivers))


def place(node_rank: int, visible: Sequence[str], max_gpus: int | None) -> str:
    """The GPU of trainer `node_rank` (from 0) of a node: in turn, among the first `max_gpus` (None: all) visible."""
    usable = visible if max_gpus is None else visible[:max_gpus]
    return usable[node_rank % len(usable)] if usable else NO_GPU


def _visible(text: str) -> tuple[str, ...]:
    """The names in a list of visible devices. As in CUDA, the first that is none ends it; "" and -1 hide all."""
    names: list[str] = []
    for part in text.split(","):
        name = part.strip()
        if not re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", name):
            break
        if name not in names:
            names.append(name)
    return tuple(names)


def _nvidia_gpus(drivers: Drivers) -> tuple[str, ...]:
    n_gpus = _n_entries(drivers.nvidia, "gpus/*")
    # Slices (MIG) have names that only the driver's own tool tells.
    if n_gpus and not _n_entries(drivers.nvidia, "capabilities/gpu*/mig/gi*"):
        return tuple(str(i) for i in range(n_gpus))
    gpus: list[list[str]] = []
    for line in drivers.list_nvidia().splitlines():
        if re.match(r"GPU \d+:", line):
            gpus.append([])
        elif gpus and (found := re.search(r"UUID: (MIG-[\w/-]+)", line)):
            gpus[-1].append(found[1])
    names = tuple(name for number, slices in enumerate(gpus) for name in (slices or [str(number)]))
    return names or tuple(str(i) for i in range(n_gpus))


def _n_amd(drivers: Drivers) -> int:
    """GPUs in the driver's topology, in which processors stand too, with an id of 0."""
    n_gpus = 0
    for path in drivers.amd.glob("*/gpu_id"):
        try:
            n_gpus += path.read_text().strip() not in ("", "0")
        except OSError:
            continue
    return n_gpus


def _n_entries(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.glob(pattern))


# ---------------------------------------------------------------- both


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """What one rank has of its node."""

    n_threads: int
    #: cores that it has, counting those that several ranks may use in equal parts; at least 1
    n_cores: int
    #: its GPU; `NO_GPU`: it must see none; None: no GPU was found, and the environment stays as it is
    gpu: str | None
    #: the variable that chooses it
    variable: str
    #: ranks that use this GPU, this one included; 0 without one
    n_sharing: int

    @property
    def has_spare_core(self) -> bool:
        """Whether it has a second core, for what can be done beside the training."""
        return self.n_cores > 1

    def take(self, environ: Environment = os.environ) -> None:
        """Put it into the environment, for the framework that is imported next."""
        _set_threads(environ, self.n_threads)
        if self.gpu == NO_GPU:
            hide_gpus(environ)
        elif self.gpu is not None:
            environ[self.variable] = self.gpu
        if self.n_sharing > 1:
            # TensorFlow and JAX take all of a GPU's memory at once unless they are told not to.
            environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
            environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def text(self) -> str:
        """In words, for the log."""
        threads = f"{self.n_threads} thread{'s' * (self.n_threads > 1)}"
        if self.gpu in (None, NO_GPU):
            return f"{threads}, no GPU"
        return f"{threads}, GPU {self.gpu}" + f", which {self.n_sharing} ranks share" * (self.n_sharing > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """What the command line says about GPUs."""

    #: GPUs used on each node at most; 0: none; None: all there are
    max_gpus: int | None = None
    #: a master has a GPU too
    master_gpu: bool = False


def share_node(
    world_rank: int,
    cores_of: Mapping[int, Collection[int]],
    trainers: Collection[int],
    masters: Collection[int],
    request: GpuRequest,
    environ: Mapping[str, str] = os.environ,
) -> NodeShare:
    """What `world_rank` has of its node, on which the ranks (world ranks) of `cores_of` are, with their cores.

    `trainers` and `masters` are the roles of the world; a master that trains is among the trainers. Asked on every
    rank with the same `cores_of`, the answers fit together.
    """
    on_node = sorted(cores_of)
    # Masters and the coordinator wait most of the time: they take nothing from those that train.
    sharing = [rank for rank in on_node if rank in trainers or world_rank not in trainers]
    n_cores = core_share(cores_of[world_rank], [cores_of[rank] for rank in sharing])
    n_threads = given_threads(environ) or n_cores
    users = [rank for rank in on_node if rank in trainers or (request.master_gpu and rank in masters)]
    if world_rank not in users or request.max_gpus == 0:
        return NodeShare(n_threads=n_threads, n_cores=n_cores, gpu=NO_GPU, variable=_CUDA, n_sharing=0)
    gpus = find_gpus(environ)
    if not gpus.names:
        # None found and nothing said: whatever a framework finds that we do not know of is not hidden from it.
        hidden = any(name in environ for name in (_CUDA, _HIP, _ROCR))
        return NodeShare(
            n_threads=n_threads, n_cores=n_cores, gpu=NO_GPU if hidden else None, variable=gpus.variable, n_sharing=0
        )
    places = [place(position, gpus.names, request.max_gpus) for position in range(len(users))]
    gpu = places[users.index(world_rank)]
    return NodeShare(n_threads=n_threads, n_cores=n_cores, gpu=gpu, variable=gpus.variable, n_sharing=places.count(gpu))


def hide_gpus(environ: Environment = os.environ) -> None:
    """Let no framework see a GPU."""
    environ[_CUDA] = NO_GPU
    for name in (_HIP, _ROCR):
        environ[name] = NO_GPU
