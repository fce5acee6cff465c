"""Clocks as a dependency, so that a test or a simulation can control time."""

import time
from typing import Protocol


class Clock(Protocol):
    """Clock with two times: `monotonic_s` for durations on this rank, `unix_s` for times that are written to files."""

    def monotonic_s(self) -> float: ...

    def unix_s(self) -> float: ...


class SystemClock:
    """Clock of the machine."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()
