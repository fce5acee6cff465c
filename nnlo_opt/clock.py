"""Time as a dependency, so that tests and simulations can own it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two times: `monotonic_s` for durations on this rank, `unix_s` for what is written down."""

    def monotonic_s(self) -> float: ...

    def unix_s(self) -> float: ...


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves only when told to; for tests and simulation."""

    def __init__(self, start_s: float = 0.0) -> None:
        #: current time in seconds; never decreases
        self.now_s = start_s

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` (not negative)."""
        if seconds < 0:
            raise ValueError(f"A clock never goes back. Received: {seconds}.")
        self.now_s += seconds
