"""Detects from the environment which processes a launcher has started together.

If the MPI library of a process does not match its launcher, the process sees a world of one rank, and N processes do N
identical runs. The launchers' variables are inherited: by a batch script, from the `srun` that started the daemon of
`mpirun` on a node, and by `mpirun` from the user's shell. So only the innermost launcher counts.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from nnlo_opt.core.base.errors import SearchWarning

#: variable with the number of `nnlo-opt launch -n`; a driver removes it, so that programs it starts do not inherit it
N_RANKS = "NNLO_OPT_RANKS"
#: variable that users set if each process is meant to be a separate run
SEPARATE_RUNS = "NNLO_OPT_SEPARATE_RUNS"
#: variables of each launcher: number of processes, and number of this process. Open MPI comes first: its ranks inherit
#: PMI_SIZE from `srun --mpi=pmi2` or the interactive shell; MPICH and Intel MPI (PMI) overwrite what they inherit;
#: jsrun also sets Open MPI's variables
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
)
#: the same for an `srun` step. SLURM_NTASKS is also set in a batch script, to what the job requested
_STEP = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
_NO = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Processes started by one launcher."""

    n_processes: int
    #: variable with their number
    variable: str
    #: number of this process among them; None: unknown
    rank: int | None
    #: the launcher is `srun`
    by_srun: bool

    @property
    def speaks(self) -> bool:
        """True for the one process that reports the problem for all."""
        return not self.rank

    def split_text(self, library: str) -> str:
        """Return the error about a world of one; `library`: the MPI library of this process, empty if unknown."""
        n = self.n_processes
        return (
            f"Processes that are started together must be ranks of one MPI world. Received: {n} processes "
            f"(`{self.variable}={n}`), each in a world of 1 rank, so {n} identical runs would start. "
            f"{self.remedy(library)} If each process is meant to be a run, set `{SEPARATE_RUNS}=1`."
        )

    def remedy(self, library: str) -> str:
        """Return how to join the processes in one world; `library`: see `split_text`."""
        of = "the MPI library of mpi4py" + f" ({library})" * bool(library)
        start = f"Start them with the `mpirun` that belongs to {of}"
        if self.by_srun:
            start = (
                f"`srun --mpi=list` lists the types of MPI: choose the one that fits {of}, such as `--mpi=pmix` for "
                "Open MPI or `--mpi=pmi2` for MPICH; or use the `mpirun` of that library"
            )
        return (
            f"{start}; or build mpi4py with the site's `mpicc`, or choose another installed library by `MPI4PY_MPIABI`."
        )


def is_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if the process was started by mpirun, or by srun with MPI."""
    has_rank = any(name in environ for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"))
    launch = _innermost(environ)
    return has_rank and (launch is None or not _is_typed(launch, environ, os.getpid()))


def split_world(size: int, environ: Mapping[str, str] = os.environ, pid: int | None = None) -> Launch | None:
    """Return the launch whose processes should be one world but are not; None without evidence for that.

    Args:
        size: number of ranks in the world of this process; only a world of one is suspicious.
        environ: environment of this process.
        pid: id of this process; None: unknown.
    """
    if size != 1 or environ.get(SEPARATE_RUNS, "").strip().lower() not in _NO:
        return None
    launch = _innermost(environ)
    if launch is None or launch.n_processes == 1 or _is_typed(launch, environ, pid):
        return None
    return launch


def warn_of_split_world(size: int, stacklevel: int) -> None:
    """Warn on rank 0 if `split_world` finds a launch; only a warning, as a script may want separate runs.

    `stacklevel`: stack level of the line to show, counted from the caller of this function.
    """
    launch = split_world(size, pid=os.getpid())
    if launch is not None and launch.speaks:
        warnings.warn(launch.split_text(""), SearchWarning, stacklevel=stacklevel + 1)


def _innermost(environ: Mapping[str, str]) -> Launch | None:
    """Return the launch of the innermost launcher whose number of processes is known."""
    of_launchers = [(size, environ.get(rank, "")) for size, rank in (*_LAUNCHERS, _STEP)]
    ranks = [rank for _, rank in of_launchers if rank.isdecimal()]
    for variable, rank in ((N_RANKS, ranks[0] if ranks else ""), *of_launchers):
        text = environ.get(variable, "")
        if text.isdecimal() and int(text) > 0:
            return Launch(
                n_processes=int(text),
                variable=variable,
                rank=int(rank) if rank.isdecimal() else None,
                # `srun --mpi=pmi2` also sets PMI_SIZE; only mpirun adds the number of ranks on the node.
                by_srun=variable == _STEP[0]
                or (variable == "PMI_SIZE" and _STEP[0] in environ and "MPI_LOCALNRANKS" not in environ),
            )
    return None


def _is_typed(launch: Launch, environ: Mapping[str, str], pid: int | None) -> bool:
    """Return True for a process that a user has started in the shell of `srun --pty`.

    Only task 0 has the terminal. A command typed there is one process, however many tasks `srun` has started; but task
    0 itself is one of the tasks.
    """
    is_shell = "SLURM_PTY_PORT" in environ and environ.get("SLURM_TASK_PID") != str(pid)
    return launch.by_srun and launch.rank == 0 and is_shell
