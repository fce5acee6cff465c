"""Variables by which ranks under mpirun of Open MPI outlive others (ULFM). What they do then is in `comm.mpi.ulfm`."""

import os
from collections.abc import Mapping

#: what mpirun tells the ranks
_SWITCH = "OMPI_MCA_mpi_ft_enable"
#: for mpirun, as `--with-ft ulfm` sets it; one of the two alone hangs
ULFM = {"PRTE_MCA_rtos": "recoverable,notifyerrors", _SWITCH: "1"}


def ranks_outlive_others(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether they do in the job that this process is a rank of."""
    return environ.get(_SWITCH, "").lower() in ("1", "true", "yes", "on", "enabled")
