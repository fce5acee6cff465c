"""Several objectives and budgets with real ranks: killed, out of time, and gone on with."""

import json
from pathlib import Path

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.core.trials.objectives import dominates
from tests.helpers import launcher, objectives

pytestmark = pytest.mark.mpi


def command(folder: Path, *options: str, epochs: int = 2) -> list[str]:
    (folder / "two.py").write_text(objectives.TWO.replace("EPOCHS", str(epochs)))
    return ["OptimizationDriver", "--model", "two.py", "--hyper-opt", "random", "--checkpoint", "B", *options]


def run(folder: Path, *options: str, code: int = 0, epochs: int = 2) -> tuple[launcher.Outcome, dict]:
    outcome = launcher.run(5, command(folder, *options, epochs=epochs), folder, code=code)
    return outcome, json.loads((folder / "checkpoints/B/summary.json").read_text())


@pytest.mark.proof
def test_the_pareto_set_of_a_killed_search_is_that_of_all_its_trials(tmp_path):
    options = ["--objective", "here:min", "--objective", "there:min", "--num-iterations", "14", "--opt-restore"]
    job = launcher.start(5, command(tmp_path, *options), tmp_path)
    job.wait_for(tmp_path / "checkpoints/B", "TrialCompleted", 4)
    job.kill()
    assert not read_ledger(tmp_path / "checkpoints/B").complete
    outcome, summary = run(tmp_path, *options)
    assert "Pareto set of here:min, there:min" in outcome.out
    rows = launcher.results_of(tmp_path / "checkpoints/B")
    losses = {int(row["trial"]): (float(row["o:here"]), float(row["o:there"])) for row in rows}
    assert len(losses) == 14
    expected = {n for n, own in losses.items() if not any(dominates(other, own) for other in losses.values())}
    assert {int(row["trial"]) for row in rows if row["pareto"] == "True"} == expected
    assert {entry["trial"] for entry in summary["pareto"]} == expected
    assert summary["best"]["trial"] == min(losses, key=lambda trial: losses[trial])


@pytest.mark.proof
def test_a_walltime_ends_a_start_in_good_order_and_the_search_continues(tmp_path):
    # Trials of minutes: none is over when the time is.
    options = ["--objective", "here:min", "--num-iterations", "3"]
    outcome, summary = run(tmp_path, *options, "--walltime", "6", code=75, epochs=2400)
    assert "Search interrupted: the walltime is over" in outcome.out
    assert (summary["complete"], summary["reason"]) == (False, "the walltime is over")
    assert summary["n_trials"]["preempted"] == 2
    ledger = read_ledger(tmp_path / "checkpoints/B")
    points = [trial.point for trial in ledger.trials]
    _, summary = run(tmp_path, *options, "--walltime", "0:00:05", "--opt-restore", code=75, epochs=2400)
    assert summary["n_trials"]["preempted"] == 2
    ledger = read_ledger(tmp_path / "checkpoints/B")
    assert [trial.point for trial in ledger.trials] == points
    assert [trial.n_attempts(0) for trial in ledger.trials] == [2, 2]


@pytest.mark.proof
def test_a_search_that_a_budget_has_ended_continues_with_a_larger_one(tmp_path):
    options = ["--objective", "here:min", "--num-iterations", "500"]
    _, summary = run(tmp_path, *options, "--timeout", "1")
    assert summary["complete"]
    assert summary["reason"] == "`--timeout` of 1 s is reached"
    n_trials = summary["n_trials"]["complete"]
    _, summary = run(tmp_path, *options, "--timeout", "1", "--opt-restore")
    assert summary["n_trials"]["complete"] == n_trials
    _, summary = run(tmp_path, *options, "--stop-after-no-improvement", "5", "--opt-restore")
    assert "no improvement in the last 5 trials" in summary["reason"]
    assert summary["n_trials"]["complete"] >= max(n_trials, 6)
