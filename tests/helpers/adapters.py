"""What tests of adapters share: frameworks imported late, samples, and the vectors of an adapter."""

import importlib

import numpy as np

from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.engine.models.torch import framework as torch_module

N_FEATURES, N_CLASSES = 6, 3


class Late:
    """A package, imported at the first use: not when tests are collected but not run."""

    def __init__(self, name, framework):
        self._name, self._framework = name, framework

    def __getattr__(self, name):
        if name.startswith("_"):  # pytest asks every object of a module for such names while it collects
            raise AttributeError(name)
        self._framework.import_framework(1)
        return getattr(importlib.import_module(self._name), name)


keras, torch = Late("keras", keras_model), Late("torch", torch_module)


def module(forward, **parts):
    """A torch module of these parts; `forward(self, *inputs)`."""

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    Own.forward = forward
    return Own()


def samples(n, seed=0):
    """Features and class numbers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, N_FEATURES)).astype(np.float32)
    return x, rng.integers(N_CLASSES, size=n)


def images(n, seed=0):
    """The same with one-hot classes."""
    x, classes = samples(n, seed)
    return x, np.eye(N_CLASSES, dtype=np.float32)[classes]


def gradient(adapter, batch, weights=None):
    metrics = adapter.gradient(*batch, out := aligned_empty(adapter.n_weights), weights)
    return out, metrics


def weights_of(adapter):
    adapter.read_weights(out := aligned_empty(adapter.n_weights))
    return out


def state_of(adapter):
    adapter.read_state(out := aligned_empty(adapter.n_state))
    return out
