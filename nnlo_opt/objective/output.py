"""Lines of a script, in which it reports."""

import json
import math
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nnlo_opt.errors import ConfigurationError

#: environment variable with the name of the socket at which the search listens, without the zero byte before it
SOCKET = "NNLO_OPT_REPORTS"
GO_ON, STOP = b"1", b"0"


def report(epoch: int, value: float, *, checkpoint: bool = False, **figures: float) -> bool:
    """Report a value after an epoch, from a script that `--command` starts; return False if it is to stop now.

    Without a search the line is printed that a search would read from a script without this package. If the search has
    ended, the answer is False.

    Args:
        epoch: number of the epoch, from 1.
        value: by which trials are compared.
        checkpoint: every process of the trial has filled the folder `{save}` of its command, which is empty again when
            this function returns.
        figures: further numbers, for the results.

    >>> nnlo_opt.report(3, 0.21, accuracy=0.9)
    {"epoch": 3, "value": 0.21, "accuracy": 0.9}
    True

    Raises:
        TypeError: a value is no number, nor anything that `float` takes.
    """
    line: dict[str, Any] = {"epoch": epoch, "value": value, **figures} | ({"checkpoint": True} if checkpoint else {})
    text = json.dumps(line, default=float)
    if not (name := os.environ.get(SOCKET)):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        return True
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.connect(f"\0{name}")
            end.sendall(f"{text}\n".encode())
            return end.recv(1) == GO_ON
        except OSError:
            return False  # the search has ended


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a script about an epoch; what it says may be anything."""

    epoch: Any
    value: Any = None
    #: further numbers by name
    figures: dict[str, float] = field(default_factory=dict)
    #: True if the folder for a save is filled
    saves: bool = False


class Output:
    """Lines of a script, taken in one after another.

    Args:
        names: of the objectives; a result has one of them at least, or `value`.
        patterns: regular expressions of other reports than JSON, and of other results; None for none.

    Raises:
        ConfigurationError: a pattern is no regular expression, or lacks a group.
    """

    def __init__(self, names: Sequence[str], patterns: tuple[str | None, str | None]) -> None:
        self._names = ("value", *names)
        #: the last result, or else the last report; None before
        self.result: dict[str, Any] | None = None
        #: True once there was a result of its own
        self._is_final = False
        self._report = _compiled("--report-pattern", patterns[0], {"epoch", "value"})
        self._result = _compiled("--result-pattern", patterns[1], {self._names[-1]})

    def take(self, line: str) -> Report | None:
        """Return what a line reports; None if it is no report."""
        found = None
        if line.lstrip().startswith("{"):
            with suppress(ValueError):
                found = json.loads(line)
        elif match := (self._report and self._report.search(line)) or (self._result and self._result.search(line)):
            found = {name: _number(text) for name, text in match.groupdict().items()}
        return self._taken(found) if isinstance(found, dict) else None

    def _taken(self, found: Mapping[str, Any]) -> Report | None:
        name = next((name for name in self._names if name in found), "")
        if not name:
            return None
        epoch, figures = found.get("epoch"), {k: v for k, v in found.items() if k == name or _is_figure(k, v)}
        if epoch is None or not self._is_final:
            self.result, self._is_final = figures, epoch is None
        others = {k: v for k, v in figures.items() if k != name}
        return None if epoch is None else Report(epoch, found[name], others, found.get("checkpoint") is True)


def _compiled(option: str, pattern: str | None, needed: set[str]) -> re.Pattern[str] | None:
    try:
        found = None if pattern is None else re.compile(pattern)
        if found is not None and (missing := sorted(needed - {*found.groupindex})):
            raise re.error(f"without the group `(?P<{missing[0]}>…)`")
    except re.error as error:
        raise ConfigurationError(
            f"`{option}` must be a regular expression of Python with the groups {', '.join(sorted(needed))}. Received: "
            f"{pattern!r}, {error}. Correct it."
        ) from None
    return found


def _is_figure(name: str, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return is_number and name != "epoch"


def _number(text: str | None) -> Any:
    """Return the number in a text; the text if there is none."""
    with suppress(ValueError):
        return int(text) if text and text.isdecimal() else float(text or "")
    return text
