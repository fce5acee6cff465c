"""A search that takes virtual time: suggestions come as late as a search process would have them ready."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from nnlo_opt.search.base import TrialRecord
from nnlo_opt.simulate.clock import Agenda, Cost, VirtualClock


class InnerSearch(Protocol):
    """A search of this process that has been started, and answers before a request returns (`InlineSearch`)."""

    def record(self, trials: Sequence[TrialRecord]) -> None: ...

    def request_suggestion(self, request: int) -> None: ...

    def poll(self) -> Any: ...


class TimedSearch:
    """Does what is asked at once, and hands the answer over when the virtual search process would be through.

    That process does one thing after another, beside the coordinator; what is recorded there costs time only where
    suggestions do as measured, in CPU seconds.
    """

    def __init__(self, inner: InnerSearch, cost: Cost, clock: VirtualClock, agenda: Agenda) -> None:
        self._inner = inner
        self._cost = cost
        self._clock = clock
        self._agenda = agenda
        #: until when the virtual process is at work
        self._busy_until_s = 0.0
        #: suggestions that are ready
        self._arrived: deque[Any] = deque()

    @property
    def has_news(self) -> bool:
        """Whether a suggestion waits for the coordinator."""
        return bool(self._arrived)

    def record(self, trials: Sequence[TrialRecord]) -> None:
        took_s = self._timed(partial(self._inner.record, trials))
        self._work(took_s if self._cost.seconds is None else 0.0)

    def request_suggestion(self, request: int) -> None:
        took_s = self._timed(partial(self._inner.request_suggestion, request))
        cost_s = took_s if self._cost.seconds is None else self._cost.seconds
        self._work(cost_s)
        suggestion = replace(self._inner.poll(), wall_s=cost_s, cpu_s=cost_s)
        self._agenda.add(self._busy_until_s, partial(self._arrived.append, suggestion))

    def poll(self) -> Any:
        return self._arrived.popleft() if self._arrived else None

    def _timed(self, action: Callable[[], None]) -> float:
        """CPU seconds of `action`, which are none of the coordinator's."""
        with self._clock.standing():
            began_s = time.process_time()
            action()
            return time.process_time() - began_s

    def _work(self, seconds: float) -> None:
        self._busy_until_s = max(self._busy_until_s, self._clock.now_s) + seconds
