"""Model adapters in a few lines of NumPy, the in-memory counterparts of the adapters of frameworks."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.models.adapter import Metrics
from nnlo_opt.core.models.layout import FloatVector, Layout, WeightSpec


class NumpyAdapter:
    """Weights, float state and number of trained batches of a model in NumPy; a subclass computes with them.

    Args:
        layout: of the weights.
        weights: initial weights (n_weights,) float32.
        state: initial float state (n_state,) float32.
    """

    trains_itself = False

    def __init__(self, layout: Layout, weights: FloatVector, state: FloatVector) -> None:
        self.layout = layout
        self.n_weights, self.n_state = len(weights), len(state)
        self._weights = self._own = weights
        self._state = state
        self._n_batches = 0

    def read_weights(self, out: FloatVector) -> None:
        out[:] = self._weights

    def write_weights(self, vector: FloatVector) -> None:
        self._own[:] = vector
        self._weights = self._own

    def borrow_weights(self, vector: FloatVector) -> None:
        self._weights = vector

    def read_state(self, out: FloatVector) -> None:
        out[:] = self._state

    def write_state(self, vector: FloatVector) -> None:
        self._state[:] = vector

    def discrete_state(self) -> list[list[int]]:
        return [[self._n_batches]]

    def load_discrete_state(self, values: list[list[int]]) -> None:
        ((self._n_batches,),) = values


class LinearAdapter(NumpyAdapter):
    """Least squares: x (n, n_features) float32, y (n,) float32, prediction x @ kernel + bias.

    The loss is (prediction - y)^2 / 2, which has short gradients. `n_state` is 1: the running mean of the features, as
    a batch normalisation would keep it (momentum 0.9). The discrete state counts batches.

    Args:
        n_features: length of a sample.
        seed: seed of the initial weights.
    """

    def __init__(self, n_features: int, seed: int = 0) -> None:
        layout = Layout((WeightSpec("kernel", (n_features,)), WeightSpec("bias", (1,))))
        weights = np.random.default_rng(seed).normal(size=n_features + 1).astype(np.float32)
        super().__init__(layout, weights, np.zeros(1, np.float32))

    def gradient(self, x: NDArray, y: NDArray, out: FloatVector, sample_weight: NDArray | None = None) -> Metrics:
        residual = self._residual(x, y)
        weighted = residual if sample_weight is None else residual * sample_weight
        out[:-1] = (x * weighted[:, None]).mean(axis=0)
        out[-1] = weighted.mean()
        self._state += np.float32(0.1) * (x.mean() - self._state)
        self._n_batches += 1
        return _metrics(residual, sample_weight)

    def evaluate(self, x: NDArray, y: NDArray, sample_weight: NDArray | None = None) -> Metrics:
        return _metrics(self._residual(x, y), sample_weight)

    def save(self, path: Path) -> None:
        """Write weights and state as JSON."""
        atomic_write(path, json.dumps({"weights": self._weights.tolist(), "state": self._state.tolist()}))

    def _residual(self, x: NDArray, y: NDArray) -> NDArray:
        return (x * self._weights[:-1]).sum(axis=1) + self._weights[-1] - y


def _metrics(residual: NDArray, sample_weight: NDArray | None) -> Metrics:
    squares = np.square(residual, dtype=np.float64) * (1 if sample_weight is None else sample_weight)
    return Metrics(len(residual), {"loss": float(squares.sum() / 2)})
