"""Output of a script, in which lines are reports or its result."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnlo_opt.errors import ConfigurationError

#: what a line of JSON begins with
_BRACE = "{"


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a script about an epoch; what it says may be anything."""

    epoch: Any
    value: Any
    #: further numbers by name
    figures: dict[str, float]
    #: True if the folder for a save is filled
    saves: bool = False


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns of lines of a script that prints no JSON; None: there is none.

    Raises:
        ConfigurationError: a text is no regular expression, or lacks a group.
    """

    report: str | None = None
    result: str | None = None

    def __post_init__(self) -> None:
        for option, text, needed in (
            ("--report-pattern", self.report, {"epoch", "value"}),
            ("--result-pattern", self.result, set[str]()),
        ):
            try:
                groups = {"value"} if text is None else {*re.compile(text).groupindex}
            except re.error as error:
                raise ConfigurationError(
                    f"`{option}` must be a regular expression of Python. Received: {text!r} ({error}). Correct it."
                ) from None
            if not groups or (text is not None and needed - groups):
                raise ConfigurationError(
                    f"`{option}` must have {'the groups `epoch` and' if needed else 'a group'} `value`. Received: "
                    f"{text!r}. Write `(?P<value>\\S+)` for the number."
                )


class Output:
    """Lines of a script, read one after another.

    Args:
        names: of the objectives; a result has one of them at least, or `value`.
        patterns: of other lines than JSON.
    """

    def __init__(self, names: Sequence[str], patterns: Patterns) -> None:
        self._names = ("value", *names)
        texts = (patterns.report, patterns.result)
        self._report, self._result = (None if text is None else re.compile(text) for text in texts)
        #: the last result, or else the last report; None before
        self.result: dict[str, Any] | None = None
        #: True once there was a result of its own
        self._is_final = False

    def take(self, line: str) -> Report | None:
        """Return what a line reports; None if it is no report."""
        if line.lstrip().startswith(_BRACE):
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if isinstance(found, dict):
                return self._of(found)
        if self._report is not None and (match := self._report.search(line)):
            return self._of({name: _number(text) for name, text in match.groupdict().items()})
        if self._result is not None and (match := self._result.search(line)):
            self._of({name: _number(text) for name, text in match.groupdict().items()} | {"epoch": None})
        return None

    def _of(self, found: Mapping[str, Any]) -> Report | None:
        name = next((name for name in self._names if name in found), None)
        if name is None:
            return None
        epoch, numbers = found.get("epoch"), {k: v for k, v in found.items() if k == name or _is_finite(v)}
        figures = {k: v for k, v in numbers.items() if k not in ("epoch", "checkpoint")}
        if epoch is None or not self._is_final:
            self.result, self._is_final = figures, epoch is None
        if epoch is None:
            return None
        others = {k: v for k, v in figures.items() if k != name}
        return Report(epoch, found[name], others, found.get("checkpoint") is True)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(text: str | None) -> Any:
    """Return the number in a text; the text if there is none."""
    for kind in (int, float):
        try:
            return kind(text or "")
        except ValueError:
            continue
    return text
