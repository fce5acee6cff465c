"""Starts real ranks for tests and benchmarks, with Open MPI or MPICH."""

import shutil
import sys
from pathlib import Path

#: environment for a single node with fewer cores than ranks; works for root, too
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",  # Open MPI 5
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    # Open MPI's libfabric transport, which a single node does not need, sleeps for a second when MPI starts.
    "OMPI_MCA_btl": "^ofi",
}


def find_mpirun() -> str | None:
    """Return the mpirun of this environment, else the first one in PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")
