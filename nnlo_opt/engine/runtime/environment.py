"""Environment with which this package starts its processes.

Some of the variables let ranks under Open MPI's mpirun outlive ranks that die (ULFM); `engine.comm.mpi.ulfm` says what
the remaining ranks do then.
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

#: beginnings of variables by which an MPI library would take a process for one of its ranks
_MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI", "HYDRA_")
#: variables that NumPy and SciPy read for their number of threads, each once, when they are imported
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def fit_on_one_thread() -> None:
    """Prepare for fits, which are small, as the search process does; to be called before SciPy is imported."""
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module`; by `-P` no file of the user hides a module of the standard library."""
    return [sys.executable, "-P", "-m", module, *arguments]


def without_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` for a process that is no rank, and that imports this copy of the package."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_MPI_PREFIXES)}
    root = str(Path(__file__).resolve().parents[3])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    return kept


def start_helper(
    command: Sequence[str], environ: Mapping[str, str] | None = None, **pipes: Any
) -> subprocess.Popen[bytes]:
    """Start a process that is no rank, and that no signal to the ranks reaches; `pipes`: as of `subprocess.Popen`.

    `environ`: of the process, without variables of MPI; None: as this process has it, without them.

    mpirun and terminals signal a group of processes, which this one leaves with its session. srun signals all
    processes of a step: SIGUSR1, by which ranks are asked to end, stays blocked here.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        env = without_mpi(os.environ) if environ is None else environ
        return subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_or_kill(process: subprocess.Popen[Any], timeout_s: float) -> int:
    """Return the status of a process that ends within `timeout_s` seconds, or else is killed."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


#: variable that names the folder in which Open MPI's mpirun keeps files named by its process id. mpirun does not
#: start ("listener thread failed to start") if a killed one of the same process id has left some
SESSION_FOLDER = "PRTE_MCA_prte_tmpdir_base"
#: variable by which mpirun turns on ULFM in the ranks
_SWITCH = "OMPI_MCA_mpi_ft_enable"
#: variables for mpirun, as `--with-ft ulfm` sets them; one of the two alone hangs
ULFM = {"PRTE_MCA_rtos": "recoverable,notifyerrors", _SWITCH: "1"}
#: time limit for the start of MPI under ULFM, seconds: MPI waits forever for a rank that died before
MPI_START_S = 300
#: variable by which the launcher names a file; rank 0 removes the file when MPI has started
SIGN = "NNLO_OPT_MPI_BEGINS"
#: variable by which the launcher names a file for the exit code of all ranks, which then leave with 0: mpirun follows
#: any other code with lines of its own
EXIT_CODE = "NNLO_OPT_EXIT_CODE"


def ranks_outlive_others(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if this process is a rank of a job whose ranks survive the death of others (ULFM)."""
    return environ.get(_SWITCH, "").lower() in ("1", "true", "yes", "on", "enabled")


def say_that_mpi_has_begun(environ: Mapping[str, str] = os.environ) -> None:
    """Tell the launcher, if there is one, that MPI has started on all ranks; called by rank 0.

    Until then all ranks wait for a rank that dies, with ULFM or without.
    """
    with suppress(KeyError, OSError):  # without the sign the launcher assumes it after a while
        SafePath.of(Path(environ[SIGN])).unlink()


#: variables with the policy by which Open MPI's mpirun places ranks, and the number of nodes of a step of `srun`
_MAPPING, _STEP_NODES = "PRTE_MCA_rmaps_default_mapping_policy", "SLURM_STEP_NUM_NODES"


def n_allocated_nodes(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of nodes that Slurm, LSF or PBS has given to this job; 0 if none of them has started it."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    if hosts := environ.get("LSB_MCPU_HOSTS", "").split()[::2] or environ.get("LSB_HOSTS", "").split():
        # jsrun starts no rank on the first host, on which the script runs.
        return len(set(hosts)) - ("JSM_NAMESPACE_SIZE" in environ)
    with suppress(KeyError, OSError):
        return len(set(Path(environ["PBS_NODEFILE"]).read_text().split()))
    return 0


def idle_nodes_text(n_nodes: int, n_ranks: int, environ: Mapping[str, str] = os.environ) -> str:
    """Return a warning if the ranks leave nodes of the job idle on which some could run; else "".

    A step of `srun` has the nodes that it was given, and leaves the others to other steps.
    """
    n_allocated = n_allocated_nodes(environ)
    if environ.get(_STEP_NODES, "").isdecimal():
        n_allocated = min(n_allocated, int(environ[_STEP_NODES]))
    if n_nodes >= min(n_allocated, n_ranks):
        return ""
    text = f"The {n_ranks} ranks use {n_nodes} of the {n_allocated} nodes that this job has."
    if (policy := environ.get(_MAPPING, "")).startswith(":"):
        return f"{text} Open MPI's mpirun fills the first node, as `{_MAPPING}` is `{policy}`. Use `slot{policy}`."
    return (
        f"{text} If the others are not for another search, spread the ranks: `mpirun --map-by node` (Open MPI), or "
        "`mpirun -ppn RANKS` (MPICH)."
    )
