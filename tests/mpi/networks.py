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


def get_model(n_units=16):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, n_units), nn.ReLU(), nn.Linear(n_units, 10))
"""
FAST = KERAS if importlib.util.find_spec("torch") is None else TORCH
