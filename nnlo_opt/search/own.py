"""Search algorithm or pruner of one's own: an object in a script, or a search algorithm by `FILE.py:CLASS`."""

import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.base import History, SearchAlgorithm
from nnlo_opt.search.pruning import Pruner
from nnlo_opt.space.constraint import fingerprint
from nnlo_opt.space.space import Point, Space
from nnlo_opt.space.values import plain
from nnlo_opt.user_files import load_module

#: characters of a fingerprint that a name shows
_SHOWN = 12
_RULE = "A search algorithm of one's own must be FILE.py:CLASS"


@dataclass(frozen=True, slots=True)
class OwnParts:
    """Objects that a script has given in the place of names; None for a name."""

    algorithm: SearchAlgorithm | None = None
    pruner: Pruner | None = None


def is_own(name: str) -> bool:
    """Return True if `name` is FILE.py:CLASS, not the name of an algorithm of this package."""
    return ".py:" in name


def fingerprinted(name: str) -> str:
    """Return the name of a search algorithm for the journal: FILE.py:CLASS with the fingerprint of the file."""
    if not is_own(name):
        return name
    path = Path(_parts(name)[0])
    return f"{name} ({hashlib.sha256(path.read_bytes()).hexdigest()[:_SHOWN]})" if path.is_file() else name


def name_of(own: object) -> str:
    """Return the name of an object for the journal: its class, with a fingerprint of its code and its plain values."""
    values = {name: value for name, value in getattr(own, "__dict__", {}).items() if _is_plain(value)}
    text = "".join([*_functions(type(own)), repr(sorted(values.items()))])
    return f"{type(own).__qualname__} ({hashlib.sha256(text.encode()).hexdigest()[:_SHOWN]})"


def check_own(parts: OwnParts) -> None:
    """Raise ConfigurationError if an object lacks a method of its interface."""
    if parts.algorithm is not None:
        _check_method(parts.algorithm, "suggest", ("history",), "search algorithm")
    if parts.pruner is not None:
        _check_method(parts.pruner, "decide", ("trial", "fold", "epoch", "reports"), "pruner")
        if not isinstance(parts.pruner, Pruner) or parts.pruner.pauses:
            raise ConfigurationError(
                "A pruner of one's own must be a `nnlo_opt.search.pruning.Pruner` that does not pause trials. "
                f"Received: {parts.pruner!r}. Inherit from this class, and answer `Verdict.GO_ON` or `Verdict.PRUNE`."
            )


def own_search(algorithm: str | SearchAlgorithm, space: Space, seed: int) -> SearchAlgorithm:
    """Return an algorithm whose points are checked: an object, or FILE.py:CLASS, which is made by CLASS(space, seed).

    Raises:
        ConfigurationError: there is no such class, it cannot be made, or it lacks `suggest`.
    """
    if not isinstance(algorithm, str):
        return CheckedSearch(algorithm, space, type(algorithm).__qualname__)
    source, name = _parts(algorithm)
    maker: Callable[[Space, int], SearchAlgorithm] | None = getattr(load_module(source, _RULE), name, None)
    if not callable(maker):
        raise ConfigurationError(f"{_RULE}. Received: {algorithm}, and the file has no such class; check the name.")
    try:
        made = maker(space, seed)
    except TypeError as error:
        raise ConfigurationError(
            f"A search algorithm is made by `{name}(space, seed)`. Received: {algorithm}, {error}. Let `__init__` take "
            "these two."
        ) from error
    check_own(OwnParts(algorithm=made))
    return CheckedSearch(made, space, name)


class CheckedSearch:
    """A user's algorithm, whose points must lie in the space; other points end the search with a sentence."""

    def __init__(self, algorithm: SearchAlgorithm, space: Space, name: str) -> None:
        self._algorithm = algorithm
        self._space = space
        self._name = name

    def suggest(self, history: History) -> Point | None:
        point = self._algorithm.suggest(history)
        if point is None:
            return None
        if not isinstance(point, dict) or not self._space.contains(point):
            raise ConfigurationError(
                f"`{self._name}.suggest` must return a point of the search space as a dict, or None at its end. "
                f"Received: {point!r}. `history.space` has the parameters {', '.join(self._space.names)}."
            )
        return {name: plain(value) for name, value in point.items()}


def _parts(name: str) -> tuple[str, str]:
    source, _, kind = name.rpartition(":")
    return source, kind


def _check_method(own: object, name: str, arguments: tuple[str, ...], what: str) -> None:
    call = f"{name}({', '.join(arguments)})"
    try:
        inspect.signature(getattr(own, name)).bind(*arguments)
    except (AttributeError, TypeError, ValueError):
        raise ConfigurationError(
            f"A {what} must be an object with a method `{call}`. Received: {own!r}. Give one, or a name."
        ) from None


def _functions(kind: type) -> Iterator[str]:
    """Yield the fingerprints of the methods of a class, and of the classes of a user that it inherits from."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in ("builtins", "abc", "typing", "nnlo_opt"):
            yield from (fingerprint(value) for value in vars(base).values() if isinstance(value, FunctionType))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
