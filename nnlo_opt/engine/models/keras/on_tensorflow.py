"""Keras on TensorFlow: each computation is a concrete function, traced once for all batch sizes."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from nnlo_opt.core.base.pulse import PULSE, SLOW
from nnlo_opt.core.models.layout import Layout
from nnlo_opt.engine.models.keras.graph import Batch, Gradient, KerasGraph, Vectors


def use_threads(n_threads: int) -> None:
    """Compute with `n_threads` threads; without effect if TensorFlow has computed before."""
    os.environ.setdefault("OMP_NUM_THREADS", str(n_threads))
    # TensorFlow needs oneDNN for convolutions with channels first, but on processors without AVX-512 uses it only with
    # this variable.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    import tensorflow as tf

    with suppress(RuntimeError):  # a user's module or a test has computed before, so the number of threads is fixed
        tf.config.threading.set_intra_op_parallelism_threads(n_threads)
        tf.config.threading.set_inter_op_parallelism_threads(n_threads)


class Engine:
    """Traced computations of one graph, by the function and the kind of batch.

    Args:
        graph: computation of the model.
        jit_compile: True to compile with XLA.
    """

    def __init__(self, graph: KerasGraph, jit_compile: bool) -> None:
        self._graph = graph
        self.own_counters: list[np.ndarray] = []
        self._jit_compile = jit_compile
        #: traced functions from flat arrays to flat tensors
        self._traced: dict[tuple[Any, ...], Callable[[list[np.ndarray]], list[Any]]] = {}

    def gradient(self, vectors: Vectors, batch: Batch) -> Gradient:
        sums, gradient, state, *others = self._call(self._gradient, vectors, batch)
        n_counters = len(vectors.counters)
        # TensorFlow may run out of memory only when the arrays are read.
        return Gradient(
            np.asarray(sums),
            np.asarray(gradient),
            np.asarray(state) if len(vectors.state) else vectors.state,
            [np.asarray(counter) for counter in others[:n_counters]],
            [np.asarray(state) for state in others[n_counters:]],
        )

    def figures(self, vectors: Vectors, batch: Batch) -> list[np.ndarray]:
        return [np.asarray(figure) for figure in self._call(self._figures, vectors, batch)]

    def outputs(self, vectors: Vectors, batch: Batch, model: Any) -> list[np.ndarray]:
        compute = partial(self._graph.outputs, split=split, model=model)
        return [np.asarray(output) for output in self._call(compute, vectors, batch, id(model))]

    def _call(self, function: Callable[..., Any], vectors: Vectors, batch: Batch, part: int = 0) -> list[Any]:
        # After a computation that evicted the CPU caches, `tf.nest.flatten` would take 17 microseconds.
        weights, state, counters = vectors
        x, y, sample_weight, loss_scale, states = batch
        arrays = [weights, state, *counters, *x, *y, *sample_weight, *loss_scale, *states]
        # A model that does not declare its shapes is traced again for every new shape.
        shapes = None if self._graph.sample_shapes and batch.y else batch.sample_shapes
        key = (part or function.__name__, len(sample_weight), shapes, *[array.dtype for array in arrays])
        traced = self._traced.get(key)
        if traced is None:
            PULSE.expect(SLOW)
            traced = self._traced[key] = self._trace(function, vectors, batch)
        return traced(arrays)

    def _trace(
        self, function: Callable[..., Any], vectors: Vectors, batch: Batch
    ) -> Callable[[list[np.ndarray]], list[Any]]:
        import tensorflow as tf

        def flat(*tensors: Any) -> list[Any]:
            return tf.nest.flatten(function(*tf.nest.pack_sequence_as((vectors, batch), tensors)))

        specs = [
            *(tf.TensorSpec(array.shape, array.dtype) for array in tf.nest.flatten(vectors)),
            *(tf.TensorSpec(shape, array.dtype) for array, shape in self._shapes(batch)),
            *(tf.TensorSpec([None], weight.dtype) for weight in batch.sample_weight),
            *(tf.TensorSpec([], scale.dtype) for scale in batch.loss_scale),
            *(tf.TensorSpec(state.shape, state.dtype) for state in batch.states),
        ]
        traced = tf.function(flat, input_signature=specs, autograph=False, jit_compile=self._jit_compile)
        concrete = traced.get_concrete_function()
        if self._jit_compile:
            return lambda arrays: concrete(*arrays)
        dtypes, captured = [tensor.dtype for tensor in concrete.outputs], concrete.captured_inputs
        # TensorFlow's own handling of the arguments takes longer than the computation of a small model. A model may
        # hold tensors itself: tables of lookups, or what was computed while it was built.
        return lambda arrays: tf.raw_ops.StatefulPartitionedCall(args=[*arrays, *captured], Tout=dtypes, f=concrete)

    def _shapes(self, batch: Batch) -> Iterator[tuple[np.ndarray, list[int | None]]]:
        """Yield the arrays of samples and labels, each with its shape, None for any length."""
        declared = (self._graph.sample_shapes if batch.y else None) or [()] * (len(batch.x) + len(batch.y))
        for array, shape in zip((*batch.x, *batch.y), declared, strict=True):
            lengths = zip_longest(array.shape[1:], shape[: array.ndim - 1], fillvalue=0)
            yield array, [None, *(None if known is None else n for n, known in lengths)]

    def _gradient(self, vectors: Vectors, batch: Batch) -> tuple[Any, ...]:
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(vectors.weights)
            loss, sums, scope, outputs = self._graph.forward(vectors, batch, split)
        # The gradient of the split of the vector is one concatenation, with zeros for unused weights.
        gradient = tape.gradient(loss, vectors.weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return sums, gradient, *self._graph.moved(scope), self._graph.states_after(outputs, batch)

    def _figures(self, vectors: Vectors, batch: Batch) -> Any:
        return self._graph.evaluate(vectors, batch, split)


def split(vector: Any, layout: Layout) -> list[Any]:
    """Return the arrays of a flat tensor as tensors."""
    import tensorflow as tf

    if not layout.specs:
        return []
    parts = tf.split(vector, [spec.size for spec in layout.specs])
    return [tf.reshape(part, spec.shape) for part, spec in zip(parts, layout.specs, strict=True)]
