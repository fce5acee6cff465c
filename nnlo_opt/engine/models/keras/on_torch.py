"""Keras on torch: every batch is computed directly, without tracing."""

from contextlib import suppress
from typing import Any

import numpy as np

from nnlo_opt.core.models.layout import Layout
from nnlo_opt.engine.models.keras.graph import Batch, Gradient, KerasGraph, Vectors


def use_threads(n_threads: int) -> None:
    """Compute with `n_threads` threads."""
    import torch

    torch.set_num_threads(n_threads)
    with suppress(RuntimeError):  # another module has computed before, so the number of these threads is fixed
        torch.set_num_interop_threads(n_threads)


class Engine:
    """Computations of one graph, without compilation.

    Args:
        graph: computation of the model.
        jit_compile: without effect, because Keras's code between torch's operations cannot be compiled.
    """

    def __init__(self, graph: KerasGraph, jit_compile: bool) -> None:
        import torch

        self._graph = graph
        #: seed and number of trained batches, because dropout layers draw from torch's own generator
        self.own_counters = [np.array([torch.initial_seed() % 2**62, 0])]

    def gradient(self, vectors: Vectors, batch: Batch) -> Gradient:
        import torch

        *counters, (seed, n_batches) = vectors.counters
        torch.manual_seed(int(seed + n_batches))
        tensors = _tensors(vectors._replace(counters=counters))
        tensors.weights.requires_grad_()
        given = _tensors(batch)
        loss, sums, scope, outputs = self._graph.forward(tensors, given, _split)
        (gradient,) = torch.autograd.grad(loss, [tensors.weights], allow_unused=True, materialize_grads=True)
        state, counters = self._graph.moved(scope)
        counters = [*map(_array, counters), np.array([seed, n_batches + 1])]
        with torch.no_grad():
            states = [*map(_array, self._graph.states_after(outputs, given))]
        return Gradient(_array(sums), _array(gradient), _array(state), counters, states)

    def figures(self, vectors: Vectors, batch: Batch) -> list[np.ndarray]:
        import torch

        tensors = _tensors(vectors._replace(counters=vectors.counters[:-1]))
        with torch.no_grad():
            return [*map(_array, self._graph.evaluate(tensors, _tensors(batch), _split))]

    def outputs(self, vectors: Vectors, batch: Batch, model: Any) -> list[np.ndarray]:
        import torch

        tensors = _tensors(vectors._replace(counters=vectors.counters[:-1]))
        with torch.no_grad():
            return [*map(_array, self._graph.outputs(tensors, _tensors(batch), _split, model))]


def _split(vector: Any, layout: Layout) -> list[Any]:
    """Return the arrays of a flat tensor, as views whose gradients come back as one concatenation."""
    parts = vector.split([spec.size for spec in layout.specs])
    return [part.reshape(spec.shape) for part, spec in zip(parts, layout.specs, strict=True)]


def _tensors(arrays: Any) -> Any:
    import keras

    return keras.tree.map_structure(keras.ops.convert_to_tensor, arrays)


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()
