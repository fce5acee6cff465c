"""Buffer of suggestions requested ahead of need.

It is small, because a suggestion made earlier knows less, but large enough that blocks do not wait.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.search.base import Suggestion

#: acceptable share of freed blocks that find no suggestion ready
SHORTAGE = 0.05
#: number of latest suggestions and trials for mean durations
N_LATEST = 16


@dataclass(slots=True)
class SuggestionBuffer:
    """Keeps suggestions, and learns how long suggestions and trials take.

    Freed blocks take from the buffer, which the search fills with one suggestion after another: a make-to-stock queue
    (Buzacott and Shanthikumar, 1993, Stochastic Models of Manufacturing Systems, section 4.2). If rho suggestions are
    needed in the time that one takes, a buffer of size s is empty for a share rho^s of these blocks.

    Args:
        n_blocks: number of blocks of the run.
    """

    n_blocks: int
    #: unused suggestions, oldest first
    ready: deque[Suggestion] = field(default_factory=deque, init=False)
    #: True while the search owes an answer
    asked: bool = field(default=False, init=False)
    #: True if the search has no point left to suggest
    exhausted: bool = field(default=False, init=False)
    #: durations of the latest suggestions, and of the latest trials on their blocks
    _suggestions_s: deque[float] = field(default_factory=partial(deque, maxlen=N_LATEST), init=False)
    _trials_s: deque[float] = field(default_factory=partial(deque, maxlen=N_LATEST), init=False)

    def reopen(self) -> None:
        """Ask the search again although it had no point left, because it has been given one."""
        self.exhausted = False

    def ask(self) -> None:
        """Record that the search owes an answer."""
        self.asked = True

    def add(self, suggestion: Suggestion) -> None:
        """Add the answer of the search; ProtocolError if it owes none."""
        if not self.asked:
            raise ProtocolError("A suggestion came that nobody asked for.")
        self.asked = False
        self._suggestions_s.append(suggestion.wall_s)
        if suggestion.point is None:
            self.exhausted = True
        else:
            self.ready.append(suggestion)

    def add_trial(self, seconds: float) -> None:
        """Record that a trial has left its block after `seconds`."""
        self._trials_s.append(seconds)

    @property
    def n_new(self) -> int:
        """Number of suggestions of new trials in the buffer."""
        return sum(suggestion.trial is None for suggestion in self.ready)

    @property
    def is_used_up(self) -> bool:
        """True if the buffer is empty and the search has no point left."""
        return self.exhausted and not self.ready

    def is_short(self, n_idle: int) -> bool:
        """Return True if the search should be asked for a suggestion while `n_idle` blocks are idle."""
        return not (self.asked or self.exhausted) and len(self.ready) < n_idle + self.target

    @property
    def target(self) -> int:
        """Number of suggestions to keep besides those for idle blocks: 1 while little is known, at most one each."""
        if not self._suggestions_s or not self._trials_s:
            return 1
        wanted = self.n_blocks * statistics.fmean(self._suggestions_s)
        trial_s = statistics.fmean(self._trials_s)
        if wanted >= trial_s:
            return self.n_blocks
        if wanted <= SHORTAGE * trial_s:
            return 1
        return min(self.n_blocks, math.ceil(math.log(SHORTAGE) / math.log(wanted / trial_s)))
