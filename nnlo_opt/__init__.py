"""Hyperparameter optimization over MPI blocks.

`optimize` and `Study` search from Python, `load_run` reads a run, `MPIManager` trains. Names are imported on first use.
"""

import importlib
import sys
from typing import Any

from nnlo_opt.moved import FormerNames

__version__ = "0.1.0"

sys.meta_path.append(FormerNames)

#: name -> module below this package
_OF_API = {
    "Algo": "ancestors.manager.algo",
    **dict.fromkeys(("Data", "H5Data"), "ancestors.manager.data"),
    **dict.fromkeys(("MPIKFoldManager", "MPIManager"), "ancestors.manager.manager"),
    **dict.fromkeys(("ModelBuilder", "ModelFromJson"), "ancestors.manager.model"),
    "optimize": "app.api.optimize",
    **dict.fromkeys(("FrozenTrial", "Run", "SearchResult", "load_run"), "app.api.run"),
    "Study": "app.api.study",
    **dict.fromkeys(("RunningTrial", "TrialFold"), "engine.objective.rank"),
    "TrialCheckpoint": "engine.objective.checkpoint",
    "torch_process_group": "engine.objective.torch_group",
    "report": "engine.objective.output",
    **dict.fromkeys(
        ("ConfigurationError", "JournalError", "NnloError", "SearchWarning", "TrialError"), "core.base.errors"
    ),
    **dict.fromkeys(("Categorical", "Constant", "Integer", "Ordinal", "Real", "Space", "When"), "space"),
}

#: public modules, so that `nnlo_opt.space.Real` is found after `import nnlo_opt` alone
_DOORS = ("allreduce", "controller", "extend", "space")

__all__ = list(_OF_API)


def __getattr__(name: str) -> Any:
    if name in _DOORS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _OF_API:
        raise _absence(name, is_import=sys._getframe(1).f_code.co_name == "_handle_fromlist")
    from nnlo_opt.core.base.records import without_collection

    with without_collection():  # what is imported stays
        return getattr(importlib.import_module(f"{__name__}.{_OF_API[name]}"), name)


def _absence(name: str, *, is_import: bool) -> Exception:
    """Return the error for an unknown name.

    For `from nnlo_opt import NAME` with a name of another package it is an ImportError: Python would replace the
    message of an AttributeError.
    """
    other_names = importlib.import_module(f"{__name__}.engine.objective.other_names")
    error: AttributeError = other_names.absence(other_names.MODULE, name, sys.modules[__name__])
    is_theirs = name in other_names.OF_MODULE
    return ImportError(str(error), name=__name__) if is_import and is_theirs else error


def __dir__() -> list[str]:
    return [*globals(), *_OF_API, *_DOORS]
