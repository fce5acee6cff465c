"""Networks that ranks train: in NumPy, which is there at once, and the same in torch and in Keras."""

from typing import Any, NamedTuple

import pytest

SLOW = """
import time

from nnlo_opt.space import Integer

build = get_model


def get_model(n_units=16):
    model = build(n_units)
    compute = model.forward

    def forward(x):
        time.sleep(0.05)
        return compute(x)

    model.forward = forward
    return model


get_model.parameter_range = [Integer(4, 64, name="n_units")]
"""


class Network(NamedTuple):
    """The text of model modules of one framework, all with `get_model`."""

    #: with faults to choose
    plain: str
    #: with all that needs care: batch normalisation (float state), dropout (seed counters)
    careful: str
    #: of a saved model
    suffix: str

    @property
    def slow(self) -> str:
        """The plain network, with epochs of half a second, to be killed in the middle of one."""
        return self.plain + SLOW


DENSE = """
from dense import Net


class Rescaled(Net):
    def forward(self, x):
        return x * float("nan")


def get_model(n_units=16, fault=""):
    if fault == "build":
        raise RuntimeError("no such layer")
    return Rescaled(n_units) if fault == "nan" else Net(n_units)
"""
CAREFUL_DENSE = """
from dense import Net


def get_model(n_units=16):
    return Net(n_units, normalises=True, dropout=0.1)
"""
KERAS = """
import keras


def get_model(n_units=16, fault=""):
    if fault == "build":
        raise RuntimeError("no such layer")
    layers = [keras.layers.Flatten(), keras.layers.Rescaling(float("nan") if fault == "nan" else 1.0)]
    layers += [keras.layers.Dense(n_units, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers])
"""
TORCH = """
from torch import nn


def get_model(n_units=16, fault=""):
    if fault == "build":
        raise RuntimeError("no such layer")
    return nn.Sequential(nn.Flatten(), nn.Linear(784, n_units), nn.ReLU(), nn.Linear(n_units, 10))
"""
CAREFUL_KERAS = """
import keras


def get_model(n_units=16):
    layers = [keras.layers.Flatten(), keras.layers.Dense(n_units), keras.layers.BatchNormalization()]
    layers += [keras.layers.Activation("relu"), keras.layers.Dropout(0.1), keras.layers.Dense(10, activation="softmax")]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers])
"""
CAREFUL_TORCH = """
from torch import nn


def get_model(n_units=16):
    hidden = [nn.Linear(784, n_units), nn.BatchNorm1d(n_units), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(n_units, 10))
"""

NETWORKS = {
    "dense": Network(DENSE, CAREFUL_DENSE, ".npz"),
    "torch": Network(TORCH, CAREFUL_TORCH, ".pt"),
    "keras": Network(KERAS, CAREFUL_KERAS, ".keras"),
}
_MARKS = {"torch": [pytest.mark.needs("torch"), pytest.mark.proof], "keras": [pytest.mark.keras, pytest.mark.proof]}


def networks(*names: str) -> list[Any]:
    """Return values of a parameter `network`; those that take seconds to start are for proofs."""
    return [pytest.param(NETWORKS[name], id=name, marks=_MARKS.get(name, [])) for name in names]


def trained(*names: str) -> pytest.MarkDecorator:
    """Make a test train these networks, in place of those of the fixture `network`."""
    return pytest.mark.parametrize("network", networks(*names))
