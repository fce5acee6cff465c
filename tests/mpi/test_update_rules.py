"""Every update rule on real digits under real mpirun."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import launcher, networks

pytestmark = pytest.mark.mpi


@pytest.fixture
def folder(tmp_path, network) -> Path:
    (tmp_path / "model.py").write_text(network.plain)
    return tmp_path


def train(folder: Path, digits: Path, n_ranks: int, name: str, *options: str) -> np.ndarray:
    """The weights that a training on `n_ranks` ranks ends with."""
    command = ["TrainingDriver", "--model", "model.py", *launcher.data_of(digits), "--checkpoint", name, *options]
    launcher.run(n_ranks, command, folder)
    launcher.check_continued(folder / "checkpoints" / name)
    newest = max((folder / "checkpoints" / name / "trials").iterdir())
    with np.load(newest / "fold0/weights.npz") as archive:
        return archive["weights"]


def test_allreduce_is_synchronous_training_with_every_rank_a_worker(folder, digits):
    options = ["--epochs", "2", "--batch", "32", "--optimizer", "sgd", "--learning-rate", "0.1"]
    options += ["--warmup-epochs", "0.5", "--lr-schedule", "linear"]
    synchronous = train(folder, digits, 3, "s", *options, "--synchronous")
    together = train(folder, digits, 2, "a", *options, "--mode", "allreduce")
    np.testing.assert_allclose(together, synchronous, rtol=1e-3, atol=1e-5)


SCHEDULED = ["--mode", "allreduce", "--warmup-epochs", "0.5", "--lr-schedule", "exponential:0.5"]
ELASTIC_TREE = ["--mode", "easgd", "--synchronous", "--sync-every", "3", "--n-masters", "3"]


@pytest.mark.proof
@pytest.mark.parametrize(("n_ranks", "epochs", "options"), [(2, "3", SCHEDULED), (6, "2", ELASTIC_TREE)])
def test_a_resumed_training_ends_with_the_same_weights(folder, digits, n_ranks, epochs, options):
    options = ["--batch", "32", *options]
    whole = train(folder, digits, n_ranks, "whole", *options, "--epochs", epochs)
    train(folder, digits, n_ranks, "part", *options, "--epochs", "1")
    parts = train(folder, digits, n_ranks, "part", *options, "--epochs", epochs, "--restore", "part")
    assert np.array_equal(parts, whole)


AVERAGED = ["--optimizer", "adamw", "--ema", "0.95", "--global-clip-norm", "0.5", "--no-decay", "bias", "--batch", "32"]


@pytest.mark.proof
def test_averages_of_clipped_steps_are_the_same_in_memory_by_messages_and_at_a_master(folder, digits):
    options = [*AVERAGED, "--epochs", "2"]
    shared = train(folder, digits, 2, "shared", *options, "--mode", "allreduce")
    sent = train(folder, digits, 2, "sent", *options, "--mode", "allreduce", "--exchange", "messages")
    at_master = train(folder, digits, 3, "master", *options, "--synchronous")
    last = train(folder, digits, 2, "last", *options, "--mode", "allreduce", "--ema", "0")
    np.testing.assert_allclose(sent, shared, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(at_master, shared, rtol=1e-3, atol=1e-4)
    assert np.abs(last - shared).max() > 1e-3


@pytest.mark.proof
@pytest.mark.parametrize(
    ("n_ranks", "options"),
    [
        (2, ["--mode", "allreduce"]),
        (3, ["--synchronous"]),
        (2, []),
        (2, ["--mode", "easgd", "--sync-every", "2"]),
        (2, ["--mode", "gem", "--exchange", "messages", "--no-overlap"]),
    ],
    ids=str,
)
def test_a_training_killed_within_an_average_ends_with_the_same_weights(folder, digits, n_ranks, options):
    options = [*AVERAGED, *options, "--epochs", "8"]
    whole = train(folder, digits, n_ranks, "whole", *options)
    command = ["TrainingDriver", "--model", "model.py", *launcher.data_of(digits), "--checkpoint", "part", *options]
    job = launcher.start(n_ranks, command, folder)
    job.wait_for(folder / "checkpoints/part", "EpochEnded", 3)
    job.kill()
    assert np.array_equal(train(folder, digits, n_ranks, "part", *options, "--restore", "part"), whole)


@pytest.mark.proof
def test_a_training_resumes_on_another_number_of_ranks(folder, digits):
    """A batch is all that a rank has, so that an epoch is one step along the mean over all samples."""
    together = ["--mode", "allreduce", "--batch", "1000", "--learning-rate", "0.02", "--epochs"]
    whole = train(folder, digits, 2, "whole", *together, "6")
    train(folder, digits, 2, "part", *together, "3")
    parts = train(folder, digits, 3, "part", *together, "6", "--restore", "part")
    np.testing.assert_allclose(parts, whole, rtol=1e-3, atol=1e-5)
    elastic = ["TrainingDriver", "--model", "model.py", *launcher.data_of(digits), "--mode", "easgd", "--epochs"]
    launcher.run(3, [*elastic, "1", "--checkpoint", "e"], folder)
    said = launcher.run(4, [*elastic, "2", "--restore", "e"], folder).out
    assert "easgd's workers begin with a fresh state" in said


@pytest.mark.proof
@pytest.mark.parametrize(("n_ranks", "layout"), [(5, ["--n-processes", "2"]), (7, ["--n-masters", "3"])])
def test_groups_and_sub_masters_average_as_workers_of_one_master_do(folder, digits, n_ranks, layout):
    options = ["--epochs", "2", "--batch", "32", "--optimizer", "sgd", "--learning-rate", "0.1", "--synchronous"]
    flat = train(folder, digits, 5, "flat", *options)
    laid_out = train(folder, digits, n_ranks, "laid-out", *options, *layout)
    np.testing.assert_allclose(laid_out, flat, rtol=1e-3, atol=1e-5)


@pytest.mark.proof
@pytest.mark.parametrize("options", [["--mode", "easgd", "--sync-every", "3"], ["--mode", "gem"], []], ids=str)
def test_workers_of_several_ranks_train_and_continue_from_a_checkpoint(folder, digits, options):
    ring = ["--n-processes", "2", "--batch", "20", "--learning-rate", "0.01", *options]
    run = folder / "checkpoints/r"
    first = train(folder, digits, 5, "r", *ring, "--epochs", "1")
    before = json.loads((run / "model_train_history.json").read_text())["history"]
    second = train(folder, digits, 5, "r", *ring, "--epochs", "3", "--restore", "r")
    after = json.loads((run / "model_train_history.json").read_text())["history"]
    for weights in (first, second):
        assert np.isfinite(weights).all()
    assert np.abs(second - first).max() > 1e-4
    # The worker of ranks 1 and 2, the one of 3 and 4, and the master.
    assert before.keys() == after.keys()
    assert len(after) == 3
    losses = after["0:-:-"]["val_loss"]
    assert len(losses) == 3
    for metric, values in before["0:-:-"].items():
        assert after["0:-:-"][metric][:1] == values
    assert losses[-1] < losses[0]
    # A training that has ended goes on as a further trial, from the last fence of the one before.
    assert [event["epoch"] for event in launcher.events_of(run, "FoldBegan")] == [0, 1]
    assert [event["epoch"] for event in launcher.events_of(run, "EpochEnded")] == [1, 2, 3]


@pytest.mark.proof
def test_a_failure_below_a_sub_master_names_its_rank_and_the_search_continues(folder, digits, network):
    model = network.plain.replace('fault == "build"', 'fault == "build" and MPI.COMM_WORLD.Get_rank() == 6')
    (folder / "model.py").write_text("from mpi4py import MPI\n" + model)
    space = "from nnlo_opt.space import Categorical\nspace = [Categorical(['', 'build'], name='fault')]\n"
    (folder / "space.py").write_text(space)
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "space.py", "--block-size", "6"]
    command += ["--num-iterations", "9", "--n-masters", "3", "--checkpoint", "S", *launcher.data_of(digits)]
    launcher.run(7, command, folder)
    rows = {row["p:fault"]: row for row in launcher.results_of(folder / "checkpoints/S")}
    assert {fault: row["state"] for fault, row in rows.items()} == {"": "complete", "build": "failed"}
    assert "no such layer" in rows["build"]["reason"]
    (failed,) = launcher.events_of(folder / "checkpoints/S", "AssignmentFailed")
    assert failed["world_rank"] == 6


@pytest.mark.proof
def test_groups_that_cannot_be_are_refused_on_all_ranks(folder, digits):
    """Which ones: `tests/cli/test_checks.py`."""
    command = ["TrainingDriver", "--model", "model.py", "--train-data", str(digits / "train_mnist.list")]
    outcome = launcher.run(4, [*command, "--n-masters", "3"], folder, code=2)
    assert outcome.err.startswith("`--n-masters` must leave every sub-master a worker")
    assert "Traceback" not in outcome.err


@pytest.mark.proof
@networks.trained("dense", "keras")
def test_rules_are_searched_together_and_failures_in_each_are_contained(folder, digits):
    (folder / "space.py").write_text(
        "from nnlo_opt.space import Categorical\n"
        "space = [Categorical(['downpour', 'easgd', 'gem', 'allreduce'], name='train.mode'),\n"
        "         Categorical(['', 'build', 'nan'], name='fault')]\n"
    )
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "space.py", "--block-size", "3"]
    command += ["--num-iterations", "50", "--hyper-opt", "random", "--checkpoint", "S", *launcher.data_of(digits)]
    launcher.run(4, [*command, "--loss", "categorical_crossentropy"], folder)
    rows = launcher.results_of(folder / "checkpoints/S")
    assert len(rows) == 12
    for row in rows:
        assert row["state"] == ("failed" if row["p:fault"] else "complete"), row
        assert {"": "", "build": "no such layer", "nan": "finite"}[row["p:fault"]] in row["reason"]


#: forks where a model is built, and in its first batch; the children return
FORKS = """
import os

