"""The seam between a trainer rank and its framework: what is asked of one, and which one a model needs.

A framework is a module with these functions. Nothing here imports one before it is chosen.
"""

import ast
import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models.adapter import ModelAdapter
from nnlo_opt.models.loss_terms import LossRules, LossTerm, Output
from nnlo_opt.trees import Shapes

#: what `--backend` may name, each with its module; a model that says nothing is one of the first
FRAMEWORKS: Mapping[str, str] = {
    "keras": "nnlo_opt.models.keras_model",
    "torch": "nnlo_opt.models.torch_module",
}
#: endings of model files that are no Python modules
_OF_SUFFIX = {".json": "keras", ".pt": "torch", ".pth": "torch", ".torch": "torch"}
#: packages that a model module imports, and what it then is; the first that fits
_OF_PACKAGE = {"keras": "keras", "tensorflow": "keras", "torch": "torch"}


class FrameworkAdapter(ModelAdapter, Protocol):
    """A model adapter that holds memory of its framework."""

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures in the metrics it returns."""
        ...

    def release(self) -> None:
        """Let go of the model and all that the framework remembers of it; the adapter is of no use after."""
        ...


class Framework(Protocol):
    """What a trainer rank asks of one framework."""

    @property
    def NOUN(self) -> str:
        """What `get_model` returns, in words."""
        ...

    @property
    def SUFFIX(self) -> str:
        """The ending of the files that `ModelAdapter.save` writes."""
        ...

    @property
    def RULES(self) -> LossRules:
        """The losses it knows."""
        ...

    def import_framework(self, n_threads: int, *, quiet: bool = True, backend: str | None = None) -> None:
        """Import it with `n_threads` threads; to be called once, before anything else imports it.

        `backend`: what Keras computes with, where it is Keras; None: what KERAS_BACKEND says.
        """
        ...

    def set_seed(self, seed: int) -> None:
        """Make what is built next repeatable: initial weights, and the seeds of dropout layers."""
        ...

    def is_model(self, value: object) -> bool:
        """Whether `value` is one of its models; False where it is not imported."""
        ...

    def building(self, custom_objects: Mapping[str, Any], dtype_policy: Any | None) -> AbstractContextManager[None]:
        """Around `get_model`: what its module wants to hold meanwhile; either may mean nothing here."""
        ...

    def describe_outputs(self, model: Any, feature_shape: Shapes) -> list[Output]:
        """The outputs for such samples; creates the weights of a model that waited for its input shape.

        Raises `ConfigurationError` where the model cannot take them.
        """
        ...

    def adapter(self, model: Any, terms: Sequence[LossTerm], *, jit_compile: bool = False) -> FrameworkAdapter:
        """The model, its weights created, ready to be trained on `terms`, one for each output."""
        ...

    def forget_models(self) -> None:
        """Let go of every model that nobody holds, also one whose building has failed."""
        ...


def framework_named(name: str) -> Framework:
    """The framework that `--backend` names."""
    if name not in FRAMEWORKS:
        raise ConfigurationError(f"`--backend` must be one of {', '.join(FRAMEWORKS)}. Received: {name!r}.")
    return cast(Framework, importlib.import_module(FRAMEWORKS[name]))


def framework_for(source: Path, backend: str | None = None) -> Framework:
    """The framework to import for the model file `source`: `backend`, else what the file's ending or text tells."""
    return framework_named(backend or _OF_SUFFIX.get(source.suffix) or _imported_by(source) or next(iter(FRAMEWORKS)))


def framework_of(model: object) -> Framework | None:
    """The framework that `model` is of; None if it is of none that is imported."""
    # In this order: a Keras model on torch is a torch module too.
    frameworks = (framework_named(name) for name in FRAMEWORKS if name in sys.modules)
    return next((framework for framework in frameworks if framework.is_model(model)), None)


def _imported_by(source: Path) -> str | None:
    try:
        return imported_in(source.read_bytes())
    except OSError:
        return None


def imported_in(code: str | bytes) -> str | None:
    """The framework that Python code imports, anywhere in it, without executing it; None if it does not tell."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    packages: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                packages.update(alias.name.split(".")[0] for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                packages.add(module.split(".")[0])
    return next((name for package, name in _OF_PACKAGE.items() if package in packages), None)
