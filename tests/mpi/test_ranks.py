"""The transport and the gated communicator between real ranks."""

import sys
from pathlib import Path

import launcher
import pytest

FUNCTIONS = Path(__file__).parent / "rank_functions.py"

pytestmark = pytest.mark.mpi


def run(name: str, n_ranks: int, cwd: Path) -> None:
    outcome = launcher.Job(n_ranks, [sys.executable, str(FUNCTIONS), name], cwd).wait(60)
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5, 7])
def test_the_transport_passes_its_conformance_suite(tmp_path, n_ranks):
    run("the_transport_conforms", n_ranks, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "the_transport_conforms_between_nodes",
        "payloads_stay_in_the_memory_of_the_node",
        "gated_collectives_work",
        "a_gate_gives_up_when_told",
        "waiting_ends_in_time",
        "the_ranks_of_a_node_tell_each_other_their_cores",
    ],
)
def test_on_three_ranks(tmp_path, name):
    run(name, 3, tmp_path)
