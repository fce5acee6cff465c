"""Heartbeat of a process: shows the watchdog that work makes progress (`engine.runtime.watchdog`).

There is one pulse and one watchdog per process. Code that works in small pieces runs `PULSE.ticks += 1` after each
piece, which costs one attribute store. Without a watchdog it has no other effect.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

#: factors of the time-out. SLOW: a model is being built, or a batch compiled. TOGETHER: the rank waits in a collective
#: call for ranks that may be slow; those should be killed first, because their stacks show the reason
SLOW, TOGETHER = 3.0, 4.0


class Pulse:
    """Counter of the work a process has done; only the main thread writes, so readers need no lock."""

    def __init__(self) -> None:
        #: grows with each piece of work; the watchdog kills the process if it stalls
        self.ticks = 0
        #: value of `ticks` for which the time-out is multiplied by `_factor`, because of what the process is `_doing`
        self._patient_at = -1
        self._factor, self._doing = 1.0, ""
        #: number of running calls of user code, which may take any time
        self._n_unwatched = 0

    def expect(self, factor: float, doing: str = "") -> None:
        """Allow `factor` times the time-out until the next tick; `doing`: verb and object, for messages."""
        self._factor, self._doing = factor, doing or self.doing
        self._patient_at = self.ticks

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Suspend the time-out inside the block, for user code."""
        self._n_unwatched += 1
        try:
            yield
        finally:
            self.ticks += 1
            self._n_unwatched -= 1

    @property
    def doing(self) -> str:
        """Description of slow work since the last tick; empty if unknown."""
        return self._doing if self._patient_at == self.ticks else ""

    @property
    def patience(self) -> float:
        """Factor of the time-out until the next tick; infinite while user code runs."""
        if self._n_unwatched:
            return math.inf
        return self._factor if self._patient_at == self.ticks else 1.0


#: the pulse of this process, the only one
PULSE = Pulse()
