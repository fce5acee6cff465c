"""Environment variables that processes of ours give each other, and the commands of those that are no ranks.

By some of them ranks under mpirun of Open MPI outlive others (ULFM); what they do then is in `comm.mpi.ulfm`.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

#: variables by which an MPI library would take the process for one of its ranks
_MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI", "HYDRA_")


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module`; `-P`: a file of the user's must not pass for one of the standard library."""
    return [sys.executable, "-P", "-m", module, *arguments]


def without_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for a process that is no rank, and that finds this very package."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_MPI_PREFIXES)}
    root = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    return kept


#: what mpirun tells the ranks
_SWITCH = "OMPI_MCA_mpi_ft_enable"
#: for mpirun, as `--with-ft ulfm` sets it; one of the two alone hangs
ULFM = {"PRTE_MCA_rtos": "recoverable,notifyerrors", _SWITCH: "1"}
#: seconds that MPI has to begin where ranks outlive others: for one that has died before it waits for ever
MPI_START_S = 300
#: the variable by which the launcher names a file to rank 0, which removes it when MPI has begun
SIGN = "NNLO_OPT_MPI_BEGINS"


def ranks_outlive_others(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether they do in the job that this process is a rank of."""
    return environ.get(_SWITCH, "").lower() in ("1", "true", "yes", "on", "enabled")


def say_that_mpi_has_begun(environ: Mapping[str, str] = os.environ) -> None:
    """Tell the launcher, where there is one, that no rank waits in MPI's beginning any more; for rank 0.

    Till then a rank that dies is waited for by all others, ULFM or not.
    """
    with suppress(KeyError, OSError):  # without the sign it believes so after a while
        Path(environ[SIGN]).unlink()
