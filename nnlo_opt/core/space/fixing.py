"""Fixed parameters: `--fix name=value`."""

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.space.conditions import When
from nnlo_opt.core.space.parameters import Constant, Parameter, parameter_from_json
from nnlo_opt.core.space.space import Space, described, parents_first
from nnlo_opt.core.space.values import Value, thawed

#: parsers of a value, tried in order: Python (3, 'a', [1, 2]), JSON (true, null), a plain word
_READERS: tuple[Callable[[str], Any], ...] = (ast.literal_eval, json.loads, str)


def fix(space: Space, fixed: Mapping[str, str]) -> Space:
    """Return the space with each parameter in `fixed` reduced to the given value, which is text.

    A fixed parameter stays in the points, as a Constant. Parameters that can no longer be active are removed.

    Raises:
        ConfigurationError: an unknown name, a value that is not allowed, or a parameter that other fixed values make
            inactive.
    """
    values = {name: _read(space, name, written) for name, written in fixed.items()}
    kept: dict[str, Parameter] = {}
    for row in parents_first(space.parameters):
        parameter = space.parameters[row]
        condition = _left_of(parameter.condition, space, values, kept)
        if parameter.condition is not None and condition is None:
            if parameter.name in values:
                raise ConfigurationError(
                    f"`{fixing(parameter.name, fixed[parameter.name])}` must fix a parameter that is used. "
                    f"Received: {described(parameter)}, which another `{spelled('fix')}` excludes. Drop one of them."
                )
            continue
        if parameter.name in values:
            kept[parameter.name] = Constant(values[parameter.name], parameter.name, condition=condition)
        elif condition is None:
            kept[parameter.name] = parameter
        else:
            kept[parameter.name] = parameter_from_json(parameter.to_json() | {"condition": condition.to_json()})
    return Space(kept[name] for name in space.names if name in kept)


def fixing(name: str, value: str = "") -> str:
    """Return how a user fixes a parameter; without a value, how that begins."""
    return either(f"--fix {name}={value}", f'fix={{"{name}": {value or "..."}}}')


def _left_of(
    condition: When | None, space: Space, values: Mapping[str, Value], kept: Mapping[str, Parameter]
) -> When | None:
    """Return the part of a condition that remains; None if it can never hold or there is none."""
    if condition is None or condition.parent not in kept:
        return None
    if condition.parent not in values:
        return condition
    parent, value = space[condition.parent], values[condition.parent]
    wanted = {parent.key(thawed(one)) for one in condition.values}
    return When(condition.parent, value) if parent.key(value) in wanted else None


def value_of(parameter: Parameter, written: Any) -> Any:
    """Parse a parameter's value; if it is not an allowed value, return it unchanged."""
    for read in _READERS if isinstance(written, str) else (thawed,):
        try:
            value = read(written)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if parameter.contains(value):
            return float(value) if parameter.n_values is None else parameter.value_at(parameter.index(value))
    return written


def _read(space: Space, name: str, written: str) -> Value:
    if name not in space.names:
        hint = did_you_mean(name, space.names) or f" Its parameters: {', '.join(space.names)}."
        raise ConfigurationError(
            f"`{spelled('fix')}` must name a parameter of the search space. Received: {name!r}.{hint}"
        )
    parameter = space[name]
    value = value_of(parameter, written)
    if parameter.contains(value):
        return value
    raise ConfigurationError(
        f"`{fixing(name)}` must give a value that the parameter can have, in {parameter}. Received: {written!r}. "
        "Correct it, or change the search space."
    )
