"""The transport, the gated communicator and groups of linear models between real ranks."""

import sys
from pathlib import Path

import pytest

from nnlo_opt.launcher.job import lets_ranks_outlive_others
from nnlo_opt.runtime.environment import ULFM
from nnlo_opt.testing.mpirun import find_mpirun
from tests.helpers import launcher

FUNCTIONS = Path(__file__).parent / "rank_functions.py"
CONFORMS = "the_transport_conforms"

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("n_ranks", "names"),
    [
        (1, [CONFORMS]),
        (2, [CONFORMS]),
        (
            3,
            [
                CONFORMS,
                "the_transport_conforms_between_nodes",
                "payloads_stay_in_the_memory_of_the_node",
                "gated_collectives_work",
                "a_gate_gives_up_when_told",
                "waiting_ends_in_time",
                "the_ranks_of_a_node_tell_each_other_their_cores",
            ],
        ),
        pytest.param(
            5, [CONFORMS, "a_rank_that_fails_between_two_common_steps_fails_the_training"], marks=pytest.mark.proof
        ),
        pytest.param(7, [CONFORMS], marks=pytest.mark.proof),
    ],
)
def test_ranks_pass(tmp_path, n_ranks, names):
    launcher.run(n_ranks, [sys.executable, str(FUNCTIONS), *names], tmp_path, 60)


@pytest.mark.skipif(not lets_ranks_outlive_others(find_mpirun() or ""), reason="needs ULFM")
def test_a_message_of_a_rank_that_has_died_hides_no_other(tmp_path, monkeypatch):
    for name, value in ULFM.items():
        monkeypatch.setenv(name, value)
    function = "a_message_of_a_rank_that_has_died_hides_no_other"
    assert "received from [1, 2]" in launcher.run(3, [sys.executable, str(FUNCTIONS), function], tmp_path, 60, None).out
