"""Horovod's interface between real ranks: calls, and what is said of mistakes."""

import re
import sys
from pathlib import Path

import pytest

from tests.helpers import launcher
from tests.helpers.effort import some_of

FUNCTIONS = Path(__file__).parent / "allreduce_functions.py"

pytestmark = pytest.mark.mpi


def run(n_ranks: int, folder: Path, *names: str, code: int | None = 0) -> launcher.Outcome:
    return launcher.Job(n_ranks, [sys.executable, str(FUNCTIONS), *names], folder).wait(60, code)


@pytest.mark.parametrize("n_ranks", some_of([3, 1, 5]))
def test_calls_give_every_rank_what_they_promise(n_ranks, tmp_path):
    outcome = run(n_ranks, tmp_path, "calls", "exact", "like_horovod", "joined", "a_forked_child")
    assert outcome.out.count("is through") == n_ranks


MISTAKES = {
    "different_sizes": (2, "10 numbers (float64) on rank 0, a reduction (average) of 11 numbers (float64) on rank 2"),
    "a_rank_that_exits": (2, "Received: rank 1 at the end of its program, while other ranks still train."),
    "different_shapes": (2, "2 x 3 numbers (float64) on rank 0, a reduction (average) of 3 x 2 numbers (float64)"),
    "different_operations": (2, "(sum) of one number (float64) on rank 0, a reduction (average) of one number"),
    "different_operations_of_gradients": (2, "(sum as float16) of 4 numbers (float32) in arrays of [(4,)] on rank 0"),
    "different_bytes": (2, "2 numbers (float16) from rank 0 on rank 0, a broadcast of 2 numbers (int16) from rank 0"),
    "different_names": (2, 'named "loss" on rank 0, a reduction (average) of one number (float64) named "accuracy"'),
    "different_calls": (2, "2 x 5 numbers (float64) on rank 0, a gathering of rows of 5 numbers (float64) on rank 1"),
    "different_types": (2, "one number (float64) from rank 0 on rank 0, a broadcast of one number (int64) from rank 0"),
    "rows_of_different_types": (2, "rows of one number (float64) on rank 0, a gathering of rows of one number (int64)"),
    "what_is_no_number": (2, "`hvd.allreduce` takes real numbers. Received: an array of object."),
    "a_rank_that_raises": (1, "ValueError: no such file\nRank 1 has failed: all ranks end."),
    "a_rank_that_is_killed": (None, ""),
    "a_wrong_root": (2, "`root_rank` must be in 0..2. Received: 7."),
    "no_init": (1, "`hvd.init()` must be called before `hvd.size()`."),
}


@pytest.mark.parametrize("mistake", some_of([*MISTAKES]))
def test_a_mistake_is_one_sentence_and_no_rank_waits_for_ever(mistake, tmp_path):
    code, sentence = MISTAKES[mistake]
    outcome = run(3, tmp_path, mistake, code=None)
    assert code in (None, outcome.code), outcome.err
    assert outcome.code != 0
    assert "is through" not in outcome.out
    assert sentence in outcome.err
    if code == 2:
        assert outcome.err.count(sentence) == 1 or mistake in ("a_wrong_root", "what_is_no_number")
        assert "Traceback" not in outcome.err


TRAINING = Path(__file__).parent / "allreduce_training.py"
#: what holds on every backend of Keras
PROMISES = [
    "equals_one_process_dense",
    "equals_one_process_embedding",
    "batch_normalisation_sees_the_batch_of_its_rank",
    "gradients_of_16_bits_are_close",
    "a_saved_model_knows_nothing_of_us",
    "warm_up_and_metrics",
    "mixed_precision",
    "ranks_with_fewer_batches_join",
    "a_model_without_input",
    "a_rank_that_resumes",
]


def train(backend: str, n_ranks: int, folder: Path, names: list[str], code: int = 0) -> launcher.Outcome:

    # JAX would take most of the time to make fast what runs a few times.
    settings = [f"KERAS_BACKEND={backend}", "JAX_DISABLE_MOST_OPTIMIZATIONS=1"]
    command = ["env", *settings, sys.executable, str(TRAINING), *names]
    return launcher.Job(n_ranks, command, folder).wait(400, code)


@pytest.mark.parametrize(
    ("backend", "n_ranks", "names"),
    [
        pytest.param("tensorflow", 2, [*PROMISES, "a_tape"], marks=pytest.mark.proof),
        pytest.param("jax", 2, PROMISES, marks=pytest.mark.needs("jax")),
        pytest.param("torch", 3, PROMISES, marks=pytest.mark.needs("torch")),
    ],
)
def test_training_on_ranks_equals_training_on_the_union_of_their_batches(backend, n_ranks, names, tmp_path):
    outcome = train(backend, n_ranks, tmp_path, names)
    assert all(outcome.out.count(f"{name} on rank") == n_ranks for name in names)


@pytest.mark.proof
def test_ranks_with_models_of_different_shapes_are_refused(tmp_path):
    outcome = train("tensorflow", 2, tmp_path, ["different_models"], code=2)
    words = r"a reduction \(average, learning rate [\d.e-]+\) of 30 numbers"
    assert len(re.findall(rf"{words} \(float32\) in arrays of \[\(10, 3\)\] on rank 0, {words}", outcome.err)) == 1


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("torch", marks=pytest.mark.needs("torch")),
        pytest.param("jax", marks=[pytest.mark.needs("jax"), pytest.mark.proof]),
        pytest.param("tensorflow", marks=[pytest.mark.keras, pytest.mark.proof]),
    ],
)
def test_ranks_whose_learning_rates_differ_are_refused(backend, tmp_path):
    outcome = train(backend, 2, tmp_path, ["different_rates"], code=2)
    assert outcome.out.count("the first epoch is through") == 2
    assert "All ranks must make the same steps with the same learning rate." in outcome.err
    assert "learning rate 0.1)" in outcome.err
    assert "learning rate 0.05)" in outcome.err


@pytest.mark.needs("torch")
def test_ranks_whose_learning_rates_differ_in_torch_are_refused(tmp_path):
    script = Path(__file__).parent / "allreduce_torch.py"
    outcome = launcher.Job(2, [sys.executable, str(script), "different_rates"], tmp_path).wait(120, 2)
    assert outcome.out.count("is through") == 0
    assert outcome.err.count("(average, learning rate 0.1) of 2 numbers (float32) in arrays of [(2,)] on rank 0") == 1


@pytest.mark.needs("torch")
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_training_in_torch_equals_training_on_the_union_of_the_batches(n_ranks, tmp_path):
    script = Path(__file__).parent / "allreduce_torch.py"
    outcome = launcher.Job(n_ranks, [sys.executable, str(script)], tmp_path).wait(120, 0)
    assert outcome.out.count("is through") == n_ranks
