"""Processes that a launcher has started together but that do not see each other: no run begins, and a line says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import launcher

#: mpirun of another MPI, without that MPI: as many processes as are asked for, with MPICH's variables
OTHER = """#!/bin/sh
[ "$1" = --version ] && { echo "HYDRA build details:"; echo "    Version:  4.0.2"; exit; }
n=$2; shift 2
for i in $(seq 0 $((n - 1))); do PMI_SIZE=$n PMI_RANK=$i MPI_LOCALNRANKS=$n "$@" & pids="$pids $!"; done
for pid in $pids; do wait $pid || code=$?; done; exit $code
"""
OBJECTIVE = "from nnlo_opt import Real\nparameter_range = [Real(0, 1, name='x')]\ndef objective(x): return x\n"
SEARCH = ["OptimizationDriver", "--model", "objective.py", "--num-iterations", "2", "--hyper-opt", "random"]
STEP = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    (tmp_path / "mpirun").write_text(OTHER)
    (tmp_path / "mpirun").chmod(0o755)
    return tmp_path


def run(words: list[str], cwd: Path, **variables: str) -> launcher.Outcome:
    command = [str(launcher.BIN / words[0]), *words[1:]]
    environ = {**launcher.environment(), **variables}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=200, check=False)
    return launcher.Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "program", [SEARCH, ["TrainingDriver", "--model", "mnist"], ["OptimizationDriver", "--nonsense"]]
)
def test_a_driver_in_a_step_of_srun_refuses_before_it_reads_its_options(folder, program, preloaded):
    done = preloaded.run(program, folder, code=2, **STEP)
    assert done.err.count("Received: 4 processes (`SLURM_STEP_NUM_TASKS=4`), each in a world of 1 rank") == 1
    assert "`srun --mpi=list`" in done.err
    assert not done.out
    assert not (folder / "checkpoints").exists()


def test_the_other_tasks_end_with_the_same_code_in_silence(folder, preloaded):
    done = preloaded.run(SEARCH, folder, code=2, **{**STEP, "SLURM_PROCID": "3"})
    assert (done.out, done.err) == ("", "")
    assert not (folder / "checkpoints").exists()


def test_a_run_in_each_task_begins_if_it_is_meant(folder, preloaded):
    done = preloaded.run(SEARCH, folder, **STEP, NNLO_OPT_SEPARATE_RUNS="1")
    assert "2 complete" in done.out


def test_a_batch_script_without_srun_is_one_process(folder, preloaded):
    preloaded.run(SEARCH, folder, SLURM_JOB_ID="7", SLURM_NTASKS="4", SLURM_NPROCS="4", SLURM_PROCID="0")


@pytest.mark.proof
@pytest.mark.mpi
def test_the_launcher_ends_with_one_sentence_if_its_mpirun_is_of_another_mpi(folder):
    done = run(["nnlo-opt", "launch", "-n", "3", "--mpirun", str(folder / "mpirun"), "--", *SEARCH], folder)
    assert done.code == 2, done.err
    assert done.err.count("Received: 3 processes") == 1
    assert "starting again" not in done.err
    assert not [*folder.rglob("journal.jsonl")]


SCRIPT = """
import os, sys, warnings
warnings.simplefilter("error")
import nnlo_opt
print("NNLO_OPT_RANKS" in os.environ, file=open(sys.argv[1] + ".said", "w"))
result = nnlo_opt.optimize(lambda p: p["y"], {"y": nnlo_opt.Real(0, 1)}, num_iterations=2, hyper_opt="random")
nnlo_opt.report(1, len(result.trials))
"""


@pytest.mark.mpi
@pytest.mark.proof
def test_optimize_within_a_script_of_a_search_is_not_taken_for_one_of_several_runs(folder):
    (folder / "script.py").write_text(SCRIPT)
    (folder / "space.py").write_text("from nnlo_opt import Real\nparameter_range = [Real(0, 1, name='x')]\n")
    search = ["OptimizationDriver", "--command", f"{sys.executable} {folder}/script.py {folder}/{{x}}"]
    search += ["--search-space", "space.py", "--num-iterations", "2", "--hyper-opt", "random", "--checkpoint", "R"]
    done = run(["nnlo-opt", "launch", "-n", "3", "--", *search], folder, **STEP)
    assert done.code == 0, done.out + done.err
    assert {path.read_text() for path in folder.rglob("*.said")} == {"False\n"}


@pytest.mark.parametrize(("number", "n_said"), [("0", 1), ("1", 0)])
def test_doctor_is_started_once(folder, number, n_said, preloaded):
    done = preloaded.run(["nnlo-opt", "doctor"], folder, code=2, **{**STEP, "SLURM_PROCID": number})
    assert done.err.count("`nnlo-opt doctor` must be started once") == n_said


HOROVOD = "import nnlo_opt.allreduce as hvd; hvd.init(); print(hvd.size())"
MANAGER = "from nnlo_opt.controller import Controller; Controller()"


@pytest.mark.parametrize(("program", "code"), [(HOROVOD, 0), (MANAGER, 1)])
def test_other_doors_to_a_world_say_it_as_well(program, code):
    done = launcher.python(program, env={**os.environ, "OMPI_COMM_WORLD_SIZE": "4"}).expect(code)
    assert "Received: 4 processes (`OMPI_COMM_WORLD_SIZE=4`), each in a world of 1 rank" in done.err


#: mpirun of Debian's Open MPI, without that MPI, with fewer slots than ranks
FULL = """#!/bin/sh
[ "$1" = --version ] && { echo "mpirun.openmpi (OpenRTE) 4.1.4"; exit; }
echo "There are not enough slots available in the system" >&2; exit 1
"""


@pytest.mark.proof
@pytest.mark.mpi
def test_the_launcher_names_the_guards_of_the_version_that_started_no_rank(folder):
    (folder / "mpirun").write_text(FULL)
    done = run(["nnlo-opt", "launch", "-n", "3", "--mpirun", str(folder / "mpirun"), "--", *SEARCH], folder)
    assert done.code == 1
    assert done.err.count("By default Open MPI 4.1.4 starts no ranks as root, and no more ranks than slots") == 1
    assert "OMPI_MCA_rmaps_base_oversubscribe=1" in done.err
    assert "PRTE_MCA" not in done.err
