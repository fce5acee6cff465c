"""Interface of parameters, with the kinds of parameters, each a frozen value class.

A parameter knows the values that it allows. `from_unit` maps the unit interval onto them, so that sampling, designs and
surrogates need no knowledge of priors and kinds.
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
    """Named axis of a search space."""

    @property
    def name(self) -> str: ...

    @property
    def condition(self) -> When | None:
        """Condition under which the parameter is in a point; None if it is in every point."""
        ...

    @property
    def n_values(self) -> int | None:
        """Number of values; None if the values are continuous."""
        ...

    def contains(self, value: object) -> bool: ...

    def sample(self, rng: np.random.Generator) -> Value:
        """Draw one value by the prior."""
        ...

    def from_unit(self, unit: float) -> Value:
        """Return the value at the quantile `unit` (0 to 1, both included) of the prior."""
        ...

    def to_unit(self, value: object) -> float:
        """Return the quantile of `value`, 0 to 1; `from_unit` returns `value` again, except for rounding of a Real."""
        ...

    def value_at(self, index: int) -> Value:
        """Return value number `index` (0 to `n_values` - 1); ValueError if the values are continuous."""
        ...

    def index(self, value: object) -> int:
        """Return the number of `value`; ValueError if the values are continuous or `value` is not allowed."""
        ...

    def key(self, value: object) -> int | float:
        """Return a number that is equal for two values if and only if they are the same; ValueError if not allowed."""
        ...

    def to_json(self) -> dict[str, Any]: ...


#: all kinds of parameters
KINDS = (Real, Integer, Categorical, Ordinal, Constant)


def parameter_from_json(data: dict[str, Any]) -> Parameter:
    """Return the parameter that `to_json` wrote; ConfigurationError if `data` has another form."""
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
