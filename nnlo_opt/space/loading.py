"""Search spaces out of users' Python modules: our dimensions or scikit-optimize's, without importing the latter.

A module is executed here, and it may import anything: call this in a short-lived process, never in a coordinator or
master.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.space.constraint import CONSTRAINT_NAME, Constraint
from nnlo_opt.space.fixing import fix
from nnlo_opt.space.parameters import KINDS, Categorical, Integer, Parameter, Real
from nnlo_opt.space.space import Space
from nnlo_opt.user_files import spec_of

#: the list of this name is meant when a module has several; the first that is there
PREFERRED_NAMES = ("parameter_range", "space", "search_space")
#: functions of a model module that may carry the list as an attribute
_MODEL_FUNCTIONS = ("get_model", "objective")
_KIND_NAMES = ", ".join(kind.__name__ for kind in KINDS)


def load_space(source: str, fixed: Mapping[str, str] | None = None) -> Space:
    """Load the space of a Python file (`search_spaces/mnist.py`) or of a module (`search_spaces.mnist`).

    The module's one list of dimensions is taken, whatever its name, else `get_model.parameter_range`; its function
    `feasible`, if there is one, is the constraint. `fixed` are values by name, as text. ConfigurationError when there
    is no such file or module, when it cannot be executed, or has no list, or several of which none has a name of
    `PREFERRED_NAMES`; and as `finish_space`.
    """
    module = _load_module(source)
    space = space_from_dimensions(_find_dimensions(module, source), source)
    return finish_space(space, getattr(module, CONSTRAINT_NAME, None), source, fixed)


def finish_space(space: Space, feasible: Any, source: str, fixed: Mapping[str, str] | None = None) -> Space:
    """`space` with the values in `fixed` and the constraint `feasible` (None: without one) of the module `source`.

    ConfigurationError for values it cannot have, and for a constraint that is no function or accepts too little.
    """
    if fixed:
        space = fix(space, fixed)
    return space if feasible is None else space.constrained(Constraint.of(feasible, source))


def load_constraint(source: str) -> Constraint:
    """The constraint of a module that has one; ConfigurationError as `load_space`."""
    return Constraint.of(getattr(_load_module(source), CONSTRAINT_NAME, None), source)


def space_from_dimensions(dimensions: Any, source: str) -> Space:
    """The space of a list of parameters, ours or scikit-optimize's; `source` says where it is from.

    ConfigurationError, naming `source`, for anything else in the list, for a dimension without a name, and for whatever
    our parameters refuse.
    """
    if isinstance(dimensions, Space):
        return dimensions
    dimensions = getattr(dimensions, "dimensions", dimensions)  # scikit-optimize's own Space
    if isinstance(dimensions, (str, dict)) or not isinstance(dimensions, Iterable):
        raise ConfigurationError(
            f"The search space of {source} must be a list of parameters, Real and others. Received: {dimensions!r}. "
            "Write it as [Real(0, 0.5, name=...), ...]."
        )
    try:
        return Space(_parameter(dimension) for dimension in dimensions)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from error


def _parameter(dimension: Any) -> Parameter:
    if isinstance(dimension, KINDS):
        return dimension
    kind = _kind(dimension)
    if kind is None:
        raise ConfigurationError(
            f"Every entry of a search space must be one of {_KIND_NAMES}. Received: {dimension!r}. "
            "Write it as one of these, with a name."
        )
    name = dimension.name or ""
    if kind == "Categorical":
        if getattr(dimension, "prior", None) is not None:
            raise ConfigurationError(
                f"The categories of parameter `{name}` must be equally likely. Received: the weights "
                f"{dimension.prior}. Leave `prior` out."
            )
        return Categorical(dimension.categories, name=name)
    return (Integer if kind == "Integer" else Real)(dimension.low, dimension.high, dimension.prior, name=name)


def _kind(dimension: Any) -> str | None:
    """Which of our classes a dimension of scikit-optimize stands for, known by the names of its classes."""
    names = {base.__name__ for base in type(dimension).__mro__}
    wanted = {"Real": ("low", "high", "prior"), "Integer": ("low", "high", "prior"), "Categorical": ("categories",)}
    for kind, attributes in wanted.items():
        if kind in names and all(hasattr(dimension, attribute) for attribute in (*attributes, "name")):
            return kind
    return None


def _find_dimensions(module: ModuleType, source: str) -> Any:
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    for name in PREFERRED_NAMES:
        # Not checked further: a list of this name is meant to be the space, and what is wrong in it is to be said.
        if isinstance(public.get(name), (list, tuple)) or _is_space(public.get(name)):
            return public[name]
    found = {name: value for name, value in public.items() if _is_dimension_list(value) or _is_space(value)}
    different = {id(value) for value in found.values()}
    if len(different) == 1:
        return next(iter(found.values()))
    if len(different) > 1:
        names = ", ".join(f"`{name}`" for name in found)
        raise ConfigurationError(
            f"{source} must have one search space. Received: {names}. Name the one that counts `{PREFERRED_NAMES[0]}`."
        )
    for name in _MODEL_FUNCTIONS:
        if hasattr(public.get(name), "parameter_range"):
            return public[name].parameter_range
    raise ConfigurationError(
        f"{source} must define a search space: a list of {_KIND_NAMES}. Received: a module without "
        f"one. Add `{PREFERRED_NAMES[0]} = [...]`, or `get_model.parameter_range = [...]`."
    )


def _is_dimension_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(_is_dimension(item) for item in value)


def _is_dimension(value: Any) -> bool:
    return isinstance(value, KINDS) or _kind(value) is not None


def _is_space(value: Any) -> bool:
    return isinstance(value, Space) or (type(value).__name__ == "Space" and hasattr(value, "dimensions"))


def _load_module(source: str) -> ModuleType:
    if source.endswith(".py") or os.sep in source:
        return _load_file(Path(source), source)
    with _searched_first(Path.cwd()):
        try:
            found = importlib.util.find_spec(source)
        except (ImportError, ValueError):
            found = None
        except Exception as error:  # a parent package is executed to find the module in it
            raise _cannot_execute(source, error, "") from error
        if found is None:
            raise ConfigurationError(
                f"A search space must be a Python file or a module that can be imported. Received: {source!r}. "
                "Give the path of a file that ends in .py, or correct the module's name."
            )
        try:
            return importlib.import_module(source)
        except (Exception, SystemExit) as error:
            raise _cannot_execute(source, error, found.origin or "") from error


def _load_file(path: Path, source: str) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(
            f"A search space must be a Python file or a module that can be imported. Received: {source!r}, which "
            "is not a file. Correct the path."
        )
    path = path.resolve()
    # A name of its own: a user's `numpy.py` must not be taken for numpy, nor one file for another of the same stem.
    name = f"_space_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = spec_of(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(
            f"The file of a search space must end in .py. Received: {source!r}. Rename it, or correct the path."
        )
    module = importlib.util.module_from_spec(spec)
    with _searched_first(path.parent):
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise _cannot_execute(source, error, str(path)) from error
    return module


@contextmanager
def _searched_first(directory: Path) -> Iterator[None]:
    """Let imports see `directory` first, so that a module finds its neighbours."""
    entry = str(directory)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _cannot_execute(source: str, error: BaseException, path: str) -> ConfigurationError:
    """One sentence: what was raised, and at which line of the user's own file."""
    if isinstance(error, SyntaxError):
        line = error.lineno
    else:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = lines[-1] if lines else None
    where = f", line {line}" if line is not None else ""
    if isinstance(error, ConfigurationError):  # our own Real and the like already speak to the user
        return ConfigurationError(f"{source}{where}: {error}")
    what = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return ConfigurationError(f"{source}{where} cannot be executed. {type(error).__name__}: {what}")
