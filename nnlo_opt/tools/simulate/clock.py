"""Virtual time: a clock that jumps from action to action, and costs of work."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

from nnlo_opt.core.base.errors import ConfigurationError

Action = Callable[[], None]


#: virtual seconds of one piece of work; `MEASURED` for the real duration
Cost = float | None
FREE: Cost = 0.0
MEASURED: Cost = None


def parse_cost(text: str, name: str) -> Cost:
    """Parse a cost: `free`, `measured`, or a number of seconds.

    Args:
        text: value of an option.
        name: name of the option, for errors.

    Raises:
        ConfigurationError: `text` is none of these.
    """
    words = {"free": FREE, "measured": MEASURED}
    if text in words:
        return words[text]
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise ConfigurationError(f"{name} must be free, measured, or seconds, at least 0. Received: {text}.")
    return seconds


class VirtualClock:
    """Clock that starts at 0, with scheduled actions; moved by `advance_to`, `jump`, or real time in `let`.

    Simultaneous actions run in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        #: virtual time at which the clock last stopped; never decreases
        self._stood_at_s = 0.0
        #: real time at which the clock was started; None while it is stopped
        self._let_run_at_s: float | None = None
        #: heap of (due time, unique number, action)
        self._entries: list[tuple[float, int, Action]] = []
        self._n_scheduled = 0

    @property
    def now_s(self) -> float:
        """Virtual time in seconds."""
        if self._let_run_at_s is None:
            return self._stood_at_s
        return self._stood_at_s + time.perf_counter() - self._let_run_at_s

    def monotonic_s(self) -> float:
        return self.now_s

    unix_s = monotonic_s

    def advance_to(self, time_s: float) -> None:
        """Move to `time_s`; a time in the past is ignored."""
        self._stood_at_s = max(self._stood_at_s, time_s)

    @contextmanager
    def let(self, *, run: bool) -> Iterator[None]:
        """Run the clock with real time, or stop it, during the `with` block; then continue as before."""
        ran = self._let_run_at_s is not None
        self._set(run)
        try:
            yield
        finally:
            self._set(ran)

    def _set(self, runs: bool) -> None:
        self._stood_at_s, self._let_run_at_s = self.now_s, time.perf_counter() if runs else None

    def schedule(self, due_s: float, action: Action) -> None:
        """Schedule `action` for `due_s`, or for now if that is past."""
        heappush(self._entries, (due_s, self._n_scheduled, action))
        self._n_scheduled += 1

    def do_due(self) -> None:
        """Run all actions that are due now, including those they add for now."""
        while self._entries and self._entries[0][0] <= self.now_s:
            heappop(self._entries)[2]()

    def jump(self) -> bool:
        """Move the clock to the next action; return False if there is none."""
        if self._entries:
            self.advance_to(self._entries[0][0])
        return bool(self._entries)
