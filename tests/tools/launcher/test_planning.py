import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.tools.launcher.planning import JobPlan, Memory

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
    assert "Nodes: 5 of 2 ranks" in printed("plan", "-n", "9", "--node-cores", "8", "--cores-per-rank", "4")
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
        (
            ["-n", "9", "--cores-per-rank", "65"],
            "`--cores-per-rank` must be at most `--node-cores`. Received: 65 of 64",
        ),
        # Minutes, as it was until durations were the same everywhere.
        (["-n", "9", "--walltime", "240"], "at least 300 s, in seconds or as 90m, 2h or 1:30:00. Received: 240."),
    ],
)
def test_wrong_numbers_are_one_sentence_and_code_2(argv, words, refused):
    assert words in refused("plan", *argv)
