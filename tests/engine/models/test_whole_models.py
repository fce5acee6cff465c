"""Models that Keras has saved whole."""

import numpy as np
import pytest

from nnlo_opt.engine.models.builders import open_model
from tests.helpers.refusals import check_refused

pytestmark = [pytest.mark.keras, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def model():
    import keras

    layers = keras.layers.Dense(4, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(2, "softmax")
    made = keras.Sequential([keras.Input((3,)), *layers])
    made.set_weights([np.random.default_rng(0).random(w.shape) for w in made.get_weights()])
    return made


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_a_saved_model_is_trained_further_or_from_the_start(model, tmp_path, ending):
    path = tmp_path / f"whole.{ending}"
    model.save(path)
    x = np.ones((5, 3), np.float32)
    for fresh in (False, True):
        again = open_model(str(path), fresh=fresh).build({})
        assert [w.shape for w in again.get_weights()] == [w.shape for w in model.get_weights()]
        assert np.allclose(again(x), model(x)) is not fresh


def test_weights_alone_and_damage_are_refused(model, tmp_path):
    from nnlo_opt.engine.models.legacy.weights import save_legacy_weights

    save_legacy_weights(model, tmp_path / "weights.h5")
    check_refused("must hold its architecture", open_model(str(tmp_path / "weights.h5")).build, {})
    for name in ("damaged.keras", "damaged.h5"):
        (tmp_path / name).write_bytes(b"none")
        check_refused("A saved model must be", open_model(str(tmp_path / name)).build, {})
