"""`nnlo-opt launch` and SIGUSR1 with real ranks."""

import collections
import json
import signal
import time
from pathlib import Path

import launcher
import objectives
import psutil
import pytest
from launcher import rank_of

from nnlo_opt.reporting.results import read_ledger

pytestmark = pytest.mark.mpi

DRIVER = ["OptimizationDriver", "--model", "objective.py", "--hyper-opt", "random", "--checkpoint", "L"]
#: trials of a minute
LONG = objectives.SLOW.replace("(1, 2, 3)", "range(1, 1200)")


def launch(folder: Path, *driver: str, options: tuple[str, ...] = (), model: str = objectives.SLOW) -> launcher.Job:
    """The launcher with five ranks, started."""
    (folder / "objective.py").write_text(model)
    return launcher.start(1, ["nnlo-opt", "launch", "-n", "5", *options, "--", *driver], folder)


def journal_of(folder: Path) -> list[dict]:
    path = folder / "checkpoints/L/journal.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def wait_for(folder: Path, event: str, n: int, job: launcher.Job) -> None:
    def has_come() -> bool:
        return sum(e["event"] == event for e in journal_of(folder)) >= n

    assert launcher.seen_within(90, lambda: has_come() or job.process.poll() is not None)
    assert has_come()


def family_of(job: launcher.Job) -> list[psutil.Process]:
    return psutil.Process(job.process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_run_whose_rank_is_killed_is_started_again_and_does_nothing_twice(tmp_path):
    job = launch(tmp_path, *DRIVER, "--num-iterations", "16", options=("--no-ulfm",))
    wait_for(tmp_path, "TrialCompleted", 3, job)
    family = family_of(job)
    next(p for p in family if rank_of(p) == "3").kill()
    outcome = job.wait(120)
    assert outcome.code == 0, outcome.err
    assert "restart 1 of at most 10" in outcome.err
    events = journal_of(tmp_path)
    assert sum(e["event"] == "RunStarted" for e in events) == 2
    completed = collections.Counter(e["trial"] for e in events if e["event"] == "TrialCompleted")
    assert completed == collections.Counter(range(16))
    assert gone(family)


def test_a_launcher_that_is_terminated_leaves_75_and_nobody_behind_and_the_next_goes_on(tmp_path):
    job = launch(tmp_path, *DRIVER, "--num-iterations", "2", options=("--grace", "6"), model=LONG)
    wait_for(tmp_path, "FoldBegan", 2, job)
    second = launch(tmp_path, *DRIVER, "--num-iterations", "2", "--opt-restore", model=LONG)
    refused = second.wait(30)
    assert refused.code == 2
    assert "A run has one launcher at a time" in refused.err
    family = family_of(job)
    job.process.terminate()
    time.sleep(0.3)
    job.process.terminate()
    outcome = job.wait(40)
    assert outcome.code == 75, outcome.err
    assert "restart" not in outcome.err.replace("restore", "")
    assert gone(family)
    ledger = read_ledger(tmp_path / "checkpoints/L")
    assert ledger.preempted_because == "preempted by SIGUSR1"
    assert ledger.n_by_state()["preempted"] == 2
    job = launch(tmp_path, *DRIVER, "--num-iterations", "2", "--opt-restore", options=("--grace", "2"), model=LONG)
    wait_for(tmp_path, "FoldBegan", 4, job)
    job.process.send_signal(signal.SIGUSR1)
    assert job.wait(40).code == 75
    assert [trial.n_attempts(0) for trial in read_ledger(tmp_path / "checkpoints/L").trials] == [2, 2]


def test_one_rank_that_hears_the_signal_tells_all(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    job = launcher.start(5, [*DRIVER, "--num-iterations", "500", "--grace", "10"], tmp_path)
    wait_for(tmp_path, "TrialCompleted", 2, job)
    next(p for p in family_of(job) if rank_of(p) == "4").send_signal(signal.SIGUSR1)
    outcome = job.wait(40)
    assert outcome.code == 75, outcome.err
    # Trials of a sixth of a second come to their end meanwhile, and none is left half done.
    ledger = read_ledger(tmp_path / "checkpoints/L")
    assert {a.end for a in ledger.assignments} == {"finished"}


@pytest.mark.proof
def test_an_objective_that_hears_nothing_is_not_waited_for(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW.replace("time.sleep(0.05)", "time.sleep(100)"))
    job = launcher.start(5, [*DRIVER, "--num-iterations", "500", "--grace", "2"], tmp_path)
    wait_for(tmp_path, "FoldBegan", 2, job)
    job.process.send_signal(signal.SIGUSR1)
    outcome = job.wait(40)  # less than it sleeps
    assert outcome.code == 75, outcome.err
    assert read_ledger(tmp_path / "checkpoints/L").n_by_state()["preempted"] == 2


@pytest.mark.proof
def test_a_rank_that_does_not_leave_is_waited_for_no_longer_than_the_grace(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    program = (
        "import sys, time; from nnlo_opt.cli import main; from nnlo_opt.comm.mpi import world\n"
        "world.finalize = lambda: time.sleep(100)\n"
        f"sys.argv = {[*DRIVER, '--num-iterations', '500', '--grace', '3']}\n"
        "main.optimization_driver()"
    )
    job = launcher.start(1, ["python", "-c", program], tmp_path)
    wait_for(tmp_path, "TrialCompleted", 2, job)
    job.process.send_signal(signal.SIGUSR1)
    outcome = job.wait(40)
    assert outcome.code == 75, outcome.err
    assert read_ledger(tmp_path / "checkpoints/L").preempted_because == "preempted by SIGUSR1"


@pytest.mark.proof
def test_a_launcher_gives_up_on_a_run_that_does_not_grow(tmp_path):
    deadly = "import os\nos.kill(os.getpid(), 9)\n" + objectives.SLOW
    outcome = launch(tmp_path, *DRIVER, "--num-iterations", "4", model=deadly).wait(120)
    assert outcome.code == 1
    assert "2 starts in a row have added nothing to the journal: giving up" in outcome.err
    assert journal_of(tmp_path) == []


def test_a_trial_that_kills_its_rank_each_time_fails_and_the_search_goes_on(tmp_path):
    deadly = objectives.FINITE.replace(
        "    return", "    import os\n    if parameters['n'] == 3:\n        os.abort()\n    return"
    )
    outcome = launch(tmp_path, *DRIVER, "--num-iterations", "5", model=deadly).wait(120)
    assert outcome.code == 0, outcome.err
    ledger = read_ledger(tmp_path / "checkpoints/L")
    states = {trial.point["n"]: trial.state for trial in ledger.trials}
    assert states == {1: "complete", 2: "complete", 3: "failed", 4: "complete", 5: "complete"}
    failed = next(trial for trial in ledger.trials if trial.state == "failed")
    assert failed.reason.startswith("ranks that trained it were lost 3 times in a row (`--max-attempts`)")
    assert failed.n_attempts(0) == 3
    # A rank that crashes says where, and no handler of MPI's keeps it from dying.
    logs = "".join(path.read_text() for path in (tmp_path / "checkpoints/L/logs").iterdir())
    assert "Fatal Python error: Aborted" in logs
    assert "objective.py" in logs
    assert "Process received signal" not in logs
    # The first block that dies is outlived (ULFM); with the second none is left, and the third try needs another start.
    assert sum(e["event"] == "RunStarted" for e in journal_of(tmp_path)) == 2


@pytest.mark.proof
@pytest.mark.keras
def test_a_training_that_is_preempted_has_a_checkpoint_and_goes_on_by_restore(tmp_path, digits):
    command = [
        "TrainingDriver",
        "--model",
        "mnist",
        "--epochs",
        "12",
        "--trial-name",
        "L",
        "--checkpoint-interval",
        "12",
    ]
    command += ["--train-data", str(digits / "train_mnist.list"), "--val-data", str(digits / "test_mnist.list")]
    job = launcher.start(1, ["nnlo-opt", "launch", "-n", "3", "--", *command], tmp_path)
    wait_for(tmp_path, "EpochEnded", 1, job)
    job.process.terminate()
    outcome = job.wait(60)
    assert outcome.code == 75, outcome.err
    assert "of 12 epochs. Add `--restore` to resume." in outcome.out, outcome.out + outcome.err
    assert [e["reason"] for e in journal_of(tmp_path) if e["event"] == "RunPreempted"] == ["preempted by SIGUSR1"]
    epochs = [e for e in journal_of(tmp_path) if e["event"] == "EpochEnded"]
    # `--checkpoint-interval` has written none: there is one of the moment, which an epoch may just have ended at.
    (place,) = (tmp_path / "checkpoints/L/trials/0000/fold0").glob("checkpoint-*")
    between = place.name == f"checkpoint-{len(epochs)}"
    assert between or place.name.startswith(f"checkpoint-{len(epochs)}-")
    assert [e["checkpointed"] for e in epochs] == [False] * (len(epochs) - 1) + [between]
    outcome = launcher.start(1, ["nnlo-opt", "launch", "-n", "3", "--", *command, "--restore"], tmp_path).wait(120)
    assert outcome.code == 0, outcome.err
    began = [e["epoch"] for e in journal_of(tmp_path) if e["event"] == "FoldBegan"]
    assert began == [0, len(epochs)]
    assert "Trained 12 epochs" in outcome.out
