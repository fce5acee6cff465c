"""Worlds of one that are none, by the environment in which launchers start processes.

The environments are those that Slurm 22.05, Open MPI 4.1 and 5.0, MPICH 4 and 5 and Intel MPI 2021 were seen to make.
"""

import os
import subprocess
import sys

import pytest

from nnlo_opt.core.base.errors import SearchWarning
from nnlo_opt.engine.runtime.launched import is_rank, split_world, warn_of_split_world

PID = 4711
JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_TASKS_PER_NODE": "4"}
BATCH = {**JOB, "SLURM_PROCID": "0", "SLURM_TASK_PID": "96", "SLURM_GTIDS": "0"}


def task(number: int = 2, n: int = 4, pid: int = PID) -> dict[str, str]:
    """What `srun` gives a task without a type of MPI."""
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(n), "SLURM_STEP_TASKS_PER_NODE": str(n)}
    return {**JOB, **step, "SLURM_PROCID": str(number), "SLURM_TASK_PID": str(pid)}


def pmi2(number: int = 2, n: int = 4, pid: int = PID) -> dict[str, str]:
    """The same with `--mpi=pmi2`."""
    return {**task(number, n, pid), "PMI_FD": "11", "PMI_JOBID": "7.0", "PMI_RANK": str(number), "PMI_SIZE": str(n)}


def open_mpi(number: int = 2, n: int = 4) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_SIZE": str(n), "OMPI_COMM_WORLD_RANK": str(number), "PMIX_RANK": str(number)}


def hydra(number: int = 2, n: int = 4) -> dict[str, str]:
    """What the mpirun of MPICH and of Intel MPI gives a rank."""
    return {"PMI_SIZE": str(n), "PMI_RANK": str(number), "PMI_FD": "6", "MPI_LOCALNRANKS": str(n)}


