"""Suggestions that are held ready: few, as each knows less than one made later; enough that no block waits."""

import math
from collections import deque
from dataclasses import dataclass, field

from nnlo_opt.coordinator.instructions import Suggested
from nnlo_opt.errors import ProtocolError

#: of the blocks that end, the part that may find no suggestion ready
SHORTAGE = 0.05
#: suggestions and trials of which the mean is taken: the latest
N_LATEST = 16


def _latest() -> deque[float]:
    return deque(maxlen=N_LATEST)


@dataclass(slots=True)
class Stock:
    """Holds them, and learns how long suggestions and trials take.

    Blocks that end take from the stock, and the search fills it up, one suggestion after another: a make-to-stock queue
    (Buzacott and Shanthikumar, 1993, Stochastic Models of Manufacturing Systems, section 4.2). With rho suggestions
    wanted in the time that one takes, it is empty for a part rho^s of the blocks that come to a stock of s.
    """

    n_blocks: int
    #: not yet given to a block, oldest first
    ready: deque[Suggested] = field(default_factory=deque, init=False)
    #: whether the search owes an answer
    asked: bool = field(default=False, init=False)
    #: whether the search has no point left to suggest
    exhausted: bool = field(default=False, init=False)
    #: seconds that the latest suggestions took, and that the latest trials held their blocks
    _suggestions_s: deque[float] = field(default_factory=_latest, init=False)
    _trials_s: deque[float] = field(default_factory=_latest, init=False)

    def take_suggestion(self, suggestion: Suggested) -> None:
        """The answer of the search; ProtocolError where it owes none."""
        if not self.asked:
            raise ProtocolError("A suggestion came that nobody asked for.")
        self.asked = False
        self._suggestions_s.append(suggestion.wall_s)
        if suggestion.point is None:
            self.exhausted = True
        else:
            self.ready.append(suggestion)

    def take_trial(self, seconds: float) -> None:
        """A trial has left its block after so long."""
        self._trials_s.append(seconds)

    @property
    def is_used_up(self) -> bool:
        """Whether none is held and none will come."""
        return self.exhausted and not self.ready

    def is_short(self, n_idle: int) -> bool:
        """Whether the search is to be asked for one, with so many blocks idle."""
        return not (self.asked or self.exhausted) and len(self.ready) < n_idle + self.target

    @property
    def target(self) -> int:
        """Suggestions to be held beside those for idle blocks: 1 while little is known, at most one a block."""
        if not self._suggestions_s or not self._trials_s:
            return 1
        wanted = self.n_blocks * _mean(self._suggestions_s)
        trial_s = _mean(self._trials_s)
        if wanted >= trial_s:
            return self.n_blocks
        if wanted <= SHORTAGE * trial_s:
            return 1
        return min(self.n_blocks, math.ceil(math.log(SHORTAGE) / math.log(wanted / trial_s)))


def _mean(values: deque[float]) -> float:
    return math.fsum(values) / len(values)