build = get_model


def get_model(n_units=16):
    os.fork()
    model = build(n_units)
    compute, forks = model.forward, [os.fork]

    def forward(x):
        if forks:
            forks.pop()()
        return compute(x)

    model.forward = forward
    return model
"""


@pytest.mark.parametrize("options", [["--mode", "allreduce"], pytest.param([], marks=pytest.mark.proof)])
def test_children_that_a_model_forks_send_nothing_and_write_nothing(tmp_path, digits, options):
    options = ["--epochs", "1", "--batch", "32", *options]
    weights = []
    for name, text in (("plain", ""), ("forks", FORKS)):
        (tmp_path / "model.py").write_text(networks.DENSE + text)
        weights.append(train(tmp_path, digits, 2, name, *options))
    assert np.array_equal(*weights)
    (log,) = (tmp_path / "checkpoints/forks/logs").glob("rank-00001.log")
    assert log.read_text().count("must end by itself") >= 2


@pytest.mark.proof
def test_a_training_says_what_staleness_has_left_of_the_momentum(folder, digits):
    command = ["TrainingDriver", "--model", "model.py", *launcher.data_of(digits), "--optimizer", "sgd", "--checkpoint"]
    command += ["M", "--optimizer-params", "{'momentum': 0.5}", "--momentum-correction"]
    out = launcher.run(4, command, folder).out
    assert "the old gradients of 3 workers act as a momentum of 0.67, no less than the 0.5 asked for" in out
    left = r"^Momentum: of the 0\.5 asked for, 0\.00 was left for the optimizer, .* [12]\.\d versions"
    assert re.search(left, out, re.M)