#: interactive shell of `srun -n 4 --pty bash`, which is task 0; what is typed there is another process
SHELL = {"SLURM_PTY_PORT": "34173"}


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        pytest.param({}, None, id="no launcher"),
        pytest.param(open_mpi(), "OMPI_COMM_WORLD_SIZE", id="Open MPI's mpirun -n 4 and another library"),
        pytest.param(hydra(), "PMI_SIZE", id="MPICH's mpirun -n 4 and another library"),
        pytest.param({**hydra(), "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_RANK": "2"}, "PMI_SIZE", id="MVAPICH2"),
        pytest.param(
            {"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_RANK": "2"}, "MV2_COMM_WORLD_SIZE", id="MVAPICH2 without PMI"
        ),
        pytest.param(
            {"JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "2"}, "JSM_NAMESPACE_SIZE", id="jsrun and another library"
        ),
        pytest.param(open_mpi(0, 1), None, id="mpirun -n 1"),
        pytest.param(task(), "SLURM_STEP_NUM_TASKS", id="srun -n 4 without a type of MPI"),
        pytest.param(pmi2(), "PMI_SIZE", id="srun -n 4 --mpi=pmi2 and another library"),
        pytest.param({**task(), "PMIX_RANK": "2"}, "SLURM_STEP_NUM_TASKS", id="srun --mpi=pmix and another library"),
        pytest.param(task(0, 1), None, id="srun -n 1"),
        pytest.param(JOB, None, id="salloc -n 4"),
        pytest.param({**JOB, **open_mpi(0, 1)}, None, id="salloc -n 4, mpirun -n 1"),
        pytest.param({**JOB, **open_mpi()}, "OMPI_COMM_WORLD_SIZE", id="salloc -n 4, mpirun -n 4 and another library"),
        pytest.param(BATCH, None, id="a notebook in a batch job of 4 tasks"),
        pytest.param({**BATCH, **open_mpi(0, 1)}, None, id="batch job, mpirun -n 1"),
        pytest.param({**BATCH, **hydra()}, "PMI_SIZE", id="batch job, mpirun -n 4 and another library"),
        # srun starts one daemon on each further node; all of its ranks inherit the variables of that step.
        pytest.param({**task(0, 3), **open_mpi(3, 1)}, None, id="mpirun -n 1 by a daemon on a remote node"),
        pytest.param(
            {**task(0, 1), **open_mpi(3, 4)}, "OMPI_COMM_WORLD_SIZE", id="rank of a remote node and another library"
        ),
        pytest.param({**task(1, 2), **hydra(0, 1)}, None, id="MPICH's mpirun -n 1 by a daemon on a remote node"),
        pytest.param({**task(), **open_mpi(0, 1)}, None, id="mpirun -n 1 within srun -n 4"),
        pytest.param({**pmi2(), **open_mpi(0, 1)}, None, id="Open MPI's mpirun -n 1 within srun -n 4 --mpi=pmi2"),
        pytest.param({**pmi2(), **hydra(0, 1)}, None, id="MPICH's mpirun -n 1 within srun -n 4 --mpi=pmi2"),
        pytest.param({**pmi2(0, 1), **open_mpi()}, "OMPI_COMM_WORLD_SIZE", id="mpirun -n 4 in srun -n 1 --mpi=pmi2"),
        pytest.param({**task(0, 4, 12), **SHELL}, None, id="typed in srun -n 4 --pty bash"),
        pytest.param({**pmi2(0, 4, 12), **SHELL}, None, id="typed in srun -n 4 --mpi=pmi2 --pty bash"),
        pytest.param({**task(0, 4, 12), **SHELL, **open_mpi(0, 1)}, None, id="mpirun -n 1 in srun -n 4 --pty bash"),
        pytest.param({**task(0, 4, 12), **SHELL, **open_mpi()}, "OMPI_COMM_WORLD_SIZE", id="mpirun -n 4 in srun --pty"),
        pytest.param({**pmi2(0, 4, 12), **SHELL, **hydra(0)}, "PMI_SIZE", id="MPICH's mpirun -n 4 in srun --pty"),
        pytest.param({**task(0), **SHELL}, "SLURM_STEP_NUM_TASKS", id="task 0 of srun -n 4 --pty OptimizationDriver"),
        pytest.param({**task(3), **SHELL}, "SLURM_STEP_NUM_TASKS", id="another task, which has no terminal"),
        pytest.param({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2"}, None, id="optimize within a --command script"),
        pytest.param({"NNLO_OPT_RANKS": "4"}, "NNLO_OPT_RANKS", id="nnlo-opt launch -n 4 with an unknown launcher"),
        pytest.param({"NNLO_OPT_RANKS": "4", **open_mpi(2, 1)}, "NNLO_OPT_RANKS", id="launch -n 4, one rank started"),
        pytest.param({"NNLO_OPT_RANKS": "1", **task()}, None, id="nnlo-opt launch -n 1 in each task of srun -n 4"),
        pytest.param({**task(), "NNLO_OPT_SEPARATE_RUNS": "1"}, None, id="a run in each task, which is meant"),
        pytest.param({**task(), "NNLO_OPT_SEPARATE_RUNS": "0"}, "SLURM_STEP_NUM_TASKS", id="which is not meant"),
        pytest.param({"OMPI_COMM_WORLD_SIZE": "many", "PMI_SIZE": "0"}, None, id="variables of something else"),
    ],
)  # fmt: skip
def test_a_world_of_one_is_suspect_if_its_innermost_launcher_has_started_more(environ, variable):
    launch = split_world(1, environ, PID)
    assert (launch.variable if launch else None) == variable
    if launch is not None:
        assert launch.n_processes == 4
        assert f"4 processes (`{variable}=4`), each in a world of 1 rank" in launch.split_text("Open MPI 5.0.11")
    for size in (2, 4, 7):
        assert split_world(size, environ, PID) is None, "only a world of one is suspect"


@pytest.mark.parametrize("of", [task, pmi2, open_mpi, hydra])
def test_rank_0_speaks(of):
    assert [split_world(1, of(number), PID).speaks for number in range(4)] == [True, False, False, False]
    assert [split_world(1, {"NNLO_OPT_RANKS": "4", **of(n)}, PID).speaks for n in range(2)] == [True, False]
    assert split_world(1, {"NNLO_OPT_RANKS": "4"}, PID).speaks, "better four lines than none"


@pytest.mark.parametrize(
    ("environ", "is_of_srun"),
    [(task(), True), (pmi2(), True), (hydra(), False), (open_mpi(), False), ({**task(1, 2), **hydra()}, False)],
)
def test_the_remedy_is_that_of_the_launcher(environ, is_of_srun):
    text = split_world(1, environ, PID).split_text("MPICH 5.0.2")
    assert ("srun --mpi=list" in text) == ("--mpi=pmix" in text) == is_of_srun
    assert "the MPI library of mpi4py (MPICH 5.0.2)" in text
    for word in ("`mpirun`", "`mpicc`", "`MPI4PY_MPIABI`", "`NNLO_OPT_SEPARATE_RUNS=1`"):
        assert word in text


@pytest.mark.parametrize(
    ("environ", "is_one"),
    [
        ({}, False),
        (open_mpi(), True),
        (hydra(), True),
        (pmi2(), True),
        (task(), False),
        ({**pmi2(0, 1, 12), **SHELL}, False),
        ({**pmi2(0, 1, 12), **SHELL, **open_mpi()}, True),
        ({**task(0, 1, 12), "PMIX_RANK": "0", **SHELL}, False),
    ],
)
def test_what_is_typed_in_a_shell_of_srun_is_no_rank(environ, is_one):
    assert is_rank(environ) == is_one


def test_a_script_is_warned_once_by_rank_0(monkeypatch):
    for name, value in open_mpi(0).items():
        monkeypatch.setenv(name, value)
    with pytest.warns(SearchWarning, match="OMPI_COMM_WORLD_SIZE=4") as said:
        warn_of_split_world(1, stacklevel=1)
    assert [warning.filename for warning in said] == [__file__]
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    warn_of_split_world(1, stacklevel=1)


SEARCH = """
import warnings, nnlo_opt
from nnlo_opt import Real
from mpi4py import MPI
given = {"n": {"n_parallel": 2}, "self": {"comm": MPI.COMM_SELF}, "world": {"comm": MPI.COMM_WORLD}, "": {}}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    options = {"num_iterations": 2, "hyper_opt": "random", **given[%r]}
    result = nnlo_opt.optimize(lambda p: p["x"] ** 2, {"x": Real(0, 1)}, **options)
print(len(result.trials), [str(one.message).split(" (")[1][:22] for one in said if "identical run" in str(one.message)])
"""


@pytest.mark.parametrize(
    ("given", "more", "n_said"),
    [
        ("", {}, 1),
        ("n", {}, 0),
        pytest.param("self", {}, 0, marks=pytest.mark.proof),
        pytest.param("world", {}, 1, marks=pytest.mark.proof),
        pytest.param("", {"NNLO_OPT_SEPARATE_RUNS": "1"}, 0, marks=pytest.mark.proof),
        pytest.param("", {"SLURM_PROCID": "3"}, 0, marks=pytest.mark.proof),
    ],
)
def test_optimize_warns_in_tasks_of_srun_unless_they_are_meant(given, more, n_said):
    environ = {**os.environ, **task(0), **more}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH % given], env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == f"2 {['`SLURM_STEP_NUM_TASKS='[:22]] * n_said}\n", done.stderr
