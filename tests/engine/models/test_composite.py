"""A composite of several models is one more adapter, whose gradient is the difference that its own steps make."""

import numpy as np
import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.engine.models.composite import CompositeAdapter, CompositeModel, ModelPart
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.testing.model_conformance import ModelConformance
from tests.helpers.adapters import gradient, keras, weights_of
from tests.helpers.keras_adapters import keras_adapter

pytestmark = pytest.mark.keras
SHAPE = (3,)
MSE = {"only": "mean_squared_error"}


def dense(n_outputs=1, *, normalises=False):
    layers = [keras.layers.BatchNormalization()] if normalises else []
    return keras.Sequential([keras.Input(SHAPE), *layers, keras.layers.Dense(n_outputs, activation="tanh")])


class Pair(CompositeModel):
    """A teacher that learns the labels, and a student behind a copy of the teacher."""

    def __init__(self, *, dropout=0.0, trainable_copy=False, **options):
        self._dropout, self._trainable_copy, self._options = dropout, trainable_copy, options

    def build(self, feature_shape):
        self.teacher, self.inner = dense(normalises=True), dense(3)
        copy = keras.models.clone_model(self.teacher)
        copy.trainable = self._trainable_copy
        x = keras.Input(feature_shape)
        student = keras.Model(x, copy(keras.layers.Dropout(self._dropout)(self.inner(x))))
        return {
            "teacher": ModelPart(model=self.teacher, losses=MSE, **self._options),
            "student": ModelPart(model=student, losses=MSE, copies=[(copy, self.teacher)]),
        }

    def train_on_batch(self, models, x, y, rng):
        noise = rng.normal(size=x.shape).astype(np.float32)
        return {
            "teacher": models["teacher"].train_on_batch(x, y),
            "student": models["student"].train_on_batch(x + 0.1 * noise, y),
        }

    def test_on_batch(self, models, x, y, rng):
        return {name: model.test_on_batch(x, y) for name, model in models.items()}


def composite(of_all="rmsprop", **options):
    keras_model.set_seed(0)
    return CompositeAdapter(Pair(**options), SHAPE, TrainingOptions(optimizer=of_all, learning_rate=0.01), seed=5)


def batch(n_samples, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_samples, 3)).astype(np.float32), rng.uniform(-1, 1, (n_samples, 1)).astype(np.float32)


class TestPair(ModelConformance):
    # Its gradient is a step, not a slope, and depends on numbers drawn.
    deterministic = False
    takes_sample_weights = False

    def make(self):
        return composite(dropout=0.3)

    def batch(self, n_samples, seed):
        return batch(n_samples, seed)


def test_the_difference_is_the_step_of_each_optimizer():
    adapter, alone = composite("adam"), keras_adapter(_teacher(), "mean_squared_error")
    x, y = batch(8, 0)
    difference, metrics = gradient(adapter, (x, y))
    slope, own = gradient(alone, (x, y))
    expected = weights_of(alone)
    before = expected.copy()
    make_optimizer("adam", len(expected), 0.01).apply(expected, slope)
    assert np.allclose(difference[: len(expected)], before - expected, atol=1e-7)
    assert metrics.means()["teacher_loss"] == pytest.approx(own.means()["loss"])
    assert metrics.means()["loss"] == pytest.approx(metrics.means()["teacher_loss"] + metrics.means()["student_loss"])


def _teacher():
    keras_model.set_seed(0)
    return dense(normalises=True)


def test_a_model_may_have_an_optimizer_of_its_own():
    x, y = batch(8, 0)
    plain, _ = gradient(composite("sgd"), (x, y))
    faster, _ = gradient(composite("sgd", optimizer="sgd", learning_rate=0.02), (x, y))
    n_teacher = 3 + 3 + 4  # scale and shift of the normalisation, then the dense layer
    assert np.allclose(faster[:n_teacher], 2 * plain[:n_teacher], rtol=1e-4)
    # The student follows the teacher, at its own rate.
    assert np.linalg.norm(faster[n_teacher:] - plain[n_teacher:]) < 0.1 * np.linalg.norm(plain[n_teacher:])


def test_a_copy_follows_its_original_and_is_not_exchanged():
    adapter = composite()
    names = [spec.name for spec in adapter.layout.specs]
    n_of_layers = sum(name.startswith("student") for name in names)
    assert n_of_layers == 2, "the student has the weights of its inner layer only"
    x, y = batch(16, 0)
    weights = weights_of(adapter)
    weights[:10] = np.linspace(-1, 1, 10)
    adapter.write_weights(weights)
    model = adapter.synced_model()
    expected = np.mean((np.asarray(model.teacher(np.asarray(model.inner(x)))) - y) ** 2)
    assert adapter.evaluate(x, y).means()["student_loss"] == pytest.approx(float(expected), rel=1e-4)


def test_random_numbers_differ_from_batch_to_batch_and_between_workers():
    adapter, x = composite("sgd"), batch(8, 0)[0]
    first, later = adapter._rng(x, 0).normal(), adapter._rng(x, 1).normal()
    assert first == adapter._rng(x, 0).normal()
    assert len({first, later, adapter._rng(x + 1, 0).normal()}) == 3


def test_a_trainable_copy_and_weights_of_samples_are_refused():
    with pytest.raises(TrialError, match="must not be trainable"):
        composite(trainable_copy=True)
    with pytest.raises(TrialError, match="not accept weights of samples"):
        composite().gradient(*batch(4, 0), np.empty(16, np.float32), np.ones(4, np.float32))


def test_saved_models_stand_side_by_side(tmp_path):
    adapter = composite()
    adapter.save(tmp_path / "pair.keras")
    x, _ = batch(4, 0)
    of_teacher, _ = keras.models.load_model(tmp_path / "pair.keras")([x, x])
    assert np.allclose(of_teacher, adapter.synced_model().teacher(x), atol=1e-6)


@pytest.mark.parametrize(
    ("of_part", "optimizers"), [({}, ("rmsprop",)), ({"optimizer": "sgd"}, ("sgd", "rmsprop"))], ids=["all", "one"]
)
def test_a_composite_names_the_optimizers_that_make_its_steps(of_part, optimizers):
    assert composite(**of_part).optimizers == optimizers
