"""Signs of life: how a process shows that it gets on, to whoever watches it (`nnlo_opt.runtime.watchdog`).

One a process, as its stacks and its end are. Whoever works in small pieces says `PULSE.ticks += 1` after each, which
costs a store into an attribute; nothing happens by it where nobody watches.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

#: how many times as long as otherwise: a model may take to be built, or a batch to be compiled; and a rank may wait in
#: a collective call for others that do so, which are to end first, as their stacks tell why
SLOW, TOGETHER = 3.0, 4.0


class Pulse:
    """What a process has shown of itself. Written by the main thread alone, so a reader needs no lock."""

    def __init__(self) -> None:
        #: grows with everything that gets done
        self.ticks = 0
        #: the count of ticks during which `_factor` times as long is waited
        self._patient_at = -1
        self._factor = 1.0
        #: how many calls of a user's code are under way of which nobody can know how long they take
        self._n_unwatched = 0

    def expect(self, factor: float) -> None:
        """What comes until the next tick may take `factor` times as long as otherwise."""
        self._factor = factor
        self._patient_at = self.ticks

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """A user's computation: it may take as long as it likes."""
        self._n_unwatched += 1
        try:
            yield
        finally:
            self.ticks += 1
            self._n_unwatched -= 1

    @property
    def patience(self) -> float:
        """How many times the time-out may pass until the next tick; infinite in a user's computation."""
        if self._n_unwatched:
            return math.inf
        return self._factor if self._patient_at == self.ticks else 1.0


#: of this process
PULSE = Pulse()
