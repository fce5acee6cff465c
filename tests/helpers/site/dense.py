"""A framework for the ranks of tests: networks of dense layers in NumPy, which are there at once.

A model module that imports it is trained by the drivers as one of Keras or torch is; `sitecustomize` makes it known.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.models.adapter import Metrics
from nnlo_opt.core.models.layout import FloatVector, Layout, WeightSpec
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.losses import LossTerm, Output, figures_of
from tests.helpers.linear_model import NumpyAdapter

NOUN = "a dense network"
SUFFIX = ".npz"
RULES = losses

#: of a batch normalisation: what the state keeps of itself, and what is added to a variance
_MOMENTUM, _EPSILON = np.float32(0.9), np.float32(1e-3)
_rng = np.random.default_rng(0)


class Net:
    """A hidden layer of ReLUs and a softmax; `forward` may be overridden to do more before a batch is computed.

    `normalises`: batch normalisation before the ReLUs; `dropout`: the share of hidden units that a batch leaves out.
    """

    def __init__(self, n_units: int, n_in: int = 784, n_out: int = 10, **options: Any) -> None:
        self.shape = (n_in, n_units, n_out)
        self.normalises: bool = options.pop("normalises", False)
        self.dropout: float = options.pop("dropout", 0.0)
        assert not options, options
        self.seed = int(_rng.integers(2**31))
        self.kernels = [_glorot(n_in, n_units), _glorot(n_units, n_out)]

    def forward(self, x: NDArray) -> NDArray:
        """The features of a batch, flat, as they are computed with."""
        return x


def _glorot(n_in: int, n_out: int) -> NDArray[np.float32]:
    limit = math.sqrt(6 / (n_in + n_out))
    return _rng.uniform(-limit, limit, size=(n_in, n_out)).astype(np.float32)


class DenseAdapter(NumpyAdapter):
    """The adapter of a `Net`; labels are one-hot, or class numbers under a sparse loss."""

    def __init__(self, net: Net, terms: Sequence[LossTerm]) -> None:
        (term,) = terms
        if term.loss not in ("categorical_crossentropy", "sparse_categorical_crossentropy"):
            raise ConfigurationError(f"A dense network must have a categorical cross-entropy. Received: {term.loss}.")
        self._net, self._sparse = net, term.loss.startswith("sparse")
        self.figures = figures_of(terms)
        n_in, n_units, n_out = net.shape
        specs = [WeightSpec("kernel", (n_in, n_units)), WeightSpec("bias", (n_units,))]
        specs += [WeightSpec("gamma", (n_units,)), WeightSpec("beta", (n_units,))]
        specs += [WeightSpec("kernel_out", (n_units, n_out)), WeightSpec("bias_out", (n_out,))]
        layout, zeros, ones = Layout(tuple(specs)), np.zeros(n_units), np.ones(n_units)
        weights = np.empty(layout.n_weights, np.float32)
        layout.gather([net.kernels[0], zeros, ones, zeros, net.kernels[1], np.zeros(n_out)], weights)
        # The state is the running mean and variance of the hidden units; the number of batches seeds the next dropout.
        state = np.concatenate([zeros, ones]) if net.normalises else np.empty(0)
        super().__init__(layout, weights, state.astype(np.float32))

    def synced_model(self) -> Net:
        """Return the network, which then has the weights as `weights`."""
        self._net.weights = self._weights.copy()
        return self._net

    def gradient(self, x: NDArray, y: NDArray, out: FloatVector, sample_weight: NDArray | None = None) -> Metrics:
        kernel, bias, gamma, beta, kernel_out, bias_out = self.layout.views(self._weights)
        of_kernel, of_bias, of_gamma, of_beta, of_kernel_out, of_bias_out = self.layout.views(out)
        x = self._net.forward(x.reshape(len(x), -1))
        linear = x @ kernel + bias
        if self._net.normalises:
            mean, variance = linear.mean(axis=0), linear.var(axis=0)
            self._state *= _MOMENTUM
            self._state += (1 - _MOMENTUM) * np.concatenate([mean, variance])
            scale = 1 / np.sqrt(variance + _EPSILON)
            normal = (linear - mean) * scale
        else:
            normal = linear
        before = normal * gamma + beta
        kept = self._kept(before.shape)
        hidden = np.maximum(before, 0) * kept
        self._n_batches += 1
        logits = hidden @ kernel_out + bias_out
        metrics, slope = self._measure(logits, y, sample_weight)
        slope /= len(x)
        of_kernel_out[:], of_bias_out[:] = hidden.T @ slope, slope.sum(axis=0)
        of_before = (slope @ kernel_out.T) * kept * (before > 0)
        of_gamma[:], of_beta[:] = (of_before * normal).sum(axis=0), of_before.sum(axis=0)
        of_linear = of_before * gamma
        if self._net.normalises:
            centred = of_linear - of_linear.mean(axis=0) - normal * (of_linear * normal).mean(axis=0)
            of_linear = centred * scale
        of_kernel[:], of_bias[:] = x.T @ of_linear, of_linear.sum(axis=0)
        return metrics

    def evaluate(self, x: NDArray, y: NDArray, sample_weight: NDArray | None = None) -> Metrics:
        kernel, bias, gamma, beta, kernel_out, bias_out = self.layout.views(self._weights)
        linear = self._net.forward(x.reshape(len(x), -1)) @ kernel + bias
        if self._net.normalises:
            mean, variance = np.split(self._state, 2)
            linear = (linear - mean) / np.sqrt(variance + _EPSILON)
        logits = np.maximum(linear * gamma + beta, 0) @ kernel_out + bias_out
        return self._measure(logits, y, sample_weight)[0]

    def save(self, path: Path) -> None:
        """Write the weights by their names, and the state."""
        buffer = BytesIO()
        views = self.layout.views(self._weights)
        arrays = {spec.name: view for spec, view in zip(self.layout.specs, views, strict=True)}
        np.savez(buffer, **arrays, state=self._state)
        atomic_write(path, buffer.getvalue())

    def release(self) -> None:
        """Nothing is held."""

    def _kept(self, shape: tuple[int, ...]) -> NDArray[np.float32] | np.float32:
        share = self._net.dropout
        if not share:
            return np.float32(1)
        rng = np.random.default_rng([self._net.seed, self._n_batches])
        return ((rng.random(shape) >= share) / (1 - share)).astype(np.float32)

    def _measure(self, logits: NDArray, y: NDArray, weights: NDArray | None) -> tuple[Metrics, NDArray]:
        """The metrics of a batch, and the slope of the loss of each sample."""
        classes = y.reshape(-1).astype(int) if self._sparse else None
        wanted = np.eye(self._net.shape[2], dtype=np.float32)[classes] if classes is not None else y
        logits = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(logits)
        total = exponentials.sum(axis=1, keepdims=True)
        sample_losses = -(wanted * (logits - np.log(total))).sum(axis=1)
        slope = exponentials / total - wanted
        if weights is not None:
            sample_losses, slope = sample_losses * weights, slope * weights[:, None]
        right = logits.argmax(axis=1) == wanted.argmax(axis=1)
        sums = {"loss": float(sample_losses.sum(dtype=np.float64)), "acc": float(right.sum())}
        return Metrics(len(y), sums), slope


# ---------------------------------------------------------------- the framework


def import_framework(n_threads: int, *, quiet: bool = True, backend: str | None = None) -> None:
    """Do nothing: NumPy is there."""


def set_seed(seed: int) -> None:
    """Make the initial weights of the next networks repeatable."""
    global _rng  # noqa: PLW0603  (as frameworks have one)
    _rng = np.random.default_rng(seed)


def is_model(value: object) -> bool:
    """Return True for a network of this module."""
    return isinstance(value, Net)


@contextmanager
def building(custom_objects: Mapping[str, Any], dtype_policy: Any | None) -> Iterator[None]:
    """Do nothing around `get_model`."""
    yield


def describe_outputs(model: Net, feature_shape: Any) -> list[Output]:
    """Return the softmax; ConfigurationError if it cannot take such samples."""
    if math.prod(feature_shape) != model.shape[0]:
        raise ConfigurationError(f"A dense network takes {model.shape[0]} features. Received: {feature_shape}.")
    return [Output("softmax", (model.shape[2],), "softmax")]


def adapter(model: Net, terms: Sequence[LossTerm], *, jit_compile: bool = False) -> DenseAdapter:
    """Return the adapter of a network."""
    return DenseAdapter(model, terms)


def forget_models() -> None:
    """Do nothing: no model is remembered."""
