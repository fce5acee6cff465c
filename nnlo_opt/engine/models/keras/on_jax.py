"""Keras on JAX: each computation is compiled once for every batch size."""

import os
from typing import Any

import numpy as np

from nnlo_opt.core.base.pulse import PULSE, SLOW
from nnlo_opt.core.models.layout import Layout
from nnlo_opt.engine.models.keras.graph import Batch, Gradient, KerasGraph, Vectors


def use_threads(n_threads: int) -> None:
    """Compute with `n_threads` threads and share the GPU; without effect if JAX is imported already."""
    # XLA reads the number of cores from this variable.
    os.environ.setdefault("NPROC", str(n_threads))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


class Engine:
    """Compiled computations of one graph; JAX caches them by the shapes of the batches.

    Args:
        graph: computation of the model.
        jit_compile: without effect, because JAX always compiles.
    """

    def __init__(self, graph: KerasGraph, jit_compile: bool) -> None:
        import jax

        self._graph = graph
        self.own_counters: list[np.ndarray] = []
        self._compiled_gradient = jax.jit(jax.grad(self._objective, has_aux=True))
        self._compiled_figures = jax.jit(self._figures)
        #: compiled outputs of models by their `id`
        self._compiled_outputs: dict[int, Any] = {}

    def gradient(self, vectors: Vectors, batch: Batch) -> Gradient:
        gradient, (sums, state, counters, states) = self._compiled_gradient(*vectors, batch)
        own_counters, after = ([np.asarray(array) for array in arrays] for arrays in (counters, states))
        return Gradient(np.asarray(sums), np.asarray(gradient), np.asarray(state), own_counters, after)

    def figures(self, vectors: Vectors, batch: Batch) -> list[np.ndarray]:
        return [np.asarray(figure) for figure in self._compiled_figures(*vectors, batch)]

    def outputs(self, vectors: Vectors, batch: Batch, model: Any) -> list[np.ndarray]:
        import jax

        compiled = self._compiled_outputs.get(id(model))
        if compiled is None:
            PULSE.expect(SLOW)
            compiled = jax.jit(lambda vectors, batch: self._graph.outputs(vectors, batch, split, model))
            self._compiled_outputs[id(model)] = compiled
        return [np.asarray(output) for output in compiled(vectors, batch)]

    def _objective(self, weights: Any, state: Any, counters: Any, batch: Batch) -> tuple[Any, tuple[Any, ...]]:
        PULSE.expect(SLOW)  # runs during tracing, once for every batch size, before the slow compilation
        loss, sums, scope, outputs = self._graph.forward(Vectors(weights, state, counters), batch, split)
        return loss, (sums, *self._graph.moved(scope), self._graph.states_after(outputs, batch))

    def _figures(self, weights: Any, state: Any, counters: Any, batch: Batch) -> Any:
        PULSE.expect(SLOW)
        return self._graph.evaluate(Vectors(weights, state, counters), batch, split)


def split(vector: Any, layout: Layout) -> list[Any]:
    """Return the arrays of a flat vector; the gradients of the arrays come back as one concatenation."""
    import jax.numpy as jnp

    parts = jnp.split(vector, [part.stop for part in layout.slices[:-1]])
    return [part.reshape(spec.shape) for part, spec in zip(parts, layout.specs, strict=False)]
