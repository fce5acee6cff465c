"""Values of options out of their text, refused with the rule they break."""

import argparse
import math
import re
from collections.abc import Callable
from typing import Any

_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d)")


def number(kind: type[int] | type[float], rule: str, low: float | None = None) -> Callable[[str], Any]:
    """A converter for finite numbers, at least `low`; `rule` says what they are."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
            sound = (kind is int or math.isfinite(value)) and (low is None or value >= low)
        except ValueError:
            sound = False
        if not sound:
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
