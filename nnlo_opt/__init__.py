"""Hyperparameter optimization over MPI blocks.

`optimize` and `Study` search from Python, `load_run` looks at a run, `MPIManager` trains; all names below are imported
when they are used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# fmt: off
#: name -> module below this package
_OF_API = {
    "Algo": "api.algo", "Data": "api.data", "H5Data": "api.data", "MPIKFoldManager": "api.manager",
    "MPIManager": "api.manager", "ModelBuilder": "api.model", "ModelFromJson": "api.model",
    "SearchResult": "api.optimize", "Run": "api.run", "Study": "api.study", "load_run": "api.run",
    "optimize": "api.optimize",
    **dict.fromkeys(("Categorical", "Constant", "Integer", "Ordinal", "Real", "Space", "When"), "space"),
}
# fmt: on

__all__ = list(_OF_API)


def __getattr__(name: str) -> Any:
    if name not in _OF_API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_OF_API[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_OF_API]
