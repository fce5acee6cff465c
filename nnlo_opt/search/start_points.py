"""Points that a user wants to be tried first."""

import ast
from collections.abc import Sequence
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.base import History, SearchAlgorithm
from nnlo_opt.search.random import may_be_tried
from nnlo_opt.space.space import Point, Space
from nnlo_opt.space.values import thawed


class StartPointSearch:
    """Suggests `points` first, each once and in their order, and then the suggestions of `algorithm`."""

    def __init__(self, algorithm: SearchAlgorithm, points: Sequence[Point]) -> None:
        self._algorithm = algorithm
        self._points = points

    def suggest(self, history: History) -> Point | None:
        for point in self._points:
            if may_be_tried(point, history):
                return {name: thawed(value) for name, value in point.items()}
        return self._algorithm.suggest(history)


def check_start_points(space: Space, points: Sequence[Point]) -> list[Point]:
    """Return `points` with their values in the order of the space, without repetitions.

    Raises:
        ConfigurationError: if a point lies outside the space or its constraint refuses it.
    """
    checked: dict[Any, Point] = {}
    for point in points:
        ordered = {name: point[name] for name in space.names if name in point}
        unknown = [name for name in point if name not in space.names]
        if unknown:
            raise _refusal(f"`{unknown[0]}`, which is no parameter", f"its parameters are {', '.join(space.names)}")
        if not space.contains(ordered):
            for name, value in ordered.items():
                if not space[name].contains(value):
                    raise _refusal(f"{name}={value}", f"it must be in {space[name]}")
            missing = [name for name in space.names if name not in ordered]
            raise _refusal(_text(ordered), f"give {', '.join(missing)} too" if missing else "correct it")
        if not space.is_feasible(ordered):
            raise _refusal(_text(ordered), "the constraint of the space refuses it")
        checked.setdefault(space.key(ordered), ordered)
    return list(checked.values())


def parse_start_point(text: str) -> dict[str, Any]:
    """Return the point that `name=value,name=value` describes.

    A value is a Python literal, else a string. Commas inside brackets and quotes belong to the value.

    Raises:
        ValueError: for any other text, or if a name occurs twice.
    """
    point: dict[str, Any] = {}
    for part in _split(text):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or name.strip() in point:
            raise ValueError(text)
        try:
            point[name.strip()] = thawed(ast.literal_eval(value.strip()))
        except (ValueError, SyntaxError):
            point[name.strip()] = value.strip()
    return point


def _split(text: str) -> list[str]:
    """Return the parts of `text` between its commas, except commas inside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        depth += (character in "([{") - (character in ")]}") if not quote else 0
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _refusal(received: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        f"A point of `--start-point` must be a point of the search space. Received: {received}; {remedy}."
    )


def _text(point: Point) -> str:
    return ",".join(f"{name}={value}" for name, value in point.items())
