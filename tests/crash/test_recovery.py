"""SIGKILL single ranks under ULFM: the others go on in place, and the search ends as it would have."""

import json
from pathlib import Path

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from tests.helpers import launcher, objectives
from tests.helpers.launcher import Job, check_search, data_of, events_of, seen_within, use_ulfm
from tests.helpers.networks import Network
from tests.helpers.objective_runs import begin

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def with_ulfm(monkeypatch):
    use_ulfm(monkeypatch)


#: an objective whose ranks are all in it, each in its second communication, when its report is in the journal
LONG_TOGETHER = objectives.module("""
    report(1, parameters["x"])
    for _ in range(10):
        time.sleep(0.1)
        assert comm.allreduce(1) == comm.Get_size()
    return (parameters["x"] - 0.3) ** 2
""")


def in_calls(run: Path) -> int:
    """The number of calls of an objective that have reported and not ended."""
    ended = {event["assignment"] for event in events_of(run, "AssignmentFinished")}
    return len({event["assignment"] for event in events_of(run, "EpochEnded")} - ended)


def test_a_search_outlives_a_worker_a_master_and_a_block(tmp_path):
    run = tmp_path / "checkpoints/S"
    job = begin(tmp_path, LONG_TOGETHER, 7, "--num-iterations", "12", "--block-size", "3", "--hyper-opt", "random")
    job.wait_for(run, "TrialCompleted", 2)
    # Open MPI can crash the ranks that make a communicator at the very moment: see engine/comm/mpi/ulfm.py.
    assert seen_within(60, lambda: in_calls(run) == 2)
    job.rank(2).kill()  # of block 1
    job.rank(4).kill()  # the master of block 2
    job.wait_for(run, "TrialCompleted", 6)
    job.rank(1).kill()  # the master of block 1, and with the next one the whole block
    job.rank(3).kill()
    outcome = job.wait(60)
    check_search(run, 12)
    lost = events_of(run, "RanksLost")
    assert sorted(rank for event in lost for rank in event["ranks"]) == [1, 2, 3, 4]
    last = {event["block"]: (event["n_alive"], event["n_ranks"]) for event in lost}
    assert last == {1: (0, 0), 2: (2, 2)}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["lost"] == {"ranks": [1, 2, 3, 4], "blocks": [1], "n_ranks": 4}
    assert "ranks 1, 2 and 3 of block 1 (the block is lost)" in outcome.out
    assert len(events_of(run, "RunStarted")) == 1


def started_training(folder: Path, digits: Path, network: Network, n_ranks: int, *options: str) -> tuple[Job, Path]:
    """A training of six epochs under way; with its run directory."""
    (folder / "net.py").write_text(network.plain)
    command = ["TrainingDriver", "--model", "net.py", "--epochs", "6", "--batch", "2", "--checkpoint", "K"]
    return launcher.start(n_ranks, [*command, *options, *data_of(digits)], folder), folder / "checkpoints/K"


@pytest.mark.proof
@pytest.mark.parametrize("rule", [(), ("--mode", "easgd", "--sync-every", "5")], ids=["downpour", "easgd"])
def test_a_master_continues_from_its_weights_when_a_worker_dies(tmp_path, network, digits, rule):
    job, run = started_training(tmp_path, digits, network, 4, *rule)
    job.wait_for(run, "EpochEnded", 1)
    job.rank(2).kill()
    outcome = job.wait(90)
    (assigned,) = events_of(run, "FoldAssigned")
    (lost,) = events_of(run, "RanksLost")
    assert (lost["ranks"], lost["n_ranks"], lost["assignment"]) == ([2], 3, assigned["assignment"])
    assert [event["epoch"] for event in events_of(run, "EpochEnded")] == [1, 2, 3, 4, 5, 6]
    assert "rank 2 of block 1 died; the block continues with 3 ranks" in outcome.out


@pytest.mark.proof
def test_a_block_too_small_for_workers_of_several_ranks_trains_with_smaller_ones(tmp_path, network, digits):
    job, run = started_training(tmp_path, digits, network, 3, "--n-processes", "2")
    job.wait_for(run, "EpochEnded", 1)
    job.rank(1).kill()  # the first of the worker, whom the master knows
    job.wait(90)
    (lost,) = events_of(run, "RanksLost")
    assert (lost["ranks"], lost["n_alive"], lost["n_ranks"]) == ([1], 2, 2)
    assert len(events_of(run, "FoldAssigned")) == 1, "it went on"
    assert [event["epoch"] for event in events_of(run, "EpochEnded")] == [1, 2, 3, 4, 5, 6]


