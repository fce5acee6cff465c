"""What starting real ranks needs in tests and benchmarks, with Open MPI and with MPICH."""

import shutil
import sys
from pathlib import Path

#: for a single node with fewer cores than ranks, as root too
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # Of Open MPI's transports the one for libfabric, which no node needs by itself, sleeps a second when MPI begins.
    "OMPI_MCA_btl": "^ofi",
}
_NOT_STARTED = "listener thread failed to start"


def find_mpirun() -> str | None:
    """The mpirun of this environment, else the first in PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def never_started(code: int, said: str) -> bool:
    """Whether mpirun has given up before any rank ran: Open MPI's does, once in some hundred starts.

    `said`: what it has written to standard error.
    """
    return code != 0 and _NOT_STARTED in said
