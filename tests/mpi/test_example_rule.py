"""The update rule of `examples/` with memory in master and worker, killed and resumed on a block of three ranks."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import launcher
from tests.helpers.pages import REPOSITORY

pytestmark = [pytest.mark.mpi, pytest.mark.proof]

MODE = f"{REPOSITORY}/examples/example_update_rule.py:ErrorFeedback"


def command_of(folder: Path, digits: Path, network, *options: str) -> list[str]:
    (folder / "net.py").write_text(network.slow)
    command = ["TrainingDriver", "--model", "net.py", *launcher.data_of(digits), "--mode", MODE, "--epochs", "4"]
    return [*command, "--learning-rate", "0.01", "--lr-schedule", "linear", "--batch", "64", *options]


def kill_and_resume(folder: Path, command: list[str]) -> Path:
    """Train with a SIGKILL of all processes after two epochs; the folder of the trial."""
    run, command = folder / "checkpoints/killed", [*command, "--checkpoint", "killed"]
    job = launcher.start(3, command, folder)
    job.wait_for(run, "EpochEnded", 2)
    job.kill()
    checkpoint = max((run / "trials/0000/fold0").glob("checkpoint-*"))
    with np.load(checkpoint / "master.npz") as master, np.load(checkpoint / "worker-2.npz") as worker:
        assert np.abs(master["rule.memory.velocity"]).max() > 0
        assert np.abs(worker["memory.error"]).max() > 0
    launcher.run(3, [*command, "--restore"], folder)
    began = [event["epoch"] for event in launcher.events_of(run, "FoldBegan")]
    assert began[0] == 0
    assert began[-1] >= 2
    return run / "trials/0000/fold0"


def weights_of(trial: Path) -> np.ndarray:
    with np.load(trial / "weights.npz") as archive:
        return archive["weights"]


@pytest.mark.parametrize("exchange", ["auto", pytest.param("messages", marks=pytest.mark.proof)])
def test_a_training_killed_and_resumed_ends_as_an_undisturbed_one(tmp_path, digits, network, exchange):
    command = command_of(tmp_path, digits, network, "--synchronous", "--exchange", exchange)
    whole = launcher.run(3, [*command, "--checkpoint", "whole"], tmp_path)
    assert "2 workers, synchronous error-feedback.\n" in whole.out
    resumed = kill_and_resume(tmp_path, command)
    assert np.array_equal(weights_of(resumed), weights_of(tmp_path / "checkpoints/whole/trials/0000/fold0"))


@pytest.mark.parametrize("options", [[], ["--exchange", "messages", "--staleness", "scale"]], ids=str)
def test_workers_at_their_own_pace_resume_with_their_memory_too(tmp_path, digits, network, options):
    """Two undisturbed trainings differ as well, as the order of updates does."""
    resumed = kill_and_resume(tmp_path, command_of(tmp_path, digits, network, *options))
    assert np.isfinite(weights_of(resumed)).all()
