"""Environment variables that describe a launcher's ranks, to be hidden from scripts and torch groups.

Otherwise a framework would train on all ranks of the job together, and an MPI library would treat the process as one of
them. Variables set by users or sites stay: MPI parameters, and Slurm's about the job, its memory and CPUs.
"""

import os
import re
import sys
from collections.abc import Mapping

#: Open MPI parameters that mpirun itself sets for ranks, and those that let ranks survive others
_ADDED = (
    "OMPI_MCA_(PREFIXES|cpu_type|initial_wdir|num_procs|mpi_ft_enable)",
    "PRTE_MCA_rtos",
    # Open MPI 4
    "OMPI_MCA_(ess|ess_base_(jobid|vpid)|mpi_oversubscribe|pmix|shmem_RUNTIME_QUERY_hint)",
    "OMPI_MCA_orte_(app_num|bound_at_launch|ess_.*|hnp_uri|jobfam_session_dir|launch|local_daemon_uri|num_nodes)",
    "OMPI_MCA_orte_(parent_uri|precondition_transports|tmpdir_base|top_session_dir)",
    "PMIX_MCA_mca_base_component_show_load_errors",
)
#: other variables that launchers set for ranks
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
    # Slurm: numbers of tasks and nodes, the place of a task, and the step, which a script is not part of
    "SLURM_(JOB_NUM_NODES|NNODES|NPROCS|NTASKS|NTASKS_PER_.*|TASKS_PER_NODE)(_(HET|PACK)_GROUP_[0-9]+)?",
    "SLURM_(GTIDS|LOCALID|NODEID|PROCID|TASK_PID|LAUNCH_NODE_IPADDR|SRUN_COMM_.*|STEP_.*|STEPID|PMIXP?_.*)",
    # this package; its launcher finds leftovers of a job by NNLO_OPT_JOB, which stays
    "NNLO_OPT_(MPI_BEGINS|EXIT_CODE)",
)
_HIDDEN = re.compile("|".join((*_ADDED, *_OF_RANKS)))


def is_of_a_rank(name: str) -> bool:
    """Return True if launchers set this variable for their ranks."""
    return _HIDDEN.fullmatch(name) is not None


def without_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process that is not a rank, but may start some."""
    return {name: text for name, text in environ.items() if not is_of_a_rank(name)}


def forget_ranks_if_spawned() -> None:
    """Remove the variables in a process spawned by `multiprocessing`, which imports its parent's main module.

    Otherwise a user's module that imports MPI would join the job as a second process of the parent's rank, and crash.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        for name in filter(is_of_a_rank, [*os.environ]):
            del os.environ[name]
