"""The update rule of `examples/` with memory in master and worker, killed and resumed on a block of three ranks."""

import numpy as np
import pytest

from tests.helpers import launcher
from tests.helpers.pages import REPOSITORY

pytestmark = pytest.mark.mpi

MODE = f"{REPOSITORY}/examples/example_update_rule.py:ErrorFeedback"


@pytest.mark.parametrize(
    ("pace", "exchange"),
    [
        ("--synchronous", "auto"),
        pytest.param("--synchronous", "messages", marks=pytest.mark.proof),
    ],
)
def test_a_training_killed_and_resumed_ends_as_an_undisturbed_one(tmp_path, digits, network, pace, exchange):
    (tmp_path / "net.py").write_text(network.slow)
    command = ["TrainingDriver", "--model", "net.py", *launcher.data_of(digits), "--mode", MODE, "--epochs", "4"]
    command += ["--learning-rate", "0.01", "--lr-schedule", "linear", "--batch", "64", pace, "--exchange", exchange]
    whole = launcher.run(3, [*command, "--checkpoint", "whole"], tmp_path)
    assert "2 workers, synchronous error-feedback.\n" in whole.out
    job = launcher.start(3, [*command, "--checkpoint", "killed"], tmp_path)
    job.wait_for(tmp_path / "checkpoints/killed", "EpochEnded", 2)
    job.kill()
    (checkpoint,) = (tmp_path / "checkpoints/killed/trials/0000/fold0").glob("checkpoint-*")
    with np.load(checkpoint / "master.npz") as master, np.load(checkpoint / "worker-2.npz") as worker:
        assert np.abs(master["rule.memory.velocity"]).max() > 0
        assert np.abs(worker["memory.error"]).max() > 0
    launcher.run(3, [*command, "--checkpoint", "killed", "--restore"], tmp_path)
    began = [event["epoch"] for event in launcher.events_of(tmp_path / "checkpoints/killed", "FoldBegan")]
    assert began[0] == 0
    assert began[-1] >= 2
    weights = [np.load(tmp_path / f"checkpoints/{run}/trials/0000/fold0/weights.npz")["weights"] for run in RUNS]
    assert np.array_equal(*weights)


RUNS = ("whole", "killed")
