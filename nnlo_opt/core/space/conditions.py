"""Conditions that decide whether a parameter is part of a point."""

import re
from dataclasses import dataclass
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, shown
from nnlo_opt.core.space.values import frozen, thawed


@dataclass(frozen=True, slots=True)
class When:
    """Makes a parameter conditional: it is part of a point only if `parent` has one of `values` there.

    >>> print(When("n_layers", 2, 3, 4))
    n_layers is 2 or 3 or 4

    The parent may be conditional itself. If it is absent from a point, so is the parameter.

    Args:
        parent: name of another parameter of the same space; it must have finitely many values.
        values: values of the parent, at least one.

    Raises:
        ConfigurationError: no parent or no value is given.
    """

    parent: str
    values: tuple[Any, ...]

    def __init__(self, parent: str, *values: Any) -> None:
        if not isinstance(parent, str) or not parent or not values:
            raise ConfigurationError(
                "A condition must name a parameter and at least one of its values. "
                f'Received: {", ".join(map(repr, (parent, *values)))}. Write it as When("optimizer", "sgd").'
            )
        if (inner := next((value for value in values if hasattr(value, "from_unit")), None)) is not None:
            given = ", ".join(repr(value) for value in (parent, *values) if value is not inner)
            form = f"{type(inner).__name__}(..., condition=When({given}))"
            raise ConfigurationError(
                "A condition is an argument of the parameter that depends on it. Received: "
                f"When({given}, {inner}). Write it as {form}."
            )
        if (many := next((value for value in values if isinstance(value, range | set | frozenset)), None)) is not None:
            spread = ", ".join(
                map(repr, (parent, *sorted(many, key=repr if isinstance(many, set | frozenset) else None)))
            )
            raise ConfigurationError(
                f"A condition must name its values separately. Received: {shown(many)}. Write it as When({spread})."
            )
        object.__setattr__(self, "parent", parent)
        object.__setattr__(self, "values", tuple(frozen(value, titled(parent)) for value in values))

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"parent": self.parent, "values": [thawed(value) for value in self.values]}

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> "When | None":
        """Return the condition that `to_json` wrote; None for None."""
        return None if data is None else cls(data["parent"], *data["values"])

    def __str__(self) -> str:
        return f"{self.parent} is {' or '.join(repr(thawed(value)) for value in self.values)}"


def titled(name: str, kind: str = "parameter") -> str:
    """Return a parameter's name for messages; it has none yet while its dictionary is built."""
    return f"{kind} `{name}`" if name else f"a {kind}"


def check_condition(condition: object, name: str) -> None:
    """Raise ConfigurationError unless `condition`, of the parameter `name`, is a When or None."""
    if condition is not None and not isinstance(condition, When):
        raise ConfigurationError(
            f"The condition of {titled(name)} must be a When. Received: {shown(condition)}. Write it as "
            f"{_meant(condition)}."
        )


#: `name == value`, as text
_EQUATION = re.compile(r"\s*(\w+)\s*==\s*(\S.*)")


def _meant(condition: Any) -> str:
    """Guess the condition that the user meant, as code."""
    if isinstance(condition, dict) and len(condition) == 1:
        condition = next(iter(condition.items()))
    if isinstance(condition, str) and (equation := _EQUATION.fullmatch(condition)):
        return f'When("{equation[1]}", {equation[2].strip()})'
    if isinstance(condition, list | tuple) and len(condition) == 2 and isinstance(condition[0], str):
        values = condition[1] if isinstance(condition[1], list | tuple | set) else [condition[1]]
        return f'When("{condition[0]}", {", ".join(map(repr, values))})'
    return 'When("optimizer", "sgd")'
