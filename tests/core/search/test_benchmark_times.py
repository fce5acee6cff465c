"""benchmarks/search/time_to_error.py judges what it has kept by the goals of its budget, and draws it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "search" / "time_to_error.py"
#: system -> (seconds, error) of its whole trainings
FINALS = {
    "nnlo-opt-asha": [(5.0, 0.05), (20.0, 0.02)],
    "nnlo-opt-freeze-thaw": [(10.0, 0.02)],
    "nnlo-opt": [(30.0, 0.03)],
    "optuna-tpe": [(40.0, 0.02)],
    "ray-asha": [(8.0, 0.04)],
}


@pytest.fixture
def kept(tmp_path):
    """A file of runs of one seed."""
    path = tmp_path / "kept.json"
    runs = [
        {"system": system, "model": "MLP", "seed": 0, "n_trials": 81, "max_epochs": 27, "load_1min": 0.0,
         "end_s": 50.0, "n_epochs": 9, "finals": finals}
        for system, finals in FINALS.items()
    ]  # fmt: skip
    path.write_text(json.dumps({"machine": {}, "runs": runs}))
    return path


def judged(*arguments):
    """What the script prints and says of kept runs."""
    command = [str(word) for word in (sys.executable, SCRIPT, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.proof
def test_the_goals_are_half_of_the_best_peers_time_with_asha_and_a_third_with_freeze_thaw(kept, tmp_path):
    figure = tmp_path / "errors.svg"
    found, tables = judged("--keep", kept, "--figure", figure)
    assert found["MLP"]["best_peer"] == "optuna-tpe"
    assert {name: (its["target"], its["measured"], its["met"]) for name, its in found["targets"].items()} == {
        "MLP, nnlo-opt-asha: times sooner than the best peer": (">= 2", 2.0, True),
        "MLP, nnlo-opt-freeze-thaw: times sooner than the best peer": (">= 3", 4.0, True),
    }
    assert found["MLP"]["systems"]["nnlo-opt"]["missed"] == 1
    assert "| `nnlo-opt` | never (never to never) |" in tables
    assert "<svg" in figure.read_text()


def test_runs_of_another_budget_are_not_mixed_in(kept):
    found, said = judged("--keep", kept, "--trials", 81, "--epochs", 9)
    assert found["targets"] == {}
    assert "MLP" not in found
    assert "No run of a peer has been measured yet." in said


def test_the_runs_of_20_trials_of_5_epochs_are_still_read_and_have_no_goal():
    found, _ = judged("--trials", 20, "--epochs", 5)
    assert found["targets"] == {}
    assert [found[model]["best_peer"] for model in ("CNN", "MLP")] == ["optuna-tpe", "optuna-tpe-halving"]
    assert found["CNN"]["systems"]["nnlo-opt-asha"]["times_sooner"]["median"] == 1.43
