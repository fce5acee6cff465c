"""Threads and GPU of a rank: its share of its node.

The share is decided before a framework is imported, in two steps. `cap_threads` runs before NumPy is imported, which
reads the number of threads only once, and before MPI tells which ranks are on the node: every rank of the node gets
the same part of the cores. When the topology is known, `share_node` returns the final share, and `NodeShare.take` sets
it in the environment for the framework. Ranks that train share all cores; masters and the coordinator hardly compute.
The GPUs are assigned round-robin to the ranks that train.

A user's `OMP_NUM_THREADS` takes precedence. If the batch system has set `CUDA_VISIBLE_DEVICES` (for AMD
`HIP_VISIBLE_DEVICES` and `ROCR_VISIBLE_DEVICES`), these GPUs are used, by index, UUID or name of a MIG slice; otherwise
all GPUs of the node. If the batch system gives each rank different GPUs, ranks keep theirs: the variables differ, or
the same index stands for different UUIDs.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile, zip_longest
from pathlib import Path

from nnlo_opt.engine.runtime.environment import THREAD_VARIABLES

Environment = MutableMapping[str, str]

#: variables of each launcher: (rank on the node, number of ranks on the node)
_NODE_VARIABLES = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
#: variable with the number of threads that this package has set, to distinguish it from the user's number
_OURS = "NNLO_OPT_THREADS"
_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
#: variables of all vendors that select GPUs
VISIBLE = (_CUDA, _HIP, _ROCR)
#: name of a GPU or a slice of one in a list of visible devices
_NAME = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")
#: name that means "no GPU" to every runtime
NO_GPU = "-1"
#: most cores and GPUs of a node that are shared out
_MAX_CORES, _MAX_GPUS = 4096, 32
#: length of a digest
_ID_BYTES = 16


# ---------------------------------------------------------------- threads


def cores() -> frozenset[int]:
    """Return the cores on which this process may run; `mpirun` may have chosen them."""
    # psutil cannot tell the affinity on macOS either, and need not be imported this early.
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def pack_cores(numbers: Collection[int]) -> bytes:
    """Encode these cores in 512 bytes, for a message of fixed length."""
    return sum(1 << core for core in numbers if core < _MAX_CORES).to_bytes(_MAX_CORES // 8, "little")


def unpack_cores(packed: bytes) -> frozenset[int]:
    """Decode the cores from `pack_cores`."""
    bits = int.from_bytes(packed, "little")
    return frozenset(core for core in range(bits.bit_length()) if bits >> core & 1)


def given_threads(environ: Mapping[str, str]) -> int | None:
    """Return the number of threads set by the user; None if only `cap_threads` has set one."""
    text = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not text.isdigit() or int(text) < 1 or text == environ.get(_OURS):
        return None
    return int(text)


def node_place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank on this node, number of ranks on it) from the launcher's variables, (0, 1) without them."""
    for rank, size in _NODE_VARIABLES:
        if environ.get(size, "").isdigit() and int(environ[size]) > 0:
            number = environ.get(rank, "0")
            return int(number) if number.isdigit() else 0, int(environ[size])
    return 0, 1


