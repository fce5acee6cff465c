"""Callbacks of a Keras model module on real ranks: killed in the middle of a plateau, and in trials with folds."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import launcher, networks

pytestmark = [pytest.mark.mpi, pytest.mark.keras, pytest.mark.proof]

#: nothing is ever better by 100, so the rate is halved after every second epoch; `held`: waits there to be killed
CALLBACKS = """
import json, os, time


class Held(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_epoch_begin(self, epoch, logs=None):
        while epoch == 4 and os.path.exists("held"):
            time.sleep(0.01)

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_train_end(self, logs=None):
        with open(os.environ.get("RATES", "rates.jsonl"), "a") as file:
            file.write(json.dumps(self.rates) + "\\n")


def get_callbacks():
    stopping = keras.callbacks.EarlyStopping(min_delta=100, patience=7, restore_best_weights=True)
    return [Held(), keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=2, min_delta=100), stopping]
"""
#: of the epochs of a training
RATES = [0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125]


def rates_in(folder: Path) -> list[list[float]]:
    return [json.loads(line) for line in (folder / "rates.jsonl").read_text().splitlines()]


def weights_of(folder: Path, name: str) -> np.ndarray:
    with np.load(folder / "checkpoints" / name / "trials/0000/fold0/weights.npz") as archive:
        return archive["weights"]


@pytest.fixture
def command(tmp_path, digits) -> list[str]:
    (tmp_path / "model.py").write_text(networks.KERAS + CALLBACKS)
    options = ["--epochs", "20", "--batch", "64", "--optimizer", "sgd", "--learning-rate", "0.1"]
    return ["TrainingDriver", "--model", "model.py", *launcher.data_of(digits), *options]


@pytest.mark.parametrize(
    ("n_ranks", "options", "later"),
    [(3, ["--synchronous"], {"same": 3}), (2, ["--mode", "allreduce"], {"same": 2, "other": 1})],
    ids=str,
)
def test_killed_in_the_middle_of_a_plateau_a_training_ends_as_an_undisturbed_one(
    tmp_path, command, n_ranks, options, later
):
    command += options
    whole = launcher.run(n_ranks, [*command, "--checkpoint", "whole"], tmp_path)
    assert "Callbacks of every training, from `get_callbacks`: Held, ReduceLROnPlateau, EarlyStopping." in whole.out
    assert "Trained 8 of 20 epochs" in whole.out
    assert "a callback has stopped the training" in whole.out
    for name, n_later in later.items():
        (tmp_path / "held").touch()
        job = launcher.start(n_ranks, [*command, "--checkpoint", name], tmp_path)
        job.wait_for(tmp_path / "checkpoints" / name, "EpochEnded", 3)
        job.kill()
        (tmp_path / "held").unlink()
        again = launcher.run(n_later, [*command, "--checkpoint", name, "--restore"], tmp_path)
        assert "Trained 8 of 20 epochs" in again.out
    assert rates_in(tmp_path) == [pytest.approx(RATES)] * (1 + len(later))
    assert np.array_equal(weights_of(tmp_path, "same"), weights_of(tmp_path, "whole"))


def test_every_trial_and_fold_has_callbacks_of_its_own(tmp_path, command):
    search = ["OptimizationDriver", *command[1:], "--n-fold", "2", "--num-iterations", "2", "--hyper-opt", "random"]
    space = "\nfrom nnlo_opt.space import Integer\nget_model.parameter_range = [Integer(4, 64, name='n_units')]\n"
    (tmp_path / "model.py").write_text(networks.KERAS + CALLBACKS + space)
    launcher.run(3, [*search, "--block-size", "2", "--trial-name", "s"], tmp_path, 240)
    assert rates_in(tmp_path) == [pytest.approx(RATES)] * 4
