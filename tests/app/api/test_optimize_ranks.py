"""Searches from a user's own script under a real mpirun: every rank calls `nnlo_opt.optimize`."""

import sys
from pathlib import Path

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from tests.helpers import launcher
from tests.helpers.effort import some_of

SCRIPTS = Path(__file__).parent / "search_scripts.py"
EXAMPLE = Path(__file__).parents[3] / "examples" / "example_optimize.py"
OBJECTIVE = "def objective(parameters):\n    return parameters['x'] ** 2\n"
SEARCHES = """
import nnlo_opt
nnlo_opt.optimize({target}, {{"x": nnlo_opt.Real(0, 1)}}, num_iterations=3, checkpoint="run")
"""
NAMES = [
    "everybody_searches",
    "in_blocks_of_one",
    "a_trial_is_the_same_on_all_its_ranks",
    "a_run_is_kept_and_resumed",
    "an_exception_reaches_every_rank_and_the_next_search_works",
]
OF_MPIRUN = ["on_a_communicator_of_ones_own", "processes_of_ones_own_are_refused"]

pytestmark = pytest.mark.mpi


def run(n_ranks: int, cwd: Path, *arguments: str) -> launcher.Outcome:
    return launcher.run(n_ranks, [sys.executable, *arguments], cwd, 200)


@pytest.mark.parametrize("n_ranks", some_of([3, 1]))
def test_every_rank_searches_and_gets_the_result(tmp_path, n_ranks):
    names = [*NAMES, *(OF_MPIRUN if n_ranks > 1 else [])]
    outcome = run(n_ranks, tmp_path, str(SCRIPTS), ",".join(names))
    assert outcome.out.splitlines() == [f"{name} is done" for name in names]
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["kept"]


@pytest.mark.keras
@pytest.mark.proof
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_keras_model_of_the_script_is_searched(tmp_path, n_ranks):
    assert run(n_ranks, tmp_path, str(SCRIPTS), "a_keras_model").out.splitlines() == ["a_keras_model is done"]


@pytest.mark.proof
def test_the_example(tmp_path):
    lines = run(3, tmp_path, str(EXAMPLE)).out.splitlines()
    assert len(lines) == 3
    assert len(set(lines)) == 1


@pytest.mark.proof
def test_the_command_line_resumes_a_module_and_sends_a_script_back_to_itself(tmp_path):
    (tmp_path / "own.py").write_text(OBJECTIVE)
    (tmp_path / "space.py").write_text("from nnlo_opt.space import Real\nspace = [Real(0, 1, name='x')]\n")
    (tmp_path / "script.py").write_text("import own\n" + SEARCHES.format(target="own.objective"))
    run(3, tmp_path, "script.py")
    command = ["OptimizationDriver", "--model", "own.py", "--search-space", "space.py", "--checkpoint", "run"]
    command += ["--num-iterations", "5", "--opt-restore"]
    launcher.run(3, command, tmp_path, 120)
    ledger = read_ledger(tmp_path / "checkpoints" / "run")
    assert len(ledger.trials) == 5
    assert len(ledger.sessions) == 2
    text = SEARCHES.format(target="lambda p: p['x']").replace('"run"', '"run", overwrite=True')
    (tmp_path / "script.py").write_text(text)
    run(1, tmp_path, "script.py")
    outcome = launcher.run(3, command, tmp_path, 120, code=2)
    assert "whose trials call `<lambda>` of the script" in outcome.err
    assert "`opt_restore=True`" in outcome.err
