"""Nodes of an allocation, what is said if ranks leave some of them idle, and processes beside the ranks."""

import signal
import subprocess

import pytest

from nnlo_opt.engine.runtime.environment import idle_nodes_text, n_allocated_nodes, start_helper


@pytest.mark.parametrize(
    ("environ", "n_nodes"),
    [
        ({}, 0),
        ({"SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "3"}, 4),
        ({"SLURM_NNODES": "3"}, 3),
        ({"SLURM_JOB_NUM_NODES": "many"}, 0),
        ({"LSB_HOSTS": "a a b b b"}, 2),
        ({"LSB_HOSTS": "batch1 a a b", "LSB_MCPU_HOSTS": "batch1 1 a 2 b 1"}, 3),
        ({"LSB_HOSTS": "batch1 a a b", "JSM_NAMESPACE_SIZE": "3"}, 2),
        ({"PBS_NODEFILE": "/nowhere"}, 0),
    ],
)
def test_the_batch_system_says_how_many_nodes_a_job_has(environ, n_nodes):
    assert n_allocated_nodes(environ) == n_nodes


def test_pbs_names_nodes_in_a_file(tmp_path):
    (tmp_path / "nodes").write_text("a\na\nb\n")
    assert n_allocated_nodes({"PBS_NODEFILE": str(tmp_path / "nodes")}) == 2


@pytest.mark.parametrize(
    ("n_nodes", "n_ranks", "words"),
    [(1, 8, "The 8 ranks use 1 of the 4 nodes that this job has."), (3, 8, "use 3 of the 4 nodes"), (2, 3, "use 2 of")],
)
def test_idle_nodes_are_said_with_what_uses_them(n_nodes, n_ranks, words):
    environ = {"SLURM_JOB_NUM_NODES": "4"}
    text = idle_nodes_text(n_nodes, n_ranks, environ)
    assert words in text
    assert "`mpirun --map-by node`" in text
    assert "oversubscribe" not in text, "nobody has given it"
    text = idle_nodes_text(n_nodes, n_ranks, {**environ, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})
    assert words in text
    assert "Use `slot:oversubscribe`." in text


@pytest.mark.parametrize("policy", ["slot:oversubscribe", "node", ""])
def test_a_policy_that_does_not_fill_the_first_node_is_not_blamed(policy):
    environ = {"SLURM_JOB_NUM_NODES": "4", "PRTE_MCA_rmaps_default_mapping_policy": policy}
    assert "PRTE_MCA" not in idle_nodes_text(1, 8, environ)


def test_a_step_of_srun_leaves_the_nodes_that_it_was_not_given_to_other_steps():
    environ = {"SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_NUM_NODES": "2"}
    assert idle_nodes_text(2, 8, environ) == ""
    assert "use 1 of the 2 nodes" in idle_nodes_text(1, 8, environ)


@pytest.mark.parametrize(("n_nodes", "n_ranks"), [(4, 8), (3, 3), (1, 1)])
def test_nothing_is_said_if_no_node_could_be_used_besides(n_nodes, n_ranks):
    assert idle_nodes_text(n_nodes, n_ranks, {"SLURM_JOB_NUM_NODES": "4"}) == ""
    assert idle_nodes_text(n_nodes, n_ranks, {}) == ""


def test_a_helper_outlives_the_signal_that_asks_ranks_to_end():
    helper = start_helper(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    helper.send_signal(signal.SIGUSR1)  # as srun does, to all processes of a step
    assert helper.communicate(b"alive", timeout=20) == (b"alive", None)
    assert helper.returncode == 0
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
