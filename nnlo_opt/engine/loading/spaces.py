"""Loading of search spaces from users' Python modules, with dimensions from this package or scikit-optimize.

scikit-optimize itself is not imported. The user's module is executed and may import anything: call these functions only
in a short-lived process, never in a coordinator or master.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, shown
from nnlo_opt.core.space.constraint import CONSTRAINT_NAME, Constraint, feasible_in
from nnlo_opt.core.space.entries import kind_of_dimension
from nnlo_opt.core.space.fixing import fix
from nnlo_opt.core.space.parameters import KINDS
from nnlo_opt.core.space.space import Space
from nnlo_opt.engine.loading.modules import load_module

#: preferred names if a module has several lists; the first existing one is used
PREFERRED_NAMES = ("parameter_range", "space", "search_space")
#: functions of a model module that may carry the list as an attribute
_MODEL_FUNCTIONS = ("get_model", "objective")
_KIND_NAMES = ", ".join(kind.__name__ for kind in KINDS)


def load_space(source: str, fixed: Mapping[str, str] | None = None) -> Space:
    """Return the space of a Python file (`search_spaces/mnist.py`) or of a module (`search_spaces.mnist`).

    The space is the module's only list of dimensions, under any name, else `get_model.parameter_range`. The constraint
    is the function `feasible` of the module, of `get_model` or of `objective`, unless the list is a Space with one.

    Args:
        source: path or module name.
        fixed: values of fixed parameters by name, as text.

    Raises:
        ConfigurationError: if the file or module does not exist or cannot be executed, if it has no list or several
            lists without a name of `PREFERRED_NAMES`; also as in `finish_space`.
    """
    module = _load_module(source)
    space = space_from_dimensions(_find_dimensions(module, source), source)
    return finish_space(space, feasible_in(vars(module)), source, fixed)


def finish_space(space: Space, feasible: Any, source: str, fixed: Mapping[str, str] | None = None) -> Space:
    """Return `space` with the fixed values and the constraint of the module `source`.

    Args:
        feasible: constraint function; None for none.
        fixed: values of fixed parameters by name, as text.

    Raises:
        ConfigurationError: if a parameter cannot have its fixed value, or if the constraint is not a function or
            accepts too few points.
    """
    constraint = _constraint(space, feasible, source)
    if fixed:
        space = fix(space, fixed)
    return space if constraint is None else Space(space.parameters, constraint)


def load_constraint(source: str) -> Constraint:
    """Return the constraint of a module that has one; ConfigurationError as in `load_space`."""
    module = _load_module(source)
    space, feasible = _find_dimensions(module, source), feasible_in(vars(module))
    return _constraint(space, feasible, source) or Constraint.of(feasible, source)


def _constraint(space: Any, feasible: Any, source: str) -> Constraint | None:
    """Return the constraint of `space`, or `feasible` as one; ConfigurationError if both exist."""
    own = space.constraint if isinstance(space, Space) else None
    if own is None:
        return None if feasible is None else Constraint.of(feasible, source)
    if feasible is not None:
        raise ConfigurationError(
            f"A search space has one constraint. Received: `{CONSTRAINT_NAME}` of {source}, and the `constraint` of "
            "its Space. Leave one of them out."
        )
    return replace(own, source=source, example=None)


def space_from_dimensions(dimensions: Any, source: str) -> Space:
    """Return the space of a list of parameters of this package or of scikit-optimize, read from `source`.

    Raises:
        ConfigurationError: naming `source`, if an entry is not a parameter, has no name, or has invalid arguments.
    """
    if isinstance(dimensions, Space):
        return dimensions
    dimensions = getattr(dimensions, "dimensions", dimensions)  # scikit-optimize's own Space
    if isinstance(dimensions, (str, dict)) or hasattr(dimensions, "shape") or not isinstance(dimensions, Iterable):
        lone = hasattr(dimensions, "from_unit") and not isinstance(dimensions, type)
        remedy = f'{{"NAME": {dimensions}}}' if lone else '[Real(0, 0.5, name="NAME"), ...]'
        raise ConfigurationError(
            f"The search space of {source} must be a list of parameters, for example Real. Received: "
            f"{dimensions if lone else shown(dimensions)}. Write it as `{remedy}`."
        )
    try:
        return Space(dimensions)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None


def _find_dimensions(module: ModuleType, source: str) -> Any:
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    for name in PREFERRED_NAMES:
        # Do not check the content here: a list of this name is meant to be the space, and its errors must be reported.
        if isinstance(public.get(name), (list, tuple)) or _is_space(public.get(name)):
            return public[name]
    found = {name: value for name, value in public.items() if _is_dimension_list(value) or _is_space(value)}
    different = {id(value) for value in found.values()}
    if len(different) == 1:
        return next(iter(found.values()))
    if len(different) > 1:
        names = ", ".join(f"`{name}`" for name in found)
        raise ConfigurationError(
            f"{source} must have one search space. Received: {names}. Rename the one to use to `{PREFERRED_NAMES[0]}`."
        )
    for name in _MODEL_FUNCTIONS:
        if hasattr(public.get(name), "parameter_range"):
            return public[name].parameter_range
    raise ConfigurationError(
        f"{source} must define a search space: a list of {_KIND_NAMES}. Received: a module without "
        f"one. Add `{PREFERRED_NAMES[0]} = [...]`, or `get_model.parameter_range = [...]`."
    )


def _is_dimension_list(value: Any) -> bool:
    entries = value if isinstance(value, (list, tuple)) else ()
    return bool(entries) and all(isinstance(entry, KINDS) or kind_of_dimension(entry) is not None for entry in entries)


def _is_space(value: Any) -> bool:
    return isinstance(value, Space) or (type(value).__name__ == "Space" and hasattr(value, "dimensions"))


def _load_module(source: str) -> ModuleType:
    """Return the module; a file is executed again, with its folder on the import path meanwhile."""
    before = [*sys.path]
    try:
        return load_module(source, "A search space must be a Python file or a module that can be imported")
    finally:
        sys.path[:] = before
