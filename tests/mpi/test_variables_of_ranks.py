"""The variables that each installed MPI gives to its ranks, against those that are hidden from scripts."""

import os
import shutil
import subprocess

import pytest

from nnlo_opt.engine.runtime.rank_variables import is_of_a_rank
from nnlo_opt.testing.mpirun import ENVIRONMENT, find_mpirun

pytestmark = [pytest.mark.mpi, pytest.mark.proof]

PLACES = {
    os.path.realpath(path): path
    for path in (find_mpirun(), *map(shutil.which, ("mpirun", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra")))
    if path is not None
}
#: parameters of a user
OWN = {**ENVIRONMENT, "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_base_verbose": "0", "I_MPI_DEBUG": "0"}
#: what describes no rank
OTHERS = {
    "_", "PWD", "SHLVL", "LD_LIBRARY_PATH", "OPAL_PREFIX", "HFI_NO_BACKTRACE", "IPATH_NO_BACKTRACE",
    "GFORTRAN_UNBUFFERED_PRECONNECTED",
}  # fmt: skip


@pytest.mark.parametrize("mpirun", PLACES.values())
def test_all_that_mpirun_adds_is_hidden_and_what_a_user_has_set_is_not(mpirun, tmp_path):
    path = f"{os.path.dirname(mpirun)}:/usr/bin:/bin"
    before = {"HOME": str(tmp_path), "PATH": path, "TMPDIR": os.environ.get("TMPDIR", "/tmp"), **OWN}
    command = [mpirun, "-n", "3", "env", "-0"]
    done = subprocess.run(command, env=before, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    ranks = {line.partition("=")[0] for line in done.stdout.split("\0") if "=" in line}
    added = ranks - before.keys()
    assert added
    assert {name for name in added if not is_of_a_rank(name)} <= OTHERS
    assert not [name for name in before if is_of_a_rank(name)]
