"""The user's constraint, `def feasible(parameters) -> bool`, and its description as plain data.

The function is part of the user's module, so only processes that have imported the module can call it: the search
process, and for a model module's space the trainer ranks. Other processes have the plain data: source, fingerprint, and
an accepted point.
"""

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.user_code import describe, line_in, takes_arguments
from nnlo_opt.core.space.values import Value, plain

#: name of the function in a module
CONSTRAINT_NAME = "feasible"


def feasible_in(names: Mapping[str, Any]) -> Any:
    """Return `feasible` of a module, of its `get_model` or of its `objective`; None if there is none."""
    owners = (names.get("get_model"), names.get("objective"))
    found = (names.get(CONSTRAINT_NAME), *(getattr(owner, CONSTRAINT_NAME, None) for owner in owners))
    return next((function for function in found if function is not None), None)


@dataclass(frozen=True, slots=True)
class Constraint:
    """Constraint on the points to try; constraints with equal fingerprints are equal."""

    #: SHA-256 of the function's source, and of the functions and values of its module that it uses
    sha256: str
    #: file or module that defines the function
    source: str = field(compare=False)
    #: an accepted point, the middle of the space if possible; None until it has been searched for
    example: dict[str, Value] | None = field(default=None, compare=False)
    #: the function; None if this process has not imported the module
    function: Callable[[dict[str, Value]], Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, function: Any, source: str) -> "Constraint":
        """Return the constraint for a module's `feasible`; ConfigurationError unless it takes one argument."""
        if not isinstance(function, FunctionType) or not takes_arguments(function):
            raise ConfigurationError(
                f"`{CONSTRAINT_NAME}` of {source} must be a function of one argument, the parameters. "
                f"Received: {function!r}. Write it as `def {CONSTRAINT_NAME}(parameters):`."
            )
        return cls(sha256=fingerprint(function), source=source, function=function)

    def accepts(self, point: dict[str, Value]) -> bool:
        """Return True if `point` may be tried; ConfigurationError, quoting the point, if the function fails."""
        if self.function is None:
            raise ValueError("A constraint can be evaluated only after the module of the search space was executed.")
        try:
            # The function gets a copy and cannot change the point.
            answer = self.function(deepcopy(point))
        except Exception as error:
            line = line_in(Path(inspect.getfile(self.function)), error)
            where = f"{line}," if line else ""
            raise ConfigurationError(
                f"`{CONSTRAINT_NAME}` of {self.source}{where} must return True or False for every point. "
                f"Received: {describe(error)} at {point}. A parameter whose condition does not hold is not in the "
                "point."
            ) from error
        answer = plain(answer)
        if not isinstance(answer, bool):
            raise ConfigurationError(
                f"`{CONSTRAINT_NAME}` of {self.source} must return True or False for every point. "
                f"Received: {answer!r} at {point}. Return a comparison, or bool(...) of it."
            )
        return answer

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the function."""
        return {"sha256": self.sha256, "source": self.source, "example": self.example}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Constraint":
        """Return the constraint that `to_json` wrote; ConfigurationError if `data` has another form."""
        match data:
            case {"sha256": str(sha256), "source": str(source), "example": dict() | None as example}:
                return cls(sha256=sha256, source=source, example=example)
        raise ConfigurationError(f"A constraint must be in the form that `to_json` writes. Received: {data!r}.")

    def __str__(self) -> str:
        return f"`{CONSTRAINT_NAME}` {self.sha256[:8]}"


def fingerprint(function: FunctionType) -> str:
    """Return the SHA-256 of a function's source, without comments and layout, and of what it uses.

    These are functions and plain values of its module (for example a limit defined above it), not modules or classes.
    """
    parts = dict(_parts(function, {}))
    return hashlib.sha256(json.dumps([function.__qualname__, *sorted(parts.items())]).encode()).hexdigest()


def _parts(function: FunctionType, seen: dict[str, str]) -> Iterator[tuple[str, str]]:
    if function.__qualname__ in seen:
        return
    seen[function.__qualname__] = ""
    yield function.__qualname__, _source(function)
    for name in sorted(set(_names(function.__code__))):
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            yield from _parts(value, seen)
        elif name in function.__globals__ and _is_plain(value):
            yield name, repr(value)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(function: FunctionType) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):  # made by exec, for example
        return function.__code__.co_code.hex() + repr(function.__code__.co_consts)
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:  # a lambda in the middle of a statement
        return text


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
