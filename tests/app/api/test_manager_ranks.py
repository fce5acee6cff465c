"""Managers in a user's own script, under a real mpirun."""

import sys
from pathlib import Path

import pytest

from tests.helpers import launcher

SCRIPTS = Path(__file__).parent / "rank_scripts.py"
EXAMPLE = Path(__file__).parents[3] / "examples" / "example_manager.py"

pytestmark = pytest.mark.mpi


def run(n_ranks: int, cwd: Path, *arguments: str, code: int | None = 0) -> launcher.Outcome:
    return launcher.run(n_ranks, [sys.executable, str(SCRIPTS), *arguments], cwd, 240, code)


ANYWHERE = ["everybody_calls_train", "the_ancestors_way"]
FAILURES = "failures_are_caught_and_the_next_training_works"
ON_THREE = [*ANYWHERE, "every_mode", "rings", "an_untrained_manager_lets_go", "folds", FAILURES]
ON_SIX = [*(f"2:{name}" for name in (*ANYWHERE, FAILURES)), *(f"3:{name}" for name in ON_THREE)]
ON_SIX += ["5:folds", "5:the_ancestors_way", "masters"]

OF_TORCH = pytest.param("torch", marks=[pytest.mark.needs("torch"), pytest.mark.proof])
NETWORKS = pytest.mark.parametrize("network", ["dense", OF_TORCH])


@NETWORKS
@pytest.mark.parametrize(("n_ranks", "names"), [(6, ON_SIX), pytest.param(1, ANYWHERE, marks=pytest.mark.proof)])
def test_scripts_that_work(tmp_path, n_ranks, names, network):
    run(n_ranks, tmp_path, ",".join(names), network)


@pytest.mark.proof
def test_keras_callbacks_run_on_worker_1(tmp_path):
    """Of 4 ranks two are masters."""
    run(4, tmp_path, "3:callbacks_with_allreduce,4:callbacks_with_downpour")


@pytest.mark.proof
@NETWORKS
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("endless", "`generate_data` must return after one epoch"),
        ("the_master_raises", "RuntimeError: before the training"),
        ("a_worker_raises_on_the_master_alone", "ZeroDivisionError"),
    ],
)
def test_an_error_is_told_once_and_ends_all_ranks(tmp_path, name, sentence, network):
    outcome = run(3, tmp_path, name, network, code=None)
    assert outcome.code != 0
    assert sentence in outcome.err
    assert outcome.err.count("Traceback (most recent call last)") == 1


@pytest.mark.proof
def test_the_example(tmp_path):
    outcome = launcher.run(3, [sys.executable, str(EXAMPLE)], tmp_path, 240)
    assert "epoch 5/5: loss" in outcome.out
    assert (tmp_path / "digits.keras").is_file()
    accuracy = float(outcome.out.split("val_acc")[-1].split()[0])
    assert accuracy > 0.85
    assert len([line for line in EXAMPLE.read_text().splitlines() if line]) <= 30
