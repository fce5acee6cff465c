"""SIGUSR1, by which batch systems say that an allocation ends soon: heard in the first lines of a command."""

import os
import signal
import threading
import time
from typing import Any

from nnlo_opt.errors import EXIT_PREEMPTED
from nnlo_opt.runtime.signals import handle

#: how long after the grace a process that cannot come to its end is given up
LAST_S = 2.0


class Preemption:
    """What this rank has heard of its preemption. Made before anything heavy is imported, whence so little of it."""

    def __init__(self) -> None:
        #: when the first signal came; monotonic seconds, None before. A second one changes nothing
        self._asked_at_s: float | None = None
        #: seconds to end in, where this process has to see to it that the job ends; else None
        self._grace_s: float | None = None
        #: ends this process when it has not ended by itself; None while there is no need
        self._timer: threading.Timer | None = None

    def listen(self) -> None:
        """Take SIGUSR1, which would kill the process, for such a request."""
        handle(signal.SIGUSR1, self.ask)

    def ask(self, *_: Any) -> None:
        """Somebody says that the allocation ends soon; a handler of signals."""
        if self._asked_at_s is None:
            self._asked_at_s = time.monotonic()
            self._start_timer()

    @property
    def is_asked(self) -> bool:
        """Whether there was a request."""
        return self._asked_at_s is not None

    @property
    def left_s(self) -> float | None:
        """Seconds of the grace that are left, at least 0; None while nobody has asked, or here is no grace."""
        if self._asked_at_s is None or self._grace_s is None:
            return None
        return max(0.0, self._asked_at_s + self._grace_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the grace is."""
        return self.left_s == 0.0

    def allow(self, grace_s: float) -> None:
        """From now on end this process `grace_s` after a request, and a little, whatever it does then."""
        self._grace_s = grace_s
        self._start_timer()

    def end(self) -> None:
        """The process leaves by itself."""
        if self._timer is not None:
            self._timer.cancel()

    def _start_timer(self) -> None:
        left_s = self.left_s
        if left_s is not None and self._timer is None:
            # For a user's code in this very process, or a file system, that does not come back.
            self._timer = threading.Timer(left_s + LAST_S, os._exit, (EXIT_PREEMPTED,))
            self._timer.daemon = True
            self._timer.start()
