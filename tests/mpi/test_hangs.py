"""Ranks that hang, or are stopped, become dead ones, which the launcher's restart does without."""

from pathlib import Path

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from tests.helpers import launcher, objectives
from tests.helpers.objective_runs import DRIVER, launch

pytestmark = pytest.mark.mpi

#: with 8 units the network hangs at its first batch; with 9, the middle of the space, it is looked at before the search
HANGS = """
import time

from nnlo_opt.space import Integer

build = get_model


def get_model(n_units=9):
    model = build(n_units)

    def forward(x):
        while True:
            time.sleep(1)

    if n_units == 8:
        model.forward = forward
    return model


get_model.parameter_range = [Integer(8, 9, name="n_units")]
"""


@pytest.mark.proof
def test_a_model_that_hangs_leaves_its_stacks_in_the_log_and_the_search_continues(tmp_path, digits, network):
    options = ["--epochs", "1", "--num-iterations", "2", "--hang-timeout", "2", "--max-attempts", "1"]
    (tmp_path / "objective.py").write_text(network.plain + HANGS)
    command = ["nnlo-opt", "launch", "-n", "3", "--", *DRIVER, *options, *launcher.data_of(digits)]
    outcome = launcher.run(1, command, tmp_path, 200)
    assert "Rank 2 has done nothing for longer than `--hang-timeout`" in outcome.err
    ledger = read_ledger(tmp_path / "checkpoints/L")
    assert {trial.point["n_units"]: trial.state for trial in ledger.trials} == {8: "failed", 9: "complete"}
    assert "lost once (`--max-attempts`)" in next(trial.reason for trial in ledger.trials if trial.reason)
    log = (tmp_path / "checkpoints/L/logs/rank-00002.log").read_text()
    assert "in forward" in log
    assert not Path(tmp_path / "checkpoints/L/deaths").exists()


@pytest.mark.proof
def test_a_stopped_rank_is_ended_by_another_one_and_the_run_continues(tmp_path):
    job = launch(tmp_path, *DRIVER, "--num-iterations", "16", "--hang-timeout", "2", model=objectives.SLOW)
    run = tmp_path / "checkpoints/L"
    job.wait_for(run, "TrialCompleted", 3)
    job.rank(3).suspend()
    outcome = job.wait(120)
    assert "is stopped (SIGSTOP), for longer than `--hang-timeout`, 2 s: rank 0 ends it" in outcome.err
    lost = launcher.events_of(run, "AssignmentLost")
    ledger = read_ledger(run)
    # That of its block counts, and the other does not.
    for event in lost:
        assert event["counts"] == (ledger.assignments[event["assignment"]].team == 1)
    assert any(event["counts"] for event in lost)
    assert ledger.n_by_state()["complete"] == 16
