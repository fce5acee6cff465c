import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.tools.launcher.batch_script import SCHEDULERS, BatchJob
from nnlo_opt.tools.launcher.planning import JobPlan, Memory
from tests.helpers.launcher import seen_within

ALL = "--cores-per-rank 2 --node-gpus 2 --account acc:1 --partition gpu --memory --modules python/3.11 openmpi/4.1"
HEADS = {
    "slurm": """\
#SBATCH --nodes=3
#SBATCH --ntasks=9
#SBATCH --ntasks-per-node=4
#SBATCH --time=01:30:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --cpus-per-task=2
#SBATCH --mem=2190M
#SBATCH --gpus-per-node=2
#SBATCH --account=acc:1
#SBATCH --partition=gpu
""",
    "pbs": """\
# Written from the manuals of OpenPBS and PBS Pro, and not tried on one.
#PBS -l select=2:ncpus=8:mpiprocs=4:ompthreads=2:mem=2190mb:ngpus=2+1:ncpus=2:mpiprocs=1:ompthreads=2:mem=548mb:ngpus=2
#PBS -l place=scatter
#PBS -l walltime=01:30:00
#PBS -j oe
#PBS -r y
#PBS -A acc:1
#PBS -q gpu
""",
    "lsf": """\
# Written from the manuals of LSF, and not tried on one.
#BSUB -n 9
#BSUB -R "span[ptile=4] rusage[mem=2190MB] affinity[core(2)]"
#BSUB -W 01:30
#BSUB -wa USR1 -wt 2
#BSUB -r
#BSUB -Q "75"
#BSUB -gpu "num=2"
#BSUB -P acc:1
#BSUB -q gpu
""",
}
#: commands that a script calls with the job's number or file, and what stands for them here
CALLED = {"slurm": "scontrol requeue", "pbs": "qsub", "lsf": "no command"}


