"""Serialisation of plain data with arrays or tensors, without pickle.

| uint64 n_json | n_json bytes of JSON | the arrays, as `np.save` writes them, one after the other |
"""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.tensors import is_of, on_host

#: tag -> constructor from items
_MAKERS: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "dict": dict}


def packed(value: Any) -> NDArray[np.uint8]:
    """Return plain data as bytes, shape (n_bytes,). NumPy numbers become Python numbers, and any mapping a dict.

    Raises:
        ConfigurationError: it contains other data.
    """
    arrays = io.BytesIO()
    body = json.dumps(_described(value, arrays)).encode()
    return np.frombuffer(body + b"\n" + arrays.getvalue(), np.uint8)


def unpacked(data: NDArray[np.uint8]) -> Any:
    """Inverse of `packed`; tensors are on the CPU."""
    stream = io.BytesIO(data.tobytes())
    return _restored(json.loads(stream.readline()), stream)


def plain(value: Any) -> Any:
    """Return data with lists, tuples and dictionaries in place of their subclasses, which `packed` does not keep."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(plain, value))
    return value


def is_kept(value: Any) -> bool:
    """Return True if a value comes back from a checkpoint as it is."""
    if isinstance(value, dict | list | tuple):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return type(value) in (dict, list, tuple) and all(map(is_kept, parts))
    try:
        packed(value)
    except ConfigurationError:
        return False
    return True


def _described(value: Any, arrays: io.BytesIO) -> Any:
    """Return `value` as JSON, where each list begins with a tag for its type; write arrays to `arrays`."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [type(value).__name__, *(_described(one, arrays) for one in value)]
    if isinstance(value, dict):
        return ["dict", *(_described(pair, arrays) for pair in value.items())]
    tag, array = (str(value.dtype), on_host(value)) if is_of("torch", value) else ("array", value)
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OV":
        raise ConfigurationError(
            "Ranks exchange None, numbers, texts, lists, tuples, dicts, arrays of NumPy and tensors of torch, "
            f"because nothing is pickled. Received: {type(value).__name__}. Convert it to one of these."
        )
    np.save(arrays, array, allow_pickle=False)
    return [tag]


def _restored(body: Any, arrays: io.BytesIO) -> Any:
    if not isinstance(body, list):
        return body
    tag, *items = body
    if tag in _MAKERS:
        return _MAKERS[tag](_restored(item, arrays) for item in items)
    array = np.load(arrays, allow_pickle=False)
    if tag == "array":
        return array
    import torch

    return torch.from_numpy(array).to(getattr(torch, tag.removeprefix("torch.")))
