"""Objectives that do to the process of their rank what they should not: on one rank it is the coordinator's."""

import json
import os
import signal
import time

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from tests.helpers import launcher, objectives
from tests.helpers.objective_runs import rows, search, summary

pytestmark = [pytest.mark.mpi, pytest.mark.many]


@pytest.mark.proof
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_what_one_trial_does_leaves_other_trials_alone(tmp_path, n_ranks):
    options = ["--block-size", "2", "--num-iterations", "20", "--hyper-opt", "random"]
    outcome = search(tmp_path, objectives.UNRULY_OBJECTIVE, n_ranks, *options)
    reasons = {row["p:how"]: row["reason"] for row in rows(tmp_path)}
    assert reasons.keys() == objectives.UNRULY.keys()
    for how, words in objectives.UNRULY.items():
        assert words in reasons[how] if words else reasons[how] == "", (how, reasons[how])
    run = tmp_path / "checkpoints/S"
    ledger = read_ledger(run)
    assert ledger.complete
    assert len(ledger.trials) == len(objectives.UNRULY)
    assert (run / "journal.jsonl").stat().st_size < 200_000
    assert (run / "results.csv").stat().st_size < 10_000
    log = (run / f"logs/rank-{n_ranks - 1:05d}.log").read_text()
    assert "x" * 5_000_000 in log
    assert "must end by itself" in (outcome.err if n_ranks == 1 else log)
    assert "Traceback" not in outcome.err


@pytest.mark.proof
def test_a_child_that_is_left_behind_does_not_keep_the_search(tmp_path):
    began_s = time.monotonic()
    search(tmp_path, objectives.LEAVES_A_CHILD, 1, "--num-iterations", "3")
    took_s = time.monotonic() - began_s
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert took_s < 40
    assert summary(tmp_path)["complete"]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("n_ranks", "how", "rank"),
    [(1, "closes", 0), (1, "removes", 0), pytest.param(2, "closes", 0, marks=pytest.mark.proof), (3, "closes", 1)],
)
def test_what_no_run_survives_ends_it_with_a_sentence(tmp_path, monkeypatch, n_ranks, how, rank):
    monkeypatch.setenv("UNRULY", how)
    monkeypatch.setenv("UNRULY_RANK", str(rank))
    outcome = search(tmp_path, objectives.ENDS_ALL, n_ranks, "--num-iterations", "4", "--block-size", "2", code=None)
    assert outcome.code
    assert "Traceback" not in outcome.err
    run = tmp_path / "checkpoints/S"
    if how == "removes":
        assert "journal.jsonl` cannot be written (No such file or directory)" in outcome.err
        assert not run.exists()
        return
    said = outcome.err if n_ranks == 1 else (run / f"logs/rank-{rank + 1:05d}.log").read_text()
    assert said.count("must close only file descriptors that it opened itself") == 1
    assert read_ledger(run).trials[0].state == "complete"
    assert json.loads((run / "config.json").read_text())
    monkeypatch.setenv("UNRULY", "nothing")
    launcher.run(1, ["OptimizationDriver", "--model", "objective.py", "--checkpoint", "S", "--opt-restore"], tmp_path)
