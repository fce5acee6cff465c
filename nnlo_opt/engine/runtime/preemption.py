"""Preemption by SIGUSR1, which batch systems send before an allocation ends."""

import os
import signal
import threading
import time
from typing import Any

from nnlo_opt.core.base.errors import EXIT_PREEMPTED
from nnlo_opt.engine.runtime.signals import handle

#: seconds after the grace period at which a process is forced to exit
LAST_S = 2.0


class Preemption:
    """A request to this rank to end soon. It is created before any large import, so it has few dependencies."""

    def __init__(self) -> None:
        #: time of the first signal, monotonic seconds; None before it. Later signals are ignored
        self._asked_at_s: float | None = None
        #: grace period in seconds if this process must make sure that the job ends; None otherwise
        self._grace_s: float | None = None
        #: forces this process to exit; None without a request or a grace period
        self._timer: threading.Timer | None = None

    def listen(self) -> None:
        """Handle SIGUSR1, which would kill the process, as a request."""
        handle(signal.SIGUSR1, self.ask)

    def ask(self, *_: Any) -> None:
        """Record a request: the allocation ends soon. Also works as a signal handler."""
        if self._asked_at_s is None:
            self._asked_at_s = time.monotonic()
            self._start_timer()

    @property
    def is_asked(self) -> bool:
        """True if there was a request."""
        return self._asked_at_s is not None

    @property
    def left_s(self) -> float | None:
        """Remaining seconds of the grace period, at least 0; None without a request or a grace period."""
        if self._asked_at_s is None or self._grace_s is None:
            return None
        return max(0.0, self._asked_at_s + self._grace_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True once the grace period is over."""
        return self.left_s == 0.0

    def allow(self, grace_s: float) -> None:
        """Set the grace period: this process is forced to exit `grace_s` + LAST_S seconds after a request."""
        self._grace_s = grace_s
        self._start_timer()

    def end(self) -> None:
        """Stop the timer, because the process is about to exit by itself."""
        if self._timer is not None:
            self._timer.cancel()

    def _start_timer(self) -> None:
        left_s = self.left_s
        if left_s is not None and self._timer is None:
            # User code or a file system may hang.
            self._timer = threading.Timer(left_s + LAST_S, os._exit, (EXIT_PREEMPTED,))
            self._timer.daemon = True
            self._timer.start()
