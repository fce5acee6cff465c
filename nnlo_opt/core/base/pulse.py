"""Pulse of a process, by which it shows its watchdog that the work goes on (`engine.runtime.watchdog`).

There is one pulse in a process, as there is one watchdog. Code that works in small pieces runs `PULSE.ticks += 1` after
each piece, which costs a store into an attribute. Without a watchdog nothing else happens.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

#: factors of the time-out. SLOW: a model is built, or a batch compiled. TOGETHER: the rank waits in a collective call
#: for ranks that may be slow; the slow ranks are to be ended first, as their stacks show the reason
SLOW, TOGETHER = 3.0, 4.0


class Pulse:
    """Count of the work that a process has done; only the main thread writes, so a reader needs no lock."""

    def __init__(self) -> None:
        #: grows with each piece of work
        self.ticks = 0
        #: value of `ticks` at which the time-out is `_factor` times as long, because of what the process is `_doing`
        self._patient_at = -1
        self._factor, self._doing = 1.0, ""
        #: number of calls of a user's code that are running, and may take any time
        self._n_unwatched = 0

    def expect(self, factor: float, doing: str = "") -> None:
        """Allow `factor` times the time-out until the next tick; `doing`: a verb with its object, for people."""
        self._factor, self._doing = factor, doing or self.doing
        self._patient_at = self.ticks

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Allow any time for the code inside, which computes for a user."""
        self._n_unwatched += 1
        try:
            yield
        finally:
            self.ticks += 1
            self._n_unwatched -= 1

    @property
    def doing(self) -> str:
        """Slow work of the process since the last tick; empty if it is not known."""
        return self._doing if self._patient_at == self.ticks else ""

    @property
    def patience(self) -> float:
        """Factor of the time-out that may pass until the next tick; infinite while a user's code computes."""
        if self._n_unwatched:
            return math.inf
        return self._factor if self._patient_at == self.ticks else 1.0


#: the pulse of this process
PULSE = Pulse()
