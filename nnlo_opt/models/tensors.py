"""Tensors of any framework as NumPy arrays, also inside of functions that a framework has traced."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.errors import ConfigurationError

#: classes of tensors by package
_CLASSES = {"tensorflow": ("Tensor", "Variable"), "torch": ("Tensor",), "jax": ("Array",)}


def _is_of(package: str, value: object) -> bool:
    """Return True if `value` is a tensor of a package; False if the package is not imported."""
    module = sys.modules.get(package)
    return module is not None and isinstance(value, tuple(getattr(module, name) for name in _CLASSES[package]))


def through(function: Callable[..., NDArray], tensor: Any, *more: Any, same_shape: bool = True) -> Any:
    """Return `function(tensor, *more)` as what `tensor` is; the function takes NumPy arrays and returns one.

    In a traced function the call becomes an operation of the graph, which is executed once in every step.

    Args:
        function: called with arrays; it may not change these.
        tensor: tensor of TensorFlow, torch or JAX, or anything that NumPy can make an array of.
        more: further arguments, tensors or numbers.
        same_shape: True if the result has the shape of `tensor`.

    Raises:
        ConfigurationError: the shape of the result differs in a function that JAX has traced.
    """
    if _is_of("tensorflow", tensor):
        import tensorflow as tf

        result = tf.numpy_function(function, [tensor, *more], tensor.dtype)
        result.set_shape(tensor.shape if same_shape else [None, *tensor.shape[1:]])
        return result
    if _is_of("torch", tensor):
        import torch

        plain = tensor.detach().cpu()
        # NumPy has no bfloat16.
        plain = plain.float() if plain.dtype == torch.bfloat16 else plain
        return torch.from_numpy(function(plain.numpy(), *more)).to(tensor.device, tensor.dtype)
    if _is_of("jax", tensor):
        return _through_jax(function, tensor, *more, same_shape=same_shape)
    return function(np.asarray(tensor), *more)


def _through_jax(function: Callable[..., NDArray], tensor: Any, *more: Any, same_shape: bool) -> Any:
    import jax
    from jax.experimental import io_callback

    if not isinstance(tensor, jax.core.Tracer):
        return jax.numpy.asarray(function(np.asarray(tensor), *more))
    if not same_shape:
        raise ConfigurationError(
            "`hvd.allgather` must be called outside of `jax.jit`, as the number of rows is known only when it runs. "
            "Received: an array that JAX traces."
        )

    def on_arrays(*arrays: Any) -> NDArray:
        return function(*map(np.asarray, arrays))

    return io_callback(on_arrays, jax.ShapeDtypeStruct(tensor.shape, tensor.dtype), tensor, *more, ordered=True)


def through_flat(function: Callable[..., NDArray], tensors: Sequence[Any], *more: Any) -> list[Any]:
    """Return what `function` makes of all numbers of the tensors of Keras's backend in one vector, in their shapes.

    The vector is float64 if a tensor is, else float32.
    """
    from keras import ops
    from keras.backend import standardize_dtype

    # A gradient of an embedding may be sparse.
    dense = [ops.convert_to_tensor(tensor) for tensor in tensors]
    dtypes = [standardize_dtype(tensor.dtype) for tensor in dense]
    dtype = "float64" if "float64" in dtypes else "float32"
    flat = ops.concatenate([ops.reshape(ops.cast(tensor, dtype), (-1,)) for tensor in dense])
    flat = through(function, flat, *more)
    ends = np.cumsum([int(np.prod(tensor.shape, dtype=int)) for tensor in dense])
    parts = zip([0, *ends[:-1]], ends, dense, dtypes, strict=True)
    return [ops.cast(ops.reshape(flat[start:end], tensor.shape), dtype) for start, end, tensor, dtype in parts]
