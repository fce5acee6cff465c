"""Search of a script of NNLO by `run-legacy`, on its own ranks."""

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers import launcher

SCRIPT = Path(__file__).parent / "search_of_nnlo.py"

pytestmark = [pytest.mark.mpi, pytest.mark.proof, pytest.mark.needs("torch")]


def test_a_search_of_nnlo_runs_as_it_is_and_is_restored(tmp_path, digits):
    folder = shutil.copytree(digits, tmp_path / "digits")
    command = ["nnlo-opt", "run-legacy", str(SCRIPT), "train_mnist.list", "test_mnist.list"]
    for restores in ("anew", "restore"):
        outcome = launcher.run(3, [*command, restores], folder, 90)
        assert "Best parameters found: {'n': " in outcome.out
        (found,) = json.loads((folder / "kept-coordinator.json").read_text())["tell"]
        assert {n for (n,) in found["X"]} <= {4, 6}
        assert found["fY"] == min(found["Y"])


def test_a_space_that_rank_0_cannot_search_is_refused_on_all_ranks(tmp_path, digits):
    folder = shutil.copytree(digits, tmp_path / "digits")
    wrong = SCRIPT.read_text().replace('[Integer(4, 6, name="n")]', '["n from 4 to 6"]')
    (folder / "search.py").write_text(wrong)
    command = ["nnlo-opt", "run-legacy", "search.py", "train_mnist.list", "test_mnist.list", "anew"]
    outcome = launcher.run(3, command, folder, 60, code=2)
    assert "n from 4 to 6" in outcome.err
    assert "Traceback" not in outcome.err
