"""The GAN on real ranks: every mode trains it, and a training that was killed goes on to the same losses."""

import json

import pytest

from tests.helpers import launcher

pytestmark = [pytest.mark.mpi, pytest.mark.keras]
SIZE = ["--latent-size", "20", "--batch", "20"]


@pytest.fixture(scope="module")
def showers(tmp_path_factory):
    """A folder with lists of small showers."""
    folder = tmp_path_factory.mktemp("showers")
    launcher.run(1, ["GetData", "showers", "2", "1", "--cells", "9", "--n-samples", "96", "--out", "."], folder)
    return folder


def command(showers, name, *more):
    lists = [str(showers / f"{part}_showers.list") for part in ("train", "test")]
    return ["MPIGDriver", "dummy.json", *lists, "--loss", "dummy", "--tf", *SIZE, "--checkpoint", name, *more]


def losses(folder, name):
    """Return the metrics of the master by epoch."""
    (path,) = (folder / "checkpoints" / name).glob("*_history.json")
    return json.loads(path.read_text())["history"]["0:-:-"]


@pytest.mark.proof
@pytest.mark.parametrize("mode", ["easgd", "downpour", "allreduce"])
def test_every_mode_trains_it(tmp_path, showers, mode):
    rule = ["--mode", mode, "--early-stopping", "combined_model:val_loss,~<,5"]
    outcome = launcher.run(3, command(showers, "G", *rule, "--epochs", "2"), tmp_path)
    assert "rmsprop for each of its models" in outcome.out
    found = losses(tmp_path, "G")
    assert len(found["val_combined_model_sum_cell_loss"]) == 2
    assert (tmp_path / "checkpoints/G/best_model.keras").exists()


@pytest.mark.proof
def test_a_killed_training_continues_to_the_same_losses(tmp_path, showers):
    launcher.run(2, command(showers, "whole", "--epochs", "3"), tmp_path)
    with_epochs = command(showers, "cut", "--epochs", "3")
    job = launcher.start(2, with_epochs, tmp_path)
    job.wait_for(tmp_path / "checkpoints/cut", "EpochEnded", 1)
    job.kill()
    launcher.run(2, [*with_epochs, "--restore"], tmp_path)
    assert losses(tmp_path, "cut") == losses(tmp_path, "whole")
    launcher.check_continued(tmp_path / "checkpoints/cut")
