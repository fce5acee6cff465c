"""Keras models in mixed precision on real ranks: they exchange float32, and resume with their loss scale."""

import json

import numpy as np
import pytest

from tests.helpers import launcher, networks

pytestmark = [pytest.mark.mpi, pytest.mark.keras, pytest.mark.proof]

#: a scale at which gradients of the first batches overflow
STEEP = """
get_plain = get_model


def get_model():
    model = get_plain()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=2.0**24)
    model.compile(optimizer, "categorical_crossentropy")
    return model


get_model.dtype_policy = "mixed_float16"
"""


@pytest.mark.parametrize(("n_ranks", "options"), [(2, ["--mode", "allreduce"]), (3, ["--synchronous"])], ids=str)
def test_a_resumed_training_ends_with_the_same_weights(tmp_path, digits, n_ranks, options):
    (tmp_path / "model.py").write_text(networks.KERAS + STEEP)
    command = ["TrainingDriver", "--model", "model.py", *launcher.data_of(digits), "--batch", "64", *options]
    for name, epochs in (("whole", ["3"]), ("part", ["1", "3"])):
        for number in epochs:
            resume = ["--restore"] * (number != epochs[0])
            out = launcher.run(n_ranks, [*command, "--epochs", number, "--checkpoint", name, *resume], tmp_path).out
        assert "Not taken from `compile`" not in out
    weights, scales = [], []
    for name in ("whole", "part"):
        place = max((tmp_path / "checkpoints" / name / "trials").iterdir()) / "fold0"
        with np.load(place / "weights.npz") as archive:
            weights.append(archive["weights"])
        last = max(place.glob("checkpoint-*"))
        scales.append(json.loads((last / "worker-1.json").read_text())["discrete"][-1])
    assert np.array_equal(*weights)
    launcher.check_continued(tmp_path / "checkpoints/part")
    assert scales[0] == scales[1]
    assert scales[0][0] < 24
