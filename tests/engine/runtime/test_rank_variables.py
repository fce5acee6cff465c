"""What a script may know of the job that has started it."""

import subprocess
import sys

import pytest

from nnlo_opt.engine.runtime.rank_variables import is_of_a_rank, without_ranks
from tests.helpers.launcher import environment

#: set by launchers for their ranks
HIDDEN = """
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_UNIVERSE_SIZE OMPI_MCA_orte_ess_vpid OMPI_MCA_num_procs PMIX_RANK
    PMIX_NAMESPACE PMIX_SERVER_URI41 PRTE_LAUNCHED PMI_RANK PMI_SIZE PMI_FD PMI_LOCAL_RANK PMI2_RANK HYDI_CONTROL_FD
    HYDRA_BSTRAP_UPSTREAM_FD MPI_LOCALRANKID MV2_COMM_WORLD_RANK PALS_RANKID JSM_NAMESPACE_SIZE I_MPI_INFO_NP
    SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_PROCID
    SLURM_LOCALID SLURM_NODEID SLURM_GTIDS SLURM_STEP_NUM_TASKS SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NODELIST
    SLURM_NTASKS_HET_GROUP_1 SLURM_SRUN_COMM_PORT OMPI_MCA_mpi_ft_enable PRTE_MCA_rtos NNLO_OPT_EXIT_CODE
"""
#: of a user, of a site, of a job
KEPT = """
    OMPI_MCA_btl OMPI_MCA_pml OMPI_MCA_orte_keep_fqdn_hostnames OMPI_ALLOW_RUN_AS_ROOT OMPI_CC PRTE_MCA_plm_ssh_agent
    PRTE_MCA_rmaps_default_mapping_policy PMIX_MCA_gds I_MPI_FABRICS I_MPI_PIN_DOMAIN HYDRA_BOOTSTRAP MV2_USE_CUDA
    MPICH_ASYNC_PROGRESS MPI4PY_MPIABI MPI_HOME PMI_MMAP_SYNC_WAIT_TIME SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NAME
    SLURM_SUBMIT_DIR SLURM_CPUS_PER_TASK SLURM_CPUS_ON_NODE SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_ARRAY_TASK_ID
    SLURM_JOB_NODELIST SLURM_GPUS_ON_NODE SLURM_TMPDIR SLURM_MPI_TYPE SLURM_CONF TMPDIR PATH NNLO_OPT_JOB
"""


@pytest.mark.parametrize("name", HIDDEN.split())
def test_a_script_is_no_rank_of_the_job(name):
    assert is_of_a_rank(name)


@pytest.mark.parametrize("name", KEPT.split())
def test_what_a_user_or_a_site_has_set_stays(name):
    assert not is_of_a_rank(name)
    assert without_ranks({name: "1", "SLURM_NTASKS": "4"}) == {name: "1"}


SPAWNS = """
import multiprocessing, os, sys
from nnlo_opt.engine.runtime.rank_variables import forget_ranks_if_spawned
forget_ranks_if_spawned()
def ranks(number):
    return [name for name in ("PMI_RANK", "OMPI_MCA_btl") if name in os.environ]
if __name__ == "__main__":
    for how in ("spawn", "forkserver"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            print(ranks(0), *pool.map(ranks, [1]))
"""


def test_a_process_that_a_rank_spawns_is_no_rank(tmp_path):
    (tmp_path / "program.py").write_text(SPAWNS)
    ranks = {**environment(), "PMI_RANK": "3", "OMPI_MCA_btl": "self"}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=ranks, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['PMI_RANK', 'OMPI_MCA_btl'] ['OMPI_MCA_btl']\n" * 2
