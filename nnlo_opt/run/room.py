"""What the coordinator does where the disk is full."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from nnlo_opt.clock import Clock, SystemClock
from nnlo_opt.runtime.pulse import PULSE

#: seconds between two attempts to write, and between two lines that say so
ROOM_S, SAY_S = 2.0, 60.0


class WaitForRoom:
    """Says that there is no room, and waits: nothing is sent before what justifies it is written."""

    def __init__(
        self,
        place: Path,
        say: Callable[[str, TextIO], None],
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place = place
        self._say = say
        self._clock = clock or SystemClock()
        self._sleep = sleep
        #: when the last line was said, and the last attempt made; monotonic seconds
        self._said_at_s = self._tried_at_s = -SAY_S

    def __call__(self, error: OSError) -> None:
        """Before each further attempt to write."""
        PULSE.ticks += 1
        now_s = self._clock.monotonic_s()
        is_new = now_s - self._tried_at_s > 2 * ROOM_S
        if is_new or now_s - self._said_at_s >= SAY_S:
            self._said_at_s = now_s
            self._say(
                f"`{self._place}` cannot be written ({error.strerror or error}): free some space. The search waits and "
                f"tries again every {ROOM_S:g} s; ranks train on, and nothing is lost, also if you end the job and go "
                "on later.",
                sys.stderr,
            )
        self._sleep(ROOM_S)
        self._tried_at_s = self._clock.monotonic_s()
