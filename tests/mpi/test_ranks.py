"""The transport, the gated communicator and groups of linear models between real ranks."""

import sys
from pathlib import Path

import pytest

from tests.helpers import launcher

FUNCTIONS = Path(__file__).parent / "rank_functions.py"
CONFORMS = "the_transport_conforms"
ON_THREE = [CONFORMS, f"{CONFORMS}_between_nodes", "payloads_stay_in_the_memory_of_the_node", "gated_collectives_work"]
ON_THREE += ["a_gate_gives_up_when_told", "waiting_ends_in_time", "the_ranks_of_a_node_tell_each_other_their_cores"]
ON_THREE += ["large_messages_go_in_parts"]
ON_FIVE = [CONFORMS, "a_rank_that_fails_between_two_common_steps_fails_the_training"]
FURTHER = [(1, [CONFORMS]), (2, [CONFORMS]), (5, ON_FIVE), (7, [CONFORMS])]

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("n_ranks", "names"),
    [(3, ON_THREE), *(pytest.param(*case, marks=pytest.mark.proof) for case in FURTHER)],
)
def test_ranks_pass(tmp_path, n_ranks, names):
    launcher.run(n_ranks, [sys.executable, str(FUNCTIONS), *names], tmp_path, 60)


@pytest.mark.slow
def test_messages_above_2_gib_arrive(tmp_path):
    launcher.run(2, [sys.executable, str(FUNCTIONS), "messages_above_2_gib_arrive"], tmp_path, 600)


@pytest.mark.proof
def test_a_message_of_a_rank_that_has_died_hides_no_other(tmp_path, monkeypatch):
    launcher.use_ulfm(monkeypatch)
    function = "a_message_of_a_rank_that_has_died_hides_no_other"
    assert "received from [1, 2]" in launcher.run(3, [sys.executable, str(FUNCTIONS), function], tmp_path, 60, None).out
