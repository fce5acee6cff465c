"""Identity of an objective defined in a script, compared when its run is resumed.

It is the code: the source of the function, its default arguments, and the functions of its module that it calls, each
as a syntax tree, without comments and layout and equal in every version of Python. A plain value that it uses
(`LIMIT = 3` above it) is only noted: a change is reported, not refused. Values that may change during the search are
ignored: mutable ones, and names that the function or a function that it calls rebinds.
"""

import ast
import dis
import hashlib
import inspect
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any

from nnlo_opt.core.trials.identity import DIGEST

#: immutable types whose values are shown, and those of which only a digest is noted: texts may be secret or long
_SHOWN = (bool, int, float, complex, Decimal, Fraction, range)
_HIDDEN = (str, bytes, PurePath, date, time, timedelta, Enum)
#: most characters of a value to show
_MOST_CHARACTERS = 60
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, kw_only=True)
class Makeup:
    """Identity of a script's objective."""

    #: name of each function -> digest of its code and default arguments, the objective first; a difference is refused
    parts: Mapping[str, str]
    #: name of each plain value they use -> the value, or a digest of it; a difference is only reported
    notes: Mapping[str, str]


def makeup_of(objective: Callable[..., Any]) -> Makeup:
    """Return the identity of a function, or any other callable of a script."""
    walk = _Walk(_module_of(_innermost(objective)))
    name = _short(getattr(objective, "__qualname__", type(objective).__qualname__))
    walk.codes[name] = []
    walk.add(objective, name)
    return Makeup(
        parts={name: _digest(json.dumps(codes)) for name, codes in walk.codes.items()},
        notes={name: text for name, value in sorted(walk.values.items()) if (text := _note(value)) is not None},
    )


def _innermost(function: Any) -> Any:
    """Return the function inside `functools.partial` objects and decorators."""
    while (inner := function.func if isinstance(function, partial) else _wrapped(function)) is not None:
        function = inner
    return function


def _wrapped(function: Any) -> Any:
    """Return the function that a decorator wraps; None if there is none."""
    return inspect.getattr_static(function, "__wrapped__", None)


def _module_of(function: Any) -> str | None:
    """Return the module whose source defines a function; `__module__` is wrong for wrappers from other modules."""
    function = getattr(function, "__func__", function)
    return getattr(function, "__globals__", {}).get("__name__", getattr(function, "__module__", None))


