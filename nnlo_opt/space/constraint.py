"""A user's constraint: `def feasible(parameters) -> bool`, and what is known of it where the function is not.

The function lives in the user's module, so only a process that has executed the module can ask it: the search process,
or a trainer rank for a model module's own space. The others hold the plain half: name, fingerprint, and a point that
it accepts.
"""

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.space.values import Value, plain, thawed

#: what a module calls the function
CONSTRAINT_NAME = "feasible"


@dataclass(frozen=True, slots=True)
class Constraint:
    """Which points may be tried. Two are the same when their fingerprints are."""

    #: SHA-256 of the source of the function and of what it names of its module
    sha256: str
    #: the file or module with the function
    source: str = field(compare=False)
    #: a point that it accepts: the middle of the space if it does; None until it was looked for
    example: dict[str, Value] | None = field(default=None, compare=False)
    #: None where the module was not executed
    function: Callable[[dict[str, Value]], Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, function: Any, source: str) -> "Constraint":
        """The constraint of a module's `feasible`; ConfigurationError unless it is a function of one argument."""
        if not isinstance(function, FunctionType) or not _takes_one(function):
            raise ConfigurationError(
                f"`{CONSTRAINT_NAME}` of {source} must be a function of one argument, the parameters. "
                f"Received: {function!r}. Write it as `def {CONSTRAINT_NAME}(parameters):`."
            )
        return cls(sha256=fingerprint(function), source=source, function=function)

    def accepts(self, point: dict[str, Value]) -> bool:
        """Whether `point` may be tried; ConfigurationError, with the point, if the function cannot say so."""
        if self.function is None:
            raise ValueError("A constraint can be asked only where the module of the search space was executed.")
        try:
            # A copy, so that nothing it does to the point or to a list in it stays.
            answer = self.function({name: thawed(value) for name, value in point.items()})
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
            raise ConfigurationError(
                f"`{CONSTRAINT_NAME}` of {self.source}{self._line(error)} must return True or False for every point. "
                f"Received: {what} at {point}. A parameter whose condition does not hold is not in the point."
            ) from error
        answer = plain(answer)
        if not isinstance(answer, bool):
            raise ConfigurationError(
                f"`{CONSTRAINT_NAME}` of {self.source} must return True or False for every point. "
                f"Received: {answer!r} at {point}. Return a comparison, or bool(...) of it."
            )
        return answer

    def _line(self, error: BaseException) -> str:
        path = self.function.__code__.co_filename if isinstance(self.function, FunctionType) else ""
        trace, line = error.__traceback__, None
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == path else line
            trace = trace.tb_next
        return f", line {line}," if line else ""

    def to_json(self) -> dict[str, Any]:
        """The plain half."""
        return {"sha256": self.sha256, "source": self.source, "example": self.example}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Constraint":
        """Rebuild what `to_json` wrote; ConfigurationError when `data` is no such thing."""
        if not isinstance(data, dict) or not {"sha256", "source", "example"} <= data.keys():
            raise ConfigurationError(f"A constraint must be written as `to_json` writes it. Received: {data!r}.")
        return cls(sha256=data["sha256"], source=data["source"], example=data["example"])

    def __str__(self) -> str:
        return f"`{CONSTRAINT_NAME}` {self.sha256[:8]}"


def fingerprint(function: FunctionType) -> str:
    """SHA-256 of a function: its source without comments and layout, and the same of what it names of its module.

    Of its module count functions and plain values (a limit that is written above it); modules and classes do not.
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
    except (OSError, TypeError):  # made by exec, say
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


def _takes_one(function: FunctionType) -> bool:
    try:
        inspect.signature(function).bind({})
    except TypeError:
        return False
    return True
