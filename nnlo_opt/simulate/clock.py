"""Virtual time: a clock that jumps from one event to the next, the events still to come, and what work costs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush

from nnlo_opt.errors import ConfigurationError

Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Cost:
    """Virtual seconds that one piece of work takes; None: as long as it really took."""

    seconds: float | None

    @classmethod
    def parse(cls, text: str, name: str) -> "Cost":
        """`free`, `measured`, or a number of seconds; ConfigurationError, which calls it `name`, for anything else."""
        words = {"free": 0.0, "measured": None}
        if text in words:
            return cls(words[text])
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0.0 <= seconds < float("inf"):
            raise ConfigurationError(f"{name} must be free, measured, or seconds, at least 0. Received: {text}.")
        return cls(seconds)


FREE = Cost(0.0)
MEASURED = Cost(None)


class VirtualClock:
    """Seconds from 0 that pass only by `advance_to`, or as this process's own time while it is let run."""

    def __init__(self) -> None:
        #: the time when the clock last stood still; never decreases
        self._stood_at_s = 0.0
        #: this process's time when it was let run; None while it stands still
        self._let_run_at_s: float | None = None

    @property
    def now_s(self) -> float:
        """The current time."""
        if self._let_run_at_s is None:
            return self._stood_at_s
        return self._stood_at_s + time.perf_counter() - self._let_run_at_s

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def advance_to(self, time_s: float) -> None:
        """Jump to `time_s`, unless it is past."""
        self._stood_at_s = max(self._stood_at_s, time_s)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let real time pass while the block works; not within itself."""
        self._let_run_at_s = time.perf_counter()
        try:
            yield
        finally:
            self._halt()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Let no time pass while the block works, whether the clock runs around it or not."""
        ran = self._let_run_at_s is not None
        self._halt()
        try:
            yield
        finally:
            if ran:
                self._let_run_at_s = time.perf_counter()

    def _halt(self) -> None:
        self._stood_at_s, self._let_run_at_s = self.now_s, None


class Agenda:
    """What is still to happen, earliest first; of the same time, in the order in which it was added."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        #: heap of (due time, number, action); the numbers are all different
        self._entries: list[tuple[float, int, Action]] = []
        self._n_added = 0

    def add(self, due_s: float, action: Action) -> None:
        """Have `action` done at `due_s`, or as soon as may be where that is past."""
        heappush(self._entries, (due_s, self._n_added, action))
        self._n_added += 1

    def do_due(self) -> None:
        """Do all that is due now, and what that adds for now."""
        while self._entries and self._entries[0][0] <= self._clock.now_s:
            heappop(self._entries)[2]()

    def jump(self) -> bool:
        """Move the clock on to the next action; -> whether there is one."""
        if self._entries:
            self._clock.advance_to(self._entries[0][0])
        return bool(self._entries)
