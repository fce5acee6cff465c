"""State of Keras callbacks in a checkpoint: the plain data in their attributes, and never a pickle.

Functions, classes and paths in attributes are settings, which `get_callbacks` creates anew.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.plain_data import is_kept

_SETTINGS = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, np.ufunc, partial, type, PurePath)
#: attribute of Keras in which a comparison appears only with the first metric
_COMPARISON = "monitor_op"


def state_of(callback: Any) -> dict[str, dict[str, Any]]:
    """Return the attributes of a callback as plain data: its `values`, and the names of its `settings`.

    Raises:
        ConfigurationError: one of them is neither.
    """
    import keras

    own = {name: value for name, value in vars(callback).items() if name not in vars(keras.callbacks.Callback())}
    settings = {name: _name_of(value) for name, value in own.items() if isinstance(value, _SETTINGS)}
    values = {name: value for name, value in own.items() if name not in settings}
    for name, value in values.items():
        if not is_kept(value):
            raise ConfigurationError(
                "A callback must keep numbers, text, lists, dictionaries and arrays as attributes, for checkpoints. "
                f"Received: `{name}` of {type(callback).__name__}, {type(value).__name__}. Keep such data, or make the "
                "object where it is used."
            )
    return {"values": values, "settings": settings}


def load_state(callback: Any, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore the attributes of `state_of` in a callback that was made anew.

    Raises:
        ConfigurationError: it had another function in an attribute.
    """
    from keras import ops

    settings = dict(state["settings"])
    if comparison := settings.pop(_COMPARISON, None):
        callback.monitor_op = ops.less if comparison == "less" else ops.greater
    now = state_of(callback)["settings"]
    if changed := [name for name, setting in settings.items() if now.get(name) != setting]:
        raise ConfigurationError(
            f"A callback must keep its functions, as a checkpoint holds only data. Received: `{changed[0]}` of "
            f"{type(callback).__name__}, which has changed during the training. Choose the function by a text."
        )
    vars(callback).update(state["values"])


def _name_of(setting: Any) -> str:
    return str(getattr(setting, "__qualname__", None) or getattr(setting, "__name__", type(setting).__name__))
