"""Threads of this rank. To be used before NumPy and any framework are imported, which read these variables once."""

import os

_LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def n_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(n_node_ranks: int) -> int:
    """Threads each of the ranks of a node may use without running more threads than cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) > 0 else max(1, n_cores() // n_node_ranks)


def cap_threads() -> None:
    """Give every thread pool its share of the node's cores, unless the user has said how many threads to use."""
    size = next((os.environ[name] for name in _LOCAL_SIZE_VARIABLES if os.environ.get(name, "").isdigit()), "1")
    n_threads = threads_per_rank(int(size))
    for name in _THREAD_VARIABLES:
        os.environ.setdefault(name, str(n_threads))


def hide_gpus() -> None:
    """Let no framework see a GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
