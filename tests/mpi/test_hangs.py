"""Ranks that hang, or are stopped, become dead ones, which the launcher's restart does without."""

import signal
from pathlib import Path

import launcher
import objectives
import pytest
from test_launch import DRIVER, family_of, journal_of, launch, rank_of, wait_for

from nnlo_opt.reporting.results import read_ledger

pytestmark = pytest.mark.mpi

HANGING = {
    "dense": """
import time

from dense import Net
from nnlo_opt.space import Categorical


class Model(Net):
    def __init__(self, hangs):
        super().__init__(16)
        self.hangs = hangs

    def forward(self, x):
        while self.hangs:
            time.sleep(1)
        return x


def get_model(hangs=False):
    return Model(hangs)


get_model.parameter_range = [Categorical([True, False], name="hangs")]
""",
    "torch": """
import time

import torch
from nnlo_opt.space import Categorical


class Model(torch.nn.Module):
    def __init__(self, hangs):
        super().__init__()
        self.hangs = hangs
        self.layer = torch.nn.Linear(784, 10)

    def forward(self, x):
        while self.hangs:
            time.sleep(1)
        return self.layer(x.flatten(1))


def get_model(hangs=False):
    return Model(hangs)


get_model.parameter_range = [Categorical([True, False], name="hangs")]
""",
}


@pytest.mark.parametrize(
    "name", ["dense", pytest.param("torch", marks=[pytest.mark.needs("torch"), pytest.mark.proof])]
)
def test_a_model_that_hangs_is_ended_with_its_stacks_in_the_log_and_the_search_goes_on_without_it(
    tmp_path, digits, name
):
    data = ["--train-data", str(digits / "train_mnist.list"), "--val-data", str(digits / "test_mnist.list")]
    options = ["--epochs", "1", "--num-iterations", "2", "--hang-timeout", "2", "--max-attempts", "1"]
    (tmp_path / "objective.py").write_text(HANGING[name])
    job = launcher.start(1, ["nnlo-opt", "launch", "-n", "3", "--", *DRIVER, *options, *data], tmp_path)
    outcome = job.wait(200)
    assert outcome.code == 0, outcome.err
    assert "Rank 2 has done nothing for longer than `--hang-timeout`" in outcome.err
    ledger = read_ledger(tmp_path / "checkpoints/L")
    assert {trial.point["hangs"]: trial.state for trial in ledger.trials} == {False: "complete", True: "failed"}
    assert "lost once (`--max-attempts`)" in next(trial.reason for trial in ledger.trials if trial.reason)
    log = (tmp_path / "checkpoints/L/logs/rank-00002.log").read_text()
    assert "in forward" in log
    assert not Path(tmp_path / "checkpoints/L/deaths").exists()


def test_a_rank_that_is_stopped_is_ended_by_another_one_and_the_run_goes_on(tmp_path):
    job = launch(tmp_path, *DRIVER, "--num-iterations", "16", "--hang-timeout", "2", model=objectives.SLOW)
    wait_for(tmp_path, "TrialCompleted", 3, job)
    next(p for p in family_of(job) if rank_of(p) == "3").send_signal(signal.SIGSTOP)
    outcome = job.wait(120)
    assert outcome.code == 0, outcome.err
    assert "is stopped (SIGSTOP), for longer than `--hang-timeout`, 2 s: rank 0 ends it" in outcome.err
    lost = [e for e in journal_of(tmp_path) if e["event"] == "AssignmentLost"]
    ledger = read_ledger(tmp_path / "checkpoints/L")
    # That of its block counts, and the other does not.
    for event in lost:
        assert event["counts"] == (ledger.assignments[event["assignment"]].team == 1)
    assert any(event["counts"] for event in lost)
    assert ledger.n_by_state()["complete"] == 16
