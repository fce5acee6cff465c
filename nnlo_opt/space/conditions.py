"""Conditions that decide whether a parameter is part of a point."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnlo_opt.errors import ConfigurationError, did_you_mean
from nnlo_opt.space.values import frozen, thawed

if TYPE_CHECKING:
    from nnlo_opt.space.parameters import Parameter


@dataclass(frozen=True, slots=True)
class When:
    """Condition that a parameter is in a point only if `parent` is in it with one of `values`.

    When("optimizer", "sgd")            # optimizer is sgd
    When("n_layers", 2, 3, 4)           # n_layers is one of these

    The parent may have a condition itself. A parameter is absent from every point from which its parent is absent.

    Args:
        parent: name of another parameter of the same space, with finitely many values.
        values: values of the parent, at least one.
    """

    parent: str
    values: tuple[Any, ...]

    def __init__(self, parent: str, *values: Any) -> None:
        if not isinstance(parent, str) or not parent or not values:
            raise ConfigurationError(
                "A condition must name a parameter and at least one of its values. "
                f'Received: {", ".join(map(repr, (parent, *values)))}. Write it as When("optimizer", "sgd").'
            )
        object.__setattr__(self, "parent", parent)
        object.__setattr__(self, "values", tuple(frozen(value, parent) for value in values))

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"parent": self.parent, "values": [thawed(value) for value in self.values]}

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> "When | None":
        """Return the condition that `to_json` wrote; None for None."""
        return None if data is None else cls(data["parent"], *data["values"])

    def __str__(self) -> str:
        return f"{self.parent} is {' or '.join(repr(thawed(value)) for value in self.values)}"


def check_condition(condition: object, name: str) -> None:
    """Raise ConfigurationError unless `condition`, of the parameter `name`, is a When or None."""
    if condition is not None and not isinstance(condition, When):
        raise ConfigurationError(
            f"The condition of parameter `{name}` must be a When. Received: {condition!r}. "
            'Write it as When("optimizer", "sgd").'
        )


def parents_first(parameters: "Sequence[Parameter]") -> tuple[int, ...]:
    """Return the rows of `parameters` with every parent before its dependents, and in their own order otherwise.

    Raises:
        ConfigurationError: if a condition names an unknown or continuous parameter or a value that the parameter cannot
            have, or if conditions form a circle.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    for parameter in parameters:
        if parameter.condition is not None:
            _check_parent(parameter.name, parameter.condition, by_name)
    rows = {parameter.name: row for row, parameter in enumerate(parameters)}
    order: dict[int, None] = {}
    for parameter in parameters:
        chain = [parameter.name]
        while (condition := by_name[chain[-1]].condition) is not None:
            if condition.parent in chain:
                names = (*chain[chain.index(condition.parent) :], condition.parent)
                circle = " under ".join(f"`{name}`" for name in names)
                raise ConfigurationError(
                    f"Conditions must not form a circle. Received: {circle}. Remove one of these conditions."
                )
            chain.append(condition.parent)
        order.update(dict.fromkeys(rows[name] for name in reversed(chain)))
    return tuple(order)


def _check_parent(name: str, condition: When, by_name: "dict[str, Parameter]") -> None:
    parent = by_name.get(condition.parent)
    if parent is None:
        hint = did_you_mean(condition.parent, by_name) or f" Its parameters: {', '.join(by_name)}."
        raise ConfigurationError(
            f"The condition of parameter `{name}` must name a parameter of the same search space. "
            f"Received: `{condition.parent}`.{hint}"
        )
    if parent.n_values is None:
        raise ConfigurationError(
            f"The condition of parameter `{name}` must be on a parameter of finitely many values. "
            f"Received: `{parent.name}`, a {parent}. Give it a `step`, or use another parameter."
        )
    for value in condition.values:
        if not parent.contains(thawed(value)):
            raise ConfigurationError(
                f"The condition of parameter `{name}` must name values that `{parent.name}` can have, in {parent}. "
                f"Received: {thawed(value)!r}. Correct the value."
            )
