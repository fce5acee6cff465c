"""Optimizers that a framework runs, on real ranks: resumed, also on another number of them."""

import shutil

import numpy as np
import pytest

from tests.helpers import launcher, networks

pytestmark = [pytest.mark.mpi, pytest.mark.keras, pytest.mark.proof]

OWN = """
get_plain = get_model


def get_model():
    model = get_plain()
    rate = keras.optimizers.schedules.CosineDecay(0.01, 400)
    model.compile(keras.optimizers.Adamax(rate, clipnorm=1.0), "categorical_crossentropy")
    return model
"""


def test_a_training_resumes_with_the_optimizer_of_keras_on_any_number_of_ranks(tmp_path, digits):
    (tmp_path / "model.py").write_text(networks.KERAS + OWN)
    command = ["TrainingDriver", "--model", "model.py", *launcher.data_of(digits), "--batch", "64"]
    together = [*command, "--mode", "allreduce"]

    def train(name, n_ranks, epochs):
        resumed = ["--restore"] * (tmp_path / "checkpoints" / name).exists()
        options = ["--checkpoint", name, "--epochs", str(epochs), *resumed]
        out = launcher.run(n_ranks, [*together, *options], tmp_path).out
        place = max((tmp_path / "checkpoints" / name / "trials").iterdir()) / "fold0"
        with np.load(place / "weights.npz") as archive:
            return archive["weights"], out

    whole, said = train("whole", 2, 4)
    assert "Taken from `compile`: Adamax(learning_rate=CosineDecay, clipnorm=1.0)" in said
    train("parts", 2, 2)
    shutil.copytree(tmp_path / "checkpoints/parts", tmp_path / "checkpoints/fewer")
    parts, _ = train("parts", 2, 4)
    assert np.array_equal(whole, parts)
    launcher.check_continued(tmp_path / "checkpoints/parts")
    _, said = train("fewer", 1, 4)
    assert "CosineDecay counts steps, of which an epoch has " in said
