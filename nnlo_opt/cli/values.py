"""Values of options out of their text, refused with the rule they break."""

import argparse
import ast
import math
import re
from collections.abc import Callable
from typing import Any

_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d)")


def whole(low: int = 1, unit: str = "") -> Callable[[str], int]:
    """A converter for whole numbers, at least `low`, of a `unit` that the refusal names."""
    return _number(int, f"a whole number{f' of {unit}' * bool(unit)}, at least {low}", low)


def finite(low: float | None = None, unit: str = "") -> Callable[[str], float]:
    """The same for finite numbers, which without `low` may be any."""
    least = "" if low is None else f", at least {low:g}"
    return _number(float, f"a finite number{f' of {unit}' * bool(unit)}{least}", low)


def share(text: str) -> float:
    """A converter for a number from 0 to 1."""
    return float(_number(float, "a number from 0 to 1", 0, 1)(text))


def positive(text: str) -> float:
    """A converter for a finite number above 0."""
    return float(_number(float, "a finite number above 0", math.ulp(0.0))(text))


def _number(
    kind: type[int] | type[float], rule: str, low: float | None, high: float | None = None
) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
            sound = kind is int or math.isfinite(value)  # which has no answer for integers past the floats
        except ValueError:
            sound = False
        if not sound or (low is not None and value < low) or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"must be {rule}. Received: {text}.")
        return value

    return convert


def seconds(text: str) -> float:
    """A converter for a time above 0: seconds, or hours:minutes:seconds."""
    clock = _CLOCK.fullmatch(text.strip())
    try:
        value = 3600.0 * int(clock[1]) + 60 * int(clock[2]) + int(clock[3]) if clock else float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a time above 0, in seconds or as HH:MM:SS. Received: {text}.")
    return value


def dictionary(text: str) -> dict[str, Any]:
    """A converter for a dictionary of Python literals by name."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise argparse.ArgumentTypeError(f"must be a dictionary such as \"{{'momentum': 0.9}}\". Received: {text}.")
    return value
