"""The network that most ranks of tests train is a model adapter as others are."""

import numpy as np

from nnlo_opt.engine.models.losses import LossTerm
from nnlo_opt.testing.model_conformance import ModelConformance
from tests.helpers.site import dense


class TestDense(ModelConformance):
    suffix = ".npz"
    loss = "categorical_crossentropy"
    normalises, dropout = False, 0.0

    def make(self):
        dense.set_seed(0)
        net = dense.Net(5, 6, 3, normalises=self.normalises, dropout=self.dropout)
        return dense.adapter(net, [LossTerm("softmax", self.loss, accuracy="categorical")])

    def batch(self, n_samples, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n_samples, 3, 2)).astype(np.float32)
        return x, np.eye(3, dtype=np.float32)[rng.integers(3, size=n_samples)]


class TestClassNumbers(TestDense):
    loss = "sparse_categorical_crossentropy"

    def batch(self, n_samples, seed):
        x, y = super().batch(n_samples, seed)
        return x, y.argmax(axis=1)


class TestStateAndDropout(TestDense):
    deterministic = False
    normalises, dropout = True, 0.3


def test_the_gradient_through_a_normalisation_is_the_slope():
    normalised = TestDense()
    normalised.normalises = True
    normalised.test_gradient_is_the_slope_of_the_loss()