class _Walk:
    """Collects the functions of one module that are reachable from an objective, each once."""

    def __init__(self, module: str | None) -> None:
        self._module = module
        self._seen = set[int]()
        self._rebound = set[str]()
        self._named = dict[str, Any]()
        #: name of a function -> code of all functions of that name
        self.codes = dict[str, list[Any]]()

    @property
    def values(self) -> dict[str, Any]:
        """Values by name that no collected function rebinds."""
        return {name: value for name, value in self._named.items() if name not in self._rebound}

    def add(self, value: Any, name: str = "") -> None:
        """Add the functions in a value; `name`: its name, if it is the objective itself."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, partial):
            given = [*value.args, *sorted(value.keywords.items())]
            self.codes.setdefault(name or "partial", []).append([*map(_note, given)])
            for part in (value.func, *value.args, *value.keywords.values()):
                self.add(part)
        elif isinstance(value, MethodType):
            self.add(value.__func__)
            self._add_object(value.__self__)
        elif isinstance(value, FunctionType):
            if _module_of(value) == self._module:
                self._add_function(value)
            self.add(_wrapped(value))
        elif (wrapped := _wrapped(value)) is not None:  # for example by `functools.cache`
            self.add(wrapped)
        elif isinstance(value, type):
            self._add_class(value)
        else:
            self._add_object(value)

    def _add_function(self, function: FunctionType) -> None:
        code, defaults = function.__code__, [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        own = [self._code(function), [*map(_note, defaults)]]
        self.codes.setdefault(_short(function.__qualname__), []).append(own)
        self._rebound |= _bound({"STORE_GLOBAL", "DELETE_GLOBAL"}, code)
        self._rebound |= _bound({"STORE_DEREF", "DELETE_DEREF"}, code) & {*code.co_freevars}
        found = {name: function.__globals__[name] for name in _globals(code) if name in function.__globals__}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                # A variable may hold different functions over time: add only definitions, under their own name.
                if getattr(value := cell.cell_contents, "__name__", name) == name:
                    found[name] = value
        self._named |= found
        for value in (*found.values(), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.add(value)

    def _add_class(self, kind: type) -> None:
        for base in kind.__mro__:
            for member in vars(base).values() if base.__module__ == self._module else ():
                function = getattr(member, "__func__", getattr(member, "fget", member))
                # Skip code generated by `dataclasses` and others: it follows from the rest.
                if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith("<string>"):
                    self.add(function)

    def _add_object(self, value: object) -> None:
        if type(value).__module__ == self._module:
            self.add(type(value))

    def _code(self, function: FunctionType) -> Any:
        """Return the syntax tree of a function as plain data; its bytecode if there is no source."""
        code = function.__code__
        try:
            lines, _ = inspect.findsource(function)
            found = [_tree(node) for node in _definitions("".join(lines), code)]
        except (OSError, TypeError, SyntaxError, ValueError, RecursionError):  # from `exec`, for example
            found = []
        return found or _instructions(code)


def _short(name: str) -> str:
    return name.rpartition("<locals>.")[2]


def _definitions(source: str, code: CodeType) -> list[_Definition]:
    """Return the definition of a function; all candidates if lambdas on one line cannot be told apart."""
    here = _definitions_by_line(source).get(code.co_firstlineno, [])
    found = [node for node in here if getattr(node, "name", "<lambda>") == code.co_name]
    return _enclosing(found, code) if len(found) > 1 else found


@lru_cache(maxsize=4)
def _definitions_by_line(source: str) -> Mapping[int, Sequence[_Definition]]:
    """Return first line -> functions that begin there; kept, because a script may make many searches."""
    found = defaultdict[int, list[_Definition]](list)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _Definition):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            found[min([node.lineno, *(decorator.lineno for decorator in decorators)])].append(node)
    return found


def _enclosing(found: Sequence[Any], code: CodeType) -> list[_Definition]:
    """Return the innermost of several lambdas that contains all of `code`; all if Python gives no positions."""
    places = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
    if not places:  # Python 3.12 gives none for a constant
        constant = [node for node in found if isinstance(node.body, ast.Constant) and node.body.value in code.co_consts]
        return constant or [*found]

    def holds(node: Any) -> bool:
        first, last = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return all(first <= place < last for place in places)

    return sorted(filter(holds, found), key=lambda node: (node.lineno, node.col_offset))[-1:]


def _tree(node: Any) -> Any:
    """Return a syntax tree as plain data, without positions and empty fields.

    Later versions of Python have additional fields, which are empty for code that earlier versions can read.
    """
    if isinstance(node, ast.Constant):
        return [repr(node.value)]
    if isinstance(node, ast.AST):
        fields = {name: _tree(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
        if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty strings
            fields["values"] = [value for value in fields.get("values", []) if value != ["''"]]
        return [type(node).__name__, fields]
    return [*map(_tree, node)] if isinstance(node, list) else node


def _instructions(code: CodeType) -> Any:
    constants = [_instructions(part) if isinstance(part, CodeType) else _text(part) for part in code.co_consts]
    return [code.co_code.hex(), code.co_names, constants]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all nested ones."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _bound(operations: Iterable[str], code: CodeType) -> set[str]:
    """Return the names used by these operations in a function and its nested functions."""
    return {
        str(step.argval) for part in _codes(code) for step in dis.get_instructions(part) if step.opname in operations
    }


def _globals(code: CodeType) -> list[str]:
    names = _bound({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}, code)
    return sorted(name for name in names if not name.endswith("__"))  # `__name__`, which every class reads


# ---------------------------------------------------------------- plain values


def _note(value: Any) -> str | None:
    """Return an immutable value as text, or a digest of it; None if it can change in place."""
    if type(value).__module__ == "numpy" and not hasattr(value, "__setitem__") and hasattr(value, "item"):
        value = value.item()  # NumPy's versions differ in how they print it
    if not _is_plain(value):
        return None
    try:
        text = _text(value)
    except Exception:  # a user's subclass of one of these types
        return None
    is_shown = _is_plain(value, _SHOWN) and len(text) <= _MOST_CHARACTERS
    return text if is_shown else f"{DIGEST}{_digest(text)[:12]}"


def _is_plain(value: Any, kinds: tuple[type, ...] = (*_SHOWN, *_HIDDEN)) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(_is_plain(item, kinds) for item in value)
    return value is None or isinstance(value, kinds)


def _text(value: Any) -> str:
    """Return a value as text: a set sorted, a number with too many digits in hexadecimal."""
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return hex(value) if type(value) is int and value.bit_length() > 10_000 else repr(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
