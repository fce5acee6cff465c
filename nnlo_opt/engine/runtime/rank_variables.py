"""Environment variables that describe a launcher's ranks, to be hidden from scripts and torch groups.

A framework would take all ranks of the job for those that train together, and a library of MPI its process for one of
them. What a user or a site has set stays: parameters of MPI, and what Slurm says about the job, its memory and CPUs.
"""

import os
import re
import sys
from collections.abc import Mapping

#: parameters of Open MPI that its mpirun gives to ranks by itself, and those by which ranks outlive others
_ADDED = (
    "OMPI_MCA_(PREFIXES|cpu_type|initial_wdir|num_procs|mpi_ft_enable)",
    "PRTE_MCA_rtos",
    # Open MPI 4
    "OMPI_MCA_(ess|ess_base_(jobid|vpid)|mpi_oversubscribe|pmix|shmem_RUNTIME_QUERY_hint)",
    "OMPI_MCA_orte_(app_num|bound_at_launch|ess_.*|hnp_uri|jobfam_session_dir|launch|local_daemon_uri|num_nodes)",
    "OMPI_MCA_orte_(parent_uri|precondition_transports|tmpdir_base|top_session_dir)",
    "PMIX_MCA_mca_base_component_show_load_errors",
)
#: further variables of the ranks of each launcher
_OF_RANKS = (
    # Open MPI, PRRTE and PMIx
    "OMPI_(COMM_WORLD|WORLD|APP_CTX)_.*",
    "OMPI_(ARGV|COMMAND|FILE_LOCATION|FIRST_RANKS|LIBDIR_LOC|NUM_APP_CTX|TOOL_NAME|UNIVERSE_SIZE|VERSION)",
    "OPAL_USER_PARAMS_GIVEN",
    "(PRTE|PMIX)_(?!MCA_).*",
    # MPICH, Intel MPI, MVAPICH, Cray, IBM
    "PMI_(APPNUM|CONTROL_.*|FD|HOSTNAME|ID|JOBID|KVS.*|LOCAL_.*|MAX_.*|PORT|PROCESS_MAPPING|RANK|SHARED_SECRET|SIZE)",
    "PMI_(SPAWNED|TOTALVIEW|UNIVERSE_SIZE)",
    "PMI2_.*",
    "HYDI_.*",
    "HYDRA_(BSTRAP_.*|IP_VERSION|LAUNCH_TYPE)",
    "MPI_LOCAL(NRANKS|RANKID)",
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME",
    "I_MPI_(INFO_.*|PIN_INFO|PIN_MAPPING|HYDRA_UUID|HYDRA_TOPOLIB|MPIRUN|INTERNAL_.*)",
    "I_MPI_(BIND_WIN_ALLOCATE|RETURN_WIN_MEM_NUMA)",
    "MV2_COMM_WORLD_.*",
    "(PALS|JSM)_.*",
    # Slurm: numbers of tasks and nodes, the place of a task, and the step, of which a script is no part
    "SLURM_(JOB_NUM_NODES|NNODES|NPROCS|NTASKS|NTASKS_PER_.*|TASKS_PER_NODE)(_(HET|PACK)_GROUP_[0-9]+)?",
    "SLURM_(GTIDS|LOCALID|NODEID|PROCID|TASK_PID|LAUNCH_NODE_IPADDR|SRUN_COMM_.*|STEP_.*|STEPID|PMIXP?_.*)",
    # this package; by NNLO_OPT_JOB its launcher finds what is left of a job
    "NNLO_OPT_(MPI_BEGINS|EXIT_CODE)",
)
_HIDDEN = re.compile("|".join((*_ADDED, *_OF_RANKS)))


def is_of_a_rank(name: str) -> bool:
    """Return True if a launcher has set the variable for its ranks."""
    return _HIDDEN.fullmatch(name) is not None


def without_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process that is no rank, but may start some."""
    return {name: text for name, text in environ.items() if not is_of_a_rank(name)}


def forget_ranks_if_spawned() -> None:
    """Remove the variables if `multiprocessing` has started this process anew, and imports the program of its parent.

    A user's module that imports MPI would join the job as a second process of the parent's rank, and crash.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        for name in filter(is_of_a_rank, [*os.environ]):
            del os.environ[name]
