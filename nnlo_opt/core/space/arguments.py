"""Translates argument names of other packages into ours."""

import inspect
from collections.abc import Mapping
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean, shown

#: argument of other packages -> ours
_OTHER_ARGUMENTS = {
    "log": 'prior="log-uniform"',
    **dict.fromkeys(("when", "conditions"), 'condition=When("PARENT", VALUE)'),
    **dict.fromkeys(("q", "quantization_factor"), "step=..."),
    **dict.fromkeys(("default", "default_value"), "likely=..."),
    **dict.fromkeys(("choices", "items", "values"), "categories=[...]"),
    **dict.fromkeys(("min", "lower", "lb", "min_value"), "low=..."),
    **dict.fromkeys(("max", "upper", "ub", "max_value"), "high=..."),
    **dict.fromkeys(("sampling", "distribution", "scale"), 'prior="log-uniform"'),
}


def check_arguments(kind: Any, given: Mapping[str, object]) -> None:
    """Raise ConfigurationError, with our name if known, for an argument that parameters of this kind lack."""
    _, *known = inspect.signature(kind.__init__).parameters
    for name, value in given.items():
        if name not in known:
            ours = _OTHER_ARGUMENTS.get(name, "")
            hint = f" Write it as `{ours}`." if ours.partition("=")[0] in known else did_you_mean(name, known)
            raise ConfigurationError(
                f"The arguments of {kind.__name__} are {', '.join(known)}. Received: {name}={shown(value)}.{hint}"
            )
