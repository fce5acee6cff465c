"""Optimizers that a framework runs, on real ranks: resumed, also on another number of them, and refused."""

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

    def train(name, *starts):
        for n, (n_ranks, epochs) in enumerate(starts):
            resumed = ["--checkpoint", name, "--epochs", str(epochs), *["--restore"] * (n > 0)]
            out = launcher.run(n_ranks, [*together, *resumed], tmp_path).out
        place = max((tmp_path / "checkpoints" / name / "trials").iterdir()) / "fold0"
        with np.load(place / "weights.npz") as archive:
            return archive["weights"], out

    whole, said = train("whole", (2, 4))
    assert "Taken from `compile`: Adamax(learning_rate=CosineDecay, clipnorm=1.0)" in said
    parts, _ = train("parts", (2, 2), (2, 4))
    assert np.array_equal(whole, parts)
    launcher.check_continued(tmp_path / "checkpoints/parts")
    _, said = train("fewer", (2, 2), (1, 4))
    assert "CosineDecay counts steps, of which an epoch has " in said
    refused = launcher.run(3, [*command, "--checkpoint", "refused"], tmp_path, code=2)
    assert "Adamax(learning_rate=CosineDecay, clipnorm=1.0) of the model needs workers" in refused.err
