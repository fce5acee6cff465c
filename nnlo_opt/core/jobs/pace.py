"""When to look again at files of other jobs: ten times a second while messages come, else once a second.

In between, a look comes after a twentieth of the time since the last message, so that the wait for the next message is
prolonged by a fortieth on average.
"""

import math

from nnlo_opt.core.jobs.liveness import Timing

#: seconds between two looks: while messages come, and else
FAST_S, SLOW_S = 0.1, 1.0
#: pause in parts of the time since the last message
PART = 1 / 20


class Pace:
    """Times of looks.

    Args:
        timing: times of jobs; a job must look often enough to be alive.
    """

    def __init__(self, timing: Timing) -> None:
        self._longest_s = timing.beat_s
        #: time of the last look, and of the last one that found a message
        self._looked_at_s = self._found_at_s = -math.inf

    def look(self, now_s: float, *, found: bool) -> None:
        """Note a look; `found`: there was a message."""
        self._looked_at_s = now_s
        if found:
            self._found_at_s = now_s

    def left_s(self, now_s: float) -> float:
        """Return the seconds until the next look; 0 if it is due."""
        pause_s = min(max(FAST_S, PART * (self._looked_at_s - self._found_at_s)), SLOW_S, self._longest_s)
        left_s = self._looked_at_s + pause_s - now_s
        # What is due within half a look is due now: several paces share the looks of one thread.
        return left_s if left_s > FAST_S / 2 else 0.0
