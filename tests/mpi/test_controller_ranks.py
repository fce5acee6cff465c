"""Controllers and training loops of a user's own, under a real mpirun."""

import sys
from pathlib import Path

import pytest

from nnlo_opt.testing.mpirun import find_mpirun
from tests.helpers import launcher
from tests.helpers.pages import blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "controller.md"
#: programs of the page, and what they print
PROGRAMS = {
    "train.py": ["1000 batches: [ 1. -2.  3.]", "1010 batches: [ 1. -2.  3.]"],
    "torch_loop.py": ["1 [[1. 1. 1.]]\n2 [[1. 1. 1.]]", "2 [[1. 1. 1.]]\n1 [[1. 1. 1.]]"],
    "downpour.py": ["[100.]"],
}
EXAMPLE = PAGE.parents[2] / "examples" / "lstm_platoon"
SCRIPTS = Path(__file__).parent / "controller_scripts.py"

pytestmark = pytest.mark.mpi


def run(n_ranks: int, cwd: Path, name: str, code: int | None = 0) -> launcher.Outcome:
    return launcher.run(n_ranks, [sys.executable, str(SCRIPTS), name], cwd, 60, code)


def test_workers_train_together_and_no_exchange_is_lost(tmp_path):
    outcome = run(4, tmp_path, "trains")
    assert sorted(outcome.out.splitlines()) == [
        "controller: 3000 batches, a good model",
        *(f"worker {i}: a good model, the sum is kept, my centre is yours, None" for i in (1, 2, 3)),
    ]
    assert not outcome.err


@pytest.mark.proof
def test_the_controller_hears_of_a_worker_that_is_killed_with_the_lock(tmp_path, monkeypatch):
    launcher.use_ulfm(monkeypatch)
    outcome = run(4, tmp_path, "is_killed", None)
    assert sorted(outcome.out.splitlines()) == [
        "controller: lost 2, left [1, 3]",
        "controller: the end",
        "worker 1 has trained",
        "worker 3 has trained",
    ]


@pytest.mark.proof
def test_without_ulfm_a_death_ends_the_job(tmp_path):
    outcome = run(4, tmp_path, "is_killed", None)
    assert outcome.code != 0
    assert "killed" in (outcome.out + outcome.err).lower()


@pytest.mark.proof
def test_mistakes_are_sentences(tmp_path):
    lines = run(2, tmp_path, "makes_mistakes").out.splitlines()
    assert lines == [
        "`sync_params` needs shared parameters. Received: no `init_shared_params` before it. Call that first, on every "
        "worker.",
        "A request must be JSON data: numbers, text, lists, dictionaries, None. Received: {1, 2}.",
        "A rule must be `EASGD(alpha)`, or a function of two lists of arrays. Received: 0.5.",
        "Parameters can be shared once. Received: a second call of `init_shared_params`.",
        "A rule must change the arrays in place and return None, or return the lists of new local and new central "
        "arrays, in the same shapes. Received: shape (3,) for central array 0, which has (4,).",
        "kept 0.0",
    ]


#: what a rank does -> the sentence for it
MISTAKES = {
    "has_another_model": "Received: float32 (5,) instead of float32 (4,) as array 0 from worker 2, as worker 1 has "
    "them.",
    "is_no_controller": "Received: a worker on rank 0.",
    "is_two_workers": "Received: a second worker.",
    "overrides_nothing": "Received: Controller, without it",
    "does_not_serve": "Received: a controller that ended before them.",
    "answers_with_a_set": "Received: {1}.",
    "raises": "ZeroDivisionError",
}


@pytest.mark.proof
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_one_rank_ends_all_with_a_sentence(tmp_path, name):
    outcome = run(3, tmp_path, name, None)
    assert outcome.code != 0
    assert outcome.err.count(MISTAKES[name]) == 1, outcome.err


@pytest.mark.proof
def test_one_rank_is_too_few(tmp_path):
    outcome = run(1, tmp_path, "trains", 1)
    assert "A controller needs at least one worker, on a separate rank. Received: 1 rank." in outcome.err


def run_two_scripts(cwd: Path, controller: list[str], worker: list[str]) -> str:
    """Return what a controller and two workers print, each of a script of its own."""
    python = sys.executable
    command = [str(find_mpirun()), "-n", "1", python, *controller, ":", "-n", "2", python, *worker]
    return launcher.Job(1, command, cwd).wait(240).out


@pytest.mark.proof
def test_scripts_with_the_calls_of_platoon_run(tmp_path):
    out = run_two_scripts(tmp_path, [str(SCRIPTS), "lieutenant"], [str(SCRIPTS), "soldier"])
    refused = (
        "Workers must load their own data; `nnlo_opt.allreduce` averages gradients. Received: `recv_mb` of Platoon."
    )
    done = [f"soldier {rank} of 2 is done: 7.0" for rank in (1, 2)]
    assert sorted(out.splitlines()) == ["100 minibatches 2 done 0", refused, refused, *done]


@pytest.mark.proof
@pytest.mark.needs("torch")
def test_a_torch_loop_shares_the_memory_of_its_module(tmp_path):
    assert sorted(run(3, tmp_path, "trains_torch").out.splitlines()) == ["worker 1 learnt", "worker 2 learnt"]


@pytest.mark.proof
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.needs("torch")] * ("torch" in name)) for name in PROGRAMS]
)
def test_the_programs_of_the_page_run(tmp_path, name):
    (program,) = (block for block in blocks_of(PAGE) if block.name == name)
    (tmp_path / name).write_text(program.text)
    outcome = launcher.run(3, [sys.executable, name], tmp_path, 90)
    assert outcome.out.strip() in PROGRAMS[name]


@pytest.mark.keras
@pytest.mark.proof
def test_the_lstm_example_learns(tmp_path):
    controller, worker = (EXAMPLE / f"lstm_{name}.py" for name in ("controller", "worker"))
    text = controller.read_text().replace("max_batches=3000", "max_batches=600")
    (tmp_path / "lstm_controller.py").write_text(text)
    out = run_two_scripts(tmp_path, ["lstm_controller.py"], [str(worker)])
    errors = [float(line.split()[3].rstrip(",")) for line in out.splitlines() if " by worker " in line]
    assert len(errors) == 2
    assert errors[1] < min(errors[0], 0.6)
    assert (tmp_path / "lstm_best.npz").exists()
