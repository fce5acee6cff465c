"""Interface of a trainer rank to its framework, and choice of the framework for a model.

A framework is a module with the functions of `Framework`. It is imported only after it was chosen.
"""

import ast
import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import regular
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Shapes
from nnlo_opt.core.models.adapter import FrameworkAdapter
from nnlo_opt.engine.loading import installed
from nnlo_opt.engine.models.losses import LossRules, LossTerm, Output

#: values of `--backend` with their modules; the first is the default for a model that does not imply one
FRAMEWORKS: dict[str, str] = {
    "keras": "nnlo_opt.engine.models.keras.framework",
    "torch": "nnlo_opt.engine.models.torch.framework",
}
#: framework by the suffix of model files that are not Python modules
_OF_SUFFIX = {
    **dict.fromkeys((".json", ".keras", ".h5", ".hdf5"), "keras"),
    **dict.fromkeys((".pt", ".pth", ".torch"), "torch"),
}
#: framework by the first of these packages that a model module imports
_OF_PACKAGE = {"keras": "keras", "tensorflow": "keras", "torch": "torch"}
#: packages that take seconds to import, and must be imported after the settings of `import_framework`
PACKAGES = frozenset({*_OF_PACKAGE, "jax"})


class Framework(Protocol):
    """The functions that a trainer rank needs from a framework, which is a module with these functions.

    >>> framework_named("torch").NOUN
    'a torch module'

    Raises:
        ConfigurationError: the function does not support the model.
    """

    #: noun for the return value of `get_model`
    NOUN: str

    #: suffix of the files that `ModelAdapter.save` writes
    SUFFIX: str

    #: losses that the framework knows
    RULES: LossRules

    def import_framework(self, n_threads: int, *, quiet: bool = True, backend: str | None = None) -> None:
        """Import the framework; called once, before anything else imports it.

        Args:
            n_threads: threads for computing.
            quiet: True to suppress startup messages.
            backend: backend of Keras; None for the value of KERAS_BACKEND.
        """

    def set_seed(self, seed: int) -> None:
        """Seed all generators, so that initial weights and dropout of the next models are reproducible."""

    def is_model(self, value: object) -> bool:
        """Return True if `value` is a model of this framework; False if the framework is not imported."""

    def building(self, custom_objects: Mapping[str, Any], dtype_policy: Any | None) -> AbstractContextManager[None]:
        """Return the context for calling `get_model`, with the custom objects and the dtype policy of its module."""

    def describe_outputs(self, model: Any, feature_shape: Shapes) -> list[Output]:
        """Return the outputs for samples of this shape; build the model if it has no weights yet.

        Raises:
            ConfigurationError: if the model does not accept samples of this shape.
        """

    def adapter(self, model: Any, terms: Sequence[LossTerm], *, jit_compile: bool = False) -> FrameworkAdapter:
        """Return an adapter for training the built model on `terms`, one for each output."""

    def save_mean(self, models: Sequence[Any], weights: Sequence[float], path: Path) -> None:
        """Save one model that averages the outputs of `models` with these weights; the file can be loaded without code.

        Raises:
            ConfigurationError: if one of the models cannot be saved that way.
        """

    def forget_models(self) -> None:
        """Free every model that is no longer referenced, including a model whose building has failed."""


def framework_named(name: str) -> Framework:
    """Return the framework for a value of `--backend`, NAME or NAME@PACKAGE (`engine.loading.installed`)."""
    if installed.is_installed(name):
        return cast(Framework, installed.load(installed.FRAMEWORKS, name))
    if name not in FRAMEWORKS:
        raise ConfigurationError(f"`{spelled('backend')}` must be one of {', '.join(FRAMEWORKS)}. Received: {name!r}.")
    return cast(Framework, importlib.import_module(FRAMEWORKS[name]))


def framework_for(source: Path, backend: str | None = None) -> Framework:
    """Return the framework for the model file `source`: `backend` if given, else by the file's suffix or text."""
    return framework_named(framework_name(source, backend))


def framework_name(source: Path, backend: str | None = None) -> str:
    """Return the name of the framework for the model file `source`, see `framework_for`."""
    return backend or _OF_SUFFIX.get(source.suffix) or imported_in(source) or next(iter(FRAMEWORKS))


def framework_of(model: object, *others: Framework | None) -> Framework | None:
    """Return the imported framework to which `model` belongs, or one of `others`; None if it belongs to none."""
    ours = [sys.modules.get(module) for module in FRAMEWORKS.values()]
    for other in others:
        if other is not None and other not in ours and other.is_model(model):
            return other
    # The order matters: a Keras model on torch is also a torch module.
    frameworks = (framework_named(name) for name in FRAMEWORKS if name in sys.modules)
    return next((framework for framework in frameworks if framework.is_model(model)), None)


def imported_in(code: str | Path) -> str | None:
    """Return the framework that Python code imports anywhere, without executing the code; None if it imports none."""
    packages = {package for node in ast.walk(syntax_tree(code)) for package in packages_of(node)}
    return next((name for package, name in _OF_PACKAGE.items() if package in packages), None)


def packages_of(node: ast.AST) -> set[str]:
    """Return the packages that a statement imports; empty for anything but an import."""
    match node:
        case ast.Import():
            return {alias.name.split(".")[0] for alias in node.names}
        case ast.ImportFrom(module=str(module), level=0):
            return {module.split(".")[0]}
    return set()


def syntax_tree(code: str | Path) -> ast.Module:
    """Return the syntax tree of Python code (str) or of a file (Path); an empty tree if it cannot be parsed."""
    try:
        return _parsed(regular(code).read_bytes() if isinstance(code, Path) else code)
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
        return ast.Module([], [])


@lru_cache(maxsize=4)
def _parsed(code: str | bytes) -> ast.Module:
    """Return the syntax tree of Python code, which nobody changes; kept, because a script may make many searches."""
    return ast.parse(code)
