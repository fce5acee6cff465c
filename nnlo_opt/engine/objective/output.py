"""Reports of a script: `report`, and the parser of a script's output."""

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

from nnlo_opt.core.base.errors import ConfigurationError, MisuseError
from nnlo_opt.core.training.stopping import canonical_metric
from nnlo_opt.core.trials.objectives import FIGURE
from nnlo_opt.engine.objective.signature import CALLED

#: environment variable with the name of the search's abstract socket, without the leading zero byte
SOCKET = "NNLO_OPT_REPORTS"
GO_ON, STOP = b"1", b"0"
#: longest line read as JSON, and length of the beginning that patterns see, in characters
MOST_READ, _MOST_MATCHED = 2**19, 2**16
_OPTIONS = "--report-pattern", "--result-pattern"
#: digits of an integer that always fits into a float
_MOST_DIGITS = 300
_NEW_LINE = re.compile(rb"[\r\n]+")


def report(epoch: int, value: float, *, checkpoint: bool = False, **figures: float) -> bool:
    """Report a value after an epoch, from a script started by `--command`; return False if it should stop now.

    Without a search it prints the line that a script without this package would print. If the search has ended, it
    returns False.

    Args:
        epoch: number of the epoch, from 1 or from 0.
        value: value to compare trials by.
        checkpoint: True if every process of the trial has written its checkpoint to the folder `{save}` of its command.
            The folder is empty again when this function returns.
        figures: further numbers for the results.

    >>> nnlo_opt.report(3, 0.21, accuracy=0.9)
    {"epoch": 3, "value": 0.21, "accuracy": 0.9}
    True

    Raises:
        TrialError: it is called in an objective, which has its own `report` argument.
        TypeError: a value cannot be converted to float.
        OverflowError: an integer is too large for a float.
    """
    for number in (value, *figures.values()):
        float(number)
    line: dict[str, Any] = {"epoch": epoch, "value": value, **figures} | ({"checkpoint": True} if checkpoint else {})
    text = json.dumps(line, default=float)
    if not (name := os.environ.get(SOCKET)):
        if CALLED.get():
            raise MisuseError(
                "`nnlo_opt.report` is for a script that `--command` starts. Received: a call by an objective. Give "
                "it the argument `report`, as in `def objective(parameters, report)`, and call `report(epoch, "
                "value)`."
            )
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
    """Report of a script about an epoch; its content is not validated."""

    epoch: Any
    value: Any = None
    #: further numbers by name
    figures: dict[str, float] = field(default_factory=dict)
    #: True if the folder for a checkpoint has been filled
    saves: bool = False


class Lines:
    """Splits a script's output into lines; of long lines only the beginning is kept."""

    def __init__(self) -> None:
        #: the last line so far
        self._rest = bytearray()

    def take(self, data: bytes) -> list[str]:
        """Return the lines completed by `data`; empty `data` ends the output and completes the last line."""
        first, *others = _NEW_LINE.split(data) if data else (b"", b"")
        self._keep(first)
        if not others:
            return []
        ended, self._rest = [bytes(self._rest), *others[:-1]], bytearray()
        self._keep(others[-1])
        return [line[:MOST_READ].decode(errors="replace") for line in ended if line]

    def _keep(self, part: bytes) -> None:
        self._rest += part[: max(MOST_READ - len(self._rest), 0)]


class Output:
    """Parser of a script's output, line by line.

    A report is a line of JSON with the value, or else a line that matches a pattern.

    Args:
        names: names of the objectives; a result has at least one of them, or `value`.
        patterns: regular expressions for reports and for results that are not JSON; None for none.

    Raises:
        ConfigurationError: a pattern is not a regular expression, or lacks a group.
    """

    def __init__(self, names: Sequence[str], patterns: tuple[str | None, str | None]) -> None:
        self._names = ("value", FIGURE, *names)
        #: the last result, or else the last report; None before that
        self.result: dict[str, Any] | None = None
        #: True once there was a separate result
        self.is_final = False
        #: why the first invalid line of JSON with a value was not a report, or empty
        self.remark = ""
        #: options whose patterns have matched no line
        self.unfitted = {option for option, pattern in zip(_OPTIONS, patterns, strict=True) if pattern is not None}
        self._report = _compiled(_OPTIONS[0], patterns[0], {"epoch", "value"})
        self._result = _compiled(_OPTIONS[1], patterns[1], {names[-1] if names else "value"})

    def take(self, line: str) -> Report | None:
        """Return the report in a line; None if there is none."""
        found = self._said(line) if line.lstrip().startswith("{") else None
        return self._taken(self._matched(line[:_MOST_MATCHED]) if found is None else found)

    def _said(self, line: str) -> dict[str, Any] | None:
        """Return the report in a line of JSON; None if there is none."""
        try:
            found = json.loads(line, parse_int=_integer)
        except (ValueError, RecursionError):
            return None
        name = self._name_in(found) if isinstance(found, dict) else ""
        # Loggers print such names, too, with text or records as values.
        wrong = [key for key in (name, "epoch") if name and not isinstance(found.get(key), int | float | None)]
        if wrong and not self.remark:
            self.remark = f"a line of JSON with `{name}` is not a report: its `{wrong[0]}` is not a number"
        return found if name and not wrong else None

    def _name_in(self, found: Mapping[str, Any]) -> str:
        """Return the key in `found` of the value or the first objective; empty if there is none."""
        by_metric = {canonical_metric(key): key for key in found}
        return next((by_metric[name] for name in self._names if name in by_metric), "")

    def _matched(self, line: str) -> dict[str, Any]:
        """Return the groups of a matching pattern; empty if none matches."""
        for option, pattern in zip(_OPTIONS, (self._report, self._result), strict=True):
            if pattern is not None and (match := pattern.search(line)):
                self.unfitted.discard(option)
                return {name: _number(text) for name, text in match.groupdict().items() if text is not None}
        return {}

    def _taken(self, found: Mapping[str, Any]) -> Report | None:
        if not (name := self._name_in(found)):
            return None
        epoch = _whole(found.get("epoch"))
        needed = {name, *filter(found.__contains__, self._names)}
        figures = {key: value for key, value in found.items() if key in needed or _is_figure(key, value)}
        if name == FIGURE:
            figures["value"] = figures.pop(FIGURE)
        if epoch is None or not self.is_final:
            self.result, self.is_final = figures, epoch is None
        others = {key: value for key, value in figures.items() if key not in (name, "value")}
        return None if epoch is None else Report(epoch, found[name], others, found.get("checkpoint") is True)


def _compiled(option: str, pattern: str | None, needed: set[str]) -> re.Pattern[str] | None:
    try:
        found = None if pattern is None else re.compile(pattern)
        groups = set() if found is None else {*found.groupindex, *map(canonical_metric, found.groupindex)}
        if found is not None and (missing := sorted(needed - groups)):
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


def _number(text: str) -> Any:
    """Parse a number; return the text if it is not one."""
    with suppress(ValueError):
        return _integer(text) if text.isdecimal() else float(text)
    return text


def _integer(text: str) -> int | str:
    """Parse an integer; return the text if it does not fit into a float."""
    return int(text) if len(text) <= _MOST_DIGITS else text


def _whole(epoch: Any) -> Any:
    """Convert a whole float to int, such as Hugging Face's 3.0; return anything else unchanged."""
    return int(epoch) if isinstance(epoch, float) and epoch.is_integer() else epoch
