"""The network that ranks train where the framework does not matter: in torch, which starts three times as fast."""

import importlib.util

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
#: with all that needs care: batch normalisation (float state), dropout (seed counters)
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
HAS_TORCH = importlib.util.find_spec("torch") is not None
FAST, CAREFUL = (TORCH, CAREFUL_TORCH) if HAS_TORCH else (KERAS, CAREFUL_KERAS)
#: whose epochs take half a second, to be killed in the middle of one
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
