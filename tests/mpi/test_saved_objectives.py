"""Objectives that save their state under mpirun: paused, promoted, killed, preempted, in folds, on other ranks."""

import signal
from collections import Counter

import pytest

from tests.helpers import launcher, objectives
from tests.helpers.effort import some_of
from tests.helpers.objective_runs import begin, rows, search

pytestmark = pytest.mark.mpi

#: sums over nine epochs; every rank keeps its own part, and checks what it finds
SAVED = """
import os, time
from nnlo_opt.space import Real


def objective(parameters, comm, report, checkpoint, fold):
    mine = 0.0
    assert len(checkpoint.folders) in (0, comm.Get_size())
    if checkpoint.folder is not None:
        mine, epoch = map(float, (checkpoint.folder / "sum").read_text().split())
        assert epoch == checkpoint.epoch, (epoch, checkpoint.epoch)

    def write(folder):
        if epoch == 2 and parameters["x"] > float(os.environ.get("FAILS", "2")) and comm.Get_rank() == 1:
            raise OSError("the disk of rank 1 is full")
        (folder / "sum").write_text(f"{mine!r} {epoch}")

    for epoch in range(checkpoint.epoch + 1, 10):
        time.sleep(float(os.environ.get("SLEEP", "0")))
        mine += parameters["x"] * epoch * (1 + comm.Get_rank() + fold.number)
        checkpoint.save(epoch, write)
        if not report(epoch, comm.allreduce(mine)):
            return float("nan")
    return comm.allreduce(mine)


objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""


def times_trained(run):
    """(trial, epoch) -> how often it was trained."""
    trial_of = {event["assignment"]: event["trial"] for event in launcher.events_of(run, "FoldAssigned")}
    return Counter((trial_of[e["assignment"]], e["epoch"]) for e in launcher.events_of(run, "EpochEnded"))


def test_a_paused_trial_is_promoted_on_any_block_and_repeats_no_epoch(tmp_path):
    # The first trial waits at its rung until two others, which are worse, have come.
    options = ("--hyper-opt", "random", "--start-point", "x=0.01", "--pruner", "asha", "--pruner-max-epochs", "9")
    search(tmp_path, SAVED, 5, "--block-size", "2", "--num-iterations", "9", *options)
    run = tmp_path / "checkpoints/S"
    assert max(times_trained(run).values()) == 1
    assert all(event["checkpointed"] for event in launcher.events_of(run, "EpochEnded"))
    assert launcher.events_of(run, "AssignmentPaused")
    assert any(event["epoch"] for event in launcher.events_of(run, "FoldBegan"))
    complete = [row for row in rows(tmp_path) if row["state"] == "complete"]
    assert complete[0]["trial"] == "0"  # others may come to the last rung before they have enough rivals
    for row in complete:
        assert float(row["figure_of_merit"]) == pytest.approx(float(row["p:x"]) * 45 * 3)
    folders = {path.parts[-3] for path in run.glob("trials/*/fold0/checkpoint-9")}
    assert folders == {f"{int(row['trial']):04d}" for row in complete}


@pytest.mark.proof
@pytest.mark.parametrize("blow", [False, True], ids=["whole", "killed"])
def test_auto_is_chosen_once_for_a_run(tmp_path, monkeypatch, blow):
    options = ["--block-size", "1", "--hyper-opt", "auto", "--pruner-max-epochs", "9", "--num-iterations", "4"]
    if blow:
        monkeypatch.setenv("SLEEP", "0.2")
        job = begin(tmp_path, SAVED, 3, *options)
        job.wait_for(tmp_path / "checkpoints/S", "EpochEnded", 3)
        job.kill()
        monkeypatch.delenv("SLEEP")
        options.append("--opt-restore")
    text = search(tmp_path, SAVED, 3, *options).out
    why = "because trials report up to 9 epochs and can be paused"
    assert f"freeze-thaw search (auto, {why})" in " ".join(text.split())
    starts = launcher.events_of(tmp_path / "checkpoints/S", "RunStarted")
    assert [start["settings"]["hyper_opt"] for start in starts] == ["freeze-thaw"] * (1 + blow)


@pytest.mark.proof
def test_a_killed_search_by_freeze_thaw_resumes_its_paused_trials(tmp_path):
    options = ["--block-size", "1", "--hyper-opt", "freeze-thaw", "--pruner-max-epochs", "9", "--num-iterations", "24"]
    job = begin(tmp_path, SAVED, 3, *options)
    run = tmp_path / "checkpoints/S"
    job.wait_for(run, "TrialPaused", 3)
    job.kill()
    search(tmp_path, SAVED, 3, *options, "--opt-restore")
    states = Counter(row["state"] for row in rows(tmp_path))
    assert states.total() == 24
    assert 0 < states["complete"] < 12
    assert states["complete"] + states["pruned"] == 24
    # The least x is the best at any epoch, and what has come to its end is among the best.
    complete = [float(row["p:x"]) for row in rows(tmp_path) if row["state"] == "complete"]
    assert min(complete) == min(float(row["p:x"]) for row in rows(tmp_path))
    assert sum(n - 1 for n in times_trained(run).values()) <= 2, "only what the blow interrupted is trained again"


@pytest.mark.parametrize("blow", some_of([signal.SIGUSR1, signal.SIGKILL]))
def test_an_interrupted_trial_begins_at_its_last_save(tmp_path, monkeypatch, blow):
    options = ["--block-size", "2", "--hyper-opt", "random", "--num-iterations", "2"]
    monkeypatch.setenv("SLEEP", "0.2")
    job = begin(tmp_path, SAVED, 3, *options)
    run = tmp_path / "checkpoints/S"
    job.wait_for(run, "EpochEnded", 3)
    (job.rank(2) if blow == signal.SIGKILL else job.process).send_signal(blow)
    job.wait(30, 75 if blow == signal.SIGUSR1 else None)
    monkeypatch.delenv("SLEEP")
    search(tmp_path, SAVED, 3, *options, "--opt-restore")
    assert launcher.events_of(run, "FoldBegan")[1]["epoch"] >= 2
    assert bool(launcher.events_of(run, "AssignmentPreempted")) == (blow == signal.SIGUSR1)
    for row in rows(tmp_path):  # an epoch that was lost or counted twice would make another sum
        assert float(row["figure_of_merit"]) == pytest.approx(float(row["p:x"]) * 45 * 3)


@pytest.mark.proof
def test_a_rank_that_cannot_save_fails_its_trial_and_no_rank_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILS", "0.5")
    search(tmp_path, SAVED, 5, "--block-size", "2", "--hyper-opt", "random", "--num-iterations", "8")
    for row in rows(tmp_path):
        assert (row["state"] == "failed") == (float(row["p:x"]) > 0.5)
        assert ("the disk of rank 1 is full" in row["reason"]) == (row["state"] == "failed")


@pytest.mark.proof
def test_folds_have_sub_blocks_and_saves_of_their_own(tmp_path):
    search(tmp_path, SAVED, 5, "--block-size", "4", "--n-fold", "2", "--hyper-opt", "random", "--num-iterations", "2")
    for row in rows(tmp_path):
        assert float(row["figure_of_merit"]) == pytest.approx(float(row["p:x"]) * 45 * (3 + 5) / 2)
    saves = (tmp_path / "checkpoints/S/trials").glob("*/fold*/checkpoint-9/rank-1/sum")
    assert len([*saves]) == 4


@pytest.mark.proof
def test_blocks_have_one_rank_unless_the_objective_takes_comm(tmp_path):
    text = objectives.FINITE.replace("parameters, comm, report", "parameters")
    assert "on 2 blocks of 1 rank" in search(tmp_path, text, 3, "--num-iterations", "3").out
