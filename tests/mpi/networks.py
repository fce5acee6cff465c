"""Networks that ranks train: in NumPy, which is there at once, and the same in torch and in Keras."""

from typing import Any, NamedTuple

import pytest


class Network(NamedTuple):
    """The text of model modules of one framework, all with `get_model`."""

    #: with faults to choose
    plain: str
    #: with all that needs care: batch normalisation (float state), dropout (seed counters)
    careful: str
    #: of a saved model
    suffix: str
    #: whose epochs take half a second, to be killed in the middle of one
    slow: str = ""


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
SLOW_DENSE = """
import time

from dense import Net
from nnlo_opt.space import Integer


class Slow(Net):
    def forward(self, x):
        time.sleep(0.05)
        return x


def get_model(n_units=16):
    return Slow(n_units)


get_model.parameter_range = [Integer(4, 64, name="n_units")]
"""
KERAS = """
import keras


def get_model(n_units=16, fault=""):
    if fault == "build":
        raise RuntimeError("no such layer")
    return keras.Sequential([
        keras.Input((28, 28, 1)),
        keras.layers.Flatten(),
        keras.layers.Rescaling(float("nan") if fault == "nan" else 1.0),
        keras.layers.Dense(n_units, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ])
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
    return keras.Sequential([
        keras.Input((28, 28, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(n_units),
        keras.layers.BatchNormalization(),
        keras.layers.Activation("relu"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(10, activation="softmax"),
    ])
"""
CAREFUL_TORCH = """
from torch import nn


def get_model(n_units=16):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, n_units),
        nn.BatchNorm1d(n_units),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(n_units, 10),
    )
"""
SLOW_TORCH = """
import time

import torch
from nnlo_opt.space import Integer


class Net(torch.nn.Module):
    def __init__(self, n_units):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(784, n_units), torch.nn.Linear(n_units, 10))

    def forward(self, x):
        time.sleep(0.05)
        return self.layers(x.flatten(1))


def get_model(n_units=16):
    return Net(n_units)


get_model.parameter_range = [Integer(4, 64, name="n_units")]
"""

NETWORKS = {
    "dense": Network(DENSE, CAREFUL_DENSE, ".npz", SLOW_DENSE),
    "torch": Network(TORCH, CAREFUL_TORCH, ".pt", SLOW_TORCH),
    "keras": Network(KERAS, CAREFUL_KERAS, ".keras"),
}
_MARKS = {"torch": [pytest.mark.needs("torch"), pytest.mark.proof], "keras": [pytest.mark.keras, pytest.mark.proof]}


def networks(*names: str) -> list[Any]:
    """Return values of a parameter `network`; those that take seconds to start are for proofs."""
    return [pytest.param(NETWORKS[name], id=name, marks=_MARKS.get(name, [])) for name in names]


def trained(*names: str) -> pytest.MarkDecorator:
    """Make a test train these networks, in place of those of the fixture `network`."""
    return pytest.mark.parametrize("network", networks(*names))