@pytest.fixture
def plan(printed):
    """Run `nnlo-opt plan` of nine ranks; return what it prints."""

    def run(options: str) -> str:
        return printed("plan", "-n", "9", "--block-size", "4", "--walltime", "90m", *shlex.split(options))

    return run


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_script_has_a_line_for_each_option(scheduler, plan, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/activate").touch()
    more = f"{ALL} --node-cores 8 --environment {tmp_path} --mpirun 'srun --mpi=pmix'"
    script = plan(f"--scheduler {scheduler} {more} -- --model it.py").partition("\n\n")[2]
    head, _, rest = script.partition("\n\n")
    assert head == f"#!/bin/bash -l\n{HEADS[scheduler]}".rstrip()
    setup, _, run = rest.partition("\n\n")
    lines = ["module load python/3.11 openmpi/4.1 || exit", f". {tmp_path}/bin/activate || exit"]
    assert setup.removeprefix('cd "$PBS_O_WORKDIR" || exit\n').split("\n") == [*lines, "export OMP_NUM_THREADS=2"]
    assert setup.startswith("cd ") == (scheduler == "pbs")
    command = "nnlo-opt launch -n 9 --grace 90 --mpirun 'srun --mpi=pmix' -- OptimizationDriver --block-size 4"
    assert f"{command} --model it.py --opt-restore &\n" in run
    assert ("timeout --foreground --preserve-status --signal=USR1 5280 nnlo-opt" in run) == (scheduler == "pbs")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_script_asks_for_nothing_that_was_not_given(scheduler, plan):
    script = plan(f"--scheduler {scheduler}")
    asked = script[script.index("#!/bin/bash\n") :]
    for word in ("mem", "gpu", "account", "partition", "-A", "-P", "-q ", "OMP", "module", "activate", "affinity"):
        assert word not in asked


def test_the_script_goes_to_a_file_that_pbs_submits_again(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plan("--scheduler pbs --write job.pbs").endswith("Batch script: `job.pbs`.\n")
    script = Path("job.pbs").read_text()
    assert script.startswith("#!/bin/bash\n# Written")
    assert f"qsub {tmp_path}/job.pbs; fi" in script
    assert "qsub job.sh; fi" in plan("--scheduler pbs")


def test_memory_and_partition_have_two_forms(plan):
    assert "--mem=64000M" in plan("--scheduler slurm --memory 64000")
    assert "--partition=long" in plan("--scheduler slurm --queue long")


def test_an_environment_without_a_script_of_its_own_goes_to_the_path(plan, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    assert f'export PATH={tmp_path}/bin:"$PATH" || exit' in plan(f"--scheduler lsf --environment {tmp_path}")


def test_a_template_has_its_placeholders_replaced(plan, tmp_path):
    template = tmp_path / "site.sh"
    template.write_text(
        "#!/bin/sh\n#@ {{ranks}} {{nodes}} {{ranks_per_node}} {{memory_mb}} {{walltime}} {{ walltime_s }} {{account}}\n"
        'echo "${HOME}" {a,b}\n{{setup}}\n{{command}}\n'
    )
    script = plan(f"--template {template} --node-cores 8 --account x --modules m").partition("\n\n")[2]
    command = "nnlo-opt launch -n 9 --grace 90 -- OptimizationDriver --block-size 4 --model my_model.py"
    assert script.split("\n")[:5] == [
        "#!/bin/sh",
        "#@ 9 2 8 3990 01:30:00 5400 x",
        'echo "${HOME}" {a,b}',
        "module load m || exit",
        f"{command} --checkpoint my_run --opt-restore",
    ]
    template.write_text("{{directives}}\n{{run}}\n")
    assert "#SBATCH --nodes=1\n" in plan(f"--template {template} --scheduler slurm")
    assert "scontrol" not in plan(f"--template {template} --scheduler lsf")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--scheduler sge", "`--scheduler` must be one of slurm, pbs, lsf. Received: sge."),
        ("--memory", "`--memory` must be given with `--scheduler` or `--template`"),
        ("--write job.sh", "`--write` must be given with `--scheduler` or `--template`"),
        (
            "--scheduler pbs --memory 8G",
            "`--memory` must be a whole number of MB, at least 1, or planned. Received: 8G.",
        ),
        ("--scheduler pbs --memory 0", "`--memory` must be a whole number of MB, at least 1, or planned. Received: 0."),
        ("--scheduler lsf --node-gpus -1", "`--node-gpus` must be a whole number, at least 0. Received: -1."),
        ("--scheduler slurm --account 'a b'", "`--account` must be a name of letters, digits"),
        ("--scheduler slurm --partition '-x'", "`--partition` must be"),
        ("--scheduler slurm --modules 'm; rm x'", "`--modules` must be a name of letters, digits"),
        ("--scheduler slurm --environment .", "`--environment` must be the folder of a Python environment"),
        (
            "--scheduler slurm --write none/job.sh",
            "`--write` must name a file that can be written. Received: none/job.sh",
        ),
        ("--template none", "`--template` must name a text file that can be read. Received: none (No such file"),
        ("--template .", "`--template` must name a text file that can be read. Received: . (Is a directory)"),
        ("--template binary", "Received: binary (it is not text)"),
        (
            "--template unknown",
            "must be among ranks, nodes, ranks_per_node, cores_per_rank, gpus_per_node, memory_mb, ",
        ),
        ("--template unknown", "Received: {{rank}} in `unknown`. Did you mean `ranks`?"),
        ("--template account", "The placeholder {{account}} needs the option `--account`."),
        ("--template directives", "The placeholder {{directives}} needs the option `--scheduler`."),
        ("--template ranks", "A template must start the search by the placeholder {{run}} or {{command}}."),
    ],
)
def test_a_wrong_request_is_one_sentence_and_code_2(options, words, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("binary").write_bytes(b"\xff\xfe\0")
    Path("unknown").write_text("{{run}} {{rank}}")
    for name in ("account", "directives"):
        Path(name).write_text(f"{{{{{name}}}}} {{{{run}}}}")
    Path("ranks").write_text("{{ranks}}")
    assert words in refused("plan", "-n", "9", *shlex.split(options))
    assert not Path("job.sh").exists()


def job_of(scheduler, command, walltime_s=7500.0):
    layout = JobPlan(topology=Topology.plan(9, 4), ranks_per_node=64, memory=Memory())
    return BatchJob(plan=layout, command=command, walltime_s=walltime_s, scheduler=scheduler)


WAITS = """trap 'echo heard; exit 75' USR1; echo ready; while true; do sleep 0.1; done"""


def started(job, tmp_path, replaced=(), launcher=WAITS):
    """Start a script, in which `echo` stands for commands of the scheduler; `replaced`: words and what they become."""
    (tmp_path / "launcher.sh").write_text(launcher)
    script = job.script()
    for words, other in {CALLED[job.scheduler]: "echo again", **dict(replaced)}.items():
        script = script.replace(words, other)
    (tmp_path / "job.sh").write_text(script + "\n")
    with (tmp_path / "out").open("w") as out:
        words = ["env", f"PBS_O_WORKDIR={tmp_path}", "bash", str(tmp_path / "job.sh")]
        return subprocess.Popen(words, stdout=out, start_new_session=True)


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_script_passes_a_signal_on_and_ends_with_the_launchers_code(scheduler, signum, tmp_path):
    job = job_of(scheduler, ("bash", str(tmp_path / "launcher.sh")))
    assert "02:05" in job.script()
    process = started(job, tmp_path)
    assert seen_within(30, lambda: "ready" in (tmp_path / "out").read_text())
    process.send_signal(signum)
    assert process.wait(30) == 75
    assert "heard" in (tmp_path / "out").read_text()
    # SIGTERM cancels a job, which must then not come back. LSF requeues by the exit code.
    comes_back = scheduler != "lsf" and signum == signal.SIGUSR1
    assert ("again" in (tmp_path / "out").read_text()) == comes_back


@pytest.mark.parametrize("scheduler", ["slurm", "lsf"])
@pytest.mark.parametrize("code", [0, 138, 143])
def test_the_script_ends_with_a_launcher_whatever_its_code(scheduler, code, tmp_path):
    # 138 and 143 are also what `wait` returns when a signal interrupts it: the script once asked again for ever.
    job = job_of(scheduler, ("bash", str(tmp_path / "launcher.sh")))
    process = started(job, tmp_path, launcher=f"exit {code}")
    try:
        assert process.wait(30) == code
    finally:
        process.kill()


def test_a_script_of_pbs_gives_the_notice_itself(tmp_path):
    job = job_of("pbs", ("bash", str(tmp_path / "launcher.sh")), walltime_s=180.0)
    assert "--signal=USR1 60 bash" in job.script()
    process = started(job, tmp_path, {"--signal=USR1 60 ": "--signal=USR1 1 "})
    assert process.wait(30) == 75
    assert (tmp_path / "out").read_text().split("\n")[:3] == ["ready", "heard", "again job.sh"]
