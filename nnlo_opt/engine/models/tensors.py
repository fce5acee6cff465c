"""Calls NumPy code with tensors of any framework, also inside traced functions."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.models.layout import slices_of

#: classes of tensors by package
_CLASSES = {"tensorflow": ("Tensor", "Variable", "IndexedSlices"), "torch": ("Tensor",), "jax": ("Array",)}


def is_of(package: str, value: object) -> bool:
    """Return True if `value` is a tensor of a package; False if the package is not imported."""
    module = sys.modules.get(package)
    return module is not None and isinstance(value, tuple(getattr(module, name) for name in _CLASSES[package]))


def on_host(tensor: Any) -> np.ndarray:
    """Return a torch tensor as a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    plain = tensor.detach().to_dense().cpu()
    return (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()


def through(function: Callable[..., np.ndarray], tensor: Any, *more: Any, same_shape: bool = True) -> Any:
    """Return `function(tensor, *more)` in the type of `tensor`; the function takes and returns NumPy arrays.

    In a traced function the call becomes an operation of the graph, executed once per step.

    Args:
        function: called with arrays; it must not change these.
        tensor: tensor of TensorFlow, torch or JAX, or anything that NumPy can convert to an array.
        more: further arguments, tensors or numbers.
        same_shape: True if the result has the shape of `tensor`.

    Raises:
        ConfigurationError: the shape of the result differs in a function that JAX has traced.
    """
    if is_of("tensorflow", tensor):
        import tensorflow as tf

        tensor = tf.convert_to_tensor(tensor)
        if not tf.is_symbolic_tensor(tensor):
            return tf.convert_to_tensor(function(np.asarray(tensor.numpy()), *more))
        result = tf.numpy_function(function, [tensor, *more], tensor.dtype)
        result.set_shape(tensor.shape if same_shape else [None, *tensor.shape[1:]])
        return result
    if is_of("torch", tensor):
        import torch

        return torch.from_numpy(function(on_host(tensor), *more)).to(tensor.device, tensor.dtype)
    if is_of("jax", tensor):
        return _through_jax(function, tensor, *more, same_shape=same_shape)
    return function(np.asarray(tensor), *more)[()]  # [()] turns a 0-d array into a number


def _through_jax(function: Callable[..., np.ndarray], tensor: Any, *more: Any, same_shape: bool) -> Any:
    import jax
    from jax.experimental import io_callback

    if not isinstance(tensor, jax.core.Tracer):
        return jax.numpy.asarray(function(np.asarray(tensor), *more))
    if not same_shape:
        raise ConfigurationError(
            "`hvd.allgather` must be called outside of `jax.jit`, because the number of rows is known only when it "
            "runs. Received: an array that JAX traces."
        )

    def on_arrays(*arrays: Any) -> np.ndarray:
        return function(*map(np.asarray, arrays))

    return io_callback(on_arrays, jax.ShapeDtypeStruct(tensor.shape, tensor.dtype), tensor, *more, ordered=True)


def through_flat(function: Callable[..., np.ndarray], tensors: Sequence[Any], *more: Any) -> list[Any]:
    """Concatenate the tensors to one vector, apply `function`, and split the result to their shapes.

    The tensors are of torch or Keras's backend. The vector is float64 if any tensor is, else float32.
    """
    if is_of("torch", tensors[0]):
        import torch

        wide = torch.float64 if torch.float64 in {tensor.dtype for tensor in tensors} else torch.float32
        dense = [tensor.detach().to_dense() for tensor in tensors]
        flat = through(function, torch.cat([tensor.reshape(-1).to(wide) for tensor in dense]), *more)
        parts = flat.split([tensor.numel() for tensor in dense])
        return [part.reshape(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, dense, strict=True)]
    from keras import ops
    from keras.backend import standardize_dtype

    # A gradient of an embedding may be sparse.
    dense = [ops.convert_to_tensor(tensor) for tensor in tensors]
    dtypes = [standardize_dtype(tensor.dtype) for tensor in dense]
    dtype = "float64" if "float64" in dtypes else "float32"
    flat = ops.concatenate([ops.reshape(ops.cast(tensor, dtype), (-1,)) for tensor in dense])
    flat = through(function, flat, *more)
    parts = zip(slices_of(math.prod(tensor.shape) for tensor in dense), dense, dtypes, strict=True)
    return [ops.cast(ops.reshape(flat[part], tensor.shape), dtype) for part, tensor, dtype in parts]
