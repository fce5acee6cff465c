"""`nnlo-opt doctor` with real ranks, on machines that are made to fail."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import nnlo_opt
from nnlo_opt.engine.runtime.environment import SESSION_FOLDER
from nnlo_opt.testing.mpirun import ENVIRONMENT, find_mpirun
from nnlo_opt.tools.doctor.examination import Examination
from nnlo_opt.tools.launcher.job import has_ulfm
from tests.helpers import launcher

pytestmark = [pytest.mark.mpi, pytest.mark.proof]

#: frameworks in a line each, so that their import takes no time
QUICK = {
    "keras": "class backend:\n    backend = staticmethod(lambda: 'none')",
    "tensorflow": "class config:\n    list_physical_devices = staticmethod(lambda kind: [])",
    "torch": "class cuda:\n    device_count = staticmethod(lambda: 0)",
    "jax": "devices = list",
}
#: MPICH's mpirun without MPICH: its answer, and as many processes as are asked for, each alone
OTHER = """[ "$1" = --version ] && { echo "HYDRA build details:"; echo "    Version:  5.0.2"; exit; }
n=$2; shift 2
for i in $(seq $n); do "$@" & done; wait"""
#: checks of the command
NAMES = {"MPI", "ranks", "deaths", "cores", "threads", "folder", *QUICK, "GPUs", "leftovers"}
needs_open_mpi = pytest.mark.skipif(not has_ulfm(find_mpirun() or ""), reason="needs Open MPI 5")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder of quick frameworks, in an environment in which ranks start."""
    for name, text in QUICK.items():
        (tmp_path / f"{name}.py").write_text(f"__version__ = '1.0'\n{text}\n")
    for name, value in {**ENVIRONMENT, "PYTHONPATH": str(tmp_path), SESSION_FOLDER: str(tmp_path / "s")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{launcher.BIN}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def doctor(*words: str, code: int, python: str = sys.executable) -> dict[str, str]:
    """Run the command; return the line of each check, and of several the gravest."""
    command = [python, "-P", "-c", "from nnlo_opt.cli.main import tool; tool()", "doctor", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert not done.stderr
    lines = sorted(done.stdout.splitlines(), key=lambda line: ["fine", "remark", "broken"].index(line.split(":")[0]))
    return {line.split(": ")[1]: line for line in lines}


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_on_a_sound_machine_nothing_is_broken(folder):
    lines = doctor("--timeout", "50", str(folder / "checkpoints" / "run"), code=0)
    assert lines.keys() == NAMES
    assert lines["MPI"].startswith("fine: MPI: `")
    assert lines["keras"] == "fine: keras: 1.0 on none, imported in 0.0 s."
    assert not (folder / "checkpoints").exists()


def test_without_a_launcher_everything_else_is_looked_at(folder, monkeypatch):
    site = Path(psutil.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(nnlo_opt.__file__).parents[1]), str(site)]))
    monkeypatch.setenv("PATH", "")
    lines = doctor(str(folder), code=1, python=sys._base_executable)
    assert "No launcher is in PATH or beside this Python." in lines["MPI"]
    assert NAMES - lines.keys() == {"ranks", "deaths"}


def test_a_launcher_of_another_kind_starts_ranks_that_are_alone(folder, monkeypatch):
    script(folder / "mpirun", OTHER)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    lines = doctor("-n", "3", str(folder), code=1)
    assert "is MPICH 5.0.2; the library of mpi4py is Open MPI" in lines["MPI"]
    assert f"Call `{launcher.BIN}/mpirun`" in lines["MPI"]
    assert "3 ranks have started, each alone in a world of one." in lines["ranks"]


def test_mpich_beside_open_mpi_is_found_out(folder):
    """The wheel of MPICH itself, in a folder of its own."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "other"), "mpich"]
    if subprocess.run(pip, capture_output=True, check=False).returncode:
        pytest.skip("no wheel of MPICH to be had")
    lines = doctor("--mpirun", str(folder / "other" / "bin" / "mpirun"), str(folder), code=1)
    assert "is MPICH " in lines["MPI"]
    assert "2 ranks have started, each alone in a world of one." in lines["ranks"]


@needs_open_mpi
@pytest.mark.parametrize(
    ("environment", "words", "check", "sentence"),
    [
        (
            {"SLURM_JOB_NUM_NODES": "2"},
            ["-n", "2"],
            "ranks",
            "use 1 of the 2 nodes that this job has. Unless the others",
        ),
        ({"OMPI_ALLOW_RUN_AS_ROOT": ""}, [], "ranks", "Set `OMPI_ALLOW_RUN_AS_ROOT=1`"),
        ({"PRTE_MCA_rmaps_default_mapping_policy": ""}, ["-n", "999"], "ranks", "slot:oversubscribe`."),
        ({"OMPI_MCA_btl": "self"}, [], "ranks", "are unable to reach each other"),
    ],
)
def test_ranks_that_mpirun_does_not_start_as_it_should(folder, monkeypatch, environment, words, check, sentence):
    for name, value in environment.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    assert sentence in doctor(*words, str(folder), code=1)[check]


@needs_open_mpi
def test_a_death_that_ends_the_job_and_a_folder_that_ranks_do_not_see(folder, monkeypatch):
    mpirun, runs = find_mpirun(), folder / "runs"
    runs.mkdir()
    inside = script(folder / "inside", f'mount -t tmpfs x {runs} || exit 1\nexec "$@"')
    wrapper = script(folder / "wrapper", f"""[ "$1" = --version ] && exec {mpirun} --version
unset OMPI_MCA_mpi_ft_enable PRTE_MCA_rtos
n=$2; shift 2
exec {mpirun} -n $n unshare -m {inside} "$@"
""")  # fmt: skip
    lines = doctor("--mpirun", wrapper, str(runs), code=1)
    assert "broken: deaths: The death of a rank ends the job" in lines["deaths"]
    assert "A new file in the run directory is not seen on " in lines["ranks"]


@needs_open_mpi
def test_an_mpirun_that_is_killed_leaves_a_folder(folder, monkeypatch):
    monkeypatch.setenv(SESSION_FOLDER, str(folder))
    job = subprocess.Popen([find_mpirun(), "-n", "1", "sleep", "60"], start_new_session=True)
    assert launcher.seen_within(30, lambda: any(p.name() == "sleep" for p in psutil.Process(job.pid).children(True)))
    family = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait()
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=30)
    of = Examination(starter=[], n_ranks=None, folder=folder, timeout_s=9.0)
    assert next(of.leftovers()).state == "remark"
