"""What may vary: the kinds of parameter, one frozen value class for each, and what they all promise.

A parameter knows the values it allows and how to walk them: `from_unit` maps the unit interval onto them, so that
sampling, space-filling designs and surrogates need to know nothing else of priors and kinds.
"""

from typing import Any, Protocol

import numpy as np

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.space.choices import Categorical, Constant, Ordinal
from nnlo_opt.space.conditions import When
from nnlo_opt.space.ranges import Integer, Prior, Real
from nnlo_opt.space.values import Value

__all__ = [
    "KINDS",
    "Categorical",
    "Constant",
    "Integer",
    "Ordinal",
    "Parameter",
    "Prior",
    "Real",
    "Value",
    "When",
    "parameter_from_json",
]


class Parameter(Protocol):
    """One named axis of a search space."""

    @property
    def name(self) -> str: ...

    @property
    def condition(self) -> When | None:
        """Where the parameter is in a point; None: in every point."""
        ...

    @property
    def n_values(self) -> int | None:
        """How many values there are; None when they are continuous."""
        ...

    def contains(self, value: object) -> bool: ...

    def sample(self, rng: np.random.Generator) -> Value:
        """Draw one value by the prior."""
        ...

    def from_unit(self, unit: float) -> Value:
        """The value at the quantile `unit` (0 to 1, both allowed) of the prior."""
        ...

    def to_unit(self, value: object) -> float:
        """The quantile of `value`, 0 to 1: `from_unit(to_unit(value))` is `value`, but for rounding of a Real."""
        ...

    def value_at(self, index: int) -> Value:
        """Value number `index` (0 to `n_values` - 1); ValueError when continuous."""
        ...

    def index(self, value: object) -> int:
        """The number of `value`, so that `value_at` returns it; ValueError when continuous, or not allowed."""
        ...

    def key(self, value: object) -> int | float:
        """One number for each value: equal exactly when two values are the same; ValueError for one not allowed."""
        ...

    def to_json(self) -> dict[str, Any]: ...


#: every kind of parameter
KINDS = (Real, Integer, Categorical, Ordinal, Constant)


def parameter_from_json(data: dict[str, Any]) -> Parameter:
    """Rebuild what `to_json` wrote; ConfigurationError when `data` is no such thing."""
    try:
        kind, name = data["kind"], data["name"]
        condition = When.from_json(data.get("condition"))
        for numbers in (Real, Integer):
            if kind == numbers.KIND:
                step, likely = data.get("step"), data.get("likely")
                return numbers(
                    data["low"], data["high"], data["prior"], name=name, step=step, likely=likely, condition=condition
                )
        if kind == "categorical":
            return Categorical(data["categories"], name=name, condition=condition)
        if kind == "ordinal":
            return Ordinal(data["categories"], name=name, likely=data.get("likely"), condition=condition)
        if kind == "constant":
            return Constant(data["value"], name=name, condition=condition)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"A parameter must be written as `to_json` writes it. Received: {data!r} ({error!r})."
        ) from error
    kinds = ", ".join(f'"{known.KIND}"' for known in KINDS)
    raise ConfigurationError(f"The kind of a parameter must be one of {kinds}. Received: {kind!r}. Correct the entry.")
