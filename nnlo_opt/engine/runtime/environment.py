"""Environment for the processes that this package starts.

Some of the variables let ranks under Open MPI's mpirun survive the death of other ranks (ULFM); `engine.comm.mpi.ulfm`
describes what the remaining ranks do then.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.safe_path import SafePath

#: prefixes of variables that make an MPI library treat a process as one of its ranks
_MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI", "HYDRA_")
#: variables with the number of threads that NumPy and SciPy read once, at import
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def fit_on_one_thread() -> None:
    """Use one thread for linear algebra, because our fits are small; call it before importing SciPy."""
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module`; `-P` stops a user's file from shadowing a standard module."""
    return [sys.executable, "-P", "-m", module, *arguments]


def without_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` for a process that is not a rank, and that imports this copy of the package."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_MPI_PREFIXES)}
    root = str(Path(__file__).resolve().parents[3])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    return kept


def start_helper(
    command: Sequence[str], environ: Mapping[str, str] | None = None, **pipes: Any
) -> subprocess.Popen[bytes]:
    """Start a process that is not a rank, and that signals to the ranks do not reach; `pipes`: see `subprocess.Popen`.

    `environ`: environment of the process, without variables of MPI; None: that of this process, without them.

    mpirun and terminals signal a process group, so the new process gets its own session. srun signals all processes of
    a step, so SIGUSR1, the request to ranks to end, is blocked in the new process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        env = without_mpi(os.environ) if environ is None else environ
        return subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_or_kill(process: subprocess.Popen[Any], timeout_s: float) -> int:
    """Wait for a process, kill it after `timeout_s` seconds, and return its exit status."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


#: variable with the folder in which Open MPI's mpirun keeps files named by its process id. Leftovers of a killed mpirun
#: with the same process id stop a new one ("listener thread failed to start")
SESSION_FOLDER = "PRTE_MCA_prte_tmpdir_base"
#: variable with which mpirun enables ULFM in the ranks
_SWITCH = "OMPI_MCA_mpi_ft_enable"
#: variables for mpirun with the effect of `--with-ft ulfm`; set both, one alone hangs
ULFM = {"PRTE_MCA_rtos": "recoverable,notifyerrors", _SWITCH: "1"}
#: seconds that MPI may take to start under ULFM: it waits forever for a rank that died before
MPI_START_S = 300
#: variable with a file of the launcher, which rank 0 removes when MPI has started
SIGN = "NNLO_OPT_MPI_BEGINS"
#: variable with the file in which ranks leave their exit code for the launcher; they exit with 0 themselves, because
#: mpirun prints messages about any other code
EXIT_CODE = "NNLO_OPT_EXIT_CODE"


def ulfm_is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if this process is a rank of a job whose ranks survive the death of others (ULFM)."""
    return environ.get(_SWITCH, "").lower() in ("1", "true", "yes", "on", "enabled")


def say_that_mpi_has_begun(environ: Mapping[str, str] = os.environ) -> None:
    """Tell the launcher, if there is one, that MPI has started on all ranks; called by rank 0.

    Before that, all ranks would wait for a dead rank, with or without ULFM.
    """
    with suppress(KeyError, OSError):  # without the sign the launcher assumes it after a while
        SafePath.of(Path(environ[SIGN])).unlink()


#: variables with the mapping policy of Open MPI's mpirun, and the number of nodes of an `srun` step
_MAPPING, _STEP_NODES = "PRTE_MCA_rmaps_default_mapping_policy", "SLURM_STEP_NUM_NODES"


def n_allocated_nodes(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of nodes that Slurm, LSF or PBS has allocated to this job; 0 outside of such a job."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    if hosts := environ.get("LSB_MCPU_HOSTS", "").split()[::2] or environ.get("LSB_HOSTS", "").split():
        # jsrun does not start ranks on the first host, where the script runs.
        return len(set(hosts)) - ("JSM_NAMESPACE_SIZE" in environ)
    with suppress(KeyError, OSError):
        return len(set(Path(environ["PBS_NODEFILE"]).read_text().split()))
    return 0


def idle_nodes_text(n_nodes: int, n_ranks: int, environ: Mapping[str, str] = os.environ) -> str:
    """Return a warning if nodes of the job have no ranks although some could run there; else "".

    An `srun` step is exempt: it has the nodes that it was given, and other steps may use the rest.
    """
    n_allocated = n_allocated_nodes(environ)
    if environ.get(_STEP_NODES, "").isdecimal():
        n_allocated = min(n_allocated, int(environ[_STEP_NODES]))
    if n_nodes >= min(n_allocated, n_ranks):
        return ""
    text = f"The {n_ranks} ranks use {n_nodes} of the {n_allocated} nodes that this job has."
    if (policy := environ.get(_MAPPING, "")).startswith(":"):
        return f"{text} Open MPI's mpirun fills the first node, because `{_MAPPING}` is `{policy}`. Use `slot{policy}`."
    return (
        f"{text} Unless the others are for another search, spread the ranks: `mpirun --map-by node` (Open MPI), or "
        "`mpirun -ppn RANKS` (MPICH)."
    )