#: with 9 units rank 4 dies when rank 3 builds the network, too, and rank 3 when it builds it again
DEADLY = """
import os
import signal
import time
from pathlib import Path

from nnlo_opt.space import Integer

build, built_by_rank_3 = get_model, Path("built-by-rank-3")


def get_model(n_units):
    rank = os.environ["PMIX_RANK"]
    if n_units == 9 and rank == "4":
        while not built_by_rank_3.exists():  # it would else build it for the first time after the first death
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if n_units == 9 and rank == "3":
        if built_by_rank_3.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        built_by_rank_3.touch()
    return build(n_units)


get_model.parameter_range = [Integer(8, 9, name="n_units")]
"""


@pytest.mark.proof
def test_a_trial_that_kills_a_worker_each_time_is_given_up_before_the_block_is_used_up(tmp_path, network, digits):
    (tmp_path / "net.py").write_text(network.plain + DEADLY)
    command = ["OptimizationDriver", "--model", "net.py", "--num-iterations", "2", "--checkpoint", "K"]
    training = ["--epochs", "1", "--block-size", "4", "--hyper-opt", "random", "--max-attempts", "2"]
    launcher.run(5, [*command, *training, *data_of(digits)], tmp_path)
    run = tmp_path / "checkpoints/K"
    ledger = read_ledger(run)
    assert {trial.point["n_units"]: trial.state for trial in ledger.trials} == {8: "complete", 9: "failed"}
    failed = next(trial for trial in ledger.trials if trial.state == "failed")
    why = "ranks that trained it were lost 2 times in a row (`--max-attempts`); the last time: rank 3 died"
    assert failed.reason == why
    assert failed.n_attempts(0) == 1, "it went on each time"
    lost = events_of(run, "RanksLost")
    assert [(event["ranks"], event["counts"]) for event in lost] == [([4], True), ([3], True)]


@pytest.mark.proof
def test_ranks_that_step_together_repeat_the_epoch_without_the_dead_one(tmp_path, network, digits):
    job, run = started_training(tmp_path, digits, network, 3, "--mode", "allreduce")
    job.wait_for(run, "EpochEnded", 2)
    job.rank(1).kill()
    job.wait(90)
    first, second = events_of(run, "FoldAssigned")
    assert (first["n_ranks"], second["n_ranks"], second["attempt"]) == (3, 2, 2)
    began = events_of(run, "FoldBegan")[-1]
    assert began["epoch"] >= 2
    assert read_ledger(run).trials[0].folds[0].n_epochs == 6


@pytest.mark.proof
def test_a_launched_search_outlives_its_coordinator_and_trains_no_finished_fold_again(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW_TOGETHER)
    command = ["OptimizationDriver", "--model", "objective.py", "--num-iterations", "10", "--checkpoint", "K"]
    launched = ["nnlo-opt", "launch", "-n", "5", "--", *command, "--block-size", "2", "--hyper-opt", "random"]
    run = tmp_path / "checkpoints/K"
    job = launcher.start(1, launched, tmp_path)
    job.wait_for(run, "TrialCompleted", 3)
    job.rank(0).kill()
    outcome = job.wait(90)
    assert "restart 1" in outcome.err
    check_search(run, 10)
    assert len(events_of(run, "RunStarted")) == 2
    assert not (run / "unrecorded").exists()
    # An objective runs to its end and its value is kept, so whatever was under way is in the journal; one that is only
    # written down when the coordinator dies was never sent.
    lost, begun = ({event["assignment"] for event in events_of(run, kind)} for kind in ("AssignmentLost", "FoldBegan"))
    assert not lost & begun, "what was finished without a coordinator was lost"


@pytest.mark.proof
def test_a_launched_search_outlives_a_rank_that_dies_before_mpi_has_begun(tmp_path):
    """The others wait in MPI for one that will never come; no code of a rank can notice."""
    (tmp_path / "objective.py").write_text(objectives.SLOW_TOGETHER)
    script = 'if [ "$PMIX_RANK" = 1 ] && [ ! -e died ]; then : > died; kill -9 $$; fi\nexec "$@"\n'
    (tmp_path / "rank.sh").write_text(script)
    driver = ["sh", "rank.sh", str(launcher.BIN / "OptimizationDriver"), "--model", "objective.py"]
    options = ["--num-iterations", "2", "--checkpoint", "K", "--hyper-opt", "random"]
    outcome = launcher.run(1, ["nnlo-opt", "launch", "-n", "3", "--", *driver, *options], tmp_path, 90)
    assert "restart 1" in outcome.err
    run = tmp_path / "checkpoints/K"
    check_search(run, 2)
    assert not (run / "launch.begins").exists()
