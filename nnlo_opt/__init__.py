"""Hyperparameter optimization over MPI blocks.

`MPIManager` and the other names below train from one's own script; they are imported when they are asked for.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

#: name -> module below this package
_OF_API = {
    "Algo": "api.algo",
    "Data": "api.data",
    "H5Data": "api.data",
    "MPIKFoldManager": "api.manager",
    "MPIManager": "api.manager",
    "ModelBuilder": "api.model",
    "ModelFromJson": "api.model",
}

__all__ = ["Algo", "Data", "H5Data", "MPIKFoldManager", "MPIManager", "ModelBuilder", "ModelFromJson"]


def __getattr__(name: str) -> Any:
    if name not in _OF_API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_OF_API[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_OF_API]
