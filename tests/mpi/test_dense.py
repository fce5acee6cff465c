"""The network that most ranks of tests train is a model adapter as others are."""

import sys
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.models.losses import LossTerm
from nnlo_opt.testing.model_conformance import ModelConformance

sys.path.insert(0, str(Path(__file__).parent / "site"))
import dense


class TestDense(ModelConformance):
    suffix = ".npz"
    loss = "categorical_crossentropy"

    def make(self):
        dense.set_seed(0)
        return dense.adapter(dense.Net(5, 6, 3), [LossTerm("softmax", self.loss, accuracy="categorical")])

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

    def make(self):
        dense.set_seed(0)
        net = dense.Net(5, 6, 3, normalises=True, dropout=0.3)
        return dense.adapter(net, [LossTerm("softmax", self.loss, accuracy="categorical")])


def test_the_gradient_through_a_normalisation_is_the_slope():
    dense.set_seed(0)
    adapter = dense.adapter(dense.Net(5, 6, 3, normalises=True), [LossTerm("softmax", TestDense.loss)])
    x, y = TestDense().batch(20, 0)
    out, ignored = np.empty(adapter.n_weights, np.float32), np.empty(adapter.n_weights, np.float32)
    adapter.gradient(x, y, out)
    adapter.read_weights(weights := np.empty(adapter.n_weights, np.float32))
    direction = out / np.linalg.norm(out)
    means = []
    for step in (1e-2, -1e-2):
        adapter.write_weights(weights + step * direction)
        means.append(adapter.gradient(x, y, ignored).means()["loss"])
    assert (means[0] - means[1]) / 2e-2 == pytest.approx(np.linalg.norm(out), rel=2e-2)
