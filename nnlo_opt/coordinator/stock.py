"""How many suggestions are held ready: few, as each knows less than one made later; enough that no block waits."""

import math
from collections import deque
from dataclasses import dataclass, field

#: of the blocks that end, the part that may find no suggestion ready
SHORTAGE = 0.05
#: suggestions and trials of which the mean is taken: the latest
N_LATEST = 16


def _latest() -> deque[float]:
    return deque(maxlen=N_LATEST)


@dataclass(slots=True)
class Stock:
    """Learns how long suggestions and trials take.

    Blocks that end take from the stock, and the search fills it up, one suggestion after another: a make-to-stock queue
    (Buzacott and Shanthikumar, 1993, Stochastic Models of Manufacturing Systems, section 4.2). With rho suggestions
    wanted in the time that one takes, it is empty for a part rho^s of the blocks that come to a stock of s.
    """

    n_blocks: int
    #: seconds that the latest suggestions took, and that the latest trials held their blocks
    _suggestions_s: deque[float] = field(default_factory=_latest, init=False)
    _trials_s: deque[float] = field(default_factory=_latest, init=False)

    def take_suggestion(self, seconds: float) -> None:
        """A suggestion took so long."""
        self._suggestions_s.append(seconds)

    def take_trial(self, seconds: float) -> None:
        """A trial has left its block after so long."""
        self._trials_s.append(seconds)

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