def cap_threads(environ: Environment = os.environ) -> None:
    """Limit threads to an equal part of the node's cores, unless the user has set a number."""
    _set_threads(environ, given_threads(environ) or max(1, len(cores()) // node_place(environ)[1]))


def core_share(mine: Collection[int], trainers: Sequence[Collection[int]]) -> int:
    """Return the number of cores for a rank that may run on the cores `mine`.

    A core is split equally among all trainers that may run on it. So a node has no more threads than cores (but at
    least one for each rank), whether `mpirun` has bound the ranks to a core, to a socket or not at all.

    Args:
        mine: cores of the rank.
        trainers: cores of each trainer of the node, including this rank.
    """
    share = sum((Fraction(1, max(1, sum(core in other for other in trainers))) for core in mine), Fraction(0))
    return max(1, int(share))


def _set_threads(environ: Environment, n_threads: int) -> None:
    ours = environ.get(_OURS)
    if given_threads(environ) is None:
        environ[_OURS] = str(n_threads)
    for name in THREAD_VARIABLES:
        if name not in environ or environ[name] == ours:
            environ[name] = str(n_threads)


# ---------------------------------------------------------------- GPUs


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs that this process may use."""

    #: names, in the form that `variable` accepts
    names: tuple[str, ...]
    #: the environment variable that selects GPUs
    variable: str = _CUDA


def _nvidia_smi() -> str:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """Where the drivers list the GPUs of the node; tests use other places."""

    nvidia: Path = Path("/proc/driver/nvidia")
    amd: Path = Path("/sys/class/kfd/kfd/topology/nodes")
    #: returns the output of `nvidia-smi -L`, "" if it fails
    list_nvidia: Callable[[], str] = _nvidia_smi


def find_gpus(environ: Mapping[str, str], drivers: Drivers | None = None) -> Gpus:
    """Return the GPUs that the batch system left visible, or else all of the node, without starting a GPU runtime.

    Batch systems set the variables of every vendor, so the drivers of the node decide which vendor is meant. AMD chains
    its variables: indices in `HIP_VISIBLE_DEVICES` refer to the GPUs that remain after `ROCR_VISIBLE_DEVICES`;
    `CUDA_VISIBLE_DEVICES` is used if `HIP_VISIBLE_DEVICES` is missing
    (https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html).
    """
    drivers = drivers or Drivers()
    n_amd = 0 if any(drivers.nvidia.glob("gpus/*")) else _n_amd(drivers)
    if n_amd or (_CUDA not in environ and (_HIP in environ or _ROCR in environ)):
        for variable in (_HIP, _CUDA):
            if variable in environ:
                return Gpus(_visible(environ[variable]), _HIP)
        n_gpus = len(_visible(environ[_ROCR])) if _ROCR in environ else n_amd
        return Gpus(tuple(str(i) for i in range(n_gpus)), _HIP)
    return Gpus(_visible(environ[_CUDA]) if _CUDA in environ else _nvidia_gpus(drivers))


def place(node_rank: int, visible: Sequence[str], max_gpus: int | None) -> str:
    """Return the GPU of trainer `node_rank` (from 0) of a node, round-robin over the first `max_gpus` (None: all)."""
    usable = visible if max_gpus is None else visible[:max_gpus]
    return usable[node_rank % len(usable)] if usable else NO_GPU


def gpu_ids(gpus: Gpus, environ: Mapping[str, str], uuids: Callable[[], Sequence[str]]) -> tuple[str, ...]:
    """Return a name of each GPU that is unique on the node.

    An index is not: if the batch system gives each task different GPUs, all tasks call their first one 0.

    Args:
        uuids: returns the UUIDs of the GPUs that NVIDIA's driver shows this process, by index.
    """
    if gpus.variable == _HIP:
        behind: Sequence[str] = _visible(environ[_ROCR]) if _ROCR in environ else ()
    else:
        behind = uuids() if any(name.isdigit() for name in gpus.names) else ()
    return tuple(behind[int(n)] if n.isdigit() and int(n) < len(behind) else n for n in gpus.names)


def own_gpu_ids() -> tuple[str, ...]:
    """Return the unique names (`gpu_ids`) of all GPUs that this process may use."""

    def uuids() -> Sequence[str]:
        from nnlo_opt.engine.runtime import nvidia  # imported late: most ranks do not need it

        return nvidia.uuids()

    return gpu_ids(find_gpus(os.environ), os.environ, uuids)


def deal(seen: Sequence[Sequence[str]], max_gpus: int | None) -> list[str]:
    """Return the GPU of each rank of a node: rank by rank, the least used one that it sees, or `NO_GPU`.

    Args:
        seen: for each rank the GPUs that it sees, by names that are unique on the node.
        max_gpus: most GPUs to use on the node; None: all.
    """
    in_turn = (gpu for of_each in zip_longest(*seen) for gpu in of_each if gpu is not None)
    used = dict.fromkeys(list(dict.fromkeys(in_turn))[:max_gpus], 0)
    dealt = []
    for gpus in seen:
        dealt.append(min((gpu for gpu in gpus if gpu in used), key=used.__getitem__, default=NO_GPU))
        if dealt[-1] != NO_GPU:
            used[dealt[-1]] += 1
    return dealt


def are_own(names: Sequence[Sequence[str]], ids: Sequence[Sequence[str]]) -> bool:
    """Return True if ranks of a node use the same name for different GPUs, because each sees only its own."""
    named: dict[str, str] = {}
    pairs = (pair for of_rank in zip(names, ids, strict=True) for pair in zip(*of_rank, strict=True))
    return any(named.setdefault(name, gpu) != gpu for name, gpu in pairs)


def _visible(text: str) -> tuple[str, ...]:
    """Split a list of visible devices. Like in CUDA, the first invalid name ends it; "" and -1 hide all."""
    names = takewhile(_NAME.fullmatch, map(str.strip, text.split(",")))
    return tuple(dict.fromkeys(names))


def _nvidia_gpus(drivers: Drivers) -> tuple[str, ...]:
    indices = [str(i) for i, _ in enumerate(drivers.nvidia.glob("gpus/*"))]
    # Only nvidia-smi lists the names of MIG slices.
    if indices and not any(drivers.nvidia.glob("capabilities/gpu*/mig/gi*")):
        return tuple(indices)
    gpus: list[list[str]] = []
    for line in drivers.list_nvidia().splitlines():
        if re.match(r"GPU \d+:", line):
            gpus.append([])
        elif gpus and (found := re.search(r"UUID: (MIG-[\w/-]+)", line)):
            gpus[-1].append(found[1])
    names = [name for number, slices in enumerate(gpus) for name in (slices or [str(number)])]
    return tuple(names or indices)


def _n_amd(drivers: Drivers) -> int:
    """Return the number of GPUs in the driver's topology, which also lists CPUs, with an id of 0."""
    n_gpus = 0
    for path in drivers.amd.glob("*/gpu_id"):
        with suppress(OSError):
            n_gpus += path.read_text().strip() not in ("", "0")
    return n_gpus


# ---------------------------------------------------------------- both


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """Share of one rank in its node."""

    n_threads: int = 1
    #: number of cores, at least 1; a core that several ranks may use is split equally
    n_cores: int = 1
    #: the GPU; `NO_GPU`: hide all GPUs from the rank; None: no GPU was found, leave the environment alone
    gpu: str | None = None
    #: environment variable that selects the GPU
    variable: str = _CUDA
    #: number of ranks that use this GPU, including this one; 0 without a GPU
    n_sharing: int = 0

    @property
    def has_spare_core(self) -> bool:
        """True if the rank has a second core, for background work."""
        return self.n_cores > 1

    def take(self, environ: Environment = os.environ) -> None:
        """Set the share in the environment; call it before importing a framework."""
        _set_threads(environ, self.n_threads)
        if self.gpu == NO_GPU:
            environ.update(dict.fromkeys(VISIBLE, NO_GPU))
        elif self.gpu is not None:
            environ[self.variable] = self.gpu
        if self.n_sharing > 1:
            # Without these variables TensorFlow and JAX allocate all of a GPU's memory at start.
            environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
            environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def text(self) -> str:
        """Describe the share, for the log."""
        threads = f"{self.n_threads} thread{'s' * (self.n_threads > 1)}"
        if self.gpu in (None, NO_GPU):
            return f"{threads}, no GPU"
        return f"{threads}, GPU {self.gpu}" + f", which {self.n_sharing} ranks share" * (self.n_sharing > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Cores and GPUs that a rank may use, before they are divided among ranks."""

    cores: frozenset[int]
    #: digests of the unique names of the GPUs (`gpu_ids`)
    gpus: tuple[str, ...] = ()

    @classmethod
    def of(cls, cores: Collection[int], gpus: Sequence[str]) -> "Resources":
        """Return resources with these cores, and GPUs named by `gpu_ids`."""
        digests = (hashlib.sha256(gpu.encode()).digest()[:_ID_BYTES].hex() for gpu in gpus[:_MAX_GPUS])
        return cls(cores=frozenset(cores), gpus=tuple(digests))

    def pack(self) -> bytes:
        """Encode as bytes of fixed length, for a message."""
        return pack_cores(self.cores) + bytes.fromhex("".join(self.gpus)).ljust(_MAX_GPUS * _ID_BYTES, b"\0")

    @classmethod
    def unpack(cls, packed: bytes) -> "Resources":
        """Decode the result of `pack`."""
        n_bytes = _MAX_CORES // 8
        found = (packed[at : at + _ID_BYTES] for at in range(n_bytes, len(packed), _ID_BYTES))
        return cls(cores=unpack_cores(packed[:n_bytes]), gpus=tuple(gpu.hex() for gpu in found if any(gpu)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """Options about GPUs."""

    #: most GPUs to use on each node; 0: none; None: all
    max_gpus: int | None = None
    #: True if masters also get a GPU
    master_gpu: bool = False


def share_node(
    world_rank: int,
    resources: Mapping[int, Resources],
    trainers: Collection[int],
    masters: Collection[int],
    request: GpuRequest,
    environ: Mapping[str, str] = os.environ,
) -> NodeShare:
    """Return the share of `world_rank` in its node. All ranks must pass the same values to get consistent shares.

    Args:
        world_rank: the rank.
        resources: resources of each world rank on the node.
        trainers: world ranks that train, on all nodes, including masters that train.
        masters: world ranks of masters, on all nodes.
        request: options about GPUs.
        environ: environment of the process.
    """
    on_node = sorted(resources)
    # Masters and the coordinator mostly wait: ranks that train need not leave them cores.
    sharing = [rank for rank in on_node if rank in trainers or world_rank not in trainers]
    n_cores = core_share(resources[world_rank].cores, [resources[rank].cores for rank in sharing])
    n_threads = given_threads(environ) or n_cores
    users = [rank for rank in on_node if rank in trainers or (request.master_gpu and rank in masters)]
    gpu: str | None
    gpu, variable, n_sharing = NO_GPU, _CUDA, 0
    if world_rank in users and request.max_gpus != 0:
        gpus = find_gpus(environ)
        variable = gpus.variable
        if gpus.names:
            dealt, seen = deal([resources[rank].gpus for rank in users], request.max_gpus), resources[world_rank].gpus
            if (own := dealt[users.index(world_rank)]) != NO_GPU:
                gpu, n_sharing = gpus.names[seen.index(own)], dealt.count(own)
        elif environ.keys().isdisjoint(VISIBLE):
            # Set no variable: the framework may find a GPU that we did not, and must be able to use it.
            gpu = None
    return NodeShare(n_threads=n_threads, n_cores=n_cores, gpu=gpu, variable=variable, n_sharing=n_sharing)
