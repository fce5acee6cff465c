"""Objectives by their signature: a user's function gets the arguments that it names."""

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from nnlo_opt.errors import ConfigurationError

#: arguments an objective may name, in the order in which a function of three other names gets them
ARGUMENTS = ("parameters", "comm", "report")


def objective_of(function: Callable[..., Any], source: str) -> Callable[[Any, Any, Any], Any]:
    """Return a function of (parameters, comm, report) that calls the user's `function` with the arguments it names.

    A single positional argument of any other name gets the parameters; three of other names get all three, in their
    order. An argument that has a default keeps it unless it is named `parameters`, `comm` or `report`.

    Args:
        source: where the function stands, for the refusal.

    Raises:
        ConfigurationError: the function takes something else, or is a coroutine.
    """
    if not callable(function) or inspect.iscoroutinefunction(function):
        what = "a coroutine (`async def`)" if callable(function) else repr(function)
        raise ConfigurationError(
            f"An objective must be a function that returns a figure of merit. Received: {what} in {source}."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return lambda parameters, comm, report: function(parameters)  # written in C
    taken = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    wanted = {p.name: p.name for p in taken if p.name in ARGUMENTS}
    others = [p.name for p in taken if p.name not in ARGUMENTS and p.default is p.empty]
    is_positional = all(p.kind is not p.KEYWORD_ONLY for p in taken if p.name in others)
    if len(others) == 1 and "parameters" not in wanted and is_positional:
        wanted[others[0]] = "parameters"
    elif len(others) == len(ARGUMENTS) and not wanted and is_positional:
        wanted = dict(zip(others, ARGUMENTS, strict=True))
    elif others or not wanted:
        raise ConfigurationError(
            "An objective must take `parameters`, and may take `comm` and `report`. Received: "
            f"{getattr(function, '__name__', 'a function')}{signature} in {source}. Write it as "
            "`def objective(parameters)` or `def objective(parameters, comm, report)`."
        )

    def call(parameters: Any, comm: Any, report: Any) -> Any:
        values = {"parameters": parameters, "comm": comm, "report": report}
        bound = inspect.BoundArguments(signature, OrderedDict((name, values[of]) for name, of in wanted.items()))
        return function(*bound.args, **bound.kwargs)

    return call
