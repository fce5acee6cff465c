import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.tools.launcher.planning import SCHEDULERS, JobPlan, Memory
from tests.helpers.launcher import seen_within

MEMORY = Memory(coordinator=1, search=10, master=100, worker=1000)


def plan_of(n, block_size, n_fold=1, every_rank=False, ranks_per_node=64):
    topology = Topology.plan(n, block_size, n_fold, every_rank_trains=every_rank)
    return JobPlan(topology=topology, ranks_per_node=ranks_per_node, memory=MEMORY)


def test_roles_and_memory_of_each_node():
    plan = plan_of(7, 3, ranks_per_node=4)
    assert plan.roles() == ["coordinator", "master", "worker", "worker", "master", "worker", "worker"]
    assert plan.megabytes() == [11 + 100 + 2000, 100 + 2000]
    assert plan_of(7, 3, every_rank=True).megabytes() == [11 + 6000]
    assert plan_of(1, 3).megabytes() == [1011]
    assert plan_of(3, 1).roles() == ["coordinator", "master and worker", "master and worker"]


@given(n=st.integers(1, 300), block_size=st.integers(1, 40), n_fold=st.integers(1, 6), per_node=st.integers(1, 70))
def test_every_world_has_a_plan_of_all_its_ranks(n, block_size, n_fold, per_node):
    plan = plan_of(n, block_size, n_fold, ranks_per_node=per_node)
    assert len(plan.roles()) == n
    assert len(plan.megabytes()) == plan.n_nodes
    assert sum("master" in role for role in plan.roles()) == (0 if n == 1 else len(plan.topology.teams))
    assert plan.lines()[0].startswith(f"Ranks: {n};")


def test_what_is_printed(printed):
    out = printed("plan", "-n", "129", "--block-size", "8", "--n-fold", "2", "--node-cores", "43")
    assert "1 coordinator, 32 masters, 96 workers" in out
    assert "Blocks 1 to 16: each 8 ranks in 2 sub-blocks of 4 + 4" in out
    assert "Nodes: 3 of 43 ranks" in out
    assert "#SBATCH" not in out
    assert "1 rank is left over and joins the last block" in printed("plan", "-n", "10", "--block-size", "4")
    out = printed("plan", "-n", "9", "--block-size", "8", "--n-masters", "3", "--scheduler", "lsf")
    assert "1 coordinator, 1 master, 2 sub-masters, 5 workers" in out
    assert "--n-masters 3" in out
    assert "#BSUB -W 04:00" in out
    assert "#SBATCH --time=01:30:00" in printed("plan", "-n", "9", "--scheduler", "slurm", "--walltime", "90m")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-n", "4", "--block-size", "9"], "`--block-size` must leave a rank for the coordinator. Received: 9 of 4"),
        (["-n", "0"], "`-n` must be a whole number, at least 1. Received: 0."),
        (["-n", "9", "--node-cores", "x"], "`--node-cores` must be a whole number, at least 1. Received: x."),
        (["-n", "9", "--node-cores", "0"], "`--node-cores` must be a whole number, at least 1. Received: 0."),
        (["-n", "9", "--worker-mb", "-1"], "`--worker-mb` must be a whole number of MB, at least 0."),
        (["-n", "9", "--block-size", "4", "--n-masters", "3"], "`--n-masters` must leave every sub-master a worker"),
        (["-n", "9", "--block-size", "4", "--n-processes", "2"], "`--n-processes` must divide the ranks"),
        (["-n", "9", "--mode", "allreduce", "--n-processes", "2"], "must be 1 with `--mode allreduce`"),
        ([], "-n"),
        (["-n", "9", "--scheduler", "pbs"], "`--scheduler`"),
        # Minutes, as it was until durations were the same everywhere.
        (["-n", "9", "--walltime", "240"], "at least 300 s, in seconds or as 90m, 2h or 1:30:00. Received: 240."),
    ],
)
def test_wrong_numbers_are_one_sentence_and_code_2(argv, words, refused):
    assert words in refused("plan", *argv)


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_script_passes_a_signal_on_and_ends_with_the_launchers_code(scheduler, signum, tmp_path):
    launcher = """trap 'echo heard; exit 75' USR1; echo ready; while true; do sleep 0.1; done"""
    (tmp_path / "launcher.sh").write_text(launcher)
    script = plan_of(9, 4).script(scheduler, ["bash", str(tmp_path / "launcher.sh")], 7500.0)
    assert "02:05" in script
    script = script.replace("scontrol requeue", "echo requeued")
    (tmp_path / "job.sh").write_text(script + "\n")
    with (tmp_path / "out").open("w") as out:
        job = subprocess.Popen(["bash", str(tmp_path / "job.sh")], stdout=out, start_new_session=True)
    assert seen_within(30, lambda: "ready" in (tmp_path / "out").read_text())
    job.send_signal(signum)
    assert job.wait(30) == 75
    assert "heard" in (tmp_path / "out").read_text()
    # Slurm sends SIGTERM to cancel a job, which must then not come back.
    is_requeued = scheduler == "slurm" and signum == signal.SIGUSR1
    assert ("requeued" in (tmp_path / "out").read_text()) == is_requeued
